"""Answers to events that are rejected or fail at their last chance."""

from pathlib import Path

import pytest
from support.deliveries import SECRET, comment, long_ago, sqlite_url
from support.handlers import Handler
from support.servers import delivering

from hookonce import Receiver, Reject, Retry
from hookonce.stores.values import DeadReason
from hookonce.testing import new_event_id, signed_request

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_secret_is_logged")]


# A handler raises `Reject`: make a dead letter, answer 202


async def test_a_rejected_event_is_a_dead_letter_and_is_not_run_again(tmp_path: Path) -> None:
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path))
    handler = Handler(receiver)
    handler.raises(Reject("this post was deleted"))
    async with delivering(receiver, SECRET) as sender:
        request = signed_request(comment(event_id := new_event_id()), SECRET)
        (await sender.post(request)).expect(202, "rejected")
        letter = await receiver.dead.show(event_id)
        assert letter is not None
        assert letter.reason is DeadReason.REJECTED
        assert "this post was deleted" in letter.error
        assert letter.delivery.body == request.body
        assert letter.delivery.event_type == "comment.received"
        handler.succeeds()
        (await sender.post(request)).expect(202, "already_dead")
        (await sender.post(request)).expect(202, "already_dead")
    assert handler.runs == 1


async def test_a_rejected_event_is_answered_202_by_the_memory_store_too() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    handler = Handler(receiver)
    handler.raises(Reject("no"))
    async with delivering(receiver, SECRET) as sender:
        event = comment()
        (await sender.send(event)).expect(202, "rejected")
        (await sender.send(event)).expect(202, "already_dead")
    assert handler.runs == 1


# The last chance fails: make a dead letter with the raw bytes, answer 202


@pytest.mark.parametrize("error", [ValueError("down"), Retry(after=3)])
async def test_a_failure_of_the_ninth_delivery_is_a_dead_letter_with_its_bytes(
    tmp_path: Path, error: Exception
) -> None:
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path))
    handler = Handler(receiver)
    handler.raises(error)
    async with delivering(receiver, SECRET) as sender:
        event_id = new_event_id()
        event = comment(event_id, created_at=long_ago())
        request = signed_request(event, SECRET, attempt=9)
        (await sender.post(request)).expect(202, "exhausted")
        letter = await receiver.dead.show(event_id)
        assert letter is not None
        assert letter.reason is DeadReason.EXHAUSTED
        assert letter.delivery.body == request.body
        assert letter.attempts == 1
        (await sender.post(request)).expect(202, "already_dead")
    assert handler.runs == 1


async def test_our_eighth_attempt_is_the_last_chance_whatever_the_hint_says(
    tmp_path: Path,
) -> None:
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path))
    handler = Handler(receiver)
    handler.raises(ValueError("down"))
    async with delivering(receiver, SECRET) as sender:
        event = comment(created_at=long_ago())
        for _ in range(7):
            (await sender.send(event, attempt=1)).expect(500, "handler_failed")
        assert await receiver.dead.show(event.id) is None
        (await sender.send(event, attempt=1)).expect(202, "exhausted")
        letter = await receiver.dead.show(event.id)
        assert letter is not None
        assert letter.attempts == 8
        assert letter.delivery.body
        (await sender.send(event, attempt=1)).expect(202, "already_dead")
    assert handler.runs == 8


async def test_a_success_at_the_last_chance_leaves_no_dead_letter(tmp_path: Path) -> None:
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path))
    handler = Handler(receiver)
    async with delivering(receiver, SECRET) as sender:
        event = comment(created_at=long_ago())
        (await sender.send(event, attempt=9)).expect(200, "handled")
        assert await receiver.dead.list() == []
        (await sender.send(event, attempt=9)).expect(200, "duplicate")
    assert handler.runs == 1


async def test_an_eighth_delivery_is_not_the_last_chance(tmp_path: Path) -> None:
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path))
    handler = Handler(receiver)
    handler.raises(ValueError("down"))
    async with delivering(receiver, SECRET) as sender:
        (await sender.send(comment(), attempt=8)).expect(500, "handler_failed")
        assert await receiver.dead.list() == []


async def test_the_last_chance_is_answered_500_if_the_store_keeps_no_bodies() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    handler = Handler(receiver)
    handler.raises(ValueError("down"))
    async with delivering(receiver, SECRET) as sender:
        event = comment(created_at=long_ago())
        for _ in range(9):
            (await sender.send(event, attempt=9)).expect(500, "handler_failed")
        handler.succeeds()
        (await sender.send(event, attempt=9)).expect(200, "handled")
