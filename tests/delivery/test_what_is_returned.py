"""A handler's result is awaited, counts as a failure, or is ignored."""

import asyncio
import functools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.waiting import until

from hookonce import Limits, Receiver
from hookonce.events import CommentReceived
from hookonce.stores.sqlite import SQLiteStore
from hookonce.testing import make_event
from hookonce.testing.pytest_plugin import SenderFactory

pytestmark = pytest.mark.anyio


async def _handle(ran: list[str], event: CommentReceived) -> None:
    ran.append(event.id)


class _Object:
    def __init__(self, ran: list[str]) -> None:
        self.ran = ran

    async def __call__(self, event: CommentReceived) -> None:
        self.ran.append(event.id)

    async def method(self, event: CommentReceived) -> None:
        self.ran.append(event.id)


@pytest.mark.parametrize(
    "made",
    [
        lambda ran: partial(_handle, ran),
        lambda ran: lambda event: _handle(ran, event),
        _Object,
        lambda ran: _Object(ran).method,
        lambda ran: partial(_Object(ran)),
        lambda ran: partial(_Object(ran).method),
    ],
    ids=["partial", "lambda", "object", "method", "partial object", "partial method"],
)
async def test_async_handlers_in_wrappers_are_awaited(
    receiver: Receiver, webhook_sender: SenderFactory, made: Callable[[list[str]], Any]
) -> None:
    ran: list[str] = []
    receiver.on(CommentReceived, name="handler")(made(ran))
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(200, "handled")
    assert ran == [event.id]


class OnlyAwaitable:
    """An awaitable that is neither a coroutine nor a future."""

    def __init__(self, ran: list[str]) -> None:
        self.ran = ran

    def __await__(self) -> Iterator[None]:
        self.ran.append("awaited")
        yield


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_the_result_of_a_handler_is_awaited_before_its_event_counts_as_handled(
    receiver: Receiver, webhook_sender: SenderFactory, *, is_async: bool
) -> None:
    ran = list[str]()

    async def forgot_to_await(_: CommentReceived) -> OnlyAwaitable:
        return OnlyAwaitable(ran)

    receiver.on(CommentReceived, name="handler")(
        forgot_to_await if is_async else lambda _: OnlyAwaitable(ran)
    )
    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
    assert ran == ["awaited"]


async def test_a_future_that_fails_is_a_failure_of_the_handler_that_returned_it(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    loop = asyncio.get_running_loop()

    def fail() -> None:
        raise ValueError("in the executor")

    receiver.on(CommentReceived, name="handler")(lambda _: loop.run_in_executor(None, fail))
    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(CommentReceived))).expect(500, "handler_failed")


async def test_a_handler_that_returns_a_generator_has_run_nothing_and_fails(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    receiver.on(CommentReceived, name="handler")(lambda event: (part for part in [event]))
    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(CommentReceived))).expect(500, "handler_failed")


async def test_a_plain_wrapper_around_an_async_handler_runs_it_once(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    ran = list[str]()

    async def handle(_: CommentReceived) -> None:
        ran.append("handler")

    @functools.wraps(handle)
    def wrapper(event: CommentReceived) -> Any:
        ran.append("wrapper")
        return handle(event)

    receiver.on(CommentReceived, name="handler")(wrapper)
    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
    assert ran == ["wrapper", "handler"]


async def test_a_wrapper_whose_coroutine_has_not_run_is_not_recorded_as_finished_at_a_shutdown(
    webhook_secret: str, webhook_sender: SenderFactory, tmp_path: Path
) -> None:
    receiver = Receiver(
        secrets=webhook_secret,
        store=SQLiteStore(tmp_path / "hooks.db"),
        limits=Limits(drain_seconds=0.05),
    )
    gate, ran = asyncio.Event(), list[str]()

    async def handle(_: CommentReceived) -> None:
        ran.append("begun")
        await gate.wait()
        ran.append("finished")

    def plain(event: CommentReceived) -> Any:
        return handle(event)

    receiver.on(CommentReceived, name="handler")(plain)
    event = make_event(CommentReceived)
    async with webhook_sender(receiver) as sender:
        first = asyncio.create_task(sender.send(event))
        await until(lambda: ran)
    (await first).expect(503, "shutting_down")
    gate.set()
    async with webhook_sender(receiver) as sender:
        (await sender.send(event)).expect(200, "handled")
    assert ran == ["begun", "begun", "finished"]


async def test_the_value_that_a_handler_returns_is_ignored(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    @receiver.on(CommentReceived)
    async def one(_: CommentReceived) -> int:
        return 410

    @receiver.on(CommentReceived)
    def two(_: CommentReceived) -> bool:
        return False

    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
