"""The context shows a handler its event and its attempt."""

import logging
from pathlib import Path
from typing import Any

import pytest
from support.deliveries import long_ago
from support.handlers import Handlers

from hookonce import Context, Receiver
from hookonce.clock import utc
from hookonce.events import CommentReceived, Event, PostTargetFailed
from hookonce.senders import publishing
from hookonce.stores.sqlite import SQLiteStore
from hookonce.testing import SignedRequest, TestSender, make_event, signed_request
from hookonce.testing.pytest_plugin import SenderFactory

pytestmark = pytest.mark.anyio


async def test_the_context_describes_the_attempt(webhook_secret: str, tmp_path: Path) -> None:
    now = 1_800_000_000.0
    receiver = Receiver(
        secrets=webhook_secret,
        store=SQLiteStore(tmp_path / "hooks.db"),
        endpoint="bakery",
        clock=lambda: now,
        tolerance=10**10,
    )
    contexts: list[Context] = []

    @receiver.on(CommentReceived, name="note")
    async def note(_: CommentReceived, context: Context) -> None:
        contexts.append(context)
        raise ValueError("again")

    async with TestSender(receiver, secrets=webhook_secret) as sender:
        event = make_event(CommentReceived, created_at=long_ago())
        await sender.send(event, attempt=1)
        await sender.send(event, attempt=4)
        await sender.send(event, attempt=9)
    assert [c.attempt for c in contexts] == [1, 2, 3]
    assert [c.delivery_attempt for c in contexts] == [1, 4, 9]
    assert [c.last_chance for c in contexts] == [False, False, True]
    assert {c.is_replay for c in contexts} == {False}
    first = contexts[0]
    assert (first.key, first.endpoint) == (f"bakery:{event.id}", "bakery")
    assert (first.event_id, first.event_type) == (event.id, "comment.received")
    assert (first.handler, first.received_at) == ("note", utc(now))
    assert first.body == event.model_dump_json(exclude_unset=True).encode()
    assert repr(first.body) not in repr(first)


async def test_the_eighth_attempt_is_the_last_chance_whatever_the_header_says(
    durable: Receiver, webhook_sender: SenderFactory
) -> None:
    chances: list[tuple[int, bool]] = []

    @durable.on(CommentReceived)
    async def note(_: CommentReceived, context: Context) -> None:
        chances.append((context.attempt, context.last_chance))
        raise ValueError("again")

    async with webhook_sender(durable) as sender:
        event = make_event(CommentReceived, created_at=long_ago())
        for _ in range(8):
            await sender.send(event)
    assert chances == [(n, n == 8) for n in range(1, 9)]


async def test_idempotency_keys_are_the_same_at_every_attempt_and_differ_by_handler_and_event(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    keys: list[str] = []

    def add(name: str) -> None:
        @receiver.on(CommentReceived, name=name)
        async def note(_: CommentReceived, context: Context) -> None:
            keys.append(context.idempotency_key)
            raise ValueError("again")

    add("a")
    add("b")
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        await sender.send(event)
        await sender.send(event)
        assert len(keys) == 4
        assert len(set(keys)) == 2
        await sender.send(make_event(CommentReceived))
        assert len(set(keys)) == 4


async def test_no_two_effects_share_an_idempotency_key(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    keys: list[str] = []

    def add(name: str) -> None:
        @receiver.on(CommentReceived, name=name)
        async def note(_: CommentReceived, context: Context) -> None:
            keys.append(context.idempotency_key)

    for name in ("book", "1:book", "%3A1:book"):
        add(name)
    async with webhook_sender(receiver) as sender:
        for event_id in ("evt", "evt:1", "evt%3A1", "evt%253A1"):
            await sender.send(make_event(CommentReceived, event_id=event_id))
    assert len(keys) == len(set(keys)) == 12
    assert "default:evt:book" in keys


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "12345", "٩", "9 9"])
async def test_an_unreadable_attempt_hint_is_none(
    receiver: Receiver, webhook_secret: str, webhook_sender: SenderFactory, value: str
) -> None:
    hints: list[int | None] = []

    @receiver.on(CommentReceived)
    async def note(_: CommentReceived, context: Context) -> None:
        hints.append(context.delivery_attempt)

    async with webhook_sender(receiver) as sender:
        request = signed_request(make_event(CommentReceived), webhook_secret)
        headers = {**request.headers, "example-delivery-attempt": value}
        (await sender.post(SignedRequest(request.body, headers))).expect(200, "handled")
    assert hints == [None]


async def test_only_the_named_services_headers_are_read_as_hints(
    webhook_secret: str, tmp_path: Path
) -> None:
    receiver = Receiver(
        secrets=webhook_secret,
        store=SQLiteStore(tmp_path / "hooks.db"),
        sender=publishing.with_service("Postline"),
    )
    hints: list[int | None] = []

    @receiver.on(CommentReceived)
    async def note(_: CommentReceived, context: Context) -> None:
        hints.append(context.delivery_attempt)

    for service in ("postline", "somebody-else"):
        named = publishing.with_service(service)
        async with TestSender(receiver, secrets=webhook_secret, sender=named) as sender:
            (await sender.send(make_event(CommentReceived), attempt=3)).expect(200)
    assert hints == [3, None]


async def test_handlers_get_the_event_in_its_own_class(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    got: list[Event[Any]] = []

    @receiver.on("*")
    async def note(event: Event[Any]) -> None:
        got.append(event)

    async with webhook_sender(receiver) as sender:
        events: list[Event[Any]] = [
            make_event(CommentReceived),
            make_event(PostTargetFailed),
            make_event("new.type"),
        ]
        for event in events:
            (await sender.send(event)).expect(200, "handled")
    assert got == events
    assert [type(event) for event in got] == [type(event) for event in events]


async def test_a_successful_event_is_logged_with_its_outcome(
    receiver: Receiver, webhook_sender: SenderFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="hookonce")
    Handlers(receiver, "a")
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event, attempt=2)).expect(200)
    [record] = [r for r in caplog.records if r.name == "hookonce"]
    message = record.getMessage()
    assert message.startswith(f"comment.received {event.id} at default: 200 handled (")
    assert message.endswith(" ms)")
    fields = vars(record)
    assert (fields["event_id"], fields["type"]) == (event.id, "comment.received")
    assert (fields["status"], fields["reason"]) == (200, "handled")
    assert fields["attempt"] == 2
    assert fields["milliseconds"] >= 0
