"""Charts as plain geometry: paths for an SVG that a template draws, and a sentence that says it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .series import LENGTH_SECONDS, Kind, Second, percentile
from .texts import count, duration

WIDTH = LENGTH_SECONDS
HEIGHT = 60

# A line is not drawn across a longer silence than this.
_LONGEST_GAP_SECONDS = 10

# What "now" is in words: long enough to be steady, short enough to be now.
_NOW_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Line:
    """One drawing of a chart.

    Attributes:
        name: what it shows; its style has the same name.
        path: the ``d`` of an SVG path.
        now: its value now, as text.
        is_filled: whether it is an area.

    """

    name: str
    path: str
    now: str
    is_filled: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of the last five minutes.

    Attributes:
        title: what it shows.
        top: the value at its upper edge, as text.
        lines: what is drawn.
        summary: the same in words, for who does not see it.

    """

    title: str
    top: str
    lines: tuple[Line, ...]
    summary: str


def charts_of(seconds: Sequence[Second], *, has_inbox: bool) -> tuple[Chart, ...]:
    """Return the charts of these seconds, oldest first."""
    charts = (_rate(seconds), _times(seconds))
    if not has_inbox:
        return charts
    return (
        *charts,
        _one("Inbox depth", "depth", [s.depth for s in seconds], count, least=10),
        _one("Oldest in the inbox", "age", [s.age for s in seconds], duration, least=1),
    )


def _rate(seconds: Sequence[Second]) -> Chart:
    most = _nice(max((sum(s.counts.values()) for s in seconds), default=0), least=10)
    below = [0] * len(seconds)
    lines = []
    latest = seconds[-_NOW_SECONDS:]
    for kind in Kind:
        bars = []
        for x, second in enumerate(seconds):
            if number := second.counts.get(kind, 0):
                low, high = _y(below[x], most), _y(below[x] + number, most)
                bars.append(f"M{x} {low}V{high}H{x + 1}V{low}Z")
                below[x] += number
        now = sum(s.counts.get(kind, 0) for s in latest) / len(latest)
        lines.append(Line(kind, "".join(bars), f"{count(now)}/s", is_filled=True))
    words = ", ".join(f"{line.name} {line.now}" for line in lines)
    return Chart("Answers by outcome", f"{count(most)}/s", tuple(lines), f"Now: {words}.")


def _times(seconds: Sequence[Second]) -> Chart:
    fractions = {"p95": 0.95, "p50": 0.5}
    values = {
        name: [percentile([s], fraction) for s in seconds] for name, fraction in fractions.items()
    }
    most = _nice(max((v for line in values.values() for v in line if v), default=0), least=0.01)
    latest = seconds[-_NOW_SECONDS:]
    lines = tuple(
        Line(name, _line(values[name], most), duration(percentile(latest, fraction)))
        for name, fraction in fractions.items()
    )
    words = ", ".join(f"{line.name} {line.now}" for line in lines)
    return Chart("Answer time", duration(most), lines, f"Now: {words}.")


def _one(
    title: str,
    name: str,
    values: Sequence[float | None],
    spelt: Callable[[float | None], str],
    *,
    least: float,
) -> Chart:
    most = _nice(max((v for v in values if v), default=0), least=least)
    now = spelt(next((v for v in reversed(values[-_NOW_SECONDS:]) if v is not None), None))
    return Chart(title, spelt(most), (Line(name, _line(values, most), now),), f"Now: {now}.")


def _line(values: Iterable[float | None], most: float) -> str:
    parts = []
    last = -_LONGEST_GAP_SECONDS - 1
    for x, value in enumerate(values):
        if value is None:
            continue
        near = x - last <= _LONGEST_GAP_SECONDS
        # A point by itself is drawn too: a line of no length has round ends.
        parts.append(f"{'L' if near else 'M'}{x} {_y(value, most)}{'' if near else 'h0'}")
        last = x
    return "".join(parts)


def _y(value: float, most: float) -> float:
    return round(HEIGHT * (1 - value / most), 1)


def _nice(value: float, *, least: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, … above a value."""
    nice = least
    steps = (2, 2.5, 2)
    turn = 0
    while nice < value:
        nice *= steps[turn % len(steps)]
        turn += 1
    return nice
