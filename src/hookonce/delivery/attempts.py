"""The attempts in flight in this process, and the timer that enforces their time limits."""

from __future__ import annotations

import asyncio

from ..logs import get_logger
from ..outcome import Outcome, Reason, later
from ..stores.values import Claimed, DeliveryKey
from ..watching.loop_monitor import LoopMonitor
from ..watching.workers import RunningHandler, Tally
from .attempt import Attempt
from .dependencies import Dependencies
from .stored_key_lock import send_watermarks

_log = get_logger("hookonce")

# Bounds of the timer's period, and how many periods fit into the shortest time limit.
_LONGEST_TICK_SECONDS, _SHORTEST_TICK_SECONDS = 0.05, 0.005
_TICKS_IN_A_LIMIT = 10


class Attempts:
    """Begins attempts, enforces their time limits, and ends them at a shutdown.

    One timer of the event loop serves all attempts, since few of them ever reach a limit. The timer
    runs only while there are attempts.

    Args:
        dependencies: what all attempts of the receiver share.

    Attributes:
        tally: counts attempts that have succeeded, and those whose handlers have failed.
        accepting: whether new attempts may begin; False once a shutdown has begun.
        loop_monitor: reports a handler that blocks the event loop.
    """

    def __init__(self, dependencies: Dependencies) -> None:
        limits = dependencies.limits
        self._dependencies = dependencies
        shortest = min(
            limits.answer_seconds,
            limits.lease_seconds / 3,
            limits.store_seconds,
            limits.handler_timeout_seconds,
        )
        tick = min(shortest / _TICKS_IN_A_LIMIT, _LONGEST_TICK_SECONDS)
        self._tick = max(tick, _SHORTEST_TICK_SECONDS)
        self._by_key: dict[DeliveryKey, Attempt] = {}
        self._by_task: dict[asyncio.Task[None], Attempt] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.loop_monitor: LoopMonitor = LoopMonitor(
            dependencies.endpoint, dependencies.observers, self._current_handler
        )
        self._sending: asyncio.Task[None] | None = None
        self.tally: Tally = Tally()
        self.accepting: bool = True

    @property
    def overdue(self) -> tuple[str, ...]:
        """The names of handlers that run beyond their time limit and ignore their cancellation."""
        return tuple(
            call.name
            for attempt in self._by_task.values()
            for call in attempt.calls
            if call.is_overdue
        )

    def running(self) -> list[RunningHandler]:
        """Return the handlers that run now, the longest first."""
        found = []
        for attempt in self._by_task.values():
            lease, delivery = attempt.lease, attempt.delivery
            for call in attempt.calls:
                seconds = None if call.started is None else lease.loop.time() - call.started
                found.append(
                    RunningHandler(
                        call.name, delivery.event_id, delivery.event_type, lease.number, seconds
                    )
                )
        return sorted(found, key=lambda running: running.seconds or 0.0, reverse=True)

    def find(self, key: DeliveryKey) -> Attempt | None:
        """Return the attempt in flight for an event in this process; None if there is none."""
        attempt = self._by_key.get(key)
        if attempt is None or attempt.task.get_loop().is_closed():
            return None
        return attempt if attempt.has_the_event else None

    def adopt(self, claim: Claimed) -> Attempt | None:
        """Hand a claim to the attempt in flight, and return that attempt.

        Returns:
            None if no attempt is in flight, or if it still asks for a claim itself.
        """
        attempt = self.find(claim.key)
        if attempt is not None:
            if attempt.lease.claim is None:
                return None
            attempt.adopt(claim)
        elif claim.key in self._by_key:
            self._forget_lost()  # the next attempt takes over the successes
        return attempt

    def begin(self, attempt: Attempt) -> Attempt:
        """Start an attempt in a task of its own."""
        loop, key = attempt.lease.loop, attempt.lease.key
        if loop is not self._loop:
            self._loop, self._timer, self._sending = loop, None, None
            self._forget_lost()
        elif key in self._by_key:
            self._forget_lost()
        if self._dependencies.unrecorded.watermarks and not self._waited_for():
            self._send_watermarks(loop)  # no running attempt will send the watermarks
        task = attempt.start(self._end)
        self._by_key[key] = self._by_task[task] = attempt
        if self._timer is None or len(self._by_task) == 1:
            self._start_timer(loop)
        return attempt

    def _start_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the timer, unless it still runs from earlier attempts."""
        if self._timer is not None:
            # This condition is false only if a test has moved the loop's clock back.
            if self._timer.when() <= loop.time() + _LONGEST_TICK_SECONDS:
                return
            self._timer.cancel()
        self._timer = loop.call_later(self._tick, self._on_timer)
        self.loop_monitor.start()

    def _end(self, attempt: Attempt) -> None:
        """Forget an attempt that has ended, and count its result."""
        self._forget(attempt)
        if attempt.has_succeeded:
            self.tally.handled += 1
        elif attempt.handling.has_begun:
            self.tally.failed += 1

    def _send_watermarks(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._sending is None or self._sending.done():
            self._sending = loop.create_task(send_watermarks(self._dependencies))

    async def wait_for(self, attempt: Attempt) -> Outcome:
        """Return the outcome of an attempt; if the wait is cancelled, release the event first."""
        try:
            while attempt.has_the_event:
                await attempt.answer.wait_until_final(None)
        except asyncio.CancelledError:
            attempt.stop()
            await asyncio.wait({attempt.task})
            if self._dependencies.unrecorded.watermarks:
                self._send_watermarks(attempt.lease.loop)
            raise
        return attempt.answer.outcome or later(Reason.SHUTTING_DOWN)

    def start_shutdown(self) -> None:
        """Begin no more attempts, and no handlers of an attempt that has no claim yet."""
        self.accepting = False
        for attempt in self._by_task.values():
            attempt.lease.stop_asking()

    async def wait_until_idle(self, seconds: float) -> bool:
        """Wait until no attempt is left; return False if ``seconds`` pass first."""
        await self._wait_for_all(seconds)
        return not self._by_task

    async def drain(self) -> None:
        """Wait for the attempts, then cancel the rest and release their events.

        The time is bounded: a task that ignores its cancellation is ended by force.
        """
        limits = self._dependencies.limits
        self._forget_lost()
        for task, attempt in self._by_task.items():
            if attempt.is_only_releasing:
                task.cancel()
        await self._wait_for_all(limits.drain_seconds)
        # Attempts whose handlers have ended only need to be recorded: let them finish.
        late = [attempt for attempt in self._waited_for().values() if attempt.is_busy]
        for attempt in late:
            attempt.stop()
        if late:
            _log.warning(
                "handlers still running after %g s: %d; their events are left to a retry",
                limits.drain_seconds,
                len(late),
            )
        await self._wait_for_all(2 * limits.store_seconds)
        for attempt in self._waited_for().values():
            attempt.give_up()
        if self._sending is not None and not self._sending.get_loop().is_closed():
            self._sending.cancel()

    async def _wait_for_all(self, seconds: float) -> None:
        """Wait until the attempts have ended, for at most ``seconds``; enforce their limits."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (tasks := self._waited_for()) and (remaining := end - loop.time()) > 0:
            await asyncio.wait(tasks, timeout=remaining)
            self._enforce_limits(loop.time())

    def _waited_for(self) -> dict[asyncio.Task[None], Attempt]:
        """Return the attempts that a shutdown still waits for."""
        return {task: attempt for task, attempt in self._by_task.items() if not attempt.is_given_up}

    def _forget(self, attempt: Attempt) -> None:
        task, key = attempt.task, attempt.lease.key
        del self._by_task[task]
        if self._by_key.get(key) is attempt:
            del self._by_key[key]

    def _forget_lost(self) -> None:
        """Forget attempts whose event loop was closed; keep their successes to record later."""
        lost = [attempt for task, attempt in self._by_task.items() if task.get_loop().is_closed()]
        for attempt in lost:
            if self._by_key.get(attempt.lease.key) is attempt:
                attempt.lease.leave_unrecorded()
            self._forget(attempt)

    def _on_timer(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self.loop_monitor.tick(now)
        self._enforce_limits(now)
        self.tally.sample(now)
        if self._by_task:
            self._timer = loop.call_later(self._tick, self._on_timer)
        else:
            self._timer = None
            self.loop_monitor.stop()

    def _enforce_limits(self, now: float) -> None:
        """Enforce the limits of each attempt; forget attempts whose tasks have ended."""
        for task, attempt in list(self._by_task.items()):
            if task.done():
                attempt.let_go()
                self._forget(attempt)
            else:
                attempt.enforce_limits(now)

    def _current_handler(self) -> str | None:
        """Return the async handler that the event loop is running; called from another thread."""
        if (task := asyncio.current_task(self._loop)) is None:
            return None
        try:
            for attempt in list(self._by_task.values()):
                for call in list(attempt.calls):
                    if call.task is task and call.started is not None and call.thread is None:
                        return call.name
        except RuntimeError:
            pass  # a collection has changed during this search, so the loop is not blocked
        return None
