"""What can be said of secrets, retention and handlers without asking anybody."""

from base64 import b64encode
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

import pytest

from hookonce import Event, Inbox, Limits, Receiver
from hookonce.events import EVENT_CLASSES, CommentReceived, WebhookTest
from hookonce.operations.doctor import Finding, Level
from hookonce.operations.doctor.settings import (
    handler_findings,
    inbox_limit_findings,
    limit_findings,
    retention_finding,
    secret_findings,
    tolerance_finding,
    type_findings,
)
from hookonce.verification.secrets import new_secret

from .findings import only

SECRET, OTHER = new_secret(), new_secret()
SHORT = "whsec_" + b64encode(b"sixteen bytes ok").decode()


class AdPublished(Event[dict[str, Any]]):
    type: Literal["ad.published"]


def receiver_for(*wanted: str | type[Event[Any]]) -> Receiver:
    receiver = Receiver(secrets=SECRET, store="memory://")
    for number, one in enumerate(wanted):

        async def handler(event: Any) -> None: ...

        receiver.on(one, name=f"handler {number}")(handler)
    return receiver


def judged(*wanted: str | type[Event[Any]]) -> list[Finding]:
    receiver = receiver_for(*wanted)
    known = receiver.parser.classes
    unmatched = receiver.unmatched()
    return [*handler_findings(receiver.handlers, known), *type_findings(unmatched, known)]


class TestSecrets:
    @pytest.mark.parametrize("secrets", [[SECRET], [SECRET, OTHER]])
    def test_one_secret_is_fine_and_so_is_a_second_one_in_rotation(
        self, secrets: Sequence[str]
    ) -> None:
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
    def test_what_is_odd_about_them_is_named_and_none_is_shown(
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
    def test_a_tolerance_of_nothing_or_of_days_is_named(self, seconds: float, level: Level) -> None:
        assert only([tolerance_finding(seconds)], "tolerance").level is level


class TestLimits:
    def test_the_defaults_are_fine(self) -> None:
        assert only(limit_findings(Limits()), "limits").level is Level.OK
        assert only(inbox_limit_findings(Inbox(), Limits()), "inbox.limits").level is Level.OK

    def test_a_lease_that_a_slow_store_outlasts_is_named(self) -> None:
        found = only(limit_findings(Limits(lease_seconds=5.0)), "limits.lease")
        assert found.level is Level.WARNING
        assert "lease_seconds=9" in found.fix

    def test_a_drain_that_outlasts_the_grace_period_is_named(self) -> None:
        found = only(limit_findings(Limits(drain_seconds=45.0)), "limits.drain")
        assert found.level is Level.WARNING
        assert "45 s" in found.found

    def test_an_inbox_without_room_is_named(self) -> None:
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
    def test_it_must_outlast_the_retries_and_should_outlast_the_sender_s_log(
        self, retention: timedelta, level: Level
    ) -> None:
        assert retention_finding(retention.total_seconds()).level is level

    def test_a_store_that_does_not_say_is_a_note(self) -> None:
        assert retention_finding(None).level is Level.NOTE


class TestHandlers:
    def test_none_at_all_is_a_fault(self) -> None:
        assert only(judged(), "handlers").level is Level.FAULT

    def test_one_for_the_test_event_alone_is_a_fault(self) -> None:
        found = only(judged(WebhookTest), "handlers")
        assert found.level is Level.FAULT
        assert "but the test event" in found.found

    def test_types_that_nobody_handles_are_a_note(self) -> None:
        found = only(judged(CommentReceived, "channel.*"), "handlers")
        assert found.level is Level.NOTE
        assert "post.target.failed" in found.found
        assert "channel.unhealthy" not in found.found
        assert "webhook.test" not in found.found

    def test_with_one_for_every_type_nothing_is_missing(self) -> None:
        assert only(judged("*"), "handlers").level is Level.OK

    def test_a_type_of_the_user_s_own_counts_as_known(self) -> None:
        found = judged(AdPublished, "ad.*")
        assert only(found, "event types").level is Level.OK
        assert only(found, "handlers").level is Level.NOTE


class TestTypes:
    @pytest.mark.parametrize(
        ("wanted", "meant"),
        [
            ("comment.recieved", "comment.received"),
            ("Post.Target.Failed", "post.target.failed"),
            ("chanel.*", "channel.*"),
            ("post.targets.*", "post.target.*"),
        ],
    )
    def test_a_misspelt_one_is_a_warning_with_the_nearest_that_is_known(
        self, wanted: str, meant: str
    ) -> None:
        found = only(judged(wanted, CommentReceived), "event types")
        assert found.level is Level.WARNING
        assert repr(wanted) in found.found
        assert found.fix.startswith(f"write {meant!r}")

    def test_one_that_resembles_nothing_may_be_new_and_is_a_note(self) -> None:
        found = only(judged("xylophone", CommentReceived), "event types")
        assert found.level is Level.NOTE

    @pytest.mark.parametrize("wanted", [*EVENT_CLASSES, "*", "post.*", "post.*.failed"])
    def test_one_that_is_known_is_fine(self, wanted: str) -> None:
        assert only(judged(wanted), "event types").level is Level.OK
