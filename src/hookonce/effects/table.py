"""The two tables of a ledger, in each dialect of SQL: effects, and watermarks of resources."""

from __future__ import annotations

import re
from collections.abc import Mapping

TABLE = "hookonce_effects"
"""The name of the table of effects, where it is given no other."""

DIALECTS = ("postgresql", "mysql", "sqlite")
"""The databases whose statements are known; ``mysql`` is MariaDB's too."""

HANDLER_CHARACTERS = 200
LENGTHS = {"endpoint": 64, "event_id": 512, "handler": HANDLER_CHARACTERS, "resource": 200}
"""Each table's key is one that MySQL takes: 3072 bytes, and the names of endpoints are ASCII."""

EFFECTS = {"endpoint": True, "event_id": True, "handler": True, "recorded_at": False}
"""The columns of the table of effects, and which are its key; those of no length are numbers."""

WATERMARKS = {
    "endpoint": True,
    "handler": True,
    "resource": True,
    "created_at": False,
    "event_id": False,
    "recorded_at": False,
}
"""The columns of the table of watermarks, in the same way."""

# With `_watermarks_recorded_at`, a name has at most the 63 bytes that PostgreSQL keeps of it.
_NAME = re.compile(r"(?:[A-Za-z_]\w{0,50}\.)?[A-Za-z_]\w{0,39}", re.ASCII)

_TEXT = {
    # Byte for byte, and by no collation that an upgrade of the operating system could change under
    # the index.
    "postgresql": 'varchar({}) COLLATE "C"',
    "sqlite": "varchar({})",
    "mysql": "varchar({}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
}
_ASCII = {**_TEXT, "mysql": "varchar({}) CHARACTER SET ascii COLLATE ascii_bin"}


def keys_of(columns: Mapping[str, bool]) -> list[str]:
    """Return the columns that are a table's key."""
    return [name for name, is_key in columns.items() if is_key]


def watermarks_table(table: str) -> str:
    """Return the name of the table of watermarks that belongs to a table of effects."""
    return f"{table.removesuffix('_effects')}_watermarks"


def create_sql(dialect: str, table: str = TABLE) -> str:
    """Return the statements that make both tables, each ended by a semicolon, for a migration.

    Args:
        dialect: ``postgresql``, ``mysql`` (MariaDB too) or ``sqlite``.
        table: the name of the table of effects, with a schema before it if it is in one; the
            table of watermarks has the same name, but ends in ``_watermarks``.

    Raises:
        ValueError: there is no such dialect, or the name needs quoting.

    """
    return "".join(f"{statement};\n" for statement in create_statements(dialect, table))


def create_statements(dialect: str, table: str) -> tuple[str, ...]:
    """Return the statements that make the tables where there are none."""
    check_table(dialect, table)
    return (*_made(dialect, table, EFFECTS), *_made(dialect, watermarks_table(table), WATERMARKS))


def _made(dialect: str, table: str, columns: Mapping[str, bool]) -> tuple[str, ...]:
    index = f"{table.rpartition('.')[2]}_recorded_at"
    lines = [f"{name} {_type(dialect, name)} NOT NULL" for name in columns]
    lines.append(f"PRIMARY KEY ({', '.join(keys_of(columns))})")
    if dialect == "mysql":  # which has no CREATE INDEX IF NOT EXISTS
        lines.append(f"KEY {index} (recorded_at)")
    end = {"mysql": " ENGINE=InnoDB", "sqlite": " WITHOUT ROWID"}.get(dialect, "")
    made = f"CREATE TABLE IF NOT EXISTS {table} (\n    " + ",\n    ".join(lines) + f"\n){end}"
    if dialect == "mysql":
        return (made,)
    return (made, f"CREATE INDEX IF NOT EXISTS {index} ON {table} (recorded_at)")


def _type(dialect: str, column: str) -> str:
    if column not in LENGTHS:
        return "bigint"
    kinds = _ASCII if column == "endpoint" else _TEXT
    return kinds[dialect].format(LENGTHS[column])


def check_table(dialect: str, table: str) -> None:
    """Return if there are statements for a table; ValueError if there are none."""
    if dialect not in DIALECTS:
        raise ValueError(f"there is no ledger for {dialect!r}; there is for {', '.join(DIALECTS)}")
    if _NAME.fullmatch(table) is None:
        raise ValueError(
            "a table's name is letters, digits and underscores, 40 at most, with a schema and a"
            f" full stop before it if it is in one, not {table!r}"
        )
