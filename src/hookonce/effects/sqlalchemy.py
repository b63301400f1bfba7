"""Effects by SQLAlchemy 2, in PostgreSQL, MySQL, MariaDB and SQLite; async and in threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any, Generic, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Engine,
    ExceptionContext,
    Index,
    MetaData,
    String,
    Table,
    TextClause,
    bindparam,
    event,
    text,
)
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
)
from sqlalchemy.orm import Session, sessionmaker

from ..errors import LedgerError
from ..stores.contract import DEFAULT_RETENTION
from ..verification.clock import Clock, system_clock
from .ledger import Effect
from .table import LENGTHS, TABLE, Rows, Statements, create_statements, row_of

__all__ = [
    "SQLAlchemyLedger",
    "SyncSQLAlchemyLedger",
    "effects_table",
    "record_in",
    "record_in_sync",
]

AsyncSessionT = TypeVar("AsyncSessionT", bound=AsyncSession)
SessionT = TypeVar("SessionT", bound=Session)

_FAILED = "hookonce.failed"
_NAMES = ("p1", "p2", "p3", "p4")
_MARKS = (":p1", ":p2", ":p3", ":p4")
_TYPES = {
    "insert": (String, String, String, BigInteger),
    "find": (String,) * 3,
    "prune": (BigInteger, BigInteger),
}


class SQLAlchemyLedger(Generic[AsyncSessionT]):
    """Effects by SQLAlchemy: an async handler is given a session in a transaction.

    On PostgreSQL, MySQL, MariaDB and SQLite. The session is committed and closed for the handler.

    Args:
        sessions: makes the sessions; those bound to more than one engine take ``bind``.
        isolation: how far transactions are isolated, where the database is no SQLite; None for what
            the engine says.
        table: the name of the ledger's table, with a schema before it if it is in one.
        retention: how long a row stays; no shorter than the store remembers a handled event.
        clock: Unix time in seconds.

    Raises:
        ValueError: the retention is too short, or the table's name needs quoting.

    """

    def __init__(
        self,
        sessions: async_sessionmaker[AsyncSessionT],
        *,
        isolation: str | None = "READ COMMITTED",
        table: str = TABLE,
        retention: timedelta = DEFAULT_RETENTION,
        clock: Clock = system_clock,
    ) -> None:
        self._sessions = sessions
        self._bind: AsyncEngine | None = None
        self._engine: AsyncEngine | None = None
        self._isolation = isolation
        self._table = table
        self._rows = Rows(retention, clock)
        Statements("sqlite", table, _MARKS)  # refuses a name now, and not at the first event

    @property
    def retention_seconds(self) -> float:
        """How long a row stays."""
        return self._rows.retention_seconds

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSessionT]:
        """Return the context of a new transaction, in a session of its own."""
        async with self._bound() as session, session.begin():
            yield session

    def _bound(self) -> AsyncSessionT:
        """Return a session, on an engine of the ledger's own that shares the pool of the user's."""
        bind = self._sessions.kw.get("bind")
        if not isinstance(bind, AsyncEngine):  # a connection, in a test that rolls all of it back
            return self._sessions()
        if bind is not self._bind:
            self._bind = bind
            self._engine = bind.execution_options(**_isolation_of(bind.dialect, self._isolation))
            _note_errors(self._engine.sync_engine)
        return self._sessions(bind=self._engine)

    async def insert(self, transaction: AsyncSessionT, effect: Effect) -> bool:
        """Insert the effect's row; return False if it was there."""
        statement = _statement(_dialect(transaction).name, self._table, "insert")
        return _changed(await transaction.execute(statement, _named(*self._rows.row(effect)))) == 1

    async def holds(self, transaction: AsyncSessionT, effect: Effect) -> bool:
        """Return whether a commit would still keep the row."""
        if not transaction.in_transaction():
            return False
        if not _may_be_broken(transaction.sync_session):
            return True
        statement = _statement(_dialect(transaction).name, self._table, "find")
        return (await transaction.execute(statement, _named(*effect))).first() is not None

    async def prune(self, transaction: AsyncSessionT, limit: int) -> int:
        """Delete old rows; return how many."""
        statement = _statement(_dialect(transaction).name, self._table, "prune")
        return _changed(await transaction.execute(statement, _named(self._rows.oldest, limit)))

    async def create_table(self) -> None:
        """Make the table where there is none."""
        async with self.transaction() as session:
            for statement in create_statements(_dialect(session).name, self._table):
                await session.execute(text(statement))


