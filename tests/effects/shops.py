"""A user's database in a SQLite file, with a ledger and a table of orders."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from hookonce.effects.sqlite import SQLiteLedger

__all__ = ["Shop"]


class Shop:
    """A database with a table of orders and a ledger."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "shop.db"
        self.ledger = SQLiteLedger(self.file)
        self.ledger.create_table()
        with self.ledger.transaction() as connection:
            connection.execute("CREATE TABLE orders (event_id text, booked_by text)")

    def book(self, connection: sqlite3.Connection, event_id: str, by: str = "book") -> None:
        connection.execute("INSERT INTO orders VALUES (?, ?)", (event_id, by))

    def orders(self) -> list[tuple[str, ...]]:
        return self._rows("SELECT event_id, booked_by FROM orders ORDER BY booked_by")

    def recorded(self) -> list[str]:
        return [name for (name,) in self._rows("SELECT handler FROM hookonce_effects")]

    def _rows(self, query: str) -> list[tuple[str, ...]]:
        with closing(sqlite3.connect(self.file)) as connection:
            return connection.execute(query).fetchall()
