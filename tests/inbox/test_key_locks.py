"""Events that wait for a key lock use up no attempt, and a release makes the next event due.

A key lock lets one call of a handler at a time run for a key. A due event may be fetched.
"""

from __future__ import annotations

import asyncio
import logging
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.deliveries import SECRET, answer_of, deliver, empty_inbox, receiver_on, sqlite_url
from support.postgres import PostgresServer
from support.redis_servers import RedisServer
from support.stores import FaultyInboxStore
from support.waiting import until, until_async

from hookonce import Backoff, Context, Inbox, Receiver, Retry
from hookonce.events import ChannelUnhealthy, CommentReceived, Event
from hookonce.operations import EventDeferred, EventFetched, EventRetried, Observer
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import (
    Acquired,
    Busy,
    DeadReason,
    EnqueueResult,
    KeyLock,
    Watermark,
    delivery_key,
    new_token,
)
from hookonce.testing import make_event

pytestmark = pytest.mark.anyio

SOON = Inbox(backoff=Backoff(first_seconds=0.01, factor=1, jitter=0), max_attempts=3)
KEY_LOCK = KeyLock("default", "serial", "post_1")
NOON = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


class Serial:
    """A handler of comments with one run at a time for each post; a test can make it wait."""

    def __init__(self, receiver: Receiver) -> None:
        self.attempts: list[tuple[str, int]] = []
        self.at_once = self.most_at_once = 0
        self.key_lock = asyncio.Event()
        self.key_lock.set()
        receiver.on(CommentReceived, name="serial", serial_by=lambda event: event.data.post_id)(
            self
        )

    async def __call__(self, event: CommentReceived, context: Context) -> None:
        self.attempts.append((event.id, context.attempt))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.key_lock.wait()
        self.at_once -= 1


class Steps(Observer):
    def __init__(self) -> None:
        self.parked: list[EventDeferred] = []
        self.retried: list[EventRetried] = []
        self.fetched = 0

    def event_deferred(self, record: EventDeferred) -> None:
        self.parked.append(record)

    def event_retried(self, record: EventRetried) -> None:
        self.retried.append(record)

    def event_fetched(self, _: EventFetched) -> None:
        self.fetched += 1


def comment(post: str = "post_1") -> CommentReceived:
    return make_event(CommentReceived, data={"postId": post})


async def stored(receiver: Receiver, event: Event[Any]) -> None:
    assert answer_of(await deliver(receiver, event)) == (202, "stored")


