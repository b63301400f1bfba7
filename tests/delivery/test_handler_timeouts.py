"""A handler beyond its time limit is cancelled, or reported if it cannot be cancelled."""

import asyncio
import threading
from pathlib import Path

import pytest
from support.deliveries import is_done, is_unready
from support.handlers import Handlers
from support.waiting import until, until_async

from hookonce import Limits, Receiver
from hookonce.events import CommentReceived
from hookonce.stores.sqlite import SQLiteStore
from hookonce.testing import make_event
from hookonce.testing.pytest_plugin import SenderFactory

pytestmark = pytest.mark.anyio


async def test_an_async_handler_beyond_its_time_limit_is_cancelled_and_failed(
    webhook_secret: str, webhook_sender: SenderFactory
) -> None:
    limits = Limits(handler_timeout_seconds=0.05)
    receiver = Receiver(secrets=webhook_secret, store="memory://", limits=limits)
    ends: list[str] = []
    told: list[ExceptionGroup[Exception]] = []
    receiver.on_error(told.append)

    @receiver.on(CommentReceived)
    async def endless(_: CommentReceived) -> None:
        if ends:
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(500, "handler_failed")
        assert ends == ["cancelled"]
        await until(lambda: told)
        [error] = told[0].exceptions
        assert isinstance(error, TimeoutError)
        assert "0.05 s" in str(error)
        (await sender.send(event)).expect(200, "handled")


async def test_a_sync_handler_beyond_its_time_limit_keeps_its_event_and_is_reported(
    tmp_path: Path,
    webhook_secret: str,
    webhook_sender: SenderFactory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = Limits(handler_timeout_seconds=0.05, lease_seconds=0.4, answer_seconds=0.2)
    store = SQLiteStore(tmp_path / "hooks.db")
    receiver = Receiver(secrets=webhook_secret, store=store, limits=limits)
    gate, ran = threading.Event(), list[str]()

    @receiver.on(CommentReceived)
    def endless(event: CommentReceived) -> None:
        ran.append(event.id)
        assert gate.wait(20)

    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        try:
            (await sender.send(event)).expect(503, "still_running")
            await until(lambda: "more than 0.05 s" in caplog.text)
            [problem] = (await receiver.check()).problems
            assert "beyond their time limit: 1" in problem
            # The first lease has ended long ago, but no other attempt gets the event.
            for _ in range(4):
                (await sender.send(event)).expect(503, "in_flight")
        finally:
            gate.set()
        await until_async(lambda: is_done(sender, event))
        assert ran == [event.id]
        assert (await receiver.check()).ready


async def test_the_time_limit_of_a_sync_handler_does_not_run_while_it_waits_for_a_thread(
    webhook_secret: str, webhook_sender: SenderFactory, tmp_path: Path
) -> None:
    limits = Limits(handler_timeout_seconds=0.05, threads=1, answer_seconds=5)
    store = SQLiteStore(tmp_path / "hooks.db")
    receiver = Receiver(secrets=webhook_secret, store=store, limits=limits)
    gate, ran = threading.Event(), list[str]()

    @receiver.on(CommentReceived)
    def slow(event: CommentReceived) -> None:
        ran.append(event.id)
        assert gate.wait(20)

    async with webhook_sender(receiver) as sender:
        events = [make_event(CommentReceived) for _ in range(3)]
        sending = [asyncio.create_task(sender.send(event, attempt=9)) for event in events]
        await until_async(lambda: is_unready(receiver))
        gate.set()
        for answer in await asyncio.gather(*sending):
            answer.expect(200, "handled")
        assert sorted(ran) == sorted(event.id for event in events)


async def test_a_sync_handler_is_overdue_counted_from_its_start_in_the_thread(
    webhook_secret: str, webhook_sender: SenderFactory, tmp_path: Path
) -> None:
    limits = Limits(handler_timeout_seconds=0.3, threads=1, answer_seconds=0.1)
    store = SQLiteStore(tmp_path / "hooks.db")
    receiver = Receiver(secrets=webhook_secret, store=store, limits=limits)
    gates = {name: threading.Event() for name in ("first", "second")}
    ran = list[str]()

    @receiver.on(CommentReceived)
    def slow(event: CommentReceived) -> None:
        ran.append(event.data.text)
        assert gates[event.data.text].wait(20)

    async with webhook_sender(receiver) as sender:
        for text in gates:
            event = make_event(CommentReceived, data={"text": text})
            (await sender.send(event)).expect(503, "still_running")
        await until_async(lambda: is_unready(receiver))
        assert ran == ["first"]
        await asyncio.sleep(0.3)  # the second handler has waited longer than its time limit
        assert len(receiver._wiring.attempts.overdue) == 1
        gates["first"].set()
        await until(lambda: ran == ["first", "second"])
        assert (await receiver.check()).ready
        await until_async(lambda: is_unready(receiver))
        gates["second"].set()


async def test_a_timeout_error_raised_by_a_handler_is_its_own_failure(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    own, told = TimeoutError("the bank did not answer"), list[ExceptionGroup[Exception]]()
    receiver.on_error(told.append)
    Handlers(receiver, "a").raises["a"] = own
    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(CommentReceived))).expect(500, "handler_failed")
        await until(lambda: told)
    assert told[0].exceptions == (own,)
