"""One attempt at an event: claim → handlers → settle.

`Attempt.go` reads straight down. The attempt has a task of its own, which a lost connection does
not cancel. The request that began the attempt awaits its answer. Copies of the delivery, and
workers that fetch the same event, join the attempt, so that an event is never handled twice at
once. The attempt *has* a lease, an answer, a handling and an origin: the lease calls the store, the
handling runs the handlers, and the pure function `decide` says what follows.

`Attempts` calls `enforce_limits` every few milliseconds: it cancels each wait that takes too long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from http import HTTPStatus
from math import inf
from typing import Any

from ..errors import Reject, Retry, StoreError
from ..logs import get_logger
from ..outcome import ALREADY_DEAD, BROKEN, DUPLICATE, HANDLED, STALE, Outcome, Reason, later
from ..routing.handler import Handler
from ..stores.time_limit import FIRST_PAUSE_SECONDS
from ..stores.values import (
    Claimed,
    DeadReason,
    Delivery,
    DeliveryKey,
    Done,
    InFlight,
    Ownership,
    Token,
    new_token,
)
from ..watching.log import log_failed_attempt
from ..watching.records import EventBuried, EventClaimed, EventDeferred, EventRetried, EventSettled
from .answer import Answer
from .calls import Calls
from .dependencies import Dependencies
from .handling import FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS, Handling
from .lease import Instant, Lease
from .limits import store_seconds_within
from .origin import Origin, Queued, Request
from .verdict import (
    COMPLETE,
    Bury,
    Defer,
    Failed,
    GiveBack,
    Release,
    Report,
    decide,
    may_be_last,
    redelivered_until,
    store_failed,
    what_follows,
)

_log = get_logger("hookonce")

_NOT_SETTLED = "another attempt follows"
_QUARANTINED = Outcome(HTTPStatus.ACCEPTED, Reason.QUARANTINED)


class Phase(IntEnum):
    """The phase of an attempt. Until `LATE`, no other attempt of this process handles the event."""

    CLAIMING = 0
    """The attempt asks the store for the event."""
    HANDLING = 1
    """The attempt has the event and runs its handlers."""
    SUCCEEDED = 2
    """All handlers have succeeded, and the store records that."""
    FAILED = 3
    """The handlers have ended, and the store releases or buries the event."""
    LATE = 4
    """The lease ended before the store answered: others may have the event."""
    GIVING_UP = 5
    """A call to the store failed; the attempt releases the claim that the call may have made."""
    ENDED = 6
    """The attempt no longer needs its claim."""


# Module constants: up to Python 3.11, each lookup of an enum's member calls a Python function, and
# each delivery makes many lookups.
CLAIMING, HANDLING, SUCCEEDED, FAILED, LATE, GIVING_UP, ENDED = Phase


@dataclass(slots=True, eq=False, repr=False)
class Attempt:
    """One attempt at an event, from its arrival to its end.

    Attributes:
        dependencies: what all attempts of the receiver share.
        delivery: what was delivered.
        origin: where the attempt comes from.
        event: the parsed event; None if the delivery cannot be read.
        handlers: every handler that the event is for.
        fault: why the delivery cannot be read; empty if it can.
        ignored: the answer where this process has no handler for the event, and none is
            outstanding.
        key: the deduplication key of the event.
        phase: how far the attempt has come.
        lease: the claim, and the calls to the store about it.
        answer: what the request awaits.
        handling: runs the handlers.
    """

    dependencies: Dependencies
    delivery: Delivery
    origin: Origin
    event: Any = None
    handlers: Sequence[Handler] = ()
    fault: str = ""
    ignored: Outcome | None = None
    key: DeliveryKey = field(init=False)
    phase: Phase = CLAIMING
    lease: Lease = field(init=False)
    answer: Answer = field(init=False)
    handling: Handling = field(init=False)
    _queued: Queued | None = field(init=False)  # None unless the inbox is the origin
    _success: Outcome | None = None  # the answer, once every handler has succeeded
    _token: Token | None = None

    def __post_init__(self) -> None:
        dependencies, origin, loop = self.dependencies, self.origin, asyncio.get_running_loop()
        self.key = self.delivery.key
        self.lease = lease = Lease(dependencies, self.delivery, self.key, self.handlers, loop)
        self.answer = Answer(loop.create_future(), origin.answer_due)
        calls = Calls(dependencies.threads, dependencies.limits.handler_timeout_seconds, loop)
        self._queued = origin if isinstance(origin, Queued) else None
        self.handling = Handling(dependencies, lease, self.event, origin, calls, origin.is_last)

    @property
    def task(self) -> asyncio.Task[None]:
        """The attempt's own task."""
        return self.lease.task

    @property
    def has_the_event(self) -> bool:
        """Whether this attempt keeps other attempts of this process from the event."""
        return self.phase < LATE

    @property
    def has_succeeded(self) -> bool:
        """Whether every handler has succeeded, even if the store does not know it yet."""
        return self._success is not None

    @property
    def is_busy(self) -> bool:
        """Whether the attempt still claims the event or runs its handlers."""
        return self.phase <= HANDLING

    def hold(self, claim: Claimed, asked_at: Instant) -> None:
        """Begin with a claim that the store has granted already."""
        self.lease.hold(claim, *asked_at)
        self.phase = HANDLING

    async def go(self) -> None:
        """Run the whole attempt: claim, run the handlers, settle."""
        origin, claim = self.origin, self.lease.claim or await self._claim()
        if claim is None:
            return
        if self.fault:
            await self._quarantine()
            return
        absent = self.lease.absent if claim.outstanding else frozenset()
        if self.ignored is not None and not self.handlers and not absent:
            self.answer.give(self.ignored)
            await self._give_back()
            return
        if isinstance(origin, Request) and may_be_last(claim, origin.delivery_attempt):
            # The sender may not deliver again: store the body first, in case this process crashes.
            until = redelivered_until(self.event, origin.sent_at)
            self.handling.last_chance = until is None
            if await self._keep_body(claim, until) is Ownership.LOST:
                self.answer.give(later(Reason.IN_FLIGHT))
                return
        report = await self.handling.run(absent)
        if report is None:
            await self._succeed(STALE if self.handling.is_stale else HANDLED)
        else:
            await self._fail(report)
            report.failures.clear()  # an error's traceback may hold this frame: a reference cycle

    async def _claim(self) -> Claimed | None:
        """Return the claim; answer and return None if the event cannot be claimed in time."""
        dependencies, lease, observers = self.dependencies, self.lease, self.dependencies.observers
        limits, due, pause = dependencies.limits, self.answer.due, FIRST_POLL_SECONDS
        self._token = token = new_token()
        while not self.handling.is_refused:
            monotonic, now = time.monotonic(), lease.loop.time()
            left = due - now
            try:
                result = await lease.ask(
                    dependencies.store.claim(self.key, token, limits.lease_seconds),
                    None if left > limits.store_seconds else store_seconds_within(limits, left),
                )
            except StoreError as error:
                _log.error("cannot claim %s: %s", self.key, error)
                self.answer.give(store_failed(error))
                await self._give_up()
                return None
            if observers.look_closely and observers.wants(EventClaimed, self.delivery.event_id):
                observers.notify(EventClaimed(self.delivery, result))
            if isinstance(result, Claimed):
                lease.hold(result, monotonic, now)
                self.phase = HANDLING
                if not self.handling.is_refused:
                    return result
                await self._give_back()
            elif isinstance(result, InFlight):
                left = due - lease.loop.time()
                if left <= 0:
                    self.answer.give(
                        later(Reason.IN_FLIGHT, result.until_unix - dependencies.clock())
                    )
                    return None
                await asyncio.sleep(min(pause, left))
                pause = min(2 * pause, LONGEST_POLL_SECONDS)
            else:
                self.answer.give(DUPLICATE if isinstance(result, Done) else ALREADY_DEAD)
                return None
        self.answer.give(later(Reason.SHUTTING_DOWN))
        return None

    async def _keep_body(self, claim: Claimed, until: float | None) -> Ownership | None:
        """Keep the body in the store; return None if the store keeps no bodies, or fails.

        Args:
            claim: the attempt's claim.
            until: until when the sender may deliver the event again, in Unix time; None if it will
                not.
        """
        store = self.dependencies.store
        if not store.keeps_bodies:
            return None
        try:
            return await self.lease.ask(store.keep(claim, self.delivery, dead_unix=until))
        except StoreError as error:
            _log.error("could not keep %s for its last attempt: %s", self.key, error)
            return None

    async def _quarantine(self) -> None:
        """Turn a genuine but unreadable delivery into a dead letter with its raw bytes."""
        settlement = Bury(_QUARANTINED, self.fault, frozenset(), DeadReason.UNREADABLE)
        ownership = await self._settle(settlement, self._after_failed_quarantine)
        if ownership is None:
            await self._give_up()
        elif ownership is Ownership.HELD:
            _log.error("%s cannot be read, and is a dead letter now: %s", self.key, self.fault)

    async def _succeed(self, outcome: Outcome) -> None:
        """Have the store record the success, and answer.

        The answer is 200 even if the store fails: after a 5xx the handlers would run again.
        """
        self.phase, self._success = SUCCEEDED, outcome
        if self._queued is not None:
            self._queued.room.set()
        await self.lease.settle(COMPLETE, self._after_unrecorded_success)
        self._leave()
        self.answer.give(outcome)
        self._notify_settled(outcome)

    async def _fail(self, report: Report) -> None:
        """Release, defer or bury the event, then answer accordingly."""
        settlement = decide(
            report,
            last_chance=self.handling.last_chance,
            keeps_bodies=self.dependencies.store.keeps_bodies,
            backoff_seconds=None if self._queued is None else self._queued.backoff_seconds,
        )
        ownership = await self._settle(settlement, self._after_unrecorded_failure)
        if isinstance(settlement, Defer) and not settlement.counts and ownership is Ownership.HELD:
            await self.handling.note_waiting()
        await self._report_failures(report, settlement, ownership)

    async def _settle(
        self, settlement: Failed, after_failure: Callable[[StoreError], bool]
    ) -> Ownership | None:
        """Have the store record a failure, answer, and let others have the event."""
        self.phase = FAILED
        if self._queued is not None:
            self._queued.room.set()
        if isinstance(settlement, Defer) and settlement.counts:
            await self.handling.forget_waiting()
        ownership = await self.lease.settle(settlement, after_failure)
        if not self.lease.is_unrecorded:  # otherwise `after_failure` has answered already
            if ownership is Ownership.HELD:
                self.answer.give(settlement.outcome)
                self._notify(settlement)
            elif ownership is Ownership.LOST:
                # Another attempt has claimed the event; the outcome of that attempt counts.
                self.answer.give(later(Reason.IN_FLIGHT))
                self._notify_settled(later(Reason.IN_FLIGHT))
        self._leave()
        return ownership

    def _notify(self, settlement: Failed) -> None:
        delivery, number = self.delivery, self.lease.number
        notify = self.dependencies.observers.notify
        match settlement:
            case Release(outcome):
                self._notify_settled(outcome)
            case Defer(_, error, _, after_seconds, counts=True):
                notify(EventRetried(delivery, number, after_seconds, error))
            case Defer(_, _, _, after_seconds):
                notify(EventDeferred(delivery, number, after_seconds))
            case Bury(_, error, _, reason):
                notify(EventBuried(delivery, number, reason, error))

    def _notify_settled(self, outcome: Outcome) -> None:
        observers = self.dependencies.observers
        if observers.look_closely and observers.wants(EventSettled, self.delivery.event_id):
            observers.notify(EventSettled(self.delivery, self.lease.number, outcome))

    # Called after a failed call to the store; each method returns whether to repeat the call.

    def _after_failed_quarantine(self, error: StoreError) -> bool:
        _log.error("cannot bury %s: %s", self.key, error)
        self.answer.give(later(Reason.STORE_UNAVAILABLE))
        return False  # the event is released, so the sender's next attempt can claim it

    def _after_unrecorded_success(self, error: StoreError) -> bool:
        self.answer.give(self._success or HANDLED)
        if self.lease.is_over and self.has_the_event:
            _log.error(
                "%s is handled, but that could not be recorded while its lease lived; until it"
                " is, another process would handle a further delivery of it again: %s",
                self.key,
                error,
            )
            self._leave_late()
        return True

    def _after_unrecorded_failure(self, error: StoreError) -> bool:
        self.answer.give(later(Reason.STORE_UNAVAILABLE))
        if self.lease.is_over and self.has_the_event:
            _log.error("could not settle %s; its lease runs out: %s", self.key, error)
            self._notify_settled(later(Reason.STORE_UNAVAILABLE))
            self._leave_late()
        return True

    def _after_failed_release(self, error: StoreError) -> bool:
        if not self.lease.is_over:
            return True
        _log.error("could not release %s; its lease will run out: %s", self.key, error)
        return False

    def _leave_late(self) -> None:
        """Let other attempts have the event, although the store does not know the result."""
        self.lease.leave_unrecorded()
        self._leave(LATE)

    async def _give_up(self) -> None:
        """Release the claim that a failed call may have made; the request is answered already."""
        self._leave(GIVING_UP)
        await asyncio.sleep(FIRST_PAUSE_SECONDS)
        await self._give_back()

    async def _give_back(self) -> None:
        """Release the claim of an attempt that stops, or that began no handler."""
        if self.lease.claim is None and self._token is not None:
            # The store may have granted a claim whose reply was lost.
            lease = self.dependencies.limits.lease_seconds
            self.lease.adopt(Claimed(self.key, self._token, 1, frozenset(), lease))
        await self.lease.settle(GiveBack(self.handling.calls.under_way), self._after_failed_release)

    async def _report_failures(
        self, report: Report, settlement: Failed, ownership: Ownership | None
    ) -> None:
        """Log the failures, and call the error hooks."""
        if report.absent:
            _log.error(
                "%s still needs handlers that are not registered here; a process that has them must"
                " handle it: %s",
                self.key,
                ", ".join(sorted(report.absent)),
            )
        # A `Retry` counts as a failure only if the event becomes a dead letter.
        failures = report.failures if isinstance(settlement, Bury) else report.errors
        if not failures:
            return
        count, number = len(failures), self.lease.number
        group = ExceptionGroup(
            f"{count} handler{'s' if count > 1 else ''} of {self.event.type} failed",
            [failure.error for failure in failures],
        )
        names = ", ".join(failure.handler for failure in failures)
        is_wanted = all(isinstance(failure.error, Reject | Retry) for failure in failures)
        then = what_follows(settlement) if ownership is Ownership.HELD else _NOT_SETTLED
        log_failed_attempt(
            self.delivery, number, names, report.describe(), then, None if is_wanted else group
        )
        if hooks := self.dependencies.handler_table.error_hooks:
            await self.handling.call_hooks(hooks, group, names)

    def enforce_limits(self, now: float) -> None:
        """Do what is due: extend the lease, answer a late request, cancel late handlers."""
        self.lease.enforce_limits(now)
        if now >= self.answer.due and self.lease.claim is not None:
            self.answer.due = inf
            self.answer.give(self._success or later(Reason.STILL_RUNNING))
        self.handling.calls.enforce_limits(now)

    def adopt(self, claim: Claimed) -> bool:
        """Continue under a new claim, which the store granted after this lease was lost.

        Returns:
            False if the attempt cannot use it, because it still asks for a claim itself.
        """
        if self.lease.claim is None or not self.has_the_event:
            return False
        self.lease.adopt(claim)
        if self.phase is FAILED:
            self.lease.stop_extending()
        else:
            self.lease.checkpoint_soon()
        return True

    def refuse(self) -> None:
        """Do not begin handlers, unless the attempt has claimed the event already."""
        self.handling.is_refused = True

    def stop(self) -> None:
        """Cancel the handlers; the cancelled task then releases the claim."""
        self.handling.calls.is_stopping = True
        self.task.cancel()

    async def finish_stop(self) -> None:
        """Release the event after a cancellation, and record which handlers have succeeded."""
        self.lease.accept_cancellation()
        if self._success is not None:
            self.answer.give(self._success)
        elif self.is_busy:
            self.answer.give(later(Reason.SHUTTING_DOWN))
            if self.lease.claim is not None or self._token is not None:
                await self._give_back()

    def break_off(self, error: Exception) -> None:
        """Answer after an unexpected error, for example if a router breaks its contract."""
        _log.error("an attempt at %s broke off", self.key, exc_info=error)
        self.answer.give(BROKEN)

    def end(self) -> None:
        """Answer the request and wake all waiting requests, for whatever reason the task ended."""
        if self.phase is not ENDED:
            self.lease.stop_extending()
            self._leave()
        if self.answer.outcome is None:
            self.answer.give(later(Reason.SHUTTING_DOWN))

    def _leave(self, phase: Phase = ENDED) -> None:
        """Let other attempts of this process have the event."""
        if (queued := self._queued) is not None:
            queued.room.set()
            if self.phase is not SUCCEEDED:
                queued.work.set()  # wake an idle worker: the event becomes due again
        self.phase = phase
        if self.answer.joined is not None:
            self.answer.wake()
