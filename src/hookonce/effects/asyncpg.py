"""A ledger in PostgreSQL, with the driver asyncpg, for async handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Unpack

from ..errors import LedgerError, NeedsExtra

with NeedsExtra("asyncpg", "the ledger", "asyncpg"):
    import asyncpg  # type: ignore[import-untyped] # asyncpg ships no types
    from asyncpg.pool import PoolConnectionProxy  # type: ignore[import-untyped]  # asyncpg ships no types

from .changes import Rows
from .ledger import Effect
from .pools import LedgerPool
from .sql import LedgerOptions, SQLLedger
from .statements import Parameters, check_done, statements_of

_PLACEHOLDERS = ("$1", "$2", "$3", "$4", "$5", "$6", "$7", "$8")


class AsyncpgLedger(SQLLedger["PoolConnectionProxy[Any]"]):
    """A ledger in PostgreSQL; handlers get an asyncpg connection in a transaction.

    Args:
        pool: your pool, which you open and close yourself; or a function that makes a pool, which
            the ledger opens, and closes when its receivers close.
        isolation: the isolation level, as asyncpg names it; None for the server's default.
        options: see ``LedgerOptions``.

    Raises:
        ValueError: the retention is too short, or the table's name needs quoting.
    """

    def __init__(
        self,
        pool: asyncpg.Pool[Any] | Callable[[], asyncpg.Pool[Any]],
        *,
        isolation: str | None = "read_committed",
        **options: Unpack[LedgerOptions],
    ) -> None:
        super().__init__(_PLACEHOLDERS, **options)
        self._pool = LedgerPool(pool, _opened)
        self._isolation = isolation

    def in_use(self) -> AbstractAsyncContextManager[None]:
        """Return a context that keeps the ledger's own pool open; the last context closes the pool.

        Receivers do this by themselves.
        """
        return self._pool.in_use()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PoolConnectionProxy[Any]]:
        """Return the context of a new transaction, on a connection of the pool."""
        pool = await self._pool.opened()
        async with (
            pool.acquire() as connection,
            connection.transaction(isolation=self._isolation),
        ):
            yield connection

    async def _end_work(self, transaction: PoolConnectionProxy[Any]) -> bool:
        return bool(transaction.is_in_transaction())

    async def _run(
        self, transaction: PoolConnectionProxy[Any], statement: str, parameters: Parameters = ()
    ) -> int:
        return await _run(transaction, statement, parameters)

    async def _select(self, transaction: PoolConnectionProxy[Any], query: str) -> Rows:
        rows: Rows = await transaction.fetch(query)
        return rows

    def _dialect(self, transaction: PoolConnectionProxy[Any]) -> str:
        return "postgresql"


async def _opened(pool: asyncpg.Pool[Any]) -> None:
    await pool


async def record_in(
    connection: asyncpg.Connection[Any] | PoolConnectionProxy[Any],
    table: str,
    effect: Effect,
    now: float,
) -> bool:
    """Record an effect in a connection's transaction; return False if it is already done."""
    if not connection.is_in_transaction():
        raise LedgerError("the connection is in no transaction; begin one before record_in")
    statements = statements_of("postgresql", table, _PLACEHOLDERS)
    for statement, parameters in statements.recording(effect, now):
        if await _run(connection, statement, parameters) == 1:
            return True
    check_done(await _run(connection, statements.is_done, effect), effect)
    return False


async def _run(
    connection: asyncpg.Connection[Any] | PoolConnectionProxy[Any],
    statement: str,
    parameters: Parameters,
) -> int:
    status: str = await connection.execute(statement, *parameters)  # for example "INSERT 0 1"
    count = status.rpartition(" ")[2]
    return int(count) if count.isdigit() else 0
