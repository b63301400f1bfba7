"""Effects in a database of a Django project; for handlers that run in threads.

A handler's thread is none of Django's: its connection is its own, no ``ATOMIC_REQUESTS`` reaches
it, and connections that are too old are closed before and after it, as a request would.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.db import (  # type: ignore[import-untyped]
    close_old_connections,
    connections,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper  # type: ignore[import-untyped]

from ..errors import LedgerError
from ..stores.contract import DEFAULT_RETENTION
from ..verification.clock import Clock, system_clock
from .ledger import Effect
from .table import TABLE, Rows, Statements, create_statements, row_of

__all__ = ["DjangoLedger", "create_table", "drop_table", "record_in_sync"]

_MARKS = ("%s", "%s", "%s", "%s")


class DjangoLedger:
    """Effects in a database of a Django project: a handler's models are in the transaction.

    The handler is given the database's connection, for SQL of its own; queries by models of that
    database are in its transaction by themselves.

    Args:
        using: the database's alias.
        table: the name of the ledger's table.
        retention: how long a row stays; no shorter than the store remembers a handled event.
        clock: Unix time in seconds.

    Raises:
        ValueError: the retention is too short, or the table's name needs quoting.

    """

    def __init__(
        self,
        using: str = "default",
        *,
        table: str = TABLE,
        retention: timedelta = DEFAULT_RETENTION,
        clock: Clock = system_clock,
    ) -> None:
        self._using = using
        self._table = table
        self._rows = Rows(retention, clock)
        self._statements = {
            vendor: Statements(vendor, table, _MARKS)
            for vendor in ("postgresql", "mysql", "sqlite")
        }

    @property
    def retention_seconds(self) -> float:
        """How long a row stays."""
        return self._rows.retention_seconds

    @contextmanager
    def transaction(self) -> Iterator[BaseDatabaseWrapper]:
        """Return the context of a new transaction, the thread's outermost."""
        connection = connections[self._using]
        if not connection.in_atomic_block:
            close_old_connections()
        try:
            with transaction.atomic(using=self._using, durable=True):
                yield connection
        finally:
            if not connection.in_atomic_block:
                close_old_connections()

    def insert(self, transaction: BaseDatabaseWrapper, effect: Effect) -> bool:
        """Insert the effect's row; return False if it was there."""
        statement = self._statements_of(transaction).insert
        with transaction.cursor() as cursor:
            cursor.execute(statement, self._rows.row(effect))
            return bool(cursor.rowcount == 1)

    def holds(self, transaction: BaseDatabaseWrapper, effect: Effect) -> bool:
        """Return whether a commit would still keep the row."""
        if transaction.needs_rollback:
            raise LedgerError("the transaction is marked for a rollback")
        with transaction.cursor() as cursor:
            cursor.execute(self._statements_of(transaction).find, effect)
            return cursor.fetchone() is not None

    def prune(self, transaction: BaseDatabaseWrapper, limit: int) -> int:
        """Delete old rows; return how many."""
        with transaction.cursor() as cursor:
            cursor.execute(self._statements_of(transaction).prune, (self._rows.oldest, limit))
            return int(cursor.rowcount)

    def create_table(self) -> None:
        """Make the table where there is none."""
        _create(connections[self._using], self._table)

    def _statements_of(self, connection: BaseDatabaseWrapper) -> Statements:
        statements = self._statements.get(connection.vendor)
        if statements is None:
            raise LedgerError(f"there is no ledger for {connection.vendor}")
        return statements


def create_table(apps: Any, schema_editor: Any) -> None:  # noqa: ARG001 - RunPython passes it
    """Make the table, in a migration: ``migrations.RunPython(create_table, drop_table)``."""
    _create(schema_editor.connection, TABLE)


def drop_table(apps: Any, schema_editor: Any) -> None:  # noqa: ARG001 - RunPython passes it
    """Undo that migration."""
    schema_editor.execute(f"DROP TABLE {TABLE}")


def record_in_sync(connection: BaseDatabaseWrapper, table: str, effect: Effect, now: float) -> bool:
    """Insert an effect's row into the transaction of a connection; return False if it was there."""
    if not connection.in_atomic_block:
        raise LedgerError("the connection is in no transaction; record within transaction.atomic()")
    with connection.cursor() as cursor:
        cursor.execute(Statements(connection.vendor, table, _MARKS).insert, row_of(effect, now))
        return bool(cursor.rowcount == 1)


def _create(connection: BaseDatabaseWrapper, table: str) -> None:
    with connection.cursor() as cursor:
        for statement in create_statements(connection.vendor, table):
            cursor.execute(statement)
