"""One connection, one thread, and group commit.

Every step that waits when the thread comes round is run in one transaction and shares one fsync,
so durability costs a batch what it would cost a single call. A caller is answered only after the
commit.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

import apsw

from ...errors import StoreError
from ...verification.loggers import get_logger
from .batch import Bulk, CallT, Job, Step, answer, commit, fail
from .file import GONE, MovedError, OpenFile, log_of
from .jobs import Jobs
from .schema import check_owner, migrate

__all__ = ["Maintenance", "Writer"]

_log = get_logger("hookonce.store")

T = TypeVar("T")
Maintenance: TypeAlias = Callable[[apsw.Connection], float]
"""A small piece of upkeep in its own transaction; returns the seconds until the next."""

# Another process may hold the file; a delivery must be answered within about three seconds.
_BUSY_MILLISECONDS = 2_000
_WAL_PAUSE_MILLISECONDS = 50
_FIRST_MAINTENANCE_SECONDS = 60.0
# So long a file that nobody uses may be gone before that is noticed: its log must leave the path
# before the next process opens what is there then.
_LOOK_SECONDS = 1.0

_EXPLANATIONS: tuple[tuple[type[apsw.Error], str], ...] = (
    (apsw.BusyError, "another process keeps it locked"),
    (apsw.LockedError, "another process keeps it locked"),
    (apsw.FullError, "the disk is full"),
    (apsw.ReadOnlyError, "it is read-only, or the -wal or -shm file beside it is"),
    (apsw.CantOpenError, "it cannot be opened; does its folder exist, and is it writable?"),
    (apsw.NotADBError, "the file is not an SQLite database"),
    (apsw.CorruptError, "the file is damaged"),
    (apsw.PermissionsError, "access is denied"),
    (apsw.IOError, "reading or writing the file failed"),
)


class Writer:
    """Runs steps on one SQLite file, in order, each batch of them in one transaction.

    It starts its thread at the first call, and again after ``aclose`` or a fork.
    """

    def __init__(
        self, path: Path, maintenance: Maintenance, flushed: Callable[[int, float], None]
    ) -> None:
        self._path = path
        self._log = log_of(path)
        self._flushed = flushed
        self._maintenance = maintenance
        self._file: OpenFile | None = None
        self._creates = True
        self._told: set[str] = set()
        self._syncs = True
        self._thread: threading.Thread | None = None
        self._jobs = Jobs()
        self._lock = threading.Lock()
        self._connection_lock = threading.Lock()
        with _registry:
            _writers.add(self)

    @property
    def log(self) -> Path:
        """Where the write-ahead log of the file is."""
        return self._log

    def before_fork(self) -> None:
        """Close the file: a connection and its locks cannot live in two processes."""
        self._connection_lock.acquire()
        self._close()

    def after_fork(self, *, in_child: bool) -> None:
        """Go on; in the child with a thread and a queue of its own."""
        if not in_child:
            self._connection_lock.release()
            return
        # What waited in the queue is the parent's to answer. A fork that came from C, without
        # before_fork, leaves a connection that must not even be closed here.
        if self._file is not None:
            _abandoned.append(self._file)
        self._file = self._thread = None
        self._jobs = Jobs()
        self._lock = threading.Lock()
        self._connection_lock = threading.Lock()

    def run(self, step: Step[T], *, may_be_dropped: bool = False) -> asyncio.Future[T]:
        """Return what ``step`` returned, after its transaction has been committed.

        A step may be run twice if a neighbour's error undid the batch; it must only read and write
        the database. It may raise StoreError before it has written anything.

        Args:
            step: what to do.
            may_be_dropped: leave it out if the caller is cancelled before its turn: a claim that
                nobody waits for would have no owner, while a completion is a fact all the same.

        Raises:
            StoreError: it was not done.

        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._hand_over(Job(loop, future, may_be_dropped, step=step))
        return future

    def run_with_others(
        self,
        bulk: Bulk[CallT, T],
        call: CallT,
        *,
        may_be_dropped: bool = False,
        may_be_lost: bool = False,
    ) -> asyncio.Future[T]:
        """Return what came of a call; like ``run``, but it is done with others of its kind at once.

        Args:
            bulk: what does such calls.
            call: what it is to do.
            may_be_dropped: as for ``run``.
            may_be_lost: do not wait for the disk on its account. Every process sees what it did at
                once, and it outlives them; a power cut before the next commit that waits undoes it.

        Raises:
            StoreError: it was not done.

        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._hand_over(Job(loop, future, may_be_dropped, may_be_lost, None, bulk, call))
        return future

    async def aclose(self) -> None:
        """Finish what waits, close the file and end the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            self._jobs.close()
            self._jobs = Jobs()
        await asyncio.to_thread(thread.join)

    def _hand_over(self, job: Job) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._start()
            self._jobs.put(job)

    def _start(self) -> None:
        thread = threading.Thread(
            target=self._work,
            args=(self._jobs,),
            name=f"hookonce-sqlite:{self._path.name}",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError as error:
            raise StoreError(f"the SQLite store cannot start its thread: {error}") from error
        self._thread = thread

    def _work(self, jobs: Jobs) -> None:
        next_maintenance = time.monotonic() + _FIRST_MAINTENANCE_SECONDS
        more_may_come = True
        while more_may_come:
            wait = min(_LOOK_SECONDS, max(0.0, next_maintenance - time.monotonic()))
            batch, more_may_come = jobs.next_batch(wait)
            with self._connection_lock:
                started = time.monotonic()
                self._do(batch)
                answer(batch, partial(self._flushed, len(batch), time.monotonic() - started))
                if time.monotonic() >= next_maintenance:
                    next_maintenance = time.monotonic() + self._maintain()
        with self._connection_lock:
            self._close()
            self._creates = True

    def _do(self, batch: list[Job]) -> None:
        if not batch and (self._file is None or self._file.is_in_place):
            return
        try:
            if self._file is None:
                self._file = self._open()
            self._sync_commits(self._file.connection, not all(job.may_be_lost for job in batch))
            commit(self._file, batch)
        except MovedError as error:
            self._fail(batch, error)
        except apsw.Error as error:
            fail(batch, self._failed(_reason(error), error))
            self._let_go()
        except BaseException as error:  # noqa: BLE001 - the callers get it; the thread lives on
            fail(batch, error)
            self._let_go()
        else:
            if self._told:
                _log.warning("the SQLite store %r can be used again", str(self._path))
                self._told.clear()

    def _fail(self, batch: list[Job], moved: MovedError) -> None:
        """Refuse what did not go into the file at the path, and make way for the one there."""
        error = self._failed(str(moved), moved)
        fail(batch, error)
        self._tell_once(str(error))
        self._let_go()

    def _open(self) -> OpenFile:
        # What has been deleted is not begun anew behind the back of who will put it back.
        if not self._creates and not self._path.exists():
            raise MovedError(GONE)
        file = OpenFile(self._path, _prepare, creates=self._creates)
        self._creates = False
        self._syncs = True
        self._log = file.log
        return file

    def _sync_commits(self, connection: apsw.Connection, syncs: bool) -> None:
        """Let the next commits wait for the disk, or not; one that does brings all before it along.

        With NORMAL the log is synced only before what it holds goes into the file, so that the file
        stays whole.
        """
        if syncs != self._syncs:
            level = "FULL" if syncs else "NORMAL"
            # It takes effect when it is compiled, which one out of the cache is not again.
            connection.execute(f"PRAGMA synchronous = {level}", can_cache=False)
            self._syncs = syncs

    def _let_go(self) -> None:
        """Close the file if nothing is lost by it."""
        try:
            if self._file is not None and self._file.let_go():
                self._file = None
        except apsw.BusyError:
            pass  # another process saves the same log; the next call tries again
        except (apsw.Error, OSError) as error:
            self._tell_once(str(self._failed(f"it cannot be let go of: {error}", error)))

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except (apsw.Error, OSError) as error:
                _log.warning("closing the SQLite store failed: %s", error)

    def _tell_once(self, message: str) -> None:
        """Log what is wrong, and not again before it has been well."""
        if message not in self._told:
            self._told.add(message)
            _log.error("%s", message)

    def _maintain(self) -> float:
        if self._file is None:
            return _FIRST_MAINTENANCE_SECONDS
        try:
            with self._file.transaction():
                return self._maintenance(self._file.connection)
        except Exception as error:  # noqa: BLE001 - upkeep can wait, and the thread must live on
            _log.warning("upkeep is put off: %s", error)
            return _FIRST_MAINTENANCE_SECONDS

    def _failed(self, reason: str, error: Exception) -> StoreError:
        failed = StoreError(f"the SQLite store {str(self._path)!r} failed: {reason}")
        failed.__cause__ = error
        return failed


def _reason(error: apsw.Error) -> str:
    return next((text for kind, text in _EXPLANATIONS if isinstance(error, kind)), str(error))


def _prepare(connection: apsw.Connection) -> None:
    connection.set_busy_timeout(_BUSY_MILLISECONDS)
    check_owner(connection)
    _use_write_ahead_log(connection)
    connection.execute("PRAGMA synchronous = FULL")
    migrate(connection)


def _use_write_ahead_log(connection: apsw.Connection) -> None:
    # Two processes that create the file at once: SQLite does not wait for the lock this needs, or
    # waits its whole time-out; so the waiting is done here.
    connection.set_busy_timeout(0)
    for remaining in range(_BUSY_MILLISECONDS // _WAL_PAUSE_MILLISECONDS, -1, -1):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except apsw.BusyError:
            if not remaining:
                raise
            time.sleep(_WAL_PAUSE_MILLISECONDS / 1_000)
    connection.set_busy_timeout(_BUSY_MILLISECONDS)


_registry = threading.Lock()
_writers: weakref.WeakSet[Writer] = weakref.WeakSet()
_closed_for_fork: list[Writer] = []
_abandoned: list[OpenFile] = []


def _before_fork() -> None:
    _registry.acquire()  # no writer comes into being until the fork is over
    _closed_for_fork.extend(_writers)
    for writer in _closed_for_fork:
        writer.before_fork()


def _after_fork(*, in_child: bool) -> None:
    # A fork from C comes here, in the child, without having been announced.
    for writer in _closed_for_fork or list(_writers):
        writer.after_fork(in_child=in_child)
    _closed_for_fork.clear()
    if _registry.locked():
        _registry.release()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=partial(_after_fork, in_child=False),
    after_in_child=partial(_after_fork, in_child=True),
)
