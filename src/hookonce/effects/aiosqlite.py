"""A ledger in an SQLite file, with the driver aiosqlite, for async handlers.

Each transaction opens a connection of its own. No idle connection is kept, because its thread would
keep the process from ending.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from os import PathLike, fspath
from typing import Unpack

from ..errors import LedgerError, NeedsExtra

with NeedsExtra("aiosqlite", "the ledger", "aiosqlite"):
    import aiosqlite

from .changes import Rows
from .ledger import Effect
from .sql import LedgerOptions, SQLLedger
from .sqlite import BUSY_SECONDS, SQLITE_PLACEHOLDERS, LedgerConnection
from .statements import Parameters, check_done, statements_of


class AioSQLiteLedger(SQLLedger[aiosqlite.Connection]):
    """A ledger in an SQLite file; handlers get an ``aiosqlite.Connection`` in a transaction.

    Args:
        database: the file.
        options: see ``LedgerOptions``.

    Attributes:
        databases: the file.

    Raises:
        ValueError: the retention is too short, or the table's name needs quoting.
    """

    def __init__(self, database: str | PathLike[str], **options: Unpack[LedgerOptions]) -> None:
        super().__init__(SQLITE_PLACEHOLDERS, **options)
        self.databases: tuple[str | PathLike[str]] = (database,)
        self._file = fspath(database)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[aiosqlite.Connection]:
        """Return the context of a new transaction, which holds the file's write lock."""
        async with aiosqlite.connect(
            self._file, timeout=BUSY_SECONDS, isolation_level=None, factory=LedgerConnection
        ) as connection:
            await connection.execute("BEGIN IMMEDIATE")
            yield connection
            if connection.in_transaction:
                await connection.execute("COMMIT")
            # After an error, closing the connection rolls back.

    async def holds(self, transaction: aiosqlite.Connection, effect: Effect) -> bool:
        return transaction.in_transaction and await super().holds(transaction, effect)

    async def _run(
        self, transaction: aiosqlite.Connection, statement: str, parameters: Parameters = ()
    ) -> int:
        return await _run(transaction, statement, parameters)

    async def _select(self, transaction: aiosqlite.Connection, query: str) -> Rows:
        async with transaction.cursor() as cursor:
            cursor.row_factory = None  # return tuples: the handler may have set a row factory
            return await (await cursor.execute(query)).fetchall()

    def _dialect(self, transaction: aiosqlite.Connection) -> str:
        return "sqlite"


async def record_in(
    connection: aiosqlite.Connection, table: str, effect: Effect, now: float
) -> bool:
    """Record an effect in a connection's transaction; return False if it is already done."""
    statements = statements_of("sqlite", table, SQLITE_PLACEHOLDERS)
    # This DELETE matches no row. It only begins a transaction if the connection does not
    # autocommit.
    await _run(connection, statements.prune[0], (0, 0))
    if not connection.in_transaction:
        raise LedgerError("the connection is in no transaction; begin one before record_in")
    for statement, parameters in statements.recording(effect, now):
        if await _run(connection, statement, parameters) == 1:
            return True
    check_done(await _run(connection, statements.is_done, effect), effect)
    return False


async def _run(connection: aiosqlite.Connection, statement: str, parameters: Parameters) -> int:
    async with connection.execute(statement, parameters) as cursor:
        return len(list(await cursor.fetchall())) if cursor.description else cursor.rowcount
