"""Effects by SQLAlchemy 2, in PostgreSQL, MySQL, MariaDB and SQLite; async and in threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar, Unpack
from weakref import WeakKeyDictionary

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Index,
    MetaData,
    String,
    Table,
    TextClause,
    bindparam,
    event,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
)
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.types import TypeEngine

from ..errors import LedgerError
from .database_errors import sqlstate
from .ledger import Effect
from .sql import LedgerOptions, SQLLedger, SyncSQLLedger
from .statements import Parameters, Statements, check_done, check_kept, row_of
from .table import EFFECTS, LENGTHS, TABLE, WATERMARKS, watermarks_table

AsyncSessionT = TypeVar("AsyncSessionT", bound=AsyncSession)
SessionT = TypeVar("SessionT", bound=Session)

_Target: TypeAlias = AsyncSession | Session | AsyncConnection | Connection
_Executable: TypeAlias = tuple[TextClause, dict[str, str | int]]

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
        self._isolation = _Isolation(isolation)

    @property
    def databases(self) -> tuple[object, ...]:
        """What the engines connect to, where that is an SQLite file."""
        return _sqlite_databases(self._sessions.kw)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSessionT]:
        """Return the context of a new transaction, in a session of its own."""
        options = self._isolation.options(self._sessions.kw.get("bind"))
        async with self._sessions() as session, session.begin():
            if options:
                await session.connection(execution_options=options)
            yield session

    async def holds(self, transaction: AsyncSessionT, effect: Effect) -> bool:
        """Let the row say that the effect is done, and return whether a commit would keep it."""
        if not transaction.in_transaction():
            return False
        if _is_pending(transaction):
            await transaction.run_sync(_write_pending)
        return await super().holds(transaction, effect)

    async def _run(
        self, transaction: AsyncSessionT, statement: str, parameters: Parameters = ()
    ) -> int:
        return await transaction.run_sync(_run, statement, parameters)

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
        self._isolation = _Isolation(isolation)

    @property
    def databases(self) -> tuple[object, ...]:
        """What the engines connect to, where that is an SQLite file."""
        return _sqlite_databases(self._sessions.kw)

    @contextmanager
    def transaction(self) -> Iterator[SessionT]:
        """Return the context of a new transaction, in a session of its own."""
        options = self._isolation.options(self._sessions.kw.get("bind"))
        with self._sessions() as session, session.begin():
            if options:
                session.connection(execution_options=options)
            yield session

    def holds(self, transaction: SessionT, effect: Effect) -> bool:
        """Let the row say that the effect is done, and return whether a commit would keep it."""
        if not transaction.in_transaction():
            return False
        if _is_pending(transaction):
            _write_pending(transaction)
        return super().holds(transaction, effect)

    def _run(self, transaction: SessionT, statement: str, parameters: Parameters = ()) -> int:
        return _run(transaction, statement, parameters)

    def _dialect(self, transaction: SessionT) -> str:
        return _dialect_name(transaction)


def _sqlite_databases(options: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the databases of a session maker's engines that are SQLite's."""
    bound = (options.get("bind"), *(options.get("binds") or {}).values())
    engines = (getattr(bind, "engine", bind) for bind in bound if bind is not None)
    return tuple(engine.url.database for engine in engines if engine.dialect.name == "sqlite")


class _Bound(NamedTuple):
    """What the connections of a ledger's sessions are given, by what the sessions are bound to."""

    bind: object
    options: dict[str, str]


class _Isolation:
    """How far the transactions of a ledger are isolated, whatever its engine says."""

    def __init__(self, isolation: str | None) -> None:
        self._isolation = isolation
        self._bound = _Bound(None, {})

    def options(self, bind: object) -> dict[str, str]:
        if not isinstance(bind, Engine | AsyncEngine):  # a connection, as of tests that roll back
            return {}
        if self._bound.bind is not bind:
            self._bound = _Bound(bind, _isolation_of(bind, self._isolation))
        return self._bound.options


