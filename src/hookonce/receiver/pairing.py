"""Finds the post or comment that a missed event is about, by type and time, if only one fits.

The delivery log has no payloads, and a post or comment in the service does not name its event
(interface, Endpoints). If several resources fit a gap, the gap stays open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Generic, NamedTuple, TypeVar

from .reconcile import Gap

T = TypeVar("T")

_NEVER = datetime.max.replace(tzinfo=UTC)


class Found(NamedTuple, Generic[T]):
    """A resource of the service, such as a comment, whose event this receiver has not handled.

    Attributes:
        item: the resource, for example a post's target or a comment.
        earliest: the earliest time at which its event can have been created; None if unknown.
        latest: the latest time at which its event can have been created; None if unknown.
    """

    item: T
    earliest: datetime | None
    latest: datetime | None

    def fits(self, moment: datetime) -> bool:
        """Return whether the event can have been created at this time."""
        return (self.earliest is None or self.earliest <= moment) and (
            self.latest is None or moment <= self.latest
        )


def pair_by_time(gaps: Sequence[Gap], found: Sequence[Found[T]]) -> list[tuple[Gap, T]]:
    """Return the gaps whose resource is certain, each with its resource, oldest first.

    Gaps and resources that fit each other by time form groups. A group is certain if it has as many
    resources as gaps, and no unsettled event fits one of its resources. Then each gap gets one of
    the resources, so that each resource is handled once. Other groups are left out: a resource may
    have been removed, or its event may be missing from the log or still on its way.

    Args:
        gaps: gaps of one event type.
        found: the resources that the events may be about, without those known to be handled.
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
    """Yield the groups of gaps and resources that fit each other, directly or indirectly."""
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
    """Return a resource for each gap, oldest gap first; None if a gap gets no resource.

    Each gap gets the fitting resource with the earliest ``latest``, because a resource with a later
    ``latest`` may fit a later gap.
    """
    left, items = list(found), []
    for gap in gaps:
        fitting = [thing for thing in left if thing.fits(gap.created_at)]
        if not fitting:
            return None
        thing = min(fitting, key=lambda one: one.latest or _NEVER)
        left.remove(thing)
        items.append(thing.item)
    return items
