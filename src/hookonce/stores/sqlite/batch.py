"""What waits together is done together: one transaction, few statements, one answer to each loop.

No call is answered before the commit, and none fails for a neighbour's fault. Calls about one event
take effect in the order they were made.
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
from ..contract import Flushes
from ..values import DeliveryKey
from .file import MovedError, OpenFile

T = TypeVar("T")

# Errors that one step can cause by itself; whatever else fails, fails for every step alike.
_STEP_ERRORS = (apsw.ConstraintError, apsw.MismatchError, apsw.RangeError, apsw.TooBigError)


@dataclass(eq=False, slots=True)
class Job(Generic[T]):
    """What a caller waits for, done within a transaction.

    It may be done twice if a neighbour's error undid the batch; it must only read and write the
    database. It may raise StoreError before it has written anything.

    Attributes:
        flushes: who is told that it is done: those of the store that was called.
        key: the event it is about, if it can be done together with others of its class.
        future: what the caller waits for.
        outcome: what comes of it.
        error: what it has raised, or why it was not done.
        committed: whether it is, though others of its batch are not.
        may_be_dropped: leave it out if the caller is gone before its turn: a claim that nobody
            waits for would have no owner, while a completion is a fact all the same.
        may_be_lost: do not wait for the disk on its account. Every process sees what it did at
            once, and it outlives them; a power cut before the next commit that waits undoes it.

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
        """Do it, on its own."""
        raise NotImplementedError

    @classmethod
    def do_all(cls, connection: apsw.Connection, jobs: Sequence[Self]) -> Iterable[Self]:  # noqa: ARG003 - for subclasses
        """Do many, about different events; return those that are left to be done one by one."""
        return jobs


@dataclass(eq=False, slots=True)
class Step(Job[T]):
    """A job that is like no other."""

    key: None = field(init=False, default=None)
    step: Callable[[apsw.Connection], T]

    def do(self, connection: apsw.Connection) -> None:
        """Do it."""
        self.outcome = self.step(connection)


def commit(file: OpenFile, batch: Sequence[Job[Any]]) -> None:
    """Do what the jobs ask for in one transaction, or at a step's fault in one for each."""
    try:
        _transact(file, batch)
    except Exception as error:
        if _fails_for_all(error):
            raise
        # One of them is at fault; on their own, its neighbours succeed.
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
    """Note why nothing was done of what is not committed."""
    for job in batch:
        if not job.committed:
            job.error = job.error or error


def answer(batch: Sequence[Job[Any]], seconds: float) -> None:
    """Tell the callers, in one call for each of their loops, and who counts flushes."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[Job[Any]]] = defaultdict(list)
    for job in batch:
        by_loop[job.future.get_loop()].append(job)
    for loop, jobs in by_loop.items():
        with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, jobs, seconds)


def _fails_for_all(error: Exception) -> bool:
    return isinstance(error, apsw.Error | MovedError) and not isinstance(error, _STEP_ERRORS)


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
            # It may be about an event that comes before it.
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
    # Before the callers go on; should a listener fail, they have their answers.
    for flushes, calls in Counter(job.flushes for job in jobs).items():
        flushes.notify(calls, seconds)
