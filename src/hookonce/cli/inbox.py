"""``hookonce inbox``: what waits for workers, for a person to look at and try now."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from hookonce.stores.contract import Listing
from hookonce.stores.values import DeliveryKey, Entry, StoreStats
from hookonce.verification.clock import duration_text, system_clock

from .output import Output, json_option, size_text
from .records import EventList, list_options, print_event, show_options, time_text
from .selecting import (
    NOT_FOUND,
    PAGE,
    ByEvent,
    check_selection,
    conclude,
    for_each,
    keys_of,
    one_of,
    only,
    pages_of,
)
from .statuses import Nothing
from .stores import (
    STORE_HELP,
    endpoint_option,
    store_argument,
    with_store,
)

_COLUMNS = {
    "received_at": "received",
    "endpoint": "endpoint",
    "id": "id",
    "type": "type",
    "state": "state",
    "until": "until",
    "attempts": "attempts",
    "error": "last error",
}


@click.group(epilog=STORE_HELP)
def inbox() -> None:
    """Look at what waits for workers, and try it now."""


@inbox.command()
@store_argument()
@click.option("--endpoint", help="Only what belongs to this endpoint.")
@json_option
def stats(store_url: str, endpoint: str | None, *, as_json: bool) -> None:
    """Show how much waits, for how long, and how many work on it.

    The depth includes what is in flight.
    """
    found = with_store(store_url, lambda store: store.stats(endpoint=endpoint))
    record = {
        "endpoint": endpoint,
        "depth": found.depth,
        "bytes": found.bytes,
        "oldest_age_seconds": found.oldest_age,
        "in_flight": found.in_flight,
        "dead": found.dead,
        "workers": found.workers,
    }
    output = Output(as_json=as_json)
    output.record(record, "\n".join(_lines(found, endpoint)))
    if found.depth and not found.workers:
        output.say("nobody works on it: start `hookonce worker`", "yellow")


def _lines(found: StoreStats, endpoint: str | None) -> list[str]:
    age = "-" if found.oldest_age is None else duration_text(found.oldest_age)
    return [
        f"endpoint: {endpoint or 'all'}",
        f"depth: {found.depth}",
        f"bytes: {size_text(found.bytes)}",
        f"oldest: {age}",
        f"in flight: {found.in_flight}",
        f"dead: {found.dead}",
        f"workers: {found.workers}",
    ]


@inbox.command("list")
@list_options
def list_entries(
    store_url: str,
    endpoint: str | None,
    event_type: str | None,
    since: float | None,
    handler: str | None,
    limit: int,
    *,
    every: bool,
    as_json: bool,
) -> None:
    """List the events in the inbox, oldest first; --since goes by when they arrived.

    An event is ready, in flight, or waits until a later attempt is due.
    """
    output = Output(as_json=as_json)

    async def print_entries(store: Listing) -> None:
        page = partial(
            store.entries, endpoint=endpoint, event_type=event_type, handler=handler, since=since
        )

        async def total() -> int:
            return (await store.stats(endpoint=endpoint)).depth

        is_filtered = any((event_type, handler, since))
        listing = EventList(
            lambda after, limit: page(after=after, limit=limit),
            None if is_filtered else total,
            _record,
            _COLUMNS,
            "the inbox is empty",
        )
        await listing.print(output, None if every else limit)

    with_store(store_url, print_entries)


@inbox.command()
@show_options
def show(
    store_url: str, event_ids: tuple[str, ...], endpoint: str | None, *, raw: bool, as_json: bool
) -> None:
    """Show one event in the inbox with its failed attempts and its body.

    Bytes that are no text are shown as escapes; --raw gives them as they came.
    """
    event_id = only(event_ids)

    async def found(store: Listing) -> Entry | None:
        key = await one_of(event_id, endpoint, "event", _by_event(store))
        return await store.entry(key)

    entry = with_store(store_url, found)
    if entry is None:  # somebody has handled it meanwhile
        raise Nothing(f"{event_id!r} is not in the inbox any more")
    print_event(entry, _record(entry), raw=raw, as_json=as_json)


@inbox.command()
@store_argument("[ID]...")
@click.option("--all", "every", is_flag=True, help="Retry everything that waits.")
@click.option("--type", "event_type", help="Retry what waits and is of this event type.")
@endpoint_option
@json_option
def retry(
    store_url: str,
    event_ids: tuple[str, ...],
    event_type: str | None,
    endpoint: str | None,
    *,
    every: bool,
    as_json: bool,
) -> None:
    """Let events that wait for a later attempt be tried now.

    Exits 0 unless an event is not in the inbox.
    """
    check_selection(event_ids, event_type, every=every)
    output = Output(as_json=as_json)

    async def retry_all(store: Listing) -> set[str]:
        async def hastened(key: DeliveryKey) -> str:
            if await store.hasten(key):
                return "due now"
            return NOT_FOUND if await store.entry(key) is None else "in flight"

        if event_ids:
            keys = await keys_of(event_ids, endpoint, _by_event(store))
            return await for_each(keys, hastened, output)
        results = set()
        listing = partial(store.entries, endpoint=endpoint, event_type=event_type)
        async for page in pages_of(lambda after, limit: listing(after=after, limit=limit)):
            keys = [
                one.delivery.key for one in page.events if one.state(system_clock()) == "waiting"
            ]
            results |= await for_each(keys, hastened, output)
        return results

    results = with_store(store_url, retry_all)
    conclude(results, event_ids, "nothing waits for a later attempt", output)


def _by_event(store: Listing) -> ByEvent:
    return lambda event_id: store.entries(event_id=event_id, limit=PAGE)


@inbox.command()
@store_argument()
@json_option
def prune(store_url: str, *, as_json: bool) -> None:
    """Remove records of handled events whose retention is over.

    Stores do so by themselves; this does it now. What waits or is dead is never removed.
    """
    count = with_store(store_url, lambda store: store.prune())
    records = "1 record" if count == 1 else f"{count} records"
    Output(as_json=as_json).record({"removed": count}, f"removed {records}")


def _record(entry: Entry) -> dict[str, Any]:
    state = entry.state(system_clock())
    return {
        "received_at": time_text(entry.delivery.received_at),
        "endpoint": entry.delivery.endpoint,
        "id": entry.delivery.event_id,
        "type": entry.delivery.event_type,
        "state": state,
        "until": None if state == "ready" else time_text(entry.due_at),
        "attempts": entry.attempts,
        "error": entry.history[-1].error if entry.history else None,
    }
