"""Group commit: one transaction does all waiting calls (jobs), with few statements.

No call is answered before the commit, and no call fails because another call of its batch does.
Calls about the same event take effect in the order in which they were made.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

import apsw

from ...errors import StoreError
from ..formats import FormatError
from ..protocols import Flushes
from ..values import DeliveryKey
from .file import MovedError, OpenFile

T = TypeVar("T")

# Errors that the values of one job can cause. Any other error fails every job of the batch.
_STEP_ERRORS = (apsw.ConstraintError, apsw.MismatchError, apsw.RangeError, apsw.TooBigError)


@dataclass(eq=False, slots=True)
class Job(Generic[T]):
    """A call that waits for its transaction.

    A job is done twice if the error of another job rolls the batch back, so it must have no effect
    outside the database. It may raise StoreError, but what it has written before is committed.

    Attributes:
        flushes: the listeners of the store that was called; they are notified of the batch.
        key: the event, if the job can be combined with other jobs of its class; else None.
        error: the error that the caller gets in place of a result.
        committed: whether the job was committed on its own, after its batch had failed.
        may_be_dropped: skip the job if its caller was cancelled in the meantime: a claim would have
            no owner. A completion is never skipped, because the handlers have run.
        may_be_lost: commit without waiting for the disk. Every process sees the change at once, and
            it survives a crash of the processes; a power cut before the next synced commit undoes
            it.
    """

    flushes: Flushes
    key: DeliveryKey | None
    future: asyncio.Future[T] = field(init=False)
    outcome: T = field(init=False)
    error: BaseException | None = field(init=False, default=None)
    committed: bool = field(init=False, default=False)
    may_be_dropped: bool = field(kw_only=True, default=False)
    may_be_lost: bool = field(kw_only=True, default=False)

    def do(self, connection: apsw.Connection) -> None:
        """Do this job on its own."""
        raise NotImplementedError

    @classmethod
    def do_all(cls, connection: apsw.Connection, jobs: Sequence[Self]) -> Iterable[Self]:  # noqa: ARG003 - subclasses use the connection
        """Do jobs about different events together; return the jobs that must be done alone."""
        return jobs


@dataclass(eq=False, slots=True)
class StepJob(Job[T]):
    """A job that runs a function, and is not combined with other jobs."""

    key: None = field(init=False, default=None)
    step: Callable[[apsw.Connection], T]

    def do(self, connection: apsw.Connection) -> None:
        self.outcome = self.step(connection)


def commit(file: OpenFile, batch: Sequence[Job[Any]]) -> None:
    """Do all jobs in one transaction; if the values of one job cause an error, do each alone."""
    try:
        _transact(file, batch)
    except Exception as error:
        if _fails_for_all(error):
            raise
        # The values of one job caused the error: do each job separately, so that the others
        # succeed.
        for job in batch:
            job.error = None
            try:
                _transact(file, [job])
                job.committed = True
            except Exception as own_error:
                if _fails_for_all(own_error):
                    raise
                job.error = StoreError(f"the SQLite store refused a record: {own_error}")


def fail(batch: Sequence[Job[Any]], error: BaseException) -> None:
    """Set the error of every job that is not committed; the job's caller gets this error."""
    for job in batch:
        if not job.committed:
            job.error = job.error or error


def answer(batch: Sequence[Job[Any]], seconds: float) -> None:
    """Set the callers' futures, with one call to each event loop, and notify the listeners."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[Job[Any]]] = defaultdict(list)
    for job in batch:
        by_loop[job.future.get_loop()].append(job)
    for loop, jobs in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there
            loop.call_soon_threadsafe(_resolve, jobs, seconds)


def _fails_for_all(error: Exception) -> bool:
    is_of_the_file = isinstance(error, apsw.Error | MovedError | FormatError)
    return is_of_the_file and not isinstance(error, _STEP_ERRORS)


def _transact(file: OpenFile, batch: Sequence[Job[Any]]) -> None:
    connection = file.connection
    with file.transaction():
        together: dict[type[Job[Any]], list[Job[Any]]] = {}
        keys: set[DeliveryKey] = set()
        for job in batch:
            if job.may_be_dropped and job.future.cancelled():
                continue
            if job.key is not None and job.key not in keys:
                keys.add(job.key)
                together.setdefault(type(job), []).append(job)
                continue
            # This job may concern the same event as an earlier job, so the earlier jobs are done
            # first.
            _do_together(connection, together)
            together.clear()
            keys.clear()
            _do(connection, job)
        _do_together(connection, together)


def _do_together(
    connection: apsw.Connection, together: Mapping[type[Job[Any]], list[Job[Any]]]
) -> None:
    for kind, jobs in together.items():
        for job in kind.do_all(connection, jobs):
            _do(connection, job)


def _do(connection: apsw.Connection, job: Job[Any]) -> None:
    try:
        job.do(connection)
    except StoreError as error:
        job.error = error


def _resolve(jobs: Sequence[Job[Any]], seconds: float) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.outcome)
    # Notify last: if a listener raises, all callers have their answers already.
    for flushes, calls in Counter(job.flushes for job in jobs).items():
        flushes.notify(calls, seconds)
