"""One connection, one thread and group commit for a file, shared by the stores on it.

Every step that waits when the thread comes round is run in one transaction and shares one fsync,
so durability costs a batch what it would cost a single call. A caller is answered only after the
commit.
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
from ..contract import Flushes
from .batch import Job, Step, answer, commit, fail
from .file import GONE, MovedError, OpenFile, log_of
from .guard import Guard, files_of
from .schema import check_owner, migrate

_log = get_logger("hookonce.store")

T = TypeVar("T")
Maintenance: TypeAlias = Callable[[apsw.Connection], float]
"""A small piece of upkeep in its own transaction; returns the seconds until the next."""

# Bounds a batch's transaction to some tens of milliseconds.
_MOST_STEPS = 1_000
# Another process may hold the file; a delivery must be answered within about three seconds.
BUSY_MILLISECONDS = 2_000
_WAL_PAUSE_MILLISECONDS = 50
_FIRST_MAINTENANCE_SECONDS = 60.0
_LOG_BYTES_KEPT = 64 * 1024 * 1024
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


class _Jobs:
    """What waits for the writer's thread, in order; put there by the loops of any threads.

    The thread is woken once for what is asked in a turn of a loop. Woken by each call, it would
    take the interpreter's lock in the middle of the turn, and begin a transaction with the first
    call while the others are still being made.
    """

    def __init__(self) -> None:
        self._waiting: deque[Job[Any]] = deque()
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        # Each loop wakes it for itself: another may be held up by what a handler does.
        self._waking: set[asyncio.AbstractEventLoop] = set()
        self._is_full = False  # the last batch, so that more may wait
        self._is_closed = False

    def put(self, job: Job[Any], loop: asyncio.AbstractEventLoop) -> None:
        """Add a job, within its loop."""
        self._waiting.append(job)
        # The thread looks at the jobs after it has cleared this, so none is overlooked.
        if loop not in self._waking:
            self._waking.add(loop)
            loop.call_soon(self._wake)

    def close(self) -> None:
        """Let the thread end once all that waits is done; nothing may be put after that."""
        self._is_closed = True
        self._wake()

    def next_batch(self, wait: float) -> tuple[list[Job[Any]], bool]:
        """Return what waits, at the latest after ``wait`` seconds, and whether more may come."""
        if not self._is_full:
            # A loop that has ended since has woken nobody; after a while its jobs are done as well.
            with contextlib.suppress(queue.Empty):
                self._wakes.get(timeout=wait)
        self._waking.clear()
        is_closed = self._is_closed  # and then all that will ever be put is there
        count = min(len(self._waiting), _MOST_STEPS)
        self._is_full = count == _MOST_STEPS
        batch = [self._waiting.popleft() for _ in range(count)]
        return batch, self._is_full or not is_closed

    def _wake(self) -> None:
        self._wakes.put(None)


class Writer:
    """Runs steps on one SQLite file, in order, each batch of them in one transaction.

    It starts its thread at the first call, and ends it when the last of the stores that have called
    is closed; a later call starts it again, also after a fork. A store is known by its flushes.

    Args:
        path: the file.
        maintenance: upkeep, done now and then while the file is open.

    Attributes:
        log: where the write-ahead log of the file is.

    """

    def __init__(self, path: Path, maintenance: Maintenance) -> None:
        self.log = log_of(path)
        self._path = path
        self._maintenance = maintenance
        self._file: OpenFile | None = None
        self._guard: Guard | None = None
        self._creates = True
        self._told: set[str] = set()
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
            # So that no other library opens the file before this process does again.
            self._guard = Guard(files_of(self._path))
        self._close()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._connection_lock.release()

    def after_fork_in_child(self) -> None:
        """Go on with a thread and a queue of its own; what waits is the parent's to answer."""
        # A fork that came from C, without before_fork, leaves a connection that must not even be
        # closed here.
        if self._file is not None:
            _abandoned.append(self._file)
        self._file = None
        self._leave_guard()
        self._begin()

    def run(self, job: Job[T]) -> asyncio.Future[T]:
        """Return what comes of a job, after its transaction has been committed.

        Raises:
            StoreError: it was not done.

        """
        loop = asyncio.get_running_loop()
        job.future = loop.create_future()
        with self._lock:
            if self._thread is None:
                self._start()
            self._users.add(job.flushes)
            self._jobs.put(job, loop)
        return job.future

    async def leave(self, user: Flushes) -> None:
        """Finish what waits; if nobody else uses the file, close it and end the thread."""
        loop = asyncio.get_running_loop()
        last = Step(user, lambda _: None)  # what was asked before it is done by then
        last.future = loop.create_future()
        with self._lock:
            thread = self._thread
            if thread is None or user not in self._users:
                return
            self._users.remove(user)
            is_used = bool(self._users)
            if is_used:
                self._jobs.put(last, loop)
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
                if self._jobs is jobs:  # it was not closed: something has ended the thread
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
            self._tell_once(str(failed))
            self._let_go()
        except apsw.Error as error:
            fail(batch, self._failed(reason_of(error), error))
            self._let_go()
        except BaseException as error:  # noqa: BLE001 - the callers get it; the thread lives on
            fail(batch, error)
            self._let_go()
        else:
            if self._told:
                _log.warning("the SQLite store %r can be used again", str(self._path))
                self._told.clear()

    def _open(self) -> OpenFile:
        # What has been deleted is not begun anew behind the back of who will put it back.
        if not self._creates and not self._path.exists():
            raise MovedError(GONE)
        file = OpenFile(self._path, _prepare, creates=self._creates)
        self._leave_guard()
        self._creates = False
        self._syncs = True
        self.log = file.log
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

    def _leave_guard(self) -> None:
        if self._guard is not None:
            self._guard.release()
            self._guard = None

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

    def _end_transaction(self) -> None:
        """Reopen the connection if a transaction is open that has been committed.

        A cursor that somebody else keeps alive keeps its snapshot, and then no checkpoint can
        empty the write-ahead log.
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
    """Return why SQLite failed, in words for an operator."""
    return next((text for kind, text in _EXPLANATIONS if isinstance(error, kind)), str(error))


def _prepare(connection: apsw.Connection) -> None:
    connection.set_busy_timeout(BUSY_MILLISECONDS)
    check_owner(connection)
    use_write_ahead_log(connection)
    connection.execute("PRAGMA synchronous = FULL")
    # A long reader, such as a backup, lets the log grow; the next reset gives the disk its space.
    connection.pragma("journal_size_limit", _LOG_BYTES_KEPT)
    migrate(connection)


def use_write_ahead_log(connection: apsw.Connection) -> None:
    """Switch to the write-ahead log, unless the file has it already."""
    # Two processes that create the file at once: SQLite does not wait for the lock this needs, or
    # waits its whole time-out; so the waiting is done here.
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
