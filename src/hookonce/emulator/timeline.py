"""Time as the service sees it, and what is due when.

Time either moves only when it is told to (``advance_to``: what is due is done one after the other,
in order, however far apart it lies) or flows by itself, at any speed (``flow``).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from ..clock import Clock, system_clock
from ..errors import shows_half_built

# So many deliveries are under way at once; the service's own number is not documented.
_MOST_AT_ONCE = 100


@shows_half_built
class VirtualClock:
    """Unix time in seconds that moves only when it is told to.

    Give one to a receiver (``Receiver(clock=…)``) and to the service that delivers to it, and both
    live in the same time.

    Args:
        start: Unix time in seconds; now by default.

    """

    def __init__(self, start: float | None = None) -> None:
        self._now = system_clock() if start is None else start

    def __call__(self) -> float:
        """Return the Unix time in seconds."""
        return self._now

    def __repr__(self) -> str:
        return f"VirtualClock({self._now!r})"

    def tick(self, delta: timedelta) -> None:
        """Move on; ValueError for a step back."""
        if delta < timedelta():
            raise ValueError("time does not run backwards here")
        self._now += delta.total_seconds()


@runtime_checkable
class FrozenTime(Protocol):
    """Time that can be moved: a ``VirtualClock``, or what freezegun's ``freeze_time`` gives."""

    def tick(self, delta: timedelta) -> object:
        """Move on."""
        ...


TimeSource: TypeAlias = Clock | FrozenTime


class ServiceTime:
    """What time it is for the service, and by which clock it signs.

    Both are the same where the source can be moved, or while nothing is skipped. Otherwise
    deliveries are signed by the source, since receivers go by it, and the service's schedule
    alone is ahead of it.

    Args:
        source: a clock, or time that can be moved.
        speed: how many seconds pass for the service while one passes for the source.

    """

    def __init__(self, source: TimeSource, speed: float = 1.0) -> None:
        self._movable = source if isinstance(source, FrozenTime) else None
        # freezegun's object gives a datetime; the system's clock is frozen by it anyway.
        is_clock = isinstance(source, VirtualClock) or self._movable is None
        self._clock: Clock = source if is_clock else system_clock  # type: ignore[assignment] # what is no FrozenTime is a Clock
        self.speed = speed
        self._started = self._clock()
        self._skipped = 0.0

    def signing(self) -> float:
        """Return the Unix time by which deliveries are signed and dated."""
        return self._clock()

    def now(self) -> float:
        """Return the Unix time of the service's schedule."""
        clock = self._clock()
        return clock + self._skipped + (clock - self._started) * (self.speed - 1)

    def move_to(self, moment: float) -> None:
        """Let it be that time, unless it is later already."""
        seconds = moment - self.now()
        if seconds <= 0:
            return
        if self._movable is not None:
            self._movable.tick(timedelta(seconds=seconds + self._skipped))
            self._skipped = 0.0
        # What a clock that counts microseconds has cut off (until the next move), or all of it.
        self._skipped += max(0.0, moment - self.now())


Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class _Due(NamedTuple):
    moment: float
    number: int
    owner: str
    work: Work


class Timeline:
    """What is due when, done in order.

    Args:
        time: what time it is.

    """

    def __init__(self, time: ServiceTime) -> None:
        self._time = time
        self._due: list[_Due] = []
        self._count = 0
        self._advancing = asyncio.Lock()
        self._news = asyncio.Event()
        self._under_way: set[asyncio.Task[None]] = set()
        self._is_flowing = False

    @property
    def next_due(self) -> float | None:
        """When the next thing is due, or None if nothing is."""
        return self._due[0].moment if self._due else None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is due any more, now or later, and nothing is under way."""
        return not (self._due or self._under_way)

    def at(self, moment: float, owner: str, work: Work) -> None:
        """Have something done at that time, after everything else that was planned for it.

        Args:
            moment: Unix seconds in the service's time.
            owner: by what name it can be forgotten.
            work: what to do.

        """
        self._count += 1
        heapq.heappush(self._due, _Due(moment, self._count, owner, work))
        self._news.set()

    async def do_due(self, owners: Collection[str]) -> None:
        """Do what is due now for these owners alone, where time does not flow by itself.

        It may be called from within something that is being done: by a handler that, while it is
        delivered to, makes the service emit another event.
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
        """Do nothing any more of what was planned for these owners."""
        self._due = [due for due in self._due if due.owner not in owners]
        heapq.heapify(self._due)
        self._news.set()

    async def advance_to(self, moment: float) -> None:
        """Do all that is due until then, in order, and let it be that time.

        Raises:
            RuntimeError: time flows by itself.

        """
        if self._is_flowing:
            raise RuntimeError("time flows by itself at this service; wait with `settle`")
        async with self._advancing:
            while self._due and self._due[0].moment <= moment:
                due = heapq.heappop(self._due)
                self._time.move_to(due.moment)
                await due.work()
            self._time.move_to(moment)

    @asynccontextmanager
    async def flow(self) -> AsyncIterator[None]:
        """Let time flow while the block lasts; at its end, break off what is under way."""
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
        """Return when nothing is due any more and nothing is under way."""
        while not self.is_idle:
            self._news.clear()
            await self._news.wait()

    async def _flow(self) -> None:
        room = asyncio.Semaphore(_MOST_AT_ONCE)
        while True:
            await room.acquire()  # first of all: what is due may change while there is no room
            self._news.clear()
            wait = None
            if self._due:
                wait = (self._due[0].moment - self._time.now()) / self._time.speed
            if wait is not None and wait <= 0:
                self._begin(heapq.heappop(self._due).work, room)
                continue
            room.release()
            # Not `wait_for`: in Python 3.11 it looks at the news one turn of the loop later, and
            # `settled` may have cleared them by then.
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._news.wait()

    def _begin(self, work: Work, room: asyncio.Semaphore) -> None:
        task = asyncio.get_running_loop().create_task(work())
        self._under_way.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._under_way.discard(task)
            room.release()
            self._news.set()
            if not task.cancelled():
                task.result()  # nothing of it is expected to raise; the loop reports it

        task.add_done_callback(ended)
