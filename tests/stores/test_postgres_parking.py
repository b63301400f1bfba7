"""Parked entries of the PostgreSQL store: events that wait until their key lock is free."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import psycopg
import pytest
from support.postgres import PostgresServer
from support.waiting import PATIENCE_SECONDS, until, until_async

from hookonce.stores.postgres import PostgresStore, parking
from hookonce.stores.postgres.connection import Statement
from hookonce.stores.postgres.key_locks import digest_of_lock
from hookonce.stores.postgres.records import digest_of
from hookonce.stores.postgres.wire import dump_float, dump_int, dump_text
from hookonce.stores.values import (
    Acquired,
    Claimed,
    DeadReason,
    Delivery,
    Done,
    EnqueueResult,
    Fetched,
    Full,
    KeyLock,
    Stored,
    delivery_key,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 30.0
DAY = 24 * 3600.0
KEY_LOCK = KeyLock("default", "handler", "thread 1")


class Clock:
    """A clock that moves only when a test moves it."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def delivery(event_id: str) -> Delivery:
    return Delivery("default", event_id, "post.target.failed", 1_700_000_000.0, b"{}")


async def enqueued(
    store: PostgresStore,
    key_lock: KeyLock | None,
    *event_ids: str,
    max_depth: int | None = None,
) -> list[EnqueueResult]:
    return await asyncio.gather(
        *(
            store.enqueue(delivery(event_id), new_token(), key_lock=key_lock, max_depth=max_depth)
            for event_id in event_ids
        )
    )


async def put(store: PostgresStore, key_lock: KeyLock | None, *event_ids: str) -> None:
    for first in range(0, len(event_ids), 500):
        results = await enqueued(store, key_lock, *event_ids[first : first + 500])
        assert set(results) == {Stored()}


async def fetched(store: PostgresStore, worker: str = "one") -> list[Claimed]:
    batch = await store.fetch(64, LEASE, endpoint="default", worker=worker, token=new_token())
    return [one.claim for one in batch.fetched]


def ids(claims: Sequence[Claimed]) -> list[str]:
    return [claim.key.removeprefix("default:") for claim in claims]


async def arrives(store: PostgresStore, event_id: str) -> None:
    """Fetch until this event comes, and no other."""

    async def has_come() -> bool:
        found = ids(await fetched(store))
        assert found in ([], [event_id])
        return bool(found)

    await until_async(has_come, what=event_id)


async def has_looked(store: PostgresStore) -> None:
    """Wait until the searches that the first fetch has started are over."""
    await until(lambda: not store._session._searches)


def parked(postgres: PostgresServer) -> list[str]:
    rows = postgres.execute(
        "SELECT event_id FROM hookonce.entries WHERE due = 'infinity' ORDER BY id"
    )
    return [event_id for (event_id,) in rows]


