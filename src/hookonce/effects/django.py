"""A ledger in a database of a Django project, for handlers that run in threads.

A handler runs in a thread of hookonce, not of Django. So it has its own connection, and
``ATOMIC_REQUESTS`` does not apply. Before and after the handler, the ledger closes connections that
are too old, as Django does around a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Unpack

from ..errors import LedgerError, NeedsExtra

with NeedsExtra("django", "the ledger", "django"):
    from django.db import (  # type: ignore[import-untyped]
        close_old_connections,
        connections,
        transaction,
    )
    from django.db.backends.base.base import BaseDatabaseWrapper  # type: ignore[import-untyped]

from .changes import Rows
from .ledger import Effect
from .sql import LedgerOptions, SyncSQLLedger
from .statements import Parameters, check_done, check_kept, statements_of
from .table import TABLE, create_statements, watermarks_table

_PLACEHOLDERS = ("%s",) * 8


class DjangoLedger(SyncSQLLedger[BaseDatabaseWrapper]):
    """A ledger in a database of a Django project; queries of models run in its transaction.

    Handlers get the database's connection, with which they can run their own SQL.

    Args:
        using: the database's alias.
        options: see ``LedgerOptions``.

    Raises:
        ValueError: the retention is too short, or the table's name needs quoting.
    """

    def __init__(self, using: str = "default", **options: Unpack[LedgerOptions]) -> None:
        super().__init__(_PLACEHOLDERS, **options)
        self._using = using

    @property
    def databases(self) -> tuple[object, ...]:
        """The SQLite file in Django's settings; empty for another database."""
        if self._using not in connections or connections[self._using].vendor != "sqlite":
            return ()
        return (connections[self._using].settings_dict["NAME"],)

    @contextmanager
    def transaction(self) -> Iterator[BaseDatabaseWrapper]:
        """Return the context of a new transaction; it must not be inside another transaction."""
        connection = connections[self._using]
        if not connection.in_atomic_block:
            close_old_connections()
        try:
            if not connection.in_atomic_block and not connection.get_autocommit():
                raise LedgerError(
                    "the database's AUTOCOMMIT is off, so Django would not commit the ledger's"
                    f" transaction; remove it from DATABASES[{self._using!r}]"
                )
            with transaction.atomic(using=self._using, durable=True):
                yield connection
        finally:
            if not connection.in_atomic_block:
                close_old_connections()

    def _end_work(self, transaction: BaseDatabaseWrapper) -> bool:
        if transaction.needs_rollback:
            raise LedgerError("Django has marked the transaction for a rollback")
        return True

    def create_table(self) -> None:
        """Create both tables if they do not exist."""
        _create(connections[self._using], self._table)

    def _run(
        self, transaction: BaseDatabaseWrapper, statement: str, parameters: Parameters = ()
    ) -> int:
        return _run(transaction, statement, parameters)

    def _select(self, transaction: BaseDatabaseWrapper, query: str) -> Rows:
        with transaction.cursor() as cursor:
            cursor.execute(query)
            rows: Rows = cursor.fetchall()
        return rows

    def _dialect(self, transaction: BaseDatabaseWrapper) -> str:
        return str(transaction.vendor)


def create_table(apps: Any, schema_editor: Any) -> None:  # noqa: ARG001 - RunPython passes this argument
    """Create the tables in a migration: ``migrations.RunPython(create_table, drop_table)``."""
    _create(schema_editor.connection, TABLE)


def drop_table(apps: Any, schema_editor: Any) -> None:  # noqa: ARG001 - RunPython passes this argument
    """Drop the tables that ``create_table`` created."""
    for table in (TABLE, watermarks_table(TABLE)):
        schema_editor.execute(f"DROP TABLE {table}")


def record_in_sync(connection: BaseDatabaseWrapper, table: str, effect: Effect, now: float) -> bool:
    """Record an effect in a connection's transaction; return False if it is already done."""
    if not connection.in_atomic_block:
        raise LedgerError("the connection is in no transaction; record within transaction.atomic()")
    statements = statements_of(connection.vendor, table, _PLACEHOLDERS)

    def look() -> None:
        check_kept(_run(connection, statements.is_done, effect), effect)

    for statement, parameters in statements.recording(effect, now):
        if _run(connection, statement, parameters) == 1:
            # Django has no hook before the COMMIT, so check after it. An error here makes the
            # handler fail.
            transaction.on_commit(look, using=connection.alias)
            return True
    check_done(_run(connection, statements.is_done, effect), effect)
    return False


def _create(connection: BaseDatabaseWrapper, table: str) -> None:
    for statement in create_statements(connection.vendor, table):
        _run(connection, statement)


def _run(connection: BaseDatabaseWrapper, statement: str, parameters: Parameters = ()) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return len(cursor.fetchall()) if cursor.description else int(cursor.rowcount)
