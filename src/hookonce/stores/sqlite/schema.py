"""The tables of the SQLite store, and how a file of an earlier version is brought up to date.

Keys are 16-byte digests: a done event costs 29 bytes, and an index on its expiry would double
that, so pruning walks the primary key instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from ...errors import StoreError

_APPLICATION_ID = 0x686F6F6B  # "hook": other programs' files are recognised as such

# A body is written once: of what waits, in a table of its own, since an entry changes with every
# heartbeat. What an endpoint holds is counted by whoever changes it, so that a put need not count.
_VERSION_1 = f"""
PRAGMA application_id = {_APPLICATION_ID};

CREATE TABLE done (
    key BLOB PRIMARY KEY,
    expires INTEGER NOT NULL
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
    body BLOB NOT NULL
) STRICT;
CREATE INDEX dead_by_endpoint ON dead (endpoint, kept, key); -- counts without reading bodies

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
    taken TEXT NOT NULL
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

CREATE TABLE watched (
    endpoint TEXT PRIMARY KEY,
    until REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE gates ( -- the key is the digest of its name
    key BLOB PRIMARY KEY,
    token TEXT,
    until REAL NOT NULL,
    lease REAL NOT NULL,
    created_at INTEGER,
    event_id TEXT,
    expires INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE waiting (
    place INTEGER PRIMARY KEY,
    gate BLOB NOT NULL,
    event TEXT NOT NULL,
    UNIQUE (gate, event)
) STRICT;
CREATE INDEX waiting_by_gate ON waiting (gate, place);
"""

_VERSION_2 = """
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
"""

# In `dead`, `kept` is 2 where the sender may bring the event again until `buried_at`. Earlier
# versions would take it for a dead letter.
_VERSION_3 = """
DROP INDEX dead_by_endpoint;
CREATE INDEX dead_by_endpoint ON dead (endpoint, kept, buried_at, key);
"""

# The text at index n leads from version n to n + 1; a new version adds one.
_MIGRATIONS: tuple[str, ...] = (_VERSION_1, _VERSION_2, _VERSION_3)


def create_private(path: Path) -> None:
    """Make the file for its owner alone under any umask, unless it is there; it holds bodies.

    SQLite gives the files beside it the same permissions. What cannot be made it explains itself.
    """
    # Where a symbolic link leads to nothing yet, SQLite would make that.
    real = os.path.realpath(path)
    if os.path.lexists(real):
        return
    with suppress(OSError):
        descriptor = os.open(real, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)


@contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
    """Run the body in a transaction that holds the write lock from its start.

    One that only asked for it at its first write could find its snapshot outdated, and fail.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # some errors, a full disk among them, roll back themselves
            connection.execute("ROLLBACK")
        raise


def check_owner(connection: apsw.Connection) -> int:
    """Return the schema's version, or refuse a file that is not ours, before it is changed.

    Raises:
        StoreError: it belongs to another program, or to a later version of this one.

    """
    # The owner last: another process may create the file between these three.
    has_tables = connection.execute("SELECT EXISTS (SELECT 1 FROM sqlite_schema)").get
    version = _pragma(connection, "user_version")
    owner = _pragma(connection, "application_id")
    if owner != _APPLICATION_ID and (owner or version or has_tables):
        raise StoreError("this SQLite file belongs to another program; choose another path")
    if version > len(_MIGRATIONS):
        raise StoreError(
            f"the SQLite store was written by a later version (schema {version}, here"
            f" {len(_MIGRATIONS)}); upgrade hookonce"
        )
    return version


def migrate(connection: apsw.Connection) -> None:
    """Bring the file to this version's schema, in one transaction; raise as ``check_owner``."""
    with transaction(connection):
        for migration in _MIGRATIONS[check_owner(connection) :]:
            connection.execute(migration)
        connection.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")


def _pragma(connection: apsw.Connection, name: str) -> int:
    value = connection.pragma(name)
    return value if isinstance(value, int) else 0
