"""An event loop whose time skips the stretches in which nothing happens.

``asyncio.sleep(3600)`` takes no real time, so that a day of retries can be rehearsed in seconds.
What happens outside the loop, on a thread or a socket, takes real time and cannot be hurried: while
somebody has said so (``outside``), time passes as it does on the wall. So no time limit ends early
because of a skip.
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


class _SkippingSelector(selectors.BaseSelector):
    """Waits for files as another selector does, and skips waits in which nothing can happen.

    Attributes:
        skipped: how many seconds have been skipped so far.
        outside: how many are at work outside the loop, whose results come in real time.

    """

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.skipped = 0.0
        self.outside = 0

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
        # What has happened already comes before any timer. A thread or a signal that calls into the
        # loop writes to a pipe that is registered here, so it ends a real wait too.
        ready = self._real.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None or self.outside:
            return self._real.select(timeout)
        self.skipped += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that does not wait for its timers, unless somebody is at work outside it."""

    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)
        self._started_at = time.time()
        self._start = self.time()

    def time(self) -> float:
        """Return the loop's time in seconds: what has really passed, and what was skipped."""
        return super().time() + self._skipping.skipped

    def unix_clock(self) -> float:
        """Return the Unix time at the loop's start plus the loop's time since; from any thread."""
        return self._started_at + self.time() - self._start

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Skip no time while the block lasts: it awaits a thread, a socket or another process.

        For the loop's own thread. Blocks may overlap and nest.
        """
        self._skipping.outside += 1
        try:
            yield
        finally:
            self._skipping.outside -= 1


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
        with loop.outside():
            runner.close()
