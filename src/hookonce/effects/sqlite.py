"""A ledger in an SQLite file, with the module sqlite3, for handlers that run in threads.

No two transactions use a connection at the same time; a later transaction uses it again.
"""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from typing import Any, NoReturn, Unpack

from ..errors import LedgerError
from .changes import Rows
from .ledger import Effect
from .sql import LedgerOptions, SyncSQLLedger
from .statements import Parameters, check_done, statements_of

SQLITE_PLACEHOLDERS = ("?",) * 6
BUSY_SECONDS = 10.0
"""How long a transaction waits for the file's write lock."""


class LedgerConnection(sqlite3.Connection):
    """A connection whose transaction only the ledger may end."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # On macOS a plain fsync leaves data in the drive's cache; these settings also flush the
        # cache. Other systems ignore both settings.
        self.execute("PRAGMA fullfsync = ON")
        self.execute("PRAGMA checkpoint_fullfsync = ON")

    def commit(self) -> NoReturn:
        raise LedgerError("the ledger commits when the handler returns; remove commit()")

    def rollback(self) -> NoReturn:
        raise LedgerError("the ledger rolls back when the handler raises: raise Retry or Reject")

    def executescript(self, sql_script: str, /) -> NoReturn:
        """Refuse, because sqlite3 would commit before it runs the script."""
        raise LedgerError("executescript() commits the transaction first; use execute()")


class SQLiteLedger(SyncSQLLedger[sqlite3.Connection]):
    """A ledger in an SQLite file; handlers get a ``sqlite3.Connection`` in a transaction.

    Args:
        database: the file, or a function that connects to it with your own settings. Several
            threads use a connection in turn, so give it ``check_same_thread=False``.
        options: see ``LedgerOptions``.

    Attributes:
        databases: the file, if it is known without connecting.

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
            connection.isolation_level = None  # keep sqlite3 from beginning transactions
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
        # Ask the connection too: after some errors, such as a full disk, SQLite ends a transaction
        # by itself.
        return transaction.in_transaction and super().holds(transaction, effect)

    def _run(
        self, transaction: sqlite3.Connection, statement: str, parameters: Parameters = ()
    ) -> int:
        return _run(transaction, statement, parameters)

    def _select(self, transaction: sqlite3.Connection, query: str) -> Rows:
        cursor = transaction.cursor()
        cursor.row_factory = None  # return tuples: the connection may return dictionaries
        return cursor.execute(query).fetchall()

    def _dialect(self, transaction: sqlite3.Connection) -> str:
        return "sqlite"

    def close(self) -> None:
        """Close idle connections; a later transaction opens a new connection."""
        _close(self._idle)


def record_in_sync(connection: sqlite3.Connection, table: str, effect: Effect, now: float) -> bool:
    """Record an effect in a connection's transaction; return False if it is already done."""
    statements = statements_of("sqlite", table, SQLITE_PLACEHOLDERS)
    # This DELETE matches no row. It only begins a transaction if the connection does not
    # autocommit.
    _run(connection, statements.prune[0], (0, 0))
    if not connection.in_transaction:
        raise LedgerError("the connection is in no transaction; begin one before record_in")
    for statement, parameters in statements.recording(effect, now):
        if _run(connection, statement, parameters) == 1:
            return True
    check_done(_run(connection, statements.is_done, effect), effect)
    return False


def _run(connection: sqlite3.Connection, statement: str, parameters: Parameters) -> int:
    cursor = connection.execute(statement, parameters)
    return len(cursor.fetchall()) if cursor.description else cursor.rowcount


def _connector(file: str) -> Callable[[], sqlite3.Connection]:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            file, timeout=BUSY_SECONDS, check_same_thread=False, factory=LedgerConnection
        )

    return connect


def _close(connections: list[sqlite3.Connection]) -> None:
    while connections:
        connections.pop().close()
