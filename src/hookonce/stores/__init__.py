"""Stores remember which events are in flight, done or dead; a URL names one."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module
from typing import cast
from urllib.parse import unquote, urlsplit

from ..types import Clock
from .base import DEFAULT_RETENTION, Store

__all__ = ["open_store", "sqlite_path"]


def open_store(url: str, *, retention: timedelta = DEFAULT_RETENTION, clock: Clock) -> Store:
    """Return the store a URL names; it connects at its first use.

    ``sqlite:///relative.db`` and ``sqlite:////absolute.db`` name a file, ``memory://`` a store that
    forgets at a restart.

    Raises:
        ValueError: the URL names no store, or the retention is too short.

    """
    scheme = urlsplit(url).scheme
    # Backends are imported when asked for: `import hookonce` loads none.
    if scheme == "memory":
        memory = import_module(".memory", __name__)
        return cast("Store", memory.MemoryStore(retention=retention, clock=clock))
    if scheme == "sqlite":
        path = sqlite_path(url)
        sqlite = import_module(".sqlite", __name__)
        return cast("Store", sqlite.SQLiteStore(path, retention=retention, clock=clock))
    raise ValueError(
        f"no store has the scheme {scheme!r}; use sqlite:///file.db, sqlite:////absolute/file.db"
        " or memory://"
    )


def sqlite_path(url: str) -> str:
    """Return the path of the file a SQLite URL names, or raise ValueError."""
    host, path = urlsplit(url).netloc, unquote(urlsplit(url).path)
    if host:
        raise ValueError(
            "a SQLite URL has three slashes before a relative path and four before an absolute one:"
            f" sqlite:///{host}{path}"
        )
    if path in {"", "/", "/:memory:"}:
        raise ValueError("a SQLite URL names a file: sqlite:///hookonce.db; see also memory://")
    return path.removeprefix("/")
