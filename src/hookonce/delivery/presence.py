"""An event under way as the rest of this process sees it: how far it is, and who waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar

from ..errors import StoreError
from ..stores.values import Claimed, Ownership, Token
from ..verification.loggers import get_logger
from .calls import Calls
from .lease import Lease
from .outcome import HANDLED, STALE, Outcome, Reason, later
from .records import EventSettled
from .time_limit import set_within

_log = get_logger("hookonce")

T = TypeVar("T")

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0


class Phase(IntEnum):
    """How far a run has come. Until `LATE` the event is its own in this process."""

    CLAIMING = 0
    """It asks the store for the event."""
    HANDLING = 1
    """It has the event, and runs its handlers."""
    SUCCEEDED = 2
    """All of them have succeeded, and that is being recorded."""
    FAILED = 3
    """They have ended, and the event is being given back or buried."""
    LATE = 4
    """The same, and the lease is over: others may have the event."""
    RETURNING = 5
    """It gives back what a call to the store may have claimed; nobody waits for it."""
    ENDED = 6
    """What is left to do or to say needs no claim."""


# Named once: in Python 3.11 a member costs a call of its class's property each time it is named.
CLAIMING, HANDLING, SUCCEEDED, FAILED, LATE, RETURNING, ENDED = Phase


@dataclass(slots=True, eq=False, repr=False)
class Presence(Lease):
    """What others of this process see of an event under way, join, adopt and stop.

    Attributes:
        phase: how far it has come.
        outcome: the answer that stands at the moment.
        answer: what the request that brings it awaits.
        calls: the handlers under way.
        room: set when a worker may begin one event more.
        work: set when the event is due again some time.

    """

    room: asyncio.Event | None = None
    work: asyncio.Event | None = None
    phase: Phase = CLAIMING
    outcome: Outcome | None = None
    answer: asyncio.Future[Outcome] = field(init=False)
    calls: Calls = field(init=False)
    _token: Token | None = None
    _is_refused: bool = False
    _has_begun: bool = False
    _joined: asyncio.Event | None = None

    @property
    def number(self) -> int:
        """Which attempt at the event it is, from 1."""
        return 1 if self.claim is None else self.claim.attempt

    @property
    def has_the_event(self) -> bool:
        """Whether nobody else in this process may have the event."""
        return self.phase < LATE

    @property
    def has_succeeded(self) -> bool:
        """Whether all of its handlers have succeeded, recorded or not."""
        return self.phase is SUCCEEDED or self.is_answered

    @property
    def is_answered(self) -> bool:
        """Whether its answer is that they have."""
        return self.outcome is HANDLED or self.outcome is STALE

    @property
    def _success(self) -> Outcome:
        """The answer where they have."""
        return STALE if self._turns is not None and self._turns.all_stale else HANDLED

    @property
    def is_busy(self) -> bool:
        """Whether it has still to end its handlers."""
        return self.phase <= HANDLING

    def adopt(self, claim: Claimed) -> bool:
        """Go on under a new claim, which is granted where the lease was lost.

        False if it can have none: it still asks for one, and waits for the owner of this.
        """
        if self.claim is None or not self.has_the_event:
            return False
        self._hold(claim, time.monotonic(), self._loop.time())
        if self.phase is FAILED:
            self._let_go()
        else:
            self._checkpoint_soon()
        return True

    async def join(self, seconds: float | None) -> bool:
        """Return whether it has ended, or all handlers have succeeded, within so many seconds."""
        if self._joined is None:
            self._joined = asyncio.Event()
        return await set_within(seconds, self._joined)

    def refuse(self) -> None:
        """Begin with no handler, if it has not claimed the event yet."""
        self._is_refused = True

    def stop(self) -> None:
        """Cancel it: its handlers, and then its claim, with what has succeeded."""
        self.calls.is_stopping = True
        self.task.cancel()

    async def _record(self, step: Callable[[], Awaitable[T]]) -> T | None:
        """Ask the store until it answers; return None where that is of no use any more."""
        pause, unrecorded = _FIRST_PAUSE_SECONDS, self.parts.unrecorded
        while self.phase is not LATE or unrecorded.get(self.key) is self.finished:
            claim = self.claim
            try:
                result = await self._ask(step())
            except StoreError as error:
                if not self._goes_on_unrecorded(error):
                    break
            else:
                if claim is self.claim:
                    if unrecorded.get(self.key) is self.finished:
                        del unrecorded[self.key]
                    return result
                continue  # another was adopted meanwhile: that one is to be settled
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return None

    def _goes_on_unrecorded(self, error: StoreError) -> bool:
        """Say what stands while the store fails, and return whether to ask it again."""
        is_over = self._loop.time() >= self._ends
        if self.is_busy or self.phase is RETURNING:
            if is_over:
                _log.error("could not release %s; its lease will run out: %s", self.key, error)
            return not is_over
        self._answer(self._success if self.has_succeeded else later(Reason.STORE_UNAVAILABLE))
        if is_over and self.phase is not LATE:
            if self.has_succeeded:
                _log.error(
                    "%s is handled, but that could not be recorded while its lease lived; until it"
                    " is, another process would handle a further delivery of it again: %s",
                    self.key,
                    error,
                )
            else:
                _log.error("could not settle %s; its lease runs out: %s", self.key, error)
                self._tell_settled(later(Reason.STORE_UNAVAILABLE))
            self.parts.unrecorded[self.key] = self.finished
            self._leave(LATE)
        return True

    async def _return(self) -> None:
        """Give back what a call may have claimed that failed; no new run has to wait for that."""
        self._leave(RETURNING)
        await asyncio.sleep(_FIRST_PAUSE_SECONDS)
        await self._give_back()

    async def _give_back(self) -> None:
        """Release the claim of an attempt that does not end, or has not begun."""
        if self.claim is None and self._token is not None:
            # The call may have been made all the same.
            lease = self.parts.limits.lease_seconds
            claim = Claimed(self.key, self._token, 1, frozenset(), lease)
            self._hold(claim, time.monotonic(), self._loop.time())
        self._let_go()
        await self._record(self._giving_back)

    async def _giving_back(self) -> Ownership:
        """Release the claim, unless a thread goes on, which no cancellation can end.

        No other attempt shall run beside it, so the claim is left to its lease.
        """
        store, calls = self.parts.store, self.calls.under_way
        # In this order: a thread may end at any moment, and its success is not to be missed.
        thread_goes_on = any(call.thread_goes_on for call in calls)
        succeeded = {call.name for call in calls if call.has_succeeded}
        for turn in self._turns.held if self._turns is not None else ():
            if turn.gate.handler in succeeded:
                turn.succeed()
            if turn.owes_watermark:
                await turn.leave()
            if turn.has_succeeded:
                succeeded.add(turn.gate.handler)
        self.finished |= succeeded
        claim, finished, owed = self._held(), frozenset(self.finished), self._owed()
        if thread_goes_on:
            return await store.extend(claim, finished, owed)
        if self._has_begun:
            return await store.release(claim, finished, "cancelled at shutdown", owed=owed)
        return await store.release(claim, finished, began=False)

    def _answer(self, outcome: Outcome) -> None:
        """Let this be the answer; a request that has one already keeps it."""
        if self.is_answered:
            return
        self.outcome = outcome
        if not self.answer.done():
            self.answer.set_result(outcome)
        if self._joined is not None and self.is_answered:
            self._wake_joined()

    def _leave(self, phase: Phase = ENDED) -> None:
        """Let others have the event."""
        if self.work is not None and self.phase is not SUCCEEDED:
            self.work.set()  # nobody else tells an idle worker when it is due again
        self.phase = phase
        self._let_go()
        if self.room is not None:
            self.room.set()
        self._wake_joined()

    def _wake_joined(self) -> None:
        if self._joined is not None:
            self._joined.set()
            self._joined = None

    def end(self) -> None:
        """Let nobody wait for it any longer, however its task has ended."""
        if self.phase is not ENDED:
            self._leave()
        if self.outcome is None:
            self._answer(later(Reason.SHUTTING_DOWN))

    def _tell_settled(self, outcome: Outcome) -> None:
        observers = self.parts.observers
        if observers.look_closely and observers.wants(EventSettled, self.delivery.event_id):
            observers.tell(EventSettled(self.delivery, self.number, outcome))
