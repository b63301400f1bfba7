"""A handler begins only while this process owns its event."""

import asyncio
import threading
import time
from typing import Any

import pytest
from support.deliveries import answer_of, deliver, receiver_on
from support.handlers import on
from support.stores import FaultyInboxStore, FaultyStore
from support.waiting import until

from hookonce import Inbox, Receiver
from hookonce.events import CommentReceived
from hookonce.operations import EventRetried, Observer
from hookonce.stores import open_store
from hookonce.stores.protocols import InboxStore
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Ownership
from hookonce.testing import make_event

pytestmark = pytest.mark.anyio


async def test_a_handler_does_not_begin_when_another_has_blocked_the_loop_past_the_lease(
    durable_url: str,
) -> None:
    event, ran = make_event(CommentReceived), list[str]()

    def handling(place: str, **limits: Any) -> Receiver:
        receiver = receiver_on(durable_url, **limits)

        async def first(_: CommentReceived) -> None:
            ran.append(f"first {place}")
            if place == "here":
                time.sleep(0.3)  # noqa: ASYNC251 - the stall is longer than the lease
                other = threading.Thread(target=asyncio.run, args=(deliver_there(),))
                other.start()
                other.join()

        async def second(_: CommentReceived) -> None:
            ran.append(f"second {place}")

        on(receiver, "first", first)
        on(receiver, "second", second)
        return receiver

    async def deliver_there() -> None:
        async with handling("there") as there:
            assert answer_of(await deliver(there, event, attempt=2)) == (200, "handled")

    async with handling("here", lease_seconds=0.2) as here:
        assert answer_of(await deliver(here, event)) == (503, "in_flight")
    assert ran == ["first here", "first there", "second there"]


async def test_an_event_that_another_process_has_claimed_when_its_body_is_kept_is_not_handled(
    durable_url: str,
) -> None:
    class Lost(FaultyStore):
        async def keep(self, *_: Any, **__: Any) -> Ownership:
            return Ownership.LOST

    receiver, ran = receiver_on(Lost(open_store(durable_url, clock=time.time))), list[str]()

    async def note(event: CommentReceived) -> None:
        ran.append(event.id)

    on(receiver, "note", note)
    async with receiver:
        last = await deliver(receiver, make_event(CommentReceived), attempt=9)
        assert answer_of(last) == (503, "in_flight")
    assert ran == []


@pytest.mark.sample(1)
async def test_an_event_whose_handlers_did_not_begin_costs_no_attempt_and_calls_no_error_hook(
    store_url: str,
) -> None:
    """The store fails when the attempt asks whether it still owns the event."""
    store = FaultyStore(open_store(store_url, clock=time.time))
    receiver = receiver_on(store, lease_seconds=0.3)
    attempts, told = list[int](), list[BaseException]()
    receiver.on_error(told.append)

    async def note(_: CommentReceived, context: Any) -> None:
        attempts.append(context.attempt)

    on(receiver, "note", note)
    async with receiver:
        event = make_event(CommentReceived)
        store.failures["extend"] = 1
        slow = store.hang("claim")
        first = asyncio.create_task(deliver(receiver, event))
        asyncio.get_running_loop().call_later(0.4, slow.set)
        assert answer_of(await first) == (503, "in_flight")
        store.failures.clear()
        del store.gates["claim"]
        assert answer_of(await deliver(receiver, event, attempt=2)) == (200, "handled")
    assert (attempts, told) == ([1], [])


@pytest.mark.sample(1)
async def test_a_handler_does_not_begin_when_the_loop_was_blocked_while_the_lease_was_extended(
    store_url: str,
) -> None:
    class Blocking(FaultyStore):
        async def extend(self, *arguments: Any) -> Ownership:
            ownership = await self.inner.extend(*arguments)
            time.sleep(0.4)  # noqa: ASYNC251 - the stall is longer than the lease
            return ownership

    store = Blocking(open_store(store_url, clock=time.time))
    receiver, ran = receiver_on(store, lease_seconds=0.3), list[str]()

    async def note(event: CommentReceived) -> None:
        ran.append(event.id)

    on(receiver, "note", note)
    async with receiver:
        slow = store.hang("claim")
        answer = asyncio.create_task(deliver(receiver, make_event(CommentReceived)))
        asyncio.get_running_loop().call_later(0.4, slow.set)
        assert answer_of(await answer) == (503, "in_flight")
    assert ran == []