@pytest.fixture
def nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no process look for parked entries whose key lock is free."""
    monkeypatch.setattr(parking.Parking, "must_walk", lambda _, __: False)


@pytest.mark.usefixtures("nobody_looks")
async def test_a_fetch_takes_one_event_of_a_key_and_its_end_makes_the_next_due(
    postgres: PostgresServer,
) -> None:
    async with aclosing(PostgresStore(postgres.url)) as store:
        await put(store, KEY_LOCK, "evt_1", "evt_2", "evt_3")
        await put(store, None, "evt_free")
        assert parked(postgres) == ["evt_2", "evt_3"]
        [first, free] = await fetched(store)
        assert ids([first, free]) == ["evt_1", "evt_free"]
        assert await fetched(store) == []
        await store.complete(first)
        [second] = await fetched(store)
        assert ids([second]) == ["evt_2"]
        await store.retry(second, 3600.0, error="no luck")
        [third] = await fetched(store)
        assert ids([third]) == ["evt_3"]
        await store.bury(third, DeadReason.REJECTED)
        await put(store, KEY_LOCK, "evt_4")
        assert ids(await fetched(store)) == ["evt_4"]


@pytest.mark.usefixtures("nobody_looks")
async def test_a_fetch_parks_all_but_one_of_the_due_events_of_a_key(
    postgres: PostgresServer,
) -> None:
    events = [f"evt_{number}" for number in range(12)]
    async with aclosing(PostgresStore(postgres.url)) as store:
        await put(store, KEY_LOCK, *events)
        postgres.execute("UPDATE hookonce.entries SET due = 0")
        for event_id in events:
            [claim] = await fetched(store)
            assert ids([claim]) == [event_id]
            await store.complete(claim)
        assert await fetched(store) == []


@pytest.mark.usefixtures("nobody_looks")
async def test_the_release_of_a_key_lock_outside_the_inbox_makes_the_next_event_due(
    postgres: PostgresServer,
) -> None:
    token = new_token()
    async with (
        aclosing(PostgresStore(postgres.url)) as store,
        aclosing(PostgresStore(postgres.url)) as other,
    ):
        await other.acquire_key_lock(KEY_LOCK, token, LEASE)
        await put(store, KEY_LOCK, "evt_1", "evt_2")
        assert await fetched(store) == []
        assert parked(postgres) == ["evt_1", "evt_2"]
        await other.release_key_lock(KEY_LOCK, token)
        assert ids(await fetched(store)) == ["evt_1"]


async def test_no_fetch_takes_a_parked_event_while_its_key_lock_is_held_however_long(
    postgres: PostgresServer,
) -> None:
    clock, token = Clock(), new_token()
    async with aclosing(PostgresStore(postgres.url, clock=clock)) as store:
        await store.acquire_key_lock(KEY_LOCK, token, 9 * DAY)
        await put(store, KEY_LOCK, "evt_1", "evt_2")
        assert await fetched(store) == []
    for _ in range(8):
        clock.now += DAY
        # Each store corrects due times, and looks for parked entries whose key lock is free.
        async with aclosing(PostgresStore(postgres.url, clock=clock)) as store:
            assert await fetched(store) == []
            await has_looked(store)
            assert parked(postgres) == ["evt_1", "evt_2"]
            entry = await store.entry(delivery_key("default", "evt_1"))
            assert entry is not None
            assert entry.state(clock.now) == "waiting"
            assert entry.due_unix == clock.now + parking.PARKED_SECONDS
    async with aclosing(PostgresStore(postgres.url, clock=clock)) as store:
        await store.release_key_lock(KEY_LOCK, token)
        await arrives(store, "evt_1")


@pytest.mark.usefixtures("nobody_looks")
async def test_a_parked_event_that_is_made_due_is_parked_again_and_then_handled(
    postgres: PostgresServer,
) -> None:
    async with aclosing(PostgresStore(postgres.url)) as store:
        await put(store, KEY_LOCK, "evt_1", "evt_2", "evt_3")
        [first] = await fetched(store)
        assert await store.make_due(delivery_key("default", "evt_3"))
        assert parked(postgres) == ["evt_2"]
        assert await fetched(store) == []
        assert parked(postgres) == ["evt_2", "evt_3"]
        await store.complete(first)
        for event_id in ("evt_2", "evt_3"):
            [claim] = await fetched(store)
            assert ids([claim]) == [event_id]
            await store.complete(claim)


@pytest.mark.usefixtures("nobody_looks")
async def test_a_new_event_is_not_parked_behind_a_copy_of_a_handled_event(
    postgres: PostgresServer,
) -> None:
    async with aclosing(PostgresStore(postgres.url)) as store:
        await put(store, KEY_LOCK, "evt_1")
        [first] = await fetched(store)
        await store.complete(first)
        results = await enqueued(store, KEY_LOCK, "evt_1", "evt_2")
        assert results == [Done(), Stored()]
        assert ids(await fetched(store)) == ["evt_2"]


async def test_parked_events_count_towards_the_limits_of_the_inbox(
    postgres: PostgresServer,
) -> None:
    async with aclosing(PostgresStore(postgres.url)) as store:
        await put(store, KEY_LOCK, "evt_1", "evt_2", "evt_3")
        assert ids(await fetched(store)) == ["evt_1"]
        assert await enqueued(store, None, "evt_4", max_depth=4) == [Stored()]
        assert await enqueued(store, None, "evt_5", max_depth=4) == [Full()]
        stats = await store.stats()
        assert (stats.depth, stats.in_flight) == (4, 1)


@pytest.mark.usefixtures("nobody_looks")
async def test_processes_that_park_and_handle_at_once_leave_no_event_behind(
    postgres: PostgresServer,
) -> None:
    key_locks = [KeyLock("default", "handler", str(key)) for key in range(3)]
    events = {f"evt_{event}": key_locks[event % 3] for event in range(150)}
    handled: list[str] = []

    async def send(store: PostgresStore, half: int) -> None:
        for event_id, key_lock in list(events.items())[half::2]:
            await put(store, key_lock, event_id)

    async def handle(store: PostgresStore, fetched: Fetched, *, holds: bool) -> None:
        token, key_lock = new_token(), events[fetched.delivery.event_id]
        if holds and await store.acquire_key_lock(key_lock, token, LEASE) == Acquired():
            await store.release_key_lock(key_lock, token)
        await store.complete(fetched.claim)
        handled.append(fetched.delivery.event_id)

    async def work(store: PostgresStore, worker: str) -> None:
        async with asyncio.TaskGroup() as group:
            while len(handled) < len(events):
                batch = await store.fetch(
                    64, LEASE, endpoint="default", worker=worker, token=new_token()
                )
                for turn, one in enumerate(batch.fetched):
                    group.create_task(handle(store, one, holds=turn % 2 == 0))

    async with (
        aclosing(PostgresStore(postgres.url)) as one,
        aclosing(PostgresStore(postgres.url)) as other,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        await asyncio.gather(send(one, 0), send(other, 1), work(one, "one"), work(other, "other"))
        assert sorted(handled) == sorted(events)
        assert (await one.stats()).depth == 0


@asynccontextmanager
async def no_commit_of_a_parked_entry(postgres: PostgresServer) -> AsyncIterator[None]:
    """Let each transaction that parks an entry wait until the end of the block."""
    postgres.execute("""
        CREATE FUNCTION hookonce.pause() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN new; END'
    """)
    postgres.execute("""
        CREATE TRIGGER pause BEFORE INSERT OR UPDATE ON hookonce.entries FOR EACH ROW
        WHEN (new.due = 'infinity') EXECUTE FUNCTION hookonce.pause()
    """)
    try:
        with psycopg.connect(postgres.url) as pausing:
            pausing.execute("SELECT pg_advisory_xact_lock(1)")
            yield
    finally:
        postgres.execute("DROP FUNCTION hookonce.pause CASCADE")


async def is_paused(postgres: PostgresServer) -> None:
    await until(
        lambda: postgres.execute(
            "SELECT pid FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND wait_event = 'advisory'"
        ),
        what="a transaction that parks an entry",
    )


@pytest.mark.usefixtures("nobody_looks")
async def test_an_event_is_not_left_behind_if_its_key_lock_becomes_free_during_the_enqueue(
    postgres: PostgresServer,
) -> None:
    async with (
        aclosing(PostgresStore(postgres.url)) as store,
        aclosing(PostgresStore(postgres.url)) as other,
    ):
        await put(store, KEY_LOCK, "evt_1")
        [first] = await fetched(store)
        async with no_commit_of_a_parked_entry(postgres):
            enqueueing = asyncio.create_task(put(other, KEY_LOCK, "evt_2"))
            await is_paused(postgres)
            await store.complete(first)
        await enqueueing
        assert ids(await fetched(store)) == ["evt_2"]


@pytest.mark.usefixtures("nobody_looks")
async def test_an_event_is_not_left_behind_if_its_key_lock_becomes_free_during_the_fetch(
    postgres: PostgresServer,
) -> None:
    token = new_token()
    async with (
        aclosing(PostgresStore(postgres.url)) as store,
        aclosing(PostgresStore(postgres.url)) as other,
    ):
        await put(store, KEY_LOCK, "evt_1")
        await other.acquire_key_lock(KEY_LOCK, token, LEASE)
        async with no_commit_of_a_parked_entry(postgres):
            fetching = asyncio.create_task(
                store.fetch(1, LEASE, endpoint="default", worker="one", token=new_token())
            )
            await is_paused(postgres)
            await other.release_key_lock(KEY_LOCK, token)
        batch = await fetching
        assert (batch.fetched, batch.next_due_seconds) == ((), 0)
        assert ids(await fetched(store)) == ["evt_1"]


async def test_the_next_event_is_found_if_the_process_is_killed_before_it_wakes_it(
    postgres: PostgresServer,
) -> None:
    script = textwrap.dedent("""
        import asyncio, os, signal, sys
        from hookonce.stores.postgres import PostgresStore, batch
        from hookonce.stores.values import new_token

        async def kill(*_):
            os.kill(os.getpid(), signal.SIGKILL)

        async def main():
            store = PostgresStore(sys.argv[1])
            found = await store.fetch(9, 30.0, endpoint="default", worker="w", token=new_token())
            batch.Batches._wake = kill
            await store.complete(found.fetched[0].claim)

        asyncio.run(main())
    """)
    async with aclosing(PostgresStore(postgres.url)) as store:
        await put(store, KEY_LOCK, "evt_1", "evt_2")
        ended = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", script, postgres.url],
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        assert ended.returncode == -signal.SIGKILL
        assert await store.claim(delivery_key("default", "evt_1"), new_token(), LEASE) == Done()
        assert parked(postgres) == ["evt_2"]
        await arrives(store, "evt_2")


async def test_the_next_event_is_found_if_the_connection_breaks_before_it_is_woken(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aclosing(PostgresStore(postgres.url)) as store:
        await put(store, KEY_LOCK, "evt_1", "evt_2")
        [first] = await fetched(store)
        await has_looked(store)
        with psycopg.connect(postgres.url) as blocking:
            blocking.execute("SELECT FROM hookonce.entries WHERE event_id = 'evt_2' FOR UPDATE")
            completing = asyncio.create_task(store.complete(first))
            await until(
                lambda: postgres.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE wait_event_type = 'Lock' AND query LIKE '%SET due = %'"
                ),
                what="the statement that wakes the next event",
            )
            await completing
        assert parked(postgres) == ["evt_2"]
        monkeypatch.setattr(store._session.inbox.parking, "_walks_at", 0.0)
        await arrives(store, "evt_2")


async def test_the_next_event_is_found_if_the_holder_of_the_key_lock_is_gone(
    postgres: PostgresServer,
) -> None:
    clock = Clock()
    async with aclosing(PostgresStore(postgres.url, clock=clock)) as store:
        await store.acquire_key_lock(KEY_LOCK, new_token(), LEASE)
        await put(store, KEY_LOCK, "evt_1", "evt_2")
        assert await fetched(store) == []
    clock.now += LEASE + 1
    async with aclosing(PostgresStore(postgres.url, clock=clock)) as store:
        await arrives(store, "evt_1")
        assert parked(postgres) == ["evt_2"]


async def test_all_key_locks_are_looked_at_step_by_step(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking, "_KEY_LOCKS_AT_ONCE", 2)
    clock = Clock()
    key_locks = [KeyLock("default", "handler", str(number)) for number in range(5)]
    events = [f"evt_{number}" for number in range(len(key_locks))]
    async with aclosing(PostgresStore(postgres.url, clock=clock)) as store:
        for key_lock, event_id in zip(key_locks, events, strict=True):
            await store.acquire_key_lock(key_lock, new_token(), LEASE)
            await put(store, key_lock, event_id)
        assert await fetched(store) == []
        assert parked(postgres) == events
        clock.now += LEASE + 1
    found: list[str] = []
    async with aclosing(PostgresStore(postgres.url, clock=clock)) as store:

        async def all_are_found() -> bool:
            found.extend(ids(await fetched(store)))
            return len(found) == len(events)

        await until_async(all_are_found, what="the events of all key locks")
    assert sorted(found) == events


async def test_20000_events_behind_one_key_delay_no_other_event(postgres: PostgresServer) -> None:
    locked = [f"evt_locked_{number}" for number in range(20_000)]
    free = [f"evt_free_{number}" for number in range(100)]
    async with aclosing(PostgresStore(postgres.url)) as store:
        await put(store, KEY_LOCK, *locked)
        await put(store, None, *free)
        found = ids(await fetched(store)) + ids(await fetched(store))
        assert sorted(found) == sorted([locked[0], *free])
        assert (await store.stats()).depth == 20_100
        # First the server plans without statistics, then with statistics that know only one key.
        for command in ("SELECT 1", "ANALYZE hookonce.entries"):
            postgres.execute(command)
            for key_lock in (KEY_LOCK, KeyLock("default", "handler", "thread 2")):
                for name, statement in statements_of(store, key_lock).items():
                    assert blocks_of(postgres, statement) < 500, (command, key_lock, name)


def statements_of(store: PostgresStore, key_lock: KeyLock) -> dict[str, Statement]:
    inbox, digest = store._session.inbox, digest_of_lock(key_lock)
    event = delivery("evt_new")
    bound = dump_float(inbox.bounds.bound("default"))
    limits = dump_int(64), dump_int(1_000_000), dump_text("token"), dump_float(LEASE), bound
    return {
        "enqueue": inbox.put([(digest_of(event.key), event, new_token(), digest)], None),
        "fetch": (inbox._due, (None, dump_text("default"), *limits)),
        "next due": inbox.next_due("default", None),
        "correction": (inbox._lock_too_late, (None, dump_text("default"))),
        "look back": inbox.due_before("default")[-1],
        "wake": inbox.parking.wake([digest], None),
        "walk": inbox.parking.walk(None),
    }


def blocks_of(postgres: PostgresServer, statement: Statement) -> int:
    """Return the number of blocks that a statement reads; the statement changes nothing."""
    sql, values = statement
    with psycopg.connect(postgres.url) as connection:
        connection.execute("SELECT 1")  # begins a transaction
        result = connection.pgconn.exec_params(
            b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + sql,
            list(values),
            param_formats=[1] * len(values),
        )
        connection.rollback()
    plan = json.loads(result.get_value(0, 0) or b"")[0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])
