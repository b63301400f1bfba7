"""Ledgers in SQL databases: the code that all drivers share.

The ledger of a driver says how to begin a transaction, and how to run a statement in it. The
driver's own knowledge of a transaction only improves messages: the row alone proves that a commit
will keep the work.

The async and the threaded ledger are two classes with the same steps. A shared version, whose steps
are generators of statements, would be longer, because each method needs both public signatures
anyway.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from typing import Generic, TypedDict, TypeVar

from ..clock import Clock, span_seconds, system_clock
from ..stores.finishes import Finish
from ..stores.protocols import DEFAULT_RETENTION
from ..stores.values import KeyLock
from .changes import RowChanges, Rows
from .ledger import Effect, Latest
from .statements import (
    Parameters,
    Statements,
    check_done,
    statements_of,
    watermark_row,
)
from .table import TABLE, check_table, create_statements

T = TypeVar("T")


class LedgerOptions(TypedDict, total=False):
    """Options of every ledger in an SQL database.

    Attributes:
        table: the name of the table of effects, with its schema if it is in one;
            ``hookonce_effects``. The table of watermarks has the same name, but ends in
            ``_watermarks``.
        retention: how long a row stays: at least as long as the sender delivers an event again, and
            as the store remembers a handled event; a watermark stays that long after its last
            advance. 15 days.
        clock: Unix time in seconds.
    """

    table: str
    retention: float | timedelta
    clock: Clock


class _InTables(ABC, Generic[T]):
    """The tables of a ledger, and the statements on them."""

    def __init__(
        self,
        placeholders: tuple[str, ...],
        *,
        table: str = TABLE,
        retention: float | timedelta = DEFAULT_RETENTION,
        clock: Clock = system_clock,
    ) -> None:
        check_table(table)
        self.retention_seconds: float = span_seconds("retention", retention, positive=True)
        self._placeholders = placeholders
        self._table = table
        self._clock = clock

    @abstractmethod
    def _dialect(self, transaction: T) -> str:
        """Return the SQL dialect of a transaction's database."""

    def _finished(self, effect: Effect) -> Parameters:
        """Return the parameters of ``Statements.finish``."""
        return (int(self._clock()), *effect[:3])

    def _statements(self, transaction: T) -> Statements:
        return statements_of(self._dialect(transaction), self._table, self._placeholders)


class SQLLedger(_InTables[T]):
    """A ``WatermarkLedger`` in SQL; the drivers' ledgers derive from it."""

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[T]:
        """Return the context of a new transaction."""

    @abstractmethod
    async def _run(self, transaction: T, statement: str, parameters: Parameters = ()) -> int:
        """Run a statement; return how many rows it changed or selected."""

    @abstractmethod
    async def _select(self, transaction: T, query: str) -> Rows:
        """Run a query without parameters, and return its rows."""

    async def insert(self, transaction: T, effect: Effect) -> bool:
        statements = self._statements(transaction)
        for statement, parameters in statements.beginning(effect):
            if await self._run(transaction, statement, parameters) == 1:
                if statements.savepoint is not None:
                    await self._run(transaction, statements.savepoint)
                return True
        check_done(await self._run(transaction, statements.is_done, effect), effect)
        return False

    async def holds(self, transaction: T, effect: Effect) -> bool:
        statements = self._statements(transaction)
        if not await self._end_work(transaction):
            return False
        if statements.release is not None:
            await self._run(transaction, statements.release)
        return await self._run(transaction, statements.finish, self._finished(effect)) == 1

    async def finish(self, transaction: T, effect: Effect, finish: Finish) -> bool:
        statement = self._statements(transaction).finish_event(finish.call)
        if not await self._end_work(transaction):
            return False
        values = (*self._finished(effect), *finish.values)
        return await self._run(transaction, statement, values) == 1

    async def _end_work(self, transaction: T) -> bool:  # noqa: ARG002 - drivers' ledgers use the argument
        """Run delayed statements; return False if the driver knows that no transaction is open."""
        return True

    async def advance(self, transaction: T, latest: Latest) -> bool:
        statements, row = self._statements(transaction), watermark_row(latest, self._clock())
        changed = await self._run(transaction, statements.advance[latest.drop_ties], row)
        if statements.is_advanced is not None:
            changed = await self._run(transaction, statements.is_advanced, row[:-1])
        return changed == 1

    async def prune(self, transaction: T, limit: int) -> int:
        oldest, pruned = int(self._clock() - self.retention_seconds), 0
        for statement in self._statements(transaction).prune:
            pruned += await self._run(transaction, statement, (oldest, limit - pruned))
        return pruned

    async def erase(self, transaction: T, effect: Effect, key_lock: KeyLock) -> None:
        """Delete the rows of an effect and of a watermark."""
        for statement, key in zip(
            self._statements(transaction).erase, (effect[:3], key_lock), strict=True
        ):
            await self._run(transaction, statement, key)

    async def count_changes(self, transaction: T) -> RowChanges | None:
        """Return how many rows the transaction's connection has changed; see ``RowChanges``."""
        query = self._statements(transaction).changes
        return None if query is None else RowChanges.of(await self._select(transaction, query))

    async def create_table(self) -> None:
        """Create both tables if they do not exist."""
        async with self.transaction() as transaction:
            for statement in create_statements(self._dialect(transaction), self._table):
                await self._run(transaction, statement)


