"""A watermark is recorded before everything that depends on it, however long an outage lasts.

A handler with ``latest_by`` succeeds during an outage that outlasts every lease. When the store is
back, no older event may run after it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.deliveries import (
    SECRET,
    answer_of,
    deliver,
    empty_inbox,
    receiver_on,
)
from support.redis_proxy import proxy_to
from support.redis_servers import RedisServer
from support.sqlite_files import sqlite_connection
from support.stores import FaultyStore
from support.waiting import until, until_async
from support.watermarks import WatchingInboxStore, WatchingStore

from hookonce import Inbox, Limits, Outcome, Receiver, Reject
from hookonce.events import ChannelUnhealthy
from hookonce.stores import open_store
from hookonce.stores.memory import MemoryStore
from hookonce.stores.protocols import InboxStore
from hookonce.testing import make_event

pytestmark = pytest.mark.anyio

NOON = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
LIMITS: dict[str, Any] = {"lease_seconds": 0.4, "store_seconds": 0.3, "answer_seconds": 0.5}
UNSENT = "its watermark could not be recorded before the lease ended"


def channel_event(minute: float, channel: str = "chan_1") -> ChannelUnhealthy:
    return make_event(
        ChannelUnhealthy, created_at=NOON + timedelta(minutes=minute), data={"id": channel}
    )


class Latest:
    """A handler with ``latest_by`` that waits for ``may_end``, and then notes its success."""

    def __init__(
        self, receiver: Receiver, store: WatchingStore, *, in_thread: bool = False
    ) -> None:
        self.ids: list[str] = []
        self.may_end = threading.Event()
        self._store = store
        receiver.on("channel.unhealthy", name="latest", latest_by=lambda event: event.data.id)(
            self._in_thread if in_thread else self._in_loop
        )

    async def _in_loop(self, event: ChannelUnhealthy) -> None:
        self.ids.append(event.id)
        await until(self.may_end.is_set)
        self._store.success(event, "latest", event.data.id)

    def _in_thread(self, event: ChannelUnhealthy) -> None:
        self.ids.append(event.id)
        assert self.may_end.wait(20)
        self._store.success(event, "latest", event.data.id)


class Outage:
    """A store that a test can cut off; each kind of store has its own way."""

    def __init__(
        self,
        store: WatchingStore,
        begin: Callable[[], object],
        end: Callable[[], object],
        url: str = "",
    ) -> None:
        self.store = store
        self.begin = begin
        self.end = end
        self.url = url


@asynccontextmanager
async def outage_of(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[Outage]:
    if kind == "memory":  # a memory store has no outages, so simulate one
        store = WatchingStore(MemoryStore())
        yield Outage(
            store,
            lambda: setattr(store, "is_away", True),
            lambda: setattr(store, "is_away", False),
        )
    elif kind == "sqlite":
        file: Path = request.getfixturevalue("tmp_path") / "hooks.db"
        other = sqlite_connection(file)
        url = f"sqlite:///{file}"
        yield Outage(
            _watching(url),
            lambda: other.execute("BEGIN IMMEDIATE"),
            lambda: other.execute("ROLLBACK"),
            url,
        )
        other.close()
    else:
        server: RedisServer = request.getfixturevalue("valkey")
        async with proxy_to(server.port) as proxy:
            store = _watching(proxy.url)
            yield Outage(store, proxy.swallow_everything, proxy.recover, server.url)


def _watching(url: str) -> WatchingInboxStore:
    store = open_store(url, clock=time.time)
    assert isinstance(store, InboxStore)
    return WatchingInboxStore(store)


@pytest.fixture(params=["memory", "sqlite", "valkey"])
async def outage(request: pytest.FixtureRequest) -> AsyncIterator[Outage]:
    async with outage_of(request.param, request) as one:
        yield one


@pytest.fixture(params=["sqlite", "valkey"])
async def durable_outage(request: pytest.FixtureRequest) -> AsyncIterator[Outage]:
    async with outage_of(request.param, request) as one:
        yield one


async def accepted(receiver: Receiver, event: ChannelUnhealthy) -> tuple[int, str]:
    """Deliver an event until it is accepted, as the sender would; return the answer."""
    outcomes: list[Outcome] = []

    async def is_accepted() -> bool:
        outcomes.append(await deliver(receiver, event, 2))
        return outcomes[-1].status < 300

    await until_async(is_accepted, what="an answer of 2xx")
    return answer_of(outcomes[-1])


@pytest.mark.sample(2)
@pytest.mark.parametrize("in_thread", [False, True])
async def test_inline_no_older_event_runs_after_an_outage_longer_than_a_lease(
    outage: Outage, in_thread: bool, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = receiver_on(outage.store, **LIMITS)
    latest = Latest(receiver, outage.store, in_thread=in_thread)
    older, newer = channel_event(1), channel_event(2)
    async with receiver:
        answer = asyncio.create_task(deliver(receiver, newer))
        await until(lambda: latest.ids)
        outage.begin()
        latest.may_end.set()
        assert answer_of(await answer) == (503, "still_running")
        await until(lambda: UNSENT in caplog.text)
        assert (await deliver(receiver, older)).status == 503
        outage.end()
        assert await accepted(receiver, older) == (200, "stale")
        assert await accepted(receiver, newer) == (200, "duplicate")
    assert latest.ids == [newer.id]
    assert outage.store.violations == []


@pytest.mark.sample(1)
async def test_in_the_inbox_no_older_event_runs_after_an_outage_longer_than_a_lease(
    durable_outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    store = durable_outage.store
    receiver = receiver_on(store, inbox=Inbox(backoff=0.0), **LIMITS)
    latest = Latest(receiver, store)
    older, newer = channel_event(1), channel_event(2)
    async with receiver:
        assert await accepted(receiver, newer) == (202, "stored")
        await until(lambda: latest.ids)
        assert await accepted(receiver, older) == (202, "stored")
        durable_outage.begin()
        latest.may_end.set()
        await until(lambda: UNSENT in caplog.text)
        durable_outage.end()
        await until(lambda: store.is_recorded(newer, "latest"))
        await empty_inbox(receiver)
        assert await receiver.dead.list() == []
    assert latest.ids == [newer.id]
    assert store.violations == []


@pytest.mark.sample(1)
async def test_a_worker_of_another_process_skips_the_older_event_too(
    durable_outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker fetches the newer event after that event's lease, and finds the watermark."""
    store = durable_outage.store
    here, there = (
        receiver_on(one, inbox=Inbox(backoff=0.0, embedded=False), **LIMITS)
        for one in (store, _watching(durable_outage.url))
    )
    latest, other = Latest(here, store), Latest(there, WatchingStore(MemoryStore()))
    older, newer = channel_event(1), channel_event(2)
    async with here.working():
        assert await accepted(here, newer) == (202, "stored")
        await until(lambda: latest.ids)
        durable_outage.begin()
        latest.may_end.set()
        other.may_end.set()
        await until(lambda: UNSENT in caplog.text)
        durable_outage.end()
        await until(lambda: store.is_recorded(newer, "latest"))
        async with there.working():
            assert await accepted(there, older) == (202, "stored")
            await empty_inbox(there)
    assert (latest.ids, other.ids) == ([newer.id], [])
    assert store.violations == []