def ledger_tables(metadata: MetaData, name: str = TABLE) -> tuple[Table, Table]:
    """Add the ledger's tables to your metadata, so that Alembic's autogenerate makes a migration.

    Args:
        metadata: what your models are in, such as ``Base.metadata``.
        name: the name of the table of effects, without a schema: that of the metadata counts.

    Returns:
        The tables of effects and of watermarks.

    """
    return _table(metadata, name, EFFECTS), _table(metadata, watermarks_table(name), WATERMARKS)


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
    return await under.run_sync(_record, table, effect, now)


def record_in_sync(
    connection: Session | Connection, table: str, effect: Effect, now: float
) -> bool:
    """Insert an effect's row into the transaction of a session or connection.

    Returns False if it was there.
    """
    if not isinstance(connection, Session | Connection):
        raise TypeError("record_in_sync takes a plain session; of an async one, await record_in")
    under = connection.connection() if isinstance(connection, Session) else connection
    return _record(under, table, effect, now)


def _record(connection: Connection, table: str, effect: Effect, now: float) -> bool:
    statements = _statements_for(connection, table)
    if _commits_by_itself(connection) or not _is_in_transaction(connection, statements):
        raise LedgerError(
            "the connection is in no transaction, since it commits by itself; take isolation_level"
            " (None or AUTOCOMMIT) and autocommit out of what its engine or connect_args are given"
        )
    if _count(connection.execute(*_executable(statements.insert, row_of(effect, now)))) == 1:
        _look_at_commit(connection, statements, effect)
        return True
    check_done(_count(connection.execute(*_executable(statements.is_done, effect))), effect)
    return False


def _look_at_commit(connection: Connection, statements: Statements, effect: Effect) -> None:
    """Let a COMMIT fail that would not keep the row."""
    recorded = _recorded.get(connection)
    if recorded is None:
        recorded = _recorded[connection] = []
        event.listen(connection, "commit", _look)
        event.listen(connection, "rollback", lambda rolled_back: _recorded[rolled_back].clear())
    recorded.append((statements, effect))


_Recorded: TypeAlias = list[tuple[Statements, Effect]]
_recorded: WeakKeyDictionary[Connection, _Recorded] = WeakKeyDictionary()
"""What was recorded in the transaction of each connection that ``record_in`` was given."""


def _look(connection: Connection) -> None:
    recorded = _recorded[connection]
    while recorded:
        statements, effect = recorded.pop()
        found = connection.execute(*_executable(statements.is_ours, effect))
        check_kept(_count(found), effect)


def _statements_for(connection: _Target, table: str) -> Statements:
    try:
        return Statements(_dialect_name(connection), table, _PLACEHOLDERS)
    except ValueError as error:
        raise LedgerError(str(error)) from None


def _is_pending(session: AsyncSession | Session) -> bool:
    """Return whether a session would still do something before its COMMIT."""
    return bool(session.in_nested_transaction() or session.new or session.dirty or session.deleted)


def _write_pending(session: Session) -> None:
    """Do that now, since it may still break the transaction."""
    while (nested := session.get_nested_transaction()) is not None:
        nested.commit()
    session.flush()


def _run(session: Session, statement: str, parameters: Parameters) -> int:
    """Run a statement below the session, which is quicker than by it."""
    return _count(session.connection().execute(*_executable(statement, parameters)))


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


# In PostgreSQL no savepoint can be set outside of a transaction; in MySQL it is gone at once.
_NO_TRANSACTION = {"25P01", 1305}


def _is_in_transaction(connection: Connection, statements: Statements) -> bool:
    """Return whether the transaction is still open: the driver may commit by itself."""
    if _dialect_name(connection) == "sqlite":
        connection.execute(*_executable(statements.prune[0], (0, 0)))  # of no rows: begins it
        return bool(getattr(connection.connection.driver_connection, "in_transaction", True))
    try:
        connection.exec_driver_sql("SAVEPOINT hookonce_record")
        connection.exec_driver_sql("RELEASE SAVEPOINT hookonce_record")
    except DBAPIError as error:
        codes = {sqlstate(error), *getattr(error.orig, "args", ())[:1]}
        if codes.isdisjoint(_NO_TRANSACTION):
            raise
        return False
    return True
