"""Numbers that JSON cannot hold: NaN and the infinities.

Python's JSON reader takes ``NaN`` and ``Infinity``, and so do pydantic's and YAML's. Every
comparison with NaN is false, so that it passes the check ``value < least``; written out again, it
is no JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite


def non_finite(value: object) -> str | None:
    """Return where in a value, such as JSON as Python has it, is a number that is not finite.

    Args:
        value: mappings, lists and tuples are looked through, however they are nested.

    Returns:
        The names and numbers that lead there, as ``data.rates.0``; an empty text for the value
        itself; None if all numbers are finite.

    """
    waiting: list[tuple[str, object]] = [("", value)]
    seen: set[int] = set()  # YAML can nest a list in itself
    while waiting:
        place, one = waiting.pop()
        if isinstance(one, float) and not isfinite(one):
            return place
        if isinstance(one, Mapping):
            inner = list(one.items())
        elif isinstance(one, list | tuple):
            inner = list(enumerate(one))
        else:
            continue
        if id(one) not in seen:
            seen.add(id(one))
            waiting += ((f"{place}.{name}" if place else str(name), part) for name, part in inner)
    return None


def check_seconds(name: str, seconds: float) -> None:
    """Raise ValueError unless this is a finite number of seconds, not below 0.

    Args:
        name: of the argument, for the message.
        seconds: what was given.

    """
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{name} takes a finite number of seconds >= 0, not {seconds!r}")
