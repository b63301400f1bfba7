"""No answer relies on a SQLite file that was deleted, renamed or replaced while in use."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, aclosing, closing
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

import pytest
from support.sqlite_files import sqlite_connection
from support.sqlite_processes import child, is_sound
from support.waiting import until, until_async

from hookonce.errors import StoreError
from hookonce.stores.protocols import DEFAULT_RETENTION
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import (
    Claimed,
    Delivery,
    Done,
    InFlight,
    Stored,
    Waiting,
    delivery_key,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 600.0
Move: TypeAlias = Callable[[Path], object]
Call: TypeAlias = Callable[[SQLiteStore], Awaitable[object]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "hooks.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    """Return an open store that has an event in its write-ahead log."""
    store = SQLiteStore(path)
    await put(store, "before")
    yield store
    await store.aclose()


async def put(store: SQLiteStore, event_id: str) -> object:
    return await store.enqueue(Delivery("default", event_id, None, 1.0, b"body"), new_token())


async def complete(store: SQLiteStore, event_id: str) -> None:
    claim = await store.claim(delivery_key("default", event_id), new_token(), LEASE)
    assert isinstance(claim, Claimed)
    await store.complete(claim)


async def held_in(path: Path, event_ids: Iterable[str]) -> list[str]:
    """Return the events that a new process finds either in the inbox or done."""
    async with aclosing(SQLiteStore(path)) as restarted:
        return [
            event_id
            for event_id in event_ids
            if type(await restarted.claim(delivery_key("default", event_id), new_token(), LEASE))
            in {Done, InFlight}
        ]


async def usable(store: SQLiteStore) -> None:
    """Return once the store can be used; it may need a call or two to notice the new file."""

    async def works() -> bool:
        try:
            await store.open()
        except StoreError:
            return False
        return True

    await until_async(works, what="the store can be used")


def backup(path: Path) -> Path:
    """Copy the file as `sqlite3 .backup` does, and return the copy."""
    copy = path.with_name("backup.db")
    with (
        closing(sqlite_connection(path)) as here,
        closing(sqlite_connection(copy)) as there,
        there.backup("main", here, "main") as going,
    ):
        going.step()
    with closing(sqlite_connection(copy)) as there:
        there.pragma("journal_mode", "delete")
    return copy


def with_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def unlinked(*suffixes: str) -> Move:
    def move(path: Path) -> None:
        for suffix in suffixes:
            with_suffix(path, suffix).unlink()

    return move


def renamed(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def folder_renamed(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def put_back(path: Path) -> None:
    if path.parent.exists():
        path.with_name("elsewhere.db").rename(path)
    else:
        path.parent.with_name("elsewhere").rename(path.parent)


def files_in(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()} if folder.exists() else set()


GONE = [
    pytest.param(unlinked(""), id="deleted"),
    pytest.param(unlinked("", "-wal", "-shm"), id="deleted with its log and index"),
    pytest.param(renamed, id="renamed"),
    pytest.param(folder_renamed, id="its folder renamed"),
]


@pytest.mark.parametrize("move", GONE)
@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda store: put(store, "late"), id="enqueue"),
        pytest.param(
            lambda store: store.claim(delivery_key("default", "before"), new_token(), LEASE),
            id="claim",
        ),
        pytest.param(lambda store: store.stats(), id="stats"),
        pytest.param(lambda store: store.dead_letters(), id="dead letters"),
        pytest.param(lambda store: store.entries(), id="entries"),
        pytest.param(lambda store: store.prune(), id="prune"),
        pytest.param(
            lambda store: store.fetch(1, LEASE, endpoint="default", worker="w", token=new_token()),
            id="fetch",
        ),
        pytest.param(lambda store: store.warnings(), id="readiness"),
    ],
)
async def test_with_the_file_gone_no_call_succeeds_and_none_makes_a_new_one(
    path: Path, store: SQLiteStore, move: Move, call: Call
) -> None:
    move(path)
    for _ in range(3):
        with pytest.raises(StoreError, match="put it back"):
            await call(store)
    assert files_in(path.parent) & {path.name} == set()


async def test_a_completion_is_not_recorded_in_a_file_that_is_gone(
    path: Path, store: SQLiteStore
) -> None:
    claim = await store.claim(delivery_key("default", "evt_1"), new_token(), LEASE)
    assert isinstance(claim, Claimed)
    unlinked("")(path)
    with pytest.raises(StoreError):
        await store.complete(claim)


@pytest.mark.sample(1)
@pytest.mark.parametrize("move", GONE)
async def test_that_the_file_is_gone_is_logged_once_even_if_nobody_calls(
    path: Path, store: SQLiteStore, move: Move, caplog: pytest.LogCaptureFixture
) -> None:
    move(path)
    await until(lambda: caplog.records, what="it is noticed")
    for _ in range(20):
        with pytest.raises(StoreError):
            await put(store, "late")
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert str(path) in record.getMessage()


@pytest.mark.parametrize("move", GONE)
async def test_after_a_restart_a_new_file_is_begun(
    path: Path, store: SQLiteStore, move: Move
) -> None:
    move(path)
    with pytest.raises(StoreError):
        await store.open()
    path.parent.mkdir(exist_ok=True)
    await store.aclose()
    async with aclosing(SQLiteStore(path)) as restarted:
        assert await put(restarted, "before") == Stored()
        assert await put(store, "before") == Waiting()  # the store object opens the new file
    await store.aclose()
    assert is_sound(path)


@pytest.mark.parametrize("move", [renamed, folder_renamed])
@pytest.mark.parametrize("notices", [True, False], ids=["noticed", "unnoticed"])
async def test_what_is_put_back_is_used_again_and_has_lost_nothing(
    path: Path,
    store: SQLiteStore,
    move: Move,
    notices: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    move(path)
    if notices:
        with pytest.raises(StoreError):
            await put(store, "refused")
    put_back(path)
    await usable(store)
    await put(store, "after")
    assert await held_in(path, ["before", "refused", "after"]) == ["before", "after"]
    assert is_sound(path)
    if notices:
        assert "can be used again" in caplog.text


async def test_a_file_that_was_moved_away_takes_along_what_was_in_its_log(
    path: Path, store: SQLiteStore
) -> None:
    renamed(path)
    with pytest.raises(StoreError):
        await store.open()
    elsewhere = path.with_name("elsewhere.db")
    assert files_in(path.parent) == {elsewhere.name}
    await store.aclose()
    assert await held_in(elsewhere, ["before"]) == ["before"]


async def test_a_file_put_in_its_place_is_used_as_it_is(path: Path, store: SQLiteStore) -> None:
    copy = backup(path)
    await put(store, "since the backup")
    copy.replace(path)
    await usable(store)
    assert await put(store, "before") == Waiting()
    assert await put(store, "since the backup") == Stored()
    assert await held_in(path, ["before", "since the backup"]) == ["before", "since the backup"]
    assert is_sound(path)


async def test_a_file_in_its_place_that_is_none_of_ours_is_refused_and_left_alone(
    path: Path, store: SQLiteStore
) -> None:
    other = path.with_name("other")
    other.write_text("a text file, " * 100)
    other.replace(path)
    for _ in range(2):
        with pytest.raises(StoreError):
            await put(store, "late")
    with pytest.raises(StoreError, match="not an SQLite database"):
        await put(store, "late")
    assert await asyncio.to_thread(path.read_text) == "a text file, " * 100


@pytest.mark.parametrize(
    "suffixes", [["-wal"], ["-shm"], ["-wal", "-shm"]], ids=["log", "index", "both"]
)
@pytest.mark.parametrize("others", [0, 2], ids=["alone", "three stores"])
async def test_without_its_log_or_index_nothing_that_was_stored_is_lost(
    path: Path, store: SQLiteStore, suffixes: list[str], others: int
) -> None:
    async with AsyncExitStack() as stack:
        stores = [store]
        for number in range(others):
            # A store with another retention gets a writer of its own.
            retention = DEFAULT_RETENTION + timedelta(days=number + 1)
            other = SQLiteStore(path, retention=retention)
            stores.append(await stack.enter_async_context(aclosing(other)))
            await put(stores[-1], f"other {number}")
        unlinked(*suffixes)(path)
        for each in stores:
            with pytest.raises(StoreError, match="deleted or replaced while in use"):
                await put(each, "refused")
        for number, each in enumerate(stores):
            await usable(each)
            await put(each, f"after {number}")
        for each in stores:
            await usable(each)
            await put(each, "again")
    await store.aclose()
    names = [f"{name} {n}" for name in ("other", "after") for n in range(others)]
    assert await held_in(path, ["before", *names, "again"]) == ["before", *names, "again"]
    assert is_sound(path)


async def test_a_link_that_is_switched_leads_to_the_other_file(tmp_path: Path) -> None:
    link = tmp_path / "current.db"
    link.symlink_to("blue.db")
    async with aclosing(SQLiteStore(link)) as store:
        await put(store, "blue")
        other = tmp_path / "switching.db"
        other.symlink_to("green.db")
        async with aclosing(SQLiteStore(tmp_path / "green.db")) as green:
            await green.open()
            other.replace(link)
            await usable(store)
            await put(store, "green")
            assert await put(green, "green") == Waiting()
            # A write to the new file's log also wakes the workers of the store behind the link.
            await store.fetch(1, LEASE, endpoint="default", worker="w", token=new_token())
            waiting = asyncio.create_task(store.wait("default", 30.0))
            await put(green, "woken")
            await asyncio.wait_for(waiting, 15.0)
    assert await held_in(tmp_path / "blue.db", ["blue", "green"]) == ["blue"]
    assert await held_in(tmp_path / "green.db", ["blue", "green"]) == ["green"]


async def test_two_processes_both_go_over_to_the_file_in_its_place(path: Path) -> None:
    async with child("insist", path, "a") as a, child("insist", path, "b") as b:
        both = (a, b)
        assert [await each.line() for each in both] == ["ready", "ready"]
        stored: list[str] = []
        for turn in range(45):
            if turn % 10 == 9:
                copy = backup(path)
                stored.clear()  # the operator accepts the loss of events that are not in the backup
                copy.replace(path)
            for each in both:
                each.tell(str(turn))
            for each in both:
                verdict, event_id = (await each.line()).split()
                if verdict == "stored":
                    stored.append(event_id)
        assert len(stored) >= 2
        assert await held_in(path, stored) == stored
    assert is_sound(path)


async def test_whatever_is_done_to_the_file_under_load_what_is_answered_is_at_the_path(
    path: Path, store: SQLiteStore
) -> None:
    chance = random.Random(7)
    stored: list[str] = []
    refused = 0
    stopped = False

    async def lane(name: int, store: SQLiteStore) -> None:
        nonlocal refused
        number = 0
        while not stopped:
            number += 1
            event_id = f"evt_{name}_{number}"
            begun_in = generation
            try:
                await put(store, event_id)
            except StoreError:
                refused += 1
                await asyncio.sleep(0.005)
                continue
            if begun_in == generation:
                stored.append(event_id)

    generation = 0
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(aclosing(SQLiteStore(path)))
        await other.open()
        lanes = [
            asyncio.create_task(lane(number, each))
            for number, each in enumerate([store, other] * 4)
        ]
        for turn in range(24):
            enough = len(stored) + chance.randrange(20, 200)
            await until(lambda enough=enough: len(stored) >= enough, what="events are stored")  # type: ignore[misc] # mypy cannot infer a default's type
            kind = turn % 3
            if kind == 0:
                copy = await asyncio.to_thread(backup, path)
                stored.clear()
                generation += 1
                os.replace(copy, path)
            elif kind == 1:
                with_suffix(path, "-shm").unlink()
            else:
                renamed(path)
                await asyncio.sleep(chance.uniform(0.0, 0.05))
                put_back(path)
            await usable(store)
            await usable(other)
        stopped = True
        await asyncio.gather(*lanes)
    await store.aclose()
    assert refused
    assert await held_in(path, stored) == stored
    assert is_sound(path)
