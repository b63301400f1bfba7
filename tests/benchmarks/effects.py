"""The cost of a handler within a ledger, beside the same transaction without hookonce.

The transaction reads a row and writes a row, like most transactions. PostgreSQL runs with its
default settings: a COMMIT waits for the disk.

In PostgreSQL a commit can also complete the event in the store. Its cost is compared with that of a
commit that does not; both have the same number of round trips. The claims are not measured.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeAlias

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
from hookonce.stores.finishes import Finish
from hookonce.stores.postgres import PostgresStore
from hookonce.stores.values import Claimed, DeliveryKey, Known, delivery_key, new_token
from hookonce.testing import make_event

from .measuring import AtMost, Part, Result
from .rounds import compared

__all__ = ["PART"]

_ROUNDS, _QUICK_ROUNDS = 21, 7
_TRANSACTIONS = 60
_TARGET = AtMost(1.5)
_LEASE_SECONDS = 3600.0
_TABLE = "CREATE TABLE orders (id bigint PRIMARY KEY, state text)"
_READ, _WRITE = "SELECT state FROM orders WHERE id = {}", "INSERT INTO orders VALUES ({}, 'new')"

_Run: TypeAlias = Callable[[int], Awaitable[object]]
_Prepare: TypeAlias = Callable[[Sequence[int]], Awaitable[None]]


class _Subject(NamedTuple):
    """A transaction by hand, and the ledger and handler that do the same."""

    by_hand: _Run
    ledger: AnyLedger[Any]
    work: Callable[..., Any]


_Opened: TypeAlias = AbstractAsyncContextManager[_Subject]

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
        on_postgres: dict[str, Callable[[], _Opened]] = {
            "asyncpg": partial(_asyncpg, server.url),
            "psycopg": partial(_psycopg, server.url),
            "SQLAlchemy, asyncpg": partial(_sqlalchemy, server.sqlalchemy_url("asyncpg")),
            "SQLAlchemy, psycopg": partial(_sqlalchemy, server.sqlalchemy_url("psycopg")),
        }
        on_sqlite: Callable[[], _Opened] = partial(_sqlite, Path(folder) / "app.db")
        for name, opened in (*on_postgres.items(), ("SQLite", on_sqlite)):
            values = asyncio.run(_beside_by_hand(opened(), rounds))
            results += compared(name, values, "µs", {"within": _TARGET})
        for name, opened in on_postgres.items():
            values = asyncio.run(_with_completion(opened(), server.url, rounds))
            results += compared(f"{name}, store in the same database", values, "µs")
    return results


async def _beside_by_hand(opened: _Opened, rounds: int) -> dict[str, list[float]]:
    async with opened as subject:
        within = _within(subject)
        return await _measured({"by hand": subject.by_hand, "within": within}, rounds)


async def _with_completion(opened: _Opened, url: str, rounds: int) -> dict[str, list[float]]:
    async with opened as subject, aclosing(PostgresStore(url)) as store:
        claims: dict[int, Claimed] = {}

        async def prepare(numbers: Sequence[int]) -> None:
            granted = await asyncio.gather(
                *(store.claim(_key(number), new_token(), _LEASE_SECONDS) for number in numbers)
            )
            for number, claim in zip(numbers, granted, strict=True):
                assert isinstance(claim, Claimed)
                claims[number] = claim

        def finish(number: int) -> Finish:
            return store.finish(claims[number], "book", frozenset())

        runs = {
            "within": _within(subject),
            "within, and completes the event": _within(subject, finish),
        }
        values = await _measured(runs, rounds, prepare)
        known = await store.known("default", [f"evt_{number:024x}" for number in claims])
        assert sum(state is Known.DONE for state in known.values()) == len(claims) // 2
    return values


async def _measured(
    runs: Mapping[str, _Run], rounds: int, prepare: _Prepare | None = None
) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        await _microseconds(run, prepare)
    for _ in range(rounds):
        for name, run in runs.items():
            values[name].append(await _microseconds(run, prepare))
    return values


async def _microseconds(run: _Run, prepare: _Prepare | None) -> float:
    numbers = [next(_numbers) for _ in range(_TRANSACTIONS)]
    if prepare is not None:
        await prepare(numbers)
    gc.collect()
    started = time.perf_counter()
    for number in numbers:
        await run(number)
    return (time.perf_counter() - started) / _TRANSACTIONS * 1e6


def _key(number: int) -> DeliveryKey:
    return delivery_key("default", f"evt_{number:024x}")


def _within(subject: _Subject, finish: Callable[[int], Finish] | None = None) -> _Run:
    """Return a function that runs the handler within the ledger, as the dispatcher does.

    Args:
        finish: returns what completes the event in the store.
    """
    router = Router()
    register: Any = router.on(CommentReceived, name="book", within=subject.ledger)
    register(subject.work)
    [handler] = router.handlers
    function: Any = handler.function

    async def run(number: int) -> None:
        context = Context(
            key=_key(number),
            endpoint="default",
            event_id=f"evt_{number:024x}",
            event_type="comment.received",
            handler="book",
            attempt=1,
            delivery_attempt=1,
            last_chance=False,
            is_replay=False,
            received_unix=0.0,
            body=b"",
        )
        arguments = (
            (_event, context) if finish is None else (_event, context, partial(finish, number))
        )
        if handler.is_async:
            await function(*arguments)
        else:
            function(*arguments)

    return run


@asynccontextmanager
async def _asyncpg(url: str) -> AsyncIterator[_Subject]:
    read, write = _READ.format("$1"), _WRITE.format("$1")
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:

        async def work(_: CommentReceived, connection: Any) -> None:
            number = next(_numbers)
            await connection.fetchval(read, number)
            await connection.execute(write, number)

        async def by_hand(_: int) -> None:
            async with pool.acquire() as connection, connection.transaction():
                await work(_event, connection)

        yield _Subject(by_hand, AsyncpgLedger(pool), work)


@asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[_Subject]:
    read, write = _READ.format("%s"), _WRITE.format("%s")
    async with AsyncConnectionPool(url, min_size=1, max_size=1, open=False) as pool:

        async def work(_: CommentReceived, connection: Any) -> None:
            number = next(_numbers)
            await (await connection.execute(read, (number,))).fetchone()
            await connection.execute(write, (number,))

        async def by_hand(_: int) -> None:
            async with pool.connection() as connection, connection.transaction():
                await work(_event, connection)

        yield _Subject(by_hand, PsycopgLedger(pool), work)


@asynccontextmanager
async def _sqlalchemy(url: str) -> AsyncIterator[_Subject]:
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

    yield _Subject(by_hand, SQLAlchemyLedger(sessions), work)
    await engine.dispose()


@asynccontextmanager
async def _sqlite(file: Path) -> AsyncIterator[_Subject]:
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

    yield _Subject(by_hand, ledger, work)
    connection.close()
    ledger.close()


PART = Part("effects", "a handler within a ledger, beside the same transaction by hand", _run)
