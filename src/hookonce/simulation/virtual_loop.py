"""An event loop whose time skips the stretches in which nothing happens.

``asyncio.sleep(3600)`` takes no real time, so that a day of retries can be simulated in seconds.
Time stands still while the loop itself computes, and while somebody outside of it, a store's
thread or server, is waited for (``outside``), so that the speed of a machine changes nothing. A
user's own code (``real_time``) is given some seconds too: a rush of short calls takes hardly any
time, however slow the machine is at it. One that takes longer has taken all the time that it took
on the wall, and so has whoever blocks the loop for as long.
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


T = TypeVar("T")


# A store that answers by then has answered at once. One that does not is away, and whoever waits
# for it must come to the end of a time limit.
_PATIENCE_SECONDS = 5.0
# Longer than the loop computes at a stretch by itself, even on a busy machine; a call that blocks
# it as long is at fault.
_BLOCKING_SECONDS = 3.0


class _Call:
    """A call of somebody's own code that is under way.

    Attributes:
        is_in_thread: whether a thread runs it, so that no timer of the loop's can be its own.
        began: when it began, by the machine's clock.
        began_virtually: when it began, in the loop's time.
        is_long: whether time passes for it as on the wall.

    """

    __slots__ = ("began", "began_virtually", "is_in_thread", "is_long")

    def __init__(self, now: float, *, is_in_thread: bool) -> None:
        self.began = time.monotonic()
        self.began_virtually = now
        self.is_in_thread = is_in_thread
        self.is_long = False


class _SkippingSelector(selectors.BaseSelector):
    """Waits for files as another selector does, and skips waits in which nothing can happen.

    Attributes:
        outside: how many wait for somebody outside the loop.

    """

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self._passed = 0.0
        self._calls: dict[_Call, None] = {}  # the oldest first
        self._long = 0
        self._real_since = 0.0
        self._woken_at = time.monotonic()
        self.outside = 0

    def now(self) -> float:
        """Return how many seconds have passed."""
        if self._long:
            return self._passed + time.monotonic() - self._real_since
        return self._passed

    def begin(self, *, is_in_thread: bool) -> _Call:
        """Note that somebody's own code is called; calls may overlap."""
        call = _Call(self.now(), is_in_thread=is_in_thread)
        self._calls[call] = None
        return call

    def end(self, call: _Call) -> None:
        """Note that a call has ended."""
        self._lose_patience()
        del self._calls[call]
        if call.is_long:
            self._passed, self._real_since = self.now(), time.monotonic()
            self._woken_at = self._real_since  # what was computed until now is counted
            self._long -= 1

    def _lose_patience(self) -> None:
        """Let calls that take long have taken the time that they took on the wall."""
        real_now = time.monotonic()
        for call in self._calls:
            took = real_now - call.began
            if took < _PATIENCE_SECONDS:
                return
            if not call.is_long:
                now = self.now()
                self._passed = now + max(0.0, took - (now - call.began_virtually))
                self._real_since = real_now
                self._long += 1
                call.is_long = True

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
        if computed > _BLOCKING_SECONDS and not self._long:
            self._passed += computed
        try:
            return self._wait(timeout)
        finally:
            self._lose_patience()
            self._woken_at = time.monotonic()

    def _wait(self, timeout: float | None) -> list[tuple[SelectorKey, int]]:
        # What has happened already comes before any timer. A thread or a signal that calls into the
        # loop writes to a pipe that is registered here, so it ends a real wait too.
        ready = self._real.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None or self._long:
            return self._real.select(timeout)
        if self.outside:
            ready = self._real.select(_PATIENCE_SECONDS)
            if ready:
                return ready
        elif self._calls:
            left = next(iter(self._calls)).began + _PATIENCE_SECONDS - time.monotonic()
            # An async function may wait for the timer; it waits as long for something else.
            is_threads_only = all(call.is_in_thread for call in self._calls)
            ready = self._real.select(max(0.0, left if is_threads_only else min(timeout, left)))
            if ready or is_threads_only or left < timeout:
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

    async def shutdown_default_executor(self, *timeout: Any) -> None:
        """Wait for the loop's own threads: from Python 3.12 on with a time limit, which is real."""
        with self.real_time(is_in_thread=True):
            await super().shutdown_default_executor(*timeout)

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
    def real_time(self, *, is_in_thread: bool = False) -> Iterator[None]:
        """Let time pass as on the wall if the block lasts long, for whatever else runs too.

        A block that ends within seconds takes no more time than there was to wait in it, and none
        at all in a thread. For the loop's own thread. Blocks may overlap and nest.

        Args:
            is_in_thread: whether the block only awaits a thread, and no timer of the loop's.

        """
        call = self._skipping.begin(is_in_thread=is_in_thread)
        try:
            yield
        finally:
            self._skipping.end(call)


def run_virtually(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Return what ``main`` returns, run in a virtual loop of its own, as ``asyncio.run`` does."""
    loop = VirtualLoop()

    async def run() -> T:  # what `main` raises before its first await is raised inside, too
        return await main(loop)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(run())
