"""A copy of a SQLite store, made while processes go on using the store.

SQLite itself makes the copy, from one snapshot, by the library that the store uses: another library
in this process would drop the store's locks. The copy has no free pages, and so no deleted bodies.

A backup has a connection of its own, in a thread of its own. None may be open in a fork: SQLite
would take the locks of the parent's connection for the child's, and the child would have none.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from ...errors import StoreError
from ..paths import identity_of, is_same_file
from .file import OpenFile
from .schema import check_owner
from .writer import BUSY_MILLISECONDS, reason_of, use_write_ahead_log

_BESIDE = ("-wal", "-shm", "-journal")
_MOST_TRIES = 10
_PAUSE_SECONDS = 0.01


class _Alone:
    """Lets a process have one backup at a time, and none while it forks."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # Whoever takes a lock again at once takes it from those who wait for it.
        self.may_begin = threading.Event()
        self.may_begin.set()
        self._statement_lock = threading.Lock()
        self._busy: apsw.Connection | None = None

    @contextmanager
    def statement(self, connection: apsw.Connection) -> Iterator[None]:
        """Let ``stop`` interrupt what the connection does in the body, and not its closing."""
        with self._statement_lock:
            self._busy = connection
        try:
            yield
        finally:
            with self._statement_lock:
                self._busy = None

    def stop(self) -> None:
        """Interrupt the backup that is being made, and let none begin until ``go_on``."""
        self.may_begin.clear()
        while not self.lock.acquire(timeout=_PAUSE_SECONDS):
            with self._statement_lock:
                if self._busy is not None:
                    self._busy.interrupt()

    def go_on(self) -> None:
        """Let backups begin again."""
        self.lock.release()
        self.may_begin.set()


_alone = _Alone()


def before_fork() -> None:
    """Close the connection of a backup; the backup begins again after the fork."""
    _alone.stop()


def after_fork_in_parent() -> None:
    """Let backups go on."""
    _alone.go_on()


def after_fork_in_child() -> None:
    """Begin without a backup: no thread that makes one is here."""
    global _alone  # noqa: PLW0603 - a fork from C may have left its locks taken
    _alone = _Alone()


def write_backup(source: Path, target: Path, *, overwrite: bool) -> int:
    """Copy a store's file while it is in use; return the size of the copy in bytes.

    The copy appears at its path complete and on the disk, or not at all.

    Args:
        source: the store's file.
        target: where the copy is to be; its folder must exist.
        overwrite: whether a file that is there is replaced.

    Raises:
        StoreError: the backup failed; the message says why.

    """
    # The folder may be changed meanwhile, and SQLite follows no link.
    target = Path(os.path.realpath(target.parent)) / target.name
    for _ in range(_MOST_TRIES):
        try:
            return _write(source, target, overwrite=overwrite)
        except apsw.InterruptError:
            continue
        except apsw.Error as error:
            raise _failed(target, reason_of(error)) from error
        except OSError as error:
            raise _failed(target, error.strerror or str(error)) from error
    why = "this process forks too often; make the backup in another, by `hookonce store backup`"
    raise _failed(target, why)


def _failed(target: Path, why: str) -> StoreError:
    return StoreError(f"the backup to {str(target)!r} failed: {why}")


def _write(source: Path, target: Path, *, overwrite: bool) -> int:
    """Make the copy, or raise apsw.InterruptError because somebody forks."""
    _check_target(source, target, overwrite=overwrite)
    with _draft_beside(target) as (draft, descriptor):
        _alone.may_begin.wait()
        with _alone.lock:
            _copy(source, draft)
            _check_copy(draft, descriptor)
        os.fsync(descriptor)
        _give_name(draft, target, overwrite=overwrite)
        size = os.fstat(descriptor).st_size
    _sync_folder(target.parent)
    return size


def _check_target(source: Path, target: Path, *, overwrite: bool) -> None:
    own = [source, *(Path(f"{os.path.realpath(source)}{suffix}") for suffix in _BESIDE)]
    if any(is_same_file(target, file) for file in own):
        raise StoreError(f"{str(target)!r} is a file of the store itself; choose another")
    if target.is_dir():
        raise StoreError(f"{str(target)!r} is a folder; name a file in it")
    if target.exists() and not target.is_file():  # root could replace /dev/null
        raise StoreError(f"{str(target)!r} is no plain file; choose another")
    if not overwrite and os.path.lexists(target):
        raise StoreError(f"{str(target)!r} is there already; choose another file, or overwrite it")
    for suffix in _BESIDE:
        if os.path.lexists(f"{target}{suffix}"):
            raise StoreError(
                f"'{target}{suffix}' belongs to an earlier database, and SQLite would take it for"
                " the backup's; choose another file"
            )


@contextmanager
def _draft_beside(target: Path) -> Iterator[tuple[Path, int]]:
    """Make an empty file for its owner alone, and remove what is left of it at the end."""
    draft = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.draft")
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(draft, flags, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        yield draft, descriptor
    finally:
        os.close(descriptor)
        for suffix in ("", *_BESIDE):
            with suppress(OSError):
                os.unlink(f"{draft}{suffix}")


def _copy(source: Path, draft: Path) -> None:
    file = OpenFile(source, _prepare, creates=False)
    try:
        with _alone.statement(file.connection):
            file.connection.execute("VACUUM INTO ?", (str(draft),))  # which must be empty
        if not file.is_in_place:
            raise StoreError("the store's file was replaced during the backup; try again")
    finally:
        file.close()


def _prepare(connection: apsw.Connection) -> None:
    connection.set_busy_timeout(BUSY_MILLISECONDS)
    if not check_owner(connection):
        raise StoreError("there is nothing in this store yet to back up")
    use_write_ahead_log(connection)


def _check_copy(draft: Path, descriptor: int) -> None:
    """Raise StoreError if the copy is damaged, or if another file has taken its place."""
    status = os.fstat(descriptor)
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_NOFOLLOW
    copy = apsw.Connection(str(draft), flags=flags)
    try:
        with _alone.statement(copy):
            is_whole = copy.pragma("integrity_check") == "ok" and check_owner(copy)
    finally:
        copy.close()
    if not is_whole or identity_of(draft) != (status.st_dev, status.st_ino):
        raise StoreError("the backup is damaged, and was removed; is the disk sound?")


def _give_name(draft: Path, target: Path, *, overwrite: bool) -> None:
    if not overwrite:
        try:
            os.link(draft, target)  # unlike a rename, this fails if a file is there by now
        except FileExistsError:
            raise
        except OSError:  # some file systems have no hard links
            if os.path.lexists(target):
                raise
        else:
            return
    draft.replace(target)


def _sync_folder(folder: Path) -> None:
    """Let the copy's name outlive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder; the copy itself is on the disk.
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise
    finally:
        os.close(descriptor)
