"""The table that effects are recorded in, and its statements in each dialect of SQL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta

from ..errors import LedgerError
from ..stores.contract import check_retention
from ..verification.clock import Clock
from .ledger import Effect

__all__ = [
    "DIALECTS",
    "HANDLER_CHARACTERS",
    "LENGTHS",
    "TABLE",
    "Rows",
    "Statements",
    "create_sql",
    "create_statements",
]

TABLE = "hookonce_effects"
"""The name of the table, where it is given no other."""

DIALECTS = ("postgresql", "mysql", "sqlite")
"""The databases whose statements are known; ``mysql`` is MariaDB's too."""

HANDLER_CHARACTERS = 200
LENGTHS = {"endpoint": 64, "event_id": 512, "handler": HANDLER_CHARACTERS}
"""Together a key that MySQL takes: 3072 bytes, and the names of endpoints are ASCII."""

_NAME = re.compile(r"[A-Za-z_]\w{0,50}(?:\.[A-Za-z_]\w{0,50})?", re.ASCII)

_TEXT = {
    # Byte for byte, and by no collation that an upgrade of the operating system could change under
    # the index.
    "postgresql": 'varchar({}) COLLATE "C"',
    "sqlite": "varchar({})",
    "mysql": "varchar({}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
}
_ASCII = {**_TEXT, "mysql": "varchar({}) CHARACTER SET ascii COLLATE ascii_bin"}


def create_sql(dialect: str, table: str = TABLE) -> str:
    """Return the statements that make the table, each ended by a semicolon, for a migration.

    Args:
        dialect: ``postgresql``, ``mysql`` (MariaDB too) or ``sqlite``.
        table: its name, with a schema before it if it is in one.

    Raises:
        ValueError: there is no such dialect, or the name needs quoting.

    """
    return "".join(f"{statement};\n" for statement in create_statements(dialect, table))


def create_statements(dialect: str, table: str) -> tuple[str, ...]:
    """Return the statements that make the table where there is none."""
    _check(dialect, table)
    index = f"{table.rpartition('.')[2]}_recorded_at"
    columns = [
        f"    endpoint {_ASCII[dialect].format(LENGTHS['endpoint'])} NOT NULL",
        f"    event_id {_TEXT[dialect].format(LENGTHS['event_id'])} NOT NULL",
        f"    handler {_TEXT[dialect].format(LENGTHS['handler'])} NOT NULL",
        "    recorded_at bigint NOT NULL",
        "    PRIMARY KEY (endpoint, event_id, handler)",
    ]
    if dialect == "mysql":  # which has no CREATE INDEX IF NOT EXISTS
        columns.append(f"    KEY {index} (recorded_at)")
    end = {"mysql": " ENGINE=InnoDB", "sqlite": " WITHOUT ROWID"}.get(dialect, "")
    made = f"CREATE TABLE IF NOT EXISTS {table} (\n" + ",\n".join(columns) + f"\n){end}"
    if dialect == "mysql":
        return (made,)
    return (made, f"CREATE INDEX IF NOT EXISTS {index} ON {table} (recorded_at)")


class Statements:
    """What a ledger asks of its database.

    Args:
        dialect: the dialect of SQL.
        table: the table's name.
        marks: how the driver writes four parameters in turn.

    Attributes:
        insert: takes a row; inserts none where it is there.
        find: takes an effect; gives a row where it is there.
        prune: takes a moment in Unix seconds and a number of rows.

    """

    __slots__ = ("find", "insert", "prune")

    def __init__(self, dialect: str, table: str, marks: Sequence[str]) -> None:
        _check(dialect, table)
        first, second, third, fourth = marks
        ignore, otherwise = (
            ("IGNORE ", "") if dialect == "mysql" else ("", " ON CONFLICT DO NOTHING")
        )
        self.insert = (
            f"INSERT {ignore}INTO {table} (endpoint, event_id, handler, recorded_at)"
            f" VALUES ({first}, {second}, {third}, {fourth}){otherwise}"
        )
        self.find = (
            f"SELECT 1 FROM {table}"
            f" WHERE endpoint = {first} AND event_id = {second} AND handler = {third}"
        )
        key, oldest = "endpoint, event_id, handler", f"ORDER BY recorded_at LIMIT {second}"
        self.prune = f"DELETE FROM {table} WHERE recorded_at < {first} {oldest}"
        if dialect != "mysql":  # a DELETE has no LIMIT in the others
            self.prune = (
                f"DELETE FROM {table} WHERE ({key}) IN"
                f" (SELECT {key} FROM {table} WHERE recorded_at < {first} {oldest})"
            )


class Rows:
    """What goes into the table and how long it stays there.

    Args:
        retention: how long a row stays; at least 26 hours.
        clock: Unix time in seconds.

    """

    __slots__ = ("clock", "retention_seconds")

    def __init__(self, retention: timedelta, clock: Clock) -> None:
        self.retention_seconds = check_retention(retention)
        self.clock = clock

    def row(self, effect: Effect) -> tuple[str, str, str, int]:
        """Return an effect's row."""
        return row_of(effect, self.clock())

    @property
    def oldest(self) -> int:
        """The moment before which rows may go."""
        return int(self.clock() - self.retention_seconds)


def row_of(effect: Effect, now: float) -> tuple[str, str, str, int]:
    """Return an effect's row; LedgerError for one that the table cannot tell from others."""
    for name, value in effect._asdict().items():
        if len(value) > LENGTHS[name]:  # MySQL would cut it off, and take two effects for one
            raise LedgerError(f"{name} is longer than the {LENGTHS[name]} characters of the table")
    return (*effect, int(now))


def _check(dialect: str, table: str) -> None:
    if dialect not in DIALECTS:
        raise ValueError(f"there is no ledger for {dialect!r}; there is for {', '.join(DIALECTS)}")
    if _NAME.fullmatch(table) is None:
        raise ValueError(
            f"a table's name is letters, digits and underscores, with a schema and a full stop"
            f" before it if it is in one, not {table!r}"
        )
