"""All failures of an attempt reach the hooks as one group, and no hook changes the outcome."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.handlers import Handlers
from support.waiting import until

from hookonce import Context, Receiver
from hookonce.events import CommentReceived, Event
from hookonce.testing import make_event
from hookonce.testing.pytest_plugin import SenderFactory

pytestmark = pytest.mark.anyio


async def test_error_hooks_get_all_failures_of_an_attempt_as_one_group_with_notes(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    handlers = Handlers(receiver, "a", "b", "c")
    handlers.raises = {"a": ValueError("x"), "c": KeyError("y")}
    told: list[tuple[ExceptionGroup[Exception], Event[Any], Context]] = []

    @receiver.on_error
    async def note(error: ExceptionGroup[Exception], event: Event[Any], context: Context) -> None:
        told.append((error, event, context))

    async with webhook_sender(receiver) as sender:
        sent = make_event(CommentReceived)
        (await sender.send(sent, attempt=4)).expect(500)
        await until(lambda: told)
    [(group, event, context)] = told
    assert group.exceptions == (handlers.raises["a"], handlers.raises["c"])
    assert [error.__notes__ for error in group.exceptions] == [
        ["raised by the handler 'a'"],
        ["raised by the handler 'c'"],
    ]
    assert "2 handlers of comment.received failed" in str(group)
    assert event == sent
    assert (context.event_id, context.handler) == (sent.id, "a, c")
    assert (context.attempt, context.delivery_attempt) == (1, 4)


async def test_error_hooks_take_one_two_or_three_arguments_and_may_be_sync(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    Handlers(receiver, "a").raises["a"] = ValueError("x")
    told: dict[str, tuple[object, ...]] = {}

    def noting(name: str) -> Callable[..., None]:
        def note(*arguments: object) -> None:
            told[name] = (*arguments, threading.current_thread().name)

        return note

    @receiver.on_error
    def one(error: BaseException) -> None:
        noting("one")(error)

    @receiver.on_error
    def two(error: BaseException, event: Event[Any]) -> None:
        noting("two")(error, event)

    @receiver.on_error
    def three(error: BaseException, event: Event[Any], context: Context) -> None:
        noting("three")(error, event, context)

    @receiver.on_error
    async def async_one(error: BaseException) -> None:
        noting("async one")(error)

    @receiver.on_error
    async def async_two(error: BaseException, event: Event[Any]) -> None:
        noting("async two")(error, event)

    receiver.on_error(noting("any"))
    async with webhook_sender(receiver) as sender:
        sent = make_event(CommentReceived)
        (await sender.send(sent)).expect(500)
        await until(lambda: len(told) == 6)
    kinds = {name: [type(value) for value in values[:-1]] for name, values in told.items()}
    assert kinds["one"] == kinds["async one"] == [ExceptionGroup]
    assert kinds["two"] == kinds["async two"] == [ExceptionGroup, CommentReceived]
    assert kinds["three"] == kinds["any"] == [ExceptionGroup, CommentReceived, Context]
    in_threads = {n for n, values in told.items() if "hookonce-handler" in str(values[-1])}
    assert in_threads == {"one", "two", "three", "any"}


async def test_an_error_hook_that_raises_is_logged_and_changes_no_outcome(
    receiver: Receiver, webhook_sender: SenderFactory, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = Handlers(receiver, "a")
    handlers.raises["a"] = ValueError("x")
    told: list[BaseException] = []
    bug, exit_attempt = RuntimeError("a bug in the hook"), SystemExit(1)

    @receiver.on_error
    async def broken(_: BaseException) -> None:
        raise bug

    @receiver.on_error
    def worse(_: BaseException) -> None:
        raise exit_attempt

    receiver.on_error(told.append)
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(500, "handler_failed")
        await until(lambda: told)
        handlers.raises.clear()
        (await sender.send(event)).expect(200, "handled")
    failed = [r for r in caplog.records if r.getMessage() == "an on_error function failed"]
    causes = [r.exc_info[1] for r in failed if r.exc_info]
    assert causes[0] is bug
    assert causes[1] is not None
    assert causes[1].__cause__ is exit_attempt


async def test_the_answer_does_not_wait_for_error_hooks(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    handlers = Handlers(receiver, "a")
    handlers.raises["a"] = ValueError("x")
    gate, called = asyncio.Event(), list[str]()

    @receiver.on_error
    async def slow(_: BaseException) -> None:
        called.append("slow")
        await gate.wait()

    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(500, "handler_failed")
        await until(lambda: called)
        handlers.raises.clear()
        (await sender.send(event)).expect(200, "handled")
        gate.set()


async def test_without_error_hooks_too_a_failure_is_logged_with_its_traceback(
    receiver: Receiver, webhook_sender: SenderFactory, caplog: pytest.LogCaptureFixture
) -> None:
    error = Handlers(receiver, "a").raises["a"] = ValueError("the reason why")
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(500)
        await until(lambda: event.id in caplog.text)
    assert any(
        r.exc_info
        and isinstance(r.exc_info[1], ExceptionGroup)
        and error in r.exc_info[1].exceptions
        for r in caplog.records
    )
