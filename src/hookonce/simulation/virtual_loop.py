"""An event loop in virtual time: it skips waits in which nothing can happen.

``asyncio.sleep(3600)`` returns at once, so a simulation of a day of retries takes seconds. So that
the speed of the machine does not change results, virtual time stands still while the loop computes,
and while it waits in a block of ``outside`` for a store's thread or server. In a block of
``real_time``, the user's code runs: a short call takes no virtual time beyond its own timers. After
a few seconds, virtual time catches up with the real duration of the call. A call that blocks the
loop for seconds takes its real duration too.
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


# An answer within this real time takes no virtual time. After it, virtual time passes, so that the
# time limit of a call to an unreachable store can end.
_PATIENCE_SECONDS = 5.0
# The loop itself never computes this long without a pause, even on a busy machine. A callback that
# takes longer blocks the loop, and its real duration counts.
_BLOCKING_SECONDS = 3.0


class _Block:
    """A block of ``real_time`` that has started and not ended.

    Attributes:
        is_in_thread: whether a thread runs its code, so that it waits for no timer of the loop.
        real_start: its start on the machine's monotonic clock.
        virtual_start: its start in the loop's time.
        is_long: whether virtual time passes for it as fast as real time.
    """

    __slots__ = ("is_in_thread", "is_long", "real_start", "virtual_start")

    def __init__(self, now: float, *, is_in_thread: bool) -> None:
        self.real_start = time.monotonic()
        self.virtual_start = now
        self.is_in_thread = is_in_thread
        self.is_long = False


class _SkippingSelector(selectors.BaseSelector):
    """A selector that skips waits in which nothing can happen, and adds them to virtual time.

    Attributes:
        outside: the number of ``outside`` blocks that have started and not ended.
    """

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self._passed = 0.0
        self._blocks: dict[_Block, None] = {}  # oldest first
        self._long_blocks = 0
        self._real_since = 0.0
        self._woken_at = time.monotonic()
        self.outside = 0

    def now(self) -> float:
        """Return the virtual seconds since the start."""
        if self._long_blocks:
            return self._passed + time.monotonic() - self._real_since
        return self._passed

    def begin(self, *, is_in_thread: bool) -> _Block:
        """Start a block of ``real_time``; blocks may overlap."""
        block = _Block(self.now(), is_in_thread=is_in_thread)
        self._blocks[block] = None
        return block

    def end(self, block: _Block) -> None:
        """End a block of ``real_time``."""
        self._catch_up()
        del self._blocks[block]
        if block.is_long:
            self._passed, self._real_since = self.now(), time.monotonic()
            self._woken_at = self._real_since  # the time until now is in `_passed` already
            self._long_blocks -= 1

    def _catch_up(self) -> None:
        """Add the real duration of blocks that have become long, and let time pass for them."""
        real_now = time.monotonic()
        for block in self._blocks:
            took = real_now - block.real_start
            if took < _PATIENCE_SECONDS:
                return
            if not block.is_long:
                now = self.now()
                self._passed = now + max(0.0, took - (now - block.virtual_start))
                self._real_since = real_now
                self._long_blocks += 1
                block.is_long = True

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
        if computed > _BLOCKING_SECONDS and not self._long_blocks:
            self._passed += computed
        try:
            return self._wait(timeout)
        finally:
            self._catch_up()
            self._woken_at = time.monotonic()

    def _wait(self, timeout: float | None) -> list[tuple[SelectorKey, int]]:
        # Events that are ready come before any timer. A thread or a signal handler that wakes the
        # loop writes to a socket that is registered here, so it ends a real wait too.
        ready = self._real.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None or self._long_blocks:
            return self._real.select(timeout)
        if self.outside:
            ready = self._real.select(_PATIENCE_SECONDS)
            if ready:
                return ready
        elif self._blocks:
            oldest = next(iter(self._blocks))
            left = oldest.real_start + _PATIENCE_SECONDS - time.monotonic()
            # An async function may wait for this timer or for something outside: wait really, but
            # no longer than the timer.
            is_threads_only = all(block.is_in_thread for block in self._blocks)
            ready = self._real.select(max(0.0, left if is_threads_only else min(timeout, left)))
            if ready or is_threads_only or left < timeout:
                return ready
        self._passed += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that skips to its next timer, unless it waits for work outside the loop."""

    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)
        self._started_at = time.time()

    def time(self) -> float:
        """Return the virtual seconds since the loop's creation."""
        return self._skipping.now()

    def unix_clock(self) -> float:
        """Return the virtual Unix time in seconds; any thread may call this."""
        return self._started_at + self.time()

    async def shutdown_default_executor(self, *timeout: Any) -> None:
        """Wait in real time for the threads of the loop's executor.

        Args:
            timeout: the time limit in seconds, from Python 3.12 on.
        """
        with self.real_time(is_in_thread=True):
            await super().shutdown_default_executor(*timeout)

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Stop virtual time during a block that waits for a thread, a socket or another process.

        If an answer takes longer than five real seconds, virtual time passes again, so that time
        limits can end. Use it only in the loop's thread. Blocks may overlap and nest.
        """
        self._skipping.outside += 1
        try:
            yield
        finally:
            self._skipping.outside -= 1

    @contextmanager
    def real_time(self, *, is_in_thread: bool = False) -> Iterator[None]:
        """Let virtual time pass as fast as real time, if the block takes longer than five seconds.

        A shorter block takes only the virtual time of the timers that it waits for; in a thread it
        takes none. Use it only in the loop's thread. Blocks may overlap and nest.

        Args:
            is_in_thread: whether the block waits only for a thread, and for no timer of the loop.
        """
        block = self._skipping.begin(is_in_thread=is_in_thread)
        try:
            yield
        finally:
            self._skipping.end(block)


def is_in_event_loop() -> bool:
    """Return whether an event loop is running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run_virtually(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run ``main`` in a new virtual loop and return its result, as ``asyncio.run`` does."""
    loop = VirtualLoop()

    async def run() -> T:  # calls `main` inside the loop, even if `main` is not an async function
        return await main(loop)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(run())
