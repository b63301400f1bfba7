"""Counts second by second, percentiles, and charts."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookonce.operations.inspector.charts import HEIGHT, charts_of
from hookonce.operations.inspector.seen import AnswerKind
from hookonce.operations.inspector.series import LENGTH_SECONDS, Series, merged, percentile


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_an_answer_is_counted_in_its_second() -> None:
    clock = Clock()
    series = Series(clock=clock)
    series.note_answer(AnswerKind.ACCEPTED, 0.01)
    series.note_answer(AnswerKind.RETRY, 0.01)
    clock.now += 1
    series.note_answer(AnswerKind.ACCEPTED, 0.01)
    clock.now += 1
    *_, before, last = series.seconds()
    assert before.counts == {AnswerKind.ACCEPTED: 1, AnswerKind.RETRY: 1}
    assert last.counts == {AnswerKind.ACCEPTED: 1}


def test_the_series_keeps_five_minutes() -> None:
    clock = Clock()
    series = Series(clock=clock)
    series.note_answer(AnswerKind.ACCEPTED, 0.01)
    clock.now += LENGTH_SECONDS
    assert len(series.seconds()) == LENGTH_SECONDS
    assert sum(sum(second.counts.values()) for second in series.seconds()) == 1
    clock.now += 1
    assert not any(second.counts for second in series.seconds())


@given(st.lists(st.floats(0.0002, 15), min_size=1, max_size=200), st.sampled_from([0.5, 0.95]))
def test_a_percentile_is_right_to_a_fifth(times: list[float], fraction: float) -> None:
    clock = Clock()
    series = Series(clock=clock)
    for time in times:
        series.note_answer(AnswerKind.ACCEPTED, time)
    clock.now += 1
    exact = sorted(times)[math.ceil(fraction * len(times)) - 1]
    found = percentile(merged(series.seconds()), fraction)
    assert found is not None
    assert exact / 1.21 <= found <= exact * 1.21


def test_without_answers_there_is_no_percentile() -> None:
    assert percentile(merged(Series().seconds()), 0.5) is None


def test_charts_of_the_inbox_are_drawn_if_there_is_one() -> None:
    seconds = Series().seconds()
    assert len(charts_of(seconds, has_inbox=False)) == 2
    titles = [chart.title for chart in charts_of(seconds, has_inbox=True)]
    assert titles[2:] == ["Inbox depth", "Oldest in the inbox"]


@pytest.mark.parametrize("count", [1, 9, 11, 1234])
def test_what_is_drawn_stays_within_the_chart(count: int) -> None:
    clock = Clock()
    series = Series(clock=clock)
    for kind in (AnswerKind.ACCEPTED, AnswerKind.REFUSED):
        for _ in range(count):
            series.note_answer(kind, 0.02)
    series.note_inbox(count, float(count))
    clock.now += 1
    for chart in charts_of(series.seconds(), has_inbox=True):
        for line in chart.lines:
            ups = re.findall(r"[ML][\d.]+ ([\d.-]+)|V([\d.-]+)", line.path)
            assert all(0 <= float(one or other) <= HEIGHT for one, other in ups)


def test_a_chart_says_in_words_what_it_shows() -> None:
    clock = Clock()
    series = Series(clock=clock)
    for _ in range(20):
        series.note_answer(AnswerKind.ACCEPTED, 0.02)
    series.note_inbox(3, None)
    clock.now += 1
    rate, times, depth, age = charts_of(series.seconds(), has_inbox=True)
    assert "accepted 2/s" in rate.summary
    assert re.search(r"p50 (19|20|21)\.?\d* ms", times.summary)
    assert "3" in depth.summary
    assert "\u2013" in age.summary
