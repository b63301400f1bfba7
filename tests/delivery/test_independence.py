"""Handlers of one event are independent, and each success is recorded at once."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.handlers import Handlers
from support.stores import FaultyStore
from support.waiting import until

from hookonce import Limits, Receiver
from hookonce.clock import system_clock
from hookonce.events import CommentReceived, Event
from hookonce.stores import open_store
from hookonce.stores.memory import MemoryStore
from hookonce.stores.protocols import Store
from hookonce.stores.sqlite import SQLiteStore
from hookonce.testing import make_event
from hookonce.testing.pytest_plugin import SenderFactory

pytestmark = pytest.mark.anyio


async def test_after_a_failure_all_handlers_have_run_and_only_the_failed_one_runs_again(
    any_store: str, webhook_secret: str, webhook_sender: SenderFactory
) -> None:
    receiver = Receiver(secrets=webhook_secret, store=any_store)
    handlers = Handlers(receiver, "a", "b", "c")
    handlers.raises = {"a": ValueError("x"), "c": KeyError("y")}
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(500, "handler_failed")
        assert handlers.ran() == ["a", "b", "c"]
        handlers.raises["a"] = None
        (await sender.send(event)).expect(500, "handler_failed")
        assert handlers.ran() == ["a", "c"]
        (await sender.send(event)).expect(500, "handler_failed")
        assert handlers.ran() == ["c"]
        handlers.raises["c"] = None
        (await sender.send(event)).expect(200, "handled")
        assert handlers.ran() == ["c"]
        (await sender.send(event)).expect(200, "duplicate")
        assert handlers.ran() == []


async def test_handlers_of_one_event_run_at_the_same_time(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    meeting = asyncio.Barrier(3)

    @receiver.on(CommentReceived)
    async def one(_: CommentReceived) -> None:
        await meeting.wait()

    @receiver.on("comment.received")
    async def two(_: CommentReceived) -> None:
        await meeting.wait()

    @receiver.on("comment.*")
    async def three(_: Event[Any]) -> None:
        await meeting.wait()

    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")


async def test_a_failure_does_not_cancel_a_handler_that_still_runs(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    failed, finished = asyncio.Event(), list[str]()

    @receiver.on(CommentReceived)
    async def quick(_: CommentReceived) -> None:
        failed.set()
        raise ValueError("at once")

    @receiver.on(CommentReceived)
    async def slow(event: CommentReceived) -> None:
        await failed.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        finished.append(event.id)

    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(500, "handler_failed")
        assert finished == [event.id]


class Recording(FaultyStore):
    """Notes which handlers were recorded as finished while others still ran."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.checkpoints: list[frozenset[str]] = []

    async def extend(
        self,
        claim: Any,
        finished: frozenset[str] = frozenset(),
        outstanding: frozenset[str] = frozenset(),
    ) -> Any:
        self.checkpoints.append(finished)
        return await super().extend(claim, finished, outstanding)


async def test_a_success_is_recorded_while_another_handler_still_runs(
    any_store: str, webhook_secret: str, webhook_sender: SenderFactory
) -> None:
    store = Recording(open_store(any_store, clock=system_clock))
    receiver = Receiver(secrets=webhook_secret, store=store)
    gates = {name: asyncio.Event() for name in ("a", "b", "c")}
    for name, gate in gates.items():
        receiver.on(CommentReceived, name=name)(partial(_wait_for, gate))
    async with webhook_sender(receiver) as sender:
        answer = asyncio.create_task(sender.send(make_event(CommentReceived)))
        gates["b"].set()
        await until(lambda: store.checkpoints == [{"b"}])
        gates["a"].set()
        await until(lambda: store.checkpoints == [{"b"}, {"a", "b"}])
        gates["c"].set()
        (await answer).expect(200, "handled")


async def _wait_for(gate: asyncio.Event, _: CommentReceived) -> None:
    await gate.wait()


async def test_a_failed_recording_of_finished_handlers_is_tried_again(
    webhook_secret: str, webhook_sender: SenderFactory
) -> None:
    store = Recording(MemoryStore())
    receiver = Receiver(secrets=webhook_secret, store=store)
    gate, open_gate = asyncio.Event(), asyncio.Event()
    open_gate.set()
    receiver.on(CommentReceived, name="a")(partial(_wait_for, open_gate))
    receiver.on(CommentReceived, name="b")(partial(_wait_for, gate))
    async with webhook_sender(receiver) as sender:
        store.failures["extend"] = 1
        answer = asyncio.create_task(sender.send(make_event(CommentReceived)))
        await until(lambda: store.checkpoints == [{"a"}, {"a"}])
        gate.set()
        (await answer).expect(200, "handled")


