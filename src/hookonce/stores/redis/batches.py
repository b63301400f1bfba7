"""Micro-batching: whatever is asked of a shard in one turn of the event loop goes out as one call.

One batch of a shard is under way at a time; what is asked meanwhile forms the next. A caller that
is cancelled never takes the batch of the others with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from ...errors import StoreError
from .codec import Step, decode

__all__ = ["CALL_SECONDS", "Batches", "Reply", "Send"]

CALL_SECONDS = 3.0
"""A delivery must be answered within about three seconds, also while no server can be reached."""

# A script call blocks the server for its whole length: some milliseconds.
_MOST_STEPS = 256
_MOST_BYTES = 1024 * 1024


class Reply(NamedTuple):
    """What the script answered to one step, and the time by which it did.

    Attributes:
        value: the step's own answer.
        now: Unix seconds by the clock the script went by.

    """

    value: Any
    now: float


Send: TypeAlias = Callable[[Sequence[Step], float], Awaitable[list[Any]]]
"""Sends steps until a time of the loop's clock; returns the script's time and an answer to each."""


class _Job(NamedTuple):
    step: Step
    future: asyncio.Future[Reply]
    deadline: float
    may_be_dropped: bool


class Batches:
    """Sends the steps of one shard, within one event loop.

    Args:
        send: sends a batch.
        flushed: told how many steps a batch had, and the seconds it took.

    """

    def __init__(self, send: Send, flushed: Callable[[int, float], None]) -> None:
        self._send = send
        self._flushed = flushed
        self._waiting: deque[_Job] = deque()
        self._task: asyncio.Task[None] | None = None

    def run(self, step: Step, *, may_be_dropped: bool = False) -> asyncio.Future[Reply]:
        """Return the answer to a step, once it has come.

        Args:
            step: what to do.
            may_be_dropped: leave it out if the caller is cancelled before its turn: a claim that
                nobody waits for would have no owner, while a completion is a fact all the same.

        Raises:
            StoreError: from the future: it was not done, or nobody knows.

        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        self._waiting.append(_Job(step, future, loop.time() + CALL_SECONDS, may_be_dropped))
        if self._task is None or self._task.done():
            # It begins in the loop's next turn, when all that is asked in this one has joined.
            self._task = loop.create_task(self._work(), name="hookonce-redis-batches")
        return future

    async def drain(self) -> None:
        """Return when nothing is under way any more."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := self._next_batch():
            started = loop.time()
            try:
                # The first has waited longest; the others give up with it, never later.
                now, *values = await self._send([job.step for job in batch], batch[0].deadline)
            except StoreError as error:
                for job in batch:
                    _fail(job, error)
            except BaseException as error:
                failure = StoreError("the Redis store was stopped before it got an answer")
                failure.__cause__ = error
                for job in [*batch, *self._waiting]:
                    _fail(job, failure)
                self._waiting.clear()
                raise
            else:
                # On its own, and before the callers go on: should it fail, they have their answers.
                loop.call_soon(self._flushed, len(batch), loop.time() - started)
                time = float(now)
                for job, value in zip(batch, values, strict=True):
                    if value.__class__ is list and value and value[0] == b"!":
                        _fail(job, _refused(value))
                    elif not job.future.done():
                        job.future.set_result(Reply(value, time))

    def _next_batch(self) -> list[_Job]:
        """Return what goes out together; nothing if nothing waits."""
        batch: list[_Job] = []
        size = 0
        while self._waiting and len(batch) < _MOST_STEPS:
            job = self._waiting[0]
            if job.may_be_dropped and job.future.cancelled():
                self._waiting.popleft()
                continue
            size += len(job.step.request)
            if batch and size > _MOST_BYTES:
                break
            batch.append(self._waiting.popleft())
        return batch


def _refused(answer: Sequence[bytes]) -> StoreError:
    return StoreError(f"the Redis store could not do it: {decode(answer[1])}")


def _fail(job: _Job, error: StoreError) -> None:
    if not job.future.done():
        # One object for all would collect every caller's traceback.
        failure = StoreError(*error.args)
        failure.__cause__ = error.__cause__
        job.future.set_exception(failure)
