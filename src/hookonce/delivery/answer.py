"""The answer of one attempt, and the requests that wait for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf

from ..outcome import HANDLED, STALE, Outcome
from ..stores.time_limit import set_within


@dataclass(slots=True, eq=False, repr=False)
class Answer:
    """The answer to a request. A later answer replaces an earlier one, but never a success.

    Attributes:
        future: what the request awaits; it holds the first answer.
        due: when the request must have its answer, in the event loop's time.
        outcome: the latest answer; None before the first.
        is_success: whether the latest answer says that every handler has succeeded.
        joined: set at a success or at the end of the attempt; None while nobody has joined.
    """

    future: asyncio.Future[Outcome]
    due: float = inf
    outcome: Outcome | None = None
    is_success: bool = False
    joined: asyncio.Event | None = None

    def give(self, outcome: Outcome) -> None:
        """Answer the request, unless the answer is a success already."""
        if self.is_success:
            return
        self.outcome, self.is_success = outcome, outcome is HANDLED or outcome is STALE
        if not self.future.done():
            self.future.set_result(outcome)
        if self.joined is not None and self.is_success:
            self.wake()

    async def join(self, seconds: float | None) -> bool:
        """Wait for a success or the end of the attempt; return False if ``seconds`` pass first."""
        if self.joined is None:
            self.joined = asyncio.Event()
        return await set_within(seconds, self.joined)

    def wake(self) -> None:
        """Wake all callers of ``join``."""
        if self.joined is not None:
            self.joined.set()
            self.joined = None
