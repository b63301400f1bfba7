"""How workers take from shards, of which some may not answer.

A worker's takes are numbered, so that a shard knows one that a network has delivered late. The
numbers grow from one process to the next, for a worker that has the name of an earlier one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from ...errors import StoreError
from ...verification.loggers import get_logger
from ..values import Token
from .codec import step
from .shard import Shard

__all__ = ["Look", "Looks", "TakeNumbers"]

_log = get_logger("hookonce.store")

# A shard that has not answered by then is left out of this take.
_PEEK_SECONDS = 1.0
# And if it did not answer the last time either, nobody waits for it as long as that.
_SILENT_PEEK_SECONDS = 0.05


class TakeNumbers:
    """Gives each take of a worker a number, and a repeated one the number that it had."""

    def __init__(self) -> None:
        self._numbers = count(time.time_ns() // 1000)
        self._last: dict[str, tuple[Token, int]] = {}

    def of(self, worker: str, token: Token) -> int:
        """Return the number of a take."""
        last_token, number = self._last.get(worker, (None, 0))
        if last_token != token:
            number = next(self._numbers)
            self._last[worker] = token, number
        return number

    def end(self, worker: str) -> int:
        """Return a number that is higher than those of all takes of a worker."""
        self._last.pop(worker, None)
        return next(self._numbers)


@dataclass(frozen=True, slots=True)
class Look:
    """What a shard answered to a worker who wants to take.

    Attributes:
        number: of the shard.
        next_due: seconds until something is due there, 0 if it is; None if nothing waits.
        is_repeat: whether this take has been there before.

    """

    number: int
    next_due: float | None
    is_repeat: bool


class Looks:
    """Looks into shards before something is taken, and leaves out those that do not answer."""

    def __init__(self) -> None:
        self._silent: frozenset[int] = frozenset()

    async def look(
        self, shards: Sequence[Shard], endpoint: str, worker: str, token: Token, number: int
    ) -> list[Look]:
        """Return what the shards that answer have; the longest due first.

        Raises:
            StoreError: none of them answers.

        """
        asked = step("peek", endpoint, worker, token, number)
        tasks = [shard.run(asked, may_be_dropped=True) for shard in shards]
        try:
            await asyncio.wait(tasks, timeout=_SILENT_PEEK_SECONDS)
            expected = [task for n, task in enumerate(tasks) if n not in self._silent]
            await asyncio.wait(expected or tasks, timeout=_PEEK_SECONDS)
            pending = set(tasks)
            while pending and not any(map(_has_answered, tasks)):
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        failures = {n: _failure_of(task) for n, task in enumerate(tasks) if not _has_answered(task)}
        self.take_note(failures)
        if len(failures) == len(tasks):
            raise failures[0]
        answers = {n: task.result() for n, task in enumerate(tasks) if n not in failures}
        looks = [
            Look(n, float(due) if due else None, is_repeat == b"1")
            for n, (due, is_repeat) in answers.items()
        ]
        return sorted(looks, key=lambda look: look.next_due or 0.0)

    def take_note(self, failures: Mapping[int, BaseException]) -> None:
        """Log it when other shards fail than before."""
        silent = frozenset(failures)
        if silent == self._silent:
            return
        self._silent = silent
        if failures:
            _log.warning(
                "workers take from the shards that answer, and these do not: %s (%s)",
                ", ".join(map(str, sorted(silent))),
                next(iter(failures.values())),
            )
        else:
            _log.info("workers take from all shards again")


def _has_answered(task: asyncio.Future[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _failure_of(task: asyncio.Future[Any]) -> BaseException:
    error = task.exception() if task.done() and not task.cancelled() else None
    return error or StoreError("no answer in time")
