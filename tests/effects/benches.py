"""A bench for each of our ledgers: a database, a test table, and functions that write to it.

A ledger is a table in the user's database. The transaction of a handler's effect also writes a row
into the ledger. The row says that the handler has handled the event.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from itertools import count
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped] # asyncpg has no annotations that a checker could read
from django.db import connections  # type: ignore[import-untyped] # Django ships no types
from django.db.backends.base.base import BaseDatabaseWrapper  # type: ignore[import-untyped]
from integrations import django_project  # noqa: F401 - the import configures Django
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from support.postgres import PostgresServer

from hookonce.clock import Clock
from hookonce.effects.aiosqlite import AioSQLiteLedger
from hookonce.effects.asyncpg import AsyncpgLedger
from hookonce.effects.contract import Bench, ManualClock
from hookonce.effects.django import DjangoLedger
from hookonce.effects.psycopg import PsycopgLedger, SyncPsycopgLedger
from hookonce.effects.sqlalchemy import SQLAlchemyLedger, SyncSQLAlchemyLedger
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.effects.table import create_statements

__all__ = [
    "ON_MYSQL",
    "ON_POSTGRES",
    "ON_SQLITE",
    "driver_connection",
    "driver_connection_in_thread",
    "mysql_bench",
    "postgres_bench",
    "sqlite_bench",
]

TABLE = "CREATE TABLE done (key varchar(100))"
INSERT = "INSERT INTO done VALUES ({})"
FAILS = "INSERT INTO there_is_no_such_table VALUES (1)"


async def driver_connection(transaction: Any) -> Any:
    """Return the driver's connection of an async session; return any other transaction as it is."""
    if not isinstance(transaction, AsyncSession):
        return transaction
    raw = await (await transaction.connection()).get_raw_connection()
    return raw.driver_connection


def driver_connection_in_thread(transaction: Any) -> Any:
    """Return the driver's connection of a session or of a Django connection."""
    if isinstance(transaction, Session):
        return transaction.connection().connection.driver_connection
    if isinstance(transaction, BaseDatabaseWrapper):
        return transaction.connection
    return transaction


def by_statement(placeholder: str) -> dict[str, Any]:
    return {
        "write": lambda t, key: t.execute(INSERT.format(placeholder), (key,)),
        "fail": lambda t: t.execute(FAILS),
    }


def by_text() -> dict[str, Any]:
    return {
        "write": lambda t, key: t.execute(text(INSERT.format(":key")), {"key": key}),
        "fail": lambda t: t.execute(text(FAILS)),
    }


def by_cursor() -> dict[str, Any]:
    def run(connection: Any, statement: str, *parameters: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement, parameters)

    return {
        "write": lambda t, key: run(t, INSERT.format("%s"), key),
        "fail": lambda t: run(t, FAILS),
    }


# Each function below takes a database's URL or file, and a clock. It yields parts of a bench.


@asynccontextmanager
async def by_sqlite3(url: str, clock: Clock) -> AsyncIterator[dict[str, Any]]:
    ledger = SQLiteLedger(url, clock=clock)
    yield {"ledger": ledger, **by_statement("?")}
    ledger.close()


@asynccontextmanager
async def by_aiosqlite(url: str, clock: Clock) -> AsyncIterator[dict[str, Any]]:
    yield {"ledger": AioSQLiteLedger(url, clock=clock), **by_statement("?")}


@asynccontextmanager
async def by_asyncpg(url: str, clock: Clock) -> AsyncIterator[dict[str, Any]]:
    async with asyncpg.create_pool(url, min_size=0, max_size=5) as pool:
        yield {
            "ledger": AsyncpgLedger(pool, clock=clock),
            "write": lambda t, key: t.execute(INSERT.format("$1"), key),
            "fail": lambda t: t.execute(FAILS),
        }


@asynccontextmanager
async def by_psycopg(url: str, clock: Clock) -> AsyncIterator[dict[str, Any]]:
    async with AsyncConnectionPool(url, min_size=0, max_size=5, open=False) as pool:
        yield {"ledger": PsycopgLedger(pool, clock=clock), **by_statement("%s")}


@asynccontextmanager
async def by_psycopg_in_threads(url: str, clock: Clock) -> AsyncIterator[dict[str, Any]]:
    with ConnectionPool(url, min_size=0, max_size=5, open=False) as pool:
        yield {"ledger": SyncPsycopgLedger(pool, clock=clock), **by_statement("%s")}


def by_sqlalchemy(driver: str) -> Callable[[str, Clock], Any]:
    @asynccontextmanager
    async def opened(url: str, clock: Clock) -> AsyncIterator[dict[str, Any]]:
        engine = create_async_engine(url.replace("postgresql:", driver))
        sessions = async_sessionmaker(engine)
        ledger: SQLAlchemyLedger[AsyncSession] = SQLAlchemyLedger(sessions, clock=clock)
        yield {"ledger": ledger, **by_text()}
        await engine.dispose()

    return opened


