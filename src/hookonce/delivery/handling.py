"""The handlers of one event: run side by side, and in turns where they ask for that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from ..errors import AlreadyDone, StoreError
from ..stores.values import Busy, Stale
from ..verification.loggers import get_logger
from .calls import add_note, as_exception
from .context import Context
from .handler import Handler
from .keyed import TooLateError, mark_of
from .outcome import Reason
from .presence import Presence
from .records import HandlerFailed, HandlerFinished, HandlerSkipped, HandlerStarted
from .turns import Turn, Turns
from .verdict import Failure, LeaseLost, NoTurn

_log = get_logger("hookonce")

FIRST_LOOK_SECONDS = 0.05
LONGEST_LOOK_SECONDS = 0.5
"""How often another run's claim or turn is looked at: soon at first, since most handlers are
quick."""


@dataclass(slots=True, eq=False, repr=False)
class Handling(Presence):
    """An event under way, as far as its handlers go.

    Attributes:
        event: what was read from the delivery; None if it cannot be read.
        answer_by: when the request that brings it must have its answer, in the loop's time.
        delivery_attempt: the sender's own count, unsigned.
        sent_at: when the sender signed the delivery that a request has brought, in Unix time.
        is_replay: whether an operator replays a dead letter.
        last_chance: whether nobody may have the event any more if this attempt fails.
        backoff_seconds: for an event of the inbox, how long it waits if this attempt fails.

    """

    event: Any = None
    answer_by: float = inf
    delivery_attempt: int | None = None
    sent_at: float = 0.0
    is_replay: bool = False
    last_chance: bool = False
    backoff_seconds: float | None = None
    _most_finished: int = 0

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
        self, handler: Handler, task: asyncio.Task[Any] | None = None, turn: Turn | None = None
    ) -> Failure | None:
        """Run one handler in this task, unless another process may have the event by now."""
        name, delivery, observers = handler.name, self.delivery, self.parts.observers
        if time.monotonic() >= self._held_until and not await self._extend():
            return Failure(name, LeaseLost())
        self._has_begun = True
        arguments = (self.event, self._context(name)) if handler.takes_context else (self.event,)
        if observers.look_closely and observers.wants(HandlerStarted, delivery.event_id):
            observers.tell(HandlerStarted(delivery, name, self.number, self.is_replay))
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
            try:
                return self._failed(name, error, seconds)
            finally:
                del error  # from Python 3.12 on its traceback leads here: a circle
        if turn is not None:
            turn.succeed()
            await turn.end(gives_up=lambda: self._loop.time() >= self._ends)
        if observers.look_closely and observers.wants(HandlerFinished, delivery.event_id):
            observers.tell(HandlerFinished(delivery, name, self.number, seconds))
        self._finish(name)
        return None

    def _failed(
        self, handler: str, error: Exception, seconds: float, note: str | None = None
    ) -> Failure:
        if note is not None:
            add_note(error, note)
        self.parts.observers.tell(
            HandlerFailed(self.delivery, handler, self.number, seconds, error)
        )
        add_note(error, f"raised by the handler {handler!r}")
        return Failure(handler, error)

    def _skip(self, handler: str, reason: str) -> None:
        """Count a handler as finished that is not run."""
        observers, delivery = self.parts.observers, self.delivery
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
            # Not in a variable: its traceback leads here, a circle with the body in it.
            return self._failed(name, as_exception(raised), 0.0, "while its key was asked for")
        if gate is None:
            return await self._run(handler, task)
        turn = Turn(
            parts=self.parts,
            gate=gate,
            mark=mark_of(self.event) if keyed.is_latest else None,
            drop_ties=keyed.drop_ties,
            event=None if self.backoff_seconds is None else self.key,
            work=self.work,
        )
        why_not = await self._enter(turn)
        if isinstance(why_not, Stale):
            if self.backoff_seconds is not None:
                await turn.end()  # it may have been called: then the next one is
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
        limits, now = self.parts.limits, self._loop.time
        waits_on, look = self._waits_on(), FIRST_LOOK_SECONDS
        if waits_on:
            seconds = limits.handler_timeout_seconds
        elif self.is_replay:
            seconds = limits.answer_seconds
        elif self.backoff_seconds is not None or self.answer_by == inf:
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
                look = min(2 * look, LONGEST_LOOK_SECONDS)
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
        if not self.last_chance or self.is_replay:
            return False
        return self.backoff_seconds is None or self._most_finished > len(self.finished) + 1

    async def _end_unfinished(self, turn: Turn) -> None:
        """End the turn of a run that has not succeeded, unless a thread goes on.

        No other run shall be beside it, so the turn is left to its lease. The turn of a thread that
        has succeeded ends when the event is given back, which can ask the store more than once.
        """
        if turn.is_over:
            return
        calls = [call for call in self.calls.under_way if call.name == turn.gate.handler]
        if any(call.thread_goes_on for call in calls):
            await turn.extend()
        elif any(call.has_succeeded for call in calls):
            turn.succeed()
        else:
            await turn.end()

    async def _wait_for_no_turn(self) -> None:
        """Forget the notes of an earlier attempt: who was called would not wait after a failure."""
        for turn in self._turns.waiting if self._turns is not None else ():
            await turn.end()

    async def _wait_to_be_called(self) -> None:
        """Note the event as waiting: only now, since nobody could call it while it was held."""
        for turn in self._turns.waiting if self._turns is not None else ():
            try:
                if not isinstance(await turn.enter(self.key), Busy):
                    await turn.end()
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
            last_chance=self.last_chance,
            is_replay=self.is_replay,
            received_at=self.delivery.received_at,
            body=self.delivery.body,
        )
