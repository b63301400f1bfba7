"""A ledger whose connections commit by themselves is refused, and never reports a false success."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connections  # type: ignore[import-untyped] # Django ships no types
from integrations import django_project  # noqa: F401 - the import configures Django
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import StaticPool, create_engine, event
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from support.deliveries import comment, deliver, receiver_on
from support.postgres import PostgresServer

from hookonce.effects import check, create_sql
from hookonce.effects.django import DjangoLedger
from hookonce.effects.ledger import AnyLedger
from hookonce.effects.psycopg import PsycopgLedger, SyncPsycopgLedger
from hookonce.effects.sqlalchemy import SQLAlchemyLedger, SyncSQLAlchemyLedger
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.errors import LedgerError
from hookonce.events import CommentReceived

from .shops import Shop

pytestmark = pytest.mark.anyio

COMMITS = "commits by itself: .* take isolation_level .* and autocommit out"
Made = AbstractAsyncContextManager[AnyLedger[Any]]


@asynccontextmanager
async def on_sqlite(url: str, **options: Any) -> AsyncIterator[SyncSQLAlchemyLedger[Session]]:
    engine = create_engine(url.replace("postgresql:", "sqlite:"), **options)
    yield SyncSQLAlchemyLedger(sessionmaker(engine))
    engine.dispose()


@asynccontextmanager
async def on_aiosqlite(url: str, **options: Any) -> AsyncIterator[SQLAlchemyLedger[AsyncSession]]:
    engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"), **options)
    yield SQLAlchemyLedger(async_sessionmaker(engine))
    await engine.dispose()


ALONE = {"connect_args": {"isolation_level": None}}
ON_SQLITE: dict[str, Callable[[str], Made]] = {
    "sqlite3": lambda url: on_sqlite(url, **ALONE),
    "sqlite3, one connection": lambda url: on_sqlite(url, poolclass=StaticPool, **ALONE),
    "aiosqlite": lambda url: on_aiosqlite(url, **ALONE),
    "aiosqlite, one connection": lambda url: on_aiosqlite(url, poolclass=StaticPool, **ALONE),
}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def left_in(file: Path) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(file)) as connection:
        tables = ("hookonce_effects", "hookonce_watermarks")
        return [row for table in tables for row in connection.execute(f"SELECT * FROM {table}")]


@pytest.mark.parametrize("name", ON_SQLITE)
async def test_the_check_refuses_an_engine_of_sqlite_and_leaves_no_rows(
    name: str, shop: Shop
) -> None:
    async with ON_SQLITE[name](f"sqlite:///{shop.file}") as ledger:
        with pytest.raises(LedgerError, match=f"SQLAlchemyLedger {COMMITS}"):
            await check(ledger)
    assert left_in(shop.file) == []
    shop.ledger.close()


@pytest.mark.parametrize("name", ON_SQLITE)
async def test_without_the_check_a_failed_attempt_is_not_reported_as_success_later(
    name: str, shop: Shop
) -> None:
    async with ON_SQLITE[name](f"sqlite:///{shop.file}") as ledger:
        receiver, sent = receiver_on(), comment()
        register: Callable[..., Any] = receiver.on
        register(CommentReceived, name="book", within=ledger)(failing_once(ledger))
        assert [(await deliver(receiver, sent)).status for _ in range(2)] == [500, 500]
    shop.ledger.close()


def failing_once(ledger: AnyLedger[Any]) -> Callable[..., Any]:
    failures = [ValueError]

    def work(_: CommentReceived, __: Any) -> None:
        if failures:
            raise failures.pop()

    async def work_later(event: CommentReceived, transaction: Any) -> None:
        work(event, transaction)

    return work_later if isinstance(ledger, SQLAlchemyLedger) else work


async def test_an_engine_that_begins_by_an_event_passes_the_check(shop: Shop) -> None:
    """For SQLite, SQLAlchemy recommends an event listener that sends BEGIN; then rollbacks work."""
    engine = create_engine(f"sqlite:///{shop.file}", **ALONE)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    await check(SyncSQLAlchemyLedger(sessionmaker(engine)))
    engine.dispose()
    shop.ledger.close()


# PostgreSQL


@asynccontextmanager
async def on_psycopg(url: str) -> AsyncIterator[SyncSQLAlchemyLedger[Session]]:
    engine = create_engine(
        url.replace("postgresql:", "postgresql+psycopg:"), connect_args={"autocommit": True}
    )
    yield SyncSQLAlchemyLedger(sessionmaker(engine), isolation=None)
    engine.dispose()


@asynccontextmanager
async def in_autocommit(
    url: str, driver: str, **options: Any
) -> AsyncIterator[SQLAlchemyLedger[AsyncSession]]:
    engine = create_async_engine(url.replace("postgresql:", f"postgresql+{driver}:"))
    yield SQLAlchemyLedger(async_sessionmaker(engine), **options)
    await engine.dispose()


ON_POSTGRES: dict[str, Callable[[str], Made]] = {
    "connect_args": on_psycopg,
    "asyncpg, asked for": lambda url: in_autocommit(url, "asyncpg", isolation="AUTOCOMMIT"),
    "psycopg, asked for": lambda url: in_autocommit(url, "psycopg", isolation="AUTOCOMMIT"),
}


@pytest.fixture
def tables(postgres: PostgresServer) -> PostgresServer:
    for statement in create_sql("postgresql").split(";\n")[:-1]:
        postgres.execute(statement)
    return postgres


def left_on(server: PostgresServer) -> list[tuple[Any, ...]]:
    tables = ("hookonce_effects", "hookonce_watermarks")
    return [row for table in tables for row in server.execute(f"SELECT * FROM {table}")]


@pytest.mark.parametrize("name", ON_POSTGRES)
async def test_the_check_refuses_an_engine_of_postgresql_and_leaves_no_rows(
    name: str, tables: PostgresServer
) -> None:
    async with ON_POSTGRES[name](tables.url) as ledger:
        with pytest.raises(LedgerError, match=f"SQLAlchemyLedger {COMMITS}"):
            await check(ledger)
    assert left_on(tables) == []


@pytest.mark.parametrize("name", ON_POSTGRES)
async def test_without_the_check_postgresql_does_not_report_a_failed_attempt_as_success_either(
    name: str, tables: PostgresServer
) -> None:
    async with ON_POSTGRES[name](tables.url) as ledger:
        receiver, sent = receiver_on(), comment()
        register: Callable[..., Any] = receiver.on
        register(CommentReceived, name="book", within=ledger)(failing_once(ledger))
        assert [(await deliver(receiver, sent)).status for _ in range(2)] == [500, 500]


async def test_a_ledger_begins_transactions_on_a_pool_of_psycopg_in_autocommit(
    tables: PostgresServer,
) -> None:
    """Even in autocommit, the ledger sends BEGIN before each handler's effect."""
    alone = {"autocommit": True}
    async with AsyncConnectionPool(tables.url, min_size=1, kwargs=alone, open=False) as pool:
        await check(PsycopgLedger(pool))
    with ConnectionPool(tables.url, min_size=1, kwargs=alone, open=False) as plain:
        await check(SyncPsycopgLedger(plain))
    assert left_on(tables) == []


