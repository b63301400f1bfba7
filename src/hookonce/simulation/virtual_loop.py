"""An event loop in virtual time, which moves its clock to the next timer instead of waiting.

``asyncio.sleep(3600)`` returns at once, so a simulation of a day of retries takes seconds. The
speed of the machine must not change results. So virtual time stands still while the loop computes,
and while a block of ``outside`` waits for a thread, a socket or another process. Blocks whose work
has ended wait for the other blocks, and then continue in the order in which they began, so that the
order of the answers makes no difference.

The loop cannot see what a block waits for: an idle connection looks like a busy connection. But the
loop sees that a block sleeps, and then lets virtual time pass. A block that takes longer than a few
seconds takes its real duration in virtual time, and so does a call that blocks the loop.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import Context, ContextVar, Token
from operator import itemgetter
from selectors import SelectorKey
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, cast

from ..clock import Clock

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike


T = TypeVar("T")
Ts = TypeVarTuple("Ts")


# A wait for a thread or socket takes no virtual time. But if it lasts longer than this in real
# time, virtual time passes too, so that calls to an unreachable store can time out.
_PATIENCE_SECONDS = 5.0
# A callback that takes this long has blocked the loop, so virtual time passes too. The loop's own
# work never takes this long, even on a busy machine.
_BLOCKING_SECONDS = 3.0
# Wait this long for real events before time skips to the end of a handler's sleep: another task of
# the handler may wait for a real answer.
_QUIET_SECONDS = 0.02


class _Block:
    """An ``async with`` block of ``VirtualLoop.outside``.

    Args:
        selector: knows all blocks of the loop.
        runs_handler: whether the block may wait for another handler that sleeps.

    Attributes:
        real_start: the block's start, or the end of its last sleep, on the machine's monotonic
            clock.
        virtual_start: the same moment in the loop's time.
        is_long: whether virtual time passes as fast as real time because of this block.
    """

    def __init__(self, selector: _SkippingSelector, *, runs_handler: bool) -> None:
        self._selector = selector
        self.runs_handler = runs_handler
        self.is_long = False
        self._sleeps: list[asyncio.TimerHandle] = []

    async def __aenter__(self) -> None:
        self._number = self._selector.begin(self)
        self._turn = self._selector.turn
        self._token: Token[_Block | None] = _current_block.set(self)
        self.start()

    def start(self) -> None:
        """Begin to measure the block's duration now."""
        self.real_start = time.monotonic()
        self.virtual_start = self._selector.now()

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        _current_block.reset(self._token)
        self._selector.end(self)
        has_waited = self._turn != self._selector.turn
        if has_waited and (error is None or isinstance(error, Exception)):
            await self._selector.others_end(self._number)

    def add_sleep(self, timer: asyncio.TimerHandle) -> None:
        """Remember the timer of a sleep in this block."""
        self._sleeps.append(timer)

    def sleeps(self) -> bool:
        """Return whether a task of this block sleeps; after the last sleep, call ``start``."""
        if not self._sleeps:
            return False
        now = self._selector.now()
        self._sleeps = [t for t in self._sleeps if t.when() > now and not t.cancelled()]
        if not self._sleeps:
            self.start()
        return bool(self._sleeps)


# Holds the block of the current task. A task that starts in a block inherits this variable.
_current_block: ContextVar[_Block | None] = ContextVar("_current_block", default=None)