def by_sqlalchemy_in_threads(driver: str) -> Callable[[str, Clock], Any]:
    @asynccontextmanager
    async def opened(url: str, clock: Clock) -> AsyncIterator[dict[str, Any]]:
        engine = create_engine(url.replace("postgresql:", driver))
        ledger: SyncSQLAlchemyLedger[Session] = SyncSQLAlchemyLedger(
            sessionmaker(engine), clock=clock
        )
        yield {"ledger": ledger, **by_text()}
        engine.dispose()

    return opened


_NUMBERS = count(1)


def by_django(engine: str, **settings: Any) -> Callable[[str, Clock], Any]:
    @asynccontextmanager
    async def opened(url: str, clock: Clock) -> AsyncIterator[dict[str, Any]]:
        where = {"NAME": url, **{key: value(url) for key, value in settings.items()}}
        # Configure a new name, and keep it configured after the test: a thread may end later, and
        # Django closes only connections whose names are configured.
        alias = f"test_{next(_NUMBERS)}"
        connections.databases[alias] = {
            **connections.databases["default"],
            "ENGINE": f"django.db.backends.{engine}",
            **where,
        }
        yield {"ledger": DjangoLedger(alias, clock=clock), **by_cursor()}

    return opened


ON_SQLITE = {
    "sqlite3": by_sqlite3,
    "aiosqlite": by_aiosqlite,
    "sqlalchemy-aiosqlite": lambda file, clock: by_sqlalchemy("")(
        f"sqlite+aiosqlite:///{file}", clock
    ),
    "sqlalchemy-sqlite3": lambda file, clock: by_sqlalchemy_in_threads("")(
        f"sqlite:///{file}", clock
    ),
    "django-sqlite3": by_django("sqlite3"),
}

ON_POSTGRES = {
    "asyncpg": by_asyncpg,
    "psycopg": by_psycopg,
    "psycopg-threads": by_psycopg_in_threads,
    "sqlalchemy-asyncpg": by_sqlalchemy("postgresql+asyncpg:"),
    "sqlalchemy-psycopg": by_sqlalchemy("postgresql+psycopg:"),
    "sqlalchemy-psycopg-threads": by_sqlalchemy_in_threads("postgresql+psycopg:"),
    "django-psycopg": by_django(
        "postgresql",
        NAME=lambda _: "postgres",
        USER=lambda _: "postgres",
        HOST=lambda _: "127.0.0.1",
        PORT=lambda url: url.rpartition(":")[2].partition("/")[0],
    ),
}


ON_MYSQL = {
    "sqlalchemy-aiomysql": lambda url, clock: by_sqlalchemy("")(
        url.replace("mysql:", "mysql+aiomysql:"), clock
    ),
    "sqlalchemy-pymysql-threads": lambda url, clock: by_sqlalchemy_in_threads("")(
        url.replace("mysql:", "mysql+pymysql:"), clock
    ),
    "django-pymysql": by_django(
        "mysql",
        NAME=lambda url: url.rpartition("/")[2],
        USER=lambda _: "root",
        HOST=lambda _: "127.0.0.1",
        PORT=lambda url: url.rpartition(":")[2].partition("/")[0],
    ),
}


@asynccontextmanager
async def mysql_bench(name: str, url: str) -> AsyncIterator[Bench[Any]]:
    """Drop the bench's tables in a MySQL or MariaDB, then yield a bench with new tables."""
    engine, clock = create_engine(url.replace("mysql:", "mysql+pymysql:")), ManualClock()
    with engine.begin() as connection:
        for statement in (
            "DROP TABLE IF EXISTS done",
            "DROP TABLE IF EXISTS hookonce_effects, hookonce_watermarks",
            *create_statements("mysql", "hookonce_effects"),
            TABLE.replace("key", "`key`"),
        ):
            connection.execute(text(statement))

    def read() -> list[str]:
        with engine.begin() as connection:
            return list(connection.scalars(text("SELECT `key` FROM done")))

    async with ON_MYSQL[name](url, clock) as parts:
        yield Bench(clock=clock, read=read, **parts)
    engine.dispose()


@asynccontextmanager
async def sqlite_bench(name: str, folder: Path) -> AsyncIterator[Bench[Any]]:
    file, clock = str(folder / "app.db"), ManualClock()
    SQLiteLedger(file).create_table()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(TABLE)

        def read() -> list[str]:
            return [key for (key,) in connection.execute("SELECT key FROM done")]

        async with ON_SQLITE[name](file, clock) as parts:
            yield Bench(clock=clock, read=read, **parts)


@asynccontextmanager
async def postgres_bench(
    name: str, server: PostgresServer, *, url: str | None = None
) -> AsyncIterator[Bench[Any]]:
    """Yield a bench with new tables; its ledger connects to the server, or to a proxy's URL."""
    clock = ManualClock()
    for statement in (*create_statements("postgresql", "hookonce_effects"), TABLE):
        server.execute(statement)

    def read() -> list[str]:
        return [key for (key,) in server.execute("SELECT key FROM done")]

    async with ON_POSTGRES[name](url or server.url, clock) as parts:
        yield Bench(clock=clock, read=read, **parts)
