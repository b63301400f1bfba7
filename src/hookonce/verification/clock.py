"""Where the time comes from."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeAlias

__all__ = ["Clock", "system_clock", "uptime", "utc_text"]

Clock: TypeAlias = Callable[[], float]
"""Unix time in seconds."""


def system_clock() -> float:
    """Return the Unix time in seconds, looked up at the call so that a frozen clock is seen."""
    return time.time()


def uptime() -> float:
    """Return seconds since some moment before this machine's processes began; nobody sets it."""
    return time.monotonic()


def utc_text(unix_seconds: float, form: str) -> str:
    """Return a Unix time in UTC, in a form of ``strftime``.

    A store keeps what it was given, by whatever clock: a time that no calendar has is shown as its
    number, so that one such record does not hide the others.
    """
    try:
        return datetime.fromtimestamp(unix_seconds, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{unix_seconds:g}"
