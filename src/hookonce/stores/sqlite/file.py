"""The file that is open, and whether it is still the one that a restart would open.

A file that is deleted, renamed or replaced stays usable for who has it open, and what is written to
it is gone with the last of them. The same holds for the write-ahead log beside it, and processes
that have different indexes of one log (``-shm``) do not see each other's locks. So whoever writes
looks, while it holds the write lock, whether all three are those at the path, and again after the
commit. Under that lock no other process is in the middle of a commit to the same files.
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
    """The open file is not the one at the path any more."""


class _Identities(NamedTuple):
    """Which files there are; None for one that is not."""

    file: Identity | None
    log: Identity | None
    log_index: Identity | None


class OpenFile:
    """A connection, and which files it has open.

    Args:
        path: of the file, absolute; it may be a link.
        prepare: what is done with the connection first; it must write.
        creates: whether the file is made where there is none.

    Attributes:
        connection: the connection.
        log: where the write-ahead log is.

    Raises:
        apsw.Error: it cannot be opened.
        StoreError: it cannot be used, or was replaced meanwhile.

    """

    def __init__(
        self, path: Path, prepare: Callable[[apsw.Connection], None], *, creates: bool
    ) -> None:
        self._path = path
        # SQLite puts the log beside the file that a link leads to.
        self._resolved = Path(os.path.realpath(path))
        self.log, self._index = log_of(path), Path(f"{self._resolved}-shm")
        if creates:
            _check_link(path)
            create_private(self._resolved)
        # SQLite follows no link itself: a user who can write in the folder could swap in a link to
        # any other file. SQLite opens what VACUUM INTO writes with the same flags.
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW
        flags |= apsw.SQLITE_OPEN_CREATE if creates else 0
        opening = Guard(files_of(self._resolved))
        try:
            check_alone(str(self._resolved))
            self.connection = apsw.Connection(str(self._resolved), flags=flags)
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
        """Whether what is open is what is at the path."""
        return self._now() == self._own

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the body in a transaction on the files that are at the path.

        Raises:
            MovedError: they were others before or after it, so that nothing in it counts.

        """
        with transaction(self.connection):
            self._look()
            yield
        # Where only the index is another by now, whoever opens the file has this from the log.
        if (identity_of(self._path), identity_of(self.log)) != self._own[:2]:
            self._look()

    def let_go(self) -> bool:
        """Save what only this connection can, close it, and return whether it is closed.

        What is in a log goes into its file, and no log or index is left at the path that belongs to
        another file: SQLite would take them for those of the file which is there now. A file that
        is nowhere stays open: closed, it would be lost, and it may be put back.

        Raises:
            apsw.Error: it could not be saved, and stays open.

        """
        now = self._now()
        if now != self._own:
            if now.file != self._own.file:
                self._save()
                if identity_of(self._resolved) != self._own.file:  # not so, if a link was changed
                    self._withdraw()
                if now.file is None:
                    return False
            elif now.log != self._own.log and _is_empty(self.log):
                # What a log holds that is not ours was written by who had saved this one before.
                self._save()
            self._leave_the_log()
        self._close()
        return True

    def close(self) -> None:
        """Let go of it, and close it even if it is nowhere; raises apsw.Error."""
        try:
            is_closed = self.let_go()
        except apsw.Error:
            self._leave_the_log()
            self._close()
            raise
        if not is_closed:
            self._close()

    def _close(self) -> None:
        self.connection.close()
        self._guard.release()

    def _look(self) -> None:
        now, own = self._now(), self._own
        if now == own:
            return
        if now.file is None:
            raise MovedError(GONE)
        if now.file != own.file:
            raise MovedError("it was replaced by another while in use")
        which = "index (-shm)" if now.log == own.log else "write-ahead log (-wal)"
        raise MovedError(f"its {which} was deleted or replaced while in use")

    def _now(self) -> _Identities:
        return _Identities(identity_of(self._path), identity_of(self.log), identity_of(self._index))

    def _identified(self) -> _Identities:
        """Return which files are open: those at the path, unless one was moved a moment ago."""
        now = self._now()
        moved = ctypes.c_int()
        self.connection.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, ctypes.addressof(moved))
        if moved.value or None in now:
            raise MovedError("it, or a file beside it, was replaced while it was opened")
        return now

    def _save(self) -> None:
        """Write into the file what is in its log, and empty that."""
        is_busy, _, _ = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").get
        if is_busy:
            raise apsw.BusyError("its log is in use")

    def _withdraw(self) -> None:
        """Take its log and its index, which are empty, from the path."""
        with transaction(self.connection):  # so that no other process does the same now
            for path, own in ((self.log, self._own.log), (self._index, self._own.log_index)):
                if identity_of(path) == own:
                    path.unlink()

    def _leave_the_log(self) -> None:
        """Let SQLite not delete the log at its path, whosever it is, when it closes."""
        self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def _check_link(path: Path) -> None:
    """Raise StoreError if a link of another user would have a file made where it leads.

    A store of root's in a folder of the service's user could become a file anywhere.
    """
    if not path.is_symlink() or path.exists():
        return
    if path.lstat().st_uid not in {0, os.geteuid()}:
        raise StoreError(
            "a link of another user leads from there to a file that is not there; remove the link,"
            " or create the store as the user who runs the service"
        )


def log_of(path: Path) -> Path:
    """Return where SQLite has the write-ahead log of a file: beside that which a link leads to."""
    return Path(f"{os.path.realpath(path)}-wal")


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:  # there is none
        return True
