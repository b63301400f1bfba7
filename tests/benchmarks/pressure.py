"""A steady flow of events through a PostgreSQL store, with others at work in the database.

While a transaction is open, the server cannot remove the rows of events that were handled since.
Scanners are transactions that read all tables of the store, again and again, in one snapshot.

At the same time a bystander reads a row of its own table. The bystander is another process,
``python -m benchmarks.pressure URL TABLE``. When its standard input ends, it prints how long its
reads took, and ends.
"""

from __future__ import annotations

import asyncio
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, NamedTuple, TypeAlias

import psycopg
from psycopg import AsyncConnection, sql
from support.postgres import PostgresServer

from hookonce import Inbox, Receiver
from hookonce.events import CommentReceived
from hookonce.stores.postgres import PostgresStore
from hookonce.stores.values import Claimed, Delivery, Stored, new_token
from hookonce.verification.secrets import new_secret

from .filling import deliveries

__all__ = ["Flow", "Under", "measure", "open_transaction", "scanners"]

Pressure: TypeAlias = Callable[[PostgresServer, str], AbstractAsyncContextManager[None]]
"""Opens the other transactions, given the server and the schema of the store."""

AT_ONCE = 64
"""The number of events that are stored, or handled, at the same time."""

_MOST_WAITING = 512
# A million events take a few minutes; only a broken store takes this long.
_PATIENCE_SECONDS = 1_800.0
_LEASE_SECONDS = 30.0
_MOST_EVENTS, _MOST_BYTES = 10_000_000, 64 * 1024**3
_SCANNERS = 4
_SCANS, _SCAN_PAUSE_SECONDS = 10, 0.5
_READ_PAUSE_SECONDS = 0.02
_SIZES = """
SELECT coalesce(sum(n_dead_tup), 0)::int8, coalesce(sum(pg_table_size(relid)), 0)::int8,
       coalesce(sum(pg_indexes_size(relid)), 0)::int8
FROM pg_stat_user_tables WHERE schemaname = %s
"""


_BLOCKS = """
SELECT (blks_hit + blks_read)::int8 FROM pg_stat_database WHERE datname = current_database()
"""


class Under(NamedTuple):
    """What a flow has cost.

    Attributes:
        per_second: events.
        last_tenth: the rate of the last tenth of the events, divided by the rate of the first.
        blocks: blocks that the server has read for an event, from its own buffers or elsewhere.
        last_blocks: the blocks of the last tenth of the events, divided by those of the first.
        after: events a second of a second flow, after the other transactions have ended.
        wal: bytes of the write-ahead log for an event.
        dead: dead rows for an event, as PostgreSQL counts them before the other transactions end.
        tables: megabytes of tables, those of bodies among them.
        indexes: megabytes of indexes.
        read_ms: the median time of a bystander's read.
        slow_read_ms: the 99th percentile of those times.

    """

    per_second: float
    last_tenth: float
    blocks: float
    last_blocks: float
    after: float
    wal: float
    dead: float
    tables: float
    indexes: float
    read_ms: float
    slow_read_ms: float


@asynccontextmanager
async def open_transaction(server: PostgresServer, _: str = "") -> AsyncIterator[None]:
    """Keep a transaction open during the block; it holds a snapshot and a transaction id."""
    async with await AsyncConnection.connect(server.url) as connection:
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await connection.execute("SELECT pg_current_xact_id()")
        yield


