"""A clock that is off is a warning long before deliveries are refused, then a fault."""

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from hookonce.operations.doctor import Level
from hookonce.operations.doctor.clocks import clock_finding, date_seconds


@pytest.mark.parametrize(
    ("skew", "level"),
    [
        (0.0, Level.OK),
        (29.0, Level.OK),
        (-31.0, Level.WARNING),
        (299.0, Level.WARNING),
        (-300.0, Level.FAULT),
        (4000.0, Level.FAULT),
    ],
)
def test_a_tenth_of_the_tolerance_is_too_much_and_all_of_it_a_fault(
    skew: float, level: Level
) -> None:
    found = clock_finding("clock", "the clock", skew, 300.0)
    assert found.level is level
    if level is not Level.OK:
        assert ("ahead of" if skew > 0 else "behind") in found.found
        assert "NTP" in found.fix


def test_whole_seconds_of_a_header_are_no_skew() -> None:
    assert clock_finding("clock", "the clock", 1.9, 5.0).level is Level.OK


def test_a_date_header_is_read_and_what_is_none_gives_nothing() -> None:
    moment = datetime(2026, 11, 20, 9, 30, 4, tzinfo=UTC)
    assert date_seconds(format_datetime(moment, usegmt=True)) == moment.timestamp()
    assert date_seconds(None) is None
    assert date_seconds("yesterday") is None
    assert date_seconds("Fri, 99 Nov 2026 09:30:04 GMT") is None
