"""Which applications receive under an endpoint, as SQLite remembers it."""

from __future__ import annotations

from typing import Any

import apsw

from ..applications import MOST_REMEMBERED, REMEMBERED_SECONDS, Application

__all__ = ["register"]

_NOTE = "INSERT OR REPLACE INTO applications VALUES (?, ?, ?)"
_FORGET = """
DELETE FROM applications WHERE endpoint = ?1 AND (seen <= ?2 OR application NOT IN (
    SELECT application FROM applications WHERE endpoint = ?1 ORDER BY seen DESC LIMIT ?3
))
"""
_KNOWN = "SELECT application, seen FROM applications WHERE endpoint = ? AND seen > ? ORDER BY seen"


def register(
    connection: apsw.Connection, now: float, endpoint: str, application: Application | None
) -> tuple[Application, ...]:
    """Note an application, at this Unix time; see ``RegisteringStore.register``."""
    since = now - REMEMBERED_SECONDS
    if application is not None:
        connection.execute(_NOTE, (endpoint, application.dump(), now))
        connection.execute(_FORGET, (endpoint, since, MOST_REMEMBERED))
    rows: Any = connection.execute(_KNOWN, (endpoint, since))
    return tuple(Application.load(text, seen) for text, seen in rows)
