"""The cost of a handler within a ledger, beside the same transaction without hookonce.

The transaction reads a row and writes a row, like most transactions. PostgreSQL runs with its
default settings: a COMMIT waits for the disk.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import asyncpg  # type: ignore[import-untyped] # asyncpg has no annotations that a checker could read
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from support.postgres import postgres_server

from hookonce import Context
from hookonce.effects import create_sql
from hookonce.effects.asyncpg import AsyncpgLedger
from hookonce.effects.ledger import AnyLedger
from hookonce.effects.psycopg import PsycopgLedger
from hookonce.effects.sqlalchemy import SQLAlchemyLedger
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.events import CommentReceived
from hookonce.routing.router import Router
from hookonce.stores.values import DeliveryKey
from hookonce.testing import make_event

from .measuring import AtMost, Part, Result
from .rounds import compared

__all__ = ["PART"]

_ROUNDS, _QUICK_ROUNDS = 21, 7
_TRANSACTIONS = 60
_TARGET = AtMost(1.5)
_TABLE = "CREATE TABLE orders (id bigint PRIMARY KEY, state text)"
_READ, _WRITE = "SELECT state FROM orders WHERE id = {}", "INSERT INTO orders VALUES ({}, 'new')"

_Run: TypeAlias = Callable[[int], Awaitable[object]]

_numbers = itertools.count()
_event = make_event(CommentReceived)


def _run(is_quick: bool) -> list[Result]:
    rounds = _QUICK_ROUNDS if is_quick else _ROUNDS
    results = []
    with (
        postgres_server(fsync="on") as server,
        TemporaryDirectory(prefix="hookonce-benchmark-") as folder,
    ):
        for statement in (*create_sql("postgresql").split(";\n")[:-1], _TABLE):
            server.execute(statement)
        file = Path(folder) / "app.db"
        for name, subjects in (
            ("asyncpg", _asyncpg(server.url)),
            ("psycopg", _psycopg(server.url)),
            ("SQLAlchemy, asyncpg", _sqlalchemy(server.sqlalchemy_url("asyncpg"))),
            ("SQLAlchemy, psycopg", _sqlalchemy(server.sqlalchemy_url("psycopg"))),
            ("SQLite", _sqlite(file)),
        ):
            values = asyncio.run(_measured(subjects, rounds))
            results += compared(name, values, "µs", {"within": _TARGET})
    return results


async def _measured(subjects: Any, rounds: int) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {"by hand": [], "within": []}
    async with subjects as (by_hand, within):
        runs: Sequence[tuple[str, _Run]] = (("by hand", by_hand), ("within", within))
        for _, run in runs:
            await _microseconds(run)
        for _ in range(rounds):
            for name, run in runs:
                values[name].append(await _microseconds(run))
    return values


async def _microseconds(run: _Run) -> float:
    gc.collect()
    started = time.perf_counter()
    for _ in range(_TRANSACTIONS):
        await run(next(_numbers))
    return (time.perf_counter() - started) / _TRANSACTIONS * 1e6


def _within(ledger: AnyLedger[Any], work: Callable[..., Any]) -> Callable[[int], Any]:
    """Return a function that runs the handler within the ledger, as the dispatcher does."""
    router = Router()
    register: Any = router.on(CommentReceived, name="book", within=ledger)
    register(work)
    [handler] = router.handlers

    def run(number: int) -> Any:
        event_id = f"evt_{number:024x}"
        context = Context(
            key=DeliveryKey(f"default:{event_id}"),
            endpoint="default",
            event_id=event_id,
            event_type="comment.received",
            handler="book",
            attempt=1,
            delivery_attempt=1,
            last_chance=False,
            is_replay=False,
            received_unix=0.0,
            body=b"",
        )
        return handler.function(_event, context)

    return run


@asynccontextmanager
async def _asyncpg(url: str) -> AsyncIterator[tuple[_Run, _Run]]:
    read, write = _READ.format("$1"), _WRITE.format("$1")
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:

        async def work(_: CommentReceived, connection: Any) -> None:
            number = next(_numbers)
            await connection.fetchval(read, number)
            await connection.execute(write, number)

        async def by_hand(_: int) -> None:
            async with pool.acquire() as connection, connection.transaction():
                await work(_event, connection)

        yield by_hand, _within(AsyncpgLedger(pool), work)


@asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[tuple[_Run, _Run]]:
    read, write = _READ.format("%s"), _WRITE.format("%s")
    async with AsyncConnectionPool(url, min_size=1, max_size=1, open=False) as pool:

        async def work(_: CommentReceived, connection: Any) -> None:
            number = next(_numbers)
            await (await connection.execute(read, (number,))).fetchone()
            await connection.execute(write, (number,))

        async def by_hand(_: int) -> None:
            async with pool.connection() as connection, connection.transaction():
                await work(_event, connection)

        yield by_hand, _within(PsycopgLedger(pool), work)


@asynccontextmanager
async def _sqlalchemy(url: str) -> AsyncIterator[tuple[_Run, _Run]]:
    read, write = text(_READ.format(":id")), text(_WRITE.format(":id"))
    engine = create_async_engine(url)
    sessions = async_sessionmaker(engine)

    async def work(_: CommentReceived, session: AsyncSession) -> None:
        number = next(_numbers)
        (await session.execute(read, {"id": number})).first()
        await session.execute(write, {"id": number})

    async def by_hand(_: int) -> None:
        async with sessions() as session, session.begin():
            await work(_event, session)

    yield by_hand, _within(SQLAlchemyLedger(sessions), work)
    await engine.dispose()


@asynccontextmanager
async def _sqlite(file: Path) -> AsyncIterator[tuple[_Run, _Run]]:
    read, write = _READ.format("?"), _WRITE.format("?")
    ledger = SQLiteLedger(file)
    ledger.create_table()
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute(_TABLE)

    def work(_: CommentReceived, connection: sqlite3.Connection) -> None:
        number = next(_numbers)
        connection.execute(read, (number,)).fetchone()
        connection.execute(write, (number,))

    async def by_hand(_: int) -> None:
        connection.execute("BEGIN IMMEDIATE")
        work(_event, connection)
        connection.execute("COMMIT")

    handler = _within(ledger, work)

    async def within(number: int) -> None:
        handler(number)

    yield by_hand, within
    connection.close()
    ledger.close()


PART = Part("effects", "a handler within a ledger, beside the same transaction by hand", _run)
