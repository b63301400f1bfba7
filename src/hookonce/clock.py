"""Clocks, and conversions of time spans and moments between arguments, numbers and text.

Inside the package a span is a number of seconds and a moment is a Unix time, because they are cheap
to make and to compare. Users may give a ``timedelta`` or an aware ``datetime`` for them. Users read
moments as aware ``datetime`` values in UTC, which ``utc`` makes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import TypeAlias

Clock: TypeAlias = Callable[[], float]
"""A function that returns the Unix time in seconds."""

# A million years: only a damaged record gives a longer duration.
_LONGEST_SECONDS = 1e6 * 366 * 86_400


def system_clock() -> float:
    """Return the Unix time in seconds; look up ``time.time`` at each call, for freezegun."""
    return time.time()


class ManualClock:
    """A clock for tests, which stands still until the test moves it.

    Args:
        now: the time at the start: an aware ``datetime`` or Unix seconds; None for the present
            time.
    """

    def __init__(self, now: float | datetime | None = None) -> None:
        self._now = time.time() if now is None else unix_seconds("now", now)

    def __call__(self) -> float:
        """Return the Unix time in seconds."""
        return self._now

    def advance(self, seconds: float | timedelta) -> None:
        """Move the clock forward by seconds or a ``timedelta``, or back if they are negative."""
        self._now += span_seconds("seconds", seconds, signed=True)


def uptime() -> float:
    """Return the seconds of a monotonic clock, which all processes of a machine share."""
    return time.monotonic()


def span_seconds(
    name: str, span: float | timedelta, *, positive: bool = False, signed: bool = False
) -> float:
    """Convert the time span in an argument to seconds.

    Args:
        name: the name of the argument, for the message.
        positive: refuse 0.
        signed: allow negative spans.

    Raises:
        TypeError: it is neither; a bool is refused too.
        ValueError: it is NaN, infinite, negative or, with ``positive``, 0.
    """
    if isinstance(span, timedelta):
        seconds = span.total_seconds()
    elif isinstance(span, int | float) and not isinstance(span, bool):
        seconds = span
    else:
        raise TypeError(
            f"{name} takes seconds or a timedelta, such as 300 or timedelta(minutes=5), not"
            f" {type(span).__name__}"
        )
    if not (_is_finite(seconds) and (signed or seconds > 0 or (seconds == 0 and not positive))):
        range_ = "" if signed else " above 0" if positive else " from 0"
        raise ValueError(f"{name} takes a finite number of seconds{range_}, not {seconds!r}")
    return seconds


def unix_seconds(name: str, moment: float | datetime) -> float:
    """Convert the moment in an argument to Unix seconds.

    Args:
        name: the name of the argument, for the message.
        moment: an aware ``datetime``, or Unix seconds.

    Raises:
        TypeError: it is neither; a bool is refused too.
        ValueError: the ``datetime`` has no time zone, or the number is NaN or infinite.
    """
    if isinstance(moment, datetime):
        if moment.utcoffset() is None:
            raise ValueError(
                f"{name} takes a datetime with a time zone, such as datetime.now(UTC), not"
                f" {moment.isoformat()}"
            )
        return moment.timestamp()
    if not isinstance(moment, int | float) or isinstance(moment, bool):
        raise TypeError(
            f"{name} takes an aware datetime or Unix seconds, not {type(moment).__name__}"
        )
    if not _is_finite(moment):
        raise ValueError(f"{name} takes a finite number of Unix seconds, not {moment!r}")
    return moment


def _is_finite(number: float) -> bool:
    try:
        return isfinite(number)
    except OverflowError:  # an int that no float can hold
        return False


def utc(unix_seconds: float) -> datetime:
    """Return a Unix time as an aware ``datetime`` in UTC.

    A time outside the calendar becomes the first or the last moment of the calendar: a wrong clock
    may have written it to the store, and reading such a record must not fail.
    """
    try:
        return datetime.fromtimestamp(unix_seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return _LAST if unix_seconds > 0 else _FIRST


_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def utc_text(unix_seconds: float, form: str) -> str:
    """Return a Unix time in UTC, in a format of ``strftime``.

    A time outside the calendar is returned as its number. A wrong clock may have written it to the
    store, and one such record must not hide the others.
    """
    try:
        return datetime.fromtimestamp(unix_seconds, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{unix_seconds:g}"


def moment_text(unix_seconds: float) -> str:
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
