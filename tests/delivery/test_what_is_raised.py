"""What a handler raises is a failure, whatever it is."""

import asyncio

import pytest
from support.deliveries import long_ago
from support.handlers import Handlers
from support.waiting import until

from hookonce import Receiver, Reject
from hookonce.events import CommentReceived
from hookonce.stores.values import DeadReason
from hookonce.testing import make_event
from hookonce.testing.pytest_plugin import SenderFactory

pytestmark = pytest.mark.anyio


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even its text is broken")


RAISED = [
    SystemExit(3),
    asyncio.CancelledError(),
    StopIteration(7),
    StopAsyncIteration(),
    BaseException("bare"),
    ExceptionGroup("several", [ValueError("x"), Reject("y")]),
    UnprintableError(),
    ValueError("half an emoji: \ud83d"),
    ValueError("x" * 1_000_000),
    ValueError("nul \0 byte"),
]


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("beside", [0, 1], ids=["alone", "beside another"])
@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
async def test_whatever_a_handler_raises_is_a_failure_that_is_retried(
    durable: Receiver,
    webhook_sender: SenderFactory,
    error: BaseException,
    beside: int,
    is_async: bool,
) -> None:
    others = Handlers(durable, *["other"][:beside])
    told: list[ExceptionGroup[Exception]] = []
    durable.on_error(told.append)
    errors = [error]

    def fail(_: CommentReceived) -> None:
        if errors:
            raise errors.pop()

    async def fail_async(_: CommentReceived) -> None:
        if errors:
            raise errors.pop()

    durable.on(CommentReceived, name="fail")(fail_async if is_async else fail)
    async with webhook_sender(durable) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(500, "handler_failed")
        await until(lambda: told, seconds=2, what="the hook was told")
        (await sender.send(event)).expect(200, "handled")
        assert others.ran() == ["other"][:beside]
    [group] = told
    [reported] = group.exceptions
    chain = (reported, reported.__cause__)
    assert any(type(link) is type(error) for link in chain if link is not None)


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
async def test_whatever_a_handler_raises_at_the_last_chance_makes_a_dead_letter(
    durable: Receiver, webhook_sender: SenderFactory, error: BaseException
) -> None:
    handlers = Handlers(durable, "a", "b")
    handlers.raises["a"] = error
    async with webhook_sender(durable) as sender:
        event = make_event(CommentReceived, created_at=long_ago())
        (await sender.send(event, attempt=9)).expect(202, "exhausted")
        letter = await durable.dead.show(event.id)
        assert letter is not None
        assert letter.reason is DeadReason.EXHAUSTED
        assert letter.error.startswith("a: ")
        assert len(letter.error) < 10_000
        assert letter.finished == {"b"}


async def test_one_exception_raised_twice_carries_one_note_of_each_handler(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    error, told = ValueError("always the same object"), list[ExceptionGroup[Exception]]()
    receiver.on_error(told.append)
    Handlers(receiver, "a").raises["a"] = error
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        for _ in range(3):
            (await sender.send(event)).expect(500, "handler_failed")
        await until(lambda: len(told) == 3)
    assert error.__notes__ == ["raised by the handler 'a'"]
