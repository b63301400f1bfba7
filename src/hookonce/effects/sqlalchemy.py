"""Ledgers with SQLAlchemy 2, in PostgreSQL, MySQL, MariaDB and SQLite; async and for threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar, Unpack
from weakref import WeakKeyDictionary

from ..errors import LedgerError, NeedsExtra

with NeedsExtra("sqlalchemy", "the ledger", "sqlalchemy"):
    from sqlalchemy import (
        BigInteger,
        Column,
        Connection,
        Engine,
        Index,
        Integer,
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

from .changes import Rows
from .database_errors import sqlstate
from .ledger import Effect
from .sql import LedgerOptions, SQLLedger, SyncSQLLedger
from .statements import (
    Parameters,
    Statements,
    check_done,
    check_kept,
    statements_of,
)
from .table import EFFECTS, GENERATION, LENGTHS, TABLE, WATERMARKS, watermarks_table

AsyncSessionT = TypeVar("AsyncSessionT", bound=AsyncSession)
SessionT = TypeVar("SessionT", bound=Session)

_Target: TypeAlias = AsyncSession | Session | AsyncConnection | Connection
_Executable: TypeAlias = tuple[TextClause, dict[str, str | int]]

_AUTOCOMMIT = "AUTOCOMMIT"
_NAMES = ("p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8")
_PLACEHOLDERS = tuple(f":{name}" for name in _NAMES)


class SQLAlchemyLedger(SQLLedger[AsyncSessionT]):
    """A ledger with SQLAlchemy; async handlers get an ``AsyncSession`` in a transaction.

    For PostgreSQL, MySQL, MariaDB and SQLite. The ledger commits and closes the session.

    Args:
        sessions: makes the sessions; the ledger's tables are in the database of its ``bind``.
        isolation: the isolation level, except in SQLite; None for the engine's. The ledger also
            begins transactions on an engine in AUTOCOMMIT.
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
        self._isolation = isolation

    @property
    def databases(self) -> tuple[object, ...]:
        """The SQLite files of the engines; empty for other databases."""
        return _sqlite_databases(self._sessions.kw)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSessionT]:
        """Return the context of a new transaction, in a session of its own."""
        options = _connection_options(self._sessions.kw.get("bind"), self._isolation)
        async with self._sessions() as session, session.begin():
            if options:
                await session.connection(execution_options=options)
            yield session

    async def _end_work(self, transaction: AsyncSessionT) -> bool:
        if not transaction.in_transaction():
            return False
        if _is_pending(transaction):
            await transaction.run_sync(_write_pending)
        return True

    async def _run(
        self, transaction: AsyncSessionT, statement: str, parameters: Parameters = ()
    ) -> int:
        return await transaction.run_sync(_run, statement, parameters)

    async def _select(self, transaction: AsyncSessionT, query: str) -> Rows:
        return await transaction.run_sync(_select, query)

    def _dialect(self, transaction: AsyncSessionT) -> str:
        return _dialect_name(transaction)


class SyncSQLAlchemyLedger(SyncSQLLedger[SessionT]):
    """A ledger with SQLAlchemy; handlers in threads get a ``Session`` in a transaction.

    Args:
        sessions: makes the sessions; the ledger's tables are in the database of its ``bind``.
        isolation: as for ``SQLAlchemyLedger``.
        options: see ``LedgerOptions``.

    Raises:
        ValueError: as for ``SQLAlchemyLedger``.
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
        self._isolation = isolation

    @property
    def databases(self) -> tuple[object, ...]:
        """The SQLite files of the engines; empty for other databases."""
        return _sqlite_databases(self._sessions.kw)

    @contextmanager
    def transaction(self) -> Iterator[SessionT]:
        """Return the context of a new transaction, in a session of its own."""
        options = _connection_options(self._sessions.kw.get("bind"), self._isolation)
        with self._sessions() as session, session.begin():
            if options:
                session.connection(execution_options=options)
            yield session

    def _end_work(self, transaction: SessionT) -> bool:
        if not transaction.in_transaction():
            return False
        if _is_pending(transaction):
            _write_pending(transaction)
        return True

    def _run(self, transaction: SessionT, statement: str, parameters: Parameters = ()) -> int:
        return _run(transaction, statement, parameters)

    def _select(self, transaction: SessionT, query: str) -> Rows:
        return _select(transaction, query)

    def _dialect(self, transaction: SessionT) -> str:
        return _dialect_name(transaction)


def _sqlite_databases(options: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the SQLite files of a session maker's engines."""
    bound = (options.get("bind"), *(options.get("binds") or {}).values())
    engines = (getattr(bind, "engine", bind) for bind in bound if bind is not None)
    return tuple(engine.url.database for engine in engines if engine.dialect.name == "sqlite")


def ledger_tables(metadata: MetaData, name: str = TABLE) -> tuple[Table, Table]:
    """Add the ledger's tables to your metadata, so that Alembic's autogenerate makes a migration.

    Args:
        metadata: the metadata of your models, such as ``Base.metadata``.
        name: the name of the table of effects, without its schema, which is the metadata's.

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
        Column(GENERATION, Integer, nullable=False, server_default=text("0")),
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
    """Record an effect in a session's transaction; return False if it is already done."""
    if not isinstance(connection, AsyncSession | AsyncConnection):
        raise TypeError("record_in takes an async session; in a thread, call record_in_sync")
    under = await connection.connection() if isinstance(connection, AsyncSession) else connection
    return await under.run_sync(_record, table, effect, now)


