"""The write-ahead log of the SQLite store stays small, and the store survives a full disk."""

from __future__ import annotations

import gc
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from support.disks import NoDiskError, fill, small_disk
from support.sqlite_files import sqlite_connection
from support.sqlite_writer import between_batches
from support.waiting import until, until_async

from hookonce.errors import StoreError
from hookonce.stores.applications import Application
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import (
    Claimed,
    DeadReason,
    Delivery,
    Done,
    InFlight,
    Stored,
    delivery_key,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 600.0
KIB = 1024


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hooks.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    async with aclosing(SQLiteStore(path)) as store:
        yield store


async def put(store: SQLiteStore, event_id: str, size: int = KIB) -> object:
    return await store.enqueue(Delivery("default", event_id, None, 1.0, bytes(size)), new_token())


async def take(store: SQLiteStore) -> tuple[Any, ...]:
    batch = await store.fetch(1_000, LEASE, endpoint="default", worker="w", token=new_token())
    return batch.fetched


@contextmanager
def cursors_kept_alive() -> Iterator[list[apsw.Cursor]]:
    """Keep every cursor alive after its first statement, like a memory profiler."""
    kept: list[apsw.Cursor] = []

    def keep(cursor: apsw.Cursor, _statement: str, _values: object) -> bool:
        kept.append(cursor)
        return True

    def trace(connection: apsw.Connection) -> None:
        connection.exec_trace = keep

    apsw.connection_hooks.append(trace)
    try:
        yield kept
    finally:
        apsw.connection_hooks.remove(trace)
        kept.clear()


async def do_everything(store: SQLiteStore, number: int) -> None:
    """Make every kind of call once, so that every statement runs."""
    event_id = f"evt_{number}"
    key = delivery_key("default", event_id)
    claim = await store.claim(key, new_token(), LEASE)
    assert isinstance(claim, Claimed)
    await store.extend(claim)
    await store.claim(key, new_token(), LEASE)
    delivery = Delivery("default", event_id, None, 1.0, bytes(KIB))
    await store.bury(claim, DeadReason.REJECTED, delivery=delivery)
    await store.dead_letters()
    await store.dead_letters(limit=1)
    await store.dead_letter(key)
    await store.replay(key, new_token(), LEASE)
    for waiting in ("a", "b"):
        await put(store, f"{event_id}_{waiting}", 5 * KIB * KIB)  # two do not fit into one fetch
    assert len(await take(store)) == 1
    [second] = await take(store)
    await store.bury(second.claim, DeadReason.REJECTED)  # no body: the inbox has it
    await store.entries()
    await store.entry(delivery_key("default", f"{event_id}_a"))
    await store.stats()
    await store.known("default", [event_id, "evt_unknown"])
    await store.prune()
    await store.register("default", Application(frozenset({"a"}), frozenset({"b"})))
    activity = await store.follow("default", None)
    await store.publish("default", [b"line", b"another"])
    await store.follow("default", activity.place)
    await store.retire("w")


async def test_no_call_leaves_a_cursor_open_that_somebody_else_keeps_alive(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with cursors_kept_alive() as kept:
        async with aclosing(SQLiteStore(path)) as store:
            for number in range(2):
                await do_everything(store, number)
            assert len(kept) > 50
            assert "left open" not in caplog.text


@pytest.mark.full("3 s of processor time")
async def test_the_log_stays_small_while_a_thread_walks_the_heap(
    path: Path, store: SQLiteStore
) -> None:
    ended = threading.Event()

    def walk() -> None:
        kept: list[object] = []
        while not ended.is_set():
            kept.clear()
            # Compare types: `isinstance` reads `__class__`, and the proxy of a dead object raises.
            kept.extend(one for one in gc.get_objects() if type(one) is apsw.Cursor)

    walker = threading.Thread(target=walk)
    walker.start()
    try:
        for number in range(20):
            await put(store, f"evt_{number}", 512 * KIB)
            for taken in await take(store):
                await store.complete(taken.claim)
    finally:
        ended.set()
        walker.join()
    # The log restarts after about 4 MB if no reader blocks it.
    assert path.with_name("hooks.db-wal").stat().st_size < 8 * KIB * KIB


async def test_a_connection_whose_transaction_outlives_its_commit_is_reopened(
    store: SQLiteStore,
    connections: list[apsw.Connection],
    caplog: pytest.LogCaptureFixture,
) -> None:
    await put(store, "before")
    [connection] = connections
    with between_batches(store):
        kept = connection.execute("SELECT key FROM entries UNION ALL SELECT 1")
        assert connection.txn_state() == apsw.SQLITE_TXN_READ
    assert await put(store, "during") == Stored()
    await until(lambda: "left open" in caplog.text, what="it is noticed")
    assert await put(store, "after") == Stored()
    assert len(connections) == 2
    del kept
    assert {entry.delivery.event_id for entry in await store.entries()} == {
        "before",
        "during",
        "after",
    }


async def test_the_log_gives_its_space_back_after_a_long_reader(
    path: Path, store: SQLiteStore
) -> None:
    await put(store, "first")
    log = path.with_name("hooks.db-wal")
    reader = sqlite_connection(path)
    cursor = reader.execute("SELECT key FROM entries UNION ALL SELECT 1")
    for number in range(50):
        await put(store, f"large_{number}", 2 * KIB * KIB)
    assert log.stat().st_size > 90 * KIB * KIB
    cursor.close()
    reader.close()

    async def is_smaller() -> bool:
        await put(store, f"small_{new_token()}")
        return log.stat().st_size <= 64 * KIB * KIB

    await until_async(is_smaller, what="the log is cut")


@pytest.mark.parametrize("restarted", [False, True], ids=["goes on", "restarted"])
async def test_a_store_that_has_filled_its_small_disk_recovers_once_there_is_space(
    tmp_path: Path, restarted: bool
) -> None:
    try:
        with small_disk(tmp_path, 6) as disk:
            (disk / "filler").write_bytes(bytes(2 * KIB * KIB))
            store = SQLiteStore(disk / "hooks.db")
            accepted: list[str] = []

            async def fill_store() -> None:
                for number in range(10_000):
                    await put(store, f"evt_{number}", 8 * KIB)
                    accepted.append(f"evt_{number}")

            with pytest.raises(StoreError, match="the disk is full"):
                await fill_store()
            fill(disk / "rest")
            for _ in range(3):
                with pytest.raises(StoreError):
                    await put(store, "refused", 64 * KIB)
            if restarted:
                await store.aclose()
                store = SQLiteStore(disk / "hooks.db")
                with pytest.raises(StoreError):
                    await put(store, "refused", 64 * KIB)
            (disk / "rest").unlink()
            (disk / "filler").unlink()

            async def is_accepted() -> bool:
                try:
                    await put(store, "evt_after")
                except StoreError:
                    return False
                return True

            await until_async(is_accepted, what="the store can be used again")
            accepted.append("evt_after")
            states = [
                type(await store.claim(delivery_key("default", event_id), new_token(), LEASE))
                for event_id in accepted
            ]
            assert states == [InFlight] * len(accepted)
            while taken := await take(store):
                for one in taken:
                    await store.complete(one.claim)
            for event_id in accepted:
                claim = await store.claim(delivery_key("default", event_id), new_token(), LEASE)
                assert isinstance(claim, Done)
            await store.aclose()
    except NoDiskError as error:
        pytest.skip(str(error))
