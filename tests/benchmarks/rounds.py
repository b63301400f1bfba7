"""Measures subjects in several rounds, and compares them with the first subject."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from .measuring import AtLeast, AtMost, Result, spread

__all__ = ["compared", "in_rounds"]


T = TypeVar("T")


def in_rounds(subjects: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, Sequence[T]]:
    """Return the measurements of each subject, one after the other in each round."""
    values: dict[str, list[T]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, measure in subjects.items():
            values[name].append(measure())
    return dict(values)


def compared(
    case: str,
    values: Mapping[str, Sequence[float]],
    unit: str,
    targets: Mapping[str, AtMost | AtLeast] | None = None,
) -> list[Result]:
    """Return a result for each subject, with its ratio to the first subject of the same round."""
    base = next(iter(values.values()))
    return [
        Result(
            case,
            name,
            statistics.median(own),
            unit,
            spread(own),
            statistics.median(a / b for a, b in zip(own, base, strict=True)),
            (targets or {}).get(name),
        )
        for name, own in values.items()
    ]
