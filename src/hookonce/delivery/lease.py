"""The claim that an attempt holds on its event, and the calls to the store about that claim.

The attempt makes its own calls with `Lease.ask`, one at a time. They need no timer each: the timer
of `Attempts` calls `Lease.enforce_limits` every few milliseconds, which cancels a call that the
store answers too late. Extensions run beside these calls, so they use `within`.

Only the methods of `Lease` change a lease.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar

from ..errors import StoreError
from ..logs import get_logger
from ..routing.handler import Handler
from ..stores.finishes import Finish, FinishingStore
from ..stores.time_limit import store_error, within
from ..stores.values import (
    Claimed,
    ClaimResult,
    Delivery,
    DeliveryKey,
    InFlight,
    Ownership,
    Token,
    new_token,
)
from ..watching.log import delivery_fields
from ..watching.records import EventClaimed
from .dependencies import Dependencies
from .instant import Instant
from .key_locks import KeyLockHolder
from .verdict import COMPLETE, Bury, Complete, Defer, Settlement, ShuttingDown

_log = get_logger("hookonce.lease")

T = TypeVar("T")

# How long to wait before a success is recorded. Handlers of one event often finish together, and
# after this wait one call to the store records all their successes.
_CHECKPOINT_SECONDS = 0.1
_EXTEND_AGAIN_SECONDS = 1.0

# Pauses before asking again for a claim or key lock that another attempt holds. The first pauses
# are short, since most handlers are quick.
FIRST_POLL_SECONDS = 0.05
LONGEST_POLL_SECONDS = 0.5


# In a set of outstanding handlers, the empty name means that the delivery is not kept yet. No
# handler has an empty name.
_KEEPING = frozenset({""})


@dataclass(slots=True, eq=False, repr=False)
class Lease:
    """The claim of an attempt, which is extended for as long as the attempt needs it.

    Attributes:
        dependencies: what all attempts of the receiver share.
        delivery: what was delivered.
        key: the deduplication key of the event.
        handlers: every handler that the event is for, including those that have succeeded.
        loop: the event loop of the attempt.
        claim: the claim; None until the store grants it.
        number: the number of the attempt at this event, from 1.
        finished: the handlers known to have succeeded.
        locks: the key locks that are extended with the claim.
        sure_until: the time until which no other process can claim the event, by
            ``time.monotonic``.
        extend_at: when to extend the claim next, in the event loop's time; infinite if the claim is
            not extended.
        is_shutting_down: whether a shutdown has begun; the attempt then asks for no claim and no
            key lock.
    """

    dependencies: Dependencies
    delivery: Delivery
    key: DeliveryKey
    handlers: Sequence[Handler]
    loop: asyncio.AbstractEventLoop
    claim: Claimed | None = None
    number: int = 1
    finished: set[str] = field(default_factory=set)
    locks: tuple[KeyLockHolder, ...] = ()
    sure_until: float = 0.0
    _ends_at: float = inf
    extend_at: float = inf
    _extension: asyncio.Task[None] | None = None
    _reply_due: float = inf
    _is_reply_late: bool = False
    is_shutting_down: bool = False

    @property
    def held_claim(self) -> Claimed:
        """The claim; RuntimeError before the store has granted it."""
        if self.claim is None:
            raise RuntimeError(f"{self.key} is handled without a claim")
        return self.claim

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

    @property
    def is_unrecorded(self) -> bool:
        """Whether the successes of this attempt still wait for a later attempt to take them over.

        A later attempt takes this attempt's set in `begin`, and may leave a set of its own. So
        compare the sets by identity.
        """
        return self.dependencies.unrecorded.successes.get(self.key) is self.finished

    def log_fields(self, handler: str | None = None) -> dict[str, object]:
        """Return the fields of a log record about this attempt; see ``logs.event_fields``."""
        return delivery_fields(self.delivery, self.claim and self.claim.attempt, handler)

    async def ask(self, call: Awaitable[T], seconds: float | None = None) -> T:
        """Return the store's answer to a call of the attempt's task.

        Args:
            call: the call.
            seconds: its time limit, if that is shorter than ``Limits.store_seconds``.

        Raises:
            StoreError: the store failed, or did not answer in time.
        """
        if seconds is None:
            seconds = self.dependencies.limits.store_seconds
        self._reply_due = self.loop.time() + seconds
        try:
            return await call
        except StoreError:
            raise
        except asyncio.CancelledError as error:
            is_late = self._take_back_lateness()
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise  # a shutdown has also cancelled the attempt
            if is_late:
                raise StoreError(f"the store did not answer within {seconds:g} s") from None
            raise store_error(error) from error
        except Exception as error:
            raise store_error(error) from error
        finally:
            self._reply_due = inf
            if self._is_reply_late:
                self._take_back_lateness()

    def _take_back_lateness(self) -> bool:
        """Undo the cancellation of a late call; return whether there was one."""
        is_late, self._is_reply_late = self._is_reply_late, False
        if is_late and (task := asyncio.current_task()) is not None:
            task.uncancel()
        return is_late

    def stop_asking(self) -> None:
        """Ask for no more claims and key locks: a shutdown has begun."""
        self.is_shutting_down = True

    def enforce_limits(self, now: float, task: asyncio.Task[None]) -> None:
        """Extend the claim if that is due; cancel the task's call that the store answers late."""
        if now >= self._reply_due:
            self._reply_due, self._is_reply_late = inf, True
            task.cancel()
        if now >= self.extend_at:
            self.extend_at = now + self.dependencies.limits.lease_seconds / 3
            if self._extension is None or self._extension.done():
                self._extension = self.loop.create_task(self.extend())

    async def acquire(self, due: float) -> ClaimResult | ShuttingDown:
        """Ask the store for the event until it is claimed, done or dead, and begin the lease.

        Args:
            due: when the answer is due, in the event loop's time. The result is `InFlight` if
                another attempt still has the event then.

        Raises:
            StoreError: the store failed. It may have granted the claim nevertheless, so the lease
                holds that claim.
        """
        dependencies, pause = self.dependencies, FIRST_POLL_SECONDS
        limits, token = dependencies.limits, new_token()
        while not self.is_shutting_down:
            monotonic, now = time.monotonic(), self.loop.time()
            left = due - now
            try:
                result = await self.ask(
                    dependencies.store.claim(self.key, token, limits.lease_seconds),
                    None if left > limits.store_seconds else limits.store_seconds_within(left),
                )
            except (StoreError, asyncio.CancelledError):
                self._assume_granted(token)
                raise
            if dependencies.observers.look_closely:
                dependencies.observers.notify_of(EventClaimed, self.delivery, result)
            if isinstance(result, Claimed):
                self.begin(result, monotonic, now)
                return result
            left = due - self.loop.time()
            if left <= 0 or not isinstance(result, InFlight):
                return result
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_POLL_SECONDS)
        return ShuttingDown()

    def begin(self, claim: Claimed, monotonic: float, loop: float) -> None:
        """Begin the lease of a claim; it counts from the time of the request to the store.

        Args:
            claim: the claim.
            monotonic: that time by ``time.monotonic``.
            loop: that time by the event loop.
        """
        seconds = claim.lease_seconds
        self.claim, self.number = claim, claim.attempt
        self.sure_until = monotonic + seconds
        self._ends_at = loop + seconds
        self.extend_at = loop + seconds / 3
        if claim.finished:
            self.finished |= claim.finished
        if unrecorded := self.dependencies.unrecorded.successes:
            self.finished |= unrecorded.pop(self.key, set())

    def _assume_granted(self, token: Token) -> None:
        """Hold the claim that the store may have granted although its reply was lost."""
        # Do not call `begin`: it would take over earlier successes, and a failed release would lose
        # them.
        seconds = self.dependencies.limits.lease_seconds
        self.claim = Claimed(self.key, token, 1, frozenset(), seconds)
        self._ends_at = self.loop.time() + seconds

    def extend_with(self, lock: KeyLockHolder) -> None:
        """Extend a key lock whenever the claim is extended."""
        self.locks += (lock,)

    def adopt(self, claim: Claimed) -> None:
        """Continue under a claim that the store granted after this lease was lost."""
        self.begin(claim, *Instant.now(self.loop))

    def note_success(self, handler: str) -> None:
        """Count a handler as finished; if others are outstanding, record its success soon."""
        self.finished.add(handler)
        if len(self.handlers) > 1 and self.outstanding:
            self.checkpoint_soon()

    def checkpoint_soon(self) -> None:
        """Record soon which handlers have succeeded, so that a crash repeats only the others."""
        if self.extend_at < inf:
            self.extend_at = min(self.extend_at, self.loop.time() + _CHECKPOINT_SECONDS)

    def stop_extending(self) -> None:
        """Stop extending the claim, which then expires unless the store settles the event first."""
        self.extend_at = inf
        if self._extension is not None:
            self._extension.cancel()

    async def extend(self) -> None:
        """Extend the claim and record which handlers have succeeded; on success set ``sure_until``.

        A failure of the store is logged, and a lost claim too.
        """
        claim, finished = self.held_claim, frozenset(self.finished)
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
            return
        if claim is not self.claim:
            return  # the attempt has adopted another claim in the meantime
        if ownership is Ownership.LOST:
            if self.extend_at < inf:
                _log.error(
                    "the lease of %s was lost; another attempt may have begun",
                    self.key,
                    extra=self.log_fields(),
                )
            self.extend_at = inf
            return
        self.sure_until = asked_at.monotonic + claim.lease_seconds
        self._ends_at = asked_at.loop + claim.lease_seconds
        for lock in self.locks:
            await lock.extend()

    async def settle(self, settlement: Settlement) -> Ownership:
        """Have the store record a settlement.

        Returns:
            Whether this attempt still owned the event. HELD also after `Complete`, because a
            success counts even if another attempt owns the event.

        Raises:
            StoreError: the store failed; it may have recorded the settlement nevertheless.
        """
        if settlement is not COMPLETE:
            # The claim must expire if the store cannot release it. After a success, the claim is
            # extended until the store has recorded the success, so that no other process runs the
            # handlers again.
            self.stop_extending()
        while True:
            claim = self.held_claim
            ownership = await self.ask(self._record(settlement, claim))
            if claim is self.claim:
                self.stop_extending()
                return ownership or Ownership.HELD
            # The attempt has adopted another claim in the meantime: settle that claim, too.

    def finish(self, store: FinishingStore, handler: str) -> Finish:
        """Return the SQL expression that records a handler's success in its own transaction.

        A handler calls this after its work, in its own thread. If the delivery is kept, the event
        stays open until ``settle``, so that no crash leaves an event that is done and not kept.
        """
        others = (self.outstanding | self.absent) - {handler}
        if self.dependencies.keeper is not None:
            others |= _KEEPING
        return store.finish(self.held_claim, handler, others)

    def leave_unrecorded(self) -> None:
        """After the lease has ended, keep the successes for the next attempt of this process."""
        self.dependencies.unrecorded.successes[self.key] = self.finished

    def forget_unrecorded(self) -> None:
        """Forget the successes kept for the next attempt, because the store has recorded them."""
        if self.is_unrecorded:
            del self.dependencies.unrecorded.successes[self.key]

    def _record(self, settlement: Settlement, claim: Claimed) -> Awaitable[Ownership | None]:
        """Call the store's method for this kind of settlement."""
        store = self.dependencies.store
        if isinstance(settlement, Complete):
            keeper = self.dependencies.keeper
            if keeper is None:
                return store.complete(claim)
            return keeper.complete(claim, self.delivery, frozenset(self.finished))
        finished = frozenset(self.finished)
        error, outstanding = settlement.error, settlement.outstanding
        if isinstance(settlement, Bury):
            return store.bury(
                claim,
                settlement.reason,
                error=error,
                finished=finished,
                outstanding=outstanding,
                delivery=self.delivery,
            )
        inbox = self.dependencies.inbox
        if isinstance(settlement, Defer) and inbox is not None:
            after, began = settlement.after_seconds, settlement.counts
            return inbox.retry(claim, after, finished, error, outstanding=outstanding, began=began)
        began = settlement.counts
        return store.release(claim, finished, error, outstanding=outstanding, began=began)
