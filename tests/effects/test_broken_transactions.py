"""Transactions broken on the driver's connection: without a commit, no success is reported."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped] # asyncpg has no annotations that a checker could read
import pytest
from support.deliveries import comment, deliver, receiver_on
from support.postgres import PostgresServer

from hookonce.effects import create_sql
from hookonce.effects.asyncpg import AsyncpgLedger
from hookonce.effects.ledger import is_async_ledger
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.events import CommentReceived

from .benches import ON_POSTGRES, ON_SQLITE, TABLE
from .breaking import BROKEN_IN_POSTGRES, COMMITTED, ROLLED_BACK, SAVEPOINTS, Way, handler_of

pytestmark = [pytest.mark.anyio, pytest.mark.sample(30, of="file")]


async def statuses(parts: dict[str, Any], way: Way) -> list[int]:
    """Deliver an event twice, and break the first transaction; return the answers' statuses."""
    event, ways = comment(), [way]
    handler = handler_of(parts, lambda _: ways.pop() if ways else None, lambda _: "whole")
    receiver = receiver_on()
    register: Callable[..., Any] = receiver.on
    register(CommentReceived, name="book", within=parts["ledger"])(handler)
    return [(await deliver(receiver, event)).status for _ in range(2)]


@pytest.fixture
def tables(postgres: PostgresServer) -> PostgresServer:
    for statement in (*create_sql("postgresql").split(";\n")[:-1], TABLE):
        postgres.execute(statement)
    return postgres


@pytest.mark.parametrize("way", BROKEN_IN_POSTGRES)
@pytest.mark.parametrize("name", ON_POSTGRES)
async def test_work_that_postgresql_rolled_back_has_failed_and_the_next_attempt_does_it(
    name: str, way: Way, tables: PostgresServer
) -> None:
    async with ON_POSTGRES[name](tables.url, time.time) as parts:
        assert await statuses(parts, way) == [500, 200]
    assert tables.execute("SELECT key FROM done") == [("whole",)]


