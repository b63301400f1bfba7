"""Numbers and rates on the command line."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A finite number within bounds; unlike click's own range, it refuses ``nan``."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number


_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/([smh]))?", re.ASCII)
_UNIT_SECONDS = {None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


class Rate(FiniteRange):
    """A positive rate, such as ``10/s``, ``100/m`` or ``5``; the command receives it per second."""

    name = "rate"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found = _RATE.fullmatch(str(value))
        rate = float(found[1]) / _UNIT_SECONDS[found[2]] if found else 0.0
        if not rate:
            self.fail(f"{value!r} is not a rate; write 10/s, 100/m or 5000/h", param, ctx)
        return super().convert(rate, param, ctx)
