"""One event on its way through this process: claim → handlers → settle.

A run reads straight down. It has a task of its own, which no lost connection can cancel; the
request that began it awaits its answer, and copies and workers that meet it join it, so that an
event never runs beside itself. Time limits are the watchman's: it looks at the moments that a run
has put down, and cancels a wait that takes too long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from http import HTTPStatus
from math import inf
from typing import Any, TypeVar, cast

from ..errors import Reject, Retry, StoreError
from ..events import Event
from ..stores.tokens import new_token
from ..stores.values import (
    Claimed,
    Dead,
    DeadReason,
    Delivery,
    Done,
    InFlight,
    Ownership,
    Token,
)
from ..verification.loggers import get_logger
from .context import Context
from .dispatch import Dispatcher
from .handler import Handler
from .lease import BrokenStoreError, Lease
from .outcome import ALREADY_DEAD, BROKEN, DUPLICATE, HANDLED, Outcome, Reason, later
from .parts import Parts
from .records import EventBuried, EventClaimed, EventRetried, EventSettled
from .verdict import Bury, Complete, Release, Report, decide, is_last_chance, wait_seconds

__all__ = ["Run"]

_log = get_logger("hookonce")

T = TypeVar("T")

# How often another process's claim is looked at: soon at first, since most handlers are quick.
_FIRST_LOOK_SECONDS = 0.05
_LONGEST_LOOK_SECONDS = 0.5

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0

_NONE: frozenset[str] = frozenset()
_QUARANTINED = Outcome(HTTPStatus.ACCEPTED, Reason.QUARANTINED)


class Run(Lease):
    """An event under way, from its arrival to its end.

    Args:
        parts: what it works with.
        dispatcher: runs its handlers.
        delivery: what was delivered.
        event: what was read from it; None if it cannot be read.
        handlers: every handler the event is for; those that have finished are left out.

    Attributes:
        outcome: the answer that stands at the moment.
        is_busy: whether it has still to end its handlers.
        has_succeeded: whether every handler has, recorded or not.
        is_errand: whether it only gives back what it may have claimed, and nobody waits for it.
        is_stopping: whether it is being cancelled at a shutdown, or with its loop.
        is_refused: whether a shutdown has begun, so that it may not begin with a handler.
        answer: what the request that began it awaits, if one did.
        answer_by: when it must have its answer, in the event loop's time.
        claimed_at: when the claim it was begun with was asked for, by ``time.monotonic``.
        delivery_attempt: the sender's own count, unsigned.
        backoff_seconds: for an event of the inbox, how long it waits if this attempt fails.
        last_chance: whether nobody may have the event any more if this attempt fails.
        is_replay: whether an operator replays a dead letter.
        fault: why the delivery cannot be read, if it cannot.
        ignored: the answer where nobody here is registered for it, and it owes nobody anything.
        room: set when a worker may begin one event more.
        work: set when the event is due again some time.

    """

    outcome: Outcome | None = None
    is_busy = True
    has_succeeded = False
    is_errand = False
    is_stopping = False
    is_refused = False

    answer: asyncio.Future[Outcome] | None = None
    answer_by = inf
    claimed_at = 0.0
    delivery_attempt: int | None = None
    backoff_seconds: float | None = None
    last_chance = False
    is_replay = False
    fault = ""
    ignored: Outcome | None = None
    room: asyncio.Event | None = None
    work: asyncio.Event | None = None

    _token: Token | None = None
    _most_finished = 0
    _joined: Sequence[tuple[asyncio.Future[None], float]] = ()

    def __init__(
        self,
        parts: Parts,
        dispatcher: Dispatcher,
        delivery: Delivery,
        event: Event[Any] | None,
        handlers: Sequence[Handler],
    ) -> None:
        super().__init__(parts, delivery, handlers)
        self._dispatcher = dispatcher
        self.event = cast("Event[Any]", event)  # no handler is called for one that is unreadable

    @property
    def number(self) -> int:
        """Which attempt at the event it is, from 1."""
        return 1 if self.claim is None else self.claim.attempt

    def context(self, handler: str) -> Context:
        """Return what the handler of that name is told."""
        return Context(
            key=self.key,
            endpoint=self.delivery.endpoint,
            event_id=self.event.id,
            event_type=self.event.type,
            handler=handler,
            attempt=self.number,
            delivery_attempt=self.delivery_attempt,
            last_chance=self.last_chance,
            is_replay=self.is_replay,
            received_at=self.delivery.received_at,
            body=self.delivery.body,
        )

    def has_finished(self, handler: str) -> None:
        """Note that a handler has succeeded; written down soon if others go on."""
        self.finished.add(handler)
        if len(self.finished) < self._most_finished:
            self._checkpoint_soon()

    # What others do with it

    async def settled(self, by: float) -> bool:
        """Return whether it has ended, or succeeded, before that moment of the loop's time."""
        joined = self._loop.create_future()
        self._joined = [*self._joined, (joined, by)]
        await joined
        return self.is_settled or self.has_succeeded

    def stop(self) -> None:
        """Cancel it: its handlers, and then its claim, with what has succeeded."""
        self.is_stopping = True
        self.task.cancel()

    def look(self, now: float) -> None:
        """Do what is due: called by the watchman, every now and then."""
        super().look(now)
        if now >= self.answer_by and self.claim is not None:
            self.answer_by = inf
            self._answer(HANDLED if self.has_succeeded else later(Reason.STILL_RUNNING))
        for call in self.calls:
            call.look(now, self._parts.limits.handler_timeout_seconds)
        if self._joined:
            self._wake_joined(now)

    # The way

    async def go(self) -> None:
        """Go the whole way."""
        try:
            if self.claim is not None:
                self._hold(self.claim, self.claimed_at)
            elif not await self._obtain():
                return
            if self.fault:
                await self._quarantine()
            else:
                await self._handle()
        except asyncio.CancelledError:
            await self._stopped()
        except Exception as error:  # noqa: BLE001 - a store or router that breaks its contract
            _log.error("an attempt at %s broke off", self.key, exc_info=error)
            self._answer(BROKEN)

    async def _obtain(self) -> bool:
        """Claim the event; answer, and return False, where it cannot be had in time."""
        parts = self._parts
        look, token = _FIRST_LOOK_SECONDS, new_token()
        self._token = token
        while not self.is_refused:
            asked_at, left = time.monotonic(), self.answer_by - self._loop.time()
            try:
                result = await self._ask(
                    parts.store.claim(self.key, token, parts.limits.lease_seconds),
                    max(left, parts.limits.last_look_seconds),
                )
            except StoreError as error:
                _log.error("cannot claim %s: %s", self.key, error)
                is_broken = isinstance(error, BrokenStoreError)
                self._answer(BROKEN if is_broken else later(Reason.STORE_UNAVAILABLE))
                await self._run_errand(token)
                return False
            if parts.observers.wants(EventClaimed, self.delivery.event_id):
                parts.observers.tell(EventClaimed(self.delivery, result))
            match result:
                case Claimed():
                    self._hold(result, asked_at)
                    if not self.is_refused:
                        return True
                    await self._give_back()
                case Done():
                    self._answer(DUPLICATE)
                    return False
                case Dead():
                    self._answer(ALREADY_DEAD)
                    return False
                case InFlight(until):
                    left = self.answer_by - self._loop.time()
                    if left <= 0:
                        self._answer(later(Reason.IN_FLIGHT, until - parts.clock()))
                        return False
                    await asyncio.sleep(min(look, left))
                    look = min(2 * look, _LONGEST_LOOK_SECONDS)
        self._answer(later(Reason.SHUTTING_DOWN))
        return False

    async def _handle(self) -> None:
        claim, parts = self._held(), self._parts
        absent = self._absent(claim) if claim.owed else _NONE
        if not self.handlers and not absent and self.ignored is not None:
            self._answer(self.ignored)
            await self._give_back()
            return
        if self.backoff_seconds is None and not self.is_replay:
            self.last_chance = is_last_chance(claim, self.delivery_attempt)
            if self.last_chance and parts.store.keeps_bodies:
                await self._keep(claim)
        if not await self._is_still_held():
            self._answer(later(Reason.IN_FLIGHT))
            return
        handlers = self.handlers
        if self.finished:
            handlers = [handler for handler in handlers if handler.name not in self.finished]
        self.has_begun, self._most_finished = bool(handlers), len(self.finished) + len(handlers)
        failures = await self._dispatcher.run(handlers, self)
        self.is_busy = False
        if self.room is not None:
            self.room.set()
        if not failures and not absent:
            await self._complete()
            return
        report = Report(failures, absent)
        verdict = decide(
            report, last_chance=self.last_chance, keeps_bodies=parts.store.keeps_bodies
        )
        if not isinstance(verdict, Complete):
            await self._give_up(report, verdict)
        self._end()
        await self._tell(report, buried=isinstance(verdict, Bury))

    def _absent(self, claim: Claimed) -> frozenset[str]:
        """Return the handlers that the event still owes, and that this process does not have."""
        known = {handler.name for handler in self._parts.router.handlers}
        return claim.owed - known - self.finished

    async def _keep(self, claim: Claimed) -> None:
        """Keep the body, so that not even a crash of the last attempt can lose the event."""
        try:
            await self._ask(self._parts.store.keep(claim, self.delivery))
        except StoreError as error:
            _log.error("could not keep %s for its last attempt: %s", self.key, error)

    async def _complete(self) -> None:
        """Record the success; the answer is 200 even if that fails, since a 5xx would repeat it."""
        self.has_succeeded, pause = True, _FIRST_PAUSE_SECONDS
        while not self.is_superseded:
            try:
                await self._ask(self._parts.store.complete(self._held()))
            except StoreError as error:
                self._answer(HANDLED)
                # Out of the inbox it comes again for certain, unless this is recorded some day.
                is_over = self._loop.time() >= self._ends and self.backoff_seconds is None
                if is_over and not self.is_settled:
                    _log.error(
                        "%s is handled, but that could not be recorded while its lease lived; until"
                        " it is, another process would handle a further delivery of it again: %s",
                        self.key,
                        error,
                    )
                    self._end()
            else:
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self._end()
        self._answer(HANDLED)
        self._tell_settled(HANDLED)

    async def _give_up(self, report: Report, verdict: Release | Bury) -> None:
        """Release or bury the event, and give the answer that is true after that."""
        error, after = report.describe(), None
        if self.backoff_seconds is not None and self._parts.inbox is not None:
            after = wait_seconds(report, self.backoff_seconds)
        pause, ends = _FIRST_PAUSE_SECONDS, self._ends
        while True:
            # Extended for ever, a claim that cannot be given back would never be free.
            claim = self.claim
            try:
                ownership = await self._ask(self._giving_up(report, verdict, error, after))
                if claim is self.claim:
                    break
                continue  # a claim was adopted meanwhile: that one is to be given up
            except StoreError as fault:
                self._answer(later(Reason.STORE_UNAVAILABLE))
                if self._loop.time() >= ends and not self.is_settled:
                    _log.error("could not settle %s; its lease runs out: %s", self.key, fault)
                    self._tell_settled(later(Reason.STORE_UNAVAILABLE))
                    self._end()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            if self.is_superseded:
                return
        if self.is_settled:
            return
        if ownership is Ownership.LOST:
            # Another attempt has begun or even succeeded; its outcome is the one that counts.
            self._answer(later(Reason.IN_FLIGHT))
            self._tell_settled(later(Reason.IN_FLIGHT))
            return
        self._answer(verdict.outcome)
        tell, number = self._parts.observers.tell, self.number
        if isinstance(verdict, Bury):
            tell(EventBuried(self.delivery, number, verdict.reason, error))
        elif after is not None:
            tell(EventRetried(self.delivery, number, after, error))
        else:
            self._tell_settled(verdict.outcome)

    def _giving_up(
        self, report: Report, verdict: Release | Bury, error: str, after: float | None
    ) -> Awaitable[Ownership]:
        claim, finished = self._held(), frozenset(self.finished)
        store, inbox = self._parts.store, self._parts.inbox
        if isinstance(verdict, Bury):
            return store.bury(
                claim,
                verdict.reason,
                error=error,
                finished=finished,
                owed=report.owed,
                delivery=self.delivery,
            )
        if inbox is None or after is None:
            # Where only the sender brings it again, it also counts.
            return store.release(claim, finished, error, owed=report.owed, began=self.has_begun)
        return inbox.retry(claim, after, finished, error, owed=report.owed)

    async def _quarantine(self) -> None:
        """Bury a genuine delivery that cannot be read, with its bytes, for a person to look at."""
        store, claim = self._parts.store, self._held()
        self._let_go()
        try:
            ownership = await self._ask(
                store.bury(claim, DeadReason.UNREADABLE, error=self.fault, delivery=self.delivery)
            )
        except StoreError as error:
            _log.error("cannot bury %s: %s", self.key, error)
            self._answer(later(Reason.STORE_UNAVAILABLE))
            self._end()
            await self._run_errand(claim.token)
            return
        if ownership is Ownership.LOST:
            self._answer(later(Reason.IN_FLIGHT))
            return
        _log.error("%s cannot be read, and is a dead letter now: %s", self.key, self.fault)
        self._answer(_QUARANTINED)
        self._parts.observers.tell(
            EventBuried(self.delivery, self.number, DeadReason.UNREADABLE, self.fault)
        )

    async def _tell(self, report: Report, *, buried: bool) -> None:
        """Log the failures, and tell the error hooks of them."""
        # A retry that was asked for is no failure, unless it was asked for in vain.
        failures = report.failures if buried else report.errors
        if report.absent:
            _log.error(
                "%s owes handlers that are not registered here and is left to a process that has"
                " them: %s",
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
        context = self.context(", ".join(failure.handler for failure in failures))
        await self._dispatcher.tell(self._parts.router.error_hooks, group, self, context)

    # Its end

    def _answer(self, outcome: Outcome) -> None:
        """Let this be the answer; a request that has one already keeps it."""
        if self.outcome is HANDLED:
            return
        self.outcome = outcome
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(outcome)
        if outcome is HANDLED and self._joined:
            self._wake_joined(inf)

    def _end(self) -> None:
        """Let others have the event; what is left to do or to say needs no claim."""
        self.is_settled, self.is_busy = True, False
        self._let_go()
        if self.room is not None:
            self.room.set()
        if self.work is not None and not self.has_succeeded:
            self.work.set()  # nobody else tells an idle worker when it is due again
        if self._joined:
            self._wake_joined(inf)

    def leave(self) -> None:
        """End it, however its task has ended: nobody may wait for it any longer."""
        self._end()
        if self.outcome is None:
            self._answer(later(Reason.SHUTTING_DOWN))

    def _wake_joined(self, now: float) -> None:
        waiting, self._joined = self._joined, [one for one in self._joined if now < one[1]]
        for joined, by in waiting:
            if now >= by and not joined.done():
                joined.set_result(None)

    def _tell_settled(self, outcome: Outcome) -> None:
        if self._parts.observers.wants(EventSettled, self.delivery.event_id):
            self._parts.observers.tell(EventSettled(self.delivery, self.number, outcome))

    async def _stopped(self) -> None:
        """Give the event back at a shutdown, with what has succeeded.

        A thread cannot be cancelled. While one goes on, no other attempt shall run beside it, so
        the claim is left to its lease.
        """
        if self.is_errand:
            return
        if self.has_succeeded:
            self._answer(HANDLED)
        elif self.claim is None and self._token is not None:
            # The call may have been made all the same.
            self._answer(later(Reason.SHUTTING_DOWN))
            lease = self._parts.limits.lease_seconds
            self.claim = Claimed(self.key, self._token, 1, _NONE, lease)
            await self._give_back()
        elif self.is_busy:
            self._answer(later(Reason.SHUTTING_DOWN))
            await self._give_back()

    async def _run_errand(self, token: Token) -> None:
        """Give back what a call may have claimed; nobody waits for it, and no new run has to."""
        self.is_errand = True
        self._end()
        await self._unclaim(token)
