"""A second connection to a store's SQLite file."""

from __future__ import annotations

import os

import apsw

__all__ = ["sqlite_connection"]

_BUSY_MILLISECONDS = 60_000


def sqlite_connection(path: str | os.PathLike[str]) -> apsw.Connection:
    """Open the file; each statement waits, because the store may still hold the file's lock."""
    connection = apsw.Connection(os.fspath(path))
    connection.set_busy_timeout(_BUSY_MILLISECONDS)
    return connection