class SyncSQLLedger(_InTables[T]):
    """A ``SyncWatermarkLedger`` in SQL; the drivers' ledgers for threads derive from it."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[T]:
        """Return the context of a new transaction."""

    @abstractmethod
    def _run(self, transaction: T, statement: str, parameters: Parameters = ()) -> int:
        """Run a statement; return how many rows it changed or selected."""

    @abstractmethod
    def _select(self, transaction: T, query: str) -> Rows:
        """Run a query without parameters, and return its rows."""

    def insert(self, transaction: T, effect: Effect) -> bool:
        statements = self._statements(transaction)
        for statement, parameters in statements.beginning(effect):
            if self._run(transaction, statement, parameters) == 1:
                if statements.savepoint is not None:
                    self._run(transaction, statements.savepoint)
                return True
        check_done(self._run(transaction, statements.is_done, effect), effect)
        return False

    def holds(self, transaction: T, effect: Effect) -> bool:
        statements = self._statements(transaction)
        if not self._end_work(transaction):
            return False
        if statements.release is not None:
            self._run(transaction, statements.release)
        return self._run(transaction, statements.finish, self._finished(effect)) == 1

    def finish(self, transaction: T, effect: Effect, finish: Finish) -> bool:
        statement = self._statements(transaction).finish_event(finish.call)
        if not self._end_work(transaction):
            return False
        values = (*self._finished(effect), *finish.values)
        return self._run(transaction, statement, values) == 1

    def _end_work(self, transaction: T) -> bool:  # noqa: ARG002 - drivers' ledgers use the argument
        """Run delayed statements; return False if the driver knows that no transaction is open."""
        return True

    def advance(self, transaction: T, latest: Latest) -> bool:
        statements, row = self._statements(transaction), watermark_row(latest, self._clock())
        changed = self._run(transaction, statements.advance[latest.drop_ties], row)
        if statements.is_advanced is not None:
            changed = self._run(transaction, statements.is_advanced, row[:-1])
        return changed == 1

    def prune(self, transaction: T, limit: int) -> int:
        oldest, pruned = int(self._clock() - self.retention_seconds), 0
        for statement in self._statements(transaction).prune:
            pruned += self._run(transaction, statement, (oldest, limit - pruned))
        return pruned

    def erase(self, transaction: T, effect: Effect, key_lock: KeyLock) -> None:
        """Delete the rows of an effect and of a watermark."""
        for statement, key in zip(
            self._statements(transaction).erase, (effect[:3], key_lock), strict=True
        ):
            self._run(transaction, statement, key)

    def count_changes(self, transaction: T) -> RowChanges | None:
        """Return how many rows the transaction's connection has changed; see ``RowChanges``."""
        query = self._statements(transaction).changes
        return None if query is None else RowChanges.of(self._select(transaction, query))

    def create_table(self) -> None:
        """Create both tables if they do not exist."""
        with self.transaction() as transaction:
            for statement in create_statements(self._dialect(transaction), self._table):
                self._run(transaction, statement)
