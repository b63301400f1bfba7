"""The connection to a file, and the thread that uses it for all stores on the file.

The thread runs all waiting jobs in one transaction with one fsync, so that a batch costs about as
much as one call. A caller is answered only after the commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import apsw

from ...errors import StoreError
from ...logs import get_logger
from ..protocols import Flushes
from .batch import Job, StepJob, answer, commit, fail
from .file import GONE, MovedError, OpenFile, log_of
from .guard import Guard, files_of
from .schema import FileFormat

_log = get_logger("hookonce.store")

T = TypeVar("T")
Maintenance: TypeAlias = Callable[[apsw.Connection], float]
"""A short task in its own transaction; returns the seconds until its next run."""

# The most jobs of one transaction; no caller is answered before its transaction ends.
_MOST_STEPS = 1_000
# How long to wait while another process has the file locked. A delivery must be answered within
# about three seconds.
BUSY_MILLISECONDS = 2_000
_WAL_PAUSE_MILLISECONDS = 50
_FIRST_MAINTENANCE_SECONDS = 60.0
_LOG_BYTES_KEPT = 64 * 1024 * 1024
# The interval at which an idle writer checks whether its file was moved. The writer must remove its
# log from the old path before another process opens a new file there.
_LOOK_SECONDS = 1.0

_EXPLANATIONS: tuple[tuple[type[apsw.Error], str], ...] = (
    (apsw.BusyError, "another process keeps it locked"),
    (apsw.LockedError, "another process keeps it locked"),
    (apsw.FullError, "the disk is full"),
    (
        apsw.ReadOnlyError,
        (
            "it is read-only for the user of this process, or the -wal or -shm file beside it is;"
            " give these files to that user (chown), or restore a backup with `hookonce store"
            " restore`"
        ),
    ),
    (apsw.CantOpenError, "it cannot be opened; does its folder exist, and is it writable?"),
    (apsw.NotADBError, "the file is not an SQLite database"),
    (apsw.CorruptError, "the file is damaged"),
    (apsw.PermissionsError, "access is denied"),
    (apsw.IOError, "reading or writing the file failed"),
)


class _Jobs:
    """The queue of jobs for the writer's thread; event loops in any thread add jobs to it.

    The thread is woken once for all jobs that are added in one iteration of an event loop. If each
    job woke it, the thread would start a transaction with the first job while the loop is still
    adding the others.
    """

    def __init__(self) -> None:
        self._waiting: deque[Job[Any]] = deque()
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        # The event loops that will wake the thread. Each loop with a new job must wake the thread
        # itself, because another loop may be blocked.
        self._waking: set[asyncio.AbstractEventLoop] = set()
        self._is_full = False  # whether the last batch was full, so that more jobs may wait
        self._is_closed = False

    def add(self, job: Job[Any], loop: asyncio.AbstractEventLoop) -> None:
        """Add a job; must be called in the job's event loop."""
        self._waiting.append(job)
        # The thread clears `_waking` before it reads the jobs, so it misses no job.
        if loop not in self._waking:
            self._waking.add(loop)
            loop.call_soon(self._wake)

    def close(self) -> None:
        """Let the thread end after the waiting jobs; no job may be added after this call."""
        self._is_closed = True
        self._wake()

    def next_batch(self, wait: float) -> tuple[list[Job[Any]], bool]:
        """Return waiting jobs after at most ``wait`` seconds, and whether more jobs may come."""
        if not self._is_full:
            # An event loop that was closed cannot wake the thread, so the wait has a time-out.
            with contextlib.suppress(queue.Empty):
                self._wakes.get(timeout=wait)
        self._waking.clear()
        is_closed = self._is_closed  # read this before the jobs: after `close` no job is added
        count = min(len(self._waiting), _MOST_STEPS)
        self._is_full = count == _MOST_STEPS
        batch = [self._waiting.popleft() for _ in range(count)]
        return batch, self._is_full or not is_closed

    def _wake(self) -> None:
        self._wakes.put(None)


