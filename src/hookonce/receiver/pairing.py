"""Finds out which resource a gap was about, by type and time, if only one is possible.

The delivery log has no payload, and the posts and comments that the service shows do not say which
event told of them (interface, Endpoints). What cannot be told apart is left open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Generic, NamedTuple, TypeVar

from .reconcile import Gap

T = TypeVar("T")

_NEVER = datetime.max.replace(tzinfo=UTC)


class Found(NamedTuple, Generic[T]):
    """Something that the service shows, and that no event handled here has told of.

    Attributes:
        item: a post's target or a comment, for example.
        earliest: when its event can have been created at the earliest; None where nothing tells.
        latest: and when at the latest.

    """

    item: T
    earliest: datetime | None
    latest: datetime | None

    def fits(self, moment: datetime) -> bool:
        """Return whether its event can have been created then."""
        return (self.earliest is None or self.earliest <= moment) and (
            self.latest is None or moment <= self.latest
        )


def pair_by_time(gaps: Sequence[Gap], found: Sequence[Found[T]]) -> list[tuple[Gap, T]]:
    """Return the gaps of which it is certain what they were about, each with that, oldest first.

    Gaps and things that fit each other by their times make groups. A group is certain if it has as
    many things as gaps, and no other event that is unsettled fits one of the things: then each is
    given to one gap, so that all of them are handled once. What is in any other group is left out,
    since it cannot be told what belongs to what: something was removed since, or its event is in no
    log, or still on its way.

    Args:
        gaps: of one event type.
        found: what their events may have told of, without what is known to be handled.

    """
    pairs: list[tuple[Gap, T]] = []
    for group, things in _groups(sorted(gaps, key=lambda gap: gap.created_at), found):
        is_certain = len(group) == len(things) and not any(
            thing.fits(at) for thing in things for at in group[0].unsettled
        )
        if is_certain and (items := _in_turn(group, things)) is not None:
            pairs += zip(group, items, strict=True)
    return pairs


def _groups(
    gaps: Sequence[Gap], found: Sequence[Found[T]]
) -> Iterator[tuple[list[Gap], list[Found[T]]]]:
    """Yield gaps and what fits them, each group with all that is tied to it by times."""
    gaps_left, things_left = set(range(len(gaps))), set(range(len(found)))
    while gaps_left:
        group: set[int] = set()
        things: set[int] = set()
        new = {min(gaps_left)}
        while new:
            group |= new
            gaps_left -= new
            fitting = {
                t for t in things_left if any(found[t].fits(gaps[g].created_at) for g in new)
            }
            things |= fitting
            things_left -= fitting
            new = {g for g in gaps_left if any(found[t].fits(gaps[g].created_at) for t in fitting)}
        yield [gaps[g] for g in sorted(group)], [found[t] for t in sorted(things)]


def _in_turn(gaps: Sequence[Gap], found: Sequence[Found[T]]) -> list[T] | None:
    """Return a thing for each gap in turn, that which fits for the shortest time; None if none."""
    left, items = list(found), []
    for gap in gaps:
        fitting = [thing for thing in left if thing.fits(gap.created_at)]
        if not fitting:
            return None
        thing = min(fitting, key=lambda one: one.latest or _NEVER)
        left.remove(thing)
        items.append(thing.item)
    return items
