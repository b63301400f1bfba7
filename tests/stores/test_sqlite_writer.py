"""The SQLite store's writer: calls share commits, and no fault lasts beyond its own call."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from math import nan
from pathlib import Path

import apsw
import pytest
from support.sqlite_files import sqlite_connection
from support.sqlite_writer import between_batches

from hookonce.errors import StoreError
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import (
    Claimed,
    Dead,
    DeadReason,
    Delivery,
    DeliveryKey,
    Done,
    InFlight,
    Ownership,
    delivery_key,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 600.0
PATIENCE_SECONDS = 20.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hooks.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(path)
    yield store
    await store.aclose()


@pytest.fixture
async def connection(store: SQLiteStore, connections: list[apsw.Connection]) -> apsw.Connection:
    """Open the store, and return its connection."""
    await store.open()
    [connection] = connections
    return connection


def keys(count: int, name: str = "evt") -> list[DeliveryKey]:
    return [delivery_key("default", f"{name}_{n}") for n in range(count)]


async def claim(store: SQLiteStore, key: DeliveryKey) -> Claimed:
    """Claim an event that must be free."""
    result = await store.claim(key, new_token(), LEASE)
    assert isinstance(result, Claimed)
    return result


async def look(store: SQLiteStore, key: DeliveryKey) -> type[object]:
    return type(await store.claim(key, new_token(), LEASE))


async def bury(store: SQLiteStore, event_id: str, size: int) -> None:
    delivery = Delivery("default", event_id, None, 1.0, bytes(size))
    await store.bury(await claim(store, delivery.key), DeadReason.REJECTED, delivery=delivery)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_so():  # noqa: ASYNC110 - a thread cannot set an asyncio event
            await asyncio.sleep(0.001)


async def turns(count: int = 50) -> None:
    """Run the event loop until every ready task has run."""
    for _ in range(count):
        await asyncio.sleep(0)


@asynccontextmanager
async def commit_held(store: SQLiteStore, connection: apsw.Connection) -> AsyncIterator[None]:
    """Keep the writer in the middle of a commit; calls inside the block share the next commit."""
    entered, go = threading.Event(), threading.Event()

    def hold() -> bool:
        entered.set()
        go.wait(PATIENCE_SECONDS)
        return False

    # Do not remove the hook: the writer may still be at work when the block ends.
    with between_batches(store):
        connection.set_commit_hook(hold)
    held = asyncio.create_task(claim(store, delivery_key("default", "held")))
    try:
        await until(entered.is_set)
        assert not held.done()
        yield
        assert not held.done()
    finally:
        go.set()
        await held


def lock(path: Path, kind: str = "IMMEDIATE") -> apsw.Connection:
    """Return a connection that keeps the file locked until it is closed."""
    connection = sqlite_connection(path)
    connection.execute(f"BEGIN {kind}")
    return connection


class TestGroupCommit:
    async def test_500_concurrent_claims_take_far_fewer_than_500_transactions(
        self, store: SQLiteStore, connection: apsw.Connection
    ) -> None:
        transactions = 0

        def count() -> bool:
            nonlocal transactions
            transactions += 1
            return False

        with between_batches(store):
            connection.set_commit_hook(count)
        results = await asyncio.gather(*(store.claim(key, new_token(), LEASE) for key in keys(500)))
        assert {type(result) for result in results} == {Claimed}
        assert 1 <= transactions <= 50

    async def test_calls_that_wait_for_a_commit_share_the_next(
        self, store: SQLiteStore, connection: apsw.Connection
    ) -> None:
        transactions = 0

        def count(_: apsw.Cursor, statement: str, __: object) -> bool:
            nonlocal transactions
            transactions += statement.startswith("BEGIN")
            return True

        with between_batches(store):
            connection.set_exec_trace(count)
        async with commit_held(store, connection):
            assert transactions == 1
            waiting = [asyncio.create_task(claim(store, key)) for key in keys(500)]
            await turns()
        await asyncio.gather(*waiting)
        assert transactions == 2

    async def test_nobody_is_answered_before_the_commit(
        self, store: SQLiteStore, connection: apsw.Connection
    ) -> None:
        async with commit_held(store, connection):
            await turns()

    async def test_calls_take_effect_in_the_order_they_were_made(self, store: SQLiteStore) -> None:
        first, second = new_token(), new_token()
        [key] = keys(1)
        results = await asyncio.gather(
            store.claim(key, first, LEASE),
            store.complete(Claimed(key, first, 1, frozenset(), LEASE)),
            store.claim(key, second, LEASE),
        )
        assert [type(results[0]), type(results[2])] == [Claimed, Done]

    async def test_a_flood_of_calls_is_answered(self, store: SQLiteStore) -> None:
        results = await asyncio.gather(
            *(store.claim(key, new_token(), LEASE) for key in keys(5_000))
        )
        assert {type(result) for result in results} == {Claimed}


class TestBadRecords:
    @pytest.mark.parametrize(
        "delivery",
        [
            pytest.param(Delivery("default", "bad", None, nan, b""), id="no time"),
            pytest.param(Delivery("default", "bad", "\ud800", 1.0, b""), id="no text"),
        ],
    )
    async def test_a_record_that_cannot_be_written_fails_alone(
        self, store: SQLiteStore, connection: apsw.Connection, delivery: Delivery
    ) -> None:
        owned = await claim(store, delivery.key)
        before, after = keys(2)
        async with commit_held(store, connection):
            calls = asyncio.gather(
                store.claim(before, new_token(), LEASE),
                store.bury(owned, DeadReason.REJECTED, delivery=delivery),
                store.claim(after, new_token(), LEASE),
                return_exceptions=True,
            )
            await turns()
        first, bad, last = await calls
        assert (type(first), type(bad), type(last)) == (Claimed, StoreError, Claimed)
        assert await look(store, before) is await look(store, after) is InFlight
        assert await store.extend(owned) is Ownership.HELD
        assert await store.dead_letters() == []

    async def test_a_burial_without_a_delivery_fails_alone(
        self, store: SQLiteStore, connection: apsw.Connection
    ) -> None:
        owned = await claim(store, delivery_key("default", "bad"))
        before, after = keys(2)
        async with commit_held(store, connection):
            calls = asyncio.gather(
                store.claim(before, new_token(), LEASE),
                store.bury(owned, DeadReason.REJECTED),
                store.claim(after, new_token(), LEASE),
                return_exceptions=True,
            )
            await turns()
        first, bad, last = await calls
        assert (type(first), type(bad), type(last)) == (Claimed, StoreError, Claimed)

    async def test_no_error_text_keeps_an_event_from_being_settled(
        self, store: SQLiteStore
    ) -> None:
        text = "FileNotFoundError: '\udcff\0.txt'"  # os.fsdecode can return such text
        owned = await claim(store, delivery_key("default", "bad"))
        assert await store.release(owned, frozenset(), text) is Ownership.HELD
        owned = await claim(store, owned.key)
        delivery = Delivery("default", "bad", None, 1.0, b"")
        ownership = await store.bury(owned, DeadReason.EXHAUSTED, error=text, delivery=delivery)
        assert ownership is Ownership.HELD
        letter = await store.dead_letter(owned.key)
        assert letter is not None
        assert letter.error.startswith("FileNotFoundError: '")

    async def test_an_endless_error_text_is_cut(self, store: SQLiteStore) -> None:
        delivery = Delivery("default", "bad", None, 1.0, b"")
        owned = await claim(store, delivery.key)
        await store.bury(owned, DeadReason.EXHAUSTED, error="ab" * 500_000, delivery=delivery)
        letter = await store.dead_letter(owned.key)
        assert letter is not None
        assert letter.error.startswith("abab")
        assert 1_000 < len(letter.error) < 10_000


class TestLockedFile:
    async def test_a_locked_file_is_a_store_error_within_three_seconds_and_then_works_again(
        self, path: Path, store: SQLiteStore
    ) -> None:
        [key] = keys(1)
        await store.open()
        other = lock(path)
        with pytest.raises(StoreError, match="another process keeps it locked"):
            async with asyncio.timeout(3):
                await store.claim(key, new_token(), LEASE)
        other.close()
        assert (await claim(store, key)).attempt == 1

    @pytest.mark.sample(1)
    @pytest.mark.parametrize(
        ("journal", "locking", "lock_kind"),
        [
            pytest.param("delete", "NORMAL", "IMMEDIATE", id="only written by it"),
            pytest.param("delete", "EXCLUSIVE", "EXCLUSIVE", id="not even readable"),
            pytest.param("wal", "EXCLUSIVE", "EXCLUSIVE", id="its log is not readable"),
        ],
    )
    async def test_a_file_locked_by_another_program_is_a_store_error_when_it_opens(
        self, path: Path, store: SQLiteStore, journal: str, locking: str, lock_kind: str
    ) -> None:
        await store.open()
        await store.aclose()
        other = sqlite_connection(path)
        other.execute(f"PRAGMA locking_mode = {locking}; PRAGMA journal_mode = {journal}")
        other.execute(f"BEGIN {lock_kind}")
        try:
            with pytest.raises(StoreError, match="another process keeps it locked"):
                async with asyncio.timeout(5):
                    await store.open()
        finally:
            other.close()
        await store.open()

    async def test_a_short_lock_is_waited_for(self, path: Path, store: SQLiteStore) -> None:
        [key] = keys(1)
        await store.open()
        other = lock(path)
        waiting = asyncio.create_task(claim(store, key))
        asyncio.get_running_loop().call_later(0.2, other.close)
        await waiting

    async def test_a_claim_that_was_cancelled_while_it_waited_is_not_granted(
        self, path: Path, store: SQLiteStore
    ) -> None:
        await bury(store, "dead", 1)
        dead = delivery_key("default", "dead")
        other = lock(path)
        waiting = [asyncio.create_task(claim(store, key)) for key in keys(20)]
        replay = asyncio.create_task(store.replay(dead, new_token(), LEASE))
        await turns()
        for task in waiting[::2]:
            task.cancel()
        replay.cancel()
        await turns()
        other.close()
        await asyncio.wait([*waiting, replay])
        assert isinstance(await store.replay(dead, new_token(), LEASE), Claimed)
        assert [task.cancelled() for task in waiting] == [True, False] * 10
        for key in keys(20)[::2]:
            assert (await claim(store, key)).attempt == 1
        for key in keys(20)[1::2]:
            assert await look(store, key) is InFlight

    async def test_a_completion_that_was_cancelled_while_it_waited_is_recorded(
        self, path: Path, store: SQLiteStore
    ) -> None:
        """The handlers have already run, so the store must record them even if nobody waits."""
        done, dead = keys(2)
        owned_done, owned_dead = await claim(store, done), await claim(store, dead)
        delivery = Delivery("default", "evt_1", None, 1.0, b"")
        other = lock(path)
        waiting = [
            asyncio.create_task(store.complete(owned_done)),
            asyncio.create_task(store.bury(owned_dead, DeadReason.EXHAUSTED, delivery=delivery)),
        ]
        await turns()
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        other.close()
        assert [await look(store, done), await look(store, dead)] == [Done, Dead]

    async def test_upkeep_that_finds_the_file_locked_is_deferred(
        self,
        path: Path,
        store: SQLiteStore,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr("hookonce.stores.sqlite.writer.BUSY_MILLISECONDS", 50)
        monkeypatch.setattr("hookonce.stores.sqlite.writer._FIRST_MAINTENANCE_SECONDS", 0.01)
        monkeypatch.setattr("hookonce.stores.sqlite.upkeep._INTERVAL_SECONDS", 0.01)
        await store.open()
        other = sqlite_connection(path)
        with caplog.at_level(logging.WARNING, logger="hookonce.store"):
            other.execute("BEGIN IMMEDIATE")
            await until(lambda: "removing expired records failed" in caplog.text)
            other.close()
        await claim(store, keys(1)[0])


class TestFullDisk:
    async def test_a_full_disk_is_a_store_error_that_ends_when_there_is_room(
        self, store: SQLiteStore, connection: apsw.Connection
    ) -> None:
        # Only this connection has the limit, so the next connection has room again.
        with between_batches(store):
            connection.execute("PRAGMA max_page_count = 100")
        names: list[str] = []

        async def fill() -> None:
            while True:
                await bury(store, name := f"evt_{len(names)}", 20_000)
                names.append(name)

        with pytest.raises(StoreError, match="the disk is full"):
            await fill()
        assert len(names) >= 5
        await bury(store, "late", 20_000)
        listed = [letter.delivery.event_id for letter in await store.dead_letters()]
        assert listed == [*names, "late"]
        assert await look(store, delivery_key("default", "evt_0")) is Dead

    async def test_a_call_that_shared_a_full_disk_failed_with_it_or_was_recorded(
        self, store: SQLiteStore, connection: apsw.Connection
    ) -> None:
        delivery = Delivery("default", "large", None, 1.0, bytes(2_000_000))
        owned = await claim(store, delivery.key)
        with between_batches(store):
            connection.execute("PRAGMA max_page_count = 100")
        async with commit_held(store, connection):
            calls = asyncio.gather(
                *(store.claim(key, new_token(), LEASE) for key in keys(10)),
                store.bury(owned, DeadReason.REJECTED, delivery=delivery),
                return_exceptions=True,
            )
            await turns()
        *neighbours, large = await calls
        assert isinstance(large, StoreError)
        for key, answer in zip(keys(10), neighbours, strict=True):
            assert isinstance(answer, Claimed | StoreError)
            expected = InFlight if isinstance(answer, Claimed) else Claimed
            assert await look(store, key) is expected
        assert await store.dead_letters() == []
        assert await store.extend(owned) is Ownership.HELD

    async def test_calls_written_before_the_disk_was_full_succeed(
        self, store: SQLiteStore, connection: apsw.Connection
    ) -> None:
        """If a record cannot be written, each call of its batch gets a transaction of its own."""
        delivery = Delivery("default", "large", None, 1.0, bytes(2_000_000))
        owned = await claim(store, delivery.key)
        early, bad, late = keys(3)
        with between_batches(store):
            connection.execute("PRAGMA max_page_count = 100")
        async with commit_held(store, connection):
            calls = asyncio.gather(
                store.claim(early, new_token(), LEASE),
                store.claim(bad, new_token(), nan),
                store.bury(owned, DeadReason.REJECTED, delivery=delivery),
                store.claim(late, new_token(), LEASE),
                return_exceptions=True,
            )
            await turns()
        answers = [type(answer) for answer in await calls]
        assert answers == [Claimed, StoreError, StoreError, StoreError]
        assert [await look(store, early), await look(store, late)] == [InFlight, Claimed]


class TestThreads:
    async def test_many_event_loops_share_one_store(self, store: SQLiteStore) -> None:
        async def claim_all() -> list[bool]:
            return [
                isinstance(result, Claimed)
                for result in await asyncio.gather(
                    *(store.claim(key, new_token(), LEASE) for key in keys(200))
                )
            ]

        with ThreadPoolExecutor(4) as threads:
            wins = await asyncio.gather(
                claim_all(),
                *(
                    asyncio.get_running_loop().run_in_executor(threads, asyncio.run, claim_all())
                    for _ in range(4)
                ),
            )
        assert [sum(won) for won in zip(*wins, strict=True)] == [1] * 200

    async def test_a_loop_that_closed_while_it_waited_harms_nobody(
        self, path: Path, store: SQLiteStore
    ) -> None:
        await store.open()
        other = lock(path)
        [abandoned, mine] = keys(2)

        def abandon() -> None:
            loop = asyncio.new_event_loop()
            # The default handler would report the task that is left unfinished below.
            loop.set_exception_handler(lambda *_: None)
            task = loop.create_task(claim(store, abandoned))
            loop.run_until_complete(asyncio.sleep(0))
            assert not task.done()
            loop.close()

        await asyncio.to_thread(abandon)
        waiting = asyncio.create_task(claim(store, mine))
        await turns()
        other.close()
        await waiting

    async def test_closing_finishes_what_waits_and_ends_the_thread(
        self, path: Path, store: SQLiteStore
    ) -> None:
        before = set(threading.enumerate())
        waiting = [asyncio.create_task(claim(store, key)) for key in keys(500)]
        await turns(1)
        assert [t.name for t in threading.enumerate() if t not in before and path.name in t.name]
        await store.aclose()
        await turns()
        assert all(task.done() for task in waiting)
        left = [t.name for t in threading.enumerate() if t not in before and path.name in t.name]
        assert left == []
        assert {await look(store, key) for key in keys(500)} == {InFlight}

    async def test_a_store_is_used_closed_and_used_again(self, store: SQLiteStore) -> None:
        for key in keys(5):
            await store.complete(await claim(store, key))
            await store.aclose()
            assert await look(store, key) is Done

    async def test_a_call_during_closing_opens_again_and_leaves_the_closing_alone(
        self, store: SQLiteStore, connection: apsw.Connection
    ) -> None:
        async with commit_held(store, connection):
            closing = asyncio.create_task(store.aclose())
            await turns()
            calls = [asyncio.create_task(claim(store, key)) for key in keys(50)]
            await turns()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(closing, *calls)

    async def test_without_a_thread_it_fails_and_tries_again(
        self, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        [key] = keys(1)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(StoreError):
                await store.claim(key, new_token(), LEASE)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await claim(store, key)).attempt == 1
