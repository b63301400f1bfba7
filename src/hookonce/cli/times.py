"""Times on the command line: how to print a time, and how to read ``--since``."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import click

from hookonce.clock import system_clock, utc_text

from .durations import seconds_of


def time_text(seconds: float) -> str:
    """Return a Unix time as text, in UTC."""
    return utc_text(seconds, "%Y-%m-%dT%H:%M:%SZ")


def read_since(
    _: click.Context, __: click.Parameter, text: str | None
) -> datetime | timedelta | None:
    """Parse ``--since``: a span before now, or a time, in UTC if it has no offset."""
    if text is None:
        return None
    with suppress(ValueError):  # 20261120 is a date, not a span
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    try:
        return timedelta(seconds=seconds_of(text))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither a time, such as 2026-11-20T10:00Z, nor a time span, such as 90m,"
            " 6h or 2d"
        ) from None


def read_since_seconds(
    context: click.Context, option: click.Parameter, text: str | None
) -> float | None:
    """Read a value of ``--since`` as Unix seconds."""
    since = read_since(context, option, text)
    if isinstance(since, timedelta):
        return system_clock() - since.total_seconds()
    return None if since is None else since.timestamp()
