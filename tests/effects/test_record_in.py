"""``record_in``: handlers record their effect in a transaction of their own."""

import asyncio
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg  # type: ignore[import-untyped] # asyncpg has no annotations that a checker could read
import psycopg
import pytest
from django.db import connections  # type: ignore[import-untyped] # Django ships no types
from django.db.transaction import atomic  # type: ignore[import-untyped]  # Django ships no types
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from support.deliveries import answer_of, comment, deliver, receiver_on
from support.postgres import PostgresServer

from hookonce import Context
from hookonce.effects import create_sql
from hookonce.effects.aiosqlite import AioSQLiteLedger
from hookonce.effects.django import DjangoLedger
from hookonce.errors import AlreadyDone, LedgerError
from hookonce.events import CommentReceived
from hookonce.stores.values import DeliveryKey

from .benches import ON_POSTGRES
from .shops import Shop

pytestmark = pytest.mark.anyio

INSERT = "INSERT INTO done VALUES ('once')"
Record = Callable[[Context], Awaitable[None]]


async def by_asyncpg(url: str, context: Context) -> None:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await context.record_in(connection)
            await connection.execute(INSERT)
    finally:
        await connection.close()


async def by_asyncpg_pool(url: str, context: Context) -> None:
    async with (
        asyncpg.create_pool(url, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        await context.record_in(connection)
        await connection.execute(INSERT)


async def by_psycopg(url: str, context: Context) -> None:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await context.record_in(connection)
        await connection.execute(INSERT)


async def by_psycopg_in_a_thread(url: str, context: Context) -> None:
    def work() -> None:
        with psycopg.connect(url) as connection:
            context.record_in_sync(connection)
            connection.execute(INSERT)

    await asyncio.to_thread(work)


async def by_sqlalchemy(url: str, context: Context) -> None:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
    try:
        async with AsyncSession(engine) as session, session.begin():
            await context.record_in(session)
            await session.execute(text(INSERT))
    finally:
        await engine.dispose()


async def by_a_connection_of_sqlalchemy(url: str, context: Context) -> None:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        async with engine.begin() as connection:
            await context.record_in(connection)
            await connection.execute(text(INSERT))
    finally:
        await engine.dispose()


async def by_sqlalchemy_in_a_thread(url: str, context: Context) -> None:
    def work() -> None:
        engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        try:
            with Session(engine) as session, session.begin():
                context.record_in_sync(session)
                session.execute(text(INSERT))
        finally:
            engine.dispose()

    await asyncio.to_thread(work)


EACH_DRIVER = pytest.mark.parametrize(
    "own",
    [
        by_asyncpg,
        by_asyncpg_pool,
        by_psycopg,
        by_psycopg_in_a_thread,
        by_sqlalchemy,
        by_a_connection_of_sqlalchemy,
        by_sqlalchemy_in_a_thread,
    ],
)


@EACH_DRIVER
async def test_a_second_attempt_finds_that_the_effect_is_done(
    own: Callable[[str, Context], Awaitable[None]], postgres: PostgresServer
) -> None:
    postgres.execute("CREATE TABLE done (key text)")
    for statement in create_sql("postgresql").split(";\n")[:-1]:
        postgres.execute(statement)
    event, runs = comment(), 0
    for _ in range(2):
        receiver = receiver_on()

        @receiver.on(CommentReceived, name="own")
        async def handler(_: CommentReceived, context: Context) -> None:
            nonlocal runs
            runs += 1
            await own(postgres.url, context)

        assert answer_of(await deliver(receiver, event)) == (200, "handled")
    assert runs == 2
    assert postgres.execute("SELECT key FROM done") == [("once",)]


@pytest.fixture
def tables(postgres: PostgresServer) -> PostgresServer:
    for statement in (*create_sql("postgresql").split(";\n")[:-1], "CREATE TABLE done (key text)"):
        postgres.execute(statement)
    return postgres


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


async def run_twice(handler: Callable[[Context], Any]) -> None:
    event = comment()
    for _ in range(2):
        receiver = receiver_on()

        @receiver.on(CommentReceived, name="own")
        async def own(_: CommentReceived, context: Context) -> None:
            await handler(context)

        assert answer_of(await deliver(receiver, event)) == (200, "handled")


async def test_a_second_attempt_in_sqlite_finds_that_the_effect_is_done(shop: Shop) -> None:
    async def by_aiosqlite(context: Context) -> None:
        async with aiosqlite.connect(shop.file) as connection:
            await context.record_in(connection)
            await connection.execute("INSERT INTO orders VALUES (?, 'aio')", (context.event_id,))
            await connection.commit()

    async def by_sqlite3(context: Context) -> None:
        with closing(sqlite3.connect(shop.file)) as connection, connection:
            context.record_in_sync(connection)
            connection.execute("INSERT INTO orders VALUES (?, 'plain')", (context.event_id,))

    await run_twice(by_aiosqlite)
    await run_twice(by_sqlite3)
    assert [by for _, by in shop.orders()] == ["aio", "plain"]
    shop.ledger.close()


def context_of(event_id: str, generation: int = 0) -> Context:
    return Context(
        key=DeliveryKey("default:evt_1"),
        endpoint="default",
        event_id=event_id,
        event_type="comment.received",
        handler="own",
        attempt=1,
        delivery_attempt=None,
        last_chance=False,
        is_replay=False,
        received_unix=0.0,
        body=b"",
        generation=generation,
    )


@EACH_DRIVER
async def test_a_later_generation_is_recorded_once(
    own: Callable[[str, Context], Awaitable[None]], tables: PostgresServer
) -> None:
    recorded = []
    for generation in (0, 1, 1, 0, 3, 2):
        with suppress(AlreadyDone):
            await own(tables.url, context_of("evt_1", generation))
            recorded.append(generation)
    assert recorded == [0, 1, 3]
    assert tables.execute("SELECT key FROM done") == [("once",)] * 3
    assert tables.execute("SELECT generation FROM hookonce_effects") == [(3,)]


async def test_a_later_generation_in_sqlite_is_recorded_once_too(shop: Shop) -> None:
    async def by_aiosqlite(context: Context) -> None:
        async with aiosqlite.connect(shop.file) as connection:
            await context.record_in(connection)
            await connection.commit()

    def by_sqlite3(context: Context) -> None:
        with closing(sqlite3.connect(shop.file)) as connection, connection:
            context.record_in_sync(connection)

    recorded = []
    for generation in (0, 1, 1, 0, 3, 2):
        with suppress(AlreadyDone):
            by_sqlite3(context_of("evt_1", generation))
            recorded.append(("sqlite3", generation))
        with suppress(AlreadyDone):
            await by_aiosqlite(context_of("evt_2", generation))
            recorded.append(("aiosqlite", generation))
    drivers = ("sqlite3", "aiosqlite")
    assert recorded == [(driver, generation) for generation in (0, 1, 3) for driver in drivers]
    shop.ledger.close()


def test_a_later_generation_in_django_is_recorded_once_too(tmp_path: Path) -> None:
    alias = "generations"
    connections.databases[alias] = {
        **connections.databases["default"],
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(tmp_path / "app.db"),
    }
    connection, recorded = connections[alias], []
    try:
        DjangoLedger(alias).create_table()
        for generation in (0, 1, 1, 0, 3, 2):
            with suppress(AlreadyDone), atomic(using=alias):
                context_of("evt_1", generation).record_in_sync(connection)
                recorded.append(generation)
    finally:
        connection.close()
        del connections[alias], connections.databases[alias]
    assert recorded == [0, 1, 3]


def test_a_second_record_in_raises_an_error_that_names_the_effect(shop: Shop) -> None:
    with shop.ledger.transaction() as connection:
        context_of("evt_1").record_in_sync(connection)
        with pytest.raises(AlreadyDone, match="own is already done for evt_1"):
            context_of("evt_1").record_in_sync(connection)
    shop.ledger.close()


async def test_record_in_is_refused_within_a_ledger(shop: Shop) -> None:
    """``record_in`` would find the ledger's row, so the handler would succeed without its work."""
    receiver = receiver_on()

    @receiver.on(CommentReceived, name="passes it on", within=shop.ledger)
    def passes_on(_: CommentReceived, connection: sqlite3.Connection, context: Context) -> None:
        context.record_in_sync(connection)

    @receiver.on(CommentReceived, name="swallows it", within=AioSQLiteLedger(shop.file))
    async def swallows(
        _: CommentReceived, connection: aiosqlite.Connection, context: Context
    ) -> None:
        with pytest.raises(LedgerError, match="swallows it runs within a ledger"):
            await context.record_in(connection)

    assert answer_of(await deliver(receiver, comment("evt_1"))) == (500, "handler_failed")
    assert shop.recorded() == ["swallows it"]
    shop.ledger.close()


@asynccontextmanager
async def outside_of_a_transaction(shop: Shop) -> AsyncIterator[sqlite3.Connection]:
    with closing(sqlite3.connect(shop.file, isolation_level=None)) as connection:
        yield connection


async def test_a_record_that_would_be_committed_alone_is_refused(shop: Shop) -> None:
    async with outside_of_a_transaction(shop) as connection:
        with pytest.raises(LedgerError, match="in no transaction"):
            context_of("evt_1").record_in_sync(connection)
    async with aiosqlite.connect(shop.file, isolation_level=None) as later:
        with pytest.raises(LedgerError, match="in no transaction"):
            await context_of("evt_1").record_in(later)
    assert shop.recorded() == []
    shop.ledger.close()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has no autocommit before 3.12")
async def test_a_record_in_the_autocommit_mode_of_sqlite3_is_refused(shop: Shop) -> None:
    autocommit: dict[str, Any] = {"autocommit": True}
    with closing(sqlite3.connect(shop.file, **autocommit)) as connection:
        with pytest.raises(LedgerError, match="in no transaction"):
            context_of("evt_1").record_in_sync(connection)
        connection.execute("BEGIN")
        context_of("evt_1").record_in_sync(connection)
        connection.execute("ROLLBACK")
    async with aiosqlite.connect(shop.file, **autocommit) as later:
        with pytest.raises(LedgerError, match="in no transaction"):
            await context_of("evt_1").record_in(later)
    assert shop.recorded() == []
    shop.ledger.close()


@pytest.mark.parametrize("options", [{}, {"isolation_level": "AUTOCOMMIT"}])
async def test_a_session_in_autocommit_is_refused(shop: Shop, options: dict[str, str]) -> None:
    """AUTOCOMMIT may be the isolation level of the session or of its engine."""
    context, on_engine = (
        context_of("evt_1"),
        {"isolation_level": "AUTOCOMMIT"} if not options else {},
    )
    engine = create_engine(f"sqlite:///{shop.file}", **on_engine)
    with Session(engine) as session, session.begin():
        session.connection(execution_options=options)
        with pytest.raises(LedgerError, match="in no transaction"):
            context.record_in_sync(session)
    later = create_async_engine(f"sqlite+aiosqlite:///{shop.file}", **on_engine)
    async with later.connect() as connection:
        await connection.execution_options(**options)
        with pytest.raises(LedgerError, match="in no transaction"):
            await context.record_in(connection)
    await later.dispose()
    engine.dispose()
    assert shop.recorded() == []
    shop.ledger.close()


async def test_a_driver_in_autocommit_below_sqlalchemy_is_refused(shop: Shop) -> None:
    """In autocommit a failed attempt would leave its row, and the event would count as done."""
    context, alone = context_of("evt_1"), {"isolation_level": None}
    engine = create_engine(f"sqlite:///{shop.file}", connect_args=alone)
    with (
        Session(engine) as session,
        session.begin(),
        pytest.raises(LedgerError, match="in no transaction"),
    ):
        context.record_in_sync(session)
    later = create_async_engine(f"sqlite+aiosqlite:///{shop.file}", connect_args=alone)
    async with later.begin() as connection:
        with pytest.raises(LedgerError, match="in no transaction"):
            await context.record_in(connection)
    await later.dispose()
    assert shop.recorded() == []
    event.listen(engine, "begin", lambda begun: begun.exec_driver_sql("BEGIN"))
    with Session(engine) as session, session.begin():
        context.record_in_sync(session)
    engine.dispose()
    assert shop.recorded() == ["own"]
    shop.ledger.close()


async def test_a_postgresql_driver_in_autocommit_below_sqlalchemy_is_refused(
    tables: PostgresServer,
) -> None:
    url = tables.url.replace("postgresql:", "postgresql+psycopg:")
    engine = create_engine(url, connect_args={"autocommit": True})
    with engine.begin() as connection, pytest.raises(LedgerError, match="in no transaction"):
        context_of("evt_1").record_in_sync(connection)
    engine.dispose()
    assert tables.execute("SELECT event_id FROM hookonce_effects") == []


async def test_a_postgresql_connection_in_no_transaction_is_refused(
    postgres: PostgresServer,
) -> None:
    context = context_of("evt_1")
    connection = await asyncpg.connect(postgres.url)
    with pytest.raises(LedgerError, match="in no transaction"):
        await context.record_in(connection)
    await connection.close()
    with (
        psycopg.connect(postgres.url, autocommit=True) as plain,
        pytest.raises(LedgerError, match="in no transaction"),
    ):
        context.record_in_sync(plain)


async def test_an_object_of_the_wrong_kind_is_refused(shop: Shop) -> None:
    context = context_of("evt_1")
    with pytest.raises(TypeError, match="takes a session or connection of SQLAlchemy"):
        await context.record_in(object())
    with (
        closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(TypeError, match="call record_in_sync"),
    ):
        await context.record_in(connection)
    engine = create_engine("sqlite://")
    with Session(engine) as session, pytest.raises(TypeError, match="call record_in_sync"):
        await context.record_in(session)
    later = create_async_engine(f"sqlite+aiosqlite:///{shop.file}")
    async with AsyncSession(later) as session:
        with pytest.raises(TypeError, match="await record_in"):
            context.record_in_sync(session)
    await later.dispose()
    engine.dispose()
    shop.ledger.close()


# These functions break the transaction on the driver's connection; then the handlers commit.


async def swallowing(connection: Any) -> None:
    """Run a wrong statement on the driver's connection, and ignore its error."""
    raw = (await connection.get_raw_connection()).driver_connection
    with suppress(Exception):
        await raw.execute("INSERT INTO there_is_no_such_table VALUES (1)")


async def beginning_another(connection: Any) -> None:
    raw = (await connection.get_raw_connection()).driver_connection
    await raw.execute("ROLLBACK")
    await raw.execute("BEGIN")


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("break_", [swallowing, beginning_another])
async def test_a_session_whose_commit_would_be_a_rollback_is_no_success(
    driver: str, break_: Callable[[Any], Awaitable[None]], tables: PostgresServer
) -> None:
    engine = create_async_engine(tables.sqlalchemy_url(driver))
    receiver, event, broken = receiver_on(), comment(), [True]

    @receiver.on(CommentReceived, name="own")
    async def own(_: CommentReceived, context: Context) -> None:
        async with AsyncSession(engine) as session, session.begin():
            await context.record_in(session)
            await session.execute(text(INSERT))
            if broken:
                broken.pop()
                await break_(await session.connection())

    assert [(await deliver(receiver, event)).status for _ in range(2)] == [500, 200]
    assert tables.execute("SELECT key FROM done") == [("once",)]
    await engine.dispose()


async def test_one_connection_records_one_effect_after_the_other(tables: PostgresServer) -> None:
    """A commit does not check the effect of an earlier transaction that was rolled back."""
    engine = create_engine(tables.sqlalchemy_url("psycopg"))
    with engine.connect() as connection:
        for number, end in enumerate([connection.commit, connection.rollback, connection.commit]):
            context_of(f"evt_{number}").record_in_sync(connection)
            end()
    recorded = tables.execute("SELECT event_id FROM hookonce_effects ORDER BY event_id")
    assert recorded == [("evt_0",), ("evt_2",)]
    engine.dispose()


async def test_a_transaction_of_django_whose_commit_was_a_rollback_is_no_success(
    tables: PostgresServer,
) -> None:
    receiver, event, broken = receiver_on(), comment(), [True]
    async with ON_POSTGRES["django-psycopg"](tables.url, time.time) as parts:
        alias = parts["ledger"]._using

        @receiver.on(CommentReceived, name="own")
        def own(_: CommentReceived, context: Context) -> None:
            with (
                closing(connections[alias]),
                atomic(using=alias),
                connections[alias].cursor() as cursor,
            ):
                context.record_in_sync(connections[alias])
                cursor.execute(INSERT)
                if broken:
                    broken.pop()
                    with suppress(Exception):
                        cursor.execute("INSERT INTO there_is_no_such_table VALUES (1)")

        assert [(await deliver(receiver, event)).status for _ in range(2)] == [500, 200]
    assert tables.execute("SELECT key FROM done") == [("once",)]


async def test_a_row_that_says_only_begun_is_no_success(
    shop: Shop,
) -> None:
    """An earlier version of the handler has committed the ledger's row before its end."""
    context = context_of("evt_1")
    with shop.ledger.transaction() as connection:
        assert shop.ledger.insert(connection, context.effect)
    with (
        closing(sqlite3.connect(shop.file)) as own,
        pytest.raises(LedgerError, match="was committed before its end"),
    ):
        context.record_in_sync(own)
    shop.ledger.close()
