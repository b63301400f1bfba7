"""Effects in an SQLite file, by the standard library; for handlers that run in threads.

A transaction has a connection to itself, which is kept for a later one.
"""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from typing import NoReturn, Unpack

from ..errors import LedgerError
from .ledger import Effect
from .sql import LedgerOptions, SyncSQLLedger
from .statements import Parameters, Statements, check_done, row_of

SQLITE_PLACEHOLDERS = ("?",) * 6
_BUSY_SECONDS = 10.0


class LedgerConnection(sqlite3.Connection):
    """A connection whose transaction is the ledger's: it cannot be ended by a method."""

    def commit(self) -> NoReturn:
        """Refuse."""
        raise LedgerError("the ledger commits when the handler returns; take commit() out of it")

    def rollback(self) -> NoReturn:
        """Refuse."""
        raise LedgerError("the ledger rolls back where the handler raises: raise Retry, or Reject")

    def executescript(self, sql_script: str, /) -> NoReturn:
        """Refuse: it would commit first."""
        raise LedgerError("executescript() commits what is before it; use execute()")


class SQLiteLedger(SyncSQLLedger[sqlite3.Connection]):
    """Effects in an SQLite file: a handler is given a ``sqlite3.Connection`` in a transaction.

    Args:
        database: the file, or a function that connects to it, for settings of your own; what it
            returns is used by several threads in turn (``check_same_thread=False``).
        options: see ``LedgerOptions``.

    Attributes:
        databases: the file, if it is known before the first connection.

    Raises:
        ValueError: the retention is too short, or the table's name needs quoting.

    """

    def __init__(
        self,
        database: str | PathLike[str] | Callable[[], sqlite3.Connection],
        **options: Unpack[LedgerOptions],
    ) -> None:
        super().__init__(SQLITE_PLACEHOLDERS, **options)
        self.databases: Sequence[object] = () if callable(database) else (database,)
        self._connect = database if callable(database) else _connector(fspath(database))
        self._idle: list[sqlite3.Connection] = []
        weakref.finalize(self, _close, self._idle)

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

    def holds(self, transaction: sqlite3.Connection, effect: Effect) -> bool:
        """Let the row say that the effect is done, and return whether a commit would keep it."""
        # A full disk, for one, ends a transaction.
        return transaction.in_transaction and super().holds(transaction, effect)

    def _run(
        self, transaction: sqlite3.Connection, statement: str, parameters: Parameters = ()
    ) -> int:
        return _run(transaction, statement, parameters)

    def _dialect(self, transaction: sqlite3.Connection) -> str:
        return "sqlite"

    def close(self) -> None:
        """Close the connections that are idle; a later transaction opens one again."""
        _close(self._idle)


def record_in_sync(connection: sqlite3.Connection, table: str, effect: Effect, now: float) -> bool:
    """Insert an effect's row into the transaction of a connection; return False if it was there."""
    statements = Statements("sqlite", table, SQLITE_PLACEHOLDERS)
    _run(connection, statements.prune[0], (0, 0))  # of no rows: most connections begin one by that
    if not connection.in_transaction:
        raise LedgerError("the connection is in no transaction; begin one before the record")
    if _run(connection, statements.insert, row_of(effect, now)) == 1:
        return True
    check_done(_run(connection, statements.is_done, effect), effect)
    return False


def _run(connection: sqlite3.Connection, statement: str, parameters: Parameters) -> int:
    cursor = connection.execute(statement, parameters)
    return len(cursor.fetchall()) if cursor.description else cursor.rowcount


def _connector(file: str) -> Callable[[], sqlite3.Connection]:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            file, timeout=_BUSY_SECONDS, check_same_thread=False, factory=LedgerConnection
        )

    return connect


def _close(connections: list[sqlite3.Connection]) -> None:
    while connections:
        connections.pop().close()