# Django


@pytest.fixture
def django_alias(shop: Shop) -> Any:
    connections.databases["in_autocommit"] = {
        **connections.databases["default"],
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(shop.file),
        "AUTOCOMMIT": False,
    }
    yield "in_autocommit"
    del connections.databases["in_autocommit"]


async def test_django_with_autocommit_off_is_refused_because_it_would_never_commit(
    django_alias: str, shop: Shop
) -> None:
    """Django's atomic() would not commit, and closing the connection rolls back."""
    receiver = receiver_on()

    @receiver.on(CommentReceived, within=DjangoLedger(django_alias))
    def book(_: CommentReceived, connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES ('lost', 'book')")

    with pytest.raises(LedgerError, match=r"AUTOCOMMIT is off.*DATABASES\['in_autocommit'\]"):
        await check(DjangoLedger(django_alias))
    assert (await deliver(receiver, comment())).status == 500
    assert left_in(shop.file) == []
    shop.ledger.close()


# Users' own ledgers


class Careless(SQLiteLedger):
    """A ledger that commits even if its handler fails, and cannot delete a row."""

    erase = None  # type: ignore[assignment] # the Protocol does not require it

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(self._connect()) as connection:
            connection.isolation_level = None
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            finally:
                connection.execute("COMMIT")


async def test_a_users_ledger_that_does_not_roll_back_is_refused(shop: Shop) -> None:
    with pytest.raises(LedgerError, match=f"Careless {COMMITS}"):
        await check(Careless(shop.file))
    shop.ledger.close()


async def test_a_check_that_finds_no_table_of_watermarks_leaves_no_effect(shop: Shop) -> None:
    with closing(sqlite3.connect(shop.file)) as connection:
        connection.execute("DROP TABLE hookonce_watermarks")
    async with ON_SQLITE["sqlite3"](f"sqlite:///{shop.file}") as ledger:
        with pytest.raises(LedgerError, match="no such table: hookonce_watermarks"):
            await check(ledger)
    assert shop.recorded() == []
    shop.ledger.close()