def record_in_sync(
    connection: Session | Connection, table: str, effect: Effect, now: float
) -> bool:
    """Record an effect in a session's transaction; return False if it is already done."""
    if not isinstance(connection, Session | Connection):
        raise TypeError("record_in_sync takes a plain session; for an async one, await record_in")
    under = connection.connection() if isinstance(connection, Session) else connection
    return _record(under, table, effect, now)


def _record(connection: Connection, table: str, effect: Effect, now: float) -> bool:
    statements = statements_of(_dialect_name(connection), table, _PLACEHOLDERS)
    if _commits_by_itself(connection) or not _is_in_transaction(connection, statements):
        raise LedgerError(
            "the connection is in no transaction, since it commits by itself; take isolation_level"
            " (None or AUTOCOMMIT) and autocommit out of the arguments of its engine and of its"
            " connect_args"
        )
    for statement, parameters in statements.recording(effect, now):
        if _count(connection.execute(*_executable(statement, parameters))) == 1:
            _check_at_commit(connection, statements, effect)
            return True
    check_done(_count(connection.execute(*_executable(statements.is_done, effect))), effect)
    return False


def _check_at_commit(connection: Connection, statements: Statements, effect: Effect) -> None:
    """Make the COMMIT fail if it would not keep the row."""
    recorded = _recorded.get(connection)
    if recorded is None:
        recorded = _recorded[connection] = []
        event.listen(connection, "commit", _check_recorded)
        event.listen(connection, "rollback", lambda rolled_back: _recorded[rolled_back].clear())
    recorded.append((statements, effect))


_Recorded: TypeAlias = list[tuple[Statements, Effect]]
_recorded: WeakKeyDictionary[Connection, _Recorded] = WeakKeyDictionary()
"""The effects that ``record_in`` has recorded in the current transaction of each connection."""


def _check_recorded(connection: Connection) -> None:
    recorded = _recorded[connection]
    while recorded:
        statements, effect = recorded.pop()
        found = connection.execute(*_executable(statements.is_ours, effect))
        check_kept(_count(found), effect)


def _is_pending(session: AsyncSession | Session) -> bool:
    """Return whether a session still has statements to run before its COMMIT."""
    return bool(session.in_nested_transaction() or session.new or session.dirty or session.deleted)


def _write_pending(session: Session) -> None:
    """Run a session's delayed statements now, because they may break the transaction."""
    while (nested := session.get_nested_transaction()) is not None:
        nested.commit()
    session.flush()


def _run(session: Session, statement: str, parameters: Parameters) -> int:
    """Run a statement on the session's connection, which is faster than through the session."""
    return _count(session.connection().execute(*_executable(statement, parameters)))


def _select(session: Session, query: str) -> Rows:
    return session.connection().execute(text(query)).all()


def _executable(statement: str, parameters: Parameters) -> _Executable:
    types = tuple(BigInteger if isinstance(value, int) else String for value in parameters)
    return _typed(statement, types), dict(zip(_NAMES, parameters, strict=False))


@lru_cache(maxsize=64)
def _typed(statement: str, types: tuple[type[BigInteger | String], ...]) -> TextClause:
    """Return a statement with typed parameters: some drivers treat an untyped bigint as an int."""
    parameters = zip(_NAMES, types, strict=False)
    return text(statement).bindparams(*(bindparam(name, type_=one) for name, one in parameters))


def _count(result: Any) -> int:
    rows: int = len(result.all()) if result.returns_rows else result.rowcount
    return rows


def _dialect_name(target: _Target) -> str:
    bind = target.get_bind() if isinstance(target, AsyncSession | Session) else target
    name = bind.dialect.name
    return "mysql" if name == "mariadb" else name


def _connection_options(bind: object, isolation: str | None) -> dict[str, str]:
    """Return connection options that set the isolation level and turn AUTOCOMMIT off."""
    if not isinstance(bind, Engine | AsyncEngine):  # a test may bind a connection, not an engine
        return {}
    # SQLite has one writer at a time, so isolation levels do not matter.
    is_sqlite = bind.dialect.name == "sqlite"
    if is_sqlite or isolation is None:
        if not _commits_by_itself(bind):
            return {}
        isolation = "SERIALIZABLE" if is_sqlite else "READ COMMITTED"
    return {"isolation_level": isolation}


def _commits_by_itself(target: Engine | AsyncEngine | Connection) -> bool:
    """Return whether the driver commits each statement by itself (AUTOCOMMIT)."""
    level = target.get_execution_options().get("isolation_level") or getattr(
        target.dialect, "_on_connect_isolation_level", None
    )
    return level is not None and str(level).upper() == _AUTOCOMMIT


# The error codes outside a transaction: PostgreSQL refuses SAVEPOINT, and MySQL does not find the
# savepoint at its RELEASE.
_NO_TRANSACTION = {"25P01", 1305}


def _is_in_transaction(connection: Connection, statements: Statements) -> bool:
    """Ask the database whether a transaction is open, since the driver may autocommit."""
    if _dialect_name(connection) == "sqlite":
        connection.execute(
            *_executable(statements.prune[0], (0, 0))
        )  # this DELETE matches no row: its only use is to begin a transaction
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
