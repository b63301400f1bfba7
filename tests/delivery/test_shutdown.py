"""A shutdown waits for handlers, then cancels them; the next process runs cancelled handlers."""

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from starlette.types import ASGIApp
from support.deliveries import SECRET, answer_of, deliver, receiver_on, shuts_down, sqlite_url
from support.handlers import Waiting, counting, on
from support.servers import HttpSender, Site, serving
from support.stores import FaultyStore
from support.waiting import until, until_async

from hookonce import Limits, Receiver
from hookonce.events import CommentReceived
from hookonce.stores import open_store
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Claimed, delivery_key, new_token
from hookonce.testing import TestSender, make_event, signed_request

pytestmark = pytest.mark.anyio


async def test_a_shutdown_waits_for_a_running_request_and_it_is_answered(
    tmp_path: Path,
) -> None:
    receiver = receiver_on(sqlite_url(tmp_path))
    waiting = Waiting(receiver)
    async with delivering_site(receiver) as (site, sender):
        event = make_event(CommentReceived)
        answer = asyncio.create_task(sender.send(event))
        await until(lambda: waiting.began)
        stopped = asyncio.create_task(site.stop())
        await asyncio.wait({stopped}, timeout=0.2)
        assert not stopped.done()
        waiting.gate.set()
        (await answer).expect(200, "handled")
        await stopped
    await is_done(tmp_path, event)


@asynccontextmanager
async def delivering_site(app: ASGIApp) -> AsyncIterator[tuple[Site, HttpSender]]:
    async with (
        serving(app) as site,
        httpx2.AsyncClient(base_url=site.url, timeout=20, verify=False) as client,
    ):
        yield site, HttpSender(client, SECRET)


async def is_done(tmp_path: Path, event: CommentReceived) -> None:
    """Check that the next process knows the event as done."""
    await at_the_next_process(tmp_path, event, "duplicate")


async def at_the_next_process(tmp_path: Path, event: CommentReceived, reason: str) -> list[str]:
    """Deliver an event to another receiver on the same file; return the event ids it handled."""
    receiver = receiver_on(sqlite_url(tmp_path), answer_seconds=2)  # shorter than a lease
    ran = counting(receiver)
    # Register the first receiver's other handlers, too: the event needs each of them.
    for name in ("waiting", "failing"):
        receiver.on(CommentReceived, name=name)(lambda _: None)
    async with TestSender(receiver, secrets=SECRET) as sender:
        (await sender.send(event, attempt=2)).expect(200, reason)
    return ran


async def test_a_shutdown_waits_for_handlers_that_outlived_their_request(tmp_path: Path) -> None:
    receiver = receiver_on(sqlite_url(tmp_path), answer_seconds=0.1)
    waiting = Waiting(receiver)
    async with delivering_site(receiver) as (site, sender):
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(503, "still_running")
        stopped = asyncio.create_task(site.stop())
        await shuts_down(receiver)
        assert waiting.ended == []
        waiting.gate.set()
        await stopped
        assert waiting.ended == ["finished"]
    await is_done(tmp_path, event)


