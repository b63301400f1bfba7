"""The events under way in this process, and the watchman that keeps their time limits."""

from __future__ import annotations

import asyncio
from asyncio.tasks import _unregister_task
from collections.abc import Sequence
from math import inf
from typing import Any

from ..events import Event
from ..stores.values import Claimed, Delivery, DeliveryKey
from ..verification.loggers import get_logger
from .dispatch import Dispatcher
from .handler import Handler
from .outcome import Outcome, Reason, later
from .parts import Parts
from .run import Run

__all__ = ["Runs"]

_log = get_logger("hookonce")

# How often the watchman looks, and how finely that divides the shortest limit.
_LONGEST_TICK_SECONDS, _SHORTEST_TICK_SECONDS = 0.05, 0.005
_TICKS_IN_A_LIMIT = 10


class Runs:
    """Begins runs, knows those under way, watches their limits, and ends them at a shutdown.

    The watchman is a timer of the loop's that lives only while there are runs. It does for all of
    them what a timer for each would do: hardly any of these limits is ever reached.

    Args:
        parts: what runs work with.

    """

    def __init__(self, parts: Parts) -> None:
        limits = parts.limits
        self._parts = parts
        self._dispatcher = Dispatcher(
            threads=limits.threads,
            timeout_seconds=limits.handler_timeout_seconds,
            observers=parts.observers,
        )
        shortest = min(
            limits.answer_seconds,
            limits.lease_seconds / 3,
            limits.store_seconds,
            limits.handler_timeout_seconds,
        )
        tick = min(shortest / _TICKS_IN_A_LIMIT, _LONGEST_TICK_SECONDS)
        self._tick = max(tick, _SHORTEST_TICK_SECONDS)
        self._by_key: dict[DeliveryKey, Run] = {}
        self._tasks: dict[asyncio.Task[None], Run] = {}
        self._watch: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.accepting = True

    @property
    def overdue(self) -> tuple[str, ...]:
        """The handlers that run beyond their time limit and cannot be ended, by name."""
        return tuple(
            call.name for run in self._tasks.values() for call in run.calls if call.is_overdue
        )

    def find(self, key: DeliveryKey) -> Run | None:
        """Return the run of an event that is under way here, and not settled."""
        run = self._by_key.get(key)
        if run is not None and run.task.get_loop().is_closed():
            self._forget_lost()
        return None if run is None or run.is_settled else run

    def adopt(self, claim: Claimed) -> bool:
        """Let a claim be that of the run under way, and return whether there is one to have it.

        One that is still asking for a claim is none: it waits for the owner of this one.
        """
        run = self.find(claim.key)
        if run is None or run.claim is None:
            return False
        run.adopt(claim)
        return True

    def make(
        self, delivery: Delivery, event: Event[Any] | None, handlers: Sequence[Handler]
    ) -> Run:
        """Return a run that is not begun yet, for its maker to say what is special about it."""
        return Run(self._parts, self._dispatcher, delivery, event, handlers)

    def begin(self, run: Run) -> Run:
        """Start a run in a task of its own."""
        previous = self._by_key.get(run.key)
        if previous is not None and previous.is_errand:  # it ran nothing; what came before it may
            previous = previous.previous
        run.previous = previous
        self._by_key[run.key] = run
        loop = asyncio.get_running_loop()
        run.task = task = loop.create_task(run.go())
        self._tasks[task] = run
        task.add_done_callback(self._ended)
        if (
            self._watch is None
            or self._loop is not loop
            or self._watch.when() > loop.time() + _LONGEST_TICK_SECONDS
        ):  # the last, where a test has set the time of the loop back
            if self._loop is not loop:
                self._forget_lost()
            if self._watch is not None:
                self._watch.cancel()
            self._loop = loop
            self._watch = loop.call_later(self._tick, self._look)
        return run

    async def settled(self, run: Run) -> Outcome:
        """Return what became of a run; cancelled, it gives the event back."""
        try:
            while not run.is_settled:
                await run.settled(inf)
        except asyncio.CancelledError:
            run.stop()
            await asyncio.wait({run.task})
            raise
        return run.outcome or later(Reason.SHUTTING_DOWN)

    def refuse(self) -> None:
        """Begin nothing more, also of what is only being claimed."""
        self.accepting = False
        for run in self._tasks.values():
            run.is_refused = run.answer is not None

    async def idle(self, seconds: float) -> bool:
        """Wait until nothing is under way, but no longer than that; return whether nothing is."""
        await self._until_idle(seconds)
        return not self._tasks

    async def drain(self) -> None:
        """Wait for what is under way, then cancel and release what still is; in bounded time."""
        limits = self._parts.limits
        self._forget_lost()
        for task, run in self._tasks.items():
            if run.is_errand:
                task.cancel()
        await self._until_idle(limits.drain_seconds)
        # What has ended is only being recorded; that is let go on.
        late = [run for run in self._tasks.values() if run.is_busy]
        for run in late:
            run.stop()
        if late:
            _log.warning(
                "handlers still running after %g s: %d; their events are left to a retry",
                limits.drain_seconds,
                len(late),
            )
        await self._until_idle(2 * limits.store_seconds)
        for task, run in self._tasks.items():
            names = ", ".join(call.name for call in run.calls) or "what is left to do"
            _log.error("the end of %s for %s is not waited for any longer", names, run.key)
            task.cancel()
            _unregister_task(task)  # a loop that ends would wait for it, for ever
            for call in run.calls:
                if call.task is not None:
                    _unregister_task(call.task)

    def close(self) -> None:
        """Let go of the threads of sync handlers."""
        self._dispatcher.close()

    def __len__(self) -> int:
        return len(self._tasks)

    async def _until_idle(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self._tasks and (remaining := end - loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=remaining)
            await asyncio.sleep(0)  # what they call when they are done comes after that

    def _ended(self, task: asyncio.Task[None]) -> None:
        run = self._tasks.pop(task)
        run.leave()
        if self._by_key.get(run.key) is run:
            if run.previous is None or run.previous.task.done():
                del self._by_key[run.key]
            else:
                self._by_key[run.key] = run.previous

    def _forget_lost(self) -> None:
        """Forget runs whose loop was closed under them, but not what has succeeded in them."""
        lost = [run for task, run in self._tasks.items() if task.get_loop().is_closed()]
        for run in lost:
            del self._tasks[run.task]
            run.is_settled = True  # nobody records it any more; the claim is left to its lease
            if self._by_key.get(run.key) is run and not run.finished:
                del self._by_key[run.key]

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for run in self._tasks.values():
            run.look(now)
        self._watch = loop.call_later(self._tick, self._look) if self._tasks else None
