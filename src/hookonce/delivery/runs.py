"""Attempts under way in this process: begun in tasks of their own, and ended at a shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from http import HTTPStatus
from typing import TypeVar

from ..stores.values import Claimed, DeliveryKey
from .attempt import Attempt, Attempts
from .dispatch import Report
from .lease import LeaseKeeper
from .limits import Limits
from .outcome import HANDLED, Outcome, Reason, later

__all__ = ["Run", "Runs"]

_log = logging.getLogger("hookonce")

T = TypeVar("T")

_IDLE_LOOK_SECONDS = 0.01


class Run:
    """An attempt under way; it may outlive the request that began it.

    Attributes:
        key: what is handled once.
        answer: the first outcome that stood.
        outcome: the latest one.
        report: what became of the handlers once they have ended, recorded or not.
        task: what makes the attempt.

    """

    __slots__ = ("_keeper", "answer", "key", "outcome", "report", "task")

    task: asyncio.Task[None]

    def __init__(self, key: DeliveryKey) -> None:
        self.key = key
        self.answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.outcome: Outcome | None = None
        self.report: Report | None = None
        self._keeper: LeaseKeeper | None = None

    def is_kept_by(self, keeper: LeaseKeeper | None) -> None:
        """Note what keeps the claim; None once that is settled."""
        self._keeper = keeper

    def adopt(self, claim: Claimed) -> None:
        """Go on under a new claim: the event was taken anew after its lease was lost."""
        if self._keeper is not None:
            self._keeper.adopt(claim)

    @property
    def succeeded(self) -> bool:
        """Whether every handler has succeeded."""
        return self.report is not None and not self.report.failures

    def has_ended(self, report: Report) -> None:
        """Note what became of the handlers."""
        self.report = report

    def settle(self, outcome: Outcome) -> None:
        """Note the outcome; the first one is the answer."""
        self.outcome = outcome
        if not self.answer.done():
            self.answer.set_result(outcome)


class Runs:
    """Begins attempts, knows those under way, and ends them at a shutdown.

    Args:
        attempts: makes them.
        limits: how long a shutdown waits.

    """

    def __init__(self, attempts: Attempts, limits: Limits) -> None:
        self._attempts = attempts
        self._limits = limits
        self._by_key: dict[DeliveryKey, Run] = {}
        self._tasks: dict[asyncio.Task[None], Run] = {}
        self._expected = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def find(self, key: DeliveryKey) -> Run | None:
        """Return the attempt at an event that is under way here, and not settled."""
        return self._by_key.get(key)

    async def awaited(self, call: Awaitable[T]) -> T:
        """Return what a call returns, which may begin an attempt: a shutdown waits for it."""
        self._expected += 1
        try:
            return await call
        finally:
            self._expected -= 1

    def begin(self, attempt: Attempt) -> Run:
        """Start an attempt in a task of its own, which no lost connection can cancel."""
        key = attempt.claim.key
        run = Run(key)

        def kept(keeper: LeaseKeeper | None) -> None:
            run.is_kept_by(keeper)
            if keeper is None and self._by_key.get(key) is run:
                del self._by_key[key]

        task = asyncio.get_running_loop().create_task(
            self._attempts.make(attempt, settled=run.settle, kept=kept, ended=run.has_ended)
        )
        run.task = task
        self._tasks[task] = run
        self._by_key[key] = run

        def ended(task: asyncio.Task[None]) -> None:
            del self._tasks[task]
            if self._by_key.get(key) is run:
                del self._by_key[key]
            if task.cancelled():
                run.settle(HANDLED if run.succeeded else later(Reason.SHUTTING_DOWN))
            elif (error := task.exception()) is not None:
                _log.error("an attempt at %s broke off", key, exc_info=error)
                run.settle(Outcome(HTTPStatus.INTERNAL_SERVER_ERROR, Reason.INTERNAL_ERROR))

        task.add_done_callback(ended)
        return run

    async def finish(self, attempt: Attempt) -> Outcome:
        """Make an attempt, and return its outcome; cancelled, it gives the event back."""
        run = self.begin(attempt)
        try:
            await asyncio.wait({run.task})
        except asyncio.CancelledError:
            run.task.cancel()
            await asyncio.wait({run.task})
            raise
        return run.outcome or await run.answer

    async def one_ended(self, seconds: float) -> None:
        """Return when one of the attempts under way has ended, after ``seconds`` at the latest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    async def idle(self, seconds: float) -> bool:
        """Wait until nothing is under way, but no longer than that; return whether nothing is."""
        await self._until_idle(seconds)
        return not (self._tasks or self._expected)

    async def drain(self) -> None:
        """Wait for what is under way, then cancel and release what still is."""
        await self._until_idle(self._limits.drain_seconds)
        # What has ended is only being recorded; that is let go on.
        late = [task for task, run in self._tasks.items() if run.report is None]
        for task in late:
            task.cancel()
        if late:
            _log.warning(
                "handlers still running after %g s: %d; their events are left to a retry",
                self._limits.drain_seconds,
                len(late),
            )
        await self._until_idle(2 * self._limits.store_seconds)
        for task, run in self._tasks.items():
            _log.error("the end of the attempt at %s is not waited for any longer", run.key)
            task.cancel()

    async def _until_idle(self, seconds: float) -> None:
        """Wait until nothing claims, runs or settles, but no longer than that."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (self._tasks or self._expected) and (remaining := end - loop.time()) > 0:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=remaining)
            else:
                await asyncio.sleep(_IDLE_LOOK_SECONDS)
