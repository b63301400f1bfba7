"""Checks of a receiver's secrets, retention, tolerance, limits and clock."""

from base64 import b64encode
from collections.abc import Sequence
from datetime import timedelta

import pytest

from hookonce import Inbox, Limits
from hookonce.operations.doctor import Level
from hookonce.operations.doctor.settings import (
    clock_finding,
    inbox_limit_findings,
    limit_findings,
    retention_finding,
    secret_findings,
    tolerance_finding,
)
from hookonce.senders import publishing
from hookonce.verification.secrets import new_secret

from .findings import only

SECRET, OTHER = new_secret(), new_secret()
SHORT = "whsec_" + b64encode(b"sixteen bytes ok").decode()


class TestSecrets:
    @pytest.mark.parametrize("secrets", [[SECRET], [SECRET, OTHER]])
    def test_one_secret_and_two_in_a_rotation_are_fine(self, secrets: Sequence[str]) -> None:
        found = only(secret_findings(secrets), "secrets")
        assert found.level is Level.OK
        assert found.found.startswith(f"{len(secrets)} in force")

    @pytest.mark.parametrize(
        ("secrets", "level", "words"),
        [
            ([SECRET, OTHER, SECRET], Level.WARNING, "secret 3 is the same as secret 1"),
            ([SECRET, SECRET.removeprefix("whsec_")], Level.WARNING, "secret 2 is the same as"),
            ([SECRET, SHORT], Level.WARNING, "secret 2 has a key of 16 bytes"),
            ([SECRET, OTHER, new_secret()], Level.NOTE, "3 secrets are in force"),
        ],
    )
    def test_an_odd_secret_is_named_by_its_number_and_never_shown(
        self, secrets: Sequence[str], level: Level, words: str
    ) -> None:
        found = only(secret_findings(secrets), "secrets")
        assert found.level is level
        assert words in found.found
        shown = found.found + found.fix
        assert not any(secret.removeprefix("whsec_").rstrip("=") in shown for secret in secrets)


class TestTolerance:
    @pytest.mark.parametrize(
        ("seconds", "level"),
        [
            (0, Level.FAULT),
            (9, Level.FAULT),
            (10, Level.OK),
            (300, Level.OK),
            (3600, Level.OK),
            (2 * 86_400, Level.WARNING),
        ],
    )
    def test_a_tolerance_of_zero_or_of_days_is_reported(self, seconds: float, level: Level) -> None:
        assert only([tolerance_finding(seconds, publishing)], "tolerance").level is level


class TestLimits:
    def test_the_default_limits_are_fine(self) -> None:
        assert only(limit_findings(Limits()), "limits").level is Level.OK
        assert only(inbox_limit_findings(Inbox(), Limits()), "inbox.limits").level is Level.OK

    def test_a_lease_shorter_than_the_time_limit_of_the_store_is_reported(self) -> None:
        found = only(limit_findings(Limits(lease_seconds=5.0)), "limits.lease")
        assert found.level is Level.WARNING
        assert "lease_seconds=9" in found.fix

    def test_a_shutdown_longer_than_the_grace_period_is_reported(self) -> None:
        found = only(limit_findings(Limits(drain_seconds=45.0)), "limits.drain")
        assert found.level is Level.WARNING
        assert "45 s" in found.found

    def test_a_small_inbox_is_reported(self) -> None:
        small = only(inbox_limit_findings(Inbox(max_depth=10), Limits()), "inbox.limits")
        assert (small.level, "10 events" in small.found) == (Level.WARNING, True)
        tiny = only(inbox_limit_findings(Inbox(max_bytes=1000), Limits()), "inbox.limits")
        assert tiny.level is Level.FAULT


class TestRetention:
    @pytest.mark.parametrize(
        ("retention", "level"),
        [
            (timedelta(days=15), Level.OK),
            (timedelta(days=14, hours=23), Level.NOTE),
            (timedelta(hours=26), Level.NOTE),
            (timedelta(hours=25), Level.FAULT),
        ],
    )
    def test_a_retention_must_cover_the_retries_and_should_cover_the_senders_log(
        self, retention: timedelta, level: Level
    ) -> None:
        assert retention_finding(retention.total_seconds(), publishing.rules).level is level

    def test_an_unknown_retention_is_a_note(self) -> None:
        assert retention_finding(None, publishing.rules).level is Level.NOTE


class TestClock:
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
    def test_a_clock_wrong_by_a_tenth_of_the_tolerance_is_a_warning_and_by_all_of_it_a_fault(
        self, skew: float, level: Level
    ) -> None:
        found = clock_finding("clock", "the clock", skew, 300.0)
        assert found.level is level
        if level is not Level.OK:
            assert ("ahead of" if skew > 0 else "behind") in found.found
            assert "NTP" in found.fix

    def test_the_rounding_of_a_date_header_is_not_reported_as_a_wrong_clock(self) -> None:
        assert clock_finding("clock", "the clock", 1.9, 5.0).level is Level.OK
