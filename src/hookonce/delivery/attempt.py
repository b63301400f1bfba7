"""One attempt at an event: claim → handlers → settle.

`Attempt.go` reads straight down. The attempt has a task of its own, which a lost connection does
not cancel. The request that began the attempt awaits its answer. Copies of the delivery, and
workers that fetch the same event, join the attempt, so that an event is never handled twice at
once. The attempt *has* a lease, an answer, a handling and an origin: the lease holds the claim, the
handling runs the handlers, and the pure function `decide` says what follows.

An attempt ends in one of four ways:

not begun   The event is done, dead or in flight elsewhere. The attempt only answers.
settled     The handlers have ended. The store completes, releases, defers or buries the event.
abandoned   There is no settlement, because of a shutdown, a failed call to the store, or no handler
            for the event. The store releases the claim.
broken off  An unexpected error. The attempt only answers, and its lease runs out.

`Attempts` calls `enforce_limits` every few milliseconds: it cancels each wait that takes too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from math import inf
from typing import Any

from ..errors import StoreError
from ..logs import get_logger
from ..outcome import BROKEN, Outcome, Reason, later
from ..routing.handler import Handler
from ..stores.formats import DamagedError
from ..stores.time_limit import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from ..stores.values import Claimed, DeadReason, Delivery, Ownership
from ..watching.records import EventSettled
from .abandoning import abandon
from .answer import Answer
from .calls import Call, Calls, end_by_force
from .dependencies import Dependencies
from .failures import notify_end, report_failures
from .handling import Handling
from .instant import Instant
from .keeping import keep_body
from .lease import Lease
from .origin import Origin, Queued, Request
from .unhandled import Unhandled, Unreadable
from .verdict import (
    COMPLETE,
    Bury,
    Complete,
    Defer,
    Release,
    Report,
    Settlement,
    decide,
    may_be_last,
    not_claimed,
    redelivered_until,
    store_failed,
    what_follows,
)

_log = get_logger("hookonce")

_NONE: frozenset[str] = frozenset()
_QUARANTINED = Outcome(HTTPStatus.ACCEPTED, Reason.QUARANTINED)
# The answer after a lost claim: another attempt has the event, and its outcome counts.
_CLAIMED_SINCE = later(Reason.IN_FLIGHT)


class Attempt:
    """One attempt at an event, from its arrival to its end.

    Its claim, `settlement` and `has_the_event` show how far it has come. Each changes only once:

    claim    settlement    has the event
    -        -             yes    the attempt asks the store for the event
    granted  -             yes    its handlers run
    granted  decided       yes    the store records the settlement
    granted  decided       no     late: the lease ended before the store recorded the settlement
    either   -             no     abandoned: the store has failed, and may have granted the claim

    In the last two rows the attempt still calls the store, and another attempt of this process may
    claim the event. At its end, each attempt lets go of the event.

    Args:
        dependencies: what all attempts of the receiver share.
        delivery: what was delivered.
        origin: where the attempt comes from.
        event: the parsed event; None if the delivery cannot be read.
        handlers: every handler that the event is for.
        unhandled: why no handler of this process runs; None if there are handlers.

    Attributes:
        delivery: as above.
        lease: the claim, and the calls to the store about it.
        answer: what the request awaits.
        handling: runs the handlers.
        task: the attempt's own task; set by `start`.
        settlement: what the store records; None until the handlers have ended.
        has_the_event: whether this attempt prevents other attempts of this process from claiming
            the event.
        is_given_up: whether a shutdown has given up waiting for the attempt.
    """

    __slots__ = (
        "_origin",
        "_unhandled",
        "answer",
        "delivery",
        "dependencies",
        "handling",
        "has_the_event",
        "is_given_up",
        "lease",
        "settlement",
        "task",
    )

    task: asyncio.Task[None]

    def __init__(
        self,
        dependencies: Dependencies,
        delivery: Delivery,
        origin: Origin,
        event: Any = None,
        handlers: Sequence[Handler] = (),
        unhandled: Unhandled | None = None,
    ) -> None:
        loop, limits = asyncio.get_running_loop(), dependencies.limits
        self.dependencies: Dependencies = dependencies
        self.delivery: Delivery = delivery
        self._origin = origin
        self._unhandled = unhandled
        self.lease: Lease = Lease(dependencies, delivery, delivery.key, handlers, loop)
        self.answer: Answer = Answer(loop.create_future())
        calls = Calls(dependencies.threads, limits.handler_timeout_seconds, loop)
        self.handling: Handling = Handling(self.lease, event, origin, calls)
        self.settlement: Settlement | None = None
        self.has_the_event: bool = True
        self.is_given_up: bool = False

    @property
    def calls(self) -> Sequence[Call]:
        """The calls of handlers that have not ended."""
        return self.handling.calls.under_way

    @property
    def has_succeeded(self) -> bool:
        """Whether every handler has succeeded, even if the store does not know it yet."""
        return isinstance(self.settlement, Complete)

    @property
    def is_busy(self) -> bool:
        """Whether the attempt still claims the event or runs its handlers."""
        return self.settlement is None and self.has_the_event

    @property
    def is_only_releasing(self) -> bool:
        """Whether the attempt only releases a claim, which the store may never have granted."""
        return self.settlement is None and not self.has_the_event

    def begin_with(self, claim: Claimed, asked_at: Instant) -> None:
        """Begin with a claim that the store has granted already."""
        self.lease.begin(claim, *asked_at)

    def start(self, on_end: Callable[[Attempt], None]) -> asyncio.Task[None]:
        """Run the attempt in a task of its own, then call ``on_end``; return the task."""
        # Do not use the loop's task factory: an eager task would run before `Attempts` knows it.
        lease = self.lease
        self.task = task = asyncio.Task(self._run(on_end), loop=lease.loop, name=lease.key)
        return task

    async def _run(self, on_end: Callable[[Attempt], None]) -> None:
        """Run the attempt to its end, whatever happens."""
        try:
            await self.go()
        except asyncio.CancelledError:
            await self._end_after_cancellation()
        except Exception as error:  # noqa: BLE001 - the waiting request needs an answer after any error
            _log.error(
                "an attempt at %s broke off",
                self.lease.key,
                exc_info=error,
                extra=self.lease.log_fields(),
            )
            self.answer.give(BROKEN)
        self.let_go()
        on_end(self)

    async def go(self) -> None:
        """Run the whole attempt: claim, run the handlers, settle."""
        lease, origin = self.lease, self._origin
        if (claim := lease.claim or await self._claim()) is None:
            return
        absent = lease.absent if claim.outstanding else _NONE
        if (unhandled := self._unhandled) is not None:
            if isinstance(unhandled, Unreadable):
                await self._quarantine(unhandled.fault)
                return
            if not absent:
                await self._abandon(unhandled.outcome)
                return
        last_chance = origin.is_last
        if isinstance(origin, Request) and may_be_last(
            self.dependencies.rules, claim, origin.delivery_attempt
        ):
            until = self._redelivered_until(origin)
            if await keep_body(lease, until) is Ownership.LOST:
                self.answer.give(_CLAIMED_SINCE)
                return
            last_chance = until is None
        report = await self.handling.run(absent, last_chance=last_chance)
        if isinstance(origin, Queued):
            origin.leave_place()
        if report is not None:
            await self._fail(report)
            report.failures.clear()  # break a reference cycle: see calls.py
            return
        await self._record(COMPLETE)
        # Answer 200 even if the store has failed: after a 5xx the handlers would run again.
        self.answer.give(success := self.handling.success)
        observers = self.dependencies.observers
        if observers.look_closely:
            observers.notify_of(EventSettled, self.delivery, lease.number, success)

    async def _claim(self) -> Claimed | None:
        """Ask the store for the event; if it grants no claim, answer and return None."""
        try:
            result = await self.lease.acquire(self._origin.answer_due)
        except StoreError as error:
            await self._claim_failed(error)
            return None
        if not isinstance(result, Claimed):
            self.answer.give(not_claimed(result, self.dependencies.clock()))
            return None
        if self.lease.is_shutting_down:
            await self._abandon(later(Reason.SHUTTING_DOWN))
            return None
        return result

    async def _claim_failed(self, error: StoreError) -> None:
        """Log a failure of the store, and abandon the claim that the store may have granted."""
        self._log_error("cannot claim %s: %s", error)
        if isinstance(error, DamagedError):
            # The store has set the event's record aside. Add the body, so that it can be replayed.
            with suppress(StoreError):
                await self.lease.ask(self.dependencies.store.keep_in_flight(self.delivery))
        await self._abandon(store_failed(error), after_error=True)

    async def _quarantine(self, fault: str) -> None:
        """Turn a genuine but unreadable delivery into a dead letter with its raw bytes."""
        settlement = Bury(_QUARANTINED, fault, frozenset(), DeadReason.UNREADABLE)
        try:
            is_held = await self.lease.settle(settlement) is Ownership.HELD
        except StoreError as error:
            self._log_error("cannot bury %s: %s", error)
            # Release the event, so that the sender's next attempt can claim it.
            await self._abandon(later(Reason.STORE_UNAVAILABLE), after_error=True)
            return
        self.answer.give(outcome := _QUARANTINED if is_held else _CLAIMED_SINCE)
        notify_end(self.lease, outcome, settlement if is_held else None)
        if is_held:
            self._log_error("%s cannot be read, and is a dead letter now: %s", fault)

    async def _fail(self, report: Report) -> None:
        """Release, defer or bury the event, then answer accordingly."""
        self.settlement = settlement = decide(
            report,
            last_chance=self.handling.last_chance,
            keeps_bodies=self.dependencies.store.keeps_bodies,
            backoff_seconds=self._origin.backoff_seconds,
        )
        if isinstance(settlement, Release):
            await self._keep_first_body()
        waits = self.handling.waits
        if waits is not None and isinstance(settlement, Defer) and settlement.counts:
            await waits.leave_queues()
        is_held = await self._record(settlement) is Ownership.HELD
        if self.has_the_event:  # otherwise `_answer_unrecorded` has given the answer
            self.answer.give(outcome := settlement.outcome if is_held else _CLAIMED_SINCE)
            notify_end(self.lease, outcome, settlement if is_held else None)
        self.let_go()
        only_waits = isinstance(settlement, Defer) and not settlement.counts
        if waits is not None and only_waits and is_held:
            await waits.join_queues()
        generation = self._origin.generation
        then = what_follows(settlement, generation) if is_held else "another attempt follows"
        await report_failures(
            self.handling, report, is_final=isinstance(settlement, Bury), then=then
        )

    async def _keep_first_body(self) -> None:
        """Keep the body of a first attempt if the sender publishes no number of attempts.

        ``go`` keeps the body before each later attempt, in case this call fails.
        """
        origin = self._origin
        if (
            isinstance(origin, Request)
            and self.dependencies.rules.attempts is None
            and self.lease.number <= 1
        ):
            await keep_body(self.lease, self._redelivered_until(origin))

    def _redelivered_until(self, origin: Request) -> float | None:
        """Return until when the sender may deliver the event again; None if it will not."""
        return redelivered_until(self.dependencies.rules, self.handling.event, origin.sent_at)

    async def _record(self, settlement: Settlement) -> Ownership:
        """Record a settlement in the store; repeat the call until the store has recorded it.

        Returns:
            Whether this attempt still owned the event. LOST also if a later attempt of this process
            has taken over the successes.
        """
        self.settlement, pause = settlement, FIRST_PAUSE_SECONDS
        while True:
            try:
                ownership = await self.lease.settle(settlement)
            except StoreError as error:
                self._answer_unrecorded(error)
            else:
                if not self.has_the_event:
                    self.lease.forget_unrecorded()
                return ownership
            await asyncio.sleep(pause)
            if not self.has_the_event and not self.lease.is_unrecorded:
                return Ownership.LOST
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _answer_unrecorded(self, error: StoreError) -> None:
        """Answer although the store has failed; after the lease, others may claim the event."""
        outcome = self.handling.success if self.has_succeeded else later(Reason.STORE_UNAVAILABLE)
        self.answer.give(outcome)
        if not self.lease.is_over or not self.has_the_event:
            return
        if self.has_succeeded:
            self._log_error(
                "handled %s, but its lease ended before the store recorded it; until it is"
                " recorded, another process may handle the event again: %s",
                error,
            )
        else:
            self._log_error("could not settle %s; its lease runs out: %s", error)
            notify_end(self.lease, outcome)
        self.lease.leave_unrecorded()
        self.let_go()

    async def _abandon(self, outcome: Outcome, *, after_error: bool = False) -> None:
        """Answer, and release the claim without a settlement.

        Args:
            outcome: the answer.
            after_error: whether the store has just failed; it gets a pause, during which other
                attempts of this process may claim the event.
        """
        self.answer.give(outcome)
        if after_error:
            self.let_go()
            await asyncio.sleep(FIRST_PAUSE_SECONDS)
        await abandon(self.handling)

    def enforce_limits(self, now: float) -> None:
        """Extend the lease, answer the request and cancel handlers, each at its own time."""
        lease, answer = self.lease, self.answer
        lease.enforce_limits(now, self.task)
        if now >= self._origin.answer_due and lease.claim is not None and answer.outcome is None:
            still_running = later(Reason.STILL_RUNNING)
            answer.give(self.handling.success if self.has_succeeded else still_running)
        self.handling.calls.enforce_limits(now, lease.log_fields)

    def adopt(self, claim: Claimed) -> None:
        """Continue under a claim that the store granted after this lease was lost."""
        self.lease.adopt(claim)
        if self.settlement is None or self.has_succeeded:
            self.lease.checkpoint_soon()
        else:
            self.lease.stop_extending()

    def stop(self) -> None:
        """Cancel the handlers; the cancelled task then abandons the event."""
        self.handling.calls.stop()
        self.task.cancel()

    async def _end_after_cancellation(self) -> None:
        """Abandon the event after a cancellation, unless its handlers had ended."""
        while self.task.uncancel():  # otherwise the calls to the store below would be cancelled
            pass
        if self.has_succeeded:
            self.answer.give(self.handling.success)
        elif self.is_busy:
            if self.lease.claim is not None:
                await self._keep_first_body()
            await self._abandon(later(Reason.SHUTTING_DOWN))

    def give_up(self) -> None:
        """End the attempt by force, because its handlers or its calls to the store do not end."""
        self.is_given_up = True
        names = [call.name for call in self.calls]
        _log.error(
            "gave up waiting for %s, which is handling %s",
            ", ".join(names) or "the store",
            self.lease.key,
            extra=self.lease.log_fields(names[0] if len(names) == 1 else None),
        )
        for task in (*(call.task for call in self.calls), self.task):
            if task is not None:
                end_by_force(task)

    def let_go(self) -> None:
        """Let go of the event: other attempts may claim it. Wake all requests that wait."""
        if not self.has_the_event:
            return
        self.has_the_event = False
        if self.lease.extend_at < inf:
            self.lease.stop_extending()
        if isinstance(self._origin, Queued):
            self._origin.end(is_due=not self.has_succeeded)
        if self.answer.outcome is None or self.answer.joined is not None:
            self.answer.end()

    def _log_error(self, text: str, fault: StoreError | str) -> None:
        """Log an error; ``text`` has placeholders for the event's key and for ``fault``."""
        _log.error(text, self.lease.key, fault, extra=self.lease.log_fields())
