"""Type checkers infer the transaction's class from the ledger, and check the handler with it."""

from pathlib import Path

import pytest
from support.type_checkers import (
    lines_marked_wrong,
    lines_mypy_refuses,
    lines_pyright_refuses,
)

SNIPPET = """
import sqlite3
from datetime import timedelta

import aiosqlite
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from hookonce import Context, Receiver
from hookonce.effects import (
    FinishingLedger, Ledger, SyncFinishingLedger, SyncLedger, SyncWatermarkLedger, WatermarkLedger
)
from hookonce.effects.aiosqlite import AioSQLiteLedger
from hookonce.effects.psycopg import PsycopgLedger
from hookonce.effects.sqlalchemy import SQLAlchemyLedger, SyncSQLAlchemyLedger
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.events import ChannelUnhealthy, CommentReceived


class OwnSession(AsyncSession): ...


receiver = Receiver(secrets="whsec_")
sessions = SQLAlchemyLedger(async_sessionmaker(class_=OwnSession))
plain = SyncSQLAlchemyLedger(sessionmaker(class_=Session))
file = SQLiteLedger("app.db")
a: WatermarkLedger[OwnSession] = sessions
b: SyncWatermarkLedger[Session] = plain
c: SyncLedger[sqlite3.Connection] = file
d: Ledger[aiosqlite.Connection] = AioSQLiteLedger("app.db")


def psycopg(pool: AsyncConnectionPool[AsyncConnection[tuple[object, ...]]]) -> None:
    e: Ledger[AsyncConnection[tuple[object, ...]]] = PsycopgLedger(pool)
    f: FinishingLedger[AsyncConnection[tuple[object, ...]]] = PsycopgLedger(pool)
    g: SyncFinishingLedger[Session] = plain


@receiver.on(CommentReceived, within=sessions)
async def async_one(event: CommentReceived, session: OwnSession) -> None: ...


@receiver.on("comment.received", within=plain)
def plain_one(event: CommentReceived, session: Session, context: Context) -> None: ...


@receiver.on("channel.*", within=file)
def any_event(event: object, connection: sqlite3.Connection) -> None: ...


@receiver.on(CommentReceived, ChannelUnhealthy, within=file)
def two(event: CommentReceived | ChannelUnhealthy, connection: sqlite3.Connection) -> None: ...


@receiver.on(CommentReceived, within=sessions)  # WRONG
async def another_session(event: CommentReceived, session: sqlite3.Connection) -> None: ...


@receiver.on(CommentReceived, within=file)  # WRONG
def another_event(event: ChannelUnhealthy, connection: sqlite3.Connection) -> None: ...


@receiver.on(CommentReceived, within=file)  # WRONG
def no_transaction(event: CommentReceived) -> None: ...


receiver.on(CommentReceived, within="app.db")  # WRONG

SQLiteLedger("app.db", table="effects", retention=timedelta(days=20))
SQLiteLedger("app.db", retention="20d")  # WRONG
SQLiteLedger("app.db", name="effects")  # WRONG
"""


@pytest.mark.full("8 s of processor time")
def test_mypy_finds_the_six_mistakes_and_no_other(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    assert lines_mypy_refuses(SNIPPET, tmp_path, pytestconfig) == lines_marked_wrong(SNIPPET)


@pytest.mark.full("pyright: 5 s")
def test_pyright_finds_the_six_mistakes_and_no_other(tmp_path: Path) -> None:
    assert lines_pyright_refuses(SNIPPET, tmp_path) == lines_marked_wrong(SNIPPET)
