"""Where the time comes from."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeAlias

Clock: TypeAlias = Callable[[], float]
"""Unix time in seconds."""

# A million years: a time in a store may be any number.
_LONGEST_SECONDS = 1e6 * 366 * 86_400


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


def moment(unix_seconds: float) -> str:
    """Return a Unix time as a person reads it, to the minute and in UTC."""
    return utc_text(unix_seconds, "%Y-%m-%d %H:%M UTC")


def duration_text(seconds: float) -> str:
    """Return a duration in its two largest units, or in one where it is below a minute."""
    size = abs(seconds)
    if not size < _LONGEST_SECONDS:  # nor a number, perhaps
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
