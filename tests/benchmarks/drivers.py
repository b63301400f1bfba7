"""The cost of a batch of claims by psycopg and by asyncpg, as the PostgreSQL store would send it.

A batch is a transaction: a statement sets time limits for it, and another inserts rows from arrays.
Nothing may stay on the connection, because PgBouncer in transaction mode gives it to others. So
only a direct connection can have prepared statements.

The store uses psycopg below its cursors: libpq's pipeline sends the transaction in one round trip,
and the arrays are packed by ``bytes.join``.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import asyncpg  # type: ignore[import-untyped]  # it has no types
from psycopg import AsyncConnection
from support.pgbouncer import pgbouncer
from support.postgres import postgres_server

from hookonce.stores.postgres.connection import exchange
from hookonce.stores.postgres.wire import blobs, floats, texts
from hookonce.stores.values import new_token

from .measuring import Part, Result
from .rounds import compared

__all__ = ["PART"]

_ROUNDS, _QUICK_ROUNDS = 31, 9
_BATCHES = 40
_ROWS = 64
_TABLE = "CREATE TABLE claims (key bytea PRIMARY KEY, endpoint text, token text, lease float8)"
_GUARD = (
    "SELECT set_config('lock_timeout', '1s', true), set_config('statement_timeout', '2s', true)"
)
_CLAIM = (
    "INSERT INTO claims SELECT * FROM unnest({}::bytea[], {}::text[], {}::text[], {}::float8[])"
    " ON CONFLICT (key) DO NOTHING RETURNING key"
)
_DOLLARS, _PERCENTS = _CLAIM.format("$1", "$2", "$3", "$4"), _CLAIM.format(*("%s",) * 4)

_numbers = count()


class _Rows(NamedTuple):
    """The columns of a batch."""

    keys: list[bytes]
    endpoints: list[str]
    tokens: list[str]
    leases: list[float]


_Claim: TypeAlias = Callable[[_Rows], Awaitable[int]]
_Opened: TypeAlias = Callable[[str], AbstractAsyncContextManager[_Claim]]


@asynccontextmanager
async def _packed(url: str) -> AsyncIterator[_Claim]:
    async with await AsyncConnection.connect(url, autocommit=True) as connection:
        connection.pgconn.enter_pipeline_mode()
        guard, claim = _GUARD.encode(), _DOLLARS.encode()

        async def run(batch: _Rows) -> int:
            values = [
                blobs(batch.keys),
                texts(batch.endpoints),
                texts(batch.tokens),
                floats(batch.leases),
            ]
            _, result = await exchange(connection, [(guard, ()), (claim, values)])
            return int(result.ntuples)

        yield run
        connection.pgconn.exit_pipeline_mode()


@asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[_Claim]:
    async with await AsyncConnection.connect(
        url, autocommit=True, prepare_threshold=None
    ) as connection:

        async def run(batch: _Rows) -> int:
            async with connection.pipeline(), connection.transaction():
                await connection.execute(_GUARD)
                cursor = await connection.execute(_PERCENTS, batch)
            return len(await cursor.fetchall())

        yield run


@asynccontextmanager
async def _asyncpg(url: str, *, is_prepared: bool) -> AsyncIterator[_Claim]:
    connection: Any = await asyncpg.connect(
        url, **{} if is_prepared else {"statement_cache_size": 0}
    )

    async def run(batch: _Rows) -> int:
        async with connection.transaction():
            await connection.fetch(_GUARD)
            return len(await connection.fetch(_DOLLARS, *batch))

    yield run
    await connection.close()


_DRIVERS: dict[str, _Opened] = {
    "psycopg below its cursors (the store)": _packed,
    "psycopg": _psycopg,
    "asyncpg, nothing prepared": partial(_asyncpg, is_prepared=False),
}
_PREPARING: dict[str, _Opened] = {
    "asyncpg, prepared statements": partial(_asyncpg, is_prepared=True)
}


def _run(is_quick: bool) -> list[Result]:
    rounds = _QUICK_ROUNDS if is_quick else _ROUNDS
    with ExitStack() as stack:
        server = stack.enter_context(postgres_server(fsync="on", shared_buffers="128MB"))
        server.execute(_TABLE)
        results = _compared("direct", server.url, {**_DRIVERS, **_PREPARING}, rounds)
        if shutil.which("pgbouncer") is None:
            print("pgbouncer is not installed, and left out (package `pgbouncer`)")
            return results
        url = stack.enter_context(pgbouncer(server, connections=4))
        return results + _compared("through PgBouncer", url, _DRIVERS, rounds)


def _compared(case: str, url: str, drivers: dict[str, _Opened], rounds: int) -> list[Result]:
    processor: dict[str, list[float]] = {name: [] for name in drivers}
    elapsed: dict[str, list[float]] = {name: [] for name in drivers}
    for number in range(1 + rounds):
        for name, opened in drivers.items():
            took, passed = asyncio.run(_microseconds(url, opened))
            if number:  # the first round warms up
                processor[name].append(took)
                elapsed[name].append(passed)
    case = f"{case}, {_ROWS} rows in a batch"
    return [
        *compared(f"{case}, processor time for a row", processor, "µs"),
        *compared(f"{case}, time for a row", elapsed, "µs"),
    ]


async def _microseconds(url: str, opened: _Opened) -> tuple[float, float]:
    """Return the processor time of this process for a row, and the time that passed."""
    batches = [_rows() for _ in range(_BATCHES)]
    async with opened(url) as run:
        await run(_rows())
        gc.collect()
        before = time.process_time(), time.perf_counter()
        inserted = [await run(batch) for batch in batches]
        after = time.process_time(), time.perf_counter()
    assert inserted == [_ROWS] * _BATCHES
    scale = 1e6 / (_BATCHES * _ROWS)
    return (after[0] - before[0]) * scale, (after[1] - before[1]) * scale


def _rows() -> _Rows:
    tokens: list[str] = [new_token() for _ in range(_ROWS)]
    keys = [next(_numbers).to_bytes(16, "little") for _ in range(_ROWS)]
    return _Rows(keys, ["default"] * _ROWS, tokens, [30.0] * _ROWS)


PART = Part("postgres-drivers", "a batch of claims by psycopg and asyncpg", _run)
