"""Keeps other libraries of this process away from the files of an open store.

SQLite locks by POSIX record locks, and the system drops all of a process's locks on a file when
the process closes any descriptor of it (sqlite.org, How To Corrupt, 2.2.1). apsw allows for its own
descriptors, and cannot know of those of another library: when ``sqlite3``, ``open()`` or
``shutil.copyfile()`` close the store's file, the store writes without locks, and other processes
overwrite what it has acknowledged. So the interpreter's audit events refuse such an opening before
it happens. SQL's ATTACH and libraries in C other than ``sqlite3`` raise no audit event.

Locks of the descriptor (F_OFD_SETLK) would outlive such a close. SQLite takes them only if its
``fcntl`` is replaced, from Python by a callback that waits for the interpreter's lock; apsw holds
that lock while ``sqlite3_close`` waits for the mutex that is held around ``fcntl``: a deadlock.
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

# Where systems list a process's own descriptors; Windows has no POSIX locks to lose.
_DESCRIPTORS = "/dev/fd"


class Guard:
    """Refuses files to other libraries of this process, until it is released.

    Args:
        files: which; None among them is left out.
        connection: that has them open.

    """

    def __init__(
        self, files: Iterable[Identity | None], connection: apsw.Connection | None = None
    ) -> None:
        _install_hook()
        self.connection = connection
        self.files = frozenset(file for file in files if file is not None)
        _guards.add(self)

    def release(self) -> None:
        """Leave the files to anybody."""
        _guards.discard(self)


# No lock: another thread may fork at any moment, and its child would find the lock taken for good.
_guards: set[Guard] = set()


def files_of(path: str | Path) -> set[Identity]:
    """Return which files a database has by now."""
    real = os.path.realpath(path)
    found = (identity_of(f"{real}{suffix}") for suffix in ("", "-wal", "-shm"))
    return {file for file in found if file is not None}


def check_alone(path: str) -> None:
    """Raise StoreError if another library of this process has a guarded database open already."""
    files = files_of(path)
    # The descriptors of apsw's own connections would be among those listed.
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
                    "another library of this process, such as sqlite3, has the file open, and would"
                    " drop the store's locks when it closes it; close that connection first, and"
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
        except apsw.ThreadingViolationError:  # it is busy, and cannot be asked
            return True
    return False


@cache
def _install_hook() -> None:
    sys.addaudithook(_refuse_opening)  # for good: an audit hook cannot be removed


def _refuse_opening(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("open", "sqlite3.connect") or not _guards:
        return
    path = arguments[0]
    if event == "sqlite3.connect":
        path = file_of_database(path)
    if not isinstance(path, str | bytes | os.PathLike):  # a descriptor, or a database in memory
        return
    file = identity_of(path)
    if any(file in guard.files for guard in tuple(_guards)):
        raise PermissionError(
            errno.EPERM,
            "this SQLite store is open in this process by hookonce: when another library closes it,"
            " the store loses its locks, and events with them. Keep your own tables in another"
            " file; copy the store by `hookonce store backup`, or SQLiteStore.backup()",
            os.fsdecode(path),
        )
