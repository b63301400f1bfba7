"""One attempt at an event: claim → handlers → settle.

`Attempt.go` reads straight down. The attempt has a task of its own, which a lost connection does
not cancel. The request that began the attempt awaits its answer. Copies of the delivery, and
workers that fetch the same event, join the attempt, so that an event is never handled twice at
once. The attempt *has* a lease, an answer, a handling and an origin: the lease calls the store, the
handling runs the handlers, and the pure function `decide` says what follows.

An attempt ends in one of four ways:

not begun   The event is done, dead or in flight elsewhere. The attempt only answers.
settled     The handlers have ended. The store completes, releases, defers or buries the event. If
            the lease ends before the store has recorded that, the attempt is late: other attempts
            may have the event, and the attempt still calls the store.
abandoned   There is no result, because of a shutdown, a failed claim, or no handler for the event.
            The store releases the claim.
broken off  An error was not expected. The attempt only answers, and its lease runs out.

`leave` follows in each case: from then on other attempts of this process may have the event.

`Attempts` calls `enforce_limits` every few milliseconds: it cancels each wait that takes too long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from http import HTTPStatus
from math import inf
from typing import Any, NamedTuple, TypeAlias

from ..errors import Reject, Retry, StoreError
from ..logs import get_logger
from ..outcome import Outcome, Reason, later
from ..routing.handler import Handler
from ..stores.formats import DamagedError
from ..stores.time_limit import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from ..stores.values import (
    Claimed,
    DeadReason,
    Delivery,
    DeliveryKey,
    InFlight,
    Ownership,
    Token,
    new_token,
)
from ..watching.absent_handlers import absence_text
from ..watching.log import log_failed_attempt
from ..watching.records import EventBuried, EventClaimed, EventDeferred, EventRetried, EventSettled
from .answer import Answer
from .calls import Call, Calls
from .dependencies import Dependencies
from .handling import Handling
from .lease import FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS, Instant, Lease
from .limits import store_seconds_within
from .origin import Origin, Queued, Request
from .verdict import (
    COMPLETE,
    Abandon,
    AfterFailure,
    Bury,
    Complete,
    Defer,
    Release,
    Report,
    decide,
    may_be_last,
    not_claimed,
    redelivered_until,
    store_failed,
    what_follows,
)

_log = get_logger("hookonce")

_QUARANTINED = Outcome(HTTPStatus.ACCEPTED, Reason.QUARANTINED)
# The claim was lost, and another attempt has the event: the outcome of that attempt counts.
_CLAIMED_SINCE = later(Reason.IN_FLIGHT)


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
    ABANDONED = 5
    """A call to the store failed; the attempt releases the claim that the call may have made."""
    ENDED = 6
    """The attempt no longer needs its claim."""


# Module constants: up to Python 3.11, each lookup of an enum's member calls a Python function, and
# each delivery makes many lookups.
CLAIMING, HANDLING, SUCCEEDED, FAILED, LATE, ABANDONED, ENDED = Phase


class Unreadable(NamedTuple):
    """The delivery is genuine, but cannot be read; ``fault`` says why."""

    fault: str

    @property
    def type(self) -> None:
        """The type of the event, which is unknown."""
        return


class Ignored(NamedTuple):
    """This process has no handler for the event; ``outcome`` is the answer if no other has one."""

    outcome: Outcome


Unhandled: TypeAlias = Unreadable | Ignored
"""Why no handler of this process runs."""


@dataclass(slots=True, eq=False, repr=False)
class Attempt:
    """One attempt at an event, from its arrival to its end.

    Attributes:
        dependencies: what all attempts of the receiver share.
        delivery: what was delivered.
        origin: where the attempt comes from.
        event: the parsed event; None if the delivery cannot be read.
        handlers: every handler that the event is for.
        unhandled: why no handler of this process runs; None if there are handlers.
        key: the deduplication key of the event.
        phase: how far the attempt has come.
        lease: the claim, and the calls to the store about it.
        answer: what the request awaits.
        handling: runs the handlers.
        has_succeeded: whether every handler has succeeded, even if the store does not know it yet.
    """

    dependencies: Dependencies
    delivery: Delivery
    origin: Origin
    event: Any = None
    handlers: Sequence[Handler] = ()
    unhandled: Unhandled | None = None
    key: DeliveryKey = field(init=False)
    phase: Phase = CLAIMING
    lease: Lease = field(init=False)
    answer: Answer = field(init=False)
    handling: Handling = field(init=False)
    has_succeeded: bool = False
    _token: Token | None = None

    def __post_init__(self) -> None:
        dependencies, origin, loop = self.dependencies, self.origin, asyncio.get_running_loop()
        self.key = self.delivery.key
        self.lease = lease = Lease(dependencies, self.delivery, self.key, self.handlers, loop)
        self.answer = Answer(loop.create_future(), origin.answer_due)
        calls = Calls(dependencies.threads, dependencies.limits.handler_timeout_seconds, loop)
        self.handling = Handling(dependencies, lease, self.event, origin, calls, origin.is_last)

    @property
    def task(self) -> asyncio.Task[None]:
        """The attempt's own task."""
        return self.lease.task

    @property
    def calls(self) -> Sequence[Call]:
        """The calls of handlers that have not ended."""
        return self.handling.calls.under_way

    @property
    def has_the_event(self) -> bool:
        """Whether this attempt keeps other attempts of this process from the event."""
        return self.phase < LATE

    @property
    def is_busy(self) -> bool:
        """Whether the attempt still claims the event or runs its handlers."""
        return self.phase <= HANDLING

    def hold(self, claim: Claimed, asked_at: Instant) -> None:
        """Begin with a claim that the store has granted already."""
        self.lease.hold(claim, *asked_at)
        self.phase = HANDLING

    def start(self, running: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine, which awaits `go`, in the attempt's own task, and return the task."""
        # Do not use the loop's task factory: an eager task would run before `Attempts` knows it.
        self.lease.task = task = asyncio.Task(running, loop=self.lease.loop, name=self.key)
        return task

    def refuse(self) -> None:
        """Begin no handler without a claim, or without its key lock: a shutdown has begun."""
        self.lease.is_refused = True

    async def go(self) -> None:
        """Run the whole attempt: claim, run the handlers, settle."""
        origin, claim = self.origin, self.lease.claim or await self._claim()
        if claim is None:
            return
        if isinstance(self.unhandled, Unreadable):
            await self._quarantine(self.unhandled.fault)
            return
        absent = self.lease.absent if claim.outstanding else frozenset()
        if self.unhandled is not None and not absent:
            await self._abandon(self.unhandled.outcome)
            return
        if isinstance(origin, Request) and may_be_last(claim, origin.delivery_attempt):
            # The sender may not deliver again: store the body first, in case this process crashes.
            until = redelivered_until(self.event, origin.sent_at)
            self.handling.last_chance = until is None
            if await self._keep_body(claim, until) is Ownership.LOST:
                self.answer.give(_CLAIMED_SINCE)
                return
        report = await self.handling.run(absent)
        if isinstance(origin, Queued):
            origin.make_room()
        if report is not None:
            await self._fail(report)
            report.failures.clear()  # a reference cycle: see calls.py
            return
        self.phase, self.has_succeeded = SUCCEEDED, True
        await self._record(COMPLETE)
        # Answer 200 even if the store has failed: after a 5xx the handlers would run again.
        self.answer.give(self.handling.success)
        self._notify_settled(self.handling.success)

    async def _claim(self) -> Claimed | None:
        """Return the claim; answer and return None if the event cannot be claimed in time."""
        dependencies, lease, due = self.dependencies, self.lease, self.answer.due
        limits, observers, pause = dependencies.limits, dependencies.observers, FIRST_POLL_SECONDS
        self._token = token = new_token()
        while not lease.is_refused:
            monotonic, now = time.monotonic(), lease.loop.time()
            left = due - now
            try:
                result = await lease.ask(
                    dependencies.store.claim(self.key, token, limits.lease_seconds),
                    None if left > limits.store_seconds else store_seconds_within(limits, left),
                )
            except StoreError as error:
                await self._claim_failed(error)
                return None
            if observers.look_closely:
                observers.notify_of(EventClaimed, self.delivery, result)
            if isinstance(result, Claimed):
                lease.hold(result, monotonic, now)
                self.phase = HANDLING
                if not lease.is_refused:
                    return result
                await self._abandon(later(Reason.SHUTTING_DOWN))
                return None
            left = due - lease.loop.time()
            if left <= 0 or not isinstance(result, InFlight):
                self.answer.give(not_claimed(result, dependencies.clock()))
                return None
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_POLL_SECONDS)
        self.answer.give(later(Reason.SHUTTING_DOWN))
        return None

    async def _claim_failed(self, error: StoreError) -> None:
        """Log a failure of the store, and abandon the claim that it may have granted."""
        self._log_error("cannot claim %s: %s", error)
        if isinstance(error, DamagedError):
            # The store has set the event's record aside. Add the body, so that it can be replayed.
            with suppress(StoreError):
                await self.lease.ask(self.dependencies.store.keep_in_flight(self.delivery))
        await self._abandon(store_failed(error), after_error=True)

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
            self._log_error("could not keep %s for its last attempt: %s", error)
            return None

    async def _quarantine(self, fault: str) -> None:
        """Turn a genuine but unreadable delivery into a dead letter with its raw bytes."""
        self.phase = FAILED
        settlement = Bury(_QUARANTINED, fault, frozenset(), DeadReason.UNREADABLE)
        try:
            ownership = await self.lease.settle(settlement)
        except StoreError as error:
            self._log_error("cannot bury %s: %s", error)
            # Release the event, so that the sender's next attempt can claim it.
            await self._abandon(later(Reason.STORE_UNAVAILABLE), after_error=True)
            return
        is_held = ownership is Ownership.HELD
        self.answer.give(_QUARANTINED if is_held else _CLAIMED_SINCE)
        self._notify(settlement, ownership)
        if is_held:
            self._log_error("%s cannot be read, and is a dead letter now: %s", fault)

    async def _fail(self, report: Report) -> None:
        """Release, defer or bury the event, then answer accordingly."""
        self.phase = FAILED
        settlement = decide(
            report,
            last_chance=self.handling.last_chance,
            keeps_bodies=self.dependencies.store.keeps_bodies,
            backoff_seconds=self.origin.backoff_seconds,
        )
        waits = self.handling.waits
        if waits is not None and isinstance(settlement, Defer) and settlement.counts:
            await waits.leave_queues()
        ownership = await self._record(settlement)
        is_held = ownership is Ownership.HELD
        if self.phase is not LATE:  # a late attempt has answered in `_answer_unrecorded`
            self.answer.give(settlement.outcome if is_held else _CLAIMED_SINCE)
            self._notify(settlement, ownership)
        self.leave()
        if (
            waits is not None
            and isinstance(settlement, Defer)
            and not settlement.counts
            and is_held
        ):
            await waits.join_queues()
        then = what_follows(settlement) if is_held else "another attempt follows"
        await self._report_failures(report, is_final=isinstance(settlement, Bury), then=then)

    async def _record(self, settlement: Complete | AfterFailure) -> Ownership | None:
        """Have the store record a settlement; call the store again until it has.

        Returns:
            Whether this attempt still owned the event; None for `Complete`, and if a later attempt
            of this process records the successes instead.
        """
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                ownership = await self.lease.settle(settlement)
            except StoreError as error:
                self._answer_unrecorded(error)
            else:
                if self.phase is LATE:
                    self.lease.forget_unrecorded()
                return ownership
            await asyncio.sleep(pause)
            if self.phase is LATE and not self.lease.is_unrecorded:
                return None
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _answer_unrecorded(self, error: StoreError) -> None:
        """Answer without a record; once the lease is over, let others have the event."""
        outcome = self.handling.success if self.has_succeeded else later(Reason.STORE_UNAVAILABLE)
        self.answer.give(outcome)
        if not self.lease.is_over or self.phase is LATE:
            return
        if self.has_succeeded:
            self._log_error(
                "%s is handled, but that could not be recorded while its lease lived; until it"
                " is, another process would handle a further delivery of it again: %s",
                error,
            )
        else:
            self._log_error("could not settle %s; its lease runs out: %s", error)
            self._notify_settled(outcome)
        self.lease.leave_unrecorded()
        self.leave(LATE)

    def _notify(self, settlement: AfterFailure, ownership: Ownership | None) -> None:
        if ownership is not Ownership.HELD:
            self._notify_settled(_CLAIMED_SINCE)
            return
        delivery, number = self.delivery, self.lease.number
        notify = self.dependencies.observers.notify
        match settlement:
            case Release():
                self._notify_settled(settlement.outcome)
            case Defer(counts=True):
                notify(EventRetried(delivery, number, settlement.after_seconds, settlement.error))
            case Defer():
                notify(EventDeferred(delivery, number, settlement.after_seconds))
            case Bury():
                notify(EventBuried(delivery, number, settlement.reason, settlement.error))

    def _notify_settled(self, outcome: Outcome) -> None:
        observers = self.dependencies.observers
        if observers.look_closely:
            observers.notify_of(EventSettled, self.delivery, self.lease.number, outcome)

    async def _abandon(self, outcome: Outcome, *, after_error: bool = False) -> None:
        """Answer, and release the claim without a result.

        Args:
            outcome: the answer.
            after_error: whether the store has just failed; it gets a pause, and meanwhile other
                attempts of this process may have the event.
        """
        self.answer.give(outcome)
        if after_error:
            self.leave(ABANDONED)
            await asyncio.sleep(FIRST_PAUSE_SECONDS)
        if self.lease.claim is None and self._token is not None:
            # The store may have granted a claim whose reply was lost.
            lease = self.dependencies.limits.lease_seconds
            self.lease.assume(Claimed(self.key, self._token, 1, frozenset(), lease))
        settlement, pause = Abandon(self.calls), FIRST_PAUSE_SECONDS
        while True:
            try:
                await self.lease.settle(settlement)
            except StoreError as error:
                if self.lease.is_over:
                    self._log_error("could not release %s; its lease will run out: %s", error)
                    return
            else:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _report_failures(self, report: Report, *, is_final: bool, then: str) -> None:
        """Log the failures, and call the error hooks.

        Args:
            report: the failures.
            is_final: whether no other attempt follows; only then a `Retry` counts as a failure.
            then: what happens to the event now, for the log.
        """
        if report.absent:
            self._log_error("%s %s", absence_text(report.absent))
            self.dependencies.absent.note(str(self.key), report.absent)
        failures = report.failures if is_final else report.failures_except_retries
        if not failures:
            return
        count, number = len(failures), self.lease.number
        group = ExceptionGroup(
            f"{count} handler{'s' if count > 1 else ''} of {self.event.type} failed",
            [failure.error for failure in failures],
        )
        names = [failure.handler for failure in failures]
        is_wanted = all(isinstance(failure.error, Reject | Retry) for failure in failures)
        log_failed_attempt(
            self.delivery, number, names, report.describe(), then, None if is_wanted else group
        )
        if hooks := self.dependencies.handler_table.error_hooks:
            await self.handling.call_hooks(hooks, group, ", ".join(names))

    def enforce_limits(self, now: float) -> None:
        """Do what is due: extend the lease, answer a late request, cancel late handlers."""
        self.lease.enforce_limits(now)
        if now >= self.answer.due and self.lease.claim is not None:
            self.answer.due = inf
            still_running = later(Reason.STILL_RUNNING)
            self.answer.give(self.handling.success if self.has_succeeded else still_running)
        self.handling.calls.enforce_limits(now, self.lease.log_fields)

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

    def stop(self) -> None:
        """Cancel the handlers; the cancelled task then abandons the event."""
        self.handling.calls.is_stopping = True
        self.task.cancel()

    async def stopped(self) -> None:
        """Abandon the event after a cancellation, unless its handlers had ended."""
        self.lease.accept_cancellation()
        if self.has_succeeded:
            self.answer.give(self.handling.success)
        elif self.is_busy:
            await self._abandon(later(Reason.SHUTTING_DOWN))

    def leave(self, phase: Phase = ENDED) -> None:
        """Let other attempts of this process have the event; wake all requests that wait."""
        if self.phase is ENDED:
            return
        if self.lease.extend_at < inf:
            self.lease.stop_extending()
        self.phase = phase
        if isinstance(self.origin, Queued):
            self.origin.leave(is_due=not self.has_succeeded)
        if self.answer.outcome is None:
            self.answer.give(later(Reason.SHUTTING_DOWN))
        if self.answer.joined is not None:
            self.answer.wake()

    def _log_error(self, text: str, fault: StoreError | str) -> None:
        """Log an error; the text has places for the event's key and for the fault."""
        _log.error(text, self.key, fault, extra=self.lease.log_fields())
