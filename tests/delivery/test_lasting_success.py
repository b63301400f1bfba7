"""A success is never forgotten."""

import asyncio
import time

import pytest
from support.deliveries import answer_of, deliver, empty_inbox, nothing_in_flight, receiver_on
from support.handlers import on
from support.stores import FaultyInboxStore, FaultyStore
from support.waiting import until

from hookonce import Inbox
from hookonce.events import CommentReceived
from hookonce.stores import open_store
from hookonce.stores.protocols import InboxStore
from hookonce.stores.values import Claimed
from hookonce.testing import make_event

pytestmark = pytest.mark.anyio


@pytest.mark.sample(1)
async def test_inline_a_success_beside_a_failure_is_remembered_through_a_long_outage(
    store_url: str,
) -> None:
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
        assert answer_of(await deliver(receiver, event)) == (503, "store_unavailable")
        await until(lambda: store.calls["release"] >= 4)  # three pauses outlast the lease
        fails.clear()
        retry = await deliver(receiver, event, attempt=2)
        assert answer_of(retry) == (200, "handled")
    assert ran.count("mail") == 1
    assert ran[-1] == "book"
    assert ran.count("book") <= 2


@pytest.mark.sample(1)
async def test_another_process_learns_of_a_success_once_the_store_is_back(
    durable_url: str,
) -> None:
    store = FaultyStore(open_store(durable_url, clock=time.time))
    here, there = receiver_on(store, lease_seconds=0.2), receiver_on(durable_url)
    ran = list[str]()

    async def mail(_: CommentReceived) -> None:
        ran.append("mail")

    async def fail(_: CommentReceived) -> None:
        raise ValueError("not here")

    async def book(_: CommentReceived) -> None:
        ran.append("book")

    for receiver, handler in ((here, fail), (there, book)):
        on(receiver, "mail", mail)
        on(receiver, "book", handler)
    async with here, there:
        event = make_event(CommentReceived)
        store.failures |= {"release": -1, "extend": -1}
        await deliver(here, event)
        await until(lambda: store.calls["release"] >= 4)
        store.failures.clear()
        calls = store.calls["release"]
        await until(lambda: store.calls["release"] > calls)
        await nothing_in_flight(durable_url)
        assert answer_of(await deliver(there, event, attempt=2)) == (200, "handled")
    assert sorted(ran) == ["book", "mail"]


@pytest.mark.sample(1)
async def test_in_the_inbox_a_success_beside_a_failure_is_remembered_through_a_long_outage(
    durable_url: str,
) -> None:
    inner = open_store(durable_url, clock=time.time)
    assert isinstance(inner, InboxStore)
    store = FaultyInboxStore(inner)
    receiver = receiver_on(store, inbox=Inbox(backoff=0.0), lease_seconds=0.2)
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
        store.failures |= {"retry": -1, "extend": -1, "fetch": 0}
        assert answer_of(await deliver(receiver, event)) == (202, "stored")
        await until(lambda: store.calls["retry"] >= 4)
        fails.clear()
        store.failures.clear()
        await empty_inbox(receiver)
    assert ran.count("mail") == 1


@pytest.mark.sample(1)
async def test_a_success_is_remembered_if_the_retry_cannot_be_claimed(store_url: str) -> None:
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
        await until(lambda: store.calls["release"] >= 4)  # three pauses outlast the lease
        store.failures["claim"] = 1
        retry = await deliver(receiver, event, attempt=2)
        assert answer_of(retry) == (503, "store_unavailable")
        releases = store.calls["release"]
        await until(lambda: store.calls["release"] >= releases + 2)  # the retry's lease has run out
        fails.clear()
        retry = await deliver(receiver, event, attempt=3)
        assert answer_of(retry) == (200, "handled")
    assert sorted(ran) == ["book", "book", "mail"]


async def test_a_success_is_recorded_although_the_store_raises_another_error_than_its_own(
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


async def test_a_copy_of_a_handled_event_that_cannot_be_recorded_is_answered_at_once(
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
        copy = await asyncio.wait_for(
            deliver(receiver, event, attempt=2), 4
        )  # much earlier than the answer budget of 8 s
        assert answer_of(copy) == (200, "duplicate")
        store.failures.clear()
