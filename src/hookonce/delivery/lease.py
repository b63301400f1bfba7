"""The claim on an event as this process holds it, and the calls to the store about it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar

from ..errors import StoreError
from ..stores.values import Claimed, Delivery, DeliveryKey, Ownership
from ..verification.loggers import get_logger
from .handler import Handler
from .parts import Parts
from .time_limit import store_error, within
from .turns import Turns

_log = get_logger("hookonce.lease")

T = TypeVar("T")

# Handlers of one event often finish together; their success is written down in one step.
_CHECKPOINT_SECONDS = 0.1
_EXTEND_AGAIN_SECONDS = 1.0


@dataclass(slots=True, eq=False, repr=False)
class Lease:
    """What a run holds: its claim, extended for as long as it needs it.

    Attributes:
        parts: what it works with.
        delivery: what was delivered.
        handlers: every handler the event is for; those that have finished are left out.
        claim: what it runs under, once it has it.
        key: what is handled once.
        task: where the run goes on; the watchman cancels it when the store takes too long.
        finished: the handlers known to have succeeded.

    """

    parts: Parts
    delivery: Delivery
    handlers: Sequence[Handler]
    claim: Claimed | None = None
    key: DeliveryKey = field(init=False)
    task: asyncio.Task[None] = field(init=False)
    finished: set[str] = field(init=False)
    _loop: asyncio.AbstractEventLoop = field(init=False)
    # When the claim ends unless it is extended, by two clocks: uvloop's stands still in a turn of
    # the loop, and would not tell that this process, or a handler, has just blocked it.
    _ends: float = inf
    _held_until: float = 0.0  # time.monotonic
    _extend_at: float = inf
    _extension: asyncio.Task[bool] | None = None
    _answer_store_by: float = inf
    _store_is_late: bool = False
    _cancelled: int = 0
    _turns: Turns | None = None  # where handlers take any

    @property
    def left(self) -> float:
        """How many seconds the claim lasts unless it is extended."""
        return min(self._ends - self._loop.time(), self.parts.limits.lease_seconds)

    def look(self, now: float) -> None:
        """Do what is due: called by the watchman, every now and then."""
        if now >= self._answer_store_by:
            self._answer_store_by, self._store_is_late = inf, True
            self.task.cancel()
        if now >= self._extend_at:
            self._extend_at = now + self.parts.limits.lease_seconds / 3
            if self._extension is None or self._extension.done():
                self._extension = self._loop.create_task(self._extend())

    def _hold(self, claim: Claimed, asked_at: float, since: float) -> None:
        """Note a claim that was asked for at that moment of ``time.monotonic`` and of the loop."""
        lease, finished = claim.lease, claim.finished
        self.claim = claim
        self._held_until = asked_at + lease
        self._ends, self._extend_at = since + lease, since + lease / 3
        if finished:
            self.finished |= finished
        if self.parts.unrecorded:
            self.finished |= self.parts.unrecorded.pop(self.key, set())

    def _held(self) -> Claimed:
        if self.claim is None:
            raise RuntimeError(f"{self.key} is handled without a claim")
        return self.claim

    def _checkpoint_soon(self) -> None:
        self._extend_at = min(self._extend_at, self._loop.time() + _CHECKPOINT_SECONDS)

    def _let_go(self) -> None:
        """Extend the claim no more."""
        self._extend_at = inf
        if self._extension is not None:
            self._extension.cancel()

    def _owed(self) -> frozenset[str]:
        return frozenset(handler.name for handler in self.handlers) - self.finished

    async def _extend(self) -> bool:
        """Extend the lease, and write down what has succeeded: after a crash only the rest runs."""
        claim, finished = self._held(), frozenset(self.finished)
        asked_at, monotonic = self._loop.time(), time.monotonic()
        try:
            ownership = await within(
                self.parts.limits.store_seconds,
                self.parts.store.extend(claim, finished, self._owed() if finished else frozenset()),
            )
        except StoreError as error:
            _log.warning("could not extend the lease of %s: %s", self.key, error)
            if self._extend_at < inf:
                again = min(_EXTEND_AGAIN_SECONDS, claim.lease / 10)
                self._extend_at = self._loop.time() + again
            return False
        if claim is not self.claim:
            return True  # another has been adopted meanwhile
        if ownership is Ownership.LOST:
            if self._extend_at < inf:
                _log.error("the lease of %s was lost; another attempt may have begun", self.key)
            self._extend_at = inf
            return False
        self._ends, self._held_until = asked_at + claim.lease, monotonic + claim.lease
        if self._turns is not None:
            for turn in tuple(self._turns.held):
                await turn.extend()
        return True

    async def _ask(self, call: Awaitable[T], seconds: float | None = None) -> T:
        """Return what the store answers; raise StoreError if it fails, or not in its time."""
        if seconds is None:
            seconds = self.parts.limits.store_seconds
        self._answer_store_by = self._loop.time() + seconds
        try:
            return await call
        except StoreError:
            raise
        except asyncio.CancelledError as error:
            is_late = self._take_back_lateness()
            if self.task.cancelling() > self._cancelled:
                raise  # a shutdown, which the store's lateness does not undo
            if is_late:
                raise StoreError(f"the store did not answer within {seconds:g} s") from None
            raise store_error(error) from error
        except Exception as error:
            raise store_error(error) from error
        finally:
            self._answer_store_by = inf
            if self._store_is_late:
                self._take_back_lateness()

    def _take_back_lateness(self) -> bool:
        """Return whether the watchman has cancelled the call, and let that be over."""
        is_late, self._store_is_late = self._store_is_late, False
        if is_late:
            self.task.uncancel()
        return is_late
