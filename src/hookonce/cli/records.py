"""Events of a store, listed and shown: dead letters, and what waits in an inbox."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

import click

from hookonce.stores.values import DeadLetter, Entry
from hookonce.verification.clock import system_clock, utc_text

from .output import Output, json_option, one_line, together
from .selecting import PAGE, Pages
from .stores import endpoint_option, store_argument

E = TypeVar("E", DeadLetter, Entry)


def time_text(seconds: float) -> str:
    """Return a Unix time as text, in UTC."""
    return utc_text(seconds, "%Y-%m-%dT%H:%M:%SZ")


def read_since(
    _: click.Context, __: click.Parameter, text: str | None
) -> datetime | timedelta | None:
    """Read so long ago, or a time; one without an offset is in UTC."""
    if text is None:
        return None
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return timedelta(seconds=int(ago[1]) * _UNIT_SECONDS[ago[2]])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither a time, such as 2026-11-20T10:00Z, nor 90min, 6h or 2d"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _moment(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Read so long ago, or a time, as Unix seconds."""
    since = read_since(context, option, text)
    if isinstance(since, timedelta):
        return system_clock() - since.total_seconds()
    return None if since is None else since.timestamp()


_UNIT_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
_AGO = re.compile(r"(\d{1,6})(s|min|h|d)")

list_options = together(
    store_argument(),
    click.option("--endpoint", help="Only those of this endpoint."),
    click.option("--type", "event_type", help="Only those of this event type."),
    click.option(
        "--since",
        callback=_moment,
        metavar="TIME",
        help="Only those of this time and later: 90min, 6h, 2d, or 2026-11-20T10:00Z.",
    ),
    click.option("--handler", help="Only those that this handler has failed with, or not run for."),
    click.option("--limit", default=100, show_default=True, type=click.IntRange(1)),
    click.option("--all", "every", is_flag=True, help="List all of them, whatever --limit is."),
    json_option,
)


# How many more there are is counted no further where each has to be looked at.
_MOST_COUNTED = 1000


@dataclass(frozen=True, slots=True)
class EventList(Generic[E]):
    """Events of a store in a list: where they come from, and how they are printed.

    Attributes:
        page: returns so many events behind a place, or from the start.
        total: asks how many there are in all; None where only a look at each tells.
        record: what is printed of one.
        columns: the headings of the fields, as in ``Output.table``.
        nothing: what to say where there are none.

    """

    page: Pages[E]
    total: Callable[[], Awaitable[int]] | None
    record: Callable[[E], Mapping[str, Any]]
    columns: Mapping[str, str]
    nothing: str

    async def print(self, output: Output, limit: int | None) -> None:
        """Print the first events, oldest first, a page at a time; and say how many are left out."""
        shown, after = 0, None
        while limit is None or shown < limit:
            count = PAGE if limit is None else min(PAGE, limit - shown)
            events = await self.page(after, count)
            if events or not shown:
                output.table([self.record(one) for one in events], self.columns, self.nothing)
            shown += len(events)
            if len(events) < count:
                return
            after = events[-1].place
        await self._say_more(shown, after)

    async def _say_more(self, shown: int, after: str | None) -> None:
        """Say how many are left out, beside the listing: a program reads that."""
        if self.total is not None:
            more, least = max(0, await self.total() - shown), ""
        else:
            more = len(await self.page(after, _MOST_COUNTED + 1))
            least = "more than " if more > _MOST_COUNTED else ""
            more = min(more, _MOST_COUNTED)
        if more:
            click.echo(f"{least}{more} more; --all lists them", err=True)


show_options = together(
    store_argument("ID"),
    endpoint_option,
    click.option("--raw", is_flag=True, help="Write the body alone, byte for byte."),
    json_option,
)


def print_event(
    event: DeadLetter | Entry, record: Mapping[str, Any], *, raw: bool, as_json: bool
) -> None:
    """Print one event with a line for each attempt that failed, and its body.

    Args:
        event: a dead letter, or what is in an inbox.
        record: what a listing shows of it.
        raw: write the body alone, byte for byte.
        as_json: print one JSON object.

    Raises:
        UsageError: it is to be both.

    """
    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other")
    if raw:
        click.echo(event.delivery.body, nl=False)
        return
    body = event.delivery.body.decode("utf-8", "backslashreplace")
    shown = {**record, "finished": sorted(event.finished)}
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
