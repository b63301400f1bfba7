"""Ledgers in PostgreSQL, with psycopg 3, for async handlers and for handlers in threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Unpack

from ..errors import LedgerError, NeedsExtra

with NeedsExtra("psycopg", "the ledger", "psycopg", "psycopg_pool"):
    from psycopg import AsyncConnection, Connection, IsolationLevel
    from psycopg.pq import TransactionStatus
    from psycopg.rows import tuple_row
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

from .changes import Rows
from .ledger import Effect
from .pools import LedgerPool
from .sql import LedgerOptions, SQLLedger, SyncSQLLedger
from .statements import Parameters, Statements, check_done, statements_of

_PLACEHOLDERS = ("%s",) * 8


class PsycopgLedger(SQLLedger[AsyncConnection[Any]]):
    """A ledger in PostgreSQL; async handlers get an ``AsyncConnection`` in a transaction.

    Args:
        pool: your pool, which you open and close yourself; or a function that makes a pool with
            ``open=False``, which the ledger opens, and closes when its receivers close.
        isolation: the isolation level; None for the level of the connection.
        options: see ``LedgerOptions``.

    Raises:
        ValueError: the retention is too short, or the table's name needs quoting.
    """

    def __init__(
        self,
        pool: AsyncConnectionPool[AsyncConnection[Any]]
        | Callable[[], AsyncConnectionPool[AsyncConnection[Any]]],
        *,
        isolation: IsolationLevel | None = IsolationLevel.READ_COMMITTED,
        **options: Unpack[LedgerOptions],
    ) -> None:
        super().__init__(_PLACEHOLDERS, **options)
        self._pool = LedgerPool(pool, AsyncConnectionPool.open)
        self._isolation = isolation

    def in_use(self) -> AbstractAsyncContextManager[None]:
        """Return a context that keeps the ledger's own pool open; the last context closes the pool.

        Receivers enter this context by themselves.
        """
        return self._pool.in_use()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        """Return the context of a new transaction, on a connection of the pool."""
        pool = await self._pool.opened()
        async with pool.connection() as connection:
            before = connection.isolation_level
            if self._isolation not in {None, before}:
                await connection.set_isolation_level(self._isolation)
            try:
                async with connection.transaction():
                    yield connection
            finally:
                if connection.isolation_level != before and not connection.closed:
                    await connection.set_isolation_level(before)

    async def _run(
        self, transaction: AsyncConnection[Any], statement: str, parameters: Parameters = ()
    ) -> int:
        return (await transaction.execute(statement, parameters)).rowcount

    async def _select(self, transaction: AsyncConnection[Any], query: str) -> Rows:
        # Set the row type: the application's connections may return dictionaries instead of tuples.
        async with transaction.cursor(row_factory=tuple_row) as cursor:
            return await (await cursor.execute(query)).fetchall()

    def _dialect(self, transaction: AsyncConnection[Any]) -> str:
        return "postgresql"


class SyncPsycopgLedger(SyncSQLLedger[Connection[Any]]):
    """A ledger in PostgreSQL; handlers in threads get a ``Connection`` in a transaction.

    Args:
        pool: your pool; open and close it yourself.
        isolation: the isolation level; None for the level of the connection.
        options: see ``LedgerOptions``.

    Raises:
        ValueError: as for ``PsycopgLedger``.
    """

    def __init__(
        self,
        pool: ConnectionPool[Connection[Any]],
        *,
        isolation: IsolationLevel | None = IsolationLevel.READ_COMMITTED,
        **options: Unpack[LedgerOptions],
    ) -> None:
        super().__init__(_PLACEHOLDERS, **options)
        self._pool = pool
        self._isolation = isolation

    @contextmanager
    def transaction(self) -> Iterator[Connection[Any]]:
        """Return the context of a new transaction, on a connection of the pool."""
        with self._pool.connection() as connection:
            before = connection.isolation_level
            if self._isolation not in {None, before}:
                connection.set_isolation_level(self._isolation)
            try:
                with connection.transaction():
                    yield connection
            finally:
                if connection.isolation_level != before and not connection.closed:
                    connection.set_isolation_level(before)

    def _run(
        self, transaction: Connection[Any], statement: str, parameters: Parameters = ()
    ) -> int:
        return transaction.execute(statement, parameters).rowcount

    def _select(self, transaction: Connection[Any], query: str) -> Rows:
        with transaction.cursor(row_factory=tuple_row) as cursor:
            return cursor.execute(query).fetchall()

    def _dialect(self, transaction: Connection[Any]) -> str:
        return "postgresql"


async def record_in(
    connection: AsyncConnection[Any], table: str, effect: Effect, now: float
) -> bool:
    """Record an effect in a connection's transaction; return False if it is already done."""
    if not isinstance(connection, AsyncConnection):
        raise TypeError("record_in takes an async connection; in a thread, call record_in_sync")
    statements = _statements(connection, table)
    for statement, parameters in statements.recording(effect, now):
        if (await connection.execute(statement, parameters)).rowcount == 1:
            return True
    check_done((await connection.execute(statements.is_done, effect)).rowcount, effect)
    return False


def record_in_sync(connection: Connection[Any], table: str, effect: Effect, now: float) -> bool:
    """Record an effect in a connection's transaction; return False if it is already done."""
    if not isinstance(connection, Connection):
        raise TypeError(
            "record_in_sync takes a plain connection; for an async one, await record_in"
        )
    statements = _statements(connection, table)
    for statement, parameters in statements.recording(effect, now):
        if connection.execute(statement, parameters).rowcount == 1:
            return True
    check_done(connection.execute(statements.is_done, effect).rowcount, effect)
    return False


def _statements(connection: AsyncConnection[Any] | Connection[Any], table: str) -> Statements:
    is_idle = connection.info.transaction_status == TransactionStatus.IDLE
    if connection.autocommit and is_idle:
        raise LedgerError("the connection is in no transaction; begin one before record_in")
    return statements_of("postgresql", table, _PLACEHOLDERS)
