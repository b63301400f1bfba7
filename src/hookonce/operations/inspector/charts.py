"""Charts as SVG paths, and as sentences for screen readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle

from .seen import AnswerKind
from .series import LENGTH_SECONDS, Second, merged, percentile
from .texts import count, duration

WIDTH = LENGTH_SECONDS
HEIGHT = 60

# The line has a gap if there are no values for longer than this.
_LONGEST_GAP_SECONDS = 10

# Current values cover the last ten seconds, because the values of one second change too fast to
# read.
_NOW_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Line:
    """One line or area of a chart.

    Attributes:
        name: its label, and its class in the style sheet.
        path: the ``d`` of an SVG path.
        now: its current value, as text.
    """

    name: str
    path: str
    now: str
    is_filled: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of the last five minutes.

    Attributes:
        top: the value at its upper edge, as text.
        summary: its current values as a sentence.
    """

    title: str
    top: str
    lines: tuple[Line, ...]
    summary: str


def charts_of(seconds: Sequence[Second], *, has_inbox: bool) -> tuple[Chart, ...]:
    """Return the charts of these seconds, which must be in order of time."""
    charts = (_rate(seconds), _times(seconds))
    if not has_inbox:
        return charts
    return (
        *charts,
        _one("Inbox depth", "depth", [s.depth for s in seconds], count, least=10),
        _one("Oldest in the inbox", "age", [s.age for s in seconds], duration, least=1),
    )


def _rate(seconds: Sequence[Second]) -> Chart:
    top = _nice(max((sum(s.counts.values()) for s in seconds), default=0), least=10)
    below = [0] * len(seconds)
    lines = []
    latest = seconds[-_NOW_SECONDS:]
    for kind in AnswerKind:
        bars = []
        for x, second in enumerate(seconds):
            if number := second.counts.get(kind, 0):
                low, high = _y(below[x], top), _y(below[x] + number, top)
                bars.append(f"M{x} {low}V{high}H{x + 1}V{low}Z")
                below[x] += number
        now = sum(s.counts.get(kind, 0) for s in latest) / len(latest)
        lines.append(Line(kind, "".join(bars), f"{count(now)}/s", is_filled=True))
    return _chart("Answers by outcome", f"{count(top)}/s", lines)


def _times(seconds: Sequence[Second]) -> Chart:
    fractions = {"p95": 0.95, "p50": 0.5}
    values = {
        name: [percentile(s.times, fraction) for s in seconds]
        for name, fraction in fractions.items()
    }
    top = _nice(max((v for line in values.values() for v in line if v), default=0), least=0.01)
    latest = merged(seconds[-_NOW_SECONDS:])
    lines = [
        Line(name, _line(values[name], top), duration(percentile(latest, fraction)))
        for name, fraction in fractions.items()
    ]
    return _chart("Answer time", duration(top), lines)


def _chart(title: str, top: str, lines: Sequence[Line]) -> Chart:
    words = ", ".join(f"{line.name} {line.now}" for line in lines)
    return Chart(title, top, tuple(lines), f"Now: {words}.")


def _one(
    title: str,
    name: str,
    values: Sequence[float | None],
    spelt: Callable[[float | None], str],
    *,
    least: float,
) -> Chart:
    top = _nice(max((v for v in values if v), default=0), least=least)
    now = spelt(next((v for v in reversed(values[-_NOW_SECONDS:]) if v is not None), None))
    return _chart(title, spelt(top), [Line(name, _line(values, top), now)])


def _line(values: Iterable[float | None], top: float) -> str:
    parts = []
    last = -_LONGEST_GAP_SECONDS - 1
    for x, value in enumerate(values):
        if value is None:
            continue
        is_near = x - last <= _LONGEST_GAP_SECONDS
        # Draw a single point as a line of length 0: the round ends of the line are visible.
        parts.append(f"{'L' if is_near else 'M'}{x} {_y(value, top)}{'' if is_near else 'h0'}")
        last = x
    return "".join(parts)


def _y(value: float, top: float) -> float:
    return round(HEIGHT * (1 - value / top), 1)


def _nice(value: float, *, least: float) -> float:
    """Round a value up to the next step: ``least`` times 1, 2, 5, 10, 20 and so on."""
    nice, factors = least, cycle((2, 2.5, 2))
    while nice < value:
        nice *= next(factors)
    return nice
