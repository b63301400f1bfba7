"""Counts the rows that a connection has changed, if its database can tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

Rows: TypeAlias = Iterable[Sequence[Any]]

ALL_TABLES = "all tables"
"""Stands for the name of a table if the database knows only the sum over all tables."""


class RowChanges(NamedTuple):
    """The numbers of rows that a connection has changed since an earlier moment.

    Inserted, updated and deleted rows count, also those that triggers and foreign keys change. Only
    the difference of two counts means something.

    Attributes:
        tables: the number of rows for each table of the user, or for ``ALL_TABLES``.
        own: the number of rows in the tables of the ledger; included in the number for
            ``ALL_TABLES``.
    """

    tables: Mapping[str, int]
    own: int

    @classmethod
    def of(cls, rows: Iterable[Sequence[Any]]) -> Self:
        """Add up rows of (table, number of changed rows, whether the ledger owns the table)."""
        tables, own = {}, 0
        for table, count, is_own in rows:
            if is_own:
                own += count
            else:
                tables[ALL_TABLES if table is None else table] = count
        return cls(tables, own)

    def since(self, before: RowChanges, own: int) -> Mapping[str, int] | None:
        """Return how many rows of each table were changed between two counts.

        Args:
            before: the earlier count.
            own: how many rows the ledger has changed in the meantime.

        Returns:
            None if the database does not count, because ``track_counts`` is off in PostgreSQL.
        """
        changed = {
            table: count - before.tables.get(table, 0) for table, count in self.tables.items()
        }
        if ALL_TABLES in changed:
            changed[ALL_TABLES] -= own
        elif self.own - before.own != own:
            return None
        return {table: count for table, count in changed.items() if count}
