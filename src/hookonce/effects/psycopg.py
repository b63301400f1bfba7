"""Effects in PostgreSQL, by psycopg 3; for async handlers, and for those that run in threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any

from psycopg import AsyncConnection, Connection, IsolationLevel
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from ..errors import LedgerError
from ..stores.contract import DEFAULT_RETENTION
from ..verification.clock import Clock, system_clock
from .ledger import Effect
from .table import TABLE, Rows, Statements, create_statements, row_of

__all__ = ["PsycopgLedger", "SyncPsycopgLedger", "record_in", "record_in_sync"]

_MARKS = ("%s", "%s", "%s", "%s")
_IN_TRANSACTION = TransactionStatus.INTRANS  # and not INERROR, whose COMMIT is a ROLLBACK


class PsycopgLedger:
    """Effects in PostgreSQL: a handler is given an ``AsyncConnection`` in a transaction.

    Args:
        pool: where it takes connections; it belongs to you, and is yours to open and close.
        isolation: how far transactions are isolated; None for what the connection has.
        table: the name of the ledger's table, with a schema before it if it is in one.
        retention: how long a row stays; no shorter than the store remembers a handled event.
        clock: Unix time in seconds.

    Raises:
        ValueError: the retention is too short, or the table's name needs quoting.

    """

    def __init__(
        self,
        pool: AsyncConnectionPool[AsyncConnection[Any]],
        *,
        isolation: IsolationLevel | None = IsolationLevel.READ_COMMITTED,
        table: str = TABLE,
        retention: timedelta = DEFAULT_RETENTION,
        clock: Clock = system_clock,
    ) -> None:
        self._pool = pool
        self._isolation = isolation
        self._table = table
        self._statements = Statements("postgresql", table, _MARKS)
        self._rows = Rows(retention, clock)

    @property
    def retention_seconds(self) -> float:
        """How long a row stays."""
        return self._rows.retention_seconds

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        """Return the context of a new transaction, on a connection of the pool."""
        async with self._pool.connection() as connection:
            before = connection.isolation_level
            if self._isolation not in {None, before}:
                await connection.set_isolation_level(self._isolation)
            try:
                async with connection.transaction():
                    yield connection
            finally:
                if connection.isolation_level != before and not connection.closed:
                    await connection.set_isolation_level(before)

    async def insert(self, transaction: AsyncConnection[Any], effect: Effect) -> bool:
        """Insert the effect's row; return False if it was there."""
        cursor = await transaction.execute(self._statements.insert, self._rows.row(effect))
        return cursor.rowcount == 1

    async def holds(self, transaction: AsyncConnection[Any], effect: Effect) -> bool:
        """Return whether a commit would still keep the row."""
        return transaction.info.transaction_status == _IN_TRANSACTION

    async def prune(self, transaction: AsyncConnection[Any], limit: int) -> int:
        """Delete old rows; return how many."""
        cursor = await transaction.execute(self._statements.prune, (self._rows.oldest, limit))
        return cursor.rowcount

    async def create_table(self) -> None:
        """Make the table where there is none."""
        async with self.transaction() as connection:
            for statement in create_statements("postgresql", self._table):
                await connection.execute(statement)


class SyncPsycopgLedger:
    """Effects in PostgreSQL: a handler is given a ``Connection`` in a transaction.

    Args:
        pool: where it takes connections; it belongs to you, and is yours to open and close.
        isolation: how far transactions are isolated; None for what the connection has.
        table: the name of the ledger's table, with a schema before it if it is in one.
        retention: how long a row stays; no shorter than the store remembers a handled event.
        clock: Unix time in seconds.

    Raises:
        ValueError: the retention is too short, or the table's name needs quoting.

    """

    def __init__(
        self,
        pool: ConnectionPool[Connection[Any]],
        *,
        isolation: IsolationLevel | None = IsolationLevel.READ_COMMITTED,
        table: str = TABLE,
        retention: timedelta = DEFAULT_RETENTION,
        clock: Clock = system_clock,
    ) -> None:
        self._pool = pool
        self._isolation = isolation
        self._table = table
        self._statements = Statements("postgresql", table, _MARKS)
        self._rows = Rows(retention, clock)

    @property
    def retention_seconds(self) -> float:
        """How long a row stays."""
        return self._rows.retention_seconds

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

    def insert(self, transaction: Connection[Any], effect: Effect) -> bool:
        """Insert the effect's row; return False if it was there."""
        cursor = transaction.execute(self._statements.insert, self._rows.row(effect))
        return cursor.rowcount == 1

    def holds(self, transaction: Connection[Any], effect: Effect) -> bool:
        """Return whether a commit would still keep the row."""
        return transaction.info.transaction_status == _IN_TRANSACTION

    def prune(self, transaction: Connection[Any], limit: int) -> int:
        """Delete old rows; return how many."""
        cursor = transaction.execute(self._statements.prune, (self._rows.oldest, limit))
        return cursor.rowcount

    def create_table(self) -> None:
        """Make the table where there is none."""
        with self.transaction() as connection:
            for statement in create_statements("postgresql", self._table):
                connection.execute(statement)


async def record_in(
    connection: AsyncConnection[Any], table: str, effect: Effect, now: float
) -> bool:
    """Insert an effect's row into the transaction of a connection; return False if it was there."""
    if not isinstance(connection, AsyncConnection):
        raise TypeError("record_in takes an async connection; in a thread, call record_in_sync")
    _check_transaction(connection)
    statement = Statements("postgresql", table, _MARKS).insert
    cursor = await connection.execute(statement, row_of(effect, now))
    return cursor.rowcount == 1


def record_in_sync(connection: Connection[Any], table: str, effect: Effect, now: float) -> bool:
    """Insert an effect's row into the transaction of a connection; return False if it was there."""
    if not isinstance(connection, Connection):
        raise TypeError("record_in_sync takes a plain connection; of an async one, await record_in")
    _check_transaction(connection)
    statement = Statements("postgresql", table, _MARKS).insert
    cursor = connection.execute(statement, row_of(effect, now))
    return cursor.rowcount == 1


def _check_transaction(connection: AsyncConnection[Any] | Connection[Any]) -> None:
    is_idle = connection.info.transaction_status == TransactionStatus.IDLE
    if connection.autocommit and is_idle:
        raise LedgerError("the connection is in no transaction; begin one before the record")