class _SkippingSelector(selectors.BaseSelector):
    """A selector that advances virtual time instead of waiting, if no real event can come.

    Attributes:
        turn: the number of calls of ``select``.
    """

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self._passed = 0.0
        self._blocks: dict[_Block, None] = {}
        self._begun = 0
        self._ended: list[tuple[int, asyncio.Future[None]]] = []
        self._long_blocks = 0
        self._real_since = 0.0
        self._woken_at = time.monotonic()
        self.turn = 0

    def now(self) -> float:
        """Return the virtual seconds since the start."""
        if self._long_blocks:
            return self._passed + time.monotonic() - self._real_since
        return self._passed

    def begin_second(self) -> None:
        """Move the clock to the next whole second."""
        self._passed = float(math.ceil(self._passed))

    def begin(self, block: _Block) -> int:
        """Add a block, and return its number."""
        self._blocks[block] = None
        self._begun += 1
        return self._begun

    def end(self, block: _Block) -> None:
        """Remove a block when its code has ended."""
        self._catch_up()
        del self._blocks[block]
        if block.is_long:
            self._passed, self._real_since = self.now(), time.monotonic()
            # `_passed` already includes the time until now: measure from now on.
            self._woken_at = self._real_since
            self._long_blocks -= 1

    async def others_end(self, number: int) -> None:
        """Wait until every ``outside`` block has ended; the lowest ``number`` continues first."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended.append((number, ended))
        await ended

    def _catch_up(self) -> None:
        """Mark each long block, and add the real time since the block's start to virtual time."""
        real_now = time.monotonic()
        for block in self._blocks:
            if block.is_long or block.sleeps():  # after a sleep, this call sets `real_start` to now
                continue
            took = real_now - block.real_start
            if took >= _PATIENCE_SECONDS:
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
        self.turn += 1
        computed = time.monotonic() - self._woken_at
        if computed > _BLOCKING_SECONDS and not self._long_blocks:
            self._passed += computed
        try:
            return self._wait(timeout)
        finally:
            self._catch_up()
            self._woken_at = time.monotonic()

    def _wait(self, timeout: float | None) -> list[tuple[SelectorKey, int]]:
        # Handle real events before any timer. Threads and signals also wake the loop by a real
        # event: they write to a socket that is registered here.
        ready = self._real.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        asleep = {block for block in self._blocks if block.sleeps()}
        awake = [block for block in self._blocks if not block.is_long and block not in asleep]
        patience = _QUIET_SECONDS
        if awake:
            oldest = min(block.real_start for block in awake)
            patience = max(0.0, oldest + _PATIENCE_SECONDS - time.monotonic())
            if not asleep or not all(block.runs_handler for block in awake):
                return self._real.select(patience)
        if self._ended:
            for _, ended in sorted(self._ended, key=itemgetter(0)):
                if not ended.done():  # the future may have been cancelled
                    ended.set_result(None)
            self._ended.clear()
            return []
        if timeout is None or self._long_blocks:
            return self._real.select(timeout)
        if asleep:
            # Another handler may wait for the sleeping handler or for a real event: let virtual
            # time pass as fast as real time.
            ready = self._real.select(min(timeout, patience))
            if ready or (awake and patience < timeout):
                return ready
        self._passed += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that skips to its next timer if it waits for no thread or socket.

    Attributes:
        unix_clock: returns the virtual Unix time in seconds; any thread may call it. It is always
            the same object: stores in one SQLite file share a writer, which keeps their calls in
            order, only if they have the same clock.
    """

    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)
        # Round to a whole number, so that the same seed gives the same fractions of seconds.
        self._started_at = int(time.time())
        self.unix_clock: Clock = self._unix_seconds

    def time(self) -> float:
        """Return the virtual seconds since the loop's creation."""
        return self._skipping.now()

    def begin_second(self) -> None:
        """Move the clock to a whole second, so that the same seed gives the same fractions."""
        self._skipping.begin_second()

    def _unix_seconds(self) -> float:
        return self._started_at + self.time()

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call a function at a moment in virtual time."""
        timer = super().call_at(when, callback, *args, context=context)
        # Only `asyncio.sleep` passes a future and a result. A timer without a result belongs to a
        # time limit, and is no sleep.
        given: tuple[object, ...] = args
        if len(given) == 2 and asyncio.isfuture(given[0]) and (block := _current_block.get()):
            block.add_sleep(timer)
        return timer

    async def shutdown_default_executor(self, *timeout: Any) -> None:
        """Wait in real time until the threads of the loop's executor end.

        Args:
            timeout: the time limit in seconds, from Python 3.12 on.
        """
        async with self.outside():
            await super().shutdown_default_executor(*timeout)

    def outside(self, *, runs_handler: bool = False) -> AbstractAsyncContextManager[None]:
        """Return a context manager for code that waits for a thread, a socket or another process.

        Virtual time stands still in the block, except while a task of the block is in
        ``asyncio.sleep``. If the block takes more than five real seconds, virtual time passes as
        fast as real time, so that time limits can end. Blocks may overlap, but not nest: at its end
        a block waits for the other blocks.

        Args:
            runs_handler: whether the block runs a user's async function. It may wait for another
                handler, so virtual time passes as fast as real time while that handler sleeps.
        """
        return _Block(self._skipping, runs_handler=runs_handler)


def is_in_event_loop() -> bool:
    """Return whether an event loop is running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def virtual_runner() -> asyncio.Runner:
    """Return a runner with a new virtual loop; a context manager."""
    return asyncio.Runner(loop_factory=VirtualLoop)


def run_virtually(
    main: Callable[[VirtualLoop], Coroutine[Any, Any, T]], runner: asyncio.Runner | None = None
) -> T:
    """Run ``main`` in a virtual loop and return its result, as ``asyncio.run`` does.

    Args:
        runner: a virtual runner, whose loop may have run other functions before; by default a new
            loop.
    """
    if runner is None:
        with virtual_runner() as new:
            return run_virtually(main, new)
    loop = cast("VirtualLoop", runner.get_loop())
    loop.begin_second()

    async def run() -> T:  # `main` may be any function: call it inside the loop
        return await main(loop)

    return runner.run(run())
