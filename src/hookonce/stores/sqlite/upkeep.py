"""Removal of records whose retention is over, in steps that keep no claim waiting for long."""

from __future__ import annotations

from typing import TypeAlias, cast

import apsw

from .claims import Claims

# When a row of each table is to go.
_IS_OVER = {
    "done": "expires <= :now",
    "attempts": "expires <= :now AND until <= :uptime"
    " AND NOT EXISTS (SELECT 1 FROM entries WHERE entries.key = attempts.key)",
    "gates": "expires <= :now AND until <= :uptime",
    "accepted": "expires <= :now",
}
_TABLES = tuple(_IS_OVER)
Place: TypeAlias = tuple[str, bytes]
"""How far a walk through the tables has come: a table, and the last key that was looked at."""
START: Place = (_TABLES[0], b"")

# One step reads this many keys: a few milliseconds in which no claim can run.
_KEYS = 2_000
_PAUSE_SECONDS = 0.05
_INTERVAL_SECONDS = 3_600.0

_FORGET_NOTES = """
DELETE FROM waiting WHERE gate > ? AND gate <= ?
    AND NOT EXISTS (SELECT 1 FROM gates WHERE key = gate)
"""
_FORGET_IGNORED = "DELETE FROM ignored WHERE last <= ?"  # of a bounded number


class Upkeep:
    """Prunes the tables of a file; a whole walk every hour keeps it from growing."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._place = START

    def prune(self, place: Place, connection: apsw.Connection) -> tuple[int, Place | None]:
        """Prune the next keys; return how many went, and where to go on, if anywhere."""
        table, after = place
        last = connection.execute(
            f"SELECT key FROM {table} WHERE key > ? ORDER BY key LIMIT 1 OFFSET ?",
            (after, _KEYS - 1),
        ).get
        # 17 bytes of 0xff sort behind every 16-byte key.
        upto = b"\xff" * 17 if last is None else last
        now, uptime = self._claims.clock(), self._claims.uptime()
        connection.execute(
            f"DELETE FROM {table} WHERE key > :after AND key <= :upto AND {_IS_OVER[table]}",
            {"after": after, "upto": upto, "now": now, "uptime": uptime},
        )
        removed = connection.changes()
        if table == "gates" and removed:
            connection.execute(_FORGET_NOTES, (after, upto))
        if place == START:
            connection.execute(_FORGET_IGNORED, (self._claims.remembered_since(),))
            removed += connection.changes()
        if last is not None:
            return removed, (table, cast("bytes", last))
        following = _TABLES[_TABLES.index(table) + 1 :]
        return removed, (following[0], b"") if following else None

    def continue_walk(self, connection: apsw.Connection) -> float:
        """Prune one step further, and return the seconds until the next."""
        _, place = self.prune(self._place, connection)
        self._place = place or START
        return _PAUSE_SECONDS if place else _INTERVAL_SECONDS
