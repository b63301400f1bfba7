"""Ledgers in a database of SQL: what all drivers have in common.

A driver's ledger says how to begin a transaction, and how to run a statement in it. What it knows
about a transaction is not asked for more than a better message: only the row proves that a commit
will keep what was done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from typing import Generic, TypedDict, TypeVar

from ..clock import Clock, system_clock
from ..errors import LedgerError
from ..stores.contract import DEFAULT_RETENTION
from ..stores.values import KeyLock
from .ledger import Effect, Latest
from .statements import Parameters, Rows, Statements, check_done
from .table import DIALECTS, TABLE, create_statements

T = TypeVar("T")


class LedgerOptions(TypedDict, total=False):
    """What every ledger in a database of SQL can be told.

    Attributes:
        table: the name of the table of effects, with a schema before it if it is in one;
            ``hookonce_effects``. The table of watermarks has the same name, but ends in
            ``_watermarks``.
        retention: how long a row stays, no shorter than the store remembers a handled event; a
            watermark stays that long after its last advance. 15 days.
        clock: Unix time in seconds.

    """

    table: str
    retention: timedelta
    clock: Clock


class _InTables(ABC, Generic[T]):
    """The tables of a ledger, as its statements see them."""

    def __init__(
        self,
        placeholders: Sequence[str],
        *,
        table: str = TABLE,
        retention: timedelta = DEFAULT_RETENTION,
        clock: Clock = system_clock,
    ) -> None:
        self._table = table
        self._rows = Rows(retention, clock)
        self._all_statements = {
            dialect: Statements(dialect, table, placeholders) for dialect in DIALECTS
        }

    @property
    def retention_seconds(self) -> float:
        """How long a row stays."""
        return self._rows.retention_seconds

    @abstractmethod
    def _dialect(self, transaction: T) -> str:
        """Return the dialect of SQL that a transaction's database speaks."""

    def _statements(self, transaction: T) -> Statements:
        dialect = self._dialect(transaction)
        statements = self._all_statements.get(dialect)
        if statements is None:
            raise LedgerError(
                f"there is no ledger for {dialect}; there is for {', '.join(DIALECTS)}"
            )
        return statements


class SQLLedger(_InTables[T]):
    """A ledger for async handlers."""

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[T]:
        """Return the context of a new transaction."""

    @abstractmethod
    async def _run(self, transaction: T, statement: str, parameters: Parameters = ()) -> int:
        """Run a statement; return how many rows it has changed or given."""

    async def insert(self, transaction: T, effect: Effect) -> bool:
        """Insert the effect's row; return False if it was there, and says that it is done."""
        statements, row = self._statements(transaction), self._rows.effect(effect)
        if await self._run(transaction, statements.begin, row) == 1:
            if statements.savepoint is not None:
                await self._run(transaction, statements.savepoint)
            return True
        check_done(await self._run(transaction, statements.is_done, row), effect)
        return False

    async def holds(self, transaction: T, effect: Effect) -> bool:
        """Let the row say that the effect is done, and return whether a commit would keep it."""
        statements = self._statements(transaction)
        if statements.release is not None:
            await self._run(transaction, statements.release)
        finished = self._rows.finished(effect)
        return await self._run(transaction, statements.finish, finished) == 1

    async def advance(self, transaction: T, latest: Latest) -> bool:
        """Advance the resource's watermark; return False if the event comes too late."""
        key_lock, watermark, drop_ties = latest
        statements, row = self._statements(transaction), self._rows.watermark(key_lock, watermark)
        changed = await self._run(transaction, statements.advance[drop_ties], row)
        if statements.is_advanced is not None:
            changed = await self._run(transaction, statements.is_advanced, row[:-1])
        return changed == 1

    async def prune(self, transaction: T, limit: int) -> int:
        """Delete old rows; return how many."""
        pruned = 0
        for statement in self._statements(transaction).prune:
            pruned += await self._run(transaction, statement, (self._rows.oldest, limit - pruned))
        return pruned

    async def erase(self, transaction: T, effect: Effect, key_lock: KeyLock) -> None:
        """Delete the row of an effect, and that of a watermark."""
        for statement, row in zip(
            self._statements(transaction).erase, (effect, key_lock), strict=True
        ):
            await self._run(transaction, statement, row)

    async def create_table(self) -> None:
        """Make the tables of effects and of watermarks where there are none."""
        async with self.transaction() as transaction:
            for statement in create_statements(self._dialect(transaction), self._table):
                await self._run(transaction, statement)


class SyncSQLLedger(_InTables[T]):
    """A ledger for handlers that run in threads; its methods do what those of ``SQLLedger`` do."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[T]:
        """Return the context of a new transaction."""

    @abstractmethod
    def _run(self, transaction: T, statement: str, parameters: Parameters = ()) -> int:
        """Run a statement; return how many rows it has changed or given."""

    def insert(self, transaction: T, effect: Effect) -> bool:
        """Insert the effect's row; return False if it was there, and says that it is done."""
        statements, row = self._statements(transaction), self._rows.effect(effect)
        if self._run(transaction, statements.begin, row) == 1:
            if statements.savepoint is not None:
                self._run(transaction, statements.savepoint)
            return True
        check_done(self._run(transaction, statements.is_done, row), effect)
        return False

    def holds(self, transaction: T, effect: Effect) -> bool:
        """Let the row say that the effect is done, and return whether a commit would keep it."""
        statements = self._statements(transaction)
        if statements.release is not None:
            self._run(transaction, statements.release)
        finished = self._rows.finished(effect)
        return self._run(transaction, statements.finish, finished) == 1

    def advance(self, transaction: T, latest: Latest) -> bool:
        """Advance the resource's watermark; return False if the event comes too late."""
        key_lock, watermark, drop_ties = latest
        statements, row = self._statements(transaction), self._rows.watermark(key_lock, watermark)
        changed = self._run(transaction, statements.advance[drop_ties], row)
        if statements.is_advanced is not None:
            changed = self._run(transaction, statements.is_advanced, row[:-1])
        return changed == 1

    def prune(self, transaction: T, limit: int) -> int:
        """Delete old rows; return how many."""
        pruned = 0
        for statement in self._statements(transaction).prune:
            pruned += self._run(transaction, statement, (self._rows.oldest, limit - pruned))
        return pruned

    def erase(self, transaction: T, effect: Effect, key_lock: KeyLock) -> None:
        """Delete the row of an effect, and that of a watermark."""
        for statement, row in zip(
            self._statements(transaction).erase, (effect, key_lock), strict=True
        ):
            self._run(transaction, statement, row)

    def create_table(self) -> None:
        """Make the tables of effects and of watermarks where there are none."""
        with self.transaction() as transaction:
            for statement in create_statements(self._dialect(transaction), self._table):
                self._run(transaction, statement)
