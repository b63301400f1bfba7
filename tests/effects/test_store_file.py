"""A ledger in the store's own file is refused before anything opens the file."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker
from support.deliveries import SECRET, answer_of, comment, deliver

from hookonce import Receiver
from hookonce.clock import system_clock
from hookonce.effects.aiosqlite import AioSQLiteLedger
from hookonce.effects.django import DjangoLedger
from hookonce.effects.ledger import AnyLedger
from hookonce.effects.sqlalchemy import SQLAlchemyLedger, SyncSQLAlchemyLedger
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.errors import LedgerError, StoreError
from hookonce.events import CommentReceived
from hookonce.operations.doctor import Level
from hookonce.operations.doctor.handlers import ledger_findings
from hookonce.receiver.ledgers import shared_file_fault

from .benches import ON_SQLITE

pytestmark = pytest.mark.anyio

LEDGERS = sorted(ON_SQLITE)


@asynccontextmanager
async def ledger_in(kind: str, file: object) -> AsyncIterator[AnyLedger[Any]]:
    async with ON_SQLITE[kind](str(file), system_clock) as bench:
        yield bench["ledger"]


def receiver_within(ledger: AnyLedger[Any], file: Path) -> Receiver:
    receiver = Receiver(secrets=SECRET, store=f"sqlite:///{file}")
    if isinstance(ledger, SQLAlchemyLedger | AioSQLiteLedger):

        async def book(_: CommentReceived, __: Any) -> None: ...

        receiver.on(CommentReceived, name="book", within=ledger)(book)
    else:

        def book_in_thread(_: CommentReceived, __: Any) -> None: ...

        receiver.on(CommentReceived, name="book", within=ledger)(book_in_thread)
    return receiver


def direct(file: Path) -> Path:
    return file


def by_link(file: Path) -> Path:
    link = file.with_name("link.db")
    link.symlink_to(file)
    return link


def by_hard_link(file: Path) -> Path:
    """Create a file and a hard link to it; return the link."""
    file.touch(0o600)
    link = file.with_name("hard.db")
    link.hardlink_to(file)
    return link


def by_roundabout_path(file: Path) -> Path:
    (file.parent / "folder").mkdir()
    return file.parent / "folder" / ".." / file.name


@pytest.mark.parametrize("way", [direct, by_link, by_hard_link, by_roundabout_path])
@pytest.mark.parametrize("kind", LEDGERS)
async def test_a_ledger_in_the_stores_file_is_refused_at_the_start(
    kind: str, way: Any, tmp_path: Path
) -> None:
    file = tmp_path / "hooks.db"
    async with ledger_in(kind, way(file)) as ledger:
        with pytest.raises(LedgerError, match=r"in the store's own file .*another file"):
            async with receiver_within(ledger, file):
                pass


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("kind", LEDGERS)
async def test_the_doctor_reports_a_ledger_in_the_stores_file_and_opens_neither(
    kind: str, exists: bool, tmp_path: Path
) -> None:
    file = tmp_path / "hooks.db"
    if exists:
        file.touch()
    async with ledger_in(kind, by_link(file)) as ledger:
        [finding] = await ledger_findings(receiver_within(ledger, file).handlers, None, file)
    assert finding.level is Level.FAULT
    assert finding.fix == "give the ledger another file than the store's"
    assert file.exists() is exists
    if exists:
        assert not file.stat().st_size


@pytest.mark.parametrize("kind", LEDGERS)
async def test_a_ledger_whose_path_later_leads_to_the_stores_file_never_opens_it(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, own = tmp_path / "hooks.db", tmp_path / "own.db"
    own.symlink_to(tmp_path / "there.db")
    async with ledger_in(kind, own) as ledger:
        receiver = receiver_within(ledger, file)
        assert shared_file_fault(ledger, file) is None
        async with receiver.opened():
            own.unlink()
            own.symlink_to(file)
            assert answer_of(await deliver(receiver, comment())) == (500, "handler_failed")
            assert "this SQLite store is open in this process" in caplog.text


@pytest.mark.parametrize("kind", LEDGERS)
async def test_a_ledger_in_a_file_of_its_own_is_accepted(kind: str, tmp_path: Path) -> None:
    async with ledger_in(kind, tmp_path / "own.db") as ledger:
        assert shared_file_fault(ledger, tmp_path / "hooks.db") is None
        assert shared_file_fault(ledger, None) is None


@pytest.mark.parametrize(
    "name", ["file:{}", "file:{}?mode=rwc", "file://{}?cache=private", "file://localhost{}"]
)
async def test_the_file_of_a_sqlite_uri_is_compared_with_the_stores_file(
    name: str, tmp_path: Path
) -> None:
    file = tmp_path / "hooks%20with space.db"
    ledger = SQLiteLedger(name.format(str(file).replace("%", "%25").replace(" ", "%20")))
    assert shared_file_fault(ledger, file) is not None


@pytest.mark.parametrize("database", [":memory:", "", "file::memory:?cache=shared"])
async def test_a_database_in_memory_is_accepted(database: str, tmp_path: Path) -> None:
    assert shared_file_fault(SQLiteLedger(database), tmp_path / "hooks.db") is None


async def test_each_of_several_engines_is_compared_with_the_stores_file(tmp_path: Path) -> None:
    class Model: ...

    own, other = (create_engine(f"sqlite:///{tmp_path / name}") for name in ("own.db", "hooks.db"))
    sessions = sessionmaker(own, binds={Model: other})
    ledger = SyncSQLAlchemyLedger(sessions)
    assert shared_file_fault(ledger, tmp_path / "hooks.db") is not None
    assert shared_file_fault(ledger, tmp_path / "another.db") is None


async def test_a_ledger_with_its_own_connect_function_is_refused_when_it_connects(
    tmp_path: Path,
) -> None:
    file = tmp_path / "hooks.db"
    ledger = SQLiteLedger(lambda: sqlite3.connect(file, check_same_thread=False))
    with pytest.raises(LedgerError, match="this SQLite store is open in this process"):
        async with receiver_within(ledger, file):
            pass


async def test_a_ledger_that_opened_the_file_first_keeps_the_store_from_opening(
    tmp_path: Path,
) -> None:
    file = tmp_path / "hooks.db"
    async with receiver_within(DjangoLedger("there_is_none"), file).opened():
        pass
    ledger = SQLiteLedger(file)
    with ledger.transaction():
        pass
    receiver = receiver_within(ledger, file)
    with pytest.raises(StoreError, match="another library of this process, such as sqlite3"):
        async with receiver:
            pass
    ledger.close()
    with pytest.raises(LedgerError, match="in the store's own file"):
        async with receiver:
            pass
