"""How long the handlers of an attempt wait for their key locks, and what follows if that fails."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from ..errors import StoreError
from ..logs import get_logger
from ..outcome import Reason
from ..stores.values import Acquired, Busy, Stale
from .key_locks import KeyLockHolder
from .lease import FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS, Lease
from .origin import Origin, Replay, Request
from .verdict import NotAcquired

_log = get_logger("hookonce")


@dataclass(slots=True, eq=False, repr=False)
class KeyLockWaits:
    """Waits for the key locks of one attempt's handlers.

    A handler of a request waits until the answer is due. A handler of the inbox does not wait: its
    event is deferred, and the process that releases the lock makes the event due. On the last
    chance a handler may wait for as long as it may run, and then counts as failed.

    Attributes:
        lease: the attempt's lease.
        origin: where the attempt comes from.
        last_chance: whether the event may not be delivered again if this attempt fails.
    """

    lease: Lease
    origin: Origin
    last_chance: bool
    _busy: list[KeyLockHolder] = field(default_factory=list)

    async def acquire(
        self, holder: KeyLockHolder, others: int
    ) -> Acquired | Stale | NotAcquired | TimeoutError:
        """Wait for the key lock of a handler until the wait is due to end, or until a shutdown.

        Args:
            holder: holds the lock afterwards, if the result is `Acquired`.
            others: how many other handlers of the event have not succeeded.
        """
        now, waits_full_time = self.lease.loop.time, self._waits_full_time(others)
        due, pause = self._due(waits_full_time), FIRST_POLL_SECONDS
        while waits_full_time or not self.lease.is_refused:
            try:
                result = await holder.acquire()
            except StoreError as error:
                _log.error(
                    "cannot acquire a key lock for %s: %s",
                    self.lease.key,
                    error,
                    extra=self.lease.log_fields(holder.key_lock.handler),
                )
                return NotAcquired(Reason.STORE_UNAVAILABLE)
            if isinstance(result, Busy):
                left = due - now()
                if left > 0:
                    await asyncio.sleep(min(pause, left))
                    pause = min(2 * pause, LONGEST_POLL_SECONDS)
                elif waits_full_time:
                    seconds = self.lease.dependencies.limits.handler_timeout_seconds
                    return TimeoutError(f"another attempt held its key lock for {seconds:g} s")
                else:
                    self._busy.append(holder)
                    return NotAcquired(Reason.IN_FLIGHT, self._busy_seconds(result))
            elif result is not None:
                return result
        return NotAcquired(Reason.SHUTTING_DOWN)

    async def leave_queues(self) -> None:
        """Let the event wait for no lock any more: after a failure it waits for its backoff."""
        for holder in self._busy:
            await holder.give_up()

    async def join_queues(self) -> None:
        """Let the deferred event wait for its locks; only a deferred event can be made due."""
        for holder in self._busy:
            try:
                await holder.join_queue()
            except StoreError as error:
                _log.warning(
                    "%s waits until a lease ends: %s",
                    self.lease.key,
                    error,
                    extra=self.lease.log_fields(holder.key_lock.handler),
                )

    def _waits_full_time(self, others: int) -> bool:
        """Return whether a handler may spend its whole time limit waiting for its key lock.

        A handler does so on the last chance if the event would not be delivered again, or if
        another handler of the event could use up the attempt.
        """
        if not self.last_chance or isinstance(self.origin, Replay):
            return False
        return isinstance(self.origin, Request) or others > 0

    def _due(self, waits_full_time: bool) -> float:
        """Return when the wait for a key lock ends, in the event loop's time."""
        now, origin, limits = self.lease.loop.time(), self.origin, self.lease.dependencies.limits
        if waits_full_time:
            return now + limits.handler_timeout_seconds
        if isinstance(origin, Request):
            # Stop before the answer is due, so that the answer can name the reason.
            return origin.answer_due - min(0.1, limits.answer_seconds / 10)
        if isinstance(origin, Replay):
            return now + limits.answer_seconds
        return now  # do not wait: defer the event; it is made due when the lock is free

    def _busy_seconds(self, busy: Busy) -> float:
        """Return for how long another attempt may hold a lock, by this process's clock."""
        dependencies = self.lease.dependencies
        left = busy.until_unix - dependencies.clock()
        return min(max(0.0, left), dependencies.limits.lease_seconds)
