"""Removes expired records in small steps, so that no claim waits long for the file."""

from __future__ import annotations

from typing import TypeAlias, cast

import apsw

from .claims import ClaimsTable

# For each table, the condition under which a row has expired.
_IS_EXPIRED = {
    "done": "expires <= :now",
    "attempts": "expires <= :now AND until <= :uptime"
    " AND NOT EXISTS (SELECT 1 FROM entries WHERE entries.key = attempts.key)",
    "key_locks": "expires <= :now AND until <= :uptime",
    "accepted": "expires <= :now",
}
_TABLES = tuple(_IS_EXPIRED)
Position: TypeAlias = tuple[str, bytes]
"""How far pruning has come: a table, and the last key that it has looked at."""
START: Position = (_TABLES[0], b"")

# The number of keys that one step reads. No claim can run during a step, so it takes milliseconds.
_KEYS = 2_000
_PAUSE_SECONDS = 0.05
_INTERVAL_SECONDS = 3_600.0

_FORGET_NOTES = """
DELETE FROM waiting WHERE key_lock > ? AND key_lock <= ?
    AND NOT EXISTS (SELECT 1 FROM key_locks WHERE key = key_lock)
"""
_FORGET_IGNORED = "DELETE FROM ignored WHERE last <= ?"  # not in small steps: the table is small


class Upkeep:
    """Prunes the tables of a file: all of them once an hour, so that the file does not grow."""

    def __init__(self, claims: ClaimsTable) -> None:
        self._claims = claims
        self._position = START

    def prune(self, position: Position, connection: apsw.Connection) -> tuple[int, Position | None]:
        """Prune the keys after a position.

        Returns:
            The number of removed rows, and the next position; None at the end of the last table.
        """
        table, after = position
        last = connection.execute(
            f"SELECT key FROM {table} WHERE key > ? ORDER BY key LIMIT 1 OFFSET ?",
            (after, _KEYS - 1),
        ).get
        # 17 bytes of 0xff sort behind every 16-byte key.
        upto = b"\xff" * 17 if last is None else last
        now, uptime = self._claims.clock(), self._claims.uptime()
        connection.execute(
            f"DELETE FROM {table} WHERE key > :after AND key <= :upto AND {_IS_EXPIRED[table]}",
            {"after": after, "upto": upto, "now": now, "uptime": uptime},
        )
        removed = connection.changes()
        if table == "key_locks" and removed:
            connection.execute(_FORGET_NOTES, (after, upto))
        if position == START:
            connection.execute(_FORGET_IGNORED, (self._claims.remembered_since(),))
            removed += connection.changes()
        if last is not None:
            return removed, (table, cast("bytes", last))
        following = _TABLES[_TABLES.index(table) + 1 :]
        return removed, (following[0], b"") if following else None

    def continue_walk(self, connection: apsw.Connection) -> float:
        """Prune one step, and return the seconds until the next step."""
        _, position = self.prune(self._position, connection)
        self._position = position or START
        return _PAUSE_SECONDS if position else _INTERVAL_SECONDS
