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

__all__ = ["Look", "Looks", "Takes"]

_log = get_logger("hookonce.store")

# A shard that has not answered by then is left out of this take.
_PEEK_SECONDS = 1.0
# And if it did not answer the last time either, nobody waits for it as long as that.
_SILENT_PEEK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Take:
    """One take of a worker, as a shard knows it.

    Attributes:
        token: made once for it.
        number: a later one has a higher number.

    """

    token: Token
    number: int


class Takes:
    """The last take of each worker, and those that a shard has not answered.

    A shard that is asked in vain may have taken all the same: it is asked for that take again
    before any other, or its events would wait for their leases to end and lose an attempt.
    """

    def __init__(self) -> None:
        self._numbers = count(time.time_ns() // 1000)
        self._last: dict[str, Take] = {}
        self._unanswered: dict[str, dict[int, Take]] = {}

    def of(self, worker: str, token: Token) -> Take:
        """Return a worker's take with a token; a repeated one has the number that it had."""
        last = self._last.get(worker)
        if last is None or last.token != token:
            last = self._last[worker] = Take(token, next(self._numbers))
        return last

    def unanswered(self, worker: str) -> dict[int, Take]:
        """Return which take each shard still has to answer, for whoever asks to change."""
        return self._unanswered.setdefault(worker, {})

    def end(self, worker: str) -> int:
        """Return a number that is higher than those of all takes of a worker."""
        self._last.pop(worker, None)
        self._unanswered.pop(worker, None)
        return next(self._numbers)


@dataclass(frozen=True, slots=True)
class Look:
    """What a shard answered to a worker who wants to take.

    Attributes:
        number: of the shard.
        take: what it can be asked for.
        next_due: seconds until something is due there, 0 if it is; None if nothing waits.
        is_repeat: whether this take has been there before.

    """

    number: int
    take: Take
    next_due: float | None
    is_repeat: bool


class Looks:
    """Looks into shards before something is taken, and leaves out those that do not answer."""

    def __init__(self) -> None:
        self._silent: frozenset[int] = frozenset()

    async def look(
        self,
        shards: Sequence[Shard],
        endpoint: str,
        worker: str,
        take: Take,
        unanswered: dict[int, Take],
    ) -> list[Look]:
        """Return what the shards that answer have; the longest due first.

        Args:
            shards: all there are.
            endpoint: whose events.
            worker: who wants to take.
            take: what it takes with.
            unanswered: the takes that shards still have to answer; those that turn out not to have
                reached their shard are taken out.

        Raises:
            StoreError: none of them answers.

        """
        takes = [unanswered.get(n, take) for n in range(len(shards))]
        tasks = [
            shard.run(
                step("peek", endpoint, worker, asked.token, asked.number), may_be_dropped=True
            )
            for shard, asked in zip(shards, takes, strict=True)
        ]
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
        looks = []
        for n, (due, answer) in answers.items():
            if not (is_repeat := answer == b"1"):
                unanswered.pop(n, None)
            can_take = takes[n] if is_repeat else take
            looks.append(Look(n, can_take, float(due) if due else None, is_repeat))
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
