"""Effects in PostgreSQL, by asyncpg; for async handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg  # type: ignore[import-untyped] # it has no annotations that a checker could read
from asyncpg.pool import PoolConnectionProxy  # type: ignore[import-untyped] # the same

from ..errors import LedgerError
from ..stores.contract import DEFAULT_RETENTION
from ..verification.clock import Clock, system_clock
from .ledger import Effect
from .table import TABLE, Rows, Statements, create_statements, row_of

__all__ = ["AsyncpgLedger", "record_in"]

_MARKS = ("$1", "$2", "$3", "$4")
_INSERTED = "INSERT 0 1"


class AsyncpgLedger:
    """Effects in PostgreSQL: a handler is given an asyncpg connection in a transaction.

    Args:
        pool: where it takes connections; it belongs to you, and is yours to open and close.
        isolation: how far transactions are isolated; None for what the server says.
        table: the name of the ledger's table, with a schema before it if it is in one.
        retention: how long a row stays; no shorter than the store remembers a handled event.
        clock: Unix time in seconds.

    Raises:
        ValueError: the retention is too short, or the table's name needs quoting.

    """

    def __init__(
        self,
        pool: asyncpg.Pool[Any],
        *,
        isolation: str | None = "read_committed",
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
    async def transaction(self) -> AsyncIterator[PoolConnectionProxy[Any]]:
        """Return the context of a new transaction, on a connection of the pool."""
        async with (
            self._pool.acquire() as connection,
            connection.transaction(isolation=self._isolation),
        ):
            yield connection

    async def insert(self, transaction: PoolConnectionProxy[Any], effect: Effect) -> bool:
        """Insert the effect's row; return False if it was there."""
        row = self._rows.row(effect)
        return bool(await transaction.execute(self._statements.insert, *row) == _INSERTED)

    async def holds(self, transaction: PoolConnectionProxy[Any], effect: Effect) -> bool:  # noqa: ARG002
        """Return whether a commit would still keep the row."""
        if not transaction.is_in_transaction():
            return False
        await transaction.execute("SELECT 1")  # fails where an earlier statement has
        return True

    async def prune(self, transaction: PoolConnectionProxy[Any], limit: int) -> int:
        """Delete old rows; return how many."""
        deleted = await transaction.execute(self._statements.prune, self._rows.oldest, limit)
        return int(deleted.removeprefix("DELETE "))

    async def create_table(self) -> None:
        """Make the table where there is none."""
        async with self.transaction() as connection:
            for statement in create_statements("postgresql", self._table):
                await connection.execute(statement)


async def record_in(
    connection: asyncpg.Connection[Any] | PoolConnectionProxy[Any],
    table: str,
    effect: Effect,
    now: float,
) -> bool:
    """Insert an effect's row into the transaction of a connection; return False if it was there."""
    if not connection.is_in_transaction():
        raise LedgerError("the connection is in no transaction; begin one before the record")
    statement = Statements("postgresql", table, _MARKS).insert
    return bool(await connection.execute(statement, *row_of(effect, now)) == _INSERTED)
