"""Durations and times are checked where users pass them, and shown in plain units and in UTC."""

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from hookonce import (
    Backoff,
    Limits,
    Receiver,
    Retry,
    VerificationError,
    Verifier,
    sign,
    verify,
)
from hookonce.cli.times import time_text
from hookonce.clock import (
    ManualClock,
    duration_text,
    moment_text,
    span_seconds,
    unix_seconds,
    utc,
    utc_text,
)
from hookonce.operations.inspector.charts import charts_of
from hookonce.operations.inspector.series import Series
from hookonce.operations.inspector.texts import count, day, day_and_time, duration, time_of_day
from hookonce.stores.memory import MemoryStore
from hookonce.stores.values import Watermark
from hookonce.verification.secrets import new_secret

ABSURD = [1e300, -1e300, 1e18, -1e18, math.inf, -math.inf, math.nan, 253_402_300_800.0]


@pytest.mark.parametrize(
    ("span", "seconds"),
    [
        (0, 0),
        (2.5, 2.5),
        (timedelta(), 0),
        (timedelta(minutes=5), 300),
        (timedelta(microseconds=1), 1e-6),
    ],
)
def test_a_span_is_seconds_or_a_timedelta(span: float | timedelta, seconds: float) -> None:
    assert span_seconds("patience", span) == seconds
    assert span_seconds("skew", span, signed=True) == seconds


def test_a_span_may_be_negative_only_where_that_has_a_meaning() -> None:
    assert span_seconds("skew", timedelta(seconds=-30), signed=True) == -30
    for span in (-30, timedelta(seconds=-30)):
        with pytest.raises(
            ValueError, match=r"patience takes a finite number of seconds from 0, not -30"
        ):
            span_seconds("patience", span)


def test_a_span_may_be_zero_only_where_that_has_a_meaning() -> None:
    for span in (0, 0.0, timedelta()):
        with pytest.raises(ValueError, match="patience takes a finite number of seconds above 0"):
            span_seconds("patience", span, positive=True)


@pytest.mark.parametrize("span", [math.nan, math.inf, -math.inf, 10**400])
@pytest.mark.parametrize("options", [{}, {"positive": True}, {"signed": True}])
def test_a_span_is_finite(span: float, options: dict[str, bool]) -> None:
    with pytest.raises(ValueError, match="patience takes a finite number of seconds"):
        span_seconds("patience", span, **options)


@pytest.mark.parametrize("span", [True, False, "30", b"30", None, [30]])
def test_an_invalid_span_is_refused_with_the_argument_and_an_example(span: Any) -> None:
    with pytest.raises(TypeError) as caught:
        span_seconds("patience", span)
    assert str(caught.value) == (
        "patience takes seconds or a timedelta, such as 300 or timedelta(minutes=5), not"
        f" {type(span).__name__}"
    )


SECRET = new_secret()
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("in_seconds", "as_timedelta"),
    [
        (
            Limits(answer_seconds=6, lease_seconds=60),
            Limits(answer_seconds=MINUTE / 10, lease_seconds=MINUTE),
        ),
        (Backoff(first_seconds=60), Backoff(first_seconds=MINUTE)),
        (Retry(after=60).after_seconds, Retry(after=MINUTE).after_seconds),
        (
            Receiver(secrets=SECRET, store="memory://", tolerance=60).tolerance_seconds,
            Receiver(secrets=SECRET, store="memory://", tolerance=MINUTE).tolerance_seconds,
        ),
        (
            MemoryStore(retention=2_592_000).retention_seconds,
            MemoryStore(retention=timedelta(days=30)).retention_seconds,
        ),
    ],
    ids=["Limits", "Backoff", "Retry", "Receiver", "MemoryStore"],
)
def test_a_timedelta_means_the_same_as_its_seconds(
    in_seconds: object, as_timedelta: object
) -> None:
    assert in_seconds == as_timedelta


@pytest.mark.parametrize("tolerance", [60, MINUTE])
@pytest.mark.parametrize("now", [1_700_000_060, datetime(2023, 11, 14, 22, 14, 20, tzinfo=UTC)])
def test_a_delivery_is_verified_by_any_form_of_span_and_moment(
    tolerance: float | timedelta, now: float | datetime
) -> None:
    signed_at = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    headers = sign(SECRET, "evt_1", b"{}", timestamp=signed_at)
    assert headers == sign(SECRET, "evt_1", b"{}", timestamp=1_700_000_000)
    delivery = verify(b"{}", headers, SECRET, tolerance=tolerance, now=now)
    assert delivery == Verifier(SECRET, tolerance=tolerance).verify(b"{}", headers, now=now)
    assert (delivery.signed_at, delivery.timestamp, delivery.skew) == (signed_at, 1_700_000_000, 60)
    late = utc(1_700_000_061)
    with pytest.raises(VerificationError):
        verify(b"{}", headers, SECRET, tolerance=tolerance, now=late)


@pytest.mark.parametrize(
    "at",
    [
        1_700_000_000,
        1_700_000_000.0,
        datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        datetime(2023, 11, 15, 0, 13, 20, tzinfo=timezone(timedelta(hours=2))),
    ],
)
def test_a_moment_is_unix_seconds_or_an_aware_datetime(at: float | datetime) -> None:
    assert unix_seconds("now", at) == 1_700_000_000
    assert utc(unix_seconds("now", at)) == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def test_a_datetime_without_a_time_zone_is_refused_with_advice() -> None:
    with pytest.raises(
        ValueError, match=r"now takes a datetime with a time zone.*datetime\.now\(UTC\)"
    ):
        unix_seconds("now", datetime(2023, 11, 14, 22, 13, 20))  # noqa: DTZ001 - the test needs a naive datetime


@pytest.mark.parametrize("at", [True, "2023-11-14", None])
def test_an_invalid_moment_is_refused(at: Any) -> None:
    with pytest.raises(TypeError, match="now takes an aware datetime or Unix seconds, not"):
        unix_seconds("now", at)


@pytest.mark.parametrize("at", [math.nan, math.inf, 10**400])
def test_a_moment_is_finite(at: float) -> None:
    with pytest.raises(ValueError, match="now takes a finite number of Unix seconds"):
        unix_seconds("now", at)


@pytest.mark.parametrize("seconds", ABSURD)
def test_a_time_outside_the_calendar_is_its_first_or_last_moment(seconds: float) -> None:
    shown = utc(seconds)
    assert shown.tzinfo is UTC
    assert shown.year == (9999 if seconds > 0 else 1)


def test_a_time_has_the_form_it_is_asked_for() -> None:
    assert utc_text(1_700_000_000.25, "%Y-%m-%d %H:%M:%S.%f") == "2023-11-14 22:13:20.250000"
    assert time_text(1_700_000_000.9) == "2023-11-14T22:13:20Z"
    assert moment_text(1_700_000_000) == "2023-11-14 22:13 UTC"
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
    for show in (time_text, moment_text, time_of_day, day, day_and_time):
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


def test_a_manual_clock_begins_at_a_moment_and_moves_by_a_span() -> None:
    clock = ManualClock(datetime(2026, 7, 1, tzinfo=UTC))
    clock.advance(timedelta(hours=1))
    clock.advance(-60)
    assert utc(clock()) == datetime(2026, 7, 1, 0, 59, tzinfo=UTC)


def test_a_watermark_is_exact_to_the_microsecond() -> None:
    created_at = datetime(2026, 7, 1, 12, 30, 1, 999_999, tzinfo=UTC)
    microseconds = (created_at - utc(0)) // timedelta(microseconds=1)
    assert Watermark(microseconds, "evt_1").created_at == created_at
