"""Stores remember which events are in flight, done or dead; ``open_store`` opens a store."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module
from pathlib import PurePath
from typing import cast
from urllib.parse import unquote, urlsplit

from ..clock import Clock
from .activity import Activity, ActivityStore, ReportedWorker
from .applications import Application, RegisteringStore
from .finishes import Finish, FinishingStore
from .formats import UpgradableStore, Upgrade
from .handled import HandledEvent, HandledStats, HandledStore, Keeping, WantedHandled
from .key_locks import KeyLockRecord
from .life import Moment, Record
from .protocols import DEFAULT_RETENTION, InboxStore, Store
from .reconciling import ReconcilingStore, Span
from .record_store import EventStep, HeldEvent, KeyLockStep, RecordStore, StepStore
from .replays import ReplayBatch, ReplayPlan
from .values import (
    Acquired,
    AcquireResult,
    Batch,
    Busy,
    Claimed,
    ClaimResult,
    Dead,
    DeadLetter,
    DeadReason,
    Delivery,
    DeliveryKey,
    Done,
    EnqueueResult,
    Entry,
    FailedAttempt,
    Fetched,
    Full,
    InFlight,
    KeyLock,
    Known,
    Ownership,
    Stale,
    Stored,
    StoreStats,
    Token,
    Waiting,
    Wanted,
    WantedDeadLetters,
    Watermark,
)

__all__ = [
    "DEFAULT_RETENTION",
    "AcquireResult",
    "Acquired",
    "Activity",
    "ActivityStore",
    "Application",
    "Batch",
    "Busy",
    "ClaimResult",
    "Claimed",
    "Dead",
    "DeadLetter",
    "DeadReason",
    "Delivery",
    "DeliveryKey",
    "Done",
    "EnqueueResult",
    "Entry",
    "EventStep",
    "FailedAttempt",
    "Fetched",
    "Finish",
    "FinishingStore",
    "Full",
    "HandledEvent",
    "HandledStats",
    "HandledStore",
    "HeldEvent",
    "InFlight",
    "InboxStore",
    "Keeping",
    "KeyLock",
    "KeyLockRecord",
    "KeyLockStep",
    "Known",
    "Moment",
    "Ownership",
    "ReconcilingStore",
    "Record",
    "RecordStore",
    "RegisteringStore",
    "ReplayBatch",
    "ReplayPlan",
    "ReportedWorker",
    "Span",
    "Stale",
    "StepStore",
    "Store",
    "StoreStats",
    "Stored",
    "Token",
    "UpgradableStore",
    "Upgrade",
    "Waiting",
    "Wanted",
    "WantedDeadLetters",
    "WantedHandled",
    "Watermark",
    "open_store",
]

REDIS_SCHEMES = {
    "redis",
    "rediss",
    "unix",
    "redis+cluster",
    "rediss+cluster",
    "redis+sentinel",
    "rediss+sentinel",
}
"""The schemes of the URLs that name a Redis or Valkey server."""

_FORMS = (
    "use sqlite:///file.db, sqlite:////absolute/file.db, postgresql://user@host:5432/database,"
    " redis://host:6379/0, rediss://, unix://, redis+cluster://, redis+sentinel:// or memory://"
)


def open_store(
    url: str, *, retention: float | timedelta = DEFAULT_RETENTION, clock: Clock
) -> Store:
    """Return the store of a URL; it connects at its first use.

    ``sqlite:///relative.db`` and ``sqlite:////absolute.db`` name a file, ``memory://`` a store that
    forgets at a restart, ``redis://host:6379/0`` and similar URLs a Redis or Valkey server, and
    ``postgresql://user@host:5432/database`` a schema in a PostgreSQL database.

    Args:
        url: the URL of the store.
        retention: how long a handled event is remembered, in seconds or as a ``timedelta``.
        clock: Unix time in seconds.

    Raises:
        ValueError: the URL names no store, or the retention is too short.
        ImportError: the store needs a package that is not installed.
    """
    try:
        return _named(url, retention, clock)
    except (ValueError, ImportError) as error:
        del url  # a URL may hold a password, and error trackers send the locals of every frame
        raise error.with_traceback(None) from error.__cause__


def _named(url: str, retention: float | timedelta, clock: Clock) -> Store:
    # Do not use `urlsplit`: its error may quote the password of a malformed URL.
    scheme = url.partition(":")[0].lower()
    # Backends are imported at their first use, so that `import hookonce` loads none.
    if scheme == "memory":
        if url[len(scheme) :].rstrip("/") not in {"", ":"}:
            raise ValueError("memory:// takes no path and no options")
        memory = import_module(".memory", __name__)
        return cast("Store", memory.MemoryStore(retention=retention, clock=clock))
    if scheme == "sqlite":
        path = sqlite_path(url)
        sqlite = import_module(".sqlite", __name__)
        return cast("Store", sqlite.SQLiteStore(path, retention=retention, clock=clock))
    if scheme in REDIS_SCHEMES:
        redis = import_module(".redis", __name__)
        return cast("Store", redis.RedisStore(url, retention=retention, clock=clock))
    if scheme in {"postgresql", "postgres"}:
        postgres = import_module(".postgres", __name__)
        return cast("Store", postgres.PostgresStore(url, retention=retention, clock=clock))
    if not url.strip():
        raise ValueError(f"the URL of the store is empty; is its setting missing? {_FORMS}")
    raise ValueError(f"no store has the scheme {scheme!r}; {_FORMS}")


def sqlite_path(url: str) -> str:
    """Return the path of the file that a SQLite URL names.

    Args:
        url: a URL such as ``sqlite:///hookonce.db``.

    Raises:
        ValueError: the URL does not name a file.
    """
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or not url[len(parts.scheme) :].startswith("://"):
        raise ValueError(
            "a SQLite URL has three slashes before a relative path and four before an absolute one:"
            f" sqlite:///{parts.netloc}{parts.path}"
        )
    if parts.query or parts.fragment or "\0" in path:
        raise ValueError(
            "a SQLite URL names a file and nothing else, such as sqlite:///hookonce.db; write '?'"
            " as %3F and '#' as %23"
        )
    file = path.removeprefix("/")
    if PurePath(file).name in {"", ".."}:
        raise ValueError("a SQLite URL names a file, such as sqlite:///hookonce.db")
    if PurePath(file).name == ":memory:":
        raise ValueError("SQLite's :memory: cannot be used here; the store in memory is memory://")
    return file