async def test_a_handler_that_outlives_the_drain_is_cancelled_and_released(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = receiver_on(sqlite_url(tmp_path), answer_seconds=0.1, drain_seconds=0.1)
    waiting = Waiting(receiver)
    done = counting(receiver)
    told: list[BaseException] = []
    receiver.on_error(told.append)
    async with delivering_site(receiver) as (site, sender):
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(503, "still_running")
        await site.stop()
        assert waiting.ended == ["cancelled"]
        assert done == [event.id]
    assert "handlers still running after 0.1 s: 1;" in caplog.text
    assert told == [], "a shutdown is no failure of the handler"
    receiver = receiver_on(sqlite_url(tmp_path), answer_seconds=2)  # shorter than a lease
    again, done_again = Waiting(receiver), counting(receiver)
    again.gate.set()
    async with TestSender(receiver, secrets=SECRET) as next_sender:
        (await next_sender.send(event, attempt=2)).expect(200, "handled")
    assert again.ended == ["finished"]
    assert done_again == [], "what had finished was not recorded with the release"


async def test_a_thread_that_outlives_the_drain_keeps_its_event_claimed_for_a_lease(
    tmp_path: Path,
) -> None:
    receiver = receiver_on(sqlite_url(tmp_path), drain_seconds=0.1, lease_seconds=1.5, threads=1)
    done, gate, began = counting(receiver), threading.Event(), list[str]()

    @receiver.on(CommentReceived, name="thread")
    def block(event: CommentReceived) -> None:
        began.append(event.id)
        assert gate.wait(20)

    @receiver.on(CommentReceived, name="queued")
    def queued(event: CommentReceived) -> None:
        began.append(f"queued {event.id}")

    async with TestSender(receiver, secrets=SECRET) as sender:
        event = make_event(CommentReceived)
        answer = asyncio.create_task(sender.send(event))
        await until(lambda: began and done)
        try:
            await receiver.__aexit__(None, None, None)
            (await answer).expect(503, "shutting_down")
            next_receiver = receiver_on(sqlite_url(tmp_path), answer_seconds=0.2)
            done_again = counting(next_receiver)
            next_receiver.on(CommentReceived, name="thread")(lambda event: began.append(event.id))
            next_receiver.on(CommentReceived, name="queued")(lambda _: None)
            async with TestSender(next_receiver, secrets=SECRET) as next_sender:
                (await next_sender.send(event)).expect(503, "in_flight")
                assert began == [event.id]

                async def handled() -> bool:
                    # A slow disk may outlast the answer budget; a later copy is then a duplicate.
                    return (await next_sender.send(event)).reason in {"handled", "duplicate"}

                await until_async(handled)
        finally:
            gate.set()
    assert began == [event.id, event.id], "what waited for a thread was run all the same"
    assert (done, done_again) == ([event.id], [])


async def test_a_thread_that_outlives_the_drain_leaves_its_handler_outstanding(
    tmp_path: Path,
) -> None:
    receiver = receiver_on(sqlite_url(tmp_path), drain_seconds=0.05, lease_seconds=0.3)
    done, gate, began = counting(receiver), threading.Event(), threading.Event()

    @receiver.on(CommentReceived, name="thread")
    def block(_: CommentReceived) -> None:
        began.set()
        assert gate.wait(20)

    event, store = make_event(CommentReceived), SQLiteStore(tmp_path / "hooks.db")
    try:
        async with receiver:
            answer = asyncio.create_task(deliver(receiver, event))
            await until(lambda: began.is_set() and done)
        assert (await answer).reason == "shutting_down"

        async def claimed() -> Claimed | None:
            result = await store.claim(delivery_key("default", event.id), token, 30.0)
            return result if isinstance(result, Claimed) else None

        token = new_token()
        await until_async(claimed)
        claim = await claimed()
        assert claim is not None
        assert claim.finished == {"counting"}
        assert claim.outstanding == {"thread"}
    finally:
        gate.set()
        await store.aclose()


@pytest.mark.parametrize("fails", [False, True])
async def test_a_thread_that_ends_while_others_are_cancelled_counts_with_its_result(
    tmp_path: Path, fails: bool
) -> None:
    receiver = receiver_on(sqlite_url(tmp_path), drain_seconds=0.05)
    gate, ended, began = threading.Event(), threading.Event(), list[str]()

    @receiver.on(CommentReceived, name="thread")
    def block(event: CommentReceived) -> None:
        began.append(event.id)
        assert gate.wait(20)
        ended.set()
        if fails:
            raise ValueError("x")

    @receiver.on(CommentReceived, name="cancelled")
    async def tidy_up(_: CommentReceived) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            gate.set()
            await until(ended.is_set)
            await asyncio.sleep(0.05)  # let the loop notice the end of the thread

    async with TestSender(receiver, secrets=SECRET) as sender:
        event = make_event(CommentReceived)
        answer = asyncio.create_task(sender.send(event))
        await until(lambda: began)
        await receiver.__aexit__(None, None, None)
        (await answer).expect(503, "shutting_down")
    next_receiver = receiver_on(sqlite_url(tmp_path), answer_seconds=2)  # shorter than a lease
    next_receiver.on(CommentReceived, name="thread")(lambda event: began.append(event.id))
    next_receiver.on(CommentReceived, name="cancelled")(lambda _: None)
    async with TestSender(next_receiver, secrets=SECRET) as next_sender:
        (await next_sender.send(event)).expect(200, "handled")
    assert began == [event.id] * (2 if fails else 1)


async def test_a_handler_that_has_only_begun_in_its_thread_is_not_recorded_as_finished(
    tmp_path: Path,
) -> None:
    receiver = receiver_on(sqlite_url(tmp_path), drain_seconds=0.05)
    began = list[str]()

    async def wait(event: CommentReceived) -> None:
        began.append(event.id)
        await asyncio.Event().wait()

    receiver.on(CommentReceived, name="counting")(lambda event: wait(event))  # noqa: PLW0108 - a plain function that returns a coroutine
    event = make_event(CommentReceived)
    async with receiver:
        answer = asyncio.create_task(deliver(receiver, event))
        await until(lambda: began)
    assert (await answer).reason == "shutting_down"
    assert await at_the_next_process(tmp_path, event, "handled") == [event.id]


async def test_a_handler_that_finished_just_before_the_end_is_recorded_with_the_release(
    tmp_path: Path,
) -> None:
    receiver = receiver_on(sqlite_url(tmp_path), drain_seconds=0.01)
    waiting, done = Waiting(receiver), counting(receiver)
    async with TestSender(receiver, secrets=SECRET) as sender:
        event = make_event(CommentReceived)
        answer = asyncio.create_task(sender.send(event))
        await until(lambda: waiting.began and done)
        await receiver.__aexit__(None, None, None)  # before the next checkpoint is due
        (await answer).expect(503, "shutting_down")
    assert waiting.ended == ["cancelled"]
    assert await at_the_next_process(tmp_path, event, "handled") == []


async def test_a_receiver_accepts_no_delivery_during_its_shutdown(tmp_path: Path) -> None:
    receiver = receiver_on(sqlite_url(tmp_path))
    waiting = Waiting(receiver)
    async with TestSender(receiver, secrets=SECRET) as sender:
        first = asyncio.create_task(sender.send(make_event(CommentReceived)))
        await until(lambda: waiting.began)
        closing = asyncio.create_task(receiver.__aexit__(None, None, None))
        await shuts_down(receiver)
        answer = (await sender.send(make_event(CommentReceived))).expect(503, "shutting_down")
        assert int(answer.headers["retry-after"]) >= 1
        assert len(waiting.began) == 1
        waiting.gate.set()
        (await first).expect(200, "handled")
        await closing


async def test_a_delivery_that_claims_while_the_receiver_shuts_down_runs_nothing(
    tmp_path: Path,
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver = Receiver(secrets=SECRET, store=store)
    ran = counting(receiver)
    request = signed_request(event := make_event(CommentReceived), SECRET)
    gate = store.hang("claim")
    async with receiver:
        outcome = asyncio.create_task(receiver.handle(request.body, request.headers))
        await until(lambda: store.calls["claim"])
        asyncio.get_running_loop().call_later(0.1, gate.set)
    assert gate.is_set(), "the shutdown did not wait for the claim"
    assert (await outcome).reason == "shutting_down"
    assert ran == []
    await store.aclose()
    await at_the_next_process(tmp_path, event, "handled")


async def test_a_shutdown_does_not_cut_off_a_release(tmp_path: Path) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    limits = Limits(answer_seconds=0.1, drain_seconds=0.1)
    receiver = Receiver(secrets=SECRET, store=store, limits=limits)

    @receiver.on(CommentReceived, name="failing")
    async def fail(_: CommentReceived) -> None:
        raise ValueError("x")

    gate = store.hang("release")
    async with TestSender(receiver, secrets=SECRET) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(503, "still_running")
        assert store.calls["release"] == 1
        asyncio.get_running_loop().call_later(0.4, gate.set)
    assert await at_the_next_process(tmp_path, event, "handled") == [event.id]


async def test_a_cancelled_attempt_whose_release_fails_leaves_its_lease_to_run_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    limits = Limits(answer_seconds=0.1, drain_seconds=0.1, lease_seconds=0.5)
    receiver = Receiver(secrets=SECRET, store=store, limits=limits)
    waiting = Waiting(receiver)
    async with TestSender(receiver, secrets=SECRET) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(503, "still_running")
        store.failures["release"] = -1
    assert waiting.ended == ["cancelled"]
    assert "its lease will run out" in caplog.text
    assert await at_the_next_process(tmp_path, event, "handled") == [event.id]


async def test_a_shutdown_releases_an_event_although_the_store_fails_once(store_url: str) -> None:
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


async def test_a_cancelled_shutdown_still_closes_the_store(tmp_path: Path) -> None:
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


def test_when_the_loop_ends_a_running_thread_keeps_its_event_for_its_lease(
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


@pytest.fixture
def collected() -> Iterator[None]:
    """Collect the tasks of a closed loop, which would log errors in a later test."""
    yield
    gc.collect()


@pytest.mark.usefixtures("collected")
def test_an_event_left_running_in_a_closed_loop_is_handled_in_the_next_loop(tmp_path: Path) -> None:
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

            await until_async(is_handled)  # if an answer comes too late, the next copy gets it
            assert await receiver.idle(20)

    asyncio.run(deliver_until_handled())
    assert (mailed, booked) == ([event.id], 2 * [event.id])
