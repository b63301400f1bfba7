"""Clocks, and times and spans as text for people."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeAlias

Clock: TypeAlias = Callable[[], float]
"""A function that returns the Unix time in seconds."""

# A million years. A store returns any number that was written to it.
_LONGEST_SECONDS = 1e6 * 366 * 86_400


def system_clock() -> float:
    """Return the Unix time in seconds; it calls ``time.time`` by name, so that freezegun works."""
    return time.time()


class ManualClock:
    """A clock for tests: it stands still until it is moved forward."""

    def __init__(self) -> None:
        self._now = time.time()

    def __call__(self) -> float:
        """Return the Unix time in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._now += seconds


def uptime() -> float:
    """Return the seconds of a monotonic clock, which all processes of a machine share."""
    return time.monotonic()


def utc_text(unix_seconds: float, form: str) -> str:
    """Return a Unix time in UTC, in a format of ``strftime``.

    A time outside the calendar is returned as its number. A wrong clock may have written it to the
    store, and one such record must not hide the others.
    """
    try:
        return datetime.fromtimestamp(unix_seconds, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{unix_seconds:g}"


def moment(unix_seconds: float) -> str:
    """Return a Unix time as text for people, in minutes and UTC."""
    return utc_text(unix_seconds, "%Y-%m-%d %H:%M UTC")


def duration_text(seconds: float) -> str:
    """Return a duration in its two largest units, or in one unit if it is below a minute."""
    size = abs(seconds)
    if not size < _LONGEST_SECONDS:  # too long, or NaN
        return f"{seconds:.3g} s"
    if size < 0.00095:
        return f"{seconds * 1e6:.0f} µs"
    if size < 0.95:
        return f"{seconds * 1e3:.3g} ms"
    if size < 60:
        return f"{seconds:.3g} s"
    left = int(size)
    parts: list[str] = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        number, left = divmod(left, length)
        if number or parts:
            parts.append(f"{number} {unit}")
    return ("-" if seconds < 0 else "") + " ".join(parts[:2])
