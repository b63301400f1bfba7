"""How workers take from shards, of which some may not answer."""

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


class Takes:
    """What tells the takes of workers apart.

    A shard that is asked in vain may have taken all the same. It is asked for that take again, by
    its token, before any other: else its events would wait for their leases to end, and lose an
    attempt. It may also be reached late; so every call has a number, and a shard does nothing for
    one that is lower than another it has seen.
    """

    def __init__(self) -> None:
        # They grow from one process to the next, for a worker that has the name of an earlier one.
        self._numbers = count(time.time_ns() // 1000)
        self._unanswered: dict[str, dict[int, Token]] = {}

    def next_number(self) -> int:
        """Return the number of a call."""
        return next(self._numbers)

    def unanswered(self, worker: str) -> dict[int, Token]:
        """Return which take each shard still has to answer, for whoever asks to change."""
        return self._unanswered.setdefault(worker, {})

    def end(self, worker: str) -> int:
        """Return a number that is higher than those of all calls of a worker."""
        self._unanswered.pop(worker, None)
        return next(self._numbers)


@dataclass(frozen=True, slots=True)
class Look:
    """What a shard answered to a worker who wants to take.

    Attributes:
        number: of the shard.
        token: of the take it can be asked for.
        next_due: seconds until something is due there, 0 if it is; None if nothing waits.
        is_repeat: whether that take has been there before.

    """

    number: int
    token: Token
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
        token: Token,
        number: int,
        unanswered: dict[int, Token],
    ) -> list[Look]:
        """Return what the shards that answer have; the longest due first.

        Args:
            shards: all there are.
            endpoint: whose events.
            worker: who wants to take.
            token: what it takes with.
            number: of this call.
            unanswered: the takes that shards still have to answer; those that turn out not to have
                reached their shard are taken out.

        Raises:
            StoreError: none of them answers.

        """
        tokens = [unanswered.get(n, token) for n in range(len(shards))]
        tasks = [
            shard.run(step("peek", endpoint, worker, asked, number), may_be_dropped=True)
            for shard, asked in zip(shards, tokens, strict=True)
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
            own = tokens[n] if is_repeat else token
            looks.append(Look(n, own, float(due) if due else None, is_repeat))
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
