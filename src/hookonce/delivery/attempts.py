"""The attempts in flight in this process, and the timer that enforces their time limits."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from ..logs import get_logger
from ..outcome import BROKEN, Outcome, Reason, later
from ..stores.values import Claimed, DeliveryKey
from ..watching.loop_monitor import LoopMonitor
from ..watching.workers import AttemptCounts, RunningHandler
from .attempt import ABANDONED, Attempt
from .dependencies import Dependencies
from .key_locks import send_watermarks

_log = get_logger("hookonce")

# Bounds of the timer's period, and how many periods fit into the shortest time limit.
_LONGEST_TICK_SECONDS, _SHORTEST_TICK_SECONDS = 0.05, 0.005
_TICKS_IN_A_LIMIT = 10

# The tally remembers the totals of slots of this length, for the last five minutes.
_SLOT_SECONDS = 10
_SLOTS = 30
_MINUTE_SECONDS = 60

# How many times to close a coroutine: each close ends only the innermost `await` of a clean-up.
_MOST_CLOSES = 20


class Tally:
    """Counts attempts that have ended since the start, and remembers the totals of five minutes."""

    def __init__(self) -> None:
        self.handled = self.failed = 0
        # Each slot of ten seconds: its number and the totals at its last sample.
        self._slots: deque[tuple[int, int, int]] = deque(maxlen=_SLOTS + 1)

    def sample(self, now: float) -> None:
        """Remember the totals of ``now``, in the event loop's time."""
        slots, number = self._slots, int(now // _SLOT_SECONDS)
        if slots and slots[-1][0] == number:
            slots.pop()
        slots.append((number, self.handled, self.failed))

    def last_minute(self, now: float) -> AttemptCounts:
        """Return the counts of the last minute, exact to ten seconds."""
        return self._since(now - _MINUTE_SECONDS)

    def last_five_minutes(self, now: float) -> AttemptCounts:
        """Return the counts of the last five minutes, exact to ten seconds."""
        return self._since(now - _SLOTS * _SLOT_SECONDS)

    def _since(self, start: float) -> AttemptCounts:
        handled = failed = 0
        for number, *totals in self._slots:
            if number <= start // _SLOT_SECONDS:
                handled, failed = totals
        return AttemptCounts(self.handled - handled, self.failed - failed)


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
        self._given_up: set[asyncio.Task[None]] = set()  # tasks that a shutdown has given up
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.loop_monitor = LoopMonitor(
            dependencies.endpoint, dependencies.observers, self._current_handler
        )
        self._sending: asyncio.Task[None] | None = None
        self.tally = Tally()
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
        return sorted(found, key=lambda one: one.seconds or 0.0, reverse=True)

    def find(self, key: DeliveryKey) -> Attempt | None:
        """Return the attempt in flight for an event in this process; None if there is none."""
        attempt = self._by_key.get(key)
        if attempt is not None and attempt.task.get_loop().is_closed():
            self._forget_lost()
            return None
        return attempt if attempt is not None and attempt.has_the_event else None

    def adopt(self, claim: Claimed) -> bool:
        """Hand a claim to the attempt in flight; return False if there is none."""
        attempt = self.find(claim.key)
        return attempt is not None and attempt.adopt(claim)

    def begin(self, attempt: Attempt) -> Attempt:
        """Start an attempt in a task of its own."""
        loop = attempt.lease.loop
        if loop is not self._loop:
            self._forget_lost()
            self._loop, self._timer, self._sending = loop, None, None
        if self._dependencies.unrecorded.watermarks and self._given_up.issuperset(self._by_task):
            self._send_watermarks(loop)  # no running attempt would send the watermarks
        task = attempt.start(self._go(attempt))
        self._by_key[attempt.key] = self._by_task[task] = attempt
        if self._timer is None or len(self._by_task) == 1:
            self._start_timer(loop)
        return attempt

    def _start_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the timer, unless it still runs from earlier attempts."""
        if self._timer is not None:
            # The timer is later than this only if a test has moved the loop's clock back.
            if self._timer.when() <= loop.time() + _LONGEST_TICK_SECONDS:
                return
            self._timer.cancel()
        self._timer = loop.call_later(self._tick, self._on_timer)
        self.loop_monitor.start()

    async def _go(self, attempt: Attempt) -> None:
        """Run an attempt to its end, and forget it."""
        try:
            await attempt.go()
        except asyncio.CancelledError:
            await attempt.stopped()
        except Exception as error:  # noqa: BLE001 - a request waits for an answer, whatever the error
            _log.error(
                "an attempt at %s broke off",
                attempt.key,
                exc_info=error,
                extra=attempt.lease.log_fields(),
            )
            attempt.answer.give(BROKEN)
        attempt.leave()
        self._forget(attempt)
        if attempt.has_succeeded:
            self.tally.handled += 1
        elif attempt.lease.has_begun:
            self.tally.failed += 1

    def _send_watermarks(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._sending is None or self._sending.done():
            self._sending = loop.create_task(send_watermarks(self._dependencies))

    async def outcome_of(self, attempt: Attempt) -> Outcome:
        """Wait for an attempt and return its outcome; if cancelled, release the event first."""
        try:
            while attempt.has_the_event:
                await attempt.answer.join(None)
        except asyncio.CancelledError:
            attempt.stop()
            await asyncio.wait({attempt.task})
            if self._dependencies.unrecorded.watermarks:
                self._send_watermarks(attempt.lease.loop)
            raise
        return attempt.answer.outcome or later(Reason.SHUTTING_DOWN)

    def refuse(self) -> None:
        """Begin no more attempts, and no handlers of an attempt that has no claim yet."""
        self.accepting = False
        for attempt in self._by_task.values():
            attempt.refuse()

    async def idle(self, seconds: float) -> bool:
        """Wait until no attempt is left; return False if ``seconds`` pass first."""
        await self._until_idle(seconds)
        return not self._by_task

    async def drain(self) -> None:
        """Wait for the attempts, then cancel the rest and release their events, in bounded time."""
        limits = self._dependencies.limits
        self._forget_lost()
        for task, attempt in self._by_task.items():
            if attempt.phase is ABANDONED:
                task.cancel()
        await self._until_idle(limits.drain_seconds)
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
        await self._until_idle(2 * limits.store_seconds)
        for task, attempt in self._waited_for().items():
            self._given_up.add(task)
            names = [call.name for call in attempt.calls]
            _log.error(
                "gave up waiting for %s, which is handling %s",
                ", ".join(names) or "the store",
                attempt.key,
                extra=attempt.lease.log_fields(names[0] if len(names) == 1 else None),
            )
            for waiting in (*(call.task for call in attempt.calls), task):
                if waiting is not None:
                    _end(waiting)
        if self._sending is not None and not self._sending.get_loop().is_closed():
            self._sending.cancel()

    async def _until_idle(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (tasks := self._waited_for()) and (remaining := end - loop.time()) > 0:
            await asyncio.wait(tasks, timeout=remaining)
            self._enforce_limits(loop.time())

    def _waited_for(self) -> dict[asyncio.Task[None], Attempt]:
        return {
            task: attempt for task, attempt in self._by_task.items() if task not in self._given_up
        }

    def _forget(self, attempt: Attempt) -> None:
        task = attempt.task
        del self._by_task[task]
        self._given_up.discard(task)
        if self._by_key.get(attempt.key) is attempt:
            del self._by_key[attempt.key]

    def _forget_lost(self) -> None:
        """Forget attempts whose event loop was closed; keep their successes to record later."""
        lost = [attempt for task, attempt in self._by_task.items() if task.get_loop().is_closed()]
        for attempt in lost:
            if self._by_key.get(attempt.key) is attempt:
                self._dependencies.unrecorded.successes[attempt.key] = attempt.lease.finished
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
                attempt.leave()
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
            pass  # the loop is not blocked: it has changed a collection during this search
        return None


def _end(task: asyncio.Task[Any]) -> None:
    """End a task that ignores its cancellation; otherwise the loop would never close."""
    task.cancel()
    if (coroutine := task.get_coro()) is None:
        return
    # The closed coroutine ends the task with an error. Read it, or asyncio would log it.
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    for _ in range(_MOST_CLOSES):
        try:
            coroutine.close()
        except BaseException as error:  # noqa: BLE001 - the handler may raise anything
            _log.debug("the handler resists its end", exc_info=error)
        else:
            return
