"""The two tables of a ledger, in each dialect of SQL: effects, and watermarks of resources."""

from __future__ import annotations

import re
from collections.abc import Mapping

TABLE = "hookonce_effects"
"""The default name of the table of effects."""

DIALECTS = ("postgresql", "mysql", "sqlite")
"""The dialects of SQL that ledgers know; ``mysql`` includes MariaDB."""

HANDLER_CHARACTERS = 200
LENGTHS = {"endpoint": 64, "event_id": 512, "handler": HANDLER_CHARACTERS, "resource": 200}
"""Lengths of text columns in characters; all other columns hold numbers.

MySQL allows a key of 3072 bytes, with 4 bytes for a character; an endpoint's name is ASCII.
"""

EFFECTS = {"endpoint": True, "event_id": True, "handler": True, "recorded_at": False}
"""The columns of the table of effects; True marks a column of the primary key."""

WATERMARKS = {
    "endpoint": True,
    "handler": True,
    "resource": True,
    "created_at": False,
    "event_id": False,
    "recorded_at": False,
}
"""The columns of the table of watermarks; True marks a column of the primary key."""

GENERATION = "generation"
"""The last column of both tables: the generation of an effect; always 0 in watermarks."""

# PostgreSQL cuts names off at 63 bytes. The name of an index adds 23 bytes to the name of the table
# (`_watermarks_recorded_at`), so a table's name may have 40 bytes.
_NAME = re.compile(r"(?:[A-Za-z_]\w{0,50}\.)?[A-Za-z_]\w{0,39}", re.ASCII)

_TEXT = {
    # These collations compare byte for byte, and an upgrade of the operating system does not change
    # their order.
    "postgresql": 'varchar({}) COLLATE "C"',
    "sqlite": "varchar({})",
    "mysql": "varchar({}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
}
_ASCII = {**_TEXT, "mysql": "varchar({}) CHARACTER SET ascii COLLATE ascii_bin"}


def keys_of(columns: Mapping[str, bool]) -> list[str]:
    """Return the columns of a table's primary key."""
    return [name for name, is_key in columns.items() if is_key]


def watermarks_table(table: str) -> str:
    """Return the name of the table of watermarks beside a table of effects."""
    return f"{table.removesuffix('_effects')}_watermarks"


def create_sql(dialect: str, table: str = TABLE) -> str:
    """Return the statements that create both tables, each ended by a semicolon, for a migration.

    Args:
        dialect: ``postgresql``, ``mysql`` (MariaDB too) or ``sqlite``.
        table: the name of the table of effects, with its schema if it is in one. The table of
            watermarks has the same name, but ends in ``_watermarks``.

    Raises:
        ValueError: the dialect is unknown, or the name needs quoting.
    """
    return "".join(f"{statement};\n" for statement in create_statements(dialect, table))


def create_statements(dialect: str, table: str) -> tuple[str, ...]:
    """Return the statements that create the tables if they do not exist."""
    check_dialect(dialect)
    check_table(table)
    return (
        *_create(dialect, table, EFFECTS),
        *_create(dialect, watermarks_table(table), WATERMARKS),
    )


def _create(dialect: str, table: str, columns: Mapping[str, bool]) -> tuple[str, ...]:
    index = f"{table.rpartition('.')[2]}_recorded_at"
    lines = [f"{name} {_type(dialect, name)} NOT NULL" for name in columns]
    lines.append(f"{GENERATION} integer NOT NULL DEFAULT 0")
    lines.append(f"PRIMARY KEY ({', '.join(keys_of(columns))})")
    if dialect == "mysql":  # MySQL has no CREATE INDEX IF NOT EXISTS
        lines.append(f"KEY {index} (recorded_at)")
    end = {"mysql": " ENGINE=InnoDB", "sqlite": " WITHOUT ROWID"}.get(dialect, "")
    create = f"CREATE TABLE IF NOT EXISTS {table} (\n    " + ",\n    ".join(lines) + f"\n){end}"
    if dialect == "mysql":
        return (create,)
    return (create, f"CREATE INDEX IF NOT EXISTS {index} ON {table} (recorded_at)")


def _type(dialect: str, column: str) -> str:
    if column not in LENGTHS:
        return "bigint"
    types = _ASCII if column == "endpoint" else _TEXT
    return types[dialect].format(LENGTHS[column])


def check_dialect(dialect: str) -> None:
    """Raise ValueError if ledgers do not know a dialect."""
    if dialect not in DIALECTS:
        raise ValueError(f"there is no ledger for {dialect!r}; there is for {', '.join(DIALECTS)}")


def check_table(table: str) -> None:
    """Raise ValueError if a table's name needs quoting or is too long."""
    if _NAME.fullmatch(table) is None:
        raise ValueError(
            "a table's name is letters, digits and underscores, 40 at most, after a schema and a"
            f" full stop if it is in one, not {table!r}"
        )