async def test_a_handler_that_is_registered_later_runs_at_the_next_attempt(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    handlers = Handlers(receiver, "a", "b")
    handlers.raises["b"] = ValueError("x")
    async with webhook_sender(receiver) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(500)
        assert handlers.ran() == ["a", "b"]
        handlers.raises.clear()
        late = Handlers(receiver, "late")
        (await sender.send(event)).expect(200, "handled")
        assert (handlers.ran(), late.ran()) == (["b"], ["late"])


async def test_an_attempt_whose_lease_was_lost_settles_nothing(
    tmp_path: Path,
    webhook_secret: str,
    webhook_sender: SenderFactory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    limits = Limits(lease_seconds=0.3)
    stalled = Receiver(secrets=webhook_secret, store=store, limits=limits)
    healthy = Receiver(secrets=webhook_secret, store=SQLiteStore(tmp_path / "hooks.db"))
    gate, stalled_ran, healthy_ran = asyncio.Event(), list[str](), list[str]()

    @stalled.on(CommentReceived, name="handler")
    async def stall(event: CommentReceived) -> None:
        stalled_ran.append(event.id)
        await gate.wait()
        raise ValueError("fails after its lease was lost")

    @healthy.on(CommentReceived, name="handler")
    async def succeed(event: CommentReceived) -> None:
        healthy_ran.append(event.id)

    async with webhook_sender(stalled) as slow_sender, webhook_sender(healthy) as sender:
        event = make_event(CommentReceived)
        store.failures["extend"] = -1
        slow = asyncio.create_task(slow_sender.send(event))
        await until(lambda: stalled_ran)
        (await sender.send(event)).expect(200, "handled")  # after the slow attempt's lease
        store.failures.clear()
        await until(lambda: "was lost" in caplog.text)
        gate.set()
        (await slow).expect(503, "in_flight")
        (await sender.send(event)).expect(200, "duplicate")
        (await slow_sender.send(event)).expect(200, "duplicate")
    assert (len(stalled_ran), len(healthy_ran)) == (1, 1)


async def test_one_failed_extension_does_not_lose_a_short_lease(
    tmp_path: Path, webhook_secret: str, webhook_sender: SenderFactory
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    limits = Limits(lease_seconds=1.2, answer_seconds=2.5)
    receiver = Receiver(secrets=webhook_secret, store=store, limits=limits)
    other = Receiver(
        secrets=webhook_secret, store=SQLiteStore(tmp_path / "hooks.db"), limits=limits
    )
    gate, ran = asyncio.Event(), list[str]()

    @receiver.on(CommentReceived, name="handler")
    async def wait(_: CommentReceived) -> None:
        ran.append("here")
        await gate.wait()

    @other.on(CommentReceived, name="handler")
    async def note(_: CommentReceived) -> None:
        ran.append("elsewhere")

    async with webhook_sender(receiver) as sender, webhook_sender(other) as other_sender:
        event = make_event(CommentReceived)
        store.failures["extend"] = 1
        first = asyncio.create_task(sender.send(event))
        await until(lambda: ran)
        copy = asyncio.create_task(other_sender.send(event))
        await until(lambda: store.calls["extend"] >= 3 or len(ran) > 1)
        gate.set()
        (await first).expect(200, "handled")
        (await copy).expect(200, "duplicate")
    assert ran == ["here"]


async def test_a_success_counts_even_after_its_lease_was_lost(
    tmp_path: Path, webhook_secret: str, webhook_sender: SenderFactory
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    limits = Limits(lease_seconds=0.2)
    stalled = Receiver(secrets=webhook_secret, store=store, limits=limits)
    healthy = Receiver(secrets=webhook_secret, store=SQLiteStore(tmp_path / "hooks.db"))
    gate, ran = asyncio.Event(), list[str]()

    @stalled.on(CommentReceived, name="handler")
    async def stall(_: CommentReceived) -> None:
        ran.append("stalled")
        await gate.wait()

    @healthy.on(CommentReceived, name="handler")
    async def fail(_: CommentReceived) -> None:
        ran.append("healthy")
        raise ValueError("x")

    async with webhook_sender(stalled) as slow_sender, webhook_sender(healthy) as sender:
        event = make_event(CommentReceived)
        store.failures["extend"] = -1
        slow = asyncio.create_task(slow_sender.send(event))
        await until(lambda: ran == ["stalled"])
        (await sender.send(event)).expect(500, "handler_failed")
        gate.set()
        (await slow).expect(200, "handled")
        (await sender.send(event)).expect(200, "duplicate")
    assert ran == ["stalled", "healthy"]
