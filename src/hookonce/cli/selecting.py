"""Events of a store that a command is about: found by their ids or page by page, and handled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import click

from hookonce.stores.contract import InboxStore
from hookonce.stores.values import DeadLetter, DeliveryKey, Entry, StoreStats, delivery_key

from .output import Output
from .statuses import Nothing, Status
from .stores import with_store

E = TypeVar("E", bound=DeadLetter | Entry)

PAGE = 500
"""How many events are listed at a time, since a store may do nothing else meanwhile."""

NOT_FOUND = "not found"
"""What came of an event that is not where it was looked for."""

# So many calls at the same time share a commit, or a round trip.
_AT_ONCE = 256

Pages: TypeAlias = Callable[[str | None, int], Awaitable[Sequence[E]]]
"""Returns so many events of a listing behind a place, or from the start, oldest first."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[E]):
    """Dead letters, or events in an inbox: how a store finds them, and how they are printed.

    Attributes:
        name: what one of them is called in messages.
        nothing: what to print where there are none.
        find: returns the store's method that lists them.
        load: returns the store's method that returns one with its body.
        count: returns how many there are, from the numbers of a store.
        record: returns the fields of one that are printed.
        columns: the headings of the fields, as in ``Output.table``.

    """

    name: str
    nothing: str
    find: Callable[[InboxStore], Callable[..., Awaitable[Sequence[E]]]]
    load: Callable[[InboxStore], Callable[[DeliveryKey], Awaitable[E | None]]]
    count: Callable[[StoreStats], int]
    record: Callable[[E], Mapping[str, Any]]
    columns: Mapping[str, str]

    def pages(self, store: InboxStore, **wanted: object) -> Pages[E]:
        """Return the listing of those that are wanted, by the names of ``WantedLetters``."""
        find = self.find(store)
        return lambda after, limit: find(after=after, limit=limit, **wanted)

    async def endpoints_of(self, store: InboxStore, event_id: str) -> list[str]:
        """Return the endpoints at which a store has an event."""
        found = await self.find(store)(event_id=event_id, limit=PAGE)
        return [one.delivery.endpoint for one in found]


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


async def one_of(
    kind: Kind[E], store: InboxStore, event_id: str, endpoint: str | None
) -> DeliveryKey:
    """Return the key of an event, or end with the endpoints where it is instead."""
    places = await kind.endpoints_of(store, event_id)
    named = [place for place in places if endpoint in {None, place}]
    if len(named) == 1:
        return delivery_key(named[0], event_id)
    elsewhere = " and ".join(map(repr, places))
    if named:
        raise Nothing(f"{event_id!r} is at {elsewhere}; name one of them with --endpoint")
    where = f" at {endpoint!r}" if endpoint else ""
    hint = f"; there is one at {elsewhere}" if places else ""
    raise Nothing(f"there is no {kind.name} {event_id!r}{where}{hint}")


async def _keys_of(
    kind: Kind[E], store: InboxStore, event_ids: Sequence[str], endpoint: str | None
) -> list[DeliveryKey]:
    """Return the keys of events at the endpoint, or else at every endpoint that has them.

    An unknown id gets the default endpoint, where it is not found either.
    """
    if endpoint is not None:
        return [delivery_key(endpoint, event_id) for event_id in event_ids]
    return [
        delivery_key(place, event_id)
        for event_id in event_ids
        for place in (await kind.endpoints_of(store, event_id) or ["default"])
    ]


def change_selected(
    kind: Kind[E],
    store_url: str,
    change: Callable[[InboxStore, DeliveryKey], Awaitable[str]],
    *,
    event_ids: Sequence[str],
    event_type: str | None,
    endpoint: str | None,
    wanted: Callable[[E], bool],
    nothing: str,
    as_json: bool,
) -> None:
    """Change the events named by their ids, or else those of a listing that are wanted.

    Exits with 1 if a named event is not found. Somebody else may have taken away a listed event
    meanwhile, which is no failure.

    Args:
        kind: which events of the store.
        store_url: names the store.
        change: changes one event, and returns the result to print.
        event_ids: the ids; without any, all that ``wanted`` returns True for.
        event_type: without ids, only events of this type.
        endpoint: only events of this endpoint.
        wanted: without ids, which of the listed events.
        nothing: what to print where there are none.
        as_json: print one JSON object a line.

    """
    output = Output(as_json=as_json)

    async def change_all(store: InboxStore) -> set[str]:
        if event_ids:
            keys = await _keys_of(kind, store, event_ids, endpoint)
            return await _for_each(keys, partial(change, store), output)
        results = set()
        listing = kind.pages(store, endpoint=endpoint, event_type=event_type)
        async for page in pages_of(listing, wanted=wanted):
            results |= await _for_each(page.keys, partial(change, store), output)
        return results

    results = with_store(store_url, change_all)
    if not results:
        output.say(nothing)
    if event_ids and NOT_FOUND in results:
        raise SystemExit(Status.FOUND)


async def _for_each(
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
