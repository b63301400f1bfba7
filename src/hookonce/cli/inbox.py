"""``hookonce inbox``: the events that wait for workers, and the workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from hookonce.clock import duration_text, system_clock
from hookonce.stores.activity import ActivityStore, ReportedWorker
from hookonce.stores.filters import EventFilter
from hookonce.stores.protocols import InboxStore
from hookonce.stores.values import DeliveryKey, Entry, StoreStats
from hookonce.watching.workers import WorkerReport, read_report

from .listing import (
    NOT_FOUND,
    EventList,
    change_selected,
    check_selection,
    filter_options,
    list_options,
    print_list,
    print_one,
    show_options,
)
from .output import Output, json_option, size_text
from .statuses import CannotBegin
from .stores import STORE_HELP, endpoint_option, store_argument, with_store
from .times import time_text


def _record(entry: Entry) -> dict[str, Any]:
    state = entry.state(system_clock())
    return {
        "received_at": time_text(entry.delivery.received_unix),
        "endpoint": entry.delivery.endpoint,
        "id": entry.delivery.event_id,
        "type": entry.delivery.event_type,
        "state": state,
        "until": None if state == "ready" else time_text(entry.due_unix),
        "attempts": entry.attempts,
        "error": entry.history[-1].error if entry.history else None,
    }


_EVENTS: EventList[Entry] = EventList(
    name="event",
    nothing="the inbox is empty",
    find=lambda store: store.entries,
    load=lambda store: store.entry,
    count=lambda stats: stats.depth,
    record=_record,
    columns={
        "received_at": "received",
        "endpoint": "endpoint",
        "id": "id",
        "type": "type",
        "state": "state",
        "until": "until",
        "attempts": "attempts",
        "error": "last error",
    },
)


@click.group(epilog=STORE_HELP)
def inbox() -> None:
    """List and show the events that wait for workers, or retry them now."""


@inbox.command()
@store_argument()
@click.option("--endpoint", help="Only events of this endpoint.")
@json_option
def stats(store_url: str, endpoint: str | None, *, as_json: bool) -> None:
    """Show how many events wait, since when, and how many workers there are.

    The depth includes events in flight.
    """
    found = with_store(store_url, lambda store: store.stats(endpoint=endpoint))
    record = {
        "endpoint": endpoint,
        "depth": found.depth,
        "bytes": found.bytes,
        "oldest_age_seconds": found.oldest_age_seconds,
        "in_flight": found.in_flight,
        "dead": found.dead,
        "workers": found.workers,
    }
    output = Output(as_json=as_json)
    output.record(record, "\n".join(_lines(found, endpoint)))
    if found.depth and not found.workers:
        output.say("the inbox has no worker: start `hookonce worker`", "yellow")


def _lines(found: StoreStats, endpoint: str | None) -> list[str]:
    age = "-" if found.oldest_age_seconds is None else duration_text(found.oldest_age_seconds)
    return [
        f"endpoint: {endpoint or 'all'}",
        f"depth: {found.depth}",
        f"bytes: {size_text(found.bytes)}",
        f"oldest: {age}",
        f"in flight: {found.in_flight}",
        f"dead: {found.dead}",
        f"workers: {found.workers}",
    ]


_WORKER_COLUMNS = {
    "endpoint": "endpoint",
    "worker": "worker",
    "state": "state",
    "running": "running now",
    "last_minute": "last minute",
    "failed_last_minute": "failed",
    "last_five_minutes": "last 5 min",
    "failed_last_five_minutes": "failed",
}


@inbox.command()
@store_argument()
@click.option("--endpoint", help="Only workers of this endpoint.")
@json_option
def workers(store_url: str, endpoint: str | None, *, as_json: bool) -> None:
    """List the workers, and the handlers that each worker runs now.

    Attempts are counted at their end. A killed worker stays in the list for up to 30 seconds.
    """

    async def find(store: InboxStore) -> list[ReportedWorker]:
        if not isinstance(store, ActivityStore):
            raise CannotBegin(f"workers do not report to {store}: it is no ActivityStore")
        return await store.workers(endpoint=endpoint)

    reports = filter(None, map(read_report, with_store(store_url, find)))
    found = sorted(reports, key=lambda one: (one.endpoint, one.process))
    records = [_worker_record(one) for one in found]
    output = Output(as_json=as_json)
    if not as_json:
        for record in records:
            record["running"] = ", ".join(
                f"{one['handler']} {one['id']} ({_seconds_text(one['seconds'])})"
                for one in record["running"]
            )
    output.table(records, _WORKER_COLUMNS, "no worker is running")


def _worker_record(report: WorkerReport) -> dict[str, Any]:
    silent = f"silent for {duration_text(report.age_seconds)}"
    return {
        "endpoint": report.endpoint,
        "worker": report.process,
        "state": silent if report.is_silent else "alive",
        "age_seconds": report.age_seconds,
        "uptime_seconds": report.uptime_seconds,
        "concurrency": report.concurrency,
        "running": [
            {
                "handler": one.handler,
                "id": one.event_id,
                "type": one.event_type,
                "attempt": one.attempt,
                "seconds": None if one.seconds is None else one.seconds + report.age_seconds,
            }
            for one in report.running
        ],
        "running_count": report.running_count,
        "last_minute": sum(report.last_minute),
        "failed_last_minute": report.last_minute.failed,
        "last_five_minutes": sum(report.last_five_minutes),
        "failed_last_five_minutes": report.last_five_minutes.failed,
    }


def _seconds_text(seconds: float | None) -> str:
    return "waits for a thread" if seconds is None else duration_text(seconds)


@inbox.command("list")
@list_options
@filter_options()
def list_entries(
    store_url: str,
    limit: int,
    endpoint: str | None,
    wanted: EventFilter,
    *,
    every: bool,
    as_json: bool,
) -> None:
    """List the events in the inbox, oldest first; --since compares when they arrived.

    An event is ready, in flight, or waits until its next attempt is due.
    """
    wanted = replace(wanted, endpoint=endpoint)
    print_list(_EVENTS, store_url, None if every else limit, wanted=wanted, as_json=as_json)


@inbox.command()
@show_options
def show(
    store_url: str, event_ids: tuple[str, ...], endpoint: str | None, *, raw: bool, as_json: bool
) -> None:
    """Show one event in the inbox with its failed attempts and its body.

    Bytes that are not text are shown as escapes; --raw writes them unchanged.
    """
    print_one(_EVENTS, store_url, event_ids, endpoint, raw=raw, as_json=as_json)


@inbox.command()
@store_argument("[ID]...")
@click.option("--all", "every", is_flag=True, help="Retry every event that waits.")
@filter_options()
@endpoint_option
@json_option
def retry(
    store_url: str,
    event_ids: tuple[str, ...],
    wanted: EventFilter,
    endpoint: str | None,
    *,
    every: bool,
    as_json: bool,
) -> None:
    """Make events due now that wait for a later attempt.

    Name them by their ids, or select them with filters: an event must pass all of them. Exits 0 if
    every id is in the inbox.
    """
    check_selection(event_ids, wanted, every=every)
    change_selected(
        _EVENTS,
        store_url,
        _made_due,
        event_ids=event_ids,
        wanted=replace(wanted, endpoint=endpoint),
        is_wanted=lambda entry: entry.state(system_clock()) == "waiting",
        nothing="nothing waits for a later attempt",
        as_json=as_json,
    )


async def _made_due(store: InboxStore, key: DeliveryKey) -> str:
    if await store.make_due(key):
        return "due now"
    return NOT_FOUND if await store.entry(key) is None else "in flight"


@inbox.command()
@store_argument()
@json_option
def prune(store_url: str, *, as_json: bool) -> None:
    """Remove records of handled events whose retention is over.

    Stores do this by themselves from time to time. Waiting events and dead letters stay.
    """
    count = with_store(store_url, lambda store: store.prune())
    records = "1 record" if count == 1 else f"{count} records"
    Output(as_json=as_json).record({"removed": count}, f"removed {records}")
