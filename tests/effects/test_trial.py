"""Trials: a handler's transaction is always rolled back, and its rows are counted."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from psycopg import AsyncConnection
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool
from support.postgres import PostgresServer

from hookonce.effects.contract import Bench
from hookonce.effects.ledger import Ledger, is_async_ledger
from hookonce.effects.psycopg import PsycopgLedger
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.effects.threads import on_ledger
from hookonce.effects.trial import RolledBack, roll_back
from hookonce.errors import LedgerError

from .benches import ON_MYSQL, ON_POSTGRES, ON_SQLITE, mysql_bench, postgres_bench, sqlite_bench
from .breaking import COMMITTED, ROLLED_BACK, Way, handler_of
from .test_ledger_contract import MYSQL_URL

pytestmark = [pytest.mark.anyio, pytest.mark.sample(30, of="file")]

Work: TypeAlias = Callable[[Any], object]
Benches: TypeAlias = Callable[[], AbstractAsyncContextManager[Bench[Any]]]

EFFECTS = "hookonce_effects"


async def tried(ledger: Any, work: Work) -> tuple[RolledBack, Exception | None]:
    """Run a trial of some work; return its findings, and the error that the work raised."""
    found = RolledBack()

    async def worked(transaction: Any) -> None:
        result = work(transaction)
        if isinstance(result, Coroutine) or hasattr(result, "__await__"):
            await result

    def step(ledger: Ledger[Any]) -> Coroutine[Any, Any, None]:
        return roll_back(ledger, "book", worked, found)

    try:
        await on_ledger(ledger, step)
    except Exception as error:  # noqa: BLE001 - the caller checks the returned error
        return found, error
    return found, None


ALL = [*ON_SQLITE, *ON_POSTGRES, *ON_MYSQL]


@pytest.fixture(params=ALL)
def open_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Benches:
    name = request.param
    if name in ON_SQLITE:
        return lambda: sqlite_bench(name, tmp_path)
    if name in ON_POSTGRES:
        server: PostgresServer = request.getfixturevalue("postgres")
        return lambda: postgres_bench(name, server)
    url = MYSQL_URL
    if url is None:
        pytest.skip("there is no MySQL; see test_ledger_contract.py")
    return lambda: mysql_bench(name, url)


def rows_of(request: pytest.FixtureRequest, count: int) -> object:
    """Return the row counts that a trial must report, by table; None for MySQL."""
    name = request.node.callspec.params["open_bench"]
    if name in ON_MYSQL:
        return None
    return {"all tables" if name in ON_SQLITE else "done": count}


async def committed(bench: Bench[Any]) -> list[str]:
    keys = bench.read()
    return sorted(keys if isinstance(keys, list) else await keys)


def writing(bench: Bench[Any], *keys: str, then: Work = lambda _: None) -> Work:
    """Return a function that inserts rows; it is async if the ledger is async."""
    if not is_async_ledger(bench.ledger):

        def write(transaction: Any) -> None:
            for key in keys:
                bench.write(transaction, key)
            then(transaction)

        return write

    async def write_later(transaction: Any) -> None:
        for key in keys:
            await bench.write(transaction, key)  # type: ignore[misc] # `write` returns an awaitable if the ledger is async
        result = then(transaction)
        if result is not None:
            await result  # type: ignore[misc] # an async `then` returns an awaitable

    return write_later


async def test_rows_are_counted_and_rolled_back(
    open_bench: Benches, request: pytest.FixtureRequest
) -> None:
    async with open_bench() as bench:
        for keys in (("a", "b", "c"), ("d",)):
            found, error = await tried(bench.ledger, writing(bench, *keys))
            assert error is None
            assert found.rows == rows_of(request, len(keys))
            assert not found.has_committed
            assert found.seconds > 0
        found, error = await tried(bench.ledger, writing(bench))
        assert (error, found.rows or {}) == (None, {})
        assert await committed(bench) == []


async def test_work_that_raises_is_rolled_back(open_bench: Benches) -> None:
    def fail(_: Any) -> None:
        raise KeyError("shop")

    async with open_bench() as bench:
        found, error = await tried(bench.ledger, writing(bench, "a", then=fail))
        assert isinstance(error, KeyError)
        assert (found.rows, found.has_committed) == (None, False)
        found, error = await tried(bench.ledger, writing(bench, "a", then=bench.fail))
        assert error is not None
        assert not found.has_committed
        assert await committed(bench) == []


async def test_a_conflict_is_tried_again(open_bench: Benches) -> None:
    class ConflictError(Exception):
        sqlstate = "40001"

    left = [ConflictError, ConflictError]

    def conflict(_: Any) -> None:
        if left:
            raise left.pop()

    async with open_bench() as bench:
        found, error = await tried(bench.ledger, writing(bench, "a", then=conflict))
        assert (error, found.has_committed, left) == (None, False, [])
        assert await committed(bench) == []


def by_ways(parts: dict[str, Any], way: Way) -> Work:
    handler = handler_of(parts, lambda _: way, lambda _: "whole")
    return lambda transaction: handler(None, transaction)


@asynccontextmanager
async def parts_on_postgres(name: str, server: PostgresServer) -> AsyncIterator[dict[str, Any]]:
    async with postgres_bench(name, server), ON_POSTGRES[name](server.url, time.time) as parts:
        yield parts


@pytest.mark.parametrize("way", COMMITTED)
@pytest.mark.parametrize("name", ON_POSTGRES)
async def test_work_that_commits_in_postgresql_is_found_out(
    name: str, way: Way, postgres: PostgresServer
) -> None:
    async with parts_on_postgres(name, postgres) as parts:
        found, error = await tried(parts["ledger"], by_ways(parts, way))
    assert found.has_committed
    assert error is not None
    assert postgres.execute("SELECT key FROM done") == [("half",)]
    assert postgres.execute(f"SELECT * FROM {EFFECTS}") == []


@pytest.mark.parametrize("way", ROLLED_BACK)
@pytest.mark.parametrize("name", ON_POSTGRES)
async def test_work_that_rolls_back_in_postgresql_has_failed_and_committed_nothing(
    name: str, way: Way, postgres: PostgresServer
) -> None:
    async with parts_on_postgres(name, postgres) as parts:
        found, error = await tried(parts["ledger"], by_ways(parts, way))
    assert (found.has_committed, found.rows) == (False, None)
    assert error is not None
    assert postgres.execute("SELECT key FROM done") == []


@pytest.mark.parametrize("way", COMMITTED)
@pytest.mark.parametrize("name", ON_SQLITE)
async def test_work_that_commits_in_sqlite_is_found_out(
    name: str, way: Way, tmp_path: Path
) -> None:
    async with (
        sqlite_bench(name, tmp_path) as bench,
        ON_SQLITE[name](str(tmp_path / "app.db"), time.time) as parts,
    ):
        found, error = await tried(parts["ledger"], by_ways(parts, way))
        assert found.has_committed
        assert error is not None
        assert await committed(bench) == ["half"]
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        assert connection.execute(f"SELECT * FROM {EFFECTS}").fetchall() == []


async def test_a_commit_that_is_refused_fails_and_commits_nothing(tmp_path: Path) -> None:
    async with sqlite_bench("sqlite3", tmp_path) as bench:
        work = writing(bench, "half", then=lambda connection: connection.commit())
        found, error = await tried(bench.ledger, work)
        assert isinstance(error, LedgerError)
        assert not found.has_committed
        assert await committed(bench) == []


async def test_rows_of_triggers_and_cascades_count_in_their_tables(
    postgres: PostgresServer,
) -> None:
    async with postgres_bench("asyncpg", postgres) as bench:
        for statement in (
            "CREATE SCHEMA shop",
            "CREATE TABLE shop.orders (id int PRIMARY KEY)",
            "CREATE TABLE lines (order_id int REFERENCES shop.orders ON DELETE CASCADE)",
            "INSERT INTO shop.orders VALUES (1), (2)",
            "INSERT INTO lines VALUES (1), (1), (2)",
        ):
            postgres.execute(statement)

        async def work(connection: Any) -> None:
            await connection.execute("DELETE FROM shop.orders WHERE id = 1")
            await connection.execute("UPDATE lines SET order_id = order_id")

        found, error = await tried(bench.ledger, work)
        assert (error, found.rows) == (None, {"shop.orders": 1, "lines": 3})
    assert postgres.execute("SELECT count(*) FROM lines") == [(3,)]


async def test_connections_that_return_rows_as_dictionaries_are_counted(
    postgres: PostgresServer,
) -> None:
    async with postgres_bench("psycopg", postgres) as bench:
        pool: AsyncConnectionPool[AsyncConnection[Any]] = AsyncConnectionPool(
            postgres.url, min_size=1, max_size=1, kwargs={"row_factory": dict_row}, open=False
        )
        async with pool:
            found, _ = await tried(PsycopgLedger(pool), writing(bench, "a"))
        assert found.rows == {"done": 1}


async def test_a_database_that_does_not_count_says_nothing(postgres: PostgresServer) -> None:
    async with postgres_bench("psycopg", postgres) as bench:
        postgres.execute("ALTER DATABASE postgres SET track_counts = off")
        try:
            found, error = await tried(bench.ledger, writing(bench, "a"))
        finally:
            postgres.execute("ALTER DATABASE postgres RESET track_counts")
    assert (error, found.rows) == (None, None)


async def test_a_ledger_of_a_user_need_not_count(tmp_path: Path) -> None:
    class Plain(SQLiteLedger):
        count_changes = None  # type: ignore[assignment] # a ledger need not have this method

    async with sqlite_bench("sqlite3", tmp_path) as bench:
        found, error = await tried(Plain(tmp_path / "app.db"), writing(bench, "a"))
        assert (error, found.rows, found.has_committed) == (None, None, False)


async def test_work_that_is_cancelled_is_rolled_back(postgres: PostgresServer) -> None:
    async with postgres_bench("asyncpg", postgres) as bench:
        has_written = asyncio.Event()

        async def work(connection: Any) -> None:
            await bench.write(connection, "a")  # type: ignore[misc] # the bench of an async ledger returns an awaitable
            has_written.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(tried(bench.ledger, work))
        await has_written.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await committed(bench) == []
        assert postgres.execute(f"SELECT * FROM {EFFECTS}") == []


async def test_a_trial_waits_for_no_attempt_at_the_same_event(postgres: PostgresServer) -> None:
    """The outer trial simulates an attempt that has inserted its row and still runs."""
    async with postgres_bench("asyncpg", postgres) as bench:

        async def within(_: Any) -> None:
            found, error = await tried(bench.ledger, writing(bench, "a"))
            assert (error, found.rows) == (None, {"done": 1})

        found, error = await tried(bench.ledger, within)
        assert (error, found.rows) == (None, {})
