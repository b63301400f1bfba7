"""Answers to events that are unreadable or have no handler."""

import logging
from itertools import product
from pathlib import Path

import pytest
from support.deliveries import SECRET, sqlite_url
from support.handlers import Handler
from support.servers import delivering

from hookonce import Receiver, sign
from hookonce.events import ChannelUnhealthy, UnknownEvent
from hookonce.stores.values import DeadReason
from hookonce.testing import SignedRequest, event_body, make_event, new_event_id

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_secret_is_logged")]


# The delivery is genuine but unreadable: make a dead letter, answer 202


UNREADABLE = {
    "not JSON": b"this is not JSON",
    "not UTF-8": b'{"id": "evt_1", "text": "\xff\xfe"}',
    "empty": b"",
    "no envelope": b'{"hello": "world"}',
    "a list": b"[]",
    "data of another shape": event_body("comment.received", event_id="evt_shape").replace(
        b'"isHidden":false', b'"isHidden":[1]'
    ),
    "another id": event_body("comment.received", event_id="evt_another"),
    "nested without end": b"[" * 100_000,
}


async def test_a_verified_body_that_cannot_be_read_is_quarantined_with_its_bytes(
    tmp_path: Path,
) -> None:
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path))
    handler = Handler(receiver)
    async with delivering(receiver, SECRET) as sender:
        for body in UNREADABLE.values():
            event_id = new_event_id()
            request = SignedRequest(body, sign(SECRET, event_id, body))
            (await sender.post(request)).expect(202, "quarantined")
            letter = await receiver.dead.show(event_id)
            assert letter is not None
            assert letter.delivery.body == body
            assert letter.delivery.event_type is None
            assert letter.reason is DeadReason.UNREADABLE
            assert letter.error
            (await sender.post(request)).expect(202, "already_dead")
        assert len(await receiver.dead.list()) == len(UNREADABLE)
    assert handler.runs == 0


async def test_an_unreadable_body_is_answered_500_if_the_store_keeps_no_bodies() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    async with delivering(receiver, SECRET) as sender:
        for body, attempt in product(UNREADABLE.values(), ("1", "2", "9")):
            headers = {**sign(SECRET, "evt_shape", body), "example-delivery-attempt": attempt}
            (await sender.post(SignedRequest(body, headers))).expect(500, "unreadable")
        assert await receiver.dead.list() == []


# The type is unknown, or no handler is registered: answer 200


async def test_an_unknown_type_is_answered_200_and_logged(
    any_store: str, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = Receiver(secrets=SECRET, store=any_store)
    handler = Handler(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = make_event("invoice.paid")
        (await sender.send(event)).expect(200, "unknown_type")
        (await sender.send(event, attempt=2)).expect(200, "unknown_type")
    assert handler.runs == 0
    assert any(
        r.levelno == logging.WARNING and "invoice.paid" in r.getMessage() for r in caplog.records
    )


async def test_an_unknown_type_goes_to_the_on_unknown_handler_once(any_store: str) -> None:
    receiver = Receiver(secrets=SECRET, store=any_store)
    seen: list[UnknownEvent] = []

    @receiver.on_unknown
    async def unknown(event: UnknownEvent) -> None:
        seen.append(event)

    async with delivering(receiver, SECRET) as sender:
        event = make_event("invoice.paid", data={"total": 12})
        (await sender.send(event)).expect(200, "handled")
        (await sender.send(event, attempt=2)).expect(200, "duplicate")
    assert [(e.id, e.data) for e in seen] == [(event.id, {"total": 12})]


async def test_an_event_without_a_handler_is_answered_200_and_not_stored(
    any_store: str,
) -> None:
    receiver = Receiver(secrets=SECRET, store=any_store)
    Handler(receiver)
    seen: list[str] = []
    async with delivering(receiver, SECRET) as sender:
        event = make_event(ChannelUnhealthy)
        (await sender.send(event)).expect(200, "no_handler")

        @receiver.on(ChannelUnhealthy)
        async def late(event: ChannelUnhealthy) -> None:
            seen.append(event.id)

        (await sender.send(event, attempt=2)).expect(200, "handled")
    assert seen == [event.id]