async def test_no_checkpoint_records_the_success_before_its_watermark() -> None:
    store = WatchingStore(MemoryStore())
    receiver = receiver_on(store, lease_seconds=0.3)
    latest, may_end = Latest(receiver, store), asyncio.Event()
    older, newer = channel_event(1), channel_event(2)
    latest.may_end.set()

    @receiver.on(ChannelUnhealthy, name="quick")
    async def quick(_: ChannelUnhealthy) -> None: ...

    @receiver.on(ChannelUnhealthy, name="slow")
    async def slow(event: ChannelUnhealthy) -> None:
        if event.id == newer.id:
            await may_end.wait()

    store.failures["release_key_lock"] = -1
    async with receiver:
        answer = asyncio.create_task(deliver(receiver, newer))
        await until(lambda: store.calls["release_key_lock"] >= 2 and store.calls["extend"] >= 4)
        assert answer_of(await deliver(receiver, older)) == (503, "store_unavailable")
        may_end.set()
        store.failures.clear()
        assert answer_of(await answer) == (200, "handled")
        assert await accepted(receiver, older) == (200, "stale")
    assert latest.ids == [newer.id]
    assert store.violations == []


async def test_an_older_event_whose_key_lock_is_granted_while_a_newer_one_succeeds_is_skipped() -> (
    None
):
    """The older event asks for the lock when the newer event's lease has ended, but not its run."""
    now = [NOON.timestamp()]
    store = WatchingStore(MemoryStore(clock=lambda: now[0]))
    receiver = receiver_on(store)
    latest, older, newer = Latest(receiver, store), channel_event(1), channel_event(2)
    async with receiver:
        newer_answer = asyncio.create_task(deliver(receiver, newer))
        await until(lambda: latest.ids)
        now[0] += 31.0
        may_be_granted, asked = store.hang("acquire_key_lock"), store.calls["acquire_key_lock"]
        older_answer = asyncio.create_task(deliver(receiver, older))
        await until(lambda: store.calls["acquire_key_lock"] > asked)
        store.failures["release_key_lock"] = 1
        latest.may_end.set()
        await until(lambda: store.calls["release_key_lock"])
        may_be_granted.set()
        assert answer_of(await older_answer) == (200, "stale")
        assert answer_of(await newer_answer) == (200, "handled")
    assert latest.ids == [newer.id]
    assert store.violations == []


