"""Effects in an SQLite file, by the standard library; for handlers that run in threads.

A transaction has a connection to itself, which is kept for a later one.
"""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from os import PathLike, fspath
from typing import NoReturn

from ..errors import LedgerError
from ..stores.contract import DEFAULT_RETENTION
from ..verification.clock import Clock, system_clock
from .ledger import Effect
from .table import TABLE, Rows, Statements, create_statements, row_of

__all__ = ["SQLITE_MARKS", "LedgerConnection", "SQLiteLedger", "record_in_sync"]

SQLITE_MARKS = ("?", "?", "?", "?")
_BUSY_SECONDS = 10.0


class LedgerConnection(sqlite3.Connection):
    """A connection whose transaction is the ledger's: it cannot be ended by a method."""

    def commit(self) -> NoReturn:
        """Refuse."""
        raise LedgerError("the ledger commits when the handler returns; take commit() out of it")

    def rollback(self) -> NoReturn:
        """Refuse."""
        raise LedgerError("the ledger rolls back where the handler raises: raise Retry, or Reject")

    def executescript(self, sql_script: str, /) -> NoReturn:  # noqa: ARG002 - the base's signature
        """Refuse: it would commit first."""
        raise LedgerError("executescript() commits what is before it; use execute()")


class SQLiteLedger:
    """Effects in an SQLite file: a handler is given a ``sqlite3.Connection`` in a transaction.

    Args:
        database: the file, or a function that connects to it, for settings of your own; what it
            returns is used by several threads in turn (``check_same_thread=False``).
        table: the name of the ledger's table.
        retention: how long a row stays; no shorter than the store remembers a handled event.
        clock: Unix time in seconds.

    Raises:
        ValueError: the retention is too short, or the table's name needs quoting.

    """

    def __init__(
        self,
        database: str | PathLike[str] | Callable[[], sqlite3.Connection],
        *,
        table: str = TABLE,
        retention: timedelta = DEFAULT_RETENTION,
        clock: Clock = system_clock,
    ) -> None:
        self._connect = database if callable(database) else _connector(fspath(database))
        self._table = table
        self._statements = Statements("sqlite", table, SQLITE_MARKS)
        self._rows = Rows(retention, clock)
        self._idle: list[sqlite3.Connection] = []
        weakref.finalize(self, _close, self._idle)

    @property
    def retention_seconds(self) -> float:
        """How long a row stays."""
        return self._rows.retention_seconds

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Return the context of a new transaction, which holds the file's write lock."""
        connection = self._idle.pop() if self._idle else self._connect()
        try:
            connection.isolation_level = None  # nothing begins or commits but these statements
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                if connection.in_transaction:
                    connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)

    def insert(self, transaction: sqlite3.Connection, effect: Effect) -> bool:
        """Insert the effect's row; return False if it was there."""
        return transaction.execute(self._statements.insert, self._rows.row(effect)).rowcount == 1

    def holds(self, transaction: sqlite3.Connection, effect: Effect) -> bool:
        """Return whether a commit would still keep the row."""
        # A full disk, for one, ends a transaction; the row is not there in the next.
        return (
            transaction.in_transaction
            and transaction.execute(self._statements.find, effect).fetchone() is not None
        )

    def prune(self, transaction: sqlite3.Connection, limit: int) -> int:
        """Delete old rows; return how many."""
        return transaction.execute(self._statements.prune, (self._rows.oldest, limit)).rowcount

    def create_table(self) -> None:
        """Make the table where there is none."""
        with self.transaction() as connection:
            for statement in create_statements("sqlite", self._table):
                connection.execute(statement)

    def close(self) -> None:
        """Close the connections that are idle; a later transaction opens one again."""
        _close(self._idle)


def record_in_sync(connection: sqlite3.Connection, table: str, effect: Effect, now: float) -> bool:
    """Insert an effect's row into the transaction of a connection; return False if it was there."""
    if connection.isolation_level is None and not connection.in_transaction:
        raise LedgerError("the connection is in no transaction; begin one before the record")
    statement = Statements("sqlite", table, SQLITE_MARKS).insert
    return connection.execute(statement, row_of(effect, now)).rowcount == 1


def _connector(file: str) -> Callable[[], sqlite3.Connection]:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            file, timeout=_BUSY_SECONDS, check_same_thread=False, factory=LedgerConnection
        )

    return connect


def _close(connections: list[sqlite3.Connection]) -> None:
    while connections:
        connections.pop().close()
