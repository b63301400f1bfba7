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
from functools import partial
from http import HTTPStatus
from math import inf
from typing import Any, TypeVar

from ..errors import AlreadyDone, Reject, Retry, StoreError
from ..events import Event
from ..stores.tokens import new_token
from ..stores.values import (
    Busy,
    Claimed,
    DeadReason,
    Delivery,
    Done,
    InFlight,
    Ownership,
    Stale,
)
from ..verification.loggers import get_logger
from .calls import add_note, as_exception
from .context import Context
from .handler import Handler
from .keyed import TooLateError, mark_of
from .outcome import ALREADY_DEAD, BROKEN, DUPLICATE, Outcome, Reason, later
from .parts import Parts
from .presence import Phase, Presence
from .records import (
    EventBuried,
    EventClaimed,
    EventParked,
    EventRetried,
    HandlerFailed,
    HandlerFinished,
    HandlerSkipped,
    HandlerStarted,
)
from .turns import Turn, Turns
from .verdict import (
    Failure,
    LeaseLost,
    NoTurn,
    Report,
    Verdict,
    decide,
    is_last_chance,
    unavailable,
    wait_seconds,
)

__all__ = ["Phase", "Run"]

_log = get_logger("hookonce")

T = TypeVar("T")

# How often another run's claim or turn is looked at: soon at first, since most handlers are quick.
_FIRST_LOOK_SECONDS = 0.05
_LONGEST_LOOK_SECONDS = 0.5

_NONE: frozenset[str] = frozenset()
_QUARANTINED = Outcome(HTTPStatus.ACCEPTED, Reason.QUARANTINED)


