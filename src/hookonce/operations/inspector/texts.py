"""Formatting of values on the pages."""

from __future__ import annotations

import re
from math import isfinite

from ...clock import duration_text, utc_text

# Invisible characters: control characters, line separators, marks for the direction of text, lone
# surrogates (which UTF-8 cannot encode), and characters without width, but not the joiner that
# emoji need.
_UNSEEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff"
)
_INVISIBLE = re.compile(f"[{_UNSEEN}]")

_PLANE = 0x10000
_KIB = 1024
_NONE = "\u2013"


def cut(text: str, most: int) -> str:
    """Return a text cut to a number of characters, with an ellipsis if it was longer."""
    return text if len(text) <= most else f"{text[:most]}…"


def visible(text: str) -> str:
    """Return a text with an escape for each invisible character."""
    return _INVISIBLE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code < _PLANE else f"\\U{code:08x}"


def time_of_day(at: float) -> str:
    """Return a Unix time as ``12:34:56.789``, in UTC."""
    text = utc_text(at, "%H:%M:%S.%f")
    return text[:-3] if ":" in text else text


def day(at: float) -> str:
    """Return the date of a Unix time, in UTC."""
    return utc_text(at, "%Y-%m-%d")


def day_and_time(at: float) -> str:
    """Return a Unix time as a date and a time, in UTC."""
    return utc_text(at, "%Y-%m-%d %H:%M:%S")


def count(value: float | None) -> str:
    """Return a number, or a dash for None."""
    if value is None:
        return _NONE
    if not isfinite(value):
        return f"{value:g}"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def duration(seconds: float | None) -> str:
    """Return a duration as the commands print it, or a dash for None."""
    return _NONE if seconds is None else duration_text(seconds)


def byte_count(number: int) -> str:
    """Return a number of bytes in B, KiB or MiB."""
    if number < _KIB:
        return f"{number} B"
    if number < _KIB**2:
        return f"{number / _KIB:.1f} KiB"
    return f"{number / _KIB**2:.1f} MiB"
