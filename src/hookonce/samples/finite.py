"""Numbers that JSON cannot hold: NaN and the infinities.

The JSON parsers of Python and pydantic accept ``NaN`` and ``Infinity``, and so does YAML. Every
comparison with NaN is false, so NaN passes the check ``value < least``; but NaN is not valid JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite


def non_finite(value: object) -> str | None:
    """Return the place of the first number that is not finite, or None.

    Args:
        value: a number, or mappings, lists and tuples, nested to any depth.

    Returns:
        The names and indexes that lead to it, such as ``data.rates.0``; an empty text for the value
        itself; None if all numbers are finite.

    """
    waiting: list[tuple[str, object]] = [("", value)]
    seen: set[int] = set()  # in YAML a list can contain itself
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
