"""The doctor judges the answer to a test by the sender's rules, and shows no secret."""

import asyncio
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from hookonce.errors import Refusal
from hookonce.http.inprocess import Answer
from hookonce.operations.doctor import Level
from hookonce.operations.doctor.answers import Reply, answer_finding, slash_findings, time_finding
from hookonce.operations.doctor.findings import Finding, fault
from hookonce.outcome import Outcome, Reason
from hookonce.senders import publishing


def reply(status: int, reason: str | None = None, location: str | None = None) -> Reply:
    return Reply(status=status, reason=reason, location=location, sent_at=None, seconds=0.01)


@pytest.mark.parametrize(
    ("location", "check", "shown"),
    [
        ("/webhooks/", "x.slash", "to /webhooks/"),
        ("https://hooks.example/webhooks/", "x.slash", "to https://hooks.example/webhooks/"),
        ("https://hooks.example/webhooks", "x.answer", "to https://hooks.example/webhooks"),
        ("https://a:opensesame@hooks.example/in?t=opensesame#opensesame", "x.answer", "/in,"),
        ("http://[opensesame", "x.answer", "a redirect,"),
        (None, "x.answer", "a redirect,"),
    ],
)
def test_a_redirect_is_a_fault_wherever_it_leads(
    location: str | None, check: str, shown: str
) -> None:
    found = answer_finding("x", "/webhooks", reply(307, location=location))
    assert (found.check, found.level) == (check, Level.FAULT)
    assert shown in found.found
    assert "opensesame" not in found.found


@pytest.mark.parametrize("status", [200, 204, 400, 401, 403, 404, 405, 410, 422, 500, 502, 599])
def test_an_answer_that_the_receiver_did_not_give_is_a_fault(status: int) -> None:
    found = answer_finding("x", "/webhooks", reply(status))
    assert found.level is Level.FAULT
    assert f"answers {status} at /webhooks" in found.found
    assert found.fix


@pytest.mark.parametrize(
    ("status", "setting"),
    [(413, "client_max_body_size"), (502, "proxy_pass"), (504, "proxy_read_timeout")],
)
def test_an_answer_of_nginx_names_the_setting_to_change(status: int, setting: str) -> None:
    assert f"nginx: {setting}" in answer_finding("x", "/webhooks", reply(status)).fix


@pytest.mark.parametrize("reason", [*Reason, *Refusal])
def test_every_refusal_is_a_fault_with_a_fix(reason: str) -> None:
    found = answer_finding("x", "/webhooks", reply(503, reason))
    assert found.level is Level.FAULT
    assert reason in found.found
    assert found.fix


@pytest.mark.parametrize("reason", [Reason.HANDLED, Reason.NO_HANDLER, Reason.STORED])
def test_a_test_that_is_handled_stored_or_ignored_is_fine(reason: Reason) -> None:
    assert answer_finding("x", "/webhooks", reply(202, reason)).level is Level.OK


@pytest.mark.parametrize(
    ("answer", "level"),
    [
        (reply(200, "duplicate"), Level.OK),
        (reply(404), Level.OK),
        (reply(307, location="/webhooks"), Level.WARNING),
        (fault("x.answer", "no answer", "start it"), Level.FAULT),
    ],
)
@pytest.mark.parametrize(("path", "other"), [("/hooks", "/hooks/"), ("/hooks/", "/hooks")])
def test_the_other_spelling_of_a_path_may_be_missing_but_must_not_redirect(
    path: str, other: str, answer: Reply | Finding, level: Level
) -> None:
    asked = []

    async def deliver(where: str) -> Reply | Finding:
        asked.append(where)
        return answer

    (finding,) = asyncio.run(slash_findings("x", path, deliver))
    assert (asked, finding.level) == ([other], level)
    assert asyncio.run(slash_findings("x", "/", deliver)) == []
    assert len(asked) == 1


@pytest.mark.parametrize(("seconds", "level"), [(1.9, Level.OK), (2.1, Level.WARNING)])
def test_a_slow_answer_is_a_warning_long_before_the_sender_gives_up(
    seconds: float, level: Level
) -> None:
    assert time_finding("x", seconds, publishing.rules).level is level


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (Outcome(200, Reason.HANDLED).body, "handled"),
        (b'{"status": "ok"}', None),
        (b'{"status": "accepted", "reason": 7}', None),
        (b'["status", "reason"]', None),
        (b"<html>", None),
        (b"[" * 100_000, None),
    ],
)
def test_only_an_answer_of_a_receiver_has_a_reason(body: bytes, reason: str | None) -> None:
    assert Reply.to(Answer(200, {}, body), 0.0).reason == reason


def test_the_time_of_an_answer_is_read_from_its_date_header() -> None:
    def sent_at(headers: dict[str, str]) -> float | None:
        return Reply.to(Answer(200, headers, b""), 0.0).sent_at

    moment = datetime(2026, 11, 20, 9, 30, 4, tzinfo=UTC)
    assert sent_at({"date": format_datetime(moment, usegmt=True)}) == moment.timestamp()
    assert sent_at({}) is None
    assert sent_at({"date": "yesterday"}) is None
    assert sent_at({"date": "Fri, 99 Nov 2026 09:30:04 GMT"}) is None
