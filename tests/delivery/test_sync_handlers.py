"""Sync handlers run in threads; their number has a limit."""

import asyncio
import contextvars
import threading

import pytest
from support.waiting import until

from hookonce import Limits, Receiver
from hookonce.events import CommentReceived, PostTargetFailed
from hookonce.testing import make_event
from hookonce.testing.pytest_plugin import SenderFactory

pytestmark = pytest.mark.anyio


async def test_sync_handlers_run_in_threads_and_do_not_block_the_loop(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    gate, threads = threading.Event(), list[threading.Thread]()

    @receiver.on(CommentReceived)
    def blocking(_: CommentReceived) -> None:
        threads.append(threading.current_thread())
        assert gate.wait(20)

    @receiver.on(PostTargetFailed)
    async def quick(_: PostTargetFailed) -> None:
        threads.append(threading.current_thread())

    async with webhook_sender(receiver) as sender:
        slow = asyncio.create_task(sender.send(make_event(CommentReceived)))
        await until(lambda: threads)
        (await sender.send(make_event(PostTargetFailed))).expect(200, "handled")
        assert not slow.done()
        gate.set()
        (await slow).expect(200, "handled")
    assert threads[0].name.startswith("hookonce-handler")
    assert threads[1] is threading.main_thread()


async def test_no_more_sync_handlers_run_at_once_than_the_limit_allows(
    webhook_secret: str, webhook_sender: SenderFactory
) -> None:
    receiver = Receiver(secrets=webhook_secret, store="memory://", limits=Limits(threads=2))
    gate, lock, running, most = threading.Event(), threading.Lock(), list[str](), list[int]()

    @receiver.on(CommentReceived)
    def blocking(event: CommentReceived) -> None:
        with lock:
            running.append(event.id)
            most.append(len(running))
        assert gate.wait(20)
        with lock:
            running.remove(event.id)

    async with webhook_sender(receiver) as sender:
        answers = [asyncio.create_task(sender.send(make_event(CommentReceived))) for _ in range(5)]
        await until(lambda: len(running) == 2)
        gate.set()
        for answer in answers:
            (await answer).expect(200, "handled")
    assert len(most) == 5
    assert max(most) == 2


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


async def test_context_variables_reach_sync_and_async_handlers(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    seen: list[str] = []

    @receiver.on(CommentReceived)
    def in_thread(_: CommentReceived) -> None:
        seen.append(f"sync {VARIABLE.get()}")
        VARIABLE.set("changed")

    @receiver.on(CommentReceived)
    async def on_loop(_: CommentReceived) -> None:
        seen.append(f"async {VARIABLE.get()}")

    async with webhook_sender(receiver) as sender:
        VARIABLE.set("request 1")
        (await sender.send(make_event(CommentReceived))).expect(200)
        assert VARIABLE.get() == "request 1"
    assert sorted(seen) == ["async request 1", "sync request 1"]


async def test_an_error_hook_gets_the_exception_of_a_sync_handler_unwrapped(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    error, told = ValueError("in a thread"), list[ExceptionGroup[Exception]]()
    receiver.on_error(told.append)

    @receiver.on(CommentReceived)
    def fail(_: CommentReceived) -> None:
        raise error

    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(CommentReceived))).expect(500, "handler_failed")
        await until(lambda: told)
    assert told[0].exceptions == (error,)


async def test_the_threads_of_sync_handlers_end_with_the_lifespan(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    threads: list[threading.Thread] = []

    @receiver.on(CommentReceived)
    def note(_: CommentReceived) -> None:
        threads.append(threading.current_thread())

    for _ in range(2):  # a second lifespan starts a new thread
        async with webhook_sender(receiver) as sender:
            (await sender.send(make_event(CommentReceived))).expect(200, "handled")
        await until(lambda: not threads[-1].is_alive())
    assert threads[0] is not threads[1]
