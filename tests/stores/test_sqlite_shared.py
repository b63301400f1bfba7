"""Stores on one file in one process share its connection and its thread."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import AsyncExitStack, aclosing
from datetime import timedelta
from pathlib import Path

import apsw
import pytest
from support.deliveries import SECRET
from support.sqlite_files import sqlite_connection
from support.waiting import PATIENCE_SECONDS, until

from hookonce import Receiver
from hookonce.stores.protocols import DEFAULT_RETENTION
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Claimed, DeliveryKey, Done, delivery_key, new_token

pytestmark = pytest.mark.anyio

LEASE = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / f"{tmp_path.name}.db"  # unique: the thread is named after the file


def threads_of(path: Path) -> list[str]:
    name = f"hookonce-sqlite:{path.name}"
    return [thread.name for thread in threading.enumerate() if thread.name == name]


def files_beside(path: Path) -> set[str]:
    return {file.name for file in path.parent.iterdir()}


async def complete(store: SQLiteStore, name: str) -> DeliveryKey:
    key = delivery_key("default", name)
    owned = await store.claim(key, new_token(), LEASE)
    assert isinstance(owned, Claimed)
    await store.complete(owned)
    return key


async def is_done(path: Path, key: DeliveryKey) -> bool:
    async with aclosing(SQLiteStore(path)) as store:
        return isinstance(await store.claim(key, new_token(), LEASE), Done)


async def test_100_receivers_on_one_file_have_one_connection_and_one_thread(
    path: Path, connections: list[apsw.Connection]
) -> None:
    url = f"sqlite:///{path}"
    receivers = [Receiver(secrets=SECRET, store=url, endpoint=f"t{n}") for n in range(100)]
    async with AsyncExitStack() as stack:
        await asyncio.gather(
            *(stack.enter_async_context(receiver.opened()) for receiver in receivers)
        )
        assert (len(connections), len(threads_of(path))) == (1, 1)
    assert threads_of(path) == []
    assert files_beside(path) == {path.name}


@pytest.mark.parametrize("seed", range(5))
async def test_stores_are_closed_and_used_again_in_any_order(
    path: Path, connections: list[apsw.Connection], seed: int
) -> None:
    chance = random.Random(seed)
    stores = [SQLiteStore(path) for _ in range(4)]
    in_use: set[int] = set()
    keys = []
    openings = 0
    for turn in range(40):
        number = chance.randrange(len(stores))
        if number in in_use and chance.random() < 0.6:
            await stores[number].aclose()
            in_use.discard(number)
        else:
            openings += not in_use
            keys.append(await complete(stores[number], f"evt_{turn}"))
            in_use.add(number)
        assert len(threads_of(path)) == bool(in_use)
    for store in stores:
        await store.aclose()
        await store.aclose()
    assert threads_of(path) == []
    assert files_beside(path) == {path.name}
    assert len(connections) == openings
    assert all([await is_done(path, key) for key in keys])


async def test_closing_one_of_two_finishes_what_it_was_asked(path: Path) -> None:
    async with aclosing(SQLiteStore(path)) as other:
        await other.open()
        store = SQLiteStore(path)
        owned = await store.claim(delivery_key("default", "evt_1"), new_token(), LEASE)
        assert isinstance(owned, Claimed)
        asked = asyncio.ensure_future(store.complete(owned))
        await asyncio.sleep(0)
        asked.cancel()
        await store.aclose()
        assert isinstance(await other.claim(owned.key, new_token(), LEASE), Done)


async def test_closing_one_of_two_waits_for_no_file_that_is_gone(path: Path) -> None:
    async with aclosing(SQLiteStore(path)) as other:
        await other.open()
        store = SQLiteStore(path)
        await store.open()
        await asyncio.to_thread(path.unlink)
        async with asyncio.timeout(10):
            await store.aclose()


async def test_each_store_reports_only_its_own_calls_of_a_shared_transaction(
    path: Path,
) -> None:
    async with aclosing(SQLiteStore(path)) as one, aclosing(SQLiteStore(path)) as two:
        await one.open()
        told: list[tuple[str, int]] = []
        one.flushes.add(lambda calls, _: told.append(("one", calls)))
        two.flushes.add(lambda calls, _: told.append(("two", calls)))
        claims = [(one, "a"), (two, "b"), (one, "c")]
        await asyncio.gather(
            *(s.claim(delivery_key("default", name), new_token(), LEASE) for s, name in claims)
        )
        assert sorted(told) == [("one", 2), ("two", 1)]


async def test_a_loop_that_is_held_up_keeps_no_other_from_its_answer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookonce.stores.sqlite.writer._LOOK_SECONDS", 3_600.0)
    asked, release = threading.Event(), threading.Event()
    async with aclosing(SQLiteStore(path)) as store:
        await store.open()

        async def hold_up() -> None:
            async with aclosing(SQLiteStore(path)) as other:
                asking = asyncio.ensure_future(complete(other, "held up"))
                await asyncio.sleep(0)
                asked.set()
                release.wait(PATIENCE_SECONDS)  # like a handler that blocks the loop
                await asking

        held_up = asyncio.create_task(asyncio.to_thread(asyncio.run, hold_up()))
        await asyncio.to_thread(asked.wait)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS / 2):
                await complete(store, "free")
        finally:
            release.set()
            await held_up


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_thread_that_has_ended_is_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(_: object, __: float) -> None:
        monkeypatch.undo()
        raise SystemExit

    async with aclosing(SQLiteStore(path)) as store:
        await store.open()
        monkeypatch.setattr("hookonce.stores.sqlite.writer.answer", end)
        unanswered = asyncio.ensure_future(store.open())
        await until(lambda: not threads_of(path))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await complete(store, "evt_1")
        unanswered.cancel()
    assert threads_of(path) == []


async def test_each_store_remembers_for_its_own_retention(path: Path) -> None:
    longer = DEFAULT_RETENTION * 2
    async with (
        aclosing(SQLiteStore(path)) as short,
        aclosing(SQLiteStore(path, retention=longer)) as long,
    ):
        before, after = await complete(short, "short"), await complete(long, "long")
    connection = sqlite_connection(path)
    ends = [end for (end,) in connection.execute("SELECT expires FROM done ORDER BY expires")]
    connection.close()
    assert before != after
    apart = timedelta(seconds=ends[1] - ends[0])
    assert abs(apart - (longer - DEFAULT_RETENTION)) < timedelta(minutes=1)
