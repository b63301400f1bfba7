"""Effects by SQLAlchemy 2, in PostgreSQL, MySQL, MariaDB and SQLite; async and in threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar, Unpack

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
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
from sqlalchemy.types import TypeEngine

from ..errors import LedgerError
from .ledger import Effect
from .sql import LedgerOptions, SQLLedger, SyncSQLLedger
from .statements import Parameters, Statements, row_of
from .table import EFFECTS, LENGTHS, MARKS, TABLE, marks_table

AsyncSessionT = TypeVar("AsyncSessionT", bound=AsyncSession)
SessionT = TypeVar("SessionT", bound=Session)

_Target: TypeAlias = AsyncSession | Session | AsyncConnection | Connection
_Executable: TypeAlias = tuple[TextClause, dict[str, str | int]]

_FAILED = "hookonce.failed"
_AUTOCOMMIT = "AUTOCOMMIT"
_NAMES = ("p1", "p2", "p3", "p4", "p5", "p6")
_PLACEHOLDERS = tuple(f":{name}" for name in _NAMES)


class SQLAlchemyLedger(SQLLedger[AsyncSessionT]):
    """Effects by SQLAlchemy: an async handler is given a session in a transaction.

    On PostgreSQL, MySQL, MariaDB and SQLite. The session is committed and closed for the handler.

    Args:
        sessions: makes the sessions; those bound to more than one engine take ``bind``.
        isolation: how far transactions are isolated, where the database is no SQLite; None for what
            the engine says. An engine that commits by itself does not within the ledger.
        options: see ``LedgerOptions``.

    Raises:
        ValueError: the retention is too short, or the table's name needs quoting.

    """

    def __init__(
        self,
        sessions: async_sessionmaker[AsyncSessionT],
        *,
        isolation: str | None = "READ COMMITTED",
        **options: Unpack[LedgerOptions],
    ) -> None:
        super().__init__(_PLACEHOLDERS, **options)
        self._sessions = sessions
        self._engine = _SharingEngine(isolation)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSessionT]:
        """Return the context of a new transaction, in a session of its own."""
        bound = self._engine.beside(self._sessions.kw.get("bind"))
        async with self._sessions(**bound.arguments) as session, session.begin():
            if bound.options:
                await session.connection(execution_options=bound.options)
            yield session

    async def holds(self, transaction: AsyncSessionT, effect: Effect) -> bool:
        """Return whether a commit would still keep the row."""
        if not transaction.in_transaction():
            return False
        if not _may_be_broken(transaction.sync_session):
            return True
        return await self._run(transaction, self._statements(transaction).find, effect) == 1

    async def _run(
        self, transaction: AsyncSessionT, statement: str, parameters: Parameters = ()
    ) -> int:
        return _count(await transaction.execute(*_executable(statement, parameters)))

    def _dialect(self, transaction: AsyncSessionT) -> str:
        return _dialect_name(transaction)


class SyncSQLAlchemyLedger(SyncSQLLedger[SessionT]):
    """Effects by SQLAlchemy: a handler is given a session in a transaction.

    On PostgreSQL, MySQL, MariaDB and SQLite. The session is committed and closed for the handler.

    Args:
        sessions: makes the sessions; those bound to more than one engine take ``bind``.
        isolation: how far transactions are isolated, where the database is no SQLite; None for what
            the engine says. An engine that commits by itself does not within the ledger.
        options: see ``LedgerOptions``.

    Raises:
        ValueError: the retention is too short, or the table's name needs quoting.

    """

    def __init__(
        self,
        sessions: sessionmaker[SessionT],
        *,
        isolation: str | None = "READ COMMITTED",
        **options: Unpack[LedgerOptions],
    ) -> None:
        super().__init__(_PLACEHOLDERS, **options)
        self._sessions = sessions
        self._engine = _SharingEngine(isolation)

    @contextmanager
    def transaction(self) -> Iterator[SessionT]:
        """Return the context of a new transaction, in a session of its own."""
        bound = self._engine.beside(self._sessions.kw.get("bind"))
        with self._sessions(**bound.arguments) as session, session.begin():
            if bound.options:
                session.connection(execution_options=bound.options)
            yield session

    def holds(self, transaction: SessionT, effect: Effect) -> bool:
        """Return whether a commit would still keep the row."""
        if not transaction.in_transaction():
            return False
        if not _may_be_broken(transaction):
            return True
        return self._run(transaction, self._statements(transaction).find, effect) == 1

    def _run(self, transaction: SessionT, statement: str, parameters: Parameters = ()) -> int:
        return _count(transaction.execute(*_executable(statement, parameters)))

    def _dialect(self, transaction: SessionT) -> str:
        return _dialect_name(transaction)


class _Bound(NamedTuple):
    """What the ledger's sessions are made with where the user's are bound to something."""

    bind: object
    arguments: dict[str, Any]
    options: dict[str, str]  # of a connection, whatever its engine says


class _SharingEngine:
    """An engine of the ledger's own that shares the pool of the user's, and notes what fails."""

    def __init__(self, isolation: str | None) -> None:
        self._isolation = isolation
        self._bound: _Bound | None = None

    def beside(self, bind: object) -> _Bound:
        if not isinstance(bind, Engine | AsyncEngine):  # a connection, as of tests that roll back
            return _Bound(bind, {}, {})
        bound = self._bound
        if bound is None or bound.bind is not bind:
            engine = bind.execution_options()
            _note_errors(engine.sync_engine if isinstance(engine, AsyncEngine) else engine)
            bound = _Bound(bind, {"bind": engine}, _isolation_of(bind, self._isolation))
            self._bound = bound
        return bound


def ledger_tables(metadata: MetaData, name: str = TABLE) -> tuple[Table, Table]:
    """Add the ledger's tables to your metadata, so that Alembic's autogenerate makes a migration.

    Args:
        metadata: what your models are in, such as ``Base.metadata``.
        name: the name of the table of effects, without a schema: that of the metadata counts.

    Returns:
        The tables of effects and of marks.

    """
    return _table(metadata, name, EFFECTS), _table(metadata, marks_table(name), MARKS)


def _table(metadata: MetaData, name: str, columns: Mapping[str, bool]) -> Table:
    return Table(
        name,
        metadata,
        *(
            Column(column, _type(column), primary_key=is_key, nullable=False)
            for column, is_key in columns.items()
        ),
        Index(f"{name}_recorded_at", "recorded_at"),
        mysql_engine="InnoDB",
        sqlite_with_rowid=False,
    )


def _type(column: str) -> TypeEngine[Any]:
    length = LENGTHS.get(column)
    if length is None:
        return BigInteger()
    in_mysql = "ascii_bin" if column == "endpoint" else "utf8mb4_bin"
    return (
        String(length)
        .with_variant(String(length, collation="C"), "postgresql")
        .with_variant(String(length, collation=in_mysql), "mysql", "mariadb")
    )


async def record_in(
    connection: AsyncSession | AsyncConnection, table: str, effect: Effect, now: float
) -> bool:
    """Insert an effect's row into the transaction of a session or connection.

    Returns False if it was there.
    """
    if not isinstance(connection, AsyncSession | AsyncConnection):
        raise TypeError("record_in takes an async session; in a thread, call record_in_sync")
    under = await connection.connection() if isinstance(connection, AsyncSession) else connection
    if under.sync_connection is not None:
        _check_transaction(under.sync_connection)
    return _count(await connection.execute(*_insertion(connection, table, effect, now))) == 1


def record_in_sync(
    connection: Session | Connection, table: str, effect: Effect, now: float
) -> bool:
    """Insert an effect's row into the transaction of a session or connection.

    Returns False if it was there.
    """
    if not isinstance(connection, Session | Connection):
        raise TypeError("record_in_sync takes a plain session; of an async one, await record_in")
    _check_transaction(connection.connection() if isinstance(connection, Session) else connection)
    return _count(connection.execute(*_insertion(connection, table, effect, now))) == 1


def _insertion(connection: _Target, table: str, effect: Effect, now: float) -> _Executable:
    try:
        statement = Statements(_dialect_name(connection), table, _PLACEHOLDERS).insert
    except ValueError as error:
        raise LedgerError(str(error)) from None
    return _executable(statement, row_of(effect, now))


def _executable(statement: str, parameters: Parameters) -> _Executable:
    types = tuple(BigInteger if isinstance(value, int) else String for value in parameters)
    return _typed(statement, types), dict(zip(_NAMES, parameters, strict=False))


@lru_cache(maxsize=64)
def _typed(statement: str, types: tuple[type[BigInteger | String], ...]) -> TextClause:
    """Return a statement whose parameters have types.

    A driver that must be told would take a large number for a small one.
    """
    parameters = zip(_NAMES, types, strict=False)
    return text(statement).bindparams(*(bindparam(name, type_=one) for name, one in parameters))


def _count(result: Any) -> int:
    rows: int = len(result.all()) if result.returns_rows else result.rowcount
    return rows


def _dialect_name(target: _Target) -> str:
    bind = target.get_bind() if isinstance(target, AsyncSession | Session) else target
    name = bind.dialect.name
    return "mysql" if name == "mariadb" else name


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


def _isolation_of(engine: Engine | AsyncEngine, isolation: str | None) -> dict[str, str]:
    """Return the options of a connection that give it an isolation, and a transaction at all."""
    is_sqlite = engine.dialect.name == "sqlite"  # which has one writer at a time, and no more
    if is_sqlite or isolation is None:
        isolation = None
        if _commits_by_itself(engine):
            isolation = "SERIALIZABLE" if is_sqlite else "READ COMMITTED"
    return {} if isolation is None else {"isolation_level": isolation}


def _commits_by_itself(target: Engine | AsyncEngine | Connection) -> bool:
    """Return whether every statement is a transaction of its own."""
    level = target.get_execution_options().get("isolation_level") or getattr(
        target.dialect, "_on_connect_isolation_level", None
    )
    return level is not None and str(level).upper() == _AUTOCOMMIT


def _check_transaction(connection: Connection) -> None:
    if _commits_by_itself(connection):
        raise LedgerError(
            "the connection is in no transaction, since its isolation level is AUTOCOMMIT; give it"
            " another, or open the session on an engine that has another"
        )
