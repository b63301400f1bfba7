"""The answer of one attempt, and the requests that wait for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ..outcome import SUCCEEDED, Outcome, Reason, later
from ..stores.time_limit import set_within


@dataclass(slots=True, eq=False, repr=False)
class Answer:
    """The answer to a request. A later answer replaces an earlier one, but never a success.

    Attributes:
        future: what the request awaits; it holds the first answer.
        outcome: the latest answer; None before the first.
        is_success: whether the latest answer says that the event needs no handler any more.
        joined: set at a success or at the end of the attempt; None while nobody waits for it.
    """

    future: asyncio.Future[Outcome]
    outcome: Outcome | None = None
    is_success: bool = False
    joined: asyncio.Event | None = None

    def give(self, outcome: Outcome) -> None:
        """Answer the request, unless the answer is a success already."""
        if self.is_success:
            return
        self.outcome, self.is_success = outcome, outcome.reason in SUCCEEDED
        if not self.future.done():
            self.future.set_result(outcome)
        if self.is_success and self.joined is not None:
            self._wake()

    async def wait_until_final(self, seconds: float | None) -> bool:
        """Wait for a success or the end of the attempt; return False if ``seconds`` pass first.

        Args:
            seconds: how long to wait; None without a limit.
        """
        if self.joined is None:
            self.joined = asyncio.Event()
        return await set_within(seconds, self.joined)

    def end(self) -> None:
        """Answer 503 if nothing else was answered, and wake all callers of ``wait_until_final``."""
        if self.outcome is None:
            self.give(later(Reason.SHUTTING_DOWN))
        self._wake()

    def _wake(self) -> None:
        if self.joined is not None:
            self.joined.set()
            self.joined = None
