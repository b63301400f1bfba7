"""No other SQLite library in a process opens the files of an open store."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from support.sqlite_files import sqlite_connection
from support.sqlite_processes import is_sound

from hookonce.errors import StoreError
from hookonce.stores.protocols import DEFAULT_RETENTION
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Delivery, Stored, Waiting, new_token

pytestmark = [pytest.mark.anyio, pytest.mark.sample(25, of="file")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hooks.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    async with aclosing(SQLiteStore(path)) as store:
        await put(store, "before")
        yield store


async def put(store: SQLiteStore, event_id: str) -> object:
    return await store.enqueue(Delivery("default", event_id, None, 1.0, b"body"), new_token())


WAYS: dict[str, Callable[[Path], Any]] = {
    "sqlite3": lambda path: closing(sqlite3.connect(path)).__enter__(),
    "sqlite3, text": lambda path: sqlite3.connect(str(path)),
    "sqlite3, bytes": lambda path: sqlite3.connect(os.fsencode(path)),
    "sqlite3, URI": lambda path: sqlite3.connect(f"file:{path}?mode=ro", uri=True),
    "sqlite3, URI in bytes": lambda path: sqlite3.connect(
        os.fsencode(f"file:{path}#part"), uri=True
    ),
    "sqlite3, URI as a path": lambda path: sqlite3.connect(
        Path(f"file:{os.path.relpath(path)}?mode=ro"), uri=True
    ),
    "sqlite3, URI of this machine": lambda path: sqlite3.connect(
        f"file://localhost{path}".replace("hooks", "%68ooks"), uri=True
    ),
    "sqlite3, relative": lambda path: sqlite3.connect(os.path.relpath(path)),
    "open": lambda path: path.open("rb"),
    "read": lambda path: path.read_bytes(),
    "os.open": lambda path: os.open(path, os.O_RDONLY),
    "copyfile": lambda path: shutil.copyfile(path, path.with_name("copy")),
}


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("way", WAYS)
async def test_while_the_store_is_open_its_files_are_not_opened(
    path: Path, store: SQLiteStore, way: str, suffix: str
) -> None:
    with pytest.raises(PermissionError, match="hookonce store backup"):
        WAYS[way](Path(f"{path}{suffix}"))
    assert await put(store, "before") == Waiting()


async def test_a_link_is_seen_through(path: Path, store: SQLiteStore) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    with pytest.raises(PermissionError):
        sqlite3.connect(link)
    await store.open()


async def test_other_files_can_be_opened(tmp_path: Path, store: SQLiteStore) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE t (x)")
    for name in (":memory:", f"file:{store.path}?cache=shared&mode=memory", ""):
        with closing(sqlite3.connect(name, uri=True)):
            await store.open()


async def test_after_the_last_store_on_it_is_closed_the_file_is_anybodys(path: Path) -> None:
    async with aclosing(SQLiteStore(path)) as one:
        await one.open()
        other = SQLiteStore(path, retention=DEFAULT_RETENTION + timedelta(days=1))
        await other.open()
        await other.aclose()
        with pytest.raises(PermissionError):
            sqlite3.connect(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM entries").fetchone() == (0,)


@pytest.mark.parametrize(
    "opened",
    [sqlite3.connect, lambda path: path.open("rb")],
    ids=["sqlite3", "open"],
)
async def test_a_file_that_another_library_has_open_is_not_opened_until_it_is_closed(
    path: Path, opened: Callable[[Path], Any]
) -> None:
    async with aclosing(SQLiteStore(path)) as store:
        await store.open()
    async with aclosing(SQLiteStore(path)) as store:
        with closing(opened(path)):
            for _ in range(2):
                with pytest.raises(StoreError, match="another library of this process"):
                    await put(store, "evt_1")
        assert await put(store, "evt_1") == Stored()


async def test_another_library_is_found_while_another_store_is_busy(path: Path) -> None:
    """A connection that runs a statement cannot tell which file it has open."""
    async with aclosing(SQLiteStore(path)) as store:
        await store.open()
    is_busy, ended = threading.Event(), threading.Event()
    counting = "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"

    def pause() -> bool:
        is_busy.set()
        return ended.is_set()

    def count(connection: apsw.Connection) -> None:
        connection.set_progress_handler(pause, 1_000)
        connection.execute(counting).get  # noqa: B018 - reading the attribute runs the statement

    async with aclosing(SQLiteStore(path.with_name("other.db"))) as other:
        counted = other._run(count)
        try:
            await asyncio.to_thread(is_busy.wait)
            async with aclosing(SQLiteStore(path)) as store:
                with (
                    closing(sqlite3.connect(path)),
                    pytest.raises(StoreError, match="another library of this process"),
                ):
                    await store.open()
                await store.open()
        finally:
            ended.set()
        with pytest.raises(StoreError):
            await counted


async def test_connections_of_the_same_library_are_no_danger(
    path: Path, store: SQLiteStore
) -> None:
    with closing(sqlite_connection(path)) as connection:
        assert connection.execute("SELECT count(*) FROM entries").get == 1
        other = SQLiteStore(path, retention=DEFAULT_RETENTION + timedelta(days=1))
        async with aclosing(other):
            assert await put(other, "evt_1") == Stored()
    assert await put(store, "evt_1") == Waiting()


async def test_a_file_put_in_the_place_of_the_old_is_guarded_and_the_old_is_not(
    path: Path, store: SQLiteStore
) -> None:
    copy = path.with_name("copy.db")
    await store.backup(copy)
    kept = path.with_name("kept.db")
    kept.hardlink_to(path)
    copy.replace(path)
    with pytest.raises(StoreError, match="replaced"):
        await store.open()
    await store.open()
    with pytest.raises(PermissionError):
        sqlite3.connect(path)
    with closing(sqlite3.connect(kept)):
        pass


async def test_a_child_by_fork_is_refused_what_it_has_open_itself(path: Path) -> None:
    program = f"""
