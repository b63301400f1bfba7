"""What waits together is done together: one transaction, few statements, one answer to the loop.

No call is answered before the commit, and none fails for a neighbour's fault. Calls about one event
take effect in the order they were made.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import apsw

from ...errors import StoreError
from ..values import DeliveryKey
from .file import MovedError, OpenFile

__all__ = ["Bulk", "CallT", "Job", "Step", "answer", "commit", "fail"]

T = TypeVar("T")
Step: TypeAlias = Callable[[apsw.Connection], T]

# Errors that one step can cause by itself; whatever else fails, fails for every step alike.
_STEP_ERRORS = (apsw.ConstraintError, apsw.MismatchError, apsw.RangeError, apsw.TooBigError)


class _Call(Protocol):
    @property
    def key(self) -> DeliveryKey: ...


CallT = TypeVar("CallT", bound=_Call)
_CallT_contra = TypeVar("_CallT_contra", bound=_Call, contravariant=True)
_T_co = TypeVar("_T_co", covariant=True)


class Bulk(Protocol[_CallT_contra, _T_co]):
    """Does calls of one kind, each about the event of its ``key``: one of them, or many at once."""

    def one(self, connection: apsw.Connection, call: _CallT_contra) -> _T_co:
        """Do one call."""
        ...

    def many(
        self, connection: apsw.Connection, calls: Sequence[_CallT_contra]
    ) -> Mapping[int, _T_co]:
        """Do calls about different events, and return what came of each, by its place.

        Those that are left out are done one by one after that.
        """
        ...


class Job:
    """What somebody waits for: a step, or a call that is done together with others of its kind.

    Args:
        loop: where the caller waits.
        future: what it waits for.
        may_be_dropped: leave it out if the caller is gone before its turn.
        may_be_lost: a power cut soon after it may undo it.
        step: what to do.
        bulk: what does the call, in place of a step.
        call: what ``bulk`` is to do.

    Attributes:
        outcome: what it has returned.
        error: what it has raised, or why it was not done.
        committed: whether it is, though others of its batch are not.

    """

    __slots__ = (
        "bulk",
        "call",
        "committed",
        "error",
        "future",
        "loop",
        "may_be_dropped",
        "may_be_lost",
        "outcome",
        "step",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[Any],
        may_be_dropped: bool = False,
        may_be_lost: bool = False,
        step: Step[Any] | None = None,
        bulk: Bulk[Any, Any] | None = None,
        call: Any = None,
    ) -> None:
        self.loop = loop
        self.future = future
        self.may_be_dropped = may_be_dropped
        self.may_be_lost = may_be_lost
        self.step = step
        self.bulk = bulk
        self.call = call
        self.outcome: Any = None
        self.error: BaseException | None = None
        self.committed = False

    def do(self, connection: apsw.Connection) -> None:
        """Do it, on its own."""
        try:
            if self.bulk is not None:
                self.outcome = self.bulk.one(connection, self.call)
            elif self.step is not None:
                self.outcome = self.step(connection)
        except StoreError as error:
            self.error = error


def commit(file: OpenFile, batch: Sequence[Job]) -> None:
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


def fail(batch: Sequence[Job], error: BaseException) -> None:
    """Note why nothing was done of what is not committed."""
    for job in batch:
        if not job.committed:
            job.error = job.error or error


def answer(batch: Sequence[Job], also: Callable[[], None]) -> None:
    """Tell the callers, in one call for each of their loops, and do something else in one."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[Job]] = defaultdict(list)
    for job in batch:
        by_loop[job.loop].append(job)
    for loop, jobs in by_loop.items():
        with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, jobs, also)
        also = _nothing


def _fails_for_all(error: Exception) -> bool:
    return isinstance(error, apsw.Error | MovedError) and not isinstance(error, _STEP_ERRORS)


def _transact(file: OpenFile, batch: Sequence[Job]) -> None:
    connection = file.connection
    with file.transaction():
        together: dict[Bulk[Any, Any], list[Job]] = {}
        keys: set[DeliveryKey] = set()
        for job in batch:
            if job.may_be_dropped and job.future.cancelled():
                continue
            if job.bulk is not None and job.call.key not in keys:
                keys.add(job.call.key)
                together.setdefault(job.bulk, []).append(job)
                continue
            # It may be about an event that comes before it.
            _do_together(connection, together)
            together.clear()
            keys.clear()
            job.do(connection)
        _do_together(connection, together)


def _do_together(connection: apsw.Connection, together: Mapping[Bulk[Any, Any], list[Job]]) -> None:
    for bulk, jobs in together.items():
        outcomes = bulk.many(connection, [job.call for job in jobs])
        for place, job in enumerate(jobs):
            if place in outcomes:
                job.outcome = outcomes[place]
            else:
                job.do(connection)


def _nothing() -> None:
    """Be what a loop has to do besides, once another one does it."""


def _resolve(jobs: Sequence[Job], also: Callable[[], None]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.outcome)
    also()  # before the callers go on; should it fail, they have their answers
