"""Connections, and the exchange of statements and results.

A statement is sent through libpq's pipeline mode, unnamed, with its values in binary. So one round
trip carries a whole transaction, and nothing stays on the server's connection: the store works
through PgBouncer in transaction mode.

asyncpg has no pipeline, so a transaction takes it four round trips, and it is fast only with
prepared statements. The benchmark ``postgres-drivers`` compares both.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg
from psycopg import AsyncConnection
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from ...errors import StoreError
from .faults import READ_ONLY, ServerError, error_of

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool

Statement: TypeAlias = tuple[bytes, Sequence[bytes | None]]
"""SQL with ``$1`` and so on, and the values in binary format."""

_BINARY = 1
_CONNECT_SECONDS = 3
_USUAL: dict[str, Any] = {"fallback_application_name": "hookonce"}
_CONNECT: dict[str, Any] = {"connect_timeout": _CONNECT_SECONDS}
_MOST_CONNECTIONS = 4
# At most this many connections run statements that may take a minute. The other connections are for
# calls about events.
_MOST_SLOW = 2


async def exchange(connection: AsyncConnection[Any], statements: Sequence[Statement]) -> list[Any]:
    """Send statements in one round trip and return their results.

    Outside ``BEGIN`` and ``COMMIT`` the statements of one exchange are one transaction.

    Raises:
        ServerError: a statement has failed; the server has skipped those after it.
        psycopg.OperationalError: the connection is broken.
    """
    pgconn = connection.pgconn
    for sql, values in statements:
        pgconn.send_query_params(
            sql, list(values), param_formats=[_BINARY] * len(values), result_format=_BINARY
        )
    pgconn.pipeline_sync()
    results: list[PGresult] = []
    async for result in _results(pgconn):
        results.append(result)  # noqa: PERF401 - read all results before raising an error
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            raise error_of(result)
    return results


async def _results(pgconn: PGconn) -> AsyncIterator[PGresult]:
    """Return the results of a pipeline up to its end."""
    loop = asyncio.get_running_loop()
    socket = pgconn.socket
    ready = asyncio.Event()
    loop.add_reader(socket, ready.set)
    try:
        while pgconn.flush():
            loop.add_writer(socket, ready.set)
            ready.clear()
            await ready.wait()
            loop.remove_writer(socket)
            pgconn.consume_input()
        while True:
            while pgconn.is_busy():
                ready.clear()
                await ready.wait()
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                continue
            if result.status == ExecStatus.PIPELINE_SYNC:
                return
            yield result
    finally:
        with contextlib.suppress(OSError, ValueError):
            loop.remove_reader(socket)
            loop.remove_writer(socket)


class Connections:
    """The connections of a store in one event loop.

    Args:
        source: parameters of libpq, or the user's pool.
    """

    def __init__(self, source: dict[str, Any] | AsyncConnectionPool[Any]) -> None:
        self._source = source
        self._idle: list[AsyncConnection[Any]] = []
        self._is_closed = False
        self._free = asyncio.Semaphore(_MOST_CONNECTIONS)
        self._free_for_slow = asyncio.Semaphore(_MOST_SLOW)

    @asynccontextmanager
    async def connected(self, *, is_slow: bool = False) -> AsyncIterator[AsyncConnection[Any]]:
        """Lend a connection; afterwards roll back a transaction that the block has left open.

        After a broken exchange the connection is closed, because late results may still arrive.

        Args:
            is_slow: whether the block may take longer than a call about an event.
        """
        async with self._free_for_slow if is_slow else nullcontext(), self._free:
            connection = await self._take()
            is_good = False
            try:
                connection.pgconn.enter_pipeline_mode()
                yield connection
                is_good = True
            except ServerError as error:
                # Close a connection to a read-only server: the next connection may reach a server
                # that accepts writes.
                is_good = error.state != READ_ONLY
                raise
            except StoreError:
                is_good = True
                raise
            finally:
                await self._give_back(connection, is_good=is_good)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[AsyncConnection[Any]]:
        """Lend a connection in autocommit mode to one call alone, and close it afterwards."""
        connection = await (self._connect() if isinstance(self._source, dict) else self._take())
        try:
            await connection.set_autocommit(True)
            yield connection
        finally:
            await connection.close()
            if not isinstance(self._source, dict):
                await self._source.putconn(connection)  # the pool replaces a closed connection

    async def aclose(self) -> None:
        """Close the idle connections; those in use are closed when their calls end."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    async def _take(self) -> AsyncConnection[Any]:
        if not isinstance(self._source, dict):
            lent: AsyncConnection[Any] = await self._source.getconn(timeout=_CONNECT_SECONDS)
            return lent
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        return await self._connect()

    async def _connect(self) -> AsyncConnection[Any]:
        source = self._source if isinstance(self._source, dict) else {}
        return await AsyncConnection.connect(
            autocommit=True, prepare_threshold=None, **_USUAL | source | _CONNECT
        )

    async def _give_back(self, connection: AsyncConnection[Any], *, is_good: bool) -> None:
        is_clean = False
        try:
            if is_good:
                if connection.pgconn.transaction_status != TransactionStatus.IDLE:
                    await exchange(connection, [(b"ROLLBACK", ())])
                connection.pgconn.exit_pipeline_mode()
                is_clean = True
        except (psycopg.Error, ServerError):
            pass
        finally:  # also if the time limit of the call cancels the rollback
            if not isinstance(self._source, dict):
                if not is_clean:
                    await connection.close()
                await self._source.putconn(connection)
            elif is_clean and not self._is_closed:
                self._idle.append(connection)
            else:
                await connection.close()
