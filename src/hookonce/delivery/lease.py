"""The claim on an event as this process holds it, and the calls to the store about it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, TypeVar

from ..errors import StoreError
from ..logs import get_logger
from ..routing.handler import Handler
from ..stores.time_limit import store_error, within
from ..stores.values import Claimed, Delivery, DeliveryKey, Ownership
from ..watching.log import delivery_fields
from .calls import Call
from .dependencies import Dependencies
from .key_locks import Hold, KeyLockHolder
from .verdict import COMPLETE, Abandon, Bury, Complete, Defer, Settlement

_log = get_logger("hookonce.lease")

T = TypeVar("T")

# Handlers of one event often finish together; one call records the success of all of them.
_CHECKPOINT_SECONDS = 0.1
_EXTEND_AGAIN_SECONDS = 1.0

# Pauses before asking again for a claim or key lock that another attempt holds. The first pauses
# are short, since most handlers are quick.
FIRST_POLL_SECONDS = 0.05
LONGEST_POLL_SECONDS = 0.5


class Instant(NamedTuple):
    """The time on both clocks of a lease.

    The claim ends by two clocks: uvloop's clock stands still within one turn of the loop, so it
    cannot show that this process has just been blocked.
    """

    monotonic: float
    loop: float

    @classmethod
    def now(cls, loop: asyncio.AbstractEventLoop) -> Instant:
        """Read both clocks."""
        return cls(time.monotonic(), loop.time())


@dataclass(slots=True, eq=False, repr=False)
class Lease:
    """What an attempt holds: its claim, extended for as long as the attempt needs it.

    Attributes:
        dependencies: what all attempts of the receiver share.
        delivery: what was delivered.
        key: the deduplication key of the event.
        handlers: every handler that the event is for, including those that have succeeded.
        loop: the event loop of the attempt.
        task: the attempt's task; the lease cancels it to end a call that the store does not answer.
        claim: the claim; None until the store grants it.
        number: the number of the attempt at this event, from 1.
        sure_until: until when no other process can claim the event, by ``time.monotonic``.
        finished: the handlers known to have succeeded.
        extend_at: when to extend the claim next, in the event loop's time.
        has_begun: whether a handler has begun; the attempt counts only then.
        is_refused: whether a shutdown has begun: ask for the claim, or for a key lock, no more.
    """

    dependencies: Dependencies
    delivery: Delivery
    key: DeliveryKey
    handlers: Sequence[Handler]
    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[None] = field(init=False)
    claim: Claimed | None = None
    number: int = 1
    finished: set[str] = field(default_factory=set)
    has_begun: bool = False
    is_refused: bool = False
    _locks: tuple[KeyLockHolder, ...] = ()
    sure_until: float = 0.0
    _ends_at: float = inf
    extend_at: float = inf
    _extension: asyncio.Task[bool] | None = None
    _store_due: float = inf
    _store_is_late: bool = False
    _cancellations: int = 0

    @property
    def left(self) -> float:
        """How many seconds the claim lasts unless it is extended."""
        return min(self._ends_at - self.loop.time(), self.dependencies.limits.lease_seconds)

    @property
    def is_over(self) -> bool:
        """Whether the claim has ended, by the event loop's clock."""
        return self.loop.time() >= self._ends_at

    @property
    def absent(self) -> frozenset[str]:
        """The outstanding handlers that this process has not registered."""
        if self.claim is None or not self.claim.outstanding:
            return frozenset()
        return self.claim.outstanding - {handler.name for handler in self.handlers} - self.finished

    @property
    def outstanding(self) -> frozenset[str]:
        """The handlers of this process that have not succeeded."""
        return frozenset(handler.name for handler in self.handlers) - self.finished

    def log_fields(self, handler: str | None = None) -> dict[str, object]:
        """Return the fields of a log record about this attempt; see ``logs.event_fields``."""
        return delivery_fields(self.delivery, self.number if self.claim else None, handler)

    def enforce_limits(self, now: float) -> None:
        """Extend the claim if that is due, and cancel a call that the store answers too late."""
        if now >= self._store_due:
            self._store_due, self._store_is_late = inf, True
            self.task.cancel()
        if now >= self.extend_at:
            self.extend_at = now + self.dependencies.limits.lease_seconds / 3
            if self._extension is None or self._extension.done():
                self._extension = self.loop.create_task(self.extend())

    def hold(self, claim: Claimed, asked_monotonic: float, asked_loop: float) -> None:
        """Begin the lease of a claim; the lease counts from the time of the request to the store.

        The parameters are the fields of an `Instant`, which takes too long to create in each
        delivery.
        """
        self.claim, self.number = claim, claim.attempt
        self.sure_until = asked_monotonic + claim.lease_seconds
        self._ends_at = asked_loop + claim.lease_seconds
        self.extend_at = asked_loop + claim.lease_seconds / 3
        self.finished |= claim.finished
        if unrecorded := self.dependencies.unrecorded.successes:
            self.finished |= unrecorded.pop(self.key, set())

    def extend_with(self, lock: KeyLockHolder) -> None:
        """Extend a key lock whenever the claim is extended."""
        self._locks += (lock,)

    def adopt(self, claim: Claimed) -> None:
        """Continue under a claim that the store granted after this lease was lost."""
        self.hold(claim, *Instant.now(self.loop))

    def assume(self, claim: Claimed) -> None:
        """Hold a claim that the store may have granted, only to release it.

        Unlike `hold`, this takes over no successes: they would be lost if the release fails, too.
        """
        self.claim, self._ends_at = claim, self.loop.time() + claim.lease_seconds

    def checkpoint_soon(self) -> None:
        """Record soon which handlers have succeeded, so that a crash repeats only the others."""
        self.extend_at = min(self.extend_at, self.loop.time() + _CHECKPOINT_SECONDS)

    def stop_extending(self) -> None:
        """Stop extending: the claim expires unless it is settled before."""
        self.extend_at = inf
        if self._extension is not None:
            self._extension.cancel()

    async def extend(self) -> bool:
        """Renew the claim and record which handlers have succeeded; return False on failure."""
        claim, finished = self._claimed(), frozenset(self.finished)
        asked_at = Instant.now(self.loop)
        outstanding = self.outstanding if finished else frozenset()
        try:
            ownership = await within(
                self.dependencies.limits.store_seconds,
                self.dependencies.store.extend(claim, finished, outstanding),
            )
        except StoreError as error:
            _log.warning(
                "could not extend the lease of %s: %s", self.key, error, extra=self.log_fields()
            )
            if self.extend_at < inf:
                again = min(_EXTEND_AGAIN_SECONDS, claim.lease_seconds / 10)
                self.extend_at = self.loop.time() + again
            return False
        if claim is not self.claim:
            return True  # the attempt has adopted another claim in the meantime
        if ownership is Ownership.LOST:
            if self.extend_at < inf:
                _log.error(
                    "the lease of %s was lost; another attempt may have begun",
                    self.key,
                    extra=self.log_fields(),
                )
            self.extend_at = inf
            return False
        self.sure_until = asked_at.monotonic + claim.lease_seconds
        self._ends_at = asked_at.loop + claim.lease_seconds
        for lock in self._locks:
            await lock.extend()
        return True

    async def settle(self, settlement: Settlement) -> Ownership | None:
        """Have the store record a settlement.

        Returns:
            Whether this attempt still owned the event; None for `Complete`, since a success counts
            whoever owns the event.

        Raises:
            StoreError: the store failed; it may have recorded the settlement nevertheless.
        """
        if settlement is not COMPLETE:
            # The claim must expire if the store cannot release it. After a success, the claim is
            # extended until the store has recorded the success, so that no other process runs the
            # handlers again.
            self.stop_extending()
        while True:
            claim = self._claimed()
            ownership = await self.ask(self._record(settlement, claim))
            if claim is self.claim:
                self.stop_extending()
                return ownership
            # The attempt has adopted another claim in the meantime: settle that claim, too.

    @property
    def is_unrecorded(self) -> bool:
        """Whether the successes are still left to the next attempt of this process.

        That attempt takes them with `hold`, and may leave its own set later. So the identity of the
        set shows whose successes it holds.
        """
        return self.dependencies.unrecorded.successes.get(self.key) is self.finished

    def leave_unrecorded(self) -> None:
        """Leave the successes to the next attempt of this process, since the lease is over."""
        self.stop_extending()
        self.dependencies.unrecorded.successes[self.key] = self.finished

    def forget_unrecorded(self) -> None:
        """Leave nothing to the next attempt, since the store knows the successes now."""
        if self.is_unrecorded:
            del self.dependencies.unrecorded.successes[self.key]

    def _record(self, settlement: Settlement, claim: Claimed) -> Awaitable[Ownership | None]:
        """Call the store's method for this kind of settlement."""
        store, inbox = self.dependencies.store, self.dependencies.inbox
        if isinstance(settlement, Complete):
            return store.complete(claim)
        if isinstance(settlement, Abandon):
            return self._abandon(settlement.calls, claim)
        finished, error = frozenset(self.finished), settlement.error
        if isinstance(settlement, Bury):
            return store.bury(
                claim,
                settlement.reason,
                error=error,
                finished=finished,
                outstanding=settlement.outstanding,
                delivery=self.delivery,
            )
        outstanding = settlement.outstanding
        if isinstance(settlement, Defer) and inbox is not None:
            after, began = settlement.after_seconds, settlement.counts
            return inbox.retry(claim, after, finished, error, outstanding=outstanding, began=began)
        return store.release(claim, finished, error, outstanding=outstanding, began=self.has_begun)

    async def _abandon(self, calls: Sequence[Call], claim: Claimed) -> Ownership:
        """Release the claim, unless a thread still runs, which nothing can cancel.

        No other attempt may run beside that thread, so the claim is extended and then expires.
        """
        # Ask in this order: a thread that ends between the two lines must not be missed.
        thread_goes_on = any(call.thread_goes_on for call in calls)
        succeeded = {call.name for call in calls if call.has_succeeded}
        for lock in self._locks:
            if lock.key_lock.handler in succeeded:
                lock.succeed()
            if lock.hold is Hold.SUCCEEDED:
                await lock.release()
                self.finished.add(lock.key_lock.handler)
        self.finished |= succeeded
        finished, store = frozenset(self.finished), self.dependencies.store
        if thread_goes_on:
            return await store.extend(claim, finished, self.outstanding)
        if not self.has_begun:
            return await store.release(claim, finished, began=False)
        error = "cancelled at shutdown"
        return await store.release(claim, finished, error, outstanding=self.outstanding)

    async def ask(self, call: Awaitable[T], seconds: float | None = None) -> T:
        """Return the store's answer; raise StoreError if the store fails or is late."""
        if seconds is None:
            seconds = self.dependencies.limits.store_seconds
        self._store_due = self.loop.time() + seconds
        try:
            return await call
        except StoreError:
            raise
        except asyncio.CancelledError as error:
            is_late = self._take_back_lateness()
            if self.task.cancelling() > self._cancellations:
                raise  # a shutdown has also cancelled the attempt
            if is_late:
                raise StoreError(f"the store did not answer within {seconds:g} s") from None
            raise store_error(error) from error
        except Exception as error:
            raise store_error(error) from error
        finally:
            self._store_due = inf
            if self._store_is_late:
                self._take_back_lateness()

    def accept_cancellation(self) -> None:
        """Remember the cancellations so far: only a later cancellation ends a call to the store."""
        self._cancellations = self.task.cancelling()

    def _take_back_lateness(self) -> bool:
        """Undo a cancellation by ``enforce_limits``; return whether there was one."""
        is_late, self._store_is_late = self._store_is_late, False
        if is_late:
            self.task.uncancel()
        return is_late

    def _claimed(self) -> Claimed:
        if self.claim is None:
            raise RuntimeError(f"{self.key} is handled without a claim")
        return self.claim
