"""When only unreadable deliveries arrive, the receiver names the field, and stays ready."""

import json
import logging
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hookonce import Event, PayloadError, PayloadFault, Receiver
from hookonce.emulator import VirtualClock
from hookonce.events import Envelope
from hookonce.operations import DeliveryAnswered, Observer
from hookonce.senders import Sender, publishing, standard
from hookonce.testing import make_event, signed_request
from hookonce.watching.refusals import DOCTOR_ID

pytestmark = pytest.mark.anyio

READABLE = {"type": "order.paid", "timestamp": "2026-01-01T00:00:00Z", "data": {}}
TIMELESS = {"type": "order.paid", "time": "2026-01-01T00:00:00Z", "data": {}}


@pytest.fixture(params=["sqlite", "memory"])
def receiver(
    request: pytest.FixtureRequest, webhook_secret: str, virtual_clock: VirtualClock, tmp_path: Path
) -> Receiver:
    store = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/hooks.db"
    return receiver_of(standard, webhook_secret, virtual_clock, store)


def receiver_of(sender: Sender, secret: str, clock: VirtualClock, store: str) -> Receiver:
    made = Receiver(secrets=secret, store=store, clock=clock, sender=sender)
    made.on("*", name="handler")(lambda _: None)
    return made


async def deliver(
    receiver: Receiver, secret: str, body: object, *, message_id: str | None = None
) -> int:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    skew = time.time() - receiver.clock()
    request = signed_request(
        content, secret, message_id=message_id, skew=skew, sender=receiver.sender
    )
    return int((await receiver.handle(request.body, request.headers)).status)


async def warnings_of(receiver: Receiver) -> list[str]:
    readiness = await receiver.check()
    assert readiness.ready
    return [text for text in readiness.warnings if "unreadable" in text]


async def test_two_unreadable_deliveries_are_a_warning_that_names_the_field(
    receiver: Receiver, webhook_secret: str, virtual_clock: VirtualClock
) -> None:
    async with receiver:
        for number in range(2):
            assert await warnings_of(receiver) == [], number
            await deliver(receiver, webhook_secret, TIMELESS)
            virtual_clock.tick(timedelta(minutes=1))
        [warning] = await warnings_of(receiver)
        assert "the last 2 deliveries since " in warning
        assert "the field timestamp of the last of them is missing or wrong" in warning
        assert "timestamp: Field required" in warning
        assert warning.rpartition("; ")[2].startswith("correct the receiver's sender")
        assert "`hookonce dead replay MODULE:RECEIVER --reason unreadable --all`" in warning


async def test_the_first_readable_delivery_ends_the_warning(
    receiver: Receiver, webhook_secret: str
) -> None:
    async with receiver:
        for _ in range(3):
            await deliver(receiver, webhook_secret, TIMELESS)
        assert await deliver(receiver, webhook_secret, READABLE) == 200
        assert await warnings_of(receiver) == []
        await deliver(receiver, webhook_secret, TIMELESS)
        assert await warnings_of(receiver) == []


async def test_a_forged_delivery_neither_counts_nor_ends_the_warning(
    receiver: Receiver, webhook_secret: str
) -> None:
    async with receiver:
        await deliver(receiver, webhook_secret, TIMELESS)
        assert await deliver(receiver, "whsec_" + "A" * 32, TIMELESS) == 401
        assert await warnings_of(receiver) == []
        await deliver(receiver, webhook_secret, TIMELESS)
        assert await deliver(receiver, "whsec_" + "A" * 32, READABLE) == 401
        assert len(await warnings_of(receiver)) == 1


async def test_a_body_without_a_field_at_fault_is_a_warning_too(
    receiver: Receiver, webhook_secret: str
) -> None:
    async with receiver:
        for _ in range(2):
            await deliver(receiver, webhook_secret, b"the words somebody wrote")
        [warning] = await warnings_of(receiver)
        assert "the last of them could not be read: the body is not JSON; correct" in warning


async def test_tests_of_the_doctor_and_challenges_neither_count_nor_end_the_warning(
    webhook_secret: str, virtual_clock: VirtualClock
) -> None:
    def challenged(body: Any) -> dict[str, Any] | None:
        return {"challenge": body["challenge"]} if body.get("type") == "verification" else None

    sender = replace(standard, handshake=challenged)
    receiver = receiver_of(sender, webhook_secret, virtual_clock, "memory://")
    doctors = f"{DOCTOR_ID}1"
    challenge = {"type": "verification", "challenge": "c"}
    for body, message_id in [(TIMELESS, None), (TIMELESS, doctors), (challenge, None)]:
        await deliver(receiver, webhook_secret, body, message_id=message_id)
    assert await warnings_of(receiver) == []
    for body, message_id in [(TIMELESS, None), (READABLE, doctors), (challenge, None)]:
        await deliver(receiver, webhook_secret, body, message_id=message_id)
    assert len(await warnings_of(receiver)) == 1


async def test_observers_and_the_log_name_the_field(
    receiver: Receiver, webhook_secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[PayloadError | None] = []

    class Notes(Observer):
        def delivery_answered(self, record: DeliveryAnswered) -> None:
            seen.append(record.unreadable)

    receiver.observe(Notes())
    async with receiver:
        with caplog.at_level(logging.INFO, "hookonce"):
            await deliver(receiver, webhook_secret, TIMELESS)
            await deliver(receiver, webhook_secret, READABLE)
    unreadable, none = seen
    assert none is None
    assert unreadable is not None
    assert (unreadable.fault, unreadable.field) == (PayloadFault.NOT_ENVELOPE, "timestamp")
    assert (unreadable.__context__, unreadable.__traceback__) == (None, None)
    answers = [one for one in caplog.records if hasattr(one, "milliseconds")]
    assert [getattr(one, "field", None) for one in answers] == ["timestamp", None]
    assert answers[0].getMessage().startswith("a delivery evt_")


async def test_a_field_of_data_is_named_by_its_path(
    webhook_secret: str, virtual_clock: VirtualClock
) -> None:
    receiver = receiver_of(publishing, webhook_secret, virtual_clock, "memory://")
    event: Event[Any] = make_event("comment.received")
    body = json.loads(event.model_dump_json(by_alias=True))
    body["data"] = {}
    for _ in range(2):
        await deliver(receiver, webhook_secret, body)
    [warning] = await warnings_of(receiver)
    assert "the field data." in warning


async def test_the_warning_has_no_value_and_no_control_character_of_the_body(
    webhook_secret: str, virtual_clock: VirtualClock
) -> None:
    sender = replace(standard, envelope=Envelope(type="a\x1b.b", created_at=None))
    receiver = receiver_of(sender, webhook_secret, virtual_clock, "memory://")
    for _ in range(2):
        await deliver(receiver, webhook_secret, {"a": "the words somebody wrote"})
    [warning] = await warnings_of(receiver)
    assert warning.isprintable()
    assert "somebody" not in warning
