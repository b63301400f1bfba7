"""Type checkers know the class of the transaction from the ledger, and that of the event."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hookonce

SNIPPET = """
import sqlite3
from datetime import timedelta

import aiosqlite
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from hookonce import Context, Receiver
from hookonce.effects import Ledger, MarkingLedger, SyncLedger, SyncMarkingLedger
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
a: MarkingLedger[OwnSession] = sessions
b: SyncMarkingLedger[Session] = plain
c: SyncLedger[sqlite3.Connection] = file
d: Ledger[aiosqlite.Connection] = AioSQLiteLedger("app.db")


def psycopg(pool: AsyncConnectionPool[AsyncConnection[tuple[object, ...]]]) -> None:
    e: Ledger[AsyncConnection[tuple[object, ...]]] = PsycopgLedger(pool)


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
SQLiteLedger("app.db", retention=20)  # WRONG
SQLiteLedger("app.db", name="effects")  # WRONG
"""
WRONG = [number for number, line in enumerate(SNIPPET.splitlines()) if "# WRONG" in line]


@pytest.fixture
def snippet(tmp_path: Path) -> Path:
    (tmp_path / "snippet.py").write_text(SNIPPET)
    return tmp_path


@pytest.mark.full("8 s of processor time")
def test_mypy_finds_the_six_mistakes_and_no_other(
    snippet: Path, request: pytest.FixtureRequest
) -> None:
    kept = getattr(request.config, "cache", None)  # None where pytest was told to keep none
    cache = kept.mkdir("mypy") if kept else snippet / "cache"
    arguments = ["--strict", "--config-file=", f"--cache-dir={cache}", "--no-error-summary"]
    said = subprocess.run(
        [sys.executable, "-m", "mypy", *arguments, "snippet.py"],
        cwd=snippet,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = re.findall(r"snippet\.py:(\d+): error: ", said.stdout)
    assert sorted({int(line) - 1 for line in errors}) == WRONG, said.stdout + said.stderr


@pytest.mark.full("pyright: 5 s")
def test_pyright_finds_the_six_mistakes_and_no_other(snippet: Path) -> None:
    pytest.importorskip("basedpyright", reason="basedpyright is not installed")
    source = str(Path(hookonce.__file__ or "").parents[1])
    settings = {"typeCheckingMode": "standard", "pythonVersion": "3.11", "extraPaths": [source]}
    (snippet / "pyrightconfig.json").write_text(json.dumps(settings))
    command = ["-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "."]
    said = subprocess.run(
        [sys.executable, *command], cwd=snippet, capture_output=True, text=True, check=False
    )
    found = json.loads(said.stdout)["generalDiagnostics"]
    errors = [one for one in found if one["severity"] == "error"]
    assert sorted({one["range"]["start"]["line"] for one in errors}) == WRONG, said.stdout