@pytest.mark.parametrize("way", COMMITTED)
@pytest.mark.parametrize("name", ON_POSTGRES)
async def test_work_committed_in_part_in_postgresql_is_never_a_success(
    name: str, way: Way, tables: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with ON_POSTGRES[name](tables.url, time.time) as parts:
        assert await statuses(parts, way) == [500, 500]
    assert "was committed before its end" in caplog.text
    assert tables.execute("SELECT key FROM done") == [("half",)]


@pytest.mark.parametrize("way", SAVEPOINTS)
@pytest.mark.parametrize("name", ON_POSTGRES)
async def test_a_handler_may_use_savepoints_in_postgresql(
    name: str, way: Way, tables: PostgresServer
) -> None:
    async with ON_POSTGRES[name](tables.url, time.time) as parts:
        assert await statuses(parts, way) == [200, 200]
    assert tables.execute("SELECT key FROM done") == [("whole",)]


async def search_path_of_a_tenant(
    server: PostgresServer, **options: Any
) -> tuple[int, list[tuple[Any, ...]]]:
    """Change the search_path in a handler; return the answer's status, and the handler's rows."""
    async with asyncpg.create_pool(server.url, min_size=0) as pool:
        receiver = receiver_on()

        @receiver.on(CommentReceived, within=AsyncpgLedger(pool, **options))
        async def book(_: CommentReceived, connection: Any) -> None:
            await connection.execute("SET LOCAL search_path TO tenant")
            await connection.execute("INSERT INTO public.done VALUES ('whole')")

        outcome = await deliver(receiver, comment())
    return outcome.status, server.execute("SELECT key FROM public.done")


async def test_a_handler_may_change_the_search_path_if_the_table_is_named_with_its_schema(
    tables: PostgresServer,
) -> None:
    named = await search_path_of_a_tenant(tables, table="public.hookonce_effects")
    assert named == (200, [("whole",)])


async def test_without_the_schema_the_error_says_to_name_it(
    tables: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert await search_path_of_a_tenant(tables) == (500, [])
    assert "name the ledger's table with its schema" in caplog.text


async def test_a_row_committed_by_another_attempt_does_not_make_this_attempt_a_success(
    tables: PostgresServer,
) -> None:
    """The first attempt has lost its own row; the row that it finds is the second attempt's."""
    async with ON_POSTGRES["asyncpg"](tables.url, time.time) as parts:
        first, second, event = receiver_on(), receiver_on(), comment()

        @first.on(CommentReceived, name="book", within=parts["ledger"])
        async def loses(_: CommentReceived, connection: Any) -> None:
            await parts["write"](connection, "lost")
            await connection.execute("ROLLBACK; BEGIN")
            assert (await deliver(second, event)).status == 200

        @second.on(CommentReceived, name="book", within=parts["ledger"])
        async def book(_: CommentReceived, connection: Any) -> None:
            await parts["write"](connection, "whole")

        assert [(await deliver(first, event)).status for _ in range(2)] == [500, 200]
    assert tables.execute("SELECT key FROM done") == [("whole",)]


@pytest.mark.parametrize("name", [name for name in ON_POSTGRES if name.startswith("sqlalchemy")])
async def test_a_handler_that_commits_its_session_never_succeeds(
    name: str, tables: PostgresServer
) -> None:
    """SQLAlchemy refuses statements after the commit, so half of the work is missing."""
    event, receiver = comment(), receiver_on()
    async with ON_POSTGRES[name](tables.url, time.time) as parts:

        def half_in_a_thread(_: CommentReceived, session: Any) -> None:
            parts["write"](session, "half")
            session.commit()
            parts["write"](session, "lost")

        async def half(_: CommentReceived, session: Any) -> None:
            await parts["write"](session, "half")
            await session.commit()
            await parts["write"](session, "lost")

        register: Callable[..., Any] = receiver.on
        handler = half if is_async_ledger(parts["ledger"]) else half_in_a_thread
        register(CommentReceived, name="book", within=parts["ledger"])(handler)
        assert [(await deliver(receiver, event)).status for _ in range(2)] == [500, 500]
    assert tables.execute("SELECT key FROM done") == [("half",)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    ledger = SQLiteLedger(tmp_path / "app.db")
    ledger.create_table()
    with ledger.transaction() as connection:
        connection.execute(TABLE)
    ledger.close()
    return tmp_path / "app.db"


def rows(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as connection:
        return [key for (key,) in connection.execute("SELECT key FROM done")]


@pytest.mark.parametrize("way", ROLLED_BACK)
@pytest.mark.parametrize("name", ON_SQLITE)
async def test_work_that_sqlite_rolled_back_has_failed_and_the_next_attempt_does_it(
    name: str, way: Way, file: Path
) -> None:
    async with ON_SQLITE[name](str(file), time.time) as parts:
        assert await statuses(parts, way) == [500, 200]
    assert rows(file) == ["whole"]


@pytest.mark.parametrize("way", COMMITTED)
@pytest.mark.parametrize("name", ON_SQLITE)
async def test_work_committed_in_part_in_sqlite_is_never_a_success(
    name: str, way: Way, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ON_SQLITE[name](str(file), time.time) as parts:
        assert await statuses(parts, way) == [500, 500]
    assert "was committed before its end" in caplog.text
    assert rows(file) == ["half"]


@pytest.mark.parametrize("way", SAVEPOINTS)
@pytest.mark.parametrize("name", ON_SQLITE)
async def test_a_handler_may_use_savepoints_in_sqlite(name: str, way: Way, file: Path) -> None:
    async with ON_SQLITE[name](str(file), time.time) as parts:
        assert await statuses(parts, way) == [200, 200]
    assert rows(file) == ["whole"]


async def test_a_nested_transaction_that_is_left_open_is_committed(file: Path) -> None:
    """The nested transaction is a savepoint, which the session releases at the commit."""
    receiver = receiver_on()
    async with ON_SQLITE["sqlalchemy-sqlite3"](str(file), time.time) as parts:

        @receiver.on(CommentReceived, name="book", within=parts["ledger"])
        def book(_: CommentReceived, session: Any) -> None:
            session.begin_nested()
            parts["write"](session, "whole")

        assert (await deliver(receiver, comment())).status == 200
    assert rows(file) == ["whole"]
