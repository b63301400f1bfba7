"""One event on its way through this process: claim → handlers → settle.

A run reads straight down. It has a task of its own, which no lost connection can cancel; the
request that began it awaits its answer, and copies and workers that meet it join it, so that an
event never runs beside itself. Time limits are the watchman's: it looks at the moments that a run
has put down, and cancels a wait that takes too long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import InitVar, dataclass
from functools import partial
from http import HTTPStatus
from math import inf
from typing import TypeVar

from ..errors import Reject, Retry, StoreError
from ..stores.tokens import new_token
from ..stores.values import Claimed, DeadReason, Done, InFlight, Ownership
from ..verification.loggers import get_logger
from .calls import Calls
from .handling import FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS, Handling
from .outcome import ALREADY_DEAD, BROKEN, DUPLICATE, Outcome, Reason, later
from .presence import FAILED, HANDLING, LATE, SUCCEEDED
from .records import EventBuried, EventClaimed, EventParked, EventRetried
from .verdict import (
    Report,
    Verdict,
    comes_until,
    decide,
    may_be_last,
    unavailable,
    wait_seconds,
)

_log = get_logger("hookonce")

T = TypeVar("T")

_NONE: frozenset[str] = frozenset()
_QUARANTINED = Outcome(HTTPStatus.ACCEPTED, Reason.QUARANTINED)


@dataclass(slots=True, eq=False, repr=False)
class Run(Handling):
    """An event under way, from its arrival to its end.

    Args:
        claimed_at: when the claim was asked for that it begins with, by ``time.monotonic``.

    Attributes:
        fault: why the delivery cannot be read, if it cannot.
        ignored: the answer where nobody here is registered for it, and it owes nobody anything.

    """

    fault: str = ""
    ignored: Outcome | None = None
    claimed_at: InitVar[float] = 0.0

    def __post_init__(self, claimed_at: float) -> None:
        parts, self.key = self.parts, self.delivery.key
        self._loop = loop = asyncio.get_running_loop()
        self.answer = loop.create_future()
        self.finished = set()
        self.calls = Calls(parts.threads, parts.limits.handler_timeout_seconds)
        if self.claim is not None:
            self._hold(self.claim, claimed_at, loop.time() - (time.monotonic() - claimed_at))
            self.phase = HANDLING

    def look(self, now: float) -> None:
        """Do what is due: called by the watchman, every now and then."""
        Handling.look(self, now)  # data classes with slots are made anew: super() knows them not
        if now >= self.answer_by and self.claim is not None:
            self.answer_by = inf
            self._answer(self._success if self.has_succeeded else later(Reason.STILL_RUNNING))
        self.calls.look(now)

    async def go(self) -> None:
        """Go the whole way: claim → handlers → settle."""
        claim = self.claim or await self._obtain()
        if claim is None:
            return
        if self.fault:
            await self._quarantine(claim)
            return
        parts, handlers = self.parts, self.handlers
        absent = claim.owed - {h.name for h in handlers} - self.finished if claim.owed else _NONE
        if not handlers and not absent and self.ignored is not None:
            self._answer(self.ignored)
            await self._give_back()
            return
        is_request = self.backoff_seconds is None and not self.is_replay
        if is_request and may_be_last(claim, self.delivery_attempt):
            until = comes_until(self.event, self.sent_at)
            self.last_chance = until is None
            if parts.store.keeps_bodies and not await self._is_kept(claim, until):
                self._answer(later(Reason.IN_FLIGHT))
                return
        if self.finished:
            handlers = [handler for handler in handlers if handler.name not in self.finished]
        self._most_finished = len(self.finished) + len(handlers)
        if len(handlers) == 1:
            run = self._run if handlers[0].keyed is None else self._run_in_turn
            failure = await run(handlers[0], self.task)
            failures = [] if failure is None else [failure]
            del failure  # from Python 3.12 on its traceback leads here: a circle
        else:
            failures = await self._run_all(handlers)
        if failures or absent:
            await self._fail(Report(failures, absent))
            failures.clear()  # their tracebacks may lead here: a circle, with the body in it
        else:
            if self._turns is not None:
                self._turns.all_stale = self._turns.stale == len(handlers)
            await self._succeed()

    async def _obtain(self) -> Claimed | None:
        """Claim the event; answer, and return None, where it cannot be had in time."""
        limits, store, observers = self.parts.limits, self.parts.store, self.parts.observers
        look, token = FIRST_LOOK_SECONDS, new_token()
        self._token = token
        while not self._is_refused:
            asked_at, now = time.monotonic(), self._loop.time()
            seconds, left = limits.store_seconds, self.answer_by - now
            if left < seconds:
                seconds = min(seconds, max(left, limits.last_look_seconds))
            try:
                result = await self._ask(
                    store.claim(self.key, token, limits.lease_seconds), seconds
                )
            except StoreError as error:
                _log.error("cannot claim %s: %s", self.key, error)
                self._answer(unavailable(error))
                await self._return()
                return None
            if observers.look_closely and observers.wants(EventClaimed, self.delivery.event_id):
                observers.tell(EventClaimed(self.delivery, result))
            if result.__class__ is Claimed:
                self._hold(result, asked_at, now)
                self.phase = HANDLING
                if not self._is_refused:
                    return result
                await self._give_back()
            elif isinstance(result, InFlight):
                left = self.answer_by - self._loop.time()
                if left <= 0:
                    self._answer(later(Reason.IN_FLIGHT, result.until - self.parts.clock()))
                    return None
                await asyncio.sleep(min(look, left))
                look = min(2 * look, LONGEST_LOOK_SECONDS)
            else:
                self._answer(DUPLICATE if isinstance(result, Done) else ALREADY_DEAD)
                return None
        self._answer(later(Reason.SHUTTING_DOWN))
        return None

    async def _is_kept(self, claim: Claimed, until: float | None) -> bool:
        """Keep the body, so that not even a crash of the last attempt can lose the event.

        Until then the sender may bring it again; None if it will not. Return False if somebody else
        has the event by now.
        """
        try:
            ownership = await self._ask(self.parts.store.keep(claim, self.delivery, dead_at=until))
        except StoreError as error:
            _log.error("could not keep %s for its last attempt: %s", self.key, error)
            return True
        return ownership is Ownership.HELD

    async def _succeed(self) -> None:
        """Record the success; the answer is 200 even if that fails, since a 5xx would repeat it."""
        self.phase = SUCCEEDED
        if self.room is not None:
            self.room.set()
        try:
            await self._ask(self.parts.store.complete(self._held()))
        except StoreError as error:
            self._goes_on_unrecorded(error)
            await self._record(self._completing)
        self._leave()
        success = self._success
        self._answer(success)
        self._tell_settled(success)

    async def _fail(self, report: Report) -> None:
        """Release or bury the event, and give the answer that is true after that."""
        self.phase = FAILED
        self._let_go()  # extended for ever, a claim that cannot be given back would never be free
        if self.room is not None:
            self.room.set()
        verdict = decide(
            report, last_chance=self.last_chance, keeps_bodies=self.parts.store.keeps_bodies
        )
        after, tell = None, self.parts.observers.tell
        error = "" if report.only_waits else report.describe()
        if self.backoff_seconds is not None:
            after = wait_seconds(report, self.backoff_seconds)
            if not report.only_waits:
                await self._wait_for_no_turn()
        ownership = await self._record(partial(self._giving_up, verdict, report, error, after))
        if self.phase is LATE:
            pass  # what stands was said when the lease was over
        elif ownership is Ownership.LOST:
            # Another attempt has begun or even succeeded; its outcome is the one that counts.
            self._answer(later(Reason.IN_FLIGHT))
            self._tell_settled(later(Reason.IN_FLIGHT))
        else:
            self._answer(verdict.outcome)
            if verdict.dead is not None:
                tell(EventBuried(self.delivery, self.number, verdict.dead, error))
            elif after is not None and report.only_waits:
                tell(EventParked(self.delivery, self.number, after))
            elif after is not None:
                tell(EventRetried(self.delivery, self.number, after, error))
            else:
                self._tell_settled(verdict.outcome)
        self._leave()
        if after is not None and report.only_waits and ownership is Ownership.HELD:
            await self._wait_to_be_called()
        await self._tell(report, is_buried=verdict.dead is not None)

    async def _quarantine(self, claim: Claimed) -> None:
        """Bury a genuine delivery that cannot be read, with its bytes, for a person to look at."""
        store, fault = self.parts.store, self.fault
        self._let_go()
        try:
            ownership = await self._ask(
                store.bury(claim, DeadReason.UNREADABLE, error=fault, delivery=self.delivery)
            )
        except StoreError as error:
            _log.error("cannot bury %s: %s", self.key, error)
            self._answer(later(Reason.STORE_UNAVAILABLE))
            await self._return()
            return
        if ownership is Ownership.LOST:
            self._answer(later(Reason.IN_FLIGHT))
            return
        _log.error("%s cannot be read, and is a dead letter now: %s", self.key, fault)
        self._answer(_QUARANTINED)
        self.parts.observers.tell(
            EventBuried(self.delivery, self.number, DeadReason.UNREADABLE, fault)
        )

    def broke_off(self, error: Exception) -> None:
        """Answer after what nobody expects: a router or an observer that breaks its contract."""
        _log.error("an attempt at %s broke off", self.key, exc_info=error)
        self._answer(BROKEN)

    async def stopped(self) -> None:
        """Give the event back after a cancellation, with what has succeeded."""
        self._cancelled = self.task.cancelling()
        if self.phase is SUCCEEDED:
            self._answer(self._success)
        elif self.is_busy:
            self._answer(later(Reason.SHUTTING_DOWN))
            if self.claim is not None or self._token is not None:
                await self._give_back()

    async def _tell(self, report: Report, *, is_buried: bool) -> None:
        """Log the failures, and tell the error hooks of them."""
        # A retry that was asked for is no failure, unless it was asked for in vain.
        failures = report.failures if is_buried else report.errors
        if report.absent:
            _log.error(
                "%s owes handlers that are not registered for it here and is left to a process"
                " that has them: %s",
                self.key,
                ", ".join(sorted(report.absent)),
            )
        if not failures:
            return
        count = len(failures)
        group = ExceptionGroup(
            f"{count} handler{'s' if count > 1 else ''} of {self.event.type} failed",
            [failure.error for failure in failures],
        )
        if all(isinstance(failure.error, Reject | Retry) for failure in failures):
            text = report.describe()
            _log.warning("attempt %d at %s was its last: %s", self.number, self.key, text)
        else:
            _log.error("attempt %d at %s failed", self.number, self.key, exc_info=group)
        context = self._context(", ".join(failure.handler for failure in failures))
        for hook in self.parts.router.error_hooks:
            arguments = (group, self.event, context)[: hook.arguments]
            raised = await self.calls.call("on_error", hook.function, hook.is_async, arguments)
            if raised is not None:
                _log.error("an on_error function failed", exc_info=raised)
            del raised  # its traceback may lead here: a circle

    def _completing(self) -> Awaitable[None]:
        return self.parts.store.complete(self._held())

    def _giving_up(
        self, verdict: Verdict, report: Report, error: str, after: float | None
    ) -> Awaitable[Ownership]:
        claim, finished = self._held(), frozenset(self.finished)
        store, inbox = self.parts.store, self.parts.inbox
        if verdict.dead is not None:
            return store.bury(
                claim,
                verdict.dead,
                error=error,
                finished=finished,
                owed=report.owed,
                delivery=self.delivery,
            )
        if inbox is None or after is None:
            # Where only the sender brings it again, it also counts.
            return store.release(claim, finished, error, owed=report.owed, began=self._has_begun)
        began = not report.only_waits
        return inbox.retry(claim, after, finished, error, owed=report.owed, began=began)