async def test_a_reply_that_was_lost_only_repeats_the_watermark() -> None:
    store = WatchingStore(MemoryStore())
    receiver = receiver_on(store, **LIMITS)
    latest = Latest(receiver, store)
    older, newer = channel_event(1), channel_event(2)
    async with receiver:
        answer = asyncio.create_task(deliver(receiver, newer))
        await until(lambda: latest.ids)
        store.loses_replies = True
        latest.may_end.set()
        assert answer_of(await answer) == (503, "still_running")
        store.loses_replies = False
        assert await accepted(receiver, older) == (200, "stale")
        assert await accepted(receiver, newer) == (200, "duplicate")
    assert latest.ids == [newer.id]
    assert store.violations == []


@pytest.mark.sample(1)
async def test_a_replay_that_is_cancelled_in_an_outage_leaves_its_watermark_to_the_process(
    durable_outage: Outage,
) -> None:
    store = durable_outage.store
    receiver, other = receiver_on(store, **LIMITS), Receiver(secrets=SECRET, store=store)
    latest, newer = Latest(receiver, store), channel_event(2)

    @other.on("channel.unhealthy", name="latest")
    async def reject(_: ChannelUnhealthy) -> None:
        raise Reject("not yet")

    async with receiver:
        assert answer_of(await deliver(other, newer)) == (202, "rejected")
        replay = asyncio.create_task(receiver.dead.replay(newer.id))
        await until(lambda: latest.ids)
        durable_outage.begin()
        latest.may_end.set()
        await until(lambda: store.calls["release_key_lock"])
        replay.cancel()
        with pytest.raises(asyncio.CancelledError):
            await replay
        assert not store.is_recorded(newer, "latest")
        durable_outage.end()
        await until(lambda: store.is_recorded(newer, "latest"))
    assert latest.ids == [newer.id]
    assert store.violations == []


