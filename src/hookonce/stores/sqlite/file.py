"""The open file, and the check that it is still the file at its path.

A process can go on using a file that was deleted, renamed or replaced, but everything it writes is
lost when the last process closes that file. The same holds for the write-ahead log. Processes with
different indexes (``-shm``) of one log do not see each other's locks. So a writer checks, while it
holds the write lock and again after the commit, that all three open files are those at the path. No
other process can be committing to the same files while the lock is held.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import apsw

from ...errors import StoreError
from ..paths import Identity, identity_of
from .guard import Guard, check_alone, files_of
from .schema import create_private, transaction

GONE = (
    "it was deleted or moved away while in use; put it back, or restart all processes that use it"
    " to begin with a new one"
)


class MovedError(StoreError):
    """The open file is no longer the file at its path."""


class _Identities(NamedTuple):
    """The identities of the database file, its log and the log's index; None for a missing file."""

    file: Identity | None
    log: Identity | None
    log_index: Identity | None


class OpenFile:
    """A connection, and the identities of the files that it has open.

    Args:
        path: absolute path of the file; it may be a link.
        prepare: sets the connection up; it must write to the file.
        check: called at the beginning of each transaction; it may raise StoreError.
        creates: whether a missing file is created.

    Attributes:
        log: path of the write-ahead log.

    Raises:
        apsw.Error: the file cannot be opened.
        StoreError: the file cannot be used, or was replaced while it was opened.
    """

    def __init__(
        self,
        path: Path,
        prepare: Callable[[apsw.Connection], None],
        check: Callable[[apsw.Connection], None] = lambda _: None,
        *,
        creates: bool,
    ) -> None:
        self._path = path
        self._check = check
        # SQLite creates the log beside the target of a link.
        self._resolved = Path(os.path.realpath(path))
        self.log: Path = log_of(path)
        self._index = Path(f"{self._resolved}-shm")
        if creates:
            _check_link(path)
            create_private(self._resolved)
        # Links are not followed: a user who can write in the folder could replace the
        # file by a link to another file. The flags also apply to the target of VACUUM INTO.
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW
        flags |= apsw.SQLITE_OPEN_CREATE if creates else 0
        opening = Guard(files_of(self._resolved))
        try:
            check_alone(str(self._resolved))
            self.connection: apsw.Connection = apsw.Connection(str(self._resolved), flags=flags)
            try:
                prepare(self.connection)
                self._own = self._identified()
            except BaseException:
                self.connection.close()
                raise
            self._guard = Guard(self._own, self.connection)
        finally:
            opening.release()

    @property
    def is_in_place(self) -> bool:
        """Whether the open files are the files at the path."""
        return self._now() == self._own

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block in a transaction on the files at the path.

        Raises:
            MovedError: the open files were not at the path before or after the transaction, so
                that its changes do not count.
        """
        with transaction(self.connection):
            self._check_in_place()
            self._check(self.connection)
            yield
        # If only the index was replaced, the commit is valid: other processes read the commit from
        # the log.
        if (identity_of(self._path), identity_of(self.log)) != self._own[:2]:
            self._check_in_place()

    def close_if_safe(self) -> bool:
        """Write the log into its file and close the file; return whether it was closed.

        A log or index that belongs to a replaced file is removed from the path, because SQLite
        would use it for the new file. A deleted file stays open: closing it would lose its data,
        and an operator may restore its name.

        Raises:
            apsw.Error: the log could not be written into the file, which stays open.
        """
        now = self._now()
        if now != self._own:
            if now.file != self._own.file:
                self._checkpoint()
                # If only a symbolic link was changed, other processes may still use our file and
                # its log.
                if identity_of(self._resolved) != self._own.file:
                    self._remove_log()
                if now.file is None:
                    return False
            elif now.log != self._own.log and _is_empty(self.log):
                # Our log was deleted or replaced, and no other log has content: write the commits
                # of our log into the file now. If another log had content, the process that began
                # that log would have done this already.
                self._checkpoint()
            self._keep_log_on_close()
        self._close()
        return True

    def close(self) -> None:
        """Close like ``close_if_safe``, but close a deleted file too; raises apsw.Error."""
        try:
            is_closed = self.close_if_safe()
        except apsw.Error:
            self._keep_log_on_close()
            self._close()
            raise
        if not is_closed:
            self._close()

    def _close(self) -> None:
        self.connection.close()
        self._guard.release()

    def _check_in_place(self) -> None:
        now, own = self._now(), self._own
        if now == own:
            return
        if now.file is None:
            raise MovedError(GONE)
        if now.file != own.file:
            raise MovedError("it was replaced by another file while in use")
        which = "index (-shm)" if now.log == own.log else "write-ahead log (-wal)"
        raise MovedError(f"its {which} was deleted or replaced while in use")

    def _now(self) -> _Identities:
        return _Identities(identity_of(self._path), identity_of(self.log), identity_of(self._index))

    def _identified(self) -> _Identities:
        """Return the identities of the open files; raise MovedError if a file has been moved."""
        now = self._now()
        moved = ctypes.c_int()
        self.connection.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, ctypes.addressof(moved))
        if moved.value or None in now:
            raise MovedError("it, or its -wal or -shm file, was replaced while it was opened")
        return now

    def _checkpoint(self) -> None:
        """Write the log into the file, and empty the log."""
        is_busy, _, _ = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").get
        if is_busy:
            raise apsw.BusyError("another connection is using its log")

    def _remove_log(self) -> None:
        """Delete the empty log, and the index of the log, at the path."""
        # While this process has the lock, no other process removes the log.
        with transaction(self.connection):
            for path, own in ((self.log, self._own.log), (self._index, self._own.log_index)):
                if identity_of(path) == own:
                    path.unlink()

    def _keep_log_on_close(self) -> None:
        """Keep SQLite from deleting the log on close: it may belong to another file by now."""
        self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def _check_link(path: Path) -> None:
    """Raise StoreError for a dangling link that another user owns.

    If root opens a store in a folder of the service's user, that user could make root create a file
    anywhere.
    """
    if not path.is_symlink() or path.exists() or not hasattr(os, "geteuid"):
        return
    if path.lstat().st_uid not in {0, os.geteuid()}:
        raise StoreError(
            "a link of another user is at this path, and its target does not exist; remove the"
            " link, or create the store as the user who runs the service"
        )


def log_of(path: Path) -> Path:
    """Return the path of the write-ahead log; SQLite puts it beside the target of a link."""
    return Path(f"{os.path.realpath(path)}-wal")


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:  # a missing log counts as empty
        return True
