"""Finds NaN and infinities, which JSON cannot represent.

The JSON parsers of Python and pydantic accept ``NaN`` and ``Infinity``, and so does YAML. Every
comparison with NaN is false, so NaN would pass a check such as ``if value < least: raise``.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite


def non_finite(value: object) -> str | None:
    """Return the path to a number that is not finite; None if all numbers are finite.

    Args:
        value: a number, or mappings, lists and tuples, nested to any depth.

    Returns:
        The names and indexes on the path, such as ``data.rates.0``; an empty string for the value
        itself.
    """
    waiting: list[tuple[str, object]] = [("", value)]
    seen: set[int] = set()  # YAML allows a list that contains itself
    while waiting:
        path, item = waiting.pop()
        if isinstance(item, float) and not isfinite(item):
            return path
        if isinstance(item, Mapping):
            inner = list(item.items())
        elif isinstance(item, list | tuple):
            inner = list(enumerate(item))
        else:
            continue
        if id(item) not in seen:
            seen.add(id(item))
            waiting += ((f"{path}.{name}" if path else str(name), part) for name, part in inner)
    return None
