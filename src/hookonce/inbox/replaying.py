"""Replays many events, with limits on how many run at once and how many begin in a second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from math import isfinite
from typing import Any, NamedTuple, TypeVar

from ..outcome import SUCCEEDED, Outcome

T = TypeVar("T")


class Replayed(NamedTuple):
    """The result of the replay of one event.

    Attributes:
        event_id: the webhook-id of the handled event.
        outcome: the outcome; None if the handler cannot run for the event.
        error: why it cannot, as text.
        left: how many events this process still has to replay, as far as it knows.
    """

    event_id: str
    outcome: Outcome | None
    error: str = ""
    left: int = 0

    @property
    def reason(self) -> str:
        """The result as text: the outcome's reason, or why the handler cannot run."""
        return self.error if self.outcome is None else self.outcome.reason

    @property
    def has_succeeded(self) -> bool:
        """Whether the replay has succeeded, in this process or in another process."""
        return self.outcome is not None and self.outcome.reason in SUCCEEDED


class Pace:
    """Limits how many attempts begin in a second.

    Args:
        rate: the largest number of attempts; None for no limit.

    Raises:
        ValueError: the rate is not positive.
    """

    def __init__(self, rate: float | None) -> None:
        if rate is not None and not (isfinite(rate) and rate > 0):
            raise ValueError(f"rate must be a positive number of events in a second, not {rate!r}")
        self._seconds = 0.0 if rate is None else 1 / rate
        self._next = 0.0

    async def wait(self) -> None:
        """Wait until the next attempt may begin."""
        if not self._seconds:
            return
        now = asyncio.get_running_loop().time()
        begin = max(now, self._next)
        self._next = begin + self._seconds
        await asyncio.sleep(begin - now)


async def in_parallel(
    calls: Iterable[Callable[[], Coroutine[Any, Any, T]]], *, at_once: int
) -> AsyncGenerator[T, None]:
    """Make calls, at most ``at_once`` at a time; yield each result as soon as its call ends.

    If the iteration ends early, cancel the calls in flight and wait for their ends.
    """
    waiting, running = iter(calls), set[asyncio.Task[T]]()
    try:
        while True:
            while len(running) < at_once and (call := next(waiting, None)) is not None:
                running.add(asyncio.create_task(call()))
            if not running:
                return
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            running -= done
            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
