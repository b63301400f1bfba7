"""The tables of the SQLite store, the number of their format, and the migration to a later format.

The number is the file's ``user_version``. A process compares it at the beginning of each
transaction, so it notices when a process of a later version has migrated the file.

Keys are 16-byte digests. An index on the expiry of done events would double their size, so pruning
walks the primary key instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw

from ...errors import StoreError
from ..formats import OLD_SECONDS, SEEN_SECONDS, Upgrade, in_use, unknown

_APPLICATION_ID = 0x6F6E6365  # "once" in ASCII marks our files
# "hook" and "hkon" in ASCII mark files of unreleased versions, which had other tables under the
# same format numbers.
_UNRELEASED_APPLICATION_IDS = {0x686F6F6B, 0x686B6F6E}

FORMATS: tuple[int, ...] = (1,)
"""The formats of files that this version can read and write, oldest first."""

# Bodies of the inbox have a table of their own, so that a heartbeat, which changes the entry, does
# not write the body again. Every change of the inbox updates `inbox_sizes`, so that an enqueue need
# not count the entries of its endpoint. In `dead`, `kept` is 0 for a dead letter. It is 1 for a
# kept delivery that becomes a dead letter if its claim ends without a result. It is 2 for a kept
# delivery that becomes a dead letter at `buried_at`; until then the sender may send the event
# again. An index on the keys of `handled` would write another page for each event; `done.handled`
# leads from a key to its delivery instead.
_VERSION_1 = f"""
PRAGMA application_id = {_APPLICATION_ID};

CREATE TABLE done (
    key BLOB PRIMARY KEY,
    expires INTEGER NOT NULL,
    handled INTEGER -- the id of its delivery, which may be deleted already
) STRICT, WITHOUT ROWID;

