"""The picture of the intake shows the measured rates."""

from xml.etree import ElementTree as ET

import pytest

from benchmarks.measuring import Result
from benchmarks.plot import plot

_SVG = {"svg": "http://www.w3.org/2000/svg"}
_SUBJECTS = {
    "null ASGI application": 8_000.0,
    "receiver, memory": 4_000.0,
    "receiver, SQLite": 1_000.0,
    "receiver, SQLite inbox": 2_000.0,
    "receiver, Redis": 2_500.0,
    "receiver, Redis inbox": 3_000.0,
}


def _drawn(*at_once: int) -> ET.Element:
    results = [
        Result(f"{number} at once", subject, rate, "/s")
        for number in at_once
        for subject, rate in _SUBJECTS.items()
    ]
    others = [
        Result("64 at once", "receiver, memory, p99", 1.0, "ms"),
        Result("what the limit is made of, 64 at once", "receiver, memory", 1.0, "/s"),
    ]
    return ET.fromstring(plot([*results, *others]))


@pytest.mark.parametrize("at_once", [(64,), (1, 16, 64, 256)])
def test_bars_are_as_high_as_the_rates_they_show(at_once: tuple[int, ...]) -> None:
    bars = [bar for bar in _drawn(*at_once).findall("svg:rect", _SVG) if bar.get("rx") is None]
    heights = [float(bar.get("height", "")) for bar in bars]
    expected = [rate for name, rate in _SUBJECTS.items() if "receiver" in name] * len(at_once)
    assert [height / heights[0] for height in heights] == pytest.approx(
        [rate / expected[0] for rate in expected], abs=0.01
    )


def test_it_stays_inside_its_frame_and_says_in_words_what_it_shows() -> None:
    drawing = _drawn(16, 64)
    _, _, width, height = map(float, drawing.get("viewBox", "").split())
    for element in drawing.iter():
        assert 0 <= float(element.get("x", 0)) <= width
        assert 0 <= float(element.get("y", 0)) <= height
    title, description = (drawing.findtext(f"svg:{name}", "", _SVG) for name in ("title", "desc"))
    assert "by store" in title
    assert "64 at once: an application that does nothing 8,000, memory 4,000" in description


def test_a_dark_page_gets_colours_of_its_own() -> None:
    style = _drawn(64).findtext("svg:style", "", _SVG)
    assert "@media (prefers-color-scheme:dark)" in style
