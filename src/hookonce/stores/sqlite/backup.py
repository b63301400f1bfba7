"""Backup of a SQLite store while processes go on using it, and restore of a backup.

VACUUM INTO copies one snapshot, through apsw: another library in this process would drop the
store's locks. The copy has no free pages, and so no deleted bodies.

A backup has its own connection and runs in its own thread. The connection must be closed before a
fork: in the child, SQLite would believe that it holds the locks of the parent's connection.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
from collections.abc import Callable, Iterator
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


class _BackupLock:
    """Allows one backup at a time in a process, and no backup during a fork."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # Without this event, a thread that tries again could take the lock although a fork waits.
        self.may_begin = threading.Event()
        self.may_begin.set()
        self._statement_lock = threading.Lock()
        self._busy: apsw.Connection | None = None

    @contextmanager
    def statement(self, connection: apsw.Connection) -> Iterator[None]:
        """Allow ``stop`` to interrupt the connection while the block runs."""
        with self._statement_lock:
            self._busy = connection
        try:
            yield
        finally:
            with self._statement_lock:
                self._busy = None

    def stop(self) -> None:
        """Interrupt a running backup, and let no backup begin before ``resume``."""
        self.may_begin.clear()
        while not self.lock.acquire(timeout=_PAUSE_SECONDS):
            with self._statement_lock:
                if self._busy is not None:
                    self._busy.interrupt()

    def resume(self) -> None:
        """Let backups begin again."""
        self.lock.release()
        self.may_begin.set()


_backup_lock = _BackupLock()


def before_fork() -> None:
    """Interrupt a running backup; the backup starts again after the fork."""
    _backup_lock.stop()


def after_fork_in_parent() -> None:
    """Let backups begin again."""
    _backup_lock.resume()


def after_fork_in_child() -> None:
    """Replace the lock: the thread of a running backup does not exist in the child."""
    global _backup_lock  # noqa: PLW0603 - after a fork by C code, the old lock may stay locked for ever
    _backup_lock = _BackupLock()


def restore_backup(backup: Path, target: Path, *, overwrite: bool) -> tuple[int, Path | None]:
    """Copy a backup to the path of a store; return the copy's size and the old store's new path.

    The new file has mode 0600. If root restores the backup, the new file belongs to the owner of
    the old file or of the folder, so that the service can use the file.

    Args:
        overwrite: whether an existing store is moved aside. Running processes notice that.

    Raises:
        StoreError: the restore failed; the message says why. An old store is then unchanged, or in
            the file that the message names.
    """
    backup, target = backup.absolute(), Path(os.path.realpath(target))
    if not backup.is_file():
        raise StoreError(f"there is no file {str(backup)!r}")
    if is_same_file(backup, target):
        raise StoreError(f"{str(backup)!r} is the store itself")
    owner = os.stat(target if target.exists() else target.parent)
    aside = _move_aside(target) if overwrite and os.path.lexists(target) else None
    try:
        size = _written(backup, target, _copy_backup, overwrite=False, owner=owner)
    except StoreError as error:
        if aside is None:
            raise
        raise StoreError(f"{error}; the old store is {str(aside)!r} now") from error
    return size, aside


def _move_aside(target: Path) -> Path:
    """Rename the files of a store, the log first, and return the new path of the store."""
    aside = target.with_name(f"{target.name}.replaced-{secrets.token_hex(4)}")
    try:
        for suffix in ("-shm", "-wal", ""):
            with suppress(FileNotFoundError):
                os.rename(f"{target}{suffix}", f"{aside}{suffix}")
    except OSError as error:
        raise StoreError(f"cannot move {str(target)!r} aside: {error.strerror}") from error
    return aside


def write_backup(source: Path, target: Path, *, overwrite: bool) -> int:
    """Copy a store's file while it is in use; return the size of the copy in bytes.

    The copy appears at its path complete and synced to the disk, or not at all. If root makes it,
    it belongs to the owner of the store.

    Args:
        target: path of the copy; its folder must exist.

    Raises:
        StoreError: the backup failed; the message says why.
    """
    return _written(source, target, _copy, overwrite=overwrite, owner=None)


def _written(
    source: Path,
    target: Path,
    copy: Callable[[Path, Path], None],
    *,
    overwrite: bool,
    owner: os.stat_result | None,
) -> int:
    if not hasattr(os, "geteuid"):
        raise StoreError(
            "this system cannot back up a store while it is in use: end all processes that use the"
            " store, and copy its file"
        )
    # Resolve the folder once: a link may change during the backup, and SQLite follows no links.
    target = Path(os.path.realpath(target.parent)) / target.name
    for _ in range(_MOST_TRIES):
        try:
            return _write(source, target, copy, overwrite=overwrite, owner=owner)
        except apsw.InterruptError:
            continue
        except apsw.Error as error:
            raise _failed(target, reason_of(error)) from error
        except PermissionError as error:
            why = "this user may not write there; choose a folder that it may write to"
            raise _failed(target, why) from error
        except OSError as error:
            raise _failed(target, error.strerror or str(error)) from error
    why = "this process forks too often; run `hookonce store backup` instead"
    raise _failed(target, why)