@pytest.fixture(params=["sqlite", "valkey", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return sqlite_url(tmp_path)
    if request.param == "postgres":
        database: PostgresServer = request.getfixturevalue("postgres")
        return database.url
    server: RedisServer = request.getfixturevalue("shared_valkey")
    server.flush()
    return server.url


# PostgreSQL does not return an event whose key is locked, so no worker defers it.
@pytest.mark.parametrize("url", ["sqlite", "valkey"], indirect=True)
async def test_an_event_whose_key_is_locked_is_deferred_uncounted_and_woken_when_the_key_is_free(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="hookonce")
    receiver, steps = receiver_on(url, inbox=SOON), Steps()
    handler = Serial(receiver)
    receiver.observe(steps)
    handler.key_lock.clear()
    first, second = comment(), comment()
    async with receiver:
        await stored(receiver, first)
        await until(lambda: handler.at_once)
        await stored(receiver, second)
        await until(lambda: steps.parked)
        entry = await receiver.waiting.show(second.id)
        assert entry is not None
        assert (entry.attempts, len(entry.history)) == (0, 0)
        assert entry.outstanding == {"serial"}
        taken = steps.fetched
        await asyncio.sleep(0.3)
        assert steps.fetched == taken  # the worker does not poll the store
        handler.key_lock.set()
        await asyncio.wait_for(empty_inbox(receiver), 10)  # much sooner than a lease ends
    assert handler.attempts == [(first.id, 1), (second.id, 1)]
    assert handler.most_at_once == 1
    assert steps.retried == []
    [parked] = steps.parked
    assert (parked.delivery.event_id, parked.attempt) == (second.id, 1)
    assert 0 < parked.after_seconds <= 30
    assert "not begun; waits for its key lock" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.sample(2)
async def test_many_events_of_few_keys_are_all_handled_one_at_a_time(url: str) -> None:
    receivers = [receiver_on(url, inbox=SOON) for _ in range(2)]
    handlers = [Serial(receiver) for receiver in receivers]
    here, elsewhere = receivers
    running: dict[str | None, str] = {}
    overlaps: list[str] = []

    for receiver in receivers:

        @receiver.on(CommentReceived, name="watched", serial_by=lambda event: event.data.post_id)
        async def watched(event: CommentReceived) -> None:
            if event.data.post_id in running:
                overlaps.append(event.id)
            running[event.data.post_id] = event.id
            await asyncio.sleep(0.001)
            del running[event.data.post_id]

    events = [comment(f"post_{n % 3}") for n in range(60)]
    async with here, elsewhere:
        await asyncio.gather(*(stored(here, event) for event in events))
        await empty_inbox(here)
    assert overlaps == []
    ran = [event_id for handler in handlers for event_id, _ in handler.attempts]
    assert sorted(ran) == sorted(event.id for event in events)
    assert {attempt for handler in handlers for _, attempt in handler.attempts} == {1}


async def test_after_events_in_any_order_the_newest_counts(url: str) -> None:
    receiver = receiver_on(url, inbox=SOON)
    status: dict[str, datetime] = {}
    failures = random.Random(3)

    @receiver.on(ChannelUnhealthy, name="latest", latest_by=lambda event: event.data.id)
    async def keep(event: ChannelUnhealthy) -> None:
        await asyncio.sleep(0)
        if failures.random() < 0.2:
            raise ConnectionError("busy")
        status[event.data.id] = event.created_at

    events = [
        make_event(
            ChannelUnhealthy,
            created_at=NOON + timedelta(seconds=n),
            data={"id": f"chan_{n % 4}"},
        )
        for n in range(80)
    ]
    random.Random(7).shuffle(events)
    async with receiver:
        await asyncio.gather(*(stored(receiver, event) for event in events))
        await empty_inbox(receiver)
        for letter in await receiver.dead.list(limit=1000):
            while (await receiver.dead.replay(letter.delivery.event_id)).status >= 300:
                pass
    assert status == {f"chan_{n}": NOON + timedelta(seconds=76 + n) for n in range(4)}


async def test_an_event_that_nobody_makes_due_waits_for_the_end_of_the_key_locks_lease(
    tmp_path: Path,
) -> None:
    store = SQLiteStore(tmp_path / "hooks.db")
    receiver = receiver_on(store, inbox=SOON)
    handler = Serial(receiver)
    async with receiver:
        assert (
            await store.acquire_key_lock(KEY_LOCK, new_token(), 0.6) == Acquired()
        )  # as if its process had died: nobody releases the key lock
        await stored(receiver, comment())
        await empty_inbox(receiver)
    assert [attempt for _, attempt in handler.attempts] == [1]


async def test_waiting_for_a_key_lock_uses_up_no_attempt(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "hooks.db")
    inbox = Inbox(backoff=0.0, max_attempts=1)
    receiver, token = receiver_on(store, inbox=inbox), new_token()
    handler, steps, event = Serial(receiver), Steps(), comment()
    receiver.observe(steps)
    async with receiver:
        await store.acquire_key_lock(KEY_LOCK, token, 60.0)
        await stored(receiver, event)
        await until(lambda: steps.parked)
        await until_async(lambda: _waits(store, event))
        called = await store.release_key_lock(KEY_LOCK, token)
        assert called == f"default:{event.id}"
        assert await store.make_due(called)
        await empty_inbox(receiver)
        assert await receiver.dead.list() == []
    assert handler.attempts == [(event.id, 1)]


async def test_an_event_that_joins_the_queue_after_the_key_lock_was_released_is_made_due(
    tmp_path: Path,
) -> None:
    """An event joins the queue only after its claim has ended, so the lock may be free by then."""
    store = FaultyInboxStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver, token = receiver_on(store, inbox=SOON), new_token()
    handler, event = Serial(receiver), comment()
    async with receiver:
        await store.acquire_key_lock(KEY_LOCK, token, 60.0)
        retry = store.hang("retry")
        await stored(receiver, event)
        await until(lambda: store.calls["retry"])
        assert await store.release_key_lock(KEY_LOCK, token) is None
        retry.set()
        await asyncio.wait_for(empty_inbox(receiver), 10)
    assert handler.attempts == [(event.id, 1)]


async def test_an_event_that_could_not_join_the_queue_is_due_when_the_lease_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyInboxStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver, event = receiver_on(store, inbox=SOON), comment()
    handler = Serial(receiver)
    async with receiver:
        await store.acquire_key_lock(KEY_LOCK, new_token(), 0.5)
        retry = store.hang("retry")
        await stored(receiver, event)
        await until(lambda: store.calls["retry"])
        store.failures["acquire_key_lock"] = 1
        retry.set()
        await empty_inbox(receiver)
    assert handler.attempts == [(event.id, 1)]
    assert warnings(caplog) == [
        (
            f"could not queue default:{event.id} for its key lock; the next attempt follows when"
            " that lock's lease ends: acquire_key_lock was told to fail"
        )
    ]


async def test_an_event_that_could_not_be_made_due_is_due_when_the_lease_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyInboxStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver, steps = receiver_on(store, inbox=SOON, lease_seconds=0.5), Steps()
    handler, first, second = Serial(receiver), comment(), comment()
    receiver.observe(steps)
    handler.key_lock.clear()
    async with receiver:
        await stored(receiver, first)
        await until(lambda: handler.at_once)
        asked = store.calls["acquire_key_lock"]
        await stored(receiver, second)
        await until(lambda: steps.parked and store.calls["acquire_key_lock"] >= asked + 2)
        store.failures["make_due"] = 1
        handler.key_lock.set()
        await empty_inbox(receiver)
    assert handler.attempts == [(first.id, 1), (second.id, 1)]
    assert warnings(caplog) == [
        "could not make the event due that waits for serial: make_due was told to fail"
    ]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


async def test_releasing_a_key_lock_wakes_the_idle_worker_of_its_own_process(
    tmp_path: Path,
) -> None:
    """The store notifies no worker of due events, so the release itself must wake the worker."""
    store = FaultyInboxStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver = receiver_on(store, inbox=SOON)
    handler, first, second = Serial(receiver), comment(), comment()
    waits_when_parked: list[int] = []

    class Parked(Observer):
        def event_deferred(self, _: EventDeferred) -> None:
            waits_when_parked.append(store.calls["wait"])

    receiver.observe(Parked())
    handler.key_lock.clear()
    store.hang("wait")
    async with receiver:
        await stored(receiver, first)
        await until(lambda: handler.at_once)
        asked = store.calls["acquire_key_lock"]
        await stored(receiver, second)
        # Wait until the event is in the queue, and the worker has fetched once more and is idle.
        await until(lambda: waits_when_parked and store.calls["acquire_key_lock"] >= asked + 2)
        await until(lambda: store.calls["wait"] > waits_when_parked[0])
        handler.key_lock.set()
        await asyncio.wait_for(empty_inbox(receiver), 10)
    assert handler.attempts == [(first.id, 1), (second.id, 1)]


async def test_a_late_event_that_was_made_due_makes_the_next_event_due(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "hooks.db")
    receiver, token, steps = receiver_on(store, inbox=SOON), new_token(), Steps()
    ran: list[str] = []
    receiver.observe(steps)
    key_lock = KeyLock("default", "latest", "chan_1")

    @receiver.on(ChannelUnhealthy, name="latest", latest_by=lambda event: event.data.id)
    async def keep(event: ChannelUnhealthy) -> None:
        ran.append(event.id)

    late, newer = (
        make_event(ChannelUnhealthy, created_at=NOON + timedelta(hours=h), data={"id": "chan_1"})
        for h in (0, 2)
    )
    noted = Watermark(int((NOON + timedelta(hours=1)).timestamp()) * 1_000_000, "evt_between")
    async with receiver:
        await store.acquire_key_lock(key_lock, token, 60.0)
        for event in (late, newer):
            await stored(receiver, event)
            await until_async(lambda event=event: _waits(store, event))  # type: ignore[misc]
        await until(lambda: len(steps.parked) == 2)
        await until_async(lambda: _both_noted(store))
        called = await store.release_key_lock(key_lock, token, watermark=noted)
        assert called == f"default:{late.id}"
        await store.make_due(called)
        await asyncio.wait_for(empty_inbox(receiver), 10)
    assert ran == [newer.id]


async def test_an_event_that_has_had_its_key_lock_is_not_woken_for_it_again(tmp_path: Path) -> None:
    """A release that woke this event again would not wake the next event in the queue."""
    store = FaultyInboxStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver, token = receiver_on(store, inbox=SOON), new_token()
    handler, other = Serial(receiver), KeyLock("default", "other", "post_1")

    @receiver.on(CommentReceived, name="other", serial_by=lambda event: event.data.post_id)
    async def run_other(_: CommentReceived) -> None: ...

    first, before, early, behind = delivery_key("default", "evt_1"), *(comment() for _ in range(3))
    async with receiver:
        for key_lock in (KEY_LOCK, other):
            await store.acquire_key_lock(key_lock, token, 60.0)
        await store.acquire_key_lock(KEY_LOCK, new_token(), 60.0, waiting=first)
        for event in (before, early, behind):
            asked = store.calls["acquire_key_lock"]
            await stored(receiver, event)
            # Two calls for each lock: the first finds it busy, the second joins its queue.
            await until(lambda asked=asked: store.calls["acquire_key_lock"] == asked + 4)  # type: ignore[misc]
        assert await store.release_key_lock(KEY_LOCK, token) == first
        assert await store.make_due(_key(early))  # a worker now tries `early` before its turn
        await until(lambda: len(handler.attempts) == 3)
        called = await store.release_key_lock(other, token)
        assert called is not None
        await store.make_due(called)
        await asyncio.wait_for(empty_inbox(receiver), 10)
    assert [event_id for event_id, _ in handler.attempts] == [early.id, before.id, behind.id]


async def test_a_real_failure_beside_a_locked_key_is_counted_and_waits_for_its_backoff(
    tmp_path: Path,
) -> None:
    store = SQLiteStore(tmp_path / "hooks.db")
    receiver, steps = receiver_on(store, inbox=SOON), Steps()
    Serial(receiver)
    receiver.observe(steps)

    @receiver.on(CommentReceived, name="fails")
    async def fails(_: CommentReceived) -> None:
        raise ConnectionError("busy")

    async with receiver:
        await store.acquire_key_lock(KEY_LOCK, new_token(), 3.0)
        event = comment()
        await stored(receiver, event)
        await until(lambda: steps.retried)
        entry = await receiver.waiting.show(event.id)
        assert entry is not None
        assert entry.attempts == 1
        assert "ConnectionError" in entry.history[0].error
        assert 0 < entry.due_unix - entry.history[0].ended_unix <= 3.0
    assert steps.parked == []


async def test_a_requested_retry_is_not_made_due_early_by_an_earlier_key_lock(
    tmp_path: Path,
) -> None:
    store = FaultyInboxStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver, steps, token = receiver_on(store, inbox=SOON), Steps(), new_token()
    other = KeyLock("default", "other", "post_1")
    Serial(receiver)
    receiver.observe(steps)

    @receiver.on(CommentReceived, name="other", serial_by=lambda event: event.data.post_id)
    async def asks_for_an_hour(_: CommentReceived) -> None:
        raise Retry(3_600)

    event = comment()
    async with receiver:
        for key_lock in (KEY_LOCK, other):
            await store.acquire_key_lock(key_lock, token, 60.0)
        asked = store.calls["acquire_key_lock"]
        await stored(receiver, event)
        # Wait until the event is in both queues: two calls for each lock.
        await until(lambda: store.calls["acquire_key_lock"] == asked + 4)
        assert await store.release_key_lock(other, token) == _key(event)
        await store.make_due(_key(event))
        await until(lambda: steps.retried)
        assert await store.release_key_lock(KEY_LOCK, token) is None
        entry = await receiver.waiting.show(event.id)
        assert entry is not None
        assert entry.due_unix - entry.history[0].ended_unix == pytest.approx(3_600, abs=1)


async def test_on_the_last_attempt_of_two_handlers_one_keeps_waiting_for_its_key_lock(
    tmp_path: Path,
) -> None:
    store = SQLiteStore(tmp_path / "hooks.db")
    receiver, token = receiver_on(store, inbox=Inbox(max_attempts=1)), new_token()
    handler, event = Serial(receiver), comment()

    @receiver.on(CommentReceived, name="fails")
    async def fails(_: CommentReceived) -> None:
        failed.set()
        raise ConnectionError("busy")

    failed = asyncio.Event()
    async with receiver:
        await store.acquire_key_lock(KEY_LOCK, token, 60.0)
        await stored(receiver, event)
        await failed.wait()
        await asyncio.sleep(0.1)
        await store.release_key_lock(KEY_LOCK, token)
        await until(lambda: handler.attempts)
        await until_async(lambda: receiver.dead.show(event.id))
        letter = await receiver.dead.show(event.id)
        assert letter is not None
        assert letter.reason is DeadReason.EXHAUSTED
        assert letter.finished == {"serial"}


async def _waits(store: SQLiteStore, event: Event[Any]) -> bool:
    entry = await store.entry(_key(event))
    return entry is not None and not entry.in_flight and entry.attempts == 0


async def _both_noted(store: SQLiteStore) -> bool:
    probe = KeyLock("default", "latest", "chan_1")
    return isinstance(await store.acquire_key_lock(probe, new_token(), 1.0), Busy)


def _key(event: Event[Any]) -> Any:
    return f"default:{event.id}"


async def test_a_key_function_that_raises_refuses_no_delivery(tmp_path: Path) -> None:
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path), inbox=Inbox(embedded=False))

    def broken(event: CommentReceived) -> str:
        raise ZeroDivisionError(event.id)

    @receiver.on(CommentReceived, name="handler", serial_by=broken)
    async def handle(_: CommentReceived) -> None: ...

    async with receiver:
        await stored(receiver, comment())
        assert (await receiver.waiting.stats()).depth == 1


async def test_the_store_gets_the_key_lock_of_an_event_with_one_handler(tmp_path: Path) -> None:
    given: list[KeyLock | None] = []

    class Noting(SQLiteStore):
        async def enqueue(self, *args: Any, **options: Any) -> EnqueueResult:
            given.append(options["key_lock"])
            return await super().enqueue(*args, **options)

    store = Noting(tmp_path / "hooks.db")
    receiver = Receiver(secrets=SECRET, store=store, inbox=Inbox(embedded=False))

    @receiver.on(CommentReceived, name="serial", serial_by=lambda event: event.data.post_id)
    async def handle(_: CommentReceived) -> None: ...

    async with receiver:
        await stored(receiver, comment("post_7"))

    @receiver.on(CommentReceived, name="free")
    async def run_at_once(_: CommentReceived) -> None: ...

    async with receiver:
        await stored(receiver, comment("post_7"))
    assert given == [KeyLock("default", "serial", "post_7"), None]
