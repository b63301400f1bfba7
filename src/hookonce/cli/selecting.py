"""Events of a store that a command is about: found by their ids or page by page, and handled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import click

from hookonce.stores.values import DeadLetter, DeliveryKey, Entry, delivery_key

from .output import Output
from .statuses import Nothing, Status

E = TypeVar("E", DeadLetter, Entry)

PAGE = 500
"""How many events are listed at a time, since a store may do nothing else meanwhile."""

NOT_FOUND = "not found"
"""What came of an event that is not where it was looked for."""

# So many calls at the same time share a commit, or a round trip.
_AT_ONCE = 256

Pages: TypeAlias = Callable[[str | None, int], Awaitable[Sequence[E]]]
"""Returns so many events of a listing behind a place, or from the start, oldest first."""


def only(event_ids: tuple[str, ...]) -> str:
    """Return the one id that was given, or end with the usage."""
    if len(event_ids) != 1:
        raise click.UsageError(f"name one event by its id, not {len(event_ids)}")
    return event_ids[0]


def check_selection(event_ids: Sequence[str], event_type: str | None, *, every: bool) -> None:
    """End with the usage unless events are named in exactly one way."""
    if bool(event_ids) + bool(every) + bool(event_type) != 1:
        raise click.UsageError("name events by their ids, by --type, or --all")


class Page(NamedTuple, Generic[E]):
    """Events of a listing, and whether none follow."""

    events: Sequence[E]
    is_last: bool

    @property
    def keys(self) -> tuple[DeliveryKey, ...]:
        """Their keys."""
        return tuple(event.delivery.key for event in self.events)

    @property
    def ids(self) -> tuple[str, ...]:
        """Their ids."""
        return tuple(event.delivery.event_id for event in self.events)


async def pages_of(
    listing: Pages[E], *, wanted: Callable[[E], bool] = lambda _: True
) -> AsyncIterator[Page[E]]:
    """Yield the events of a listing, each once, though it changes meanwhile.

    Args:
        listing: returns so many of them behind a place, or from the start, oldest first.
        wanted: which of them are yielded.

    """
    seen: set[DeliveryKey] = set()
    after: str | None = None
    is_last = False
    while not is_last:
        events = await listing(after, PAGE)
        # What was replayed in vain may be listed again, behind all others.
        new = [event for event in events if event.delivery.key not in seen]
        is_last = len(events) < PAGE or not new
        if new:
            yield Page([event for event in new if wanted(event)], is_last)
            seen.update(event.delivery.key for event in new)
            after = events[-1].place


ByEvent: TypeAlias = Callable[[str], Awaitable[Sequence[DeadLetter | Entry]]]
"""Returns what a store has of an event, at every endpoint."""


async def keys_of(
    event_ids: Sequence[str], endpoint: str | None, listing: ByEvent
) -> list[DeliveryKey]:
    """Return the keys of events that are named by their ids: at every endpoint that has them.

    One that is nowhere is looked for at the default endpoint, where it is not found either.

    Args:
        event_ids: the ids.
        endpoint: the one endpoint to look at, if it was named.
        listing: finds what there is of one.

    """
    if endpoint is not None:
        return [delivery_key(endpoint, event_id) for event_id in event_ids]
    return [
        delivery_key(place, event_id)
        for event_id in event_ids
        for place in (await _places_of(event_id, listing) or ["default"])
    ]


async def _places_of(event_id: str, listing: ByEvent) -> list[str]:
    """Return at which endpoints an event is."""
    return [found.delivery.endpoint for found in await listing(event_id)]


async def one_of(event_id: str, endpoint: str | None, what: str, listing: ByEvent) -> DeliveryKey:
    """Return the key of one event, or end with where it is instead.

    Args:
        event_id: its id.
        endpoint: the one endpoint to look at, if it was named.
        what: what it is called, for the message.
        listing: finds what there is of it.

    """
    places = await _places_of(event_id, listing)
    named = [place for place in places if endpoint in {None, place}]
    if len(named) == 1:
        return delivery_key(named[0], event_id)
    elsewhere = " and ".join(map(repr, places))
    if named:
        raise Nothing(f"{event_id!r} is at {elsewhere}; name one of them with --endpoint")
    where = f" at {endpoint!r}" if endpoint else ""
    hint = f"; there is one at {elsewhere}" if places else ""
    raise Nothing(f"there is no {what} {event_id!r}{where}{hint}")


async def for_each(
    keys: Sequence[DeliveryKey],
    step: Callable[[DeliveryKey], Awaitable[str]],
    output: Output,
) -> set[str]:
    """Take a step for each event, many at the same time; print and return what came of them."""
    found = set()
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        results = await asyncio.gather(*(step(key) for key in some))
        for key, result in zip(some, results, strict=True):
            print_result(key, result, output)
        found.update(results)
    return found


def print_result(key: DeliveryKey, result: str, output: Output, style: str = "") -> None:
    """Print what came of one event; at which endpoint, unless that is the usual one."""
    endpoint, _, event_id = key.partition(":")  # of which no endpoint has one in its name
    where = "" if endpoint == "default" else f" at {endpoint}"
    output.record(
        {"id": event_id, "endpoint": endpoint, "result": result},
        f"{event_id}{where}: {result}",
        style,
    )


def conclude(results: set[str], event_ids: Sequence[str], nothing: str, output: Output) -> None:
    """End with 1 if an event was not found that was named by its id.

    What a selection has found and somebody else has taken away meanwhile is no failure.
    """
    if not results:
        output.say(nothing)
    if event_ids and NOT_FOUND in results:
        raise SystemExit(Status.FOUND)