class TestShutdown:
    async def test_a_release_when_the_store_returns_writes_its_watermark_first(
        self, outage: Outage
    ) -> None:
        store = outage.store
        receiver = receiver_on(store, drain_seconds=0.1, **LIMITS)
        latest = Latest(receiver, store)
        older, newer = channel_event(1), channel_event(2)
        async with receiver:
            answer = asyncio.create_task(deliver(receiver, newer))
            await until(lambda: latest.ids)
            outage.begin()
            latest.may_end.set()
            await until(lambda: store.calls["release_key_lock"] >= 1)
            asyncio.get_running_loop().call_later(0.2, outage.end)
        assert (await answer).status == 503
        assert store.is_recorded(newer, "latest")
        following = receiver_on(store, **LIMITS)
        ran = Latest(following, store).ids
        async with following:
            assert await accepted(following, older) == (200, "stale")
            assert await accepted(following, newer) == (200, "handled")
        assert (latest.ids, ran) == ([newer.id], [])
        assert store.violations == []

    async def test_a_process_that_ends_in_an_outage_records_neither_success_nor_watermark(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        inner = MemoryStore()
        store = WatchingStore(inner)
        receiver = receiver_on(store, drain_seconds=0.1, **LIMITS)
        latest, newer = Latest(receiver, store), channel_event(2)
        async with receiver:
            answer = asyncio.create_task(deliver(receiver, newer))
            await until(lambda: latest.ids)
            store.is_away = True
            latest.may_end.set()
            await until(lambda: UNSENT in caplog.text)
        assert (await answer).status == 503
        assert "could not be recorded before the shutdown" in caplog.text
        following = receiver_on(FaultyStore(inner), **LIMITS)
        ran: list[str] = []
        following.on(ChannelUnhealthy, name="latest", latest_by=lambda event: event.data.id)(
            lambda event: ran.append(event.id)
        )
        async with following:
            assert await accepted(following, newer) == (200, "handled")
        assert ran == [newer.id]
        assert store.violations == []

    async def test_a_reopened_receiver_sends_an_unsent_watermark_at_its_next_delivery(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = WatchingStore(MemoryStore())
        receiver = receiver_on(store, drain_seconds=0.1, **LIMITS)
        latest, newer = Latest(receiver, store), channel_event(2)
        async with receiver:
            answer = asyncio.create_task(deliver(receiver, newer))
            await until(lambda: latest.ids)
            store.is_away = True
            latest.may_end.set()
            await until(lambda: UNSENT in caplog.text)
        assert (await answer).status == 503
        store.is_away = False
        async with receiver:
            assert await accepted(receiver, channel_event(1, "chan_2")) == (200, "handled")
            await until(lambda: store.is_recorded(newer, "latest"))
            assert await accepted(receiver, newer) == (200, "handled")
        assert latest.ids.count(newer.id) == 1
        assert store.violations == []

    async def test_the_watermark_of_a_thread_is_recorded_before_an_extension_records_its_success(
        self,
    ) -> None:
        store = WatchingStore(MemoryStore())
        receiver = receiver_on(store, drain_seconds=0.1)
        latest = Latest(receiver, store, in_thread=True)
        older, newer = channel_event(1), channel_event(2)
        async with receiver:
            answer = asyncio.create_task(deliver(receiver, newer))
            await until(lambda: latest.ids)
            extension, asked = store.hang("acquire_key_lock"), store.calls["acquire_key_lock"]

            async def let_it_succeed() -> None:
                await until(lambda: store.calls["acquire_key_lock"] > asked)
                latest.may_end.set()
                await until(lambda: (newer.id, "latest") in store._succeeded)
                extension.set()

            succeeding = asyncio.create_task(let_it_succeed())
        await succeeding
        assert answer_of(await answer) == (503, "shutting_down")
        following = receiver_on(store)
        ran = Latest(following, store).ids
        async with following:
            assert await accepted(following, older) == (200, "stale")
            assert await accepted(following, newer) == (200, "handled")
        assert ran == []
        assert store.violations == []


def test_an_event_loop_that_is_closed_leaves_the_watermark_to_the_next_one() -> None:
    store = WatchingStore(MemoryStore())
    receiver = Receiver(secrets=SECRET, store=store, limits=Limits(**LIMITS))
    latest, newer = Latest(receiver, store), channel_event(2)

    async def succeed_in_an_outage() -> None:
        asyncio.create_task(deliver(receiver, newer))  # noqa: RUF006 - the event loop ends before the task
        await until(lambda: latest.ids)
        store.is_away = True
        latest.may_end.set()
        await until(lambda: store.calls["release_key_lock"])

    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    first.run_until_complete(succeed_in_an_outage())
    first.close()
    store.is_away = False

    async def next_deliveries() -> None:
        async with receiver:
            assert await accepted(receiver, channel_event(1, "chan_2")) == (200, "handled")
            await until(lambda: store.is_recorded(newer, "latest"))
            assert await accepted(receiver, channel_event(1)) == (200, "stale")
            assert await accepted(receiver, newer) == (200, "handled")

    second.run_until_complete(next_deliveries())
    second.close()
    assert latest.ids.count(newer.id) == 1
    assert store.violations == []