class Run(Presence):
    """An event under way, from its arrival to its end.

    Args:
        parts: what it works with.
        delivery: what was delivered.
        event: what was read from it; None if it cannot be read.
        handlers: every handler the event is for; those that have finished are left out.
        answer_by: when the request that brings it must have its answer, in the loop's time.
        delivery_attempt: the sender's own count, unsigned.
        fault: why the delivery cannot be read, if it cannot.
        ignored: the answer where nobody here is registered for it, and it owes nobody anything.
        claim: what it runs under, if it was taken from the inbox or is a dead letter.
        claimed_at: when that was asked for, by ``time.monotonic``.
        is_replay: whether an operator replays a dead letter.
        last_chance: whether nobody may have the event any more if this attempt fails.
        backoff_seconds: for an event of the inbox, how long it waits if this attempt fails.
        room: set when a worker may begin one event more.
        work: set when the event is due again some time.

    """

    __slots__ = (
        "_backoff_seconds",
        "_fault",
        "_ignored",
        "_is_replay",
        "_last_chance",
        "_most_finished",
        "answer_by",
        "delivery_attempt",
        "event",
    )

    def __init__(
        self,
        parts: Parts,
        delivery: Delivery,
        event: Event[Any] | None,
        handlers: Sequence[Handler],
        *,
        answer_by: float = inf,
        delivery_attempt: int | None = None,
        fault: str = "",
        ignored: Outcome | None = None,
        claim: Claimed | None = None,
        claimed_at: float = 0.0,
        is_replay: bool = False,
        last_chance: bool = False,
        backoff_seconds: float | None = None,
        room: asyncio.Event | None = None,
        work: asyncio.Event | None = None,
    ) -> None:
        super().__init__(parts, delivery, handlers, room, work)
        self.event: Any = event
        self.answer_by = answer_by
        self.delivery_attempt = delivery_attempt
        self._fault = fault
        self._ignored = ignored
        self._is_replay = is_replay
        self._last_chance = last_chance
        self._backoff_seconds = backoff_seconds
        self._most_finished = 0
        if claim is not None:
            self._hold(claim, claimed_at)
            self.phase = Phase.HANDLING

    def look(self, now: float) -> None:
        """Do what is due: called by the watchman, every now and then."""
        super().look(now)
        if now >= self.answer_by and self.claim is not None:
            self.answer_by = inf
            self._answer(self._success if self.has_succeeded else later(Reason.STILL_RUNNING))
        self.calls.look(now)

    # The way

    async def go(self) -> None:
        """Go the whole way."""
        try:
            if self.claim is None and not await self._obtain():
                return
            if self._fault:
                await self._quarantine()
            else:
                await self._handle()
        except asyncio.CancelledError:
            self._cancelled = self.task.cancelling()
            await self._stopped()
        except Exception as error:  # noqa: BLE001 - a router or observer that breaks its contract
            _log.error("an attempt at %s broke off", self.key, exc_info=error)
            self._answer(BROKEN)

    async def _obtain(self) -> bool:
        """Claim the event; answer, and return False, where it cannot be had in time."""
        limits, store, observers = self._parts.limits, self._parts.store, self._parts.observers
        look, token = _FIRST_LOOK_SECONDS, new_token()
        self._token = token
        while not self._is_refused:
            asked_at, left = time.monotonic(), self.answer_by - self._loop.time()
            seconds = limits.store_seconds
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
                return False
            if observers.look_closely and observers.wants(EventClaimed, self.delivery.event_id):
                observers.tell(EventClaimed(self.delivery, result))
            if result.__class__ is Claimed:
                self._hold(result, asked_at)
                self.phase = Phase.HANDLING
                if not self._is_refused:
                    return True
                await self._give_back()
            elif isinstance(result, InFlight):
                left = self.answer_by - self._loop.time()
                if left <= 0:
                    self._answer(later(Reason.IN_FLIGHT, result.until - self._parts.clock()))
                    return False
                await asyncio.sleep(min(look, left))
                look = min(2 * look, _LONGEST_LOOK_SECONDS)
            else:
                self._answer(DUPLICATE if isinstance(result, Done) else ALREADY_DEAD)
                return False
        self._answer(later(Reason.SHUTTING_DOWN))
        return False

    async def _handle(self) -> None:
        claim, parts, handlers = self._held(), self._parts, self.handlers
        absent = claim.owed - {h.name for h in handlers} - self.finished if claim.owed else _NONE
        if not handlers and not absent and self._ignored is not None:
            self._answer(self._ignored)
            await self._give_back()
            return
        if self._backoff_seconds is None and not self._is_replay:
            self._last_chance = is_last_chance(claim, self.delivery_attempt)
            if self._last_chance and parts.store.keeps_bodies and not await self._is_kept(claim):
                self._answer(later(Reason.IN_FLIGHT))
                return
        if self.finished:
            handlers = [handler for handler in handlers if handler.name not in self.finished]
        self._most_finished = len(self.finished) + len(handlers)
        if len(handlers) == 1:
            run = self._run if handlers[0].keyed is None else self._run_in_turn
            failure = await run(handlers[0], self.task)
            failures = [] if failure is None else [failure]
        else:
            failures = await self._run_all(handlers)
        if failures or absent:
            await self._fail(Report(failures, absent))
        else:
            if self._turns is not None:
                self._turns.all_stale = self._turns.stale == len(handlers)
            await self._succeed()

    async def _is_kept(self, claim: Claimed) -> bool:
        """Keep the body, so that not even a crash of the last attempt can lose the event.

        Return False if somebody else has the event by now.
        """
        try:
            ownership = await self._ask(self._parts.store.keep(claim, self.delivery))
        except StoreError as error:
            _log.error("could not keep %s for its last attempt: %s", self.key, error)
            return True
        return ownership is Ownership.HELD

    async def _run_all(self, handlers: Sequence[Handler]) -> list[Failure]:
        """Run handlers side by side, and return the failures in the order of registration."""
        if not handlers:
            return []
        tasks = [
            self._loop.create_task(
                self._run(handler) if handler.keyed is None else self._run_in_turn(handler)
            )
            for handler in handlers
        ]
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise
        return [failure for task in tasks if (failure := task.result()) is not None]

    async def _run(
        self,
        handler: Handler,
        task: asyncio.Task[Any] | None = None,
        turn: Turn | None = None,
    ) -> Failure | None:
        """Run one handler in this task, unless another process may have the event by now."""
        name, delivery, observers = handler.name, self.delivery, self._parts.observers
        if time.monotonic() >= self._held_until and not await self._extend():
            return Failure(name, LeaseLost())
        self._has_begun = True
        arguments = (self.event, self._context(name)) if handler.takes_context else (self.event,)
        if observers.look_closely and observers.wants(HandlerStarted, delivery.event_id):
            observers.tell(HandlerStarted(delivery, name, self.number, self._is_replay))
        started = time.perf_counter()  # the time of uvloop's loop has whole milliseconds
        try:
            error = await self.calls.call(name, handler.function, handler.is_async, arguments, task)
        except asyncio.CancelledError:
            error, seconds = RuntimeError("cancelled at shutdown"), time.perf_counter() - started
            observers.tell(HandlerFailed(delivery, name, self.number, seconds, error))
            raise
        seconds = time.perf_counter() - started
        if error is not None and not isinstance(error, AlreadyDone):
            if isinstance(error, TooLateError):
                self._skip(name, "stale")
                return None
            return self._failed(name, error, seconds)
        if turn is not None:
            await self._end_well(turn)
        if observers.look_closely and observers.wants(HandlerFinished, delivery.event_id):
            observers.tell(HandlerFinished(delivery, name, self.number, seconds))
        self._finish(name)
        return None

    def _failed(self, handler: str, error: Exception, seconds: float) -> Failure:
        self._parts.observers.tell(
            HandlerFailed(self.delivery, handler, self.number, seconds, error)
        )
        add_note(error, f"raised by the handler {handler!r}")
        return Failure(handler, error)

    def _skip(self, handler: str, reason: str) -> None:
        """Count a handler as finished that is not run."""
        observers, delivery = self._parts.observers, self.delivery
        self._all_turns().stale += reason == "stale"
        why = "a newer event" if reason == "stale" else "it"
        _log.info("%s is not run for %s: %s has succeeded there", handler, self.key, why)
        if observers.look_closely and observers.wants(HandlerSkipped, delivery.event_id):
            observers.tell(HandlerSkipped(delivery, handler, self.number, reason))
        self._finish(handler)

    def _finish(self, handler: str) -> None:
        self.finished.add(handler)
        if len(self.finished) < self._most_finished:
            self._checkpoint_soon()

    # Handlers that take turns

    async def _run_in_turn(
        self, handler: Handler, task: asyncio.Task[Any] | None = None
    ) -> Failure | None:
        """Run one handler when its turn comes, unless its event comes too late by then."""
        name, keyed = handler.name, handler.keyed
        if keyed is None:
            raise RuntimeError(f"{name} takes no turns")
        try:
            gate = keyed.gate(self.event, self.delivery.endpoint, name)
        except BaseException as raised:  # noqa: BLE001 - of the user's own, like a handler's
            self._has_begun = True
            error = as_exception(raised)
            add_note(error, "while its key was asked for")
            return self._failed(name, error, 0.0)
        if gate is None:
            return await self._run(handler, task)
        mark = mark_of(self.event) if keyed.is_latest else None
        turn = Turn(self._parts, gate, mark, drop_ties=keyed.drop_ties, work=self._work)
        why_not = await self._enter(turn)
        if isinstance(why_not, Stale):
            if self._backoff_seconds is not None:
                await turn.end(succeeded=False)  # it may have been called: then the next one is
            self._skip(name, "done" if why_not.mark.event_id == self.event.id else "stale")
            return None
        if isinstance(why_not, NoTurn):
            return Failure(name, why_not)
        if why_not is not None:
            return self._failed(name, why_not, 0.0)
        self._all_turns().held.append(turn)
        try:
            return await self._run(handler, task, turn)
        finally:
            await self._end_unfinished(turn)

    async def _enter(self, turn: Turn) -> Stale | NoTurn | TimeoutError | None:
        """Wait for the turn; return None when it has come, or why it does not."""
        limits, now = self._parts.limits, self._loop.time
        waits_on, look = self._waits_on(), _FIRST_LOOK_SECONDS
        if waits_on:
            seconds = limits.handler_timeout_seconds
        elif self._is_replay:
            seconds = limits.answer_seconds
        elif self._backoff_seconds is not None or self.answer_by == inf:
            seconds = 0.0  # it is called when its turn has come, or was answered already
        else:
            # The event is given back before the answer is due, so that the answer says why.
            seconds = self.answer_by - now() - min(0.1, limits.answer_seconds / 10)
        by = now() + seconds
        while waits_on or not self._is_refused:
            try:
                result = await turn.enter()
            except StoreError as error:
                _log.error("cannot ask whose turn it is for %s: %s", self.key, error)
                return NoTurn(Reason.STORE_UNAVAILABLE)
            if isinstance(result, Stale):
                return result
            if isinstance(result, Busy):
                left = by - now()
                if left <= 0:
                    if waits_on:
                        return TimeoutError(f"another run had its key for {seconds:g} s")
                    self._all_turns().waiting.append(turn)
                    return NoTurn(Reason.IN_FLIGHT, turn.busy_seconds(result))
                await asyncio.sleep(min(look, left))
                look = min(2 * look, _LONGEST_LOOK_SECONDS)
            elif turn.is_held:  # else this process has stood still, and another may have it
                return None
        return NoTurn(Reason.SHUTTING_DOWN)

    def _all_turns(self) -> Turns:
        if self._turns is None:
            self._turns = Turns()
        return self._turns

    def _waits_on(self) -> bool:
        """Return whether a handler waits for its turn however long it takes.

        On the last chance it does, where nobody would bring the event again, or where another of
        its handlers could use up the attempt.
        """
        if not self._last_chance or self._is_replay:
            return False
        return self._backoff_seconds is None or self._most_finished > len(self.finished) + 1

    async def _end_well(self, turn: Turn) -> None:
        """End the turn of a run that has succeeded: asked for as long as the lease lives."""
        try:
            await turn.end(succeeded=True, gives_up=lambda: self._loop.time() >= self._ends)
        except asyncio.CancelledError:
            self.finished.add(turn.gate.handler)  # that it has succeeded is not lost with its mark
            raise

    async def _end_unfinished(self, turn: Turn) -> None:
        """End the turn of a run that has not succeeded, unless a thread goes on.

        No other run shall be beside it, so the turn is left to its lease.
        """
        if turn.is_over:
            return
        calls = [call for call in self.calls.under_way if call.name == turn.gate.handler]
        if any(call.thread_goes_on for call in calls):
            await turn.extend()
        else:
            await turn.end(succeeded=any(call.has_succeeded for call in calls))

    async def _wait_to_be_called(self) -> None:
        """Note the event as waiting: only now, since nobody could call it while it was held."""
        for turn in self._turns.waiting if self._turns is not None else ():
            try:
                if not isinstance(await turn.enter(self.key), Busy):
                    await turn.end(succeeded=False)
                    await turn.call(self.key)
            except StoreError as error:
                _log.warning("%s is tried again when a lease ends: %s", self.key, error)

    def _context(self, handler: str) -> Context:
        return Context(
            key=self.key,
            endpoint=self.delivery.endpoint,
            event_id=self.event.id,
            event_type=self.event.type,
            handler=handler,
            attempt=self.number,
            delivery_attempt=self.delivery_attempt,
            last_chance=self._last_chance,
            is_replay=self._is_replay,
            received_at=self.delivery.received_at,
            body=self.delivery.body,
        )

    async def _succeed(self) -> None:
        """Record the success; the answer is 200 even if that fails, since a 5xx would repeat it."""
        self.phase = Phase.SUCCEEDED
        if self._room is not None:
            self._room.set()
        try:
            await self._ask(self._parts.store.complete(self._held()))
        except StoreError as error:
            self._goes_on_unrecorded(error)
            await self._record(self._completing)
        self._leave()
        success = self._success
        self._answer(success)
        self._tell_settled(success)

    async def _fail(self, report: Report) -> None:
        """Release or bury the event, and give the answer that is true after that."""
        self.phase = Phase.FAILED
        self._let_go()  # extended for ever, a claim that cannot be given back would never be free
        if self._room is not None:
            self._room.set()
        verdict = decide(
            report, last_chance=self._last_chance, keeps_bodies=self._parts.store.keeps_bodies
        )
        after, tell = None, self._parts.observers.tell
        error = "" if report.only_waits else report.describe()
        if self._backoff_seconds is not None:
            after = wait_seconds(report, self._backoff_seconds)
        ownership = await self._record(partial(self._giving_up, verdict, report, error, after))
        if self.phase is Phase.LATE:
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

    async def _quarantine(self) -> None:
        """Bury a genuine delivery that cannot be read, with its bytes, for a person to look at."""
        store, claim, fault = self._parts.store, self._held(), self._fault
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
        self._parts.observers.tell(
            EventBuried(self.delivery, self.number, DeadReason.UNREADABLE, fault)
        )

    async def _stopped(self) -> None:
        """Give the event back at a shutdown, with what has succeeded."""
        if self.phase is Phase.SUCCEEDED:
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
        for hook in self._parts.router.error_hooks:
            arguments = (group, self.event, context)[: hook.arguments]
            raised = await self.calls.call("on_error", hook.function, hook.is_async, arguments)
            if raised is not None:
                _log.error("an on_error function failed", exc_info=raised)

    def _completing(self) -> Awaitable[None]:
        return self._parts.store.complete(self._held())

    def _giving_up(
        self, verdict: Verdict, report: Report, error: str, after: float | None
    ) -> Awaitable[Ownership]:
        claim, finished = self._held(), frozenset(self.finished)
        store, inbox = self._parts.store, self._parts.inbox
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