class Writer:
    """Runs jobs on one SQLite file in order, each batch in one transaction.

    The first call starts the thread. It ends when the last store that has made a call is closed; a
    later call, or a call after a fork, starts it again. A store is identified by its ``Flushes``.

    Args:
        maintenance: run from time to time while the file is open.
        file_format: the format that the file must have.

    Attributes:
        log: path of the write-ahead log.
    """

    def __init__(self, path: Path, maintenance: Maintenance, file_format: FileFormat) -> None:
        self.log: Path = log_of(path)
        self._path = path
        self._maintenance = maintenance
        self._format = file_format
        self._file: OpenFile | None = None
        self._guard: Guard | None = None
        self._creates = True
        self._logged_errors: set[str] = set()
        self._syncs = True
        self._begin()

    def _begin(self) -> None:
        self._thread: threading.Thread | None = None
        self._users: set[Flushes] = set()
        self._jobs = _Jobs()
        self._lock = threading.Lock()
        self._connection_lock = threading.Lock()

    def before_fork(self) -> None:
        """Close the file: a connection and its locks cannot live in two processes."""
        self._connection_lock.acquire()
        if self._file is not None:
            # The guard keeps other libraries from opening the file until this writer opens it.
            self._guard = Guard(files_of(self._path))
        self._close()

    def after_fork_in_parent(self) -> None:
        """Allow the thread to open the file again."""
        self._connection_lock.release()

    def after_fork_in_child(self) -> None:
        """Start with a new thread and queue; the parent answers the jobs that are waiting."""
        # A fork by C code skips before_fork, and leaves a connection open. SQLite forbids the child
        # to use or close this connection, so keep a reference to it.
        if self._file is not None:
            _abandoned.append(self._file)
        self._file = None
        self._leave_guard()
        self._begin()

    def run(self, job: Job[T]) -> asyncio.Future[T]:
        """Queue a job, and return a future of its outcome, set after the commit.

        Raises:
            StoreError: from the future: the job was not done.
        """
        loop = asyncio.get_running_loop()
        job.future = loop.create_future()
        with self._lock:
            if self._thread is None:
                self._start()
            self._users.add(job.flushes)
            self._jobs.add(job, loop)
        return job.future

    async def leave(self, user: Flushes) -> None:
        """Finish the waiting jobs; if no other store uses the file, close it and end the thread."""
        loop = asyncio.get_running_loop()
        last = StepJob(user, lambda _: None)  # runs after all jobs that were queued before it
        last.future = loop.create_future()
        with self._lock:
            thread = self._thread
            if thread is None or user not in self._users:
                return
            self._users.remove(user)
            is_used = bool(self._users)
            if is_used:
                self._jobs.add(last, loop)
            else:
                self._thread = None
                self._jobs.close()
                self._jobs = _Jobs()
        if is_used:
            with contextlib.suppress(StoreError):
                await last.future
        else:
            await asyncio.to_thread(thread.join)

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

    def _work(self, jobs: _Jobs) -> None:
        try:
            self._serve(jobs)
        finally:
            with self._lock:
                if self._jobs is jobs:  # nobody has closed the queue: an error has ended the thread
                    self._thread = None

    def _serve(self, jobs: _Jobs) -> None:
        next_maintenance = time.monotonic() + _FIRST_MAINTENANCE_SECONDS
        more_may_come = True
        while more_may_come:
            wait = min(_LOOK_SECONDS, max(0.0, next_maintenance - time.monotonic()))
            batch, more_may_come = jobs.next_batch(wait)
            with self._connection_lock:
                started = time.monotonic()
                self._do(batch)
                answer(batch, time.monotonic() - started)
                if time.monotonic() >= next_maintenance:
                    next_maintenance = time.monotonic() + self._maintain()
                self._end_transaction()
        with self._connection_lock:
            self._close()
            self._leave_guard()
            self._creates = True

    def _do(self, batch: list[Job[Any]]) -> None:
        if not batch and (self._file is None or self._file.is_in_place):
            return
        try:
            if self._file is None:
                self._file = self._open()
            syncs = not all(job.may_be_lost for job in batch)
            self._sync_commits(self._file.connection, syncs)
            commit(self._file, batch)
        except MovedError as error:
            failed = self._failed(str(error), error)
            fail(batch, failed)
            self._log_once(str(failed))
            self._let_go()
        except apsw.Error as error:
            fail(batch, self._failed(reason_of(error), error))
            self._let_go()
        except BaseException as error:  # noqa: BLE001 - the callers get the error; the thread must go on
            fail(batch, error)
            self._let_go()
        else:
            if self._logged_errors:
                _log.warning("the SQLite store %r can be used again", str(self._path))
                self._logged_errors.clear()

    def _open(self) -> OpenFile:
        # Do not create a new file in place of a deleted file: an operator may put the old file
        # back.
        if not self._creates and not self._path.exists():
            raise MovedError(GONE)
        file = OpenFile(self._path, self._prepare, self._format.check, creates=self._creates)
        self._leave_guard()
        self._creates = False
        self._syncs = True
        self.log = file.log
        return file

    def _prepare(self, connection: apsw.Connection) -> None:
        connection.set_busy_timeout(BUSY_MILLISECONDS)
        self._format.check_file(connection)
        use_write_ahead_log(connection)
        connection.execute("PRAGMA synchronous = FULL")
        # On macOS a plain fsync leaves data in the drive's cache; these settings also flush the
        # cache. Other systems ignore both settings.
        connection.pragma("fullfsync", True)
        connection.pragma("checkpoint_fullfsync", True)
        # A long read, such as a backup, lets the log grow. At the log's next reset, SQLite shortens
        # it to this size.
        connection.pragma("journal_size_limit", _LOG_BYTES_KEPT)
        self._format.prepare(connection)

    def _sync_commits(self, connection: apsw.Connection, syncs: bool) -> None:
        """Set whether the next commits wait for the disk.

        A synced commit also writes all earlier commits to the disk. With NORMAL, SQLite syncs the
        log only before a checkpoint, which keeps the file consistent.
        """
        if syncs != self._syncs:
            level = "FULL" if syncs else "NORMAL"
            # The pragma takes effect when SQLite compiles it, so do not use a cached statement.
            connection.execute(f"PRAGMA synchronous = {level}", can_cache=False)
            self._syncs = syncs

    def _let_go(self) -> None:
        """Close the file, unless that would lose data."""
        try:
            if self._file is not None and self._file.close_if_safe():
                self._file = None
        except apsw.BusyError:
            pass  # another process is checkpointing the same log; the next call tries again
        except (apsw.Error, OSError) as error:
            self._log_once(str(self._failed(f"it cannot be closed safely: {error}", error)))

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except (apsw.Error, OSError) as error:
                _log.warning("closing the SQLite store failed: %s", error)

    def _leave_guard(self) -> None:
        if self._guard is not None:
            self._guard.release()
            self._guard = None

    def _log_once(self, message: str) -> None:
        """Log an error once; log it again only if the store has worked in between."""
        if message not in self._logged_errors:
            self._logged_errors.add(message)
            _log.error("%s", message)

    def _maintain(self) -> float:
        if self._file is None:
            return _FIRST_MAINTENANCE_SECONDS
        try:
            with self._file.transaction():
                return self._maintenance(self._file.connection)
        except Exception as error:  # noqa: BLE001 - maintenance can wait, and the thread must go on
            _log.warning("removing expired records failed, and will be tried again: %s", error)
            return _FIRST_MAINTENANCE_SECONDS

    def _end_transaction(self) -> None:
        """Reopen the file if a transaction is still open after its commit.

        An open cursor keeps its snapshot, and prevents checkpoints from emptying the log.
        """
        file = self._file
        if file is not None and file.connection.txn_state() != apsw.SQLITE_TXN_NONE:
            _log.warning("reopening the SQLite store: a cursor was left open after its commit")
            self._let_go()

    def _failed(self, reason: str, error: Exception) -> StoreError:
        failed = StoreError(f"the SQLite store {str(self._path)!r} failed: {reason}")
        failed.__cause__ = error
        return failed


def reason_of(error: apsw.Error) -> str:
    """Return the reason of an SQLite error, as text for an operator."""
    return next((text for kind, text in _EXPLANATIONS if isinstance(error, kind)), str(error))


def use_write_ahead_log(connection: apsw.Connection) -> None:
    """Switch the file to a write-ahead log, unless it has one."""
    # If two processes create the file at once, SQLite either does not wait for the lock, or waits
    # for its whole time-out. So wait here instead.
    connection.set_busy_timeout(0)
    for remaining in range(BUSY_MILLISECONDS // _WAL_PAUSE_MILLISECONDS, -1, -1):
        try:
            connection.pragma("journal_mode", "wal")
            break
        except apsw.BusyError:
            if not remaining:
                raise
            time.sleep(_WAL_PAUSE_MILLISECONDS / 1_000)
    connection.set_busy_timeout(BUSY_MILLISECONDS)


_abandoned: list[OpenFile] = []
