"""Attempts under way in this process: begun in tasks of their own, and ended at a shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from .attempt import Attempt, Attempts
from .dispatch import Report
from .limits import Limits
from .outcome import Outcome, Reason, later
from .types import DeliveryKey

__all__ = ["HANDLED", "Run", "Runs"]

_log = logging.getLogger("hookonce")

_IDLE_LOOK_SECONDS = 0.01

HANDLED = Outcome(HTTPStatus.OK, Reason.HANDLED)


class Run:
    """An attempt under way; it may outlive the request that began it.

    Attributes:
        key: what is handled once.
        answer: the outcome, once it stands.
        report: what became of the handlers once they have ended, recorded or not.

    """

    __slots__ = ("answer", "key", "report")

    def __init__(self, key: DeliveryKey) -> None:
        self.key = key
        self.answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.report: Report | None = None

    @property
    def succeeded(self) -> bool:
        """Whether every handler has succeeded."""
        return self.report is not None and not self.report.failures

    def has_ended(self, report: Report) -> None:
        """Note what became of the handlers."""
        self.report = report

    def settle(self, outcome: Outcome) -> None:
        """Note the outcome; the first one stands."""
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
        """Return the attempt at an event that is under way here."""
        return self._by_key.get(key)

    @contextmanager
    def expected(self) -> Iterator[None]:
        """Let a shutdown wait for what happens in the block, which may begin an attempt."""
        self._expected += 1
        try:
            yield
        finally:
            self._expected -= 1

    def begin(self, attempt: Attempt) -> Run:
        """Start an attempt in a task of its own, which no lost connection can cancel."""
        key = attempt.claim.key
        run = Run(key)
        task = asyncio.get_running_loop().create_task(
            self._attempts.make(attempt, settled=run.settle, ended=run.has_ended)
        )
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

    async def one_ended(self, seconds: float) -> None:
        """Return when one of the attempts under way has ended, after ``seconds`` at the latest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

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
