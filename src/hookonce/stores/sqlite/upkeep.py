"""Removes expired records in small steps, so that no claim waits long for the file."""

from __future__ import annotations

from typing import TypeAlias, cast

import apsw

from .claims import ClaimsTable
from .handled import prune_handled

# For each table, the condition under which a row has expired.
_IS_EXPIRED = {
    # Keep the record while the event's delivery is kept: only the record refers to the delivery.
    "done": "expires <= :now"
    " AND NOT EXISTS (SELECT 1 FROM handled WHERE id = done.handled AND handled.expires > :now)",
    "attempts": "expires <= :now AND until <= :uptime"
    " AND NOT EXISTS (SELECT 1 FROM entries WHERE entries.key = attempts.key)",
    "key_locks": "expires <= :now AND until <= :uptime",
    "accepted": "expires <= :now",
}
# The position where the walk through each table begins. `handled` comes first: after a delivery is
# deleted, the same walk can remove the record that referred to the delivery.
_BEGINNINGS: dict[str, bytes | int] = {"handled": 0, **dict.fromkeys(_IS_EXPIRED, b"")}
_TABLES = tuple(_BEGINNINGS)
Position: TypeAlias = tuple[str, bytes | int]
"""How far pruning has come: a table, and the last key that it has looked at."""
START: Position = (_TABLES[0], _BEGINNINGS[_TABLES[0]])

# The number of keys that one step reads. A step must be short, because no claim can run during it.
_KEYS = 2_000
_PAUSE_SECONDS = 0.05
_INTERVAL_SECONDS = 3_600.0

_FORGET_NOTES = """
DELETE FROM waiting WHERE key_lock > ? AND key_lock <= ?
    AND NOT EXISTS (SELECT 1 FROM key_locks WHERE key = key_lock)
"""
_FORGET_IGNORED = "DELETE FROM ignored WHERE last <= ?"  # in one step, because the table is small


class Upkeep:
    """Prunes all tables of a file once an hour, so that the file does not grow."""

    def __init__(self, claims: ClaimsTable) -> None:
        self._claims = claims
        self._position = START

    def prune(self, position: Position, connection: apsw.Connection) -> tuple[int, Position | None]:
        """Prune the next keys after a position.

        Returns:
            The number of removed rows, and the next position; None at the end of the last table.
        """
        table, after = position
        key = "id" if table == "handled" else "key"
        last = connection.execute(
            f"SELECT {key} FROM {table} WHERE {key} > ? ORDER BY {key} LIMIT 1 OFFSET ?",
            (after, _KEYS - 1),
        ).get
        # 17 bytes of 0xff sort behind every 16-byte key, and behind every number.
        upto = b"\xff" * 17 if last is None else cast("bytes | int", last)
        now, uptime = self._claims.clock(), self._claims.uptime()
        if table == "handled":
            removed = prune_handled(connection, now, after, upto)
        else:
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
            return removed, (table, upto)
        following = _TABLES[_TABLES.index(table) + 1 :]
        return removed, (following[0], _BEGINNINGS[following[0]]) if following else None

    def continue_walk(self, connection: apsw.Connection) -> float:
        """Do one step of the pruning, and return the seconds until the next step."""
        _, position = self.prune(self._position, connection)
        self._position = position or START
        return _PAUSE_SECONDS if position else _INTERVAL_SECONDS
