"""The waits of an attempt's handlers for their key locks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import StoreError
from ..logs import get_logger
from ..outcome import Reason
from ..stores.values import Acquired, Busy, Stale
from .key_locks import AskAgain, KeyLockHolder
from .lease import FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS, Lease
from .origin import Origin, Replay, Request
from .verdict import NotAcquired

_log = get_logger("hookonce")


class BusyTooLong(NamedTuple):
    """Another attempt held the key lock for ``seconds``, the handler's whole time limit."""

    seconds: float


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
        self, holder: KeyLockHolder, others: frozenset[str]
    ) -> Acquired | Stale | NotAcquired | BusyTooLong:
        """Wait for the key lock of a handler, until the time limit of the wait or a shutdown.

        Args:
            holder: holds the lock afterwards, if the result is `Acquired`.
            others: the other handlers of the event that have not succeeded.
        """
        now, waits_full_time = self.lease.loop.time, self._waits_full_time(others)
        due, pause = self._due(waits_full_time), FIRST_POLL_SECONDS
        while waits_full_time or not self.lease.is_shutting_down:
            try:
                result = await holder.acquire()
            except StoreError as error:
                _log.error(
                    "cannot acquire a key lock for %s: %s",
                    self.lease.key,
                    error,
                    extra=self.lease.log_fields(holder.handler),
                )
                return NotAcquired(Reason.STORE_UNAVAILABLE)
            if isinstance(result, Busy):
                left = due - now()
                if left > 0:
                    await asyncio.sleep(min(pause, left))
                    pause = min(2 * pause, LONGEST_POLL_SECONDS)
                elif waits_full_time:
                    return BusyTooLong(self.lease.dependencies.limits.handler_timeout_seconds)
                else:
                    self._busy.append(holder)
                    return NotAcquired(Reason.IN_FLIGHT, self._busy_seconds(result))
            elif not isinstance(result, AskAgain):
                return result
        return NotAcquired(Reason.SHUTTING_DOWN)

    async def leave_queues(self) -> None:
        """Take the event out of the queues: after a failure, only the backoff delays the event."""
        for holder in self._busy:
            await holder.try_release()

    async def join_queues(self) -> None:
        """Put the deferred event into the queues: only deferred events can become due."""
        for holder in self._busy:
            try:
                await holder.join_queue()
            except StoreError as error:
                _log.warning(
                    "could not queue %s for its key lock; the next attempt follows when that lock's"
                    " lease ends: %s",
                    self.lease.key,
                    error,
                    extra=self.lease.log_fields(holder.handler),
                )

    def _waits_full_time(self, others: frozenset[str]) -> bool:
        """Return whether a handler may spend its whole time limit waiting for its key lock.

        On the last chance it may, if the sender would not deliver the event again, or if another
        handler could fail and so make the event a dead letter.
        """
        if not self.last_chance or isinstance(self.origin, Replay):
            return False
        return isinstance(self.origin, Request) or bool(others)

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
        return now  # do not wait: the deferred event becomes due when the lock is free

    def _busy_seconds(self, busy: Busy) -> float:
        """Return how many more seconds another attempt may hold a lock, by this process's clock."""
        dependencies = self.lease.dependencies
        left = busy.until_unix - dependencies.clock()
        return min(max(0.0, left), dependencies.limits.lease_seconds)
