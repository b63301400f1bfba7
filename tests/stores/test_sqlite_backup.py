"""A backup of a SQLite store is complete, even if it is made while the store is in use."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest
from support.disks import NoDiskError, small_disk
from support.sqlite_files import sqlite_connection
from support.sqlite_processes import child, is_sound

from hookonce.errors import StoreError
from hookonce.stores.sqlite import SQLiteStore, backup
from hookonce.stores.sqlite.file import OpenFile
from hookonce.stores.sqlite.schema import create_private
from hookonce.stores.values import Delivery, new_token

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "hooks.db"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    (tmp_path / "copies").mkdir()
    return tmp_path / "copies" / "copy.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    async with aclosing(SQLiteStore(path)) as store:
        await put(store, "before")
        yield store


async def put(store: SQLiteStore, event_id: str, body: bytes = b"body") -> object:
    return await store.enqueue(Delivery("default", event_id, None, 1.0, body), new_token())


async def events_in(path: Path) -> set[str]:
    async with aclosing(SQLiteStore(path)) as store:
        return {entry.delivery.event_id for entry in await store.entries(limit=100_000)}


def status_of(path: Path) -> os.stat_result:
    return path.stat()


def files_beside(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir())


async def test_a_backup_has_every_answered_call_while_two_processes_use_the_store(
    path: Path, store: SQLiteStore, copy: Path
) -> None:
    answered: list[str] = []
    ended = False

    async def lane(name: int) -> None:
        number = 0
        while not ended:
            number += 1
            await put(store, f"evt_{name}_{number}")
            answered.append(f"evt_{name}_{number}")
            await asyncio.sleep(0.005)

    async with child("insist", path, "other") as other:
        assert await other.line() == "ready"
        lanes = [asyncio.create_task(lane(name)) for name in range(4)]
        for turn in range(8):
            other.tell(str(turn))
            verdict, event_id = (await other.line()).split()
            if verdict == "stored":  # on a busy machine, other calls may hold the lock too long
                answered.append(event_id)
            before = set(answered)
            size = await store.backup(copy, overwrite=turn > 0)
            assert status_of(copy).st_size == size
            assert files_beside(copy) == [copy.name]
            assert is_sound(copy)
            assert await events_in(copy) >= before
        ended = True
        await asyncio.gather(*lanes)
    assert len(answered) > 20
    assert any(event_id.startswith("other_") for event_id in answered)
    assert await events_in(path) >= set(answered)
    assert is_sound(path)


async def test_a_backup_can_be_read_by_its_owner_alone_under_any_umask(
    store: SQLiteStore, copy: Path
) -> None:
    mask = os.umask(0)
    try:
        await store.backup(copy)
    finally:
        os.umask(mask)
    assert status_of(copy).st_mode & 0o777 == 0o600


async def test_a_backup_holds_no_deleted_body(store: SQLiteStore, copy: Path) -> None:
    await put(store, "evt_1", b"a body that nobody may find again " * 400)
    batch = await store.fetch(10, 60.0, endpoint="default", worker="w", token=new_token())
    for taken in batch.fetched:
        await store.complete(taken.claim)
    await store.backup(copy)
    assert b"nobody may find" not in await asyncio.to_thread(copy.read_bytes)


async def test_a_store_that_nobody_uses_can_be_copied_and_is_left_alone(
    path: Path, copy: Path
) -> None:
    async with aclosing(SQLiteStore(path)) as store:
        await put(store, "evt_1")
    await SQLiteStore(path).backup(copy)
    assert files_beside(path) == [path.name]
    assert await events_in(copy) == {"evt_1"}
    again = copy.with_name("again.db")
    await SQLiteStore(copy).backup(again)  # a backup of a backup is possible
    assert await events_in(again) == {"evt_1"}


async def test_nothing_is_overwritten_unless_asked(store: SQLiteStore, copy: Path) -> None:
    await asyncio.to_thread(copy.write_text, "something else")
    with pytest.raises(StoreError, match="exists already"):
        await store.backup(copy)
    assert await asyncio.to_thread(copy.read_text) == "something else"
    await store.backup(copy, overwrite=True)
    assert await events_in(copy) == {"before"}


@pytest.mark.parametrize("exists", [True, False])
async def test_what_a_link_leads_to_is_not_written(
    store: SQLiteStore, copy: Path, exists: bool
) -> None:
    other = copy.with_name("other")
    if exists:
        await asyncio.to_thread(other.write_text, "something else")
    os.symlink(other, copy)
    with pytest.raises(StoreError, match="exists already"):
        await store.backup(copy)
    await store.backup(copy, overwrite=True)
    assert stat.S_ISREG(os.lstat(copy).st_mode)
    assert other.exists() is exists
    assert not exists or await asyncio.to_thread(other.read_text) == "something else"


@pytest.mark.parametrize("exists", [True, False])
async def test_a_link_that_takes_the_draft_s_place_is_not_followed(
    store: SQLiteStore, copy: Path, exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VACUUM INTO would follow the link, so the folder's owner could make root write anywhere."""
    other = copy.parent.with_name("other")
    if exists:
        other.touch()

    class Swapped(OpenFile):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            [draft] = copy.parent.iterdir()
            draft.unlink()
            draft.symlink_to(other)

    monkeypatch.setattr(backup, "OpenFile", Swapped)
    with pytest.raises(StoreError, match="the backup to"):
        await store.backup(copy)
    assert other.exists() is exists
    assert not exists or other.read_bytes() == b""
    assert files_beside(copy) == []


