"""An event loop whose time skips the stretches in which nothing happens.

``asyncio.sleep(3600)`` takes no real time, so that a day of retries can be rehearsed in seconds.
Time stands still while the loop itself computes, and while somebody outside of it, a store's
thread or server, is waited for (``outside``), so that the speed of a machine changes nothing. It
passes as on the wall only where real time is what counts: in ``real_time``, where a user's own code
runs, and where somebody blocks the loop or keeps it waiting for seconds.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from selectors import SelectorKey
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

__all__ = ["VirtualLoop", "run_virtually"]

T = TypeVar("T")


# A store that answers by then has answered at once. One that does not is away, and whoever waits
# for it must come to the end of a time limit.
_PATIENCE_SECONDS = 5.0
# Longer than the loop computes at a stretch by itself; a call that blocks it as long is at fault.
_BLOCKING_SECONDS = 1.0


class _SkippingSelector(selectors.BaseSelector):
    """Waits for files as another selector does, and skips waits in which nothing can happen.

    Attributes:
        outside: how many wait for somebody outside the loop.

    """

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self._passed = 0.0
        self._in_real_time = 0
        self._real_since = 0.0
        self._woken_at = time.monotonic()
        self.outside = 0

    def now(self) -> float:
        """Return how many seconds have passed."""
        if self._in_real_time:
            return self._passed + time.monotonic() - self._real_since
        return self._passed

    def enter_real_time(self) -> None:
        """Let time pass as on the wall; calls may overlap."""
        if not self._in_real_time:
            self._real_since = time.monotonic()
        self._in_real_time += 1

    def leave_real_time(self) -> None:
        """Undo ``enter_real_time``."""
        self._passed, self._real_since = self.now(), time.monotonic()
        self._in_real_time -= 1

    def register(
        self, fileobj: FileDescriptorLike, events: int, data: object = None
    ) -> SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: FileDescriptorLike) -> SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: FileDescriptorLike, events: int, data: object = None) -> SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[FileDescriptorLike, SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        computed = time.monotonic() - self._woken_at
        if computed > _BLOCKING_SECONDS and not self._in_real_time:
            self._passed += computed
        try:
            return self._wait(timeout)
        finally:
            self._woken_at = time.monotonic()

    def _wait(self, timeout: float | None) -> list[tuple[SelectorKey, int]]:
        # What has happened already comes before any timer. A thread or a signal that calls into the
        # loop writes to a pipe that is registered here, so it ends a real wait too.
        ready = self._real.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None or self._in_real_time:
            return self._real.select(timeout)
        if self.outside:
            ready = self._real.select(_PATIENCE_SECONDS)
            if ready:
                return ready
        self._passed += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that does not wait for its timers, unless somebody is at work outside it."""

    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)
        self._started_at = time.time()

    def time(self) -> float:
        """Return the loop's time in seconds from its start."""
        return self._skipping.now()

    def unix_clock(self) -> float:
        """Return the Unix time at the loop's start plus the loop's time; from any thread."""
        return self._started_at + self.time()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Let no time pass while the block lasts: it awaits a thread, a socket or another process.

        For the loop's own thread. Blocks may overlap and nest.
        """
        self._skipping.outside += 1
        try:
            yield
        finally:
            self._skipping.outside -= 1

    @contextmanager
    def real_time(self) -> Iterator[None]:
        """Let time pass as on the wall while the block lasts, for whatever else runs too.

        For the loop's own thread. Blocks may overlap and nest.
        """
        self._skipping.enter_real_time()
        try:
            yield
        finally:
            self._skipping.leave_real_time()


def run_virtually(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Return what ``main`` returns, run in a virtual loop of its own, as ``asyncio.run`` does."""
    loop = VirtualLoop()
    runner = asyncio.Runner(loop_factory=lambda: loop)

    async def run() -> T:  # what `main` raises before its first await is raised inside, too
        return await main(loop)

    try:
        return runner.run(run())
    finally:
        # The end waits for threads of the loop, with a time limit in newer versions of Python.
        with loop.real_time():
            runner.close()
