"""The service's time, and the work that is planned for later.

Time either stands still until a caller moves it (``advance_to`` then does all due work in order),
or passes by itself at any speed (``flow``).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from ..clock import Clock, span_seconds, system_clock, unix_seconds
from ..errors import shows_half_built

# The largest number of pieces of work that run at the same time. The limit of the real service is
# not documented.
_MOST_AT_ONCE = 100


@shows_half_built
class VirtualClock:
    """A clock that moves only when a caller moves it; gives Unix time in seconds.

    Give the same clock to a receiver (``Receiver(clock=…)``) and to the service that delivers to
    it, so that both have the same time.

    Args:
        start: an aware ``datetime`` or Unix seconds; now by default.
    """

    def __init__(self, start: float | datetime | None = None) -> None:
        self._now = system_clock() if start is None else unix_seconds("start", start)

    def __call__(self) -> float:
        """Return the Unix time in seconds."""
        return self._now

    def __repr__(self) -> str:
        return f"VirtualClock({self._now!r})"

    def tick(self, delta: float | timedelta) -> None:
        """Move the clock forward by seconds or a ``timedelta``; ValueError for a step back."""
        self._now += span_seconds("delta", delta)


@runtime_checkable
class FrozenTime(Protocol):
    """A clock that can be moved: a ``VirtualClock``, or the object that ``freeze_time`` returns."""

    def tick(self, delta: timedelta) -> object:
        """Move the clock forward."""
        ...


TimeSource: TypeAlias = Clock | FrozenTime
"""A function that returns Unix seconds, or a clock that the service may move."""


class ServiceTime:
    """The time by which the service plans its work, and the time in its signatures.

    The two times are equal until the schedule skips time, which happens only if the source cannot
    be moved. After that, signatures keep the source's time, which receivers check, and only the
    schedule is ahead.

    Args:
        speed: how many times shorter the service's waits are. Moments stay those of the source.
    """

    def __init__(self, source: TimeSource, speed: float = 1.0) -> None:
        self._movable = source if isinstance(source, FrozenTime) else None
        # freezegun's object is not a clock. It freezes the system's clock, so read the system's
        # clock.
        is_clock = isinstance(source, VirtualClock) or self._movable is None
        self._clock: Clock = source if is_clock else system_clock  # type: ignore[assignment] # a clock that is not a FrozenTime is a Clock
        self._speed = speed
        self._skipped = 0.0

    def signing(self) -> float:
        """Return the Unix time of signatures and of ``createdAt``."""
        return self._clock()

    def now(self) -> float:
        """Return the current Unix time by which the service plans its work."""
        return self._clock() + self._skipped

    def span(self, seconds: float) -> float:
        """Return how many seconds a wait takes at the service's speed."""
        return seconds / self._speed

    def move_to(self, moment: float) -> None:
        """Move the schedule forward to a moment; a moment in the past changes nothing."""
        seconds = moment - self.now()
        if seconds <= 0:
            return
        if self._movable is not None:
            self._movable.tick(timedelta(seconds=seconds + self._skipped))
            self._skipped = 0.0
        # Add the seconds that are still missing: a movable clock may have rounded the step, and any
        # other clock has not moved at all.
        self._skipped += max(0.0, moment - self.now())


Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class _Due(NamedTuple):
    moment: float
    number: int
    owner: str
    work: Work


class Timeline:
    """Planned work, which runs in the order of its planned times."""

    def __init__(self, time: ServiceTime) -> None:
        self._time = time
        self._due: list[_Due] = []
        self._count = 0
        self._advancing = asyncio.Lock()
        self._changed = asyncio.Event()
        self._under_way: set[asyncio.Task[None]] = set()
        self._is_flowing = False

    @property
    def now(self) -> float:
        """The current Unix time by which the service plans its work."""
        return self._time.now()

    def span(self, seconds: float) -> float:
        """Return how many seconds a wait takes at the service's speed."""
        return self._time.span(seconds)

    async def sleep(self, seconds: float) -> None:
        """Sleep for a wait at the service's speed; return at once if time stands still."""
        if self._is_flowing:
            await asyncio.sleep(self.span(seconds))

    @property
    def next_due(self) -> float | None:
        """The time at which the next work is due; None if nothing is planned."""
        return self._due[0].moment if self._due else None

    @property
    def is_idle(self) -> bool:
        """True if no work is planned or running."""
        return not (self._due or self._under_way)

    def at(self, moment: float, owner: str, work: Work) -> None:
        """Plan work for a point in time.

        Work for the same moment runs in the order in which it was planned.

        Args:
            moment: Unix seconds in the service's time.
            owner: the name for ``forget`` and ``do_due``.
        """
        self._count += 1
        heapq.heappush(self._due, _Due(moment, self._count, owner, work))
        self._changed.set()

    async def do_due(self, owners: Collection[str]) -> None:
        """Run the due work of these owners; do nothing if time passes by itself.

        Planned work may call this: a handler that receives a delivery can make the service emit
        another event.
        """
        if self._is_flowing:
            return
        now = self._time.now()
        mine = sorted(due for due in self._due if due.owner in owners and due.moment <= now)
        self._due = [due for due in self._due if due not in mine]
        heapq.heapify(self._due)
        for due in mine:
            await due.work()

    def forget(self, owners: Collection[str]) -> None:
        """Cancel the planned work of these owners."""
        self._due = [due for due in self._due if due.owner not in owners]
        heapq.heapify(self._due)
        self._changed.set()

    async def advance_to(self, moment: float) -> None:
        """Move time forward to a moment, and run all work that is due until then, in order.

        Raises:
            RuntimeError: time passes by itself.
        """
        if self._is_flowing:
            raise RuntimeError(
                "this service has a speed, so its time passes by itself; wait with `settle`"
            )
        async with self._advancing:
            while self._due and self._due[0].moment <= moment:
                due = heapq.heappop(self._due)
                self._time.move_to(due.moment)
                await due.work()
            self._time.move_to(moment)

    @asynccontextmanager
    async def flow(self) -> AsyncIterator[None]:
        """Let time pass by itself in the block; at the end of the block, cancel running work."""
        self._is_flowing = True
        flowing = asyncio.get_running_loop().create_task(self._flow())
        try:
            yield
        finally:
            self._is_flowing = False
            for task in (tasks := {flowing, *self._under_way}):
                task.cancel()
            await asyncio.wait(tasks)

    async def settled(self) -> None:
        """Wait until no work is planned or running."""
        while not self.is_idle:
            self._changed.clear()
            await self._changed.wait()

    async def _flow(self) -> None:
        slots = asyncio.Semaphore(_MOST_AT_ONCE)
        while True:
            await slots.acquire()  # wait before reading `_due`, which may change during the wait
            self._changed.clear()
            wait = None
            if self._due:
                wait = self._due[0].moment - self._time.now()
            if wait is not None and wait <= 0:
                self._begin(heapq.heappop(self._due).work, slots)
                continue
            slots.release()
            # In Python 3.11 `wait_for` notices the event one loop turn later; `settled` may have
            # cleared the event by then.
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()

    def _begin(self, work: Work, slots: asyncio.Semaphore) -> None:
        task = asyncio.get_running_loop().create_task(work())
        self._under_way.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._under_way.discard(task)
            slots.release()
            self._changed.set()
            if not task.cancelled():
                # Raise the error of failed work here, so that the event loop reports the error.
                task.result()

        task.add_done_callback(ended)
