"""A time is shown in UTC; a time outside the calendar is shown as its number."""

import math

import pytest

from hookonce.cli.times import time_text
from hookonce.clock import duration_text, moment, utc_text
from hookonce.operations.inspector.charts import charts_of
from hookonce.operations.inspector.series import Series
from hookonce.operations.inspector.texts import count, day, day_and_time, duration, time_of_day

ABSURD = [1e300, -1e300, 1e18, -1e18, math.inf, -math.inf, math.nan, 253_402_300_800.0]


def test_a_time_has_the_form_it_is_asked_for() -> None:
    assert utc_text(1_700_000_000.25, "%Y-%m-%d %H:%M:%S.%f") == "2023-11-14 22:13:20.250000"
    assert time_text(1_700_000_000.9) == "2023-11-14T22:13:20Z"
    assert moment(1_700_000_000) == "2023-11-14 22:13 UTC"
    assert time_of_day(1_700_000_000.25) == "22:13:20.250"
    assert (day(0), day_and_time(0)) == ("1970-01-01", "1970-01-01 00:00:00")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00001, "10 µs"),
        (0.5, "500 ms"),
        (35.24, "35.2 s"),
        (90, "1 min 30 s"),
        (-4020, "-1 h 7 min"),
        (7265, "2 h 1 min"),
        (3 * 86_400, "3 d 0 h"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == duration(seconds) == text


@pytest.mark.parametrize("seconds", ABSURD)
def test_no_number_of_seconds_breaks_what_shows_it(seconds: float) -> None:
    for show in (time_text, moment, time_of_day, day, day_and_time):
        assert show(seconds) == f"{seconds:g}"
    assert count(seconds)
    assert 0 < len(duration(seconds)) < 30


@pytest.mark.parametrize("age", ABSURD)
def test_no_age_breaks_the_charts(age: float) -> None:
    now = 1000.0
    series = Series(clock=lambda: now)
    series.note_inbox(1, age)
    now += 1
    charts = charts_of(series.seconds(), has_inbox=True)
    drawn = "".join(line.path for chart in charts for line in chart.lines)
    assert "nan" not in drawn
    assert "inf" not in drawn