@asynccontextmanager
async def scanners(server: PostgresServer, schema: str) -> AsyncIterator[None]:
    """Read all tables in four transactions during the block."""

    async def scan() -> None:
        async with await AsyncConnection.connect(server.url, autocommit=True) as connection:
            while True:
                await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                for _ in range(_SCANS):
                    for table in ("ids", "entries"):
                        name = sql.Identifier(schema, table)
                        await connection.execute(sql.SQL("SELECT count(*) FROM {}").format(name))
                    await asyncio.sleep(_SCAN_PAUSE_SECONDS)
                await connection.execute("COMMIT")

    tasks = [asyncio.create_task(scan()) for _ in range(_SCANNERS)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            raise RuntimeError("a scanner has failed") from task.exception()


class _Mark(NamedTuple):
    """A time, and the blocks that the server has read so far."""

    time: float
    blocks: int


class Flow:
    """Events that come in and are handled at the same time.

    Args:
        is_inbox: whether they go through the inbox to a worker; else they are claimed and
            completed, as in a request.
    """

    def __init__(self, server: PostgresServer, store: PostgresStore, *, is_inbox: bool) -> None:
        self._server = server
        self._store = store
        self._is_inbox = is_inbox
        self._room = asyncio.Semaphore(_MOST_WAITING)
        self._receiver = Receiver(
            secrets=new_secret(),
            store=store,
            inbox=Inbox(embedded=False, concurrency=AT_ONCE) if is_inbox else None,
        )
        self._done: Callable[[], None] = lambda: None
        if is_inbox:
            self._receiver.on(CommentReceived, name="drain")(self._handle)

    async def run(self, events: int) -> list[_Mark]:
        """Handle this many events; return the marks at the start and after each tenth."""
        enough, handled, marks = asyncio.Event(), 0, [self._mark()]
        tenth = events // 10

        def done() -> None:
            nonlocal handled
            handled += 1
            if handled % tenth == 0:
                marks.append(self._mark())
            if handled == events:
                enough.set()

        self._done = done
        given = deliveries(events)
        async with asyncio.timeout(_PATIENCE_SECONDS), AsyncExitStack() as stack:
            if self._is_inbox:
                await stack.enter_async_context(self._receiver.working())
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(self._send(given))
            await enough.wait()
        if handled != events:
            raise RuntimeError("an event was handled twice")
        return marks

    def _mark(self) -> _Mark:
        [(blocks,)] = self._server.execute(_BLOCKS)
        return _Mark(time.perf_counter(), blocks)

    async def opened(self) -> AsyncExitStack:
        """Open the receiver."""
        stack = AsyncExitStack()
        await stack.enter_async_context(self._receiver.opened())
        return stack

    async def _handle(self, _: CommentReceived) -> None:
        self._room.release()
        self._done()

    async def _send(self, given: Iterator[Delivery]) -> None:
        for delivery in given:
            if self._is_inbox:
                await self._room.acquire()
                result = await self._store.enqueue(
                    delivery, new_token(), max_depth=_MOST_EVENTS, max_bytes=_MOST_BYTES
                )
                assert isinstance(result, Stored)
            else:
                claim = await self._store.claim(delivery.key, new_token(), _LEASE_SECONDS)
                assert isinstance(claim, Claimed)
                await self._store.complete(claim)
                self._done()


async def measure(
    server: PostgresServer, pressure: Pressure, events: int, *, is_inbox: bool
) -> Under:
    """Measure a flow under pressure, in a new schema, and a fifth as many events afterwards."""
    schema = f"flow_{new_token()[2:10]}"
    store = PostgresStore(server.url, schema=schema)
    flow = Flow(server, store, is_inbox=is_inbox)
    try:
        async with await flow.opened():
            await flow.run(AT_ONCE * 10)  # leave out new connections and new tables
            async with pressure(server, schema):
                [(start,)] = server.execute("SELECT pg_current_wal_lsn()")
                with _bystander(server) as reads:
                    marks = await flow.run(events)
                [(wal,)] = server.execute(
                    "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), %s)::int8", start
                )
                await asyncio.sleep(1.5)  # until the server has counted the rows
                [(dead, tables, indexes)] = server.execute(_SIZES, schema)
            after = await flow.run(events // 5)
    finally:
        server.execute(f"DROP SCHEMA {schema} CASCADE")
    first, last = _between(marks[0], marks[1]), _between(marks[-2], marks[-1])
    whole, afterwards = _between(marks[0], marks[-1]), _between(after[0], after[-1])
    return Under(
        events / whole.time,
        first.time / last.time,
        whole.blocks / events,
        last.blocks / max(1, first.blocks),  # the server's processes tell it once a second
        events // 5 / afterwards.time,
        wal / events,
        dead / events,
        tables / 1e6,
        indexes / 1e6,
        statistics.median(reads),
        statistics.quantiles(reads, n=100)[98],
    )


def _between(one: _Mark, other: _Mark) -> _Mark:
    return _Mark(other.time - one.time, other.blocks - one.blocks)


@contextmanager
def _bystander(server: PostgresServer) -> Iterator[list[float]]:
    """Read a row of another table during the block; afterwards the list has the times, in ms."""
    table, reads = f"bystander_{new_token()[2:10]}", list[float]()
    server.execute(f"CREATE TABLE {table} AS SELECT n FROM generate_series(1, 1000) AS n")
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.pressure", server.url, table],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield reads
        told, _ = process.communicate()
        reads += map(float, told.split())
    finally:
        process.kill()
        process.wait()
        server.execute(f"DROP TABLE {table}")


def _read(url: str, table: str) -> None:
    """Read a row now and then until the standard input ends; print the milliseconds."""
    reads: list[float] = []
    with psycopg.connect(url, autocommit=True) as connection:
        row: Any = sql.SQL("SELECT n FROM {} WHERE n = 500").format(sql.Identifier(table))
        while not select.select([sys.stdin], [], [], _READ_PAUSE_SECONDS)[0] or len(reads) < 2:
            started = time.perf_counter()
            connection.execute(row).fetchall()
            reads.append((time.perf_counter() - started) * 1000)
    print(*reads)


if __name__ == "__main__":
    _read(*sys.argv[1:])
