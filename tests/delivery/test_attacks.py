"""What an attacker has tried: faults one after the other, and steps at the worst of moments."""

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.deliveries import SECRET, deliver, receiver_on
from support.stores import FaultyInboxStore, FaultyStore
from support.waiting import until, until_async

from hookonce import Inbox, Limits, Outcome, Receiver, Reject
from hookonce.events import CommentReceived
from hookonce.operations import EventRetried, Observer
from hookonce.stores import open_store
from hookonce.stores.protocols import InboxStore
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Claimed, ClaimResult, DeliveryKey, Token
from hookonce.testing import make_event, signed_request

pytestmark = pytest.mark.anyio

T = TypeVar("T")


def answer_of(outcome: Outcome) -> tuple[int, str]:
    return int(outcome.status), str(outcome.reason)


def on(receiver: Receiver, name: str, handler: Callable[..., Any]) -> None:
    receiver.on(CommentReceived, name=name)(handler)


async def test_a_success_outlives_also_a_retry_that_could_not_be_claimed(store_url: str) -> None:
    store = FaultyStore(open_store(store_url, clock=time.time))
    receiver = receiver_on(store, lease_seconds=0.2)
    ran = list[str]()
    fails = [True]

    async def mail(_: CommentReceived) -> None:
        ran.append("mail")

    async def book(_: CommentReceived) -> None:
        ran.append("book")
        if fails:
            raise ValueError("not yet")

    on(receiver, "mail", mail)
    on(receiver, "book", book)
    async with receiver:
        event = make_event(CommentReceived)
        store.failures |= {"release": -1, "extend": -1}
        await deliver(receiver, event)
        await until(lambda: store.calls["release"] >= 4)  # 0.1 + 0.2 + 0.4 s: the lease is over
        store.failures["claim"] = 1
        retry = await deliver(receiver, event, attempt=2)
        assert answer_of(retry) == (503, "store_unavailable")
        fails.clear()
        retry = await deliver(receiver, event, attempt=3)
        assert answer_of(retry) == (200, "handled")
    assert sorted(ran) == ["book", "book", "mail"]


def test_a_loop_that_ends_leaves_the_event_of_a_thread_that_goes_on_to_its_lease(
    tmp_path: Path,
) -> None:
    ran, gate = list[str](), threading.Event()

    def slow(_: CommentReceived) -> None:
        ran.append("began")
        gate.wait(20)
        ran.append("ended")

    event = make_event(CommentReceived)

    def receiving(answer_seconds: float) -> Receiver:
        url = f"sqlite:///{tmp_path}/hooks.db"
        receiver = receiver_on(url, answer_seconds=answer_seconds)
        on(receiver, "slow", slow)
        return receiver

    async def deliver_and_end() -> None:
        request = asyncio.create_task(deliver(receiving(8), event))
        await until(lambda: ran)
        assert not request.done()

    async def deliver_again() -> None:
        async with receiving(0.2) as receiver:
            retry = await deliver(receiver, event, attempt=2)
            assert answer_of(retry) == (503, "in_flight")

    try:
        asyncio.run(deliver_and_end())
        asyncio.run(deliver_again())
    finally:
        gate.set()
    assert ran == ["began"]


