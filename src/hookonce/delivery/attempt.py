"""One attempt at an event: claim → handlers → settle.

An attempt reads straight down in `Attempt.go`. It has a task of its own, which no lost connection
can cancel; the request that began it awaits its answer, and copies and workers that meet it join
it, so that an event never runs beside itself. It *has* a lease, an answer, a handling and an
origin: the lease talks to the store, the handling runs the handlers, and the pure function
`decide` says what follows. The attempt notes how far it has come, and answers.

Time limits are kept by `look`, which is called every now and then: it cancels a wait that takes too
long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from enum import IntEnum
from http import HTTPStatus
from math import inf
from typing import Any

from ..errors import Reject, Retry, StoreError
from ..logs import get_logger
from ..outcome import ALREADY_DEAD, BROKEN, DUPLICATE, HANDLED, STALE, Outcome, Reason, later
from ..routing.handler import Handler
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
from ..watching.records import EventBuried, EventClaimed, EventParked, EventRetried, EventSettled
from .answer import Answer
from .calls import Calls
from .dependencies import Dependencies
from .handling import FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS, Handling
from .lease import Lease
from .origin import Origin, Queued, Request
from .verdict import (
    COMPLETE,
    Bury,
    Defer,
    Failed,
    GiveBack,
    Release,
    Report,
    comes_until,
    decide,
    may_be_last,
    unavailable,
)

_log = get_logger("hookonce")

_FIRST_PAUSE_SECONDS = 0.1

_NONE: frozenset[str] = frozenset()
_QUARANTINED = Outcome(HTTPStatus.ACCEPTED, Reason.QUARANTINED)


class Phase(IntEnum):
    """How far an attempt has come. Before `LATE` it has the event to itself in this process."""

    CLAIMING = 0
    """It asks the store for the event."""
    HANDLING = 1
    """It has the event, and runs its handlers."""
    SUCCEEDED = 2
    """All handlers have succeeded, and the store records that."""
    FAILED = 3
    """The handlers have ended, and the store releases or buries the event."""
    LATE = 4
    """The lease ended before the store answered: others may have the event."""
    RETURNING = 5
    """A call to the store failed, and what it may have claimed is released; nobody waits."""
    ENDED = 6
    """What is left to do needs no claim."""


# Named once: in Python 3.11 a member costs a call of its class's property each time it is named.
CLAIMING, HANDLING, SUCCEEDED, FAILED, LATE, RETURNING, ENDED = Phase


@dataclass(slots=True, eq=False, repr=False)
class Attempt:
    """One attempt at an event, from its arrival to its end.

    Args:
        held: the claim that it begins with, where the store has granted one already.
        held_since: when that claim was asked for, by ``time.monotonic``.

    Attributes:
        dependencies: what it works with.
        delivery: what was delivered.
        origin: where it comes from.
        event: what was read from the delivery; None if it cannot be read.
        handlers: every handler that the event is for.
        fault: why the delivery cannot be read; empty if it can.
        ignored: the answer where this process has no handler for the event, and none is
            outstanding.
        key: what is handled once.
        phase: how far it has come.
        lease: what it holds.
        answer: what the request that brings it awaits.
        handling: its handlers.

    """

    dependencies: Dependencies
    delivery: Delivery
    origin: Origin
    event: Any = None
    handlers: Sequence[Handler] = ()
    fault: str = ""
    ignored: Outcome | None = None
    held: InitVar[Claimed | None] = None
    held_since: InitVar[float] = 0.0
    key: DeliveryKey = field(init=False)
    phase: Phase = CLAIMING
    lease: Lease = field(init=False)
    answer: Answer = field(init=False)
    handling: Handling = field(init=False)
    _queued: Queued | None = None  # the origin, if the inbox is
    _success: Outcome = HANDLED
    _token: Token | None = None

    def __post_init__(self, held: Claimed | None, held_since: float) -> None:
        dependencies, origin, due, last_chance = self.dependencies, self.origin, inf, False
        if isinstance(origin, Request):
            due = origin.answer_by
        else:
            last_chance = origin.is_last
            if isinstance(origin, Queued):
                self._queued = origin
        loop = asyncio.get_running_loop()
        self.key = key = self.delivery.key
        self.lease = lease = Lease(dependencies, self.delivery, key, self.handlers, loop)
        self.answer = Answer(loop.create_future(), due)
        calls = Calls(dependencies.threads, dependencies.limits.handler_timeout_seconds)
        self.handling = Handling(dependencies, lease, self.event, origin, calls, last_chance)
        if held is not None:
            lease.hold(held, held_since, loop.time() - (time.monotonic() - held_since))
            self.phase = HANDLING

    @property
    def task(self) -> asyncio.Task[None]:
        """Where it goes on."""
        return self.lease.task

    @property
    def has_the_event(self) -> bool:
        """Whether no other attempt of this process may have the event."""
        return self.phase < LATE

    @property
    def has_succeeded(self) -> bool:
        """Whether every handler has succeeded, recorded or not."""
        return self.phase is SUCCEEDED or self.answer.is_success

    @property
    def is_busy(self) -> bool:
        """Whether its handlers have still to end."""
        return self.phase <= HANDLING

    async def go(self) -> None:
        """Go the whole way: claim → handlers → settle."""
        origin, claim = self.origin, self.lease.claim or await self._claim()
        if claim is None:
            return
        if self.fault:
            await self._quarantine()
            return
        absent = self.lease.absent if claim.outstanding else _NONE
        if self.ignored is not None and not self.handlers and not absent:
            self.answer.give(self.ignored)
            await self._give_back()
            return
        if isinstance(origin, Request) and may_be_last(claim, origin.delivery_attempt):
            # Not even a crash of the last attempt may lose the event: keep its body first.
            until = comes_until(self.event, origin.sent_at)
            self.handling.last_chance = until is None
            if self.dependencies.store.keeps_bodies and not await self._is_kept(claim, until):
                self.answer.give(later(Reason.IN_FLIGHT))
                return
        report = await self.handling.run(absent)
        if report is None:
            await self._succeed(STALE if self.handling.is_stale else HANDLED)
        else:
            await self._fail(report)
            report.failures.clear()  # from Python 3.12 on their tracebacks lead here: a circle

    async def _claim(self) -> Claimed | None:
        """Claim the event; answer, and return None, where it cannot be had in time."""
        dependencies, lease, observers = self.dependencies, self.lease, self.dependencies.observers
        limits, store_seconds = dependencies.limits, dependencies.limits.store_seconds
        look, token, due = FIRST_LOOK_SECONDS, new_token(), self.answer.due
        self._token = token
        while not self.handling.is_refused:
            asked_at, now = time.monotonic(), lease.loop.time()
            try:
                result = await lease.ask(
                    dependencies.store.claim(self.key, token, limits.lease_seconds),
                    None if due - now > store_seconds else limits.store_seconds_within(due - now),
                )
            except StoreError as error:
                _log.error("cannot claim %s: %s", self.key, error)
                self.answer.give(unavailable(error))
                await self._give_up()
                return None
            if observers.look_closely and observers.wants(EventClaimed, self.delivery.event_id):
                observers.tell(EventClaimed(self.delivery, result))
            if result.__class__ is Claimed:
                lease.hold(result, asked_at, now)
                self.phase = HANDLING
                if not self.handling.is_refused:
                    return result
                await self._give_back()
            elif isinstance(result, InFlight):
                left = due - lease.loop.time()
                if left <= 0:
                    self.answer.give(later(Reason.IN_FLIGHT, result.until - dependencies.clock()))
                    return None
                await asyncio.sleep(min(look, left))
                look = min(2 * look, LONGEST_LOOK_SECONDS)
            else:
                self.answer.give(DUPLICATE if isinstance(result, Done) else ALREADY_DEAD)
                return None
        self.answer.give(later(Reason.SHUTTING_DOWN))
        return None

    async def _is_kept(self, claim: Claimed, until: float | None) -> bool:
        """Keep the body; return False if another attempt has the event by now.

        Args:
            claim: what the attempt runs under.
            until: until when the sender may bring the event again; None if it will not.

        """
        store = self.dependencies.store
        try:
            ownership = await self.lease.ask(store.keep(claim, self.delivery, dead_at=until))
        except StoreError as error:
            _log.error("could not keep %s for its last attempt: %s", self.key, error)
            return True
        return ownership is Ownership.HELD

    async def _quarantine(self) -> None:
        """Bury a genuine delivery that cannot be read, with its bytes, for a person to look at."""
        settlement = Bury(_QUARANTINED, self.fault, _NONE, DeadReason.UNREADABLE)
        ownership = await self._settle(settlement)
        if ownership is None:
            await self._give_up()
        elif ownership is Ownership.HELD:
            _log.error("%s cannot be read, and is a dead letter now: %s", self.key, self.fault)

    async def _succeed(self, outcome: Outcome) -> None:
        """Have the store record the success, and answer.

        A success that cannot be recorded is answered 200 as well: a 5xx would repeat it.
        """
        self.phase, self._success = SUCCEEDED, outcome
        if self._queued is not None:
            self._queued.room.set()
        await self.lease.settle(COMPLETE, self._store_failed)
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
        ownership = await self._settle(settlement)
        if isinstance(settlement, Defer) and not settlement.counts and ownership is Ownership.HELD:
            await self.handling.note_waiting()
        await self._report_failures(report, is_buried=isinstance(settlement, Bury))

    async def _settle(self, settlement: Failed) -> Ownership | None:
        """Have the store record a failure, answer, and let others have the event."""
        self.phase = FAILED
        if self._queued is not None:
            self._queued.room.set()
        if isinstance(settlement, Defer) and settlement.counts:
            await self.handling.forget_waiting()
        ownership = await self.lease.settle(settlement, self._store_failed)
        if self.phase is LATE or ownership is None:
            pass  # the answer was given when the store failed
        elif ownership is Ownership.LOST:
            # Another attempt has begun or even succeeded; its outcome is the one that counts.
            self.answer.give(later(Reason.IN_FLIGHT))
            self._notify_settled(later(Reason.IN_FLIGHT))
        else:
            self.answer.give(settlement.outcome)
            self._notify(settlement)
        self._leave()
        return ownership

    def _notify(self, settlement: Failed) -> None:
        delivery, number, tell = self.delivery, self.lease.number, self.dependencies.observers.tell
        match settlement:
            case Release(outcome):
                self._notify_settled(outcome)
            case Defer(_, error, _, after_seconds, counts=True):
                tell(EventRetried(delivery, number, after_seconds, error))
            case Defer(_, _, _, after_seconds):
                tell(EventParked(delivery, number, after_seconds))
            case Bury(_, error, _, reason):
                tell(EventBuried(delivery, number, reason, error))

    def _notify_settled(self, outcome: Outcome) -> None:
        observers = self.dependencies.observers
        if observers.look_closely and observers.wants(EventSettled, self.delivery.event_id):
            observers.tell(EventSettled(self.delivery, self.lease.number, outcome))

    def _store_failed(self, error: StoreError) -> bool:
        """Answer what is true while the store fails; return whether to ask it again."""
        is_over = self.lease.is_over
        if self.fault and self.phase is FAILED:
            _log.error("cannot bury %s: %s", self.key, error)
            self.answer.give(later(Reason.STORE_UNAVAILABLE))
            return False  # released, the event is free for the sender's next attempt
        if self.is_busy or self.phase is RETURNING:
            if is_over:
                _log.error("could not release %s; its lease will run out: %s", self.key, error)
            return not is_over
        has_succeeded = self.has_succeeded
        self.answer.give(self._success if has_succeeded else later(Reason.STORE_UNAVAILABLE))
        if is_over and self.phase is not LATE:
            if has_succeeded:
                _log.error(
                    "%s is handled, but that could not be recorded while its lease lived; until it"
                    " is, another process would handle a further delivery of it again: %s",
                    self.key,
                    error,
                )
            else:
                _log.error("could not settle %s; its lease runs out: %s", self.key, error)
                self._notify_settled(later(Reason.STORE_UNAVAILABLE))
            self.lease.leave_unrecorded()
            self._leave(LATE)
        return True

    async def _give_up(self) -> None:
        """Release what a failed call to the store may have claimed; nobody waits for that."""
        self._leave(RETURNING)
        await asyncio.sleep(_FIRST_PAUSE_SECONDS)
        await self._give_back()

    async def _give_back(self) -> None:
        """Release the claim of an attempt that stops, or that has begun no handler."""
        if self.lease.claim is None and self._token is not None:
            # The store may have granted the claim without being heard.
            lease = self.dependencies.limits.lease_seconds
            self.lease.adopt(Claimed(self.key, self._token, 1, frozenset(), lease))
        await self.lease.settle(GiveBack(self.handling.calls.under_way), self._store_failed)

    async def _report_failures(self, report: Report, *, is_buried: bool) -> None:
        """Log the failures, and call the error hooks."""
        if report.absent:
            _log.error(
                "%s owes handlers that are not registered for it here and is left to a process"
                " that has them: %s",
                self.key,
                ", ".join(sorted(report.absent)),
            )
        # A retry that a handler asked for is no failure, unless it asked in vain.
        failures = report.failures if is_buried else report.errors
        if not failures:
            return
        count, number = len(failures), self.lease.number
        group = ExceptionGroup(
            f"{count} handler{'s' if count > 1 else ''} of {self.event.type} failed",
            [failure.error for failure in failures],
        )
        if all(isinstance(failure.error, Reject | Retry) for failure in failures):
            text = report.describe()
            _log.warning("attempt %d at %s was its last: %s", number, self.key, text)
        else:
            _log.error("attempt %d at %s failed", number, self.key, exc_info=group)
        if hooks := self.dependencies.router.error_hooks:
            names = ", ".join(failure.handler for failure in failures)
            await self.handling.call_hooks(hooks, group, names)

    def look(self, now: float) -> None:
        """Do what is due: called by the loop monitor every now and then."""
        self.lease.look(now)
        if now >= self.answer.due and self.lease.claim is not None:
            self.answer.due = inf
            self.answer.give(self._success if self.has_succeeded else later(Reason.STILL_RUNNING))
        self.handling.calls.look(now)

    def adopt(self, claim: Claimed) -> bool:
        """Go on under a new claim, which the store has granted after this lease was lost.

        Return False for an attempt that cannot have one: it still asks for a claim itself.
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
        """Begin no handler, unless the attempt has claimed the event already."""
        self.handling.is_refused = True

    def stop(self) -> None:
        """Cancel its handlers, and release its claim with what has succeeded."""
        self.handling.calls.is_stopping = True
        self.task.cancel()

    async def stopped(self) -> None:
        """Give the event back after a cancellation, with what has succeeded."""
        self.lease.accept_cancellation()
        if self.phase is SUCCEEDED:
            self.answer.give(self._success)
        elif self.is_busy:
            self.answer.give(later(Reason.SHUTTING_DOWN))
            if self.lease.claim is not None or self._token is not None:
                await self._give_back()

    def broke_off(self, error: Exception) -> None:
        """Answer after an error of ours: a router or an observer that breaks its contract."""
        _log.error("an attempt at %s broke off", self.key, exc_info=error)
        self.answer.give(BROKEN)

    def end(self) -> None:
        """Let nobody wait for it any longer, however its task has ended."""
        if self.phase is not ENDED:
            self.lease.stop_extending()
            self._leave()
        if self.answer.outcome is None:
            self.answer.give(later(Reason.SHUTTING_DOWN))

    def _leave(self, phase: Phase = ENDED) -> None:
        """Let others have the event."""
        if (queued := self._queued) is not None:
            queued.room.set()
            if self.phase is not SUCCEEDED:
                queued.work.set()  # nobody else wakes an idle worker when the event is due again
        self.phase = phase
        if self.answer.joined is not None:
            self.answer.wake()