class SyncSQLAlchemyLedger(Generic[SessionT]):
    """Effects by SQLAlchemy: a handler is given a session in a transaction.

    On PostgreSQL, MySQL, MariaDB and SQLite. The session is committed and closed for the handler.

    Args:
        sessions: makes the sessions; those bound to more than one engine take ``bind``.
        isolation: how far transactions are isolated, where the database is no SQLite; None for what
            the engine says.
        table: the name of the ledger's table, with a schema before it if it is in one.
        retention: how long a row stays; no shorter than the store remembers a handled event.
        clock: Unix time in seconds.

    Raises:
        ValueError: the retention is too short, or the table's name needs quoting.

    """

    def __init__(
        self,
        sessions: sessionmaker[SessionT],
        *,
        isolation: str | None = "READ COMMITTED",
        table: str = TABLE,
        retention: timedelta = DEFAULT_RETENTION,
        clock: Clock = system_clock,
    ) -> None:
        self._sessions = sessions
        self._bind: Engine | None = None
        self._engine: Engine | None = None
        self._isolation = isolation
        self._table = table
        self._rows = Rows(retention, clock)
        Statements("sqlite", table, _MARKS)  # refuses a name now, and not at the first event

    @property
    def retention_seconds(self) -> float:
        """How long a row stays."""
        return self._rows.retention_seconds

    @contextmanager
    def transaction(self) -> Iterator[SessionT]:
        """Return the context of a new transaction, in a session of its own."""
        with self._bound() as session, session.begin():
            yield session

    def _bound(self) -> SessionT:
        """Return a session, on an engine of the ledger's own that shares the pool of the user's."""
        bind = self._sessions.kw.get("bind")
        if not isinstance(bind, Engine):  # a connection, in a test that rolls all of it back
            return self._sessions()
        if bind is not self._bind:
            self._bind = bind
            self._engine = bind.execution_options(**_isolation_of(bind.dialect, self._isolation))
            _note_errors(self._engine)
        return self._sessions(bind=self._engine)

    def insert(self, transaction: SessionT, effect: Effect) -> bool:
        """Insert the effect's row; return False if it was there."""
        statement = _statement(_dialect(transaction).name, self._table, "insert")
        return _changed(transaction.execute(statement, _named(*self._rows.row(effect)))) == 1

    def holds(self, transaction: SessionT, effect: Effect) -> bool:
        """Return whether a commit would still keep the row."""
        if not transaction.in_transaction():
            return False
        if not _may_be_broken(transaction):
            return True
        statement = _statement(_dialect(transaction).name, self._table, "find")
        return (transaction.execute(statement, _named(*effect))).first() is not None

    def prune(self, transaction: SessionT, limit: int) -> int:
        """Delete old rows; return how many."""
        statement = _statement(_dialect(transaction).name, self._table, "prune")
        return _changed(transaction.execute(statement, _named(self._rows.oldest, limit)))

    def create_table(self) -> None:
        """Make the table where there is none."""
        with self.transaction() as session:
            for statement in create_statements(_dialect(session).name, self._table):
                session.execute(text(statement))


def effects_table(metadata: MetaData, name: str = TABLE) -> Table:
    """Add the ledger's table to your metadata, so that Alembic's autogenerate makes its migration.

    Args:
        metadata: what your models are in, such as ``Base.metadata``.
        name: the table's name, without a schema: that of the metadata counts.

    """

    def column(key: str, collation: str = "utf8mb4_bin") -> Column[str]:
        length = LENGTHS[key]
        kind = (
            String(length)
            .with_variant(String(length, collation="C"), "postgresql")
            .with_variant(String(length, collation=collation), "mysql", "mariadb")
        )
        return Column(key, kind, primary_key=True)

    return Table(
        name,
        metadata,
        column("endpoint", "ascii_bin"),
        column("event_id"),
        column("handler"),
        Column("recorded_at", BigInteger, nullable=False),
        Index(f"{name}_recorded_at", "recorded_at"),
        mysql_engine="InnoDB",
        sqlite_with_rowid=False,
    )


async def record_in(
    connection: AsyncSession | AsyncConnection, table: str, effect: Effect, now: float
) -> bool:
    """Insert an effect's row into the transaction of a session or connection.

    Returns False if it was there.
    """
    if not isinstance(connection, AsyncSession | AsyncConnection):
        raise TypeError("record_in takes an async session; in a thread, call record_in_sync")
    statement = _statement(_dialect(connection).name, table, "insert")
    return _changed(await connection.execute(statement, _named(*row_of(effect, now)))) == 1


def record_in_sync(
    connection: Session | Connection, table: str, effect: Effect, now: float
) -> bool:
    """Insert an effect's row into the transaction of a session or connection.

    Returns False if it was there.
    """
    if not isinstance(connection, Session | Connection):
        raise TypeError("record_in_sync takes a plain session; of an async one, await record_in")
    statement = _statement(_dialect(connection).name, table, "insert")
    return _changed(connection.execute(statement, _named(*row_of(effect, now)))) == 1


@lru_cache(maxsize=64)
def _statement(dialect: str, table: str, name: str) -> TextClause:
    if dialect == "mariadb":
        dialect = "mysql"
    try:
        statements = Statements(dialect, table, _MARKS)
    except ValueError as error:
        raise LedgerError(str(error)) from None
    # With types: a driver that must be told would take a large number for a small one.
    parameters = zip(_NAMES, _TYPES[name], strict=False)
    return text(getattr(statements, name)).bindparams(
        *(bindparam(key, type_=kind) for key, kind in parameters)
    )


def _named(*values: str | int) -> dict[str, str | int]:
    return dict(zip(_NAMES, values, strict=False))


def _changed(result: Any) -> int:
    rowcount: int = result.rowcount
    return rowcount


def _dialect(target: AsyncSession | Session | AsyncConnection | Connection) -> Dialect:
    if isinstance(target, AsyncSession | Session):
        return target.get_bind().dialect
    return target.dialect


def _note_errors(engine: Engine) -> None:
    """Let connections of an engine note that a statement has failed."""

    def note(context: ExceptionContext) -> None:
        if context.connection is not None and not context.is_disconnect:
            context.connection.info[_FAILED] = True

    event.listen(engine, "handle_error", note)
    event.listen(engine, "begin", lambda connection: connection.info.update({_FAILED: False}))


def _may_be_broken(session: Session) -> bool:
    """Return whether a statement of a session's transaction has failed, or nobody can say."""
    connection = session.connection()  # the transaction's, which is there
    return bool(connection.info.get(_FAILED, True))


def _isolation_of(dialect: Dialect, isolation: str | None) -> dict[str, str]:
    """Return the options of a connection that give it an isolation."""
    if isolation is None or dialect.name == "sqlite":  # which has one writer at a time, and no more
        return {}
    return {"isolation_level": isolation}
