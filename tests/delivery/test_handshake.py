"""Some senders send a challenge first; the function `Sender.handshake` returns the answer."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from hookonce import Event, Receiver, sign
from hookonce.outcome import Outcome
from hookonce.senders import Envelope, Sender
from hookonce.testing import TestSender
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

SECRET = new_secret()
MARK = "private-7f3a"


def challenged(body: Mapping[str, Any]) -> dict[str, Any] | None:
    if body.get("type") != "verification":
        return None
    return {"challenge": body["challenge"]}


ACME = Sender(name="acme", envelope=Envelope(created_at=None), handshake=challenged)


class Site:
    """A receiver that answers challenges, and the events that its handler got."""

    def __init__(self, sender: Sender = ACME) -> None:
        self.receiver = Receiver(secrets=SECRET, store="memory://", sender=sender)
        self.events: list[str] = []
        self.receiver.on("*", name="note")(self._note)
        self.receiver.on_unknown(name="unknown")(self._note)

    async def _note(self, event: Event[Any]) -> None:
        self.events.append(event.type)

    async def deliver(self, body: object, message_id: str = "msg_1", **signed: Any) -> Outcome:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = sign(signed.get("secret", SECRET), message_id, sent)
        return await self.receiver.handle(sent, headers)


async def test_a_challenge_is_answered_and_no_handler_runs() -> None:
    site = Site()
    async with site.receiver:
        for _ in range(2):  # a challenge claims nothing, so its copy gets the same answer
            outcome = await site.deliver({"type": "verification", "challenge": "n0nce"})
            assert (outcome.status, outcome.reason) == (200, "handshake")
            assert json.loads(outcome.body) == {"challenge": "n0nce"}
        stats = await site.receiver.stats()
    assert site.events == []
    assert stats.in_flight == stats.dead == 0
    assert "n0nce" not in repr(outcome)


async def test_a_challenge_with_a_lone_surrogate_is_answered_with_the_same_text() -> None:
    site = Site()
    async with site.receiver:
        outcome = await site.deliver(rb'{"type": "verification", "challenge": "n0\ud83dnce"}')
    assert (outcome.status, outcome.reason) == (200, "handshake")
    assert outcome.body == rb'{"challenge": "n0\ud83dnce"}'


async def test_an_event_with_the_id_of_an_earlier_challenge_is_handled() -> None:
    site = Site()
    async with site.receiver:
        await site.deliver({"type": "verification", "challenge": "n0nce"}, "msg_1")
        outcome = await site.deliver({"type": "user.created", "data": {}}, "msg_1")
    assert outcome.reason == "handled"
    assert site.events == ["user.created", "user.created"]


async def test_deliveries_that_are_no_challenge_are_processed_as_events() -> None:
    site = Site()
    async with site.receiver:
        assert (await site.deliver({"type": "user.created", "data": {}})).reason == "handled"
        bodies = (b"", b"[]", b"nonsense", b"null", b"[" * 100_000, b"\xff")
        for number, body in enumerate(bodies):
            assert (await site.deliver(body, f"msg_of_{number}")).reason == "unreadable"


async def test_only_a_genuine_challenge_is_answered() -> None:
    asked: list[object] = []

    def note(body: Mapping[str, Any]) -> None:
        asked.append(body)

    site = Site(Sender(name="acme", handshake=note))
    async with site.receiver:
        body = {"type": "verification", "challenge": "n0nce"}
        outcome = await site.deliver(body, secret=new_secret())
    assert (outcome.status, outcome.reason) == (401, "no_matching_signature")
    assert asked == []


@pytest.mark.parametrize("answer", [KeyError(MARK), {"x": object()}, {"x": float("nan")}, 3])
async def test_a_handshake_function_that_fails_is_answered_500_without_values(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Mapping[str, Any]) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    site = Site(Sender(name="acme", handshake=fail))
    async with site.receiver:
        outcome = await site.deliver({"type": "verification", "challenge": MARK})
    assert (outcome.status, outcome.reason) == (500, "handshake")
    assert json.loads(outcome.body) == {"status": "retry", "reason": "handshake"}
    assert MARK not in caplog.text
    assert "the handshake with the sender failed for msg_1" in caplog.text
    assert site.events == []


async def test_the_answer_to_a_challenge_reaches_the_sender_over_http() -> None:
    site = Site()
    async with TestSender(site.receiver, secrets=SECRET, sender=ACME, path="/") as sender:
        answer = await sender.send({"type": "verification", "challenge": "n0nce"})
    assert answer.status == 200
    assert json.loads(answer.body) == {"challenge": "n0nce"}


def test_a_handshake_that_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="handshake takes a function of the body, not 'x'"):
        Sender(name="acme", handshake="x")  # type: ignore[arg-type]  # the argument is wrong on purpose


def test_an_async_handshake_is_refused() -> None:
    async def later(_: Mapping[str, Any]) -> None: ...

    with pytest.raises(TypeError, match="handshake takes a plain function, not the async"):
        Sender(name="acme", handshake=later)  # type: ignore[arg-type]  # the argument is wrong on purpose
