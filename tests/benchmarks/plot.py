"""A picture of the intake: deliveries a second, by store and number of parallel requests.

It is plain SVG that stands beside text of any colour: no background, and colours for a light and a
dark page, chosen by the viewer's preference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

from .measuring import Result

__all__ = ["plot"]

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 752, 88, 368
_MOST_LINES = 6
_BAR, _GAP = 25, 3
_OPENING = (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    ' role="img" aria-labelledby="title description">'
)
_TITLE = "Deliveries accepted in a second"
_SUBTITLE = "one process on one processor, signed HTTP requests, each of an event of its own"


class _Series(NamedTuple):
    subject: str
    label: str
    light: str
    dark: str


# Each store has a hue, and its inbox a paler tone; colour-blind readers can tell the hues apart.
_SERIES = (
    _Series("receiver, memory", "memory", "#7d8590", "#8b949e"),
    _Series("receiver, SQLite", "SQLite", "#0b62b0", "#3b8eea"),
    _Series("receiver, SQLite inbox", "SQLite inbox", "#8abdea", "#a9d0f5"),
    _Series("receiver, Redis", "Redis", "#c2500a", "#e8762c"),
    _Series("receiver, Redis inbox", "Redis inbox", "#f2b285", "#f7c9a6"),
)
_REFERENCE = "null ASGI application"
_REFERENCE_LABEL = "an application that does nothing"

_Rates = Mapping[int, Mapping[str, float]]


def plot(results: Sequence[Result]) -> str:
    """Return an SVG of the rates from the results of the part `intake`."""
    rates = _rates(results)
    most = max(rate for by_subject in rates.values() for rate in by_subject.values())
    step = _step(most)
    top = step * ceil(most / step)
    return "\n".join(
        [
            _OPENING,
            f'<title id="title">{escape(_TITLE)}, by store and requests at once</title>',
            f'<desc id="description">{escape(_description(rates))}</desc>',
            _style(),
            _text(_LEFT, 22, _TITLE, "title"),
            _text(_LEFT, 41, _SUBTITLE, "quiet"),
            *_legend(),
            *_axes(step, top),
            *_groups(rates, top),
            "</svg>",
            "",
        ]
    )


def _rates(results: Sequence[Result]) -> _Rates:
    """Return the rates of each subject in the picture, by the number of parallel requests."""
    shown = {_REFERENCE, *(series.subject for series in _SERIES)}
    rates: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for result in results:
        at_once, _, rest = result.case.partition(" ")
        if rest == "at once" and result.unit == "/s" and result.subject in shown:
            rates[int(at_once)][result.subject] = result.value
    return rates


def _step(most: float) -> float:
    """Return the distance between grid lines: a round number that gives only a few lines."""
    least = most / _MOST_LINES
    power = 10.0 ** floor(log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)


def _description(rates: _Rates) -> str:
    names = {series.subject: series.label for series in _SERIES} | {_REFERENCE: _REFERENCE_LABEL}
    return " ".join(
        f"{at_once} at once: "
        + ", ".join(f"{names[subject]} {rate:,.0f}" for subject, rate in by_subject.items())
        + "."
        for at_once, by_subject in rates.items()
    )


def _style() -> str:
    light, dark = (
        "".join(f".s{n}{{fill:{colour}}}" for n, colour in enumerate(colours))
        for colours in (
            [series.light for series in _SERIES],
            [series.dark for series in _SERIES],
        )
    )
    return (
        "<style>"
        "text{font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328}"
        ".title{font-size:16px;font-weight:600}.value{font-size:10px;paint-order:stroke;stroke:#fff;stroke-width:3px}.quiet{fill:#59636e}"
        ".middle{text-anchor:middle}.end{text-anchor:end}"
        ".line{stroke:#d1d9e0;stroke-width:1}.axis{stroke:#59636e;stroke-width:1}"
        ".null{stroke:#1f2328;stroke-width:1.5;stroke-dasharray:5 3}"
        f"{light}"
        "@media (prefers-color-scheme:dark){"
        "text{fill:#f0f6fc}.value{stroke:#0d1117}.quiet{fill:#9198a1}"
        ".line{stroke:#3d444d}.axis{stroke:#9198a1}.null{stroke:#f0f6fc}"
        f"{dark}}}"
        "</style>"
    )


def _text(x: float, y: float, text: str, css: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{css}">{escape(text)}</text>'


def _line(x1: float, x2: float, y: float, css: str) -> str:
    return f'<line x1="{x1:g}" x2="{x2:g}" y1="{y:.1f}" y2="{y:.1f}" class="{css}"/>'


def _legend() -> Iterator[str]:
    x: float = _LEFT
    for number, series in enumerate(_SERIES):
        yield f'<rect x="{x:g}" y="55" width="11" height="11" rx="2" class="s{number}"/>'
        yield _text(x + 16, 65, series.label)
        x += 36 + 7 * len(series.label)
    yield _line(x, x + 24, 60.5, "null")
    yield _text(x + 30, 65, _REFERENCE_LABEL)


def _axes(step: float, top: float) -> Iterator[str]:
    for number in range(round(top / step) + 1):
        y = _y(number * step, top)
        yield _line(_LEFT, _RIGHT, y, "line" if number else "axis")
        yield _text(_LEFT - 8, y + 4, f"{number * step:,.0f}", "quiet end")
    yield _text((_LEFT + _RIGHT) / 2, _HEIGHT - 8, "requests at once", "quiet middle")


def _groups(rates: _Rates, top: float) -> Iterator[str]:
    share = (_RIGHT - _LEFT) / len(rates)
    width = len(_SERIES) * (_BAR + _GAP) - _GAP
    for place, (at_once, by_subject) in enumerate(rates.items()):
        middle = _LEFT + (place + 0.5) * share
        for number, series in enumerate(_SERIES):
            x = middle - width / 2 + number * (_BAR + _GAP)
            y = _y(by_subject[series.subject], top)
            yield (
                f'<rect x="{x:g}" y="{y:.1f}" width="{_BAR}" height="{_BOTTOM - y:.1f}"'
                f' class="s{number}"/>'
            )
            yield _text(
                x + _BAR / 2, round(y) - 4, _short(by_subject[series.subject]), "value middle"
            )
        y = _y(by_subject[_REFERENCE], top)
        yield _line(middle - width / 2 - 6, middle + width / 2 + 6, y, "null")
        yield _text(middle, round(y) - 5, _short(by_subject[_REFERENCE]), "value middle")
        yield _text(middle, _BOTTOM + 20, f"{at_once}", "middle")


def _y(rate: float, top: float) -> float:
    return _BOTTOM - rate / top * (_BOTTOM - _TOP)


def _short(rate: float) -> str:
    return f"{rate / 1000:.1f}k"