async def test_a_success_is_recorded_although_the_store_cancels_its_call(store_url: str) -> None:
    class Cancelling(FaultyStore):
        async def complete(self, claim: Any) -> None:
            self.calls["complete"] += 1
            if self.calls["complete"] == 1:
                raise asyncio.CancelledError
            await self.inner.complete(claim)

    receiver = receiver_on(store := Cancelling(open_store(store_url, clock=time.time)))

    async def note(_: CommentReceived) -> None: ...

    on(receiver, "note", note)
    async with receiver:
        event = make_event(CommentReceived)
        assert answer_of(await deliver(receiver, event)) == (200, "handled")
        assert answer_of(await deliver(receiver, event, attempt=2)) == (200, "duplicate")
        assert await receiver.idle(5)
        assert answer_of(await deliver(receiver, event, attempt=3)) == (200, "duplicate")
    assert store.calls["complete"] == 2


async def test_a_shutdown_is_not_undone_by_a_store_call_that_times_out_at_the_same_moment(
    tmp_path: Any,
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver, ran = receiver_on(store, drain_seconds=0.05, store_seconds=0.2), list[str]()

    async def note(event: CommentReceived) -> None:
        ran.append(event.id)

    on(receiver, "note", note)
    store.hang("keep")
    async with receiver:
        event = make_event(CommentReceived)
        request = asyncio.create_task(deliver(receiver, event, attempt=9))
        await until(lambda: store.calls["keep"])
        [run] = (
            receiver._wiring.attempts._by_task.values()
        )  # the time-out and the shutdown happen in one turn of the loop
        run.enforce_limits(asyncio.get_running_loop().time() + 0.2)
        run.stop()
        assert answer_of(await request) == (503, "shutting_down")
    assert ran == []


async def test_an_attempt_that_is_cancelled_before_its_first_step_is_answered_and_forgotten() -> (
    None
):
    receiver, ran = receiver_on("memory://"), list[str]()

    async def note(event: CommentReceived) -> None:
        ran.append(event.id)

    on(receiver, "note", note)
    async with receiver:
        event, runs = make_event(CommentReceived), receiver._wiring.attempts
        request = asyncio.create_task(deliver(receiver, event))
        while not runs._by_task:  # noqa: ASYNC110 - the task begins in the next turn
            await asyncio.sleep(0)
        [task] = runs._by_task
        task.cancel()
        assert answer_of(await request) == (503, "shutting_down")
        assert await runs.wait_until_idle(1)
        assert answer_of(await deliver(receiver, event, attempt=2)) == (200, "handled")
    assert ran == [event.id]


async def test_every_attribute_of_an_attempt_is_set_from_its_beginning() -> None:
    receiver, lacking = receiver_on("memory://"), list[str]()

    async def look(_: CommentReceived) -> None:
        [attempt] = receiver._wiring.attempts._by_task.values()
        for part in (attempt, attempt.lease, attempt.answer, attempt.handling):
            lacking.extend(name for name in type(part).__slots__ if not hasattr(part, name))

    on(receiver, "look", look)
    async with receiver:
        assert answer_of(await deliver(receiver, make_event(CommentReceived)))[0] == 200
    assert lacking == []


@pytest.mark.parametrize("has_other", [False, True])
@pytest.mark.parametrize("raises", [True, False])
async def test_a_handler_that_cancels_its_own_task_fails_or_succeeds_as_it_ends(
    store_url: str, has_other: bool, raises: bool
) -> None:
    receiver, ran = receiver_on(store_url), list[str]()

    async def cancel_itself(_: CommentReceived) -> None:
        ran.append("cancelled")
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if raises and len(ran) == 1:
            raise ValueError("no")

    on(receiver, "cancels", cancel_itself)
    if has_other:
        on(receiver, "other", _succeed)
    async with receiver:
        event = make_event(CommentReceived)
        first = answer_of(await deliver(receiver, event))
        assert first == ((500, "handler_failed") if raises else (200, "handled"))
        again = answer_of(await deliver(receiver, event, attempt=2))
        assert again == ((200, "handled") if raises else (200, "duplicate"))
    assert len(ran) == (2 if raises else 1)


async def test_a_claim_adopted_while_the_earlier_claim_is_released_is_released_too(
    durable_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Retries(Observer):
        def event_retried(self, record: EventRetried) -> None:
            retried.append(record.error)

    inner = open_store(durable_url, clock=time.time)
    assert isinstance(inner, InboxStore)
    store = FaultyInboxStore(inner)
    receiver = receiver_on(store, inbox=Inbox(backoff=0.0), lease_seconds=0.3)
    retried, ran = list[str](), list[str]()
    receiver.observe(Retries())

    async def book(event: CommentReceived) -> None:
        ran.append(event.id)
        if len(ran) == 1:
            raise ValueError("not yet")

    on(receiver, "book", book)
    async with receiver:
        store.failures["extend"] = -1
        gate = store.hang("retry")
        await deliver(receiver, make_event(CommentReceived))
        await until(lambda: "is still being handled here" in caplog.text)
        del store.gates["retry"]
        gate.set()
        await until(lambda: len(ran) == 2)
    assert retried == ["book: ValueError: not yet"]


async def _succeed(_: CommentReceived) -> None: ...
