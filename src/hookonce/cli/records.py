"""Events of a store, listed and shown: dead letters, and what waits in an inbox."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import click

from hookonce.clock import system_clock, utc_text
from hookonce.stores.contract import InboxStore

from .durations import seconds_of
from .output import Output, json_option, one_line, together
from .selecting import PAGE, E, Kind, one_of
from .statuses import Nothing
from .stores import endpoint_option, store_argument, with_store


def time_text(seconds: float) -> str:
    """Return a Unix time as text, in UTC."""
    return utc_text(seconds, "%Y-%m-%dT%H:%M:%SZ")


def read_since(
    _: click.Context, __: click.Parameter, text: str | None
) -> datetime | timedelta | None:
    """Read a time span before now, or a time; a time without an offset is in UTC."""
    if text is None:
        return None
    with suppress(ValueError):  # before a span: 20261120 is a date
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    try:
        return timedelta(seconds=seconds_of(text))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither a time, such as 2026-11-20T10:00Z, nor a time span, such as 90m,"
            " 6h or 2d"
        ) from None


def _moment(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Read a time span before now, or a time, as Unix seconds."""
    since = read_since(context, option, text)
    if isinstance(since, timedelta):
        return system_clock() - since.total_seconds()
    return None if since is None else since.timestamp()


list_options = together(
    store_argument(),
    click.option("--endpoint", help="Only those of this endpoint."),
    click.option("--type", "event_type", help="Only those of this event type."),
    click.option(
        "--since",
        callback=_moment,
        metavar="TIME",
        help="Only those of this time and later: 90m, 6h, 2d, or 2026-11-20T10:00Z.",
    ),
    click.option("--handler", help="Only those that this handler has failed with, or not run for."),
    click.option("--limit", default=100, show_default=True, type=click.IntRange(1)),
    click.option("--all", "every", is_flag=True, help="List all of them, whatever --limit is."),
    json_option,
)


# How many more there are is counted no further where each has to be looked at.
_MOST_COUNTED = 1000


def print_list(
    kind: Kind[E],
    store_url: str,
    limit: int | None,
    *,
    as_json: bool,
    endpoint: str | None = None,
    **wanted: object,
) -> None:
    """Print the first events of a listing, oldest first; and say how many are left out.

    Args:
        kind: which events of the store.
        store_url: names the store.
        limit: how many at the most; None for all.
        as_json: print one JSON object a line.
        endpoint: only events of this endpoint.
        wanted: what else they must be, by the names of ``WantedLetters``.

    """
    output = Output(as_json=as_json)
    is_filtered = any(wanted.values())

    async def print_pages(store: InboxStore) -> None:
        page = kind.pages(store, endpoint=endpoint, **wanted)
        shown, after = 0, None
        while limit is None or shown < limit:
            count = PAGE if limit is None else min(PAGE, limit - shown)
            events = await page(after, count)
            if events or not shown:
                output.table([kind.record(one) for one in events], kind.columns, kind.nothing)
            shown += len(events)
            if len(events) < count:
                return
            after = events[-1].place
        least = ""
        if is_filtered:  # only a look at each tells
            more = len(await page(after, _MOST_COUNTED + 1))
            if more > _MOST_COUNTED:
                more, least = _MOST_COUNTED, "more than "
        else:
            more = kind.count(await store.stats(endpoint=endpoint)) - shown
        if more > 0:  # beside the listing, which a program reads
            click.echo(f"{least}{more} more; --all lists them", err=True)

    with_store(store_url, print_pages)


show_options = together(
    store_argument("ID"),
    endpoint_option,
    click.option("--raw", is_flag=True, help="Write the body alone, byte for byte."),
    json_option,
)


def print_one(
    kind: Kind[E],
    store_url: str,
    event_ids: tuple[str, ...],
    endpoint: str | None,
    *,
    raw: bool,
    as_json: bool,
) -> None:
    """Print one event with its failed attempts and its body, or end if there is none.

    Args:
        kind: which events of the store.
        store_url: names the store.
        event_ids: has to be one id.
        endpoint: only at this endpoint.
        raw: write the body alone, byte for byte.
        as_json: print one JSON object.

    """
    if len(event_ids) != 1:
        raise click.UsageError(f"name one event by its id, not {len(event_ids)}")
    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other")

    [event_id] = event_ids

    async def found(store: InboxStore) -> E | None:
        return await kind.load(store)(await one_of(kind, store, event_id, endpoint))

    event = with_store(store_url, found)
    if event is None:  # somebody has handled or discarded it meanwhile
        raise Nothing(f"there is no {kind.name} {event_id!r} any more")
    if raw:
        click.echo(event.delivery.body, nl=False)
        return
    body = event.delivery.body.decode("utf-8", "backslashreplace")
    shown = {**kind.record(event), "finished": sorted(event.finished)}
    failed = [
        {"number": one.number, "ended_at": time_text(one.ended_at), "error": one.error}
        for one in event.history
    ]
    lines = [
        *(f"{name}: {one_line(value)}" for name, value in shown.items()),
        *(f"attempt {a['number']}: {a['ended_at']} {one_line(a['error'])}" for a in failed),
    ]
    Output(as_json=as_json).record(
        {**shown, "history": failed, "body": body}, "\n".join([*lines, "", body])
    )
