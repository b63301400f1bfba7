"""What processes tell each other, as SQLite keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from ..activity import MOST_LINES, WATCHED_SECONDS, Activity

__all__ = ["follow", "tell"]

_IS_WATCHED = "SELECT EXISTS (SELECT 1 FROM watched WHERE endpoint = ? AND until > ?)"
_WATCH = "INSERT OR REPLACE INTO watched VALUES (?, ?)"
_TELL = "INSERT INTO activity (endpoint, line) VALUES (?, ?)"
_FORGET = """
DELETE FROM activity WHERE endpoint = ?1 AND place <= (
    SELECT place FROM activity WHERE endpoint = ?1 ORDER BY place DESC LIMIT 1 OFFSET ?2
)
"""
_LAST = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'activity'"
_TOLD = "SELECT line FROM activity WHERE endpoint = ? AND place > ? AND place <= ? ORDER BY place"


def tell(connection: apsw.Connection, now: float, endpoint: str, lines: Sequence[bytes]) -> bool:
    """Keep lines while somebody looks, at this Unix time; see ``ActivityStore.tell``."""
    is_watched: Any = connection.execute(_IS_WATCHED, (endpoint, now)).get
    if not is_watched:
        return False
    if lines:
        connection.executemany(_TELL, [(endpoint, line) for line in lines])
        connection.execute(_FORGET, (endpoint, MOST_LINES))
    return True


def follow(connection: apsw.Connection, now: float, endpoint: str, place: int | None) -> Activity:
    """Return what was told after a place, at this Unix time; see ``ActivityStore.follow``."""
    # Not at every look: what is written has to last on the disk.
    if not connection.execute(_IS_WATCHED, (endpoint, now + WATCHED_SECONDS / 2)).get:
        connection.execute(_WATCH, (endpoint, now + WATCHED_SECONDS))
    last: Any = connection.execute(_LAST).get
    if place is None:
        return Activity(last, ())
    since = place if place <= last else 0
    rows: Any = connection.execute(_TOLD, (endpoint, since, last))
    return Activity(last, tuple(line for (line,) in rows))
