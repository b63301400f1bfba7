"""Handlers ask for a retry or reject an event; a wait that is not a number is refused."""

from datetime import timedelta

import pytest
from support.deliveries import long_ago
from support.handlers import Handlers
from support.waiting import until

from hookonce import Receiver, Reject, Retry
from hookonce.events import CommentReceived
from hookonce.stores.values import DeadReason
from hookonce.testing import make_event
from hookonce.testing.pytest_plugin import SenderFactory

pytestmark = pytest.mark.anyio


async def test_a_retry_is_reported_as_an_error_only_if_no_attempt_follows(
    durable: Receiver, webhook_sender: SenderFactory
) -> None:
    handlers = Handlers(durable, "a", "b")
    told: list[ExceptionGroup[Exception]] = []
    durable.on_error(told.append)
    async with webhook_sender(durable) as sender:
        event = make_event(CommentReceived, created_at=long_ago())
        retry = handlers.raises["a"] = Retry(after=5)
        (await sender.send(event)).expect(503, "retry_requested")
        error = handlers.raises["b"] = ValueError("x")
        other = make_event(CommentReceived)
        (await sender.send(other)).expect(500, "handler_failed")
        await until(lambda: told)
        assert [group.exceptions for group in told] == [(error,)]
        (await sender.send(event, attempt=9)).expect(202, "exhausted")
        await until(lambda: len(told) == 2)
        assert told[1].exceptions == (retry,)


@pytest.mark.parametrize(
    ("first", "second", "status", "reason", "wait"),
    [
        (Retry(after=5), None, 503, "retry_requested", "5"),
        (Retry(after=5), Retry(after=90), 503, "retry_requested", "90"),
        (Retry(after=timedelta(minutes=2)), Retry(), 503, "retry_requested", "120"),
        (Retry(after=0.2), None, 503, "retry_requested", "1"),
        (Retry(), None, 503, "retry_requested", "30"),
        (Retry(after=5), ValueError("x"), 500, "handler_failed", None),
        (Reject("x"), None, 202, "rejected", None),
        (Reject("x"), Reject("y"), 202, "rejected", None),
        (Reject("x"), Retry(after=5), 500, "handler_failed", None),
        (Reject("x"), ValueError("y"), 500, "handler_failed", None),
    ],
)
async def test_retries_and_rejections_of_two_handlers_are_combined(
    durable: Receiver,
    webhook_sender: SenderFactory,
    first: Exception,
    second: Exception | None,
    status: int,
    reason: str,
    wait: str | None,
) -> None:
    handlers = Handlers(durable, "a", "b")
    handlers.raises = {"a": first, "b": second}
    async with webhook_sender(durable) as sender:
        event = make_event(CommentReceived)
        answer = (await sender.send(event)).expect(status, reason)
        assert answer.headers.get("retry-after") == wait
        letter = await durable.dead.show(event.id)
        assert (letter is not None) == (status == 202)


async def test_a_rejection_beside_a_failure_buries_the_event_once_the_other_handler_has_succeeded(
    durable: Receiver, webhook_sender: SenderFactory
) -> None:
    handlers = Handlers(durable, "a", "b", "c")
    handlers.raises = {"a": Reject("never"), "b": ValueError("not now")}
    async with webhook_sender(durable) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(500, "handler_failed")
        assert handlers.ran() == ["a", "b", "c"]
        handlers.raises["b"] = None
        (await sender.send(event)).expect(202, "rejected")
        assert handlers.ran() == ["a", "b"]
        letter = await durable.dead.show(event.id)
        assert letter is not None
        assert letter.reason is DeadReason.REJECTED
        assert letter.finished == {"b", "c"}
        assert letter.outstanding == {"a"}
        assert letter.error == "a: Reject: never"
        assert letter.attempts == 2


@pytest.mark.parametrize("after", [-1, float("nan"), float("inf"), timedelta(seconds=-1)])
async def test_a_retry_refuses_a_wait_that_is_no_time_span(after: float | timedelta) -> None:
    with pytest.raises(ValueError, match="finite number of seconds"):
        Retry(after=after)


async def test_a_retry_without_delay_is_answered_with_retry_after_1(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    Handlers(receiver, "a").raises["a"] = Retry(after=0)
    async with webhook_sender(receiver) as sender:
        answer = (await sender.send(make_event(CommentReceived))).expect(503, "retry_requested")
    assert answer.headers["retry-after"] == "1"