CREATE TABLE attempts (
    key BLOB PRIMARY KEY,
    endpoint TEXT NOT NULL,
    token TEXT,
    until REAL NOT NULL,
    lease REAL NOT NULL,
    attempt INTEGER NOT NULL,
    finished TEXT NOT NULL DEFAULT '',
    outstanding TEXT NOT NULL DEFAULT '',
    history TEXT NOT NULL DEFAULT '',
    expires INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE dead (
    id INTEGER PRIMARY KEY,
    key BLOB NOT NULL UNIQUE,
    endpoint TEXT NOT NULL,
    event_id TEXT NOT NULL,
    event_type TEXT,
    received_at REAL NOT NULL,
    reason TEXT NOT NULL,
    error TEXT NOT NULL,
    buried_at REAL NOT NULL,
    kept INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    finished TEXT NOT NULL,
    outstanding TEXT NOT NULL,
    history TEXT NOT NULL,
    body BLOB NOT NULL,
    record BLOB -- what could not be read of the event's other rows, as JSON
) STRICT;
CREATE INDEX dead_damaged ON dead (reason) WHERE reason = 'damaged';
CREATE INDEX dead_by_endpoint ON dead (endpoint, kept, buried_at, key); -- counts without bodies

CREATE TABLE entries (
    id INTEGER PRIMARY KEY,
    key BLOB NOT NULL UNIQUE,
    endpoint TEXT NOT NULL,
    event_id TEXT NOT NULL,
    event_type TEXT,
    received_at REAL NOT NULL,
    size INTEGER NOT NULL,
    token TEXT NOT NULL,
    due REAL NOT NULL,
    delay REAL NOT NULL
) STRICT;
CREATE INDEX entries_by_due ON entries (endpoint, due, id);

CREATE TABLE inbox_bodies (
    id INTEGER PRIMARY KEY,
    body BLOB NOT NULL
) STRICT;

CREATE TABLE inbox_sizes (
    endpoint TEXT PRIMARY KEY,
    depth INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE workers (
    worker TEXT PRIMARY KEY,
    endpoint TEXT NOT NULL,
    seen REAL NOT NULL,
    token TEXT NOT NULL,
    fetched TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE applications (
    endpoint TEXT NOT NULL,
    application TEXT NOT NULL,
    seen REAL NOT NULL,
    PRIMARY KEY (endpoint, application)
) STRICT, WITHOUT ROWID;

CREATE TABLE activity (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    endpoint TEXT NOT NULL,
    line BLOB NOT NULL
) STRICT;
CREATE INDEX activity_by_endpoint ON activity (endpoint, place);

CREATE TABLE worker_reports (
    endpoint TEXT NOT NULL,
    worker TEXT NOT NULL,
    seen REAL NOT NULL,
    report BLOB NOT NULL,
    PRIMARY KEY (endpoint, worker)
) STRICT, WITHOUT ROWID;

CREATE TABLE watched (
    endpoint TEXT PRIMARY KEY,
    until REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE handled (
    id INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of completion; never used again
    endpoint TEXT NOT NULL,
    event_id TEXT NOT NULL,
    event_type TEXT,
    received_at REAL NOT NULL,
    finished TEXT NOT NULL,
    handled_at REAL NOT NULL,
    expires REAL NOT NULL,
    size INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE INDEX handled_by_endpoint ON handled (endpoint, id);

CREATE TABLE handled_sizes (
    endpoint TEXT PRIMARY KEY,
    events INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE replay_batches ( -- handler: the name as JSON
    endpoint TEXT NOT NULL,
    handler TEXT NOT NULL,
    generation INTEGER NOT NULL,
    plan TEXT NOT NULL,
    started_at REAL NOT NULL,
    finished_at REAL,
    PRIMARY KEY (endpoint, handler)
) STRICT, WITHOUT ROWID;

CREATE TABLE key_locks ( -- key: the digest of the lock's name
    key BLOB PRIMARY KEY,
    token TEXT,
    until REAL NOT NULL,
    lease REAL NOT NULL,
    created_at INTEGER,
    event_id TEXT,
    generation INTEGER,
    expires INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE waiting (
    place INTEGER PRIMARY KEY,
    key_lock BLOB NOT NULL,
    event TEXT NOT NULL,
    UNIQUE (key_lock, event)
) STRICT;
CREATE INDEX waiting_by_key_lock ON waiting (key_lock, place);

CREATE TABLE ignored (
    endpoint TEXT NOT NULL,
    event_type TEXT NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    PRIMARY KEY (endpoint, event_type, first)
) STRICT, WITHOUT ROWID;

CREATE TABLE accepted (
    key BLOB PRIMARY KEY,
    expires INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE seen ( -- when processes ran last; format: the newest that they know
    format INTEGER PRIMARY KEY,
    at REAL NOT NULL
) STRICT;
"""

# The text at index n migrates a file from format n to n + 1. A new format appends a text.
_MIGRATIONS: tuple[str, ...] = (_VERSION_1,)


# Leaves out a lease with more time left than its length: it was granted before uptime was reset.
_LONGEST_LEASE = """
SELECT coalesce(max(lease), 0) FROM attempts WHERE until > :now AND until <= :now + lease
"""
_SEEN = "SELECT max(at) FROM seen WHERE format < ? AND at > ? AND at <= ?"


def create_private(path: Path) -> None:
    """Create a missing file with mode 0600 under any umask, because it will hold bodies.

    SQLite gives the -wal and -shm files the same mode. If the file cannot be created, opening it
    fails afterwards, and SQLite gives the reason.
    """
    # Create the target of a dangling symbolic link, as SQLite would.
    real = os.path.realpath(path)
    if os.path.lexists(real):
        return
    with suppress(OSError):
        descriptor = os.open(real, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            if hasattr(os, "fchmod"):  # Windows has none before Python 3.13
                os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)


@contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
    """Run the block in a transaction that holds the write lock from its start.

    A transaction that asks for the lock only at its first write fails if its snapshot is outdated.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # After some errors, such as a full disk, SQLite has already rolled back.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def check_owner(connection: apsw.Connection, known: Sequence[int] = FORMATS) -> int:
    """Return the number of the file's format, 0 for a new file, without changing the file.

    Raises:
        FormatError: the format is not in ``known``.
        StoreError: the file belongs to another program, or to an unreleased version of hookonce.
    """
    # Read the id last: another process may create the store between these three statements.
    has_tables = connection.execute("SELECT EXISTS (SELECT 1 FROM sqlite_schema)").get
    number = _pragma(connection, "user_version")
    owner = _pragma(connection, "application_id")
    if owner in _UNRELEASED_APPLICATION_IDS:
        raise StoreError(
            "this SQLite file was written by an unreleased version of hookonce; choose another path"
        )
    if owner != _APPLICATION_ID and (owner or number or has_tables):
        raise StoreError("this SQLite file belongs to another program; choose another path")
    if number and number not in known:
        raise unknown(number, known)
    return number


class FileFormat:
    """The format of an open file.

    Args:
        known: the formats that the process can read and write, oldest first.
        now: returns the time by the clock of leases.

    Attributes:
        number: the format that the last transaction has found.
    """

    def __init__(self, known: tuple[int, ...], now: Callable[[], float]) -> None:
        self.number: int = known[-1]
        self._known = known
        self._now = now
        self._noted_at: float | None = None

    def check_file(self, connection: apsw.Connection) -> None:
        """Refuse a file that the process must not change; raises like ``check_owner``."""
        check_owner(connection, self._known)

    def prepare(self, connection: apsw.Connection) -> None:
        """Create the tables of a new file; raises like ``check_owner``."""
        with transaction(connection):
            self.number = check_owner(connection, self._known)
            if not self.number:
                self._migrate(connection)

    def check(self, connection: apsw.Connection) -> None:
        """Compare the format at the beginning of a transaction, and record that the process runs.

        Raises:
            FormatError: the process does not know the format.
        """
        # Do not use `_pragma`, which is slower: every transaction makes this check.
        found: Any = connection.execute("PRAGMA user_version").get
        if found != self.number:
            if found not in self._known:
                raise unknown(found, self._known)
            self.number = found
        now = self._now()
        if self._noted_at is None or not 0 <= now - self._noted_at < SEEN_SECONDS:
            connection.execute("INSERT OR REPLACE INTO seen VALUES (?, ?)", (self._known[-1], now))
            self._noted_at = now

    def upgrade(self, connection: apsw.Connection) -> Upgrade:
        """Migrate the file to the newest format, in a transaction that ``check`` has begun.

        Raises:
            StoreError: a process that does not know the format was seen lately.
        """
        before = self.number
        if before < self._known[-1]:
            now = self._now()
            # A process with a running attempt calls the store after each third of the lease, so the
            # store has seen the process within the lease.
            longest: Any = connection.execute(_LONGEST_LEASE, {"now": now}).get
            patience = max(OLD_SECONDS, longest + SEEN_SECONDS)
            seen: Any = connection.execute(_SEEN, (self._known[-1], now - patience, now)).get
            if seen is not None:
                raise in_use(now - seen)
            self._migrate(connection)
        return Upgrade(before, self.number)

    def _migrate(self, connection: apsw.Connection) -> None:
        newest = self._known[-1]
        for migration in _MIGRATIONS[self.number : newest]:
            connection.execute(migration)
        connection.execute(f"PRAGMA user_version = {newest}")
        self.number = newest


def _pragma(connection: apsw.Connection, name: str) -> int:
    value = connection.pragma(name)
    return value if isinstance(value, int) else 0
