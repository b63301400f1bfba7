"""The monitor notices an async handler that blocks the event loop, and names it."""

import asyncio
import logging
import threading
import time
import weakref

import pytest
from support.deliveries import SECRET
from support.waiting import PATIENCE_SECONDS, until

from hookonce import Event, Receiver
from hookonce.events import CommentReceived
from hookonce.testing import TestSender, make_event
from hookonce.watching import loop_monitor
from hookonce.watching.observers import Observers
from hookonce.watching.records import LoopBlocked, Observer

pytestmark = pytest.mark.anyio

LONG = 0.3  # three times the limit for a block


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report blocks of a tenth of a second or more; look for blocks every 20 ms."""
    monkeypatch.setattr(loop_monitor, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(loop_monitor, "BLOCKED_SECONDS", 0.1)


class Blocks(Observer):
    def __init__(self) -> None:
        self.seen: list[LoopBlocked] = []

    def loop_blocked(self, record: LoopBlocked) -> None:
        self.seen.append(record)


def query(event: Event[object]) -> None:  # noqa: ARG001 - a handler has this parameter
    """Block the loop until the monitor reports it, which takes longer on a busy machine."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    looks = LONG / loop_monitor._LOOK_SECONDS
    while all(monitor._looks < looks for monitor in list(loop_monitor._monitor_thread._monitors)):
        assert time.monotonic() < deadline
        time.sleep(0.005)


async def test_a_handler_that_blocks_the_loop_is_reported_by_its_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    blocks = Blocks()
    receiver = Receiver(secrets=SECRET, store="memory://", endpoint="shop", observers=[blocks])

    @receiver.on(CommentReceived, name="waits")
    async def waits(event: CommentReceived) -> None:  # noqa: ARG001 - a handler has this parameter
        await asyncio.sleep(LONG)

    @receiver.on(CommentReceived, name="blocks")
    async def blocked(event: CommentReceived) -> None:
        await asyncio.sleep(0)
        query(event)

    async with TestSender(receiver, secrets=SECRET) as sender:
        began = time.monotonic()
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
        seconds = time.monotonic() - began
        readiness = await receiver.check()
    [record] = blocks.seen
    assert (record.endpoint, record.handler) == ("shop", "blocks")
    assert LONG <= record.seconds <= seconds
    [line] = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert line.startswith("the handler blocks has blocked the event loop for ")
    assert "waits" not in line
    assert readiness.ready
    assert [text for text in readiness.warnings if "handler blocks has blocked" in text]


async def test_handlers_that_wait_or_run_in_threads_block_nothing() -> None:
    blocks = Blocks()
    receiver = Receiver(secrets=SECRET, store="memory://", observers=[blocks])

    @receiver.on(CommentReceived, name="thread")
    def in_thread(event: CommentReceived) -> None:  # noqa: ARG001 - a handler has this parameter
        time.sleep(LONG)

    @receiver.on(CommentReceived, name="waits")
    async def waits(event: CommentReceived) -> None:  # noqa: ARG001 - a handler has this parameter
        await asyncio.sleep(LONG)

    async with TestSender(receiver, secrets=SECRET) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
        readiness = await receiver.check()
    assert blocks.seen == []
    assert not [text for text in readiness.warnings if "blocked" in text]


async def test_an_ended_monitor_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_monitor, "_IDLE_LOOKS", 1_000_000)  # the thread keeps running
    thread, was_checked = loop_monitor._MonitorThread(), threading.Event()

    def current() -> None:
        was_checked.set()

    monitor = loop_monitor.LoopMonitor("default", Observers(), current)
    ended = weakref.ref(current)
    thread.add(monitor)
    await until(was_checked.is_set)
    thread.discard(monitor)
    del monitor, current
    await until(lambda: ended() is None)
