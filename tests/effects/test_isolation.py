"""Isolation levels of transactions, and transactions that conflict."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import StaticPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from support.deliveries import comment, deliver, receiver_on
from support.postgres import PostgresServer

from hookonce.effects import create_sql
from hookonce.effects.psycopg import PsycopgLedger
from hookonce.effects.sqlalchemy import SQLAlchemyLedger, SyncSQLAlchemyLedger
from hookonce.events import CommentReceived

from .shops import Shop

pytestmark = pytest.mark.anyio


@pytest.fixture
def tables(postgres: PostgresServer) -> PostgresServer:
    for statement in create_sql("postgresql").split(";\n")[:-1]:
        postgres.execute(statement)
    postgres.execute("CREATE TABLE stock (item text PRIMARY KEY, count int)")
    postgres.execute("INSERT INTO stock VALUES ('a', 0), ('b', 0)")
    return postgres


@pytest.fixture
async def pool(tables: PostgresServer) -> AsyncIterator[AsyncConnectionPool[Any]]:
    async with AsyncConnectionPool(tables.url, min_size=0, max_size=4, open=False) as pool:
        yield pool


@pytest.mark.parametrize("options", [{}, {"isolation_level": "SERIALIZABLE"}])
@pytest.mark.parametrize(("asked", "level"), [("", "read committed"), ("SERIALIZABLE",) * 2])
async def test_sqlalchemy_is_read_committed_unless_another_level_is_given(
    options: dict[str, Any], asked: str, level: str, tables: PostgresServer
) -> None:
    engine = create_async_engine(tables.sqlalchemy_url("asyncpg"), **options)
    sessions, levels = async_sessionmaker(engine), []
    more: dict[str, Any] = {"isolation": asked} if asked else {}
    ledger: SQLAlchemyLedger[AsyncSession] = SQLAlchemyLedger(sessions, **more)
    receiver = receiver_on()

    @receiver.on(CommentReceived, within=ledger)
    async def book(_: CommentReceived, session: AsyncSession) -> None:
        levels.append(await session.scalar(text("SHOW transaction_isolation")))

    assert (await deliver(receiver, comment())).status == 200
    assert levels == [level.lower()]
    async with sessions() as session:  # the ledger must not change the user's own sessions
        own = await session.scalar(text("SHOW transaction_isolation"))
    assert own == ("serializable" if options else "read committed")
    await engine.dispose()


@pytest.mark.parametrize("options", [{}, {"isolation": None}])
async def test_a_ledger_begins_transactions_on_an_engine_in_autocommit(
    tables: PostgresServer, options: dict[str, Any]
) -> None:
    engine = create_async_engine(tables.sqlalchemy_url("asyncpg"), isolation_level="AUTOCOMMIT")
    ledger: SQLAlchemyLedger[AsyncSession] = SQLAlchemyLedger(async_sessionmaker(engine), **options)
    receiver = receiver_on()

    @receiver.on(CommentReceived, within=ledger)
    async def book(_: CommentReceived, session: AsyncSession) -> None:
        await session.execute(text("UPDATE stock SET count = 7"))
        raise ValueError

    assert (await deliver(receiver, comment())).status == 500
    assert tables.execute("SELECT count FROM stock") == [(0,), (0,)]
    assert tables.execute("SELECT * FROM hookonce_effects") == []
    await engine.dispose()


async def test_a_ledger_begins_transactions_in_sqlite_and_other_sessions_stay_in_autocommit(
    tmp_path: Path,
) -> None:
    shop, receiver = Shop(tmp_path), receiver_on()
    later = create_async_engine(
        f"sqlite+aiosqlite:///{shop.file}", isolation_level="AUTOCOMMIT", poolclass=StaticPool
    )
    plain = create_engine(f"sqlite:///{shop.file}").execution_options(isolation_level="AUTOCOMMIT")

    @receiver.on(CommentReceived, name="async", within=SQLAlchemyLedger(async_sessionmaker(later)))
    async def book_later(_: CommentReceived, session: AsyncSession) -> None:
        await session.execute(text("INSERT INTO orders VALUES ('never', 'async')"))
        raise ValueError

    @receiver.on(CommentReceived, name="plain", within=SyncSQLAlchemyLedger(sessionmaker(plain)))
    def book(_: CommentReceived, session: Session) -> None:
        session.execute(text("INSERT INTO orders VALUES ('never', 'plain')"))
        raise ValueError

    assert (await deliver(receiver, comment())).status == 500
    assert (shop.orders(), shop.recorded()) == ([], [])
    async with AsyncSession(later) as session:  # the ledger must not change the user's own sessions
        await session.execute(text("INSERT INTO orders VALUES ('own', 'async')"))
    assert shop.orders() == [("own", "async")]
    await later.dispose()
    plain.dispose()
    shop.ledger.close()


async def test_a_ledger_on_a_single_connection_is_rolled_back_with_it(
    tables: PostgresServer,
) -> None:
    """Many test suites run each test in one outer transaction, and never commit it."""
    engine = create_async_engine(tables.sqlalchemy_url("psycopg"))
    async with engine.connect() as connection:
        outer = await connection.begin()
        sessions = async_sessionmaker(connection, join_transaction_mode="create_savepoint")
        receiver = receiver_on()

        @receiver.on(CommentReceived, within=SQLAlchemyLedger(sessions))
        async def book(_: CommentReceived, session: AsyncSession) -> None:
            await session.execute(text("UPDATE stock SET count = 1 WHERE item = 'a'"))

        assert (await deliver(receiver, comment())).status == 200
        assert await connection.scalar(text("SELECT count FROM stock WHERE item = 'a'")) == 1
        await outer.rollback()
    assert tables.execute("SELECT * FROM hookonce_effects") == []
    await engine.dispose()


async def test_a_pool_gets_its_connections_back_with_their_isolation_level(
    pool: AsyncConnectionPool[Any],
) -> None:
    ledger, levels = PsycopgLedger(pool), []
    receiver = receiver_on()

    @receiver.on(CommentReceived, within=ledger)
    async def book(_: CommentReceived, connection: psycopg.AsyncConnection[Any]) -> None:
        levels.append(connection.isolation_level)

    await deliver(receiver, comment())
    async with pool.connection() as connection:
        levels.append(connection.isolation_level)
    assert levels == [IsolationLevel.READ_COMMITTED, None]


async def test_two_events_that_block_each_other_are_both_handled(
    pool: AsyncConnectionPool[Any], tables: PostgresServer
) -> None:
    """PostgreSQL rolls one attempt back (40P01), and the ledger tries it again at once.

    The new transaction may lock its first row before the other transaction wakes up.
    """
    receiver, runs, both = receiver_on(), 0, asyncio.Barrier(2)

    @receiver.on(CommentReceived, within=PsycopgLedger(pool))
    async def book(event: CommentReceived, connection: psycopg.AsyncConnection[Any]) -> None:
        nonlocal runs
        runs += 1
        first, second = ("a", "b") if event.id.endswith("1") else ("b", "a")
        change = "UPDATE stock SET count = count + 1 WHERE item = %s"
        await connection.execute(change, (first,))
        if runs <= 2:
            await both.wait()
        await connection.execute(change, (second,))

    one, two = (deliver(receiver, comment(f"evt_{number}")) for number in (1, 2))
    assert [outcome.status for outcome in await asyncio.gather(one, two)] == [200, 200]
    assert runs >= 3
    assert tables.execute("SELECT count FROM stock ORDER BY item") == [(2,), (2,)]


async def test_a_serialization_failure_is_tried_again_at_once(
    pool: AsyncConnectionPool[Any], tables: PostgresServer
) -> None:
    receiver, runs = receiver_on(), 0
    ledger = PsycopgLedger(pool, isolation=IsolationLevel.SERIALIZABLE)

    @receiver.on(CommentReceived, within=ledger)
    async def book(_: CommentReceived, connection: psycopg.AsyncConnection[Any]) -> None:
        nonlocal runs
        runs += 1
        await connection.execute("SELECT count FROM stock")
        if runs == 1:
            await asyncio.to_thread(tables.execute, "UPDATE stock SET count = count + 1")
        await connection.execute("UPDATE stock SET count = count + 1")

    assert (await deliver(receiver, comment())).status == 200
    assert runs == 2
    assert tables.execute("SELECT count FROM stock") == [(2,), (2,)]