import asyncio, os, sqlite3, sys
from hookonce.stores.sqlite import SQLiteStore

async def use():
    store = SQLiteStore({str(path)!r})
    await store.open()
    try:
        sqlite3.connect({str(path)!r})
    except PermissionError:
        print("refused", flush=True)
    await store.aclose()

asyncio.run(use())
sqlite3.connect({str(path)!r}).close()
if os.fork():
    _, status = os.wait()
    sys.exit(status)
asyncio.run(use())
"""
    result = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["refused", "refused"]
    assert not result.stderr
    assert is_sound(path)


async def test_between_a_fork_and_its_next_use_the_file_stays_guarded_in_the_parent(
    path: Path,
) -> None:
    program = f"""
import asyncio, os, sqlite3, sys
from hookonce.stores.sqlite import SQLiteStore

def connect(who):
    try:
        sqlite3.connect({str(path)!r}).close()
    except PermissionError:
        print(who, "is refused", flush=True)
    else:
        print(who, "is not", flush=True)

store = SQLiteStore({str(path)!r})
asyncio.run(store.open())
if not os.fork():
    connect("the child")
    os._exit(0)
os.wait()
connect("the parent")
asyncio.run(store.aclose())
connect("later, the parent")
"""
    result = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    said = ["the child is not", "the parent is refused", "later, the parent is not"]
    assert result.stdout.splitlines() == said


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
async def test_files_that_are_there_are_guarded_while_they_are_opened(
    path: Path, suffix: str
) -> None:
    async with aclosing(SQLiteStore(path)) as store:
        await store.open()
    refused: list[PermissionError] = []

    def pry(_: apsw.Connection) -> None:
        try:
            os.close(os.open(f"{path}{suffix}", os.O_RDONLY))
        except PermissionError as error:
            refused.append(error)

    with closing(sqlite_connection(path)) as keeps_them:
        assert keeps_them.execute("SELECT count(*) FROM entries").get == 0
        apsw.connection_hooks.append(pry)
        try:
            async with aclosing(SQLiteStore(path)) as store:
                await store.open()
        finally:
            apsw.connection_hooks.remove(pry)
    assert len(refused) == 1


COMMANDS = [
    ["inbox", "stats", "{url}"],
    ["inbox", "list", "{url}"],
    ["inbox", "prune", "{url}"],
    ["dead", "list", "{url}"],
    ["store", "backup", "{url}", "copy.db"],
    ["doctor", "app:receiver"],
]


async def test_no_command_of_ours_opens_the_file_by_another_library(path: Path) -> None:
    async with aclosing(SQLiteStore(path)) as store:
        await put(store, "before")
    url = f"sqlite:///{path}"
    path.with_name("app.py").write_text(
        f"from hookonce import Receiver\n"
        f"receiver = Receiver(secrets='whsec_{'A' * 43}=', store={url!r})\n"
    )
    commands = [[word.format(url=url) for word in command] for command in COMMANDS]
    program = f"""
import sys
from hookonce.cli import main

def look(event, arguments):
    if event in ("open", "sqlite3.connect") and "hooks.db" in str(arguments[0]):
        print("OPENED", event, arguments)

sys.addaudithook(look)
for command in {commands!r}:
    print("COMMAND", *command)
    sys.argv[1:] = command
    try:
        main()
    except SystemExit:
        pass
"""
    result = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", program],
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in result.stderr, result.stderr
    shown = result.stdout.split("COMMAND ")[1:]
    assert len(shown) == len(commands), result
    assert all("\n" in said.strip() or "copy.db" in said for said in shown), shown
    assert "OPENED" not in result.stdout, result.stdout