async def test_a_link_among_the_folders_of_a_backup_is_followed(
    store: SQLiteStore, copy: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(copy.parent)
    await store.backup(tmp_path / "link" / copy.name)
    assert await events_in(copy) == {"before"}


@pytest.mark.parametrize("name", ["hooks.db", "hooks.db-wal", "hooks.db-shm", "link", "hard"])
async def test_the_store_is_not_copied_over_itself(
    path: Path, store: SQLiteStore, name: str
) -> None:
    path.with_name("link").symlink_to(path)
    path.with_name("hard").hardlink_to(path)
    with pytest.raises(StoreError, match="a file of the store itself"):
        await store.backup(path.with_name(name), overwrite=True)
    await put(store, "after")


async def test_beside_the_log_of_another_database_no_copy_is_put(
    store: SQLiteStore, copy: Path
) -> None:
    copy.with_name("copy.db-wal").touch()
    for overwrite in (False, True):
        with pytest.raises(StoreError, match="belongs to an earlier database"):
            await store.backup(copy, overwrite=overwrite)


async def test_where_it_cannot_be_written_the_error_says_why(
    store: SQLiteStore, copy: Path
) -> None:
    with pytest.raises(StoreError, match="No such file or directory"):
        await store.backup(copy.parent / "nowhere" / "copy.db")
    with pytest.raises(StoreError, match="is a folder"):
        await store.backup(copy.parent)
    with pytest.raises(StoreError, match="File name too long"):
        await store.backup(copy.with_name("n" * 300))
    assert files_beside(copy) == []


async def test_a_device_is_not_replaced_by_a_file(store: SQLiteStore, copy: Path) -> None:
    """A backup to /dev/null must not replace the device by a file."""
    os.mkfifo(copy)
    with pytest.raises(StoreError, match="is not a regular file"):
        await store.backup(copy, overwrite=True)
    assert stat.S_ISFIFO(status_of(copy).st_mode)


async def test_where_there_are_no_hard_links_nothing_is_overwritten_either(
    store: SQLiteStore, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    await store.backup(copy)
    assert await events_in(copy) == {"before"}
    with pytest.raises(StoreError, match="exists already"):
        await store.backup(copy)
    assert files_beside(copy) == [copy.name]


async def test_a_folder_that_is_closed_to_this_user_is_named_as_such(
    store: SQLiteStore, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreError, match="this user may not write there; choose a folder"):
        await store.backup(copy)


async def test_a_file_that_appears_meanwhile_stays(
    store: SQLiteStore, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def appear(descriptor: int) -> None:
        copy.write_text("somebody else's")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", appear)
    with pytest.raises(StoreError, match="File exists"):
        await store.backup(copy)
    assert await asyncio.to_thread(copy.read_text) == "somebody else's"
    assert files_beside(copy) == [copy.name]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
async def test_a_folder_that_cannot_be_synced_is_an_error_unless_none_can_be_there(
    store: SQLiteStore, copy: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    fsync = os.fsync

    def refuse(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    if code == errno.EINVAL:
        await store.backup(copy)
    else:
        with pytest.raises(StoreError, match="Input/output error"):
            await store.backup(copy)


async def test_a_backup_to_a_full_disk_leaves_no_file(store: SQLiteStore, tmp_path: Path) -> None:
    await put(store, "large", bytes(3 * 1024 * 1024))
    try:
        with small_disk(tmp_path, 1) as disk:
            with pytest.raises(StoreError, match="the disk is full"):
                await store.backup(disk / "copy.db")
            assert list(disk.iterdir()) == []
    except NoDiskError as error:
        pytest.skip(str(error))


async def test_only_a_store_of_ours_is_copied(path: Path, copy: Path) -> None:
    with pytest.raises(StoreError, match="does its folder exist"):
        await SQLiteStore(path).backup(copy)
    create_private(path)
    with pytest.raises(StoreError, match="nothing to back up"):
        await SQLiteStore(path).backup(copy)
    with closing(sqlite_connection(path)) as connection:
        connection.execute("CREATE TABLE others (x)")
    with pytest.raises(StoreError, match="belongs to another program"):
        await SQLiteStore(path).backup(copy)
    assert files_beside(path) == [path.name]
    assert files_beside(copy) == []


async def test_a_damaged_store_gives_no_backup(path: Path, copy: Path) -> None:
    async with aclosing(SQLiteStore(path)) as store:
        for number in range(200):
            await put(store, f"evt_{number}", bytes(1_000))
    content = bytearray(await asyncio.to_thread(path.read_bytes))
    content[8 * 4096 : 20 * 4096] = b"\xff" * (12 * 4096)
    await asyncio.to_thread(path.write_bytes, content)
    with pytest.raises(StoreError, match="damaged"):
        await SQLiteStore(path).backup(copy)
    assert files_beside(copy) == []
