"""Events of a store, listed and shown: dead letters, and what waits in an inbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from hookonce.clock import utc_text
from hookonce.stores.values import DeadLetter, Entry

from .output import Output, json_option, one_line, together
from .stores import endpoint_option, store_argument

__all__ = ["list_options", "print_event", "show_options", "time_text"]


def time_text(seconds: float) -> str:
    """Return a Unix time as text, in UTC."""
    return utc_text(seconds, "%Y-%m-%dT%H:%M:%SZ")


list_options = together(
    store_argument(),
    click.option("--endpoint", help="Only those of this endpoint."),
    click.option("--type", "event_type", help="Only those of this event type."),
    click.option("--limit", default=100, show_default=True, type=click.IntRange(1)),
    json_option,
)
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
