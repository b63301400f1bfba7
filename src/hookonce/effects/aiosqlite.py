"""Effects in an SQLite file, by aiosqlite; for async handlers.

A transaction has a connection of its own, opened for it: one that is kept has a thread, which would
hold the process at its end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from os import PathLike, fspath

import aiosqlite

from ..errors import LedgerError
from ..stores.contract import DEFAULT_RETENTION
from ..verification.clock import Clock, system_clock
from .ledger import Effect
from .sqlite import SQLITE_MARKS, LedgerConnection
from .table import TABLE, Rows, Statements, create_statements, row_of

__all__ = ["AioSQLiteLedger", "record_in"]

_BUSY_SECONDS = 10.0


class AioSQLiteLedger:
    """Effects in an SQLite file: a handler is given an ``aiosqlite.Connection`` in a transaction.

    Args:
        database: the file.
        table: the name of the ledger's table.
        retention: how long a row stays; no shorter than the store remembers a handled event.
        clock: Unix time in seconds.

    Raises:
        ValueError: the retention is too short, or the table's name needs quoting.

    """

    def __init__(
        self,
        database: str | PathLike[str],
        *,
        table: str = TABLE,
        retention: timedelta = DEFAULT_RETENTION,
        clock: Clock = system_clock,
    ) -> None:
        self._file = fspath(database)
        self._table = table
        self._statements = Statements("sqlite", table, SQLITE_MARKS)
        self._rows = Rows(retention, clock)

    @property
    def retention_seconds(self) -> float:
        """How long a row stays."""
        return self._rows.retention_seconds

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[aiosqlite.Connection]:
        """Return the context of a new transaction, which holds the file's write lock."""
        async with aiosqlite.connect(
            self._file, timeout=_BUSY_SECONDS, isolation_level=None, factory=LedgerConnection
        ) as connection:
            await connection.execute("BEGIN IMMEDIATE")
            yield connection
            if connection.in_transaction:
                await connection.execute("COMMIT")
            # Where something was raised, the end of the connection rolls back.

    async def insert(self, transaction: aiosqlite.Connection, effect: Effect) -> bool:
        """Insert the effect's row; return False if it was there."""
        return await _changed(transaction, self._statements.insert, self._rows.row(effect)) == 1

    async def holds(self, transaction: aiosqlite.Connection, effect: Effect) -> bool:
        """Return whether a commit would still keep the row."""
        if not transaction.in_transaction:
            return False
        async with transaction.execute(self._statements.find, effect) as cursor:
            return await cursor.fetchone() is not None

    async def prune(self, transaction: aiosqlite.Connection, limit: int) -> int:
        """Delete old rows; return how many."""
        return await _changed(transaction, self._statements.prune, (self._rows.oldest, limit))

    async def create_table(self) -> None:
        """Make the table where there is none."""
        async with self.transaction() as connection:
            for statement in create_statements("sqlite", self._table):
                await connection.execute(statement)


async def record_in(
    connection: aiosqlite.Connection, table: str, effect: Effect, now: float
) -> bool:
    """Insert an effect's row into the transaction of a connection; return False if it was there."""
    if connection.isolation_level is None and not connection.in_transaction:
        raise LedgerError("the connection is in no transaction; begin one before the record")
    statement = Statements("sqlite", table, SQLITE_MARKS).insert
    return await _changed(connection, statement, row_of(effect, now)) == 1


async def _changed(
    connection: aiosqlite.Connection, statement: str, parameters: tuple[str | int, ...]
) -> int:
    async with connection.execute(statement, parameters) as cursor:
        return cursor.rowcount
