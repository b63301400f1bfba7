"""Time spans on the command line, such as ``30s`` or ``2h``."""

from __future__ import annotations

import re
from typing import Any

import click

_UNIT_SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SPAN = re.compile(r"([+-]?)(\d+(?:\.\d+)?)(ms|[smhd]?)", re.ASCII)

# For a longer span, the present minus the span could be a date that Python cannot represent.
_MOST_DAYS = 1_000_000


def seconds_of(text: str) -> float:
    """Return a time span in seconds.

    Args:
        text: a number with a unit, such as ``250ms``, ``30s``, ``5m``, ``2h`` or ``7d``. A number
            without a unit counts seconds.

    Raises:
        ValueError: the text is not a time span; the message says how to write one.
    """
    found = _SPAN.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text!r} is not a time span; write a number and a unit, such as 250ms, 30s, 5m, 2h"
            " or 7d"
        )
    sign, number, unit = found.groups()
    seconds = float(sign + number) * _UNIT_SECONDS[unit]
    if abs(seconds) > _MOST_DAYS * 86_400:
        raise ValueError(f"{text!r} is too long; the longest time span is {_MOST_DAYS}d")
    return seconds


class Duration(click.FloatRange):
    """The type of an option that is a time span; the command receives seconds.

    The bounds are in seconds. Write a default as text (``"30s"``): ``--help`` shows it so.
    """

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            seconds = seconds_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return super().convert(seconds, param, ctx)
