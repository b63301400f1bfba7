"""Numbers on the command line."""

from __future__ import annotations

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