def _failed(target: Path, why: str) -> StoreError:
    return StoreError(f"the backup to {str(target)!r} failed: {why}")


def _write(
    source: Path,
    target: Path,
    copy: Callable[[Path, Path], None],
    *,
    overwrite: bool,
    owner: os.stat_result | None,
) -> int:
    """Make the copy; raises apsw.InterruptError if the process forks during the copy."""
    _check_target(source, target, overwrite=overwrite)
    with _draft_beside(target) as (draft, descriptor):
        _backup_lock.may_begin.wait()
        with _backup_lock.lock:
            copy(source, draft)
            _check_copy(draft, descriptor)
        if os.geteuid() == 0:
            owner = owner or os.stat(source)
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        os.fsync(descriptor)
        _give_name(draft, target, overwrite=overwrite)
        size = os.fstat(descriptor).st_size
    _sync_folder(target.parent)
    return size


def _check_target(source: Path, target: Path, *, overwrite: bool) -> None:
    own = [source, *(Path(f"{os.path.realpath(source)}{suffix}") for suffix in _BESIDE)]
    if any(is_same_file(target, file) for file in own):
        raise StoreError(f"{str(target)!r} is a file of the store itself; choose another path")
    if target.is_dir():
        raise StoreError(f"{str(target)!r} is a folder; name a file in it")
    # Without this check, root could replace a device file by a copy.
    if target.exists() and not target.is_file():
        raise StoreError(f"{str(target)!r} is not a regular file; choose another path")
    if not overwrite and os.path.lexists(target):
        raise StoreError(
            f"{str(target)!r} exists already; choose another path, or allow it with"
            " --overwrite (in Python: overwrite=True)"
        )
    for suffix in _BESIDE:
        if os.path.lexists(f"{target}{suffix}"):
            raise StoreError(
                f"'{target}{suffix}' belongs to an earlier database, and SQLite would use it for"
                " the backup; choose another path"
            )


@contextmanager
def _draft_beside(target: Path) -> Iterator[tuple[Path, int]]:
    """Create an empty file with mode 0600, and remove it at the end if it is still there."""
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
        with _backup_lock.statement(file.connection):
            file.connection.execute("VACUUM INTO ?", (str(draft),))  # SQLite requires an empty file
        if not file.is_in_place:
            raise StoreError("the store's file was replaced during the backup; try again")
    finally:
        file.close()


def _copy_backup(backup: Path, draft: Path) -> None:
    """Copy a backup to a new file; no process may use the backup as a store."""
    connection = apsw.Connection(str(backup), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        if not check_owner(connection):
            raise StoreError(f"{str(backup)!r} is empty: there is nothing to restore")
        with _backup_lock.statement(connection):
            connection.execute("VACUUM INTO ?", (str(draft),))
    finally:
        connection.close()


def _prepare(connection: apsw.Connection) -> None:
    connection.set_busy_timeout(BUSY_MILLISECONDS)
    if not check_owner(connection):
        raise StoreError("this store is empty: there is nothing to back up")
    use_write_ahead_log(connection)


def _check_copy(draft: Path, descriptor: int) -> None:
    """Raise StoreError if the copy is damaged, or was replaced by another file."""
    status = os.fstat(descriptor)
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_NOFOLLOW
    copy = apsw.Connection(str(draft), flags=flags)
    try:
        with _backup_lock.statement(copy):
            is_whole = copy.pragma("integrity_check") == "ok" and check_owner(copy)
    finally:
        copy.close()
    if not is_whole or identity_of(draft) != (status.st_dev, status.st_ino):
        raise StoreError("the copy was damaged and has been removed; check the disk")


def _give_name(draft: Path, target: Path, *, overwrite: bool) -> None:
    if not overwrite:
        try:
            os.link(draft, target)  # unlike a rename, `link` fails if the target exists by now
        except FileExistsError:
            raise
        except OSError:  # not every file system has hard links
            if os.path.lexists(target):
                raise
        else:
            return
    draft.replace(target)


def _sync_folder(folder: Path) -> None:
    """Sync the folder, so that the copy's name survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder. The copy itself is on the disk.
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise
    finally:
        os.close(descriptor)
