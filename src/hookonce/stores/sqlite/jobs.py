"""What waits for the writer's thread, which is woken once for what is asked in a turn of a loop.

Woken by each call, the thread would take the interpreter's lock in the middle of the turn, and
begin a transaction with the first call while the others are still being made.
"""

from __future__ import annotations

import contextlib
import queue
from collections import deque

from .batch import Job

__all__ = ["Jobs"]

# Bounds a batch's transaction to some tens of milliseconds.
_MOST_STEPS = 1_000


class Jobs:
    """Jobs from the loops of any threads, for one thread; in order."""

    def __init__(self) -> None:
        self._waiting: deque[Job | None] = deque()
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_waking = False
        self._is_full = False  # the last batch, so that more may wait

    def put(self, job: Job) -> None:
        """Add a job, within its loop."""
        self._waiting.append(job)
        # The thread looks at the jobs after it has unset this, so none is overlooked.
        if not self._is_waking:
            self._is_waking = True
            job.loop.call_soon(self._wake)

    def close(self) -> None:
        """Let the thread end once all that waits is done; nothing may be put after that."""
        self._waiting.append(None)
        self._wake()

    def next_batch(self, wait: float) -> tuple[list[Job], bool]:
        """Return what waits, at the latest after ``wait`` seconds, and whether more may come."""
        if not self._is_full:
            # A loop that has ended since has woken nobody; after a while its jobs are done as well.
            with contextlib.suppress(queue.Empty):
                self._wakes.get(timeout=wait)
        self._is_waking = False
        batch: list[Job] = []
        while self._waiting and len(batch) < _MOST_STEPS:
            job = self._waiting.popleft()
            if job is None:
                return batch, False
            batch.append(job)
        self._is_full = len(batch) == _MOST_STEPS
        return batch, True

    def _wake(self) -> None:
        self._wakes.put(None)
