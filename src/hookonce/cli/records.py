"""Events of a store, listed and shown: dead letters, and what waits in an inbox."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, TypeVar

import click

from hookonce.stores.values import DeadLetter, Entry
from hookonce.verification.clock import system_clock, utc_text

from .output import Output, json_option, one_line, together
from .stores import PAGE, endpoint_option, store_argument

__all__ = [
    "Chosen",
    "chosen",
    "is_wanted",
    "list_options",
    "print_event",
    "show_options",
    "time_text",
]

E = TypeVar("E", DeadLetter, Entry)


def time_text(seconds: float) -> str:
    """Return a Unix time as text, in UTC."""
    return utc_text(seconds, "%Y-%m-%dT%H:%M:%SZ")


def _moment(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """Return the Unix seconds of a date and time, or of so long ago."""
    if text is None:
        return None
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return system_clock() - int(ago[1]) * _UNIT_SECONDS[ago[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither a time, such as 2026-11-20T10:00Z, nor 90min, 6h or 2d"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


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


class Chosen(NamedTuple, Generic[E]):
    """What a listing shows, and how many more there are.

    Attributes:
        events: those that are shown.
        more: how many are left out.

    """

    events: Sequence[E]
    more: int

    def say_more(self) -> None:
        """Say how many are left out, beside the listing: a program reads that."""
        if self.more:
            click.echo(f"{self.more} more; --all lists them", err=True)


async def chosen(
    listing: Callable[[int], Awaitable[Sequence[E]]],
    wanted: Callable[[E], bool],
    limit: int | None,
) -> Chosen[E]:
    """Return the first events that are wanted, oldest first.

    Args:
        listing: returns so many of the events there are.
        wanted: whether to show one.
        limit: how many to show; None for all.

    """
    count = PAGE
    while len(events := await listing(count)) == count:
        count *= 4  # a listing has no place to go on from
    found = [event for event in events if wanted(event)]
    shown = found if limit is None else found[:limit]
    return Chosen(shown, len(found) - len(shown))


def is_wanted(
    event: DeadLetter | Entry, at: float, since: float | None, handler: str | None
) -> bool:
    """Return whether an event of that moment is what --since and --handler ask for."""
    return (since is None or at >= since) and (handler is None or handler in event.owed)


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

    """
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