async def test_a_replay_runs_although_a_copy_of_the_event_waits_for_it(durable_url: str) -> None:
    class Replaying(FaultyStore):
        async def replay(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult | None:
            result = await super().replay(key, token, lease)
            copies.append(asyncio.create_task(deliver(receiver, event, attempt=2)))
            calls = self.calls["claim"]
            await until(lambda: self.calls["claim"] > calls)
            return result

    copies = list[asyncio.Task[Outcome]]()
    receiver = receiver_on(Replaying(open_store(durable_url, clock=time.time)))
    rejects = [True]

    async def book(_: CommentReceived) -> None:
        if rejects:
            raise Reject("not this one")

    on(receiver, "book", book)
    async with receiver:
        event = make_event(CommentReceived)
        assert answer_of(await deliver(receiver, event)) == (202, "rejected")
        rejects.clear()
        assert answer_of(await receiver.dead.replay(event.id)) == (200, "handled")
        assert [answer_of(await copy) for copy in copies] == [(200, "duplicate")]
    assert copies


async def test_a_claim_that_is_adopted_while_the_one_before_is_given_back_is_given_back_too(
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


async def test_a_success_is_recorded_although_the_store_raises_what_is_no_store_error(
    store_url: str,
) -> None:
    class Broken(FaultyStore):
        async def complete(self, claim: Claimed) -> None:
            self.calls["complete"] += 1
            if self.calls["complete"] == 1:
                raise TypeError("no number")
            await self.inner.complete(claim)

    receiver = receiver_on(Broken(open_store(store_url, clock=time.time)))
    ran = list[str]()

    async def book(event: CommentReceived) -> None:
        ran.append(event.id)

    on(receiver, "book", book)
    async with receiver:
        event = make_event(CommentReceived)
        assert answer_of(await deliver(receiver, event)) == (200, "handled")
        assert answer_of(await deliver(receiver, event, attempt=2)) == (200, "duplicate")
    assert ran == [event.id]


async def test_a_copy_of_what_is_handled_and_cannot_be_recorded_is_answered_at_once(
    store_url: str,
) -> None:
    store = FaultyStore(open_store(store_url, clock=time.time))
    receiver = receiver_on(store)

    async def book(_: CommentReceived) -> None: ...

    on(receiver, "book", book)
    async with receiver:
        event = make_event(CommentReceived)
        store.failures["complete"] = -1
        assert answer_of(await deliver(receiver, event)) == (200, "handled")
        copy = await asyncio.wait_for(deliver(receiver, event, attempt=2), 4)  # of 8 s
        assert answer_of(copy) == (200, "duplicate")
        store.failures.clear()


@pytest.fixture
def collected() -> Iterator[None]:
    """Collect what a closed loop has left, whose tasks log it within the test and not later."""
    yield
    gc.collect()


@pytest.mark.usefixtures("collected")
def test_what_went_on_in_a_loop_that_was_closed_is_handled_in_the_next_one(tmp_path: Path) -> None:
    receiver = receiver_on(f"sqlite:///{tmp_path}/hooks.db", lease_seconds=0.6, answer_seconds=0.1)
    mailed, booked = list[str](), list[str]()

    async def mail(event: CommentReceived) -> None:
        mailed.append(event.id)

    async def book(event: CommentReceived) -> None:
        booked.append(event.id)
        if len(booked) == 1:
            await asyncio.Event().wait()

    on(receiver, "mail", mail)
    on(receiver, "book", book)
    event = make_event(CommentReceived)
    loop = asyncio.new_event_loop()
    answer = loop.run_until_complete(deliver(receiver, event))
    assert answer_of(answer) == (503, "still_running")
    loop.close()

    async def deliver_until_handled() -> None:
        async with receiver:

            async def is_handled() -> bool:
                return (await deliver(receiver, event, attempt=2)).status == 200

            await until_async(is_handled)  # where an answer comes late, by the next copy
            assert await receiver.idle(20)

    asyncio.run(deliver_until_handled())
    assert (mailed, booked) == ([event.id], 2 * [event.id])


async def test_a_shutdown_gives_an_event_back_although_the_store_fails_once(store_url: str) -> None:
    store = FaultyStore(open_store(store_url, clock=time.time))
    receiver = receiver_on(store, drain_seconds=0.05)
    mailed, booked = list[str](), list[str]()

    async def mail(event: CommentReceived) -> None:
        mailed.append(event.id)

    async def book(event: CommentReceived) -> None:
        booked.append(event.id)
        if len(booked) == 1:
            await asyncio.Event().wait()

    on(receiver, "mail", mail)
    on(receiver, "book", book)
    event = make_event(CommentReceived)
    async with receiver:
        request = asyncio.create_task(deliver(receiver, event))
        await until(lambda: booked)
        store.failures |= {"release": 1, "extend": -1}
    assert answer_of(await request) == (503, "shutting_down")
    async with receiver:
        retry = await deliver(receiver, event, attempt=2)
        assert answer_of(retry) == (200, "handled")
    assert (mailed, booked) == ([event.id], 2 * [event.id])


async def test_a_receiver_that_is_entered_twice_serves_until_it_is_left_twice(
    tmp_path: Path,
) -> None:
    receiver = Receiver(secrets=SECRET, store=f"sqlite:///{tmp_path}/hooks.db")
    receiver.on(CommentReceived, name="note")(lambda _: None)
    async with receiver:
        async with receiver:
            pass
        request = signed_request(make_event(CommentReceived), SECRET)
        assert (await receiver.handle(request.body, request.headers)).reason == "handled"
    assert not receiver.is_open


async def test_a_shutdown_that_is_cancelled_closes_the_store_all_the_same(tmp_path: Path) -> None:
    store, limits = f"sqlite:///{tmp_path}/hooks.db", Limits(drain_seconds=0.1)
    receiver = Receiver(secrets=SECRET, store=store, limits=limits)
    gate, began = asyncio.Event(), list[str]()

    async def wait(event: CommentReceived) -> None:
        began.append(event.id)
        await gate.wait()

    receiver.on(CommentReceived, name="wait")(wait)
    await receiver.__aenter__()
    request = signed_request(make_event(CommentReceived), SECRET)
    delivery = asyncio.create_task(receiver.handle(request.body, request.headers))
    await until(lambda: began)
    closing = asyncio.create_task(receiver.__aexit__(None, None, None))
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    assert not receiver.is_open
    gate.set()
    await delivery


@pytest.mark.parametrize("cancelled", ["fetch", "wait"])
async def test_a_worker_goes_on_when_its_store_cancels_a_call(
    tmp_path: Path, cancelled: str
) -> None:
    class Cancelling(FaultyInboxStore):
        async def call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
            if name == cancelled and not self.calls[name]:
                self.calls[name] += 1
                raise asyncio.CancelledError
            return await super().call(name, call)

    store = Cancelling(SQLiteStore(tmp_path / "hooks.db"))
    receiver = Receiver(secrets=SECRET, store=store, inbox=Inbox())
    ran = list[str]()
    receiver.on(CommentReceived, name="note")(lambda event: ran.append(event.id))
    async with receiver:
        await until(lambda: store.calls[cancelled])
        request = signed_request(make_event(CommentReceived), SECRET)
        await receiver.handle(request.body, request.headers)
        await until(lambda: ran)
