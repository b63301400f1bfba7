"""Prevents other libraries of this process from opening the files of an open store.

SQLite uses POSIX record locks. The system drops all of a process's locks on a file when the
process closes any descriptor of that file (sqlite.org, How To Corrupt, 2.2.1). apsw handles its own
descriptors, but not those of other libraries: after ``sqlite3``, ``open()`` or
``shutil.copyfile()`` has closed the store's file, the store writes without locks, and other
processes overwrite its commits. So an audit hook prevents the opening. SQL's ATTACH, and libraries
in C other than ``sqlite3``, raise no audit event and are not noticed.

Locks of an open file description (F_OFD_SETLK) would survive such a close. SQLite uses them only if
its ``fcntl`` is replaced. A replacement in Python waits for the interpreter's lock, which apsw
holds while ``sqlite3_close`` waits for the mutex that is held around ``fcntl``: a deadlock.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Container, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import apsw

from ...errors import StoreError
from ..paths import Identity, file_of_database, identity_of

# The folder of the process's open descriptors. Windows has no such folder, but also no POSIX locks
# that another library could release by closing a file.
_DESCRIPTORS = "/dev/fd"


class Guard:
    """Prevents other libraries of this process from opening files, until it is released.

    Args:
        files: identities of the files; None is ignored.
        connection: the connection that has the files open.
    """

    def __init__(
        self, files: Iterable[Identity | None], connection: apsw.Connection | None = None
    ) -> None:
        _install_hook()
        self.connection = connection
        self.files: frozenset[Identity] = frozenset(file for file in files if file is not None)
        _guards.add(self)

    def release(self) -> None:
        """Allow other libraries to open the files."""
        _guards.discard(self)


# No lock protects the set: if another thread forked while a lock was held, the child could never
# acquire it.
_guards: set[Guard] = set()


def files_of(path: str | Path) -> set[Identity]:
    """Return the identities of a database's files, without files that do not exist."""
    real = os.path.realpath(path)
    found = (identity_of(f"{real}{suffix}") for suffix in ("", "-wal", "-shm"))
    return {file for file in found if file is not None}


def check_alone(path: str) -> None:
    """Raise StoreError if another library of this process has a guarded database open already."""
    files = files_of(path)
    # The check would also find apsw's own connections: skip it while apsw has the files open.
    own = sum(not files.isdisjoint(guard.files) for guard in tuple(_guards))
    if own > 1 or _apsw_has_open(files):
        return
    try:
        descriptors = os.listdir(_DESCRIPTORS)
    except OSError:
        return
    for descriptor in descriptors:
        with suppress(OSError, ValueError):
            status = os.fstat(int(descriptor))
            if (status.st_dev, status.st_ino) in files:
                raise StoreError(
                    "another library of this process, such as sqlite3, has the file open; closing"
                    " it there would drop the store's locks. Close that connection first, and"
                    " keep your own tables in another file"
                )


def _apsw_has_open(files: Container[Identity | None]) -> bool:
    own = [guard.connection for guard in tuple(_guards)]
    for connection in apsw.connections():
        if connection in own:
            continue
        try:
            if identity_of(connection.filename) in files:
                return True
        except apsw.ConnectionClosedError:
            continue
        except apsw.ThreadingViolationError:
            # Another thread uses the connection, so apsw cannot answer: assume an open file.
            return True
    return False


@cache
def _install_hook() -> None:
    sys.addaudithook(_refuse_opening)  # an audit hook cannot be removed again


def _refuse_opening(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("open", "sqlite3.connect") or not _guards:
        return
    path = arguments[0]
    if event == "sqlite3.connect":
        path = file_of_database(path)
    if not isinstance(path, str | bytes | os.PathLike):
        return  # nothing to guard: a file descriptor, or a database in memory
    file = identity_of(path)
    if any(file in guard.files for guard in tuple(_guards)):
        raise PermissionError(
            errno.EPERM,
            "this SQLite store is open in this process by hookonce: if another library opened and"
            " closed the file, the store would lose its locks, and events. Keep your own tables in"
            " another file; copy the store with `hookonce store backup` or SQLiteStore.backup()",
            os.fsdecode(path),
        )
