"""The claim on an event as this process holds it, and the calls to the store about it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from math import inf
from typing import Self, TypeVar

from ..errors import StoreError
from ..stores.values import Claimed, Delivery, DeliveryKey, Ownership, Token
from ..verification.loggers import get_logger
from .dispatch import Call
from .handler import Handler
from .parts import Parts
from .time_limit import within

__all__ = ["BrokenStoreError", "Lease"]

_log = get_logger("hookonce.lease")

T = TypeVar("T")

# Handlers of one event often finish together; their success is written down in one step.
_CHECKPOINT_SECONDS = 0.1
_EXTEND_AGAIN_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 0.1

_NONE: frozenset[str] = frozenset()


class BrokenStoreError(StoreError):
    """A store of somebody's own has raised what its contract does not name."""


class Lease:
    """What a run holds: its claim, extended for as long as it needs it.

    Args:
        parts: what it works with.
        delivery: what was delivered.
        handlers: every handler the event is for.

    Attributes:
        task: where the run goes on; the watchman cancels it when the store takes too long.
        claim: what it runs under, once it has it.
        calls: the handlers under way.
        finished: the handlers known to have succeeded.
        has_begun: whether a handler has been called.
        is_settled: whether what became of it is recorded, or cannot be in time: the event may be
            claimed anew.
        is_superseded: whether a later run records what this one could not.
        previous: an earlier run of the event, which could not record what had succeeded.

    """

    task: asyncio.Task[None]
    claim: Claimed | None = None
    has_begun = False
    is_settled = False
    is_superseded = False
    previous: Self | None = None

    _asked_at = 0.0
    _call_by = inf
    _is_late = False
    _ends = inf
    _extend_at = inf
    _extension: asyncio.Task[None] | None = None

    def __init__(self, parts: Parts, delivery: Delivery, handlers: Sequence[Handler]) -> None:
        self._parts = parts
        self._loop = asyncio.get_running_loop()
        self.key: DeliveryKey = delivery.key
        self.delivery = delivery
        self.handlers = handlers
        self.calls: list[Call] = []
        self.finished: set[str] = set()

    @property
    def left(self) -> float:
        """How many seconds the claim lasts unless it is extended."""
        return min(self._ends - self._loop.time(), self._parts.limits.lease_seconds)

    def adopt(self, claim: Claimed) -> None:
        """Go on under a new claim: the event was taken anew after its lease was lost."""
        self._hold(claim, time.monotonic())
        self._checkpoint_soon()

    def look(self, now: float) -> None:
        """Do what is due: called by the watchman, every now and then."""
        if now >= self._call_by:
            self._call_by, self._is_late = inf, True
            self.task.cancel()
        if now >= self._extend_at:
            self._extend_at = now + self._parts.limits.lease_seconds / 3
            if self._extension is None or self._extension.done():
                self._extension = self._loop.create_task(self._extend())

    async def _ask(self, call: Awaitable[T], most: float = inf) -> T:
        """Return what the store answers; raise StoreError if it fails, or not in its time."""
        seconds = min(self._parts.limits.store_seconds, most)
        self._call_by = self._loop.time() + seconds
        try:
            return await call
        except asyncio.CancelledError:
            if not self._is_late:
                raise
            raise StoreError(f"the store did not answer within {seconds:g} s") from None
        except StoreError:
            raise
        except Exception as error:
            # It breaks its contract, and what has succeeded is to be recorded all the same.
            _log.exception("the store raised an error that is no StoreError")
            raise BrokenStoreError(f"the store raised {type(error).__name__}") from error
        finally:
            self._call_by = inf
            if self._is_late:
                self._is_late = False
                while self.task.uncancel():
                    pass

    def _hold(self, claim: Claimed, asked_at: float) -> None:
        """Note a claim that was asked for at that moment of ``time.monotonic``."""
        self.claim, self._asked_at = claim, asked_at
        since = self._loop.time() - (time.monotonic() - asked_at)
        self._ends, self._extend_at = since + claim.lease, since + claim.lease / 3
        if claim.finished:
            self.finished |= claim.finished
        if self.previous is not None:  # it could not record what had succeeded; this one does
            self.finished |= self.previous.finished
            self.previous.is_superseded = True
            self.previous = None

    def _held(self) -> Claimed:
        if self.claim is None:
            raise RuntimeError(f"{self.key} is handled without a claim")
        return self.claim

    async def _is_still_held(self) -> bool:
        """Return whether the claim is still ours, though its lease is over by our own clock.

        This process, or its loop, may have stood still between the claim and its first handler. A
        loop's own time would not tell: uvloop's is that of the beginning of its turn.
        """
        claim, asked_at = self._held(), time.monotonic()
        if asked_at < self._asked_at + claim.lease:
            return True
        try:
            ownership = await self._ask(self._parts.store.extend(claim))
        except StoreError as error:
            _log.warning("could not extend the lease of %s: %s", self.key, error)
            return False
        if ownership is Ownership.HELD:
            self._hold(claim, asked_at)
        return ownership is Ownership.HELD

    def _checkpoint_soon(self) -> None:
        self._extend_at = min(self._extend_at, self._loop.time() + _CHECKPOINT_SECONDS)

    def _let_go(self) -> None:
        """Extend the claim no more."""
        self._extend_at = inf
        if self._extension is not None:
            self._extension.cancel()

    async def _extend(self) -> None:
        """Extend the lease, and write down what has succeeded: after a crash only the rest runs."""
        claim, finished = self._held(), frozenset(self.finished)
        owed = frozenset(h.name for h in self.handlers) - finished if finished else _NONE
        asked_at, monotonic = self._loop.time(), time.monotonic()
        try:
            extension = self._parts.store.extend(claim, finished, owed)
            ownership = await within(self._parts.limits.store_seconds, extension)
        except StoreError as error:
            _log.warning("could not extend the lease of %s: %s", self.key, error)
            self._extend_at = self._loop.time() + min(_EXTEND_AGAIN_SECONDS, claim.lease / 10)
            return
        if claim is not self.claim or self.is_settled:
            return  # another has been adopted meanwhile, or none is needed any more
        if ownership is Ownership.LOST:
            _log.error(
                "the lease of %s was lost while its handlers ran; another attempt may have begun",
                self.key,
            )
            self._extend_at = inf
            return
        self._ends, self._asked_at = asked_at + claim.lease, monotonic

    async def _give_back(self) -> None:
        """Release the claim of an attempt that does not end, or has not begun."""
        pause, ends = _FIRST_PAUSE_SECONDS, self._loop.time() + self.left
        while True:
            try:
                await self._ask(self._giving_back())
            except StoreError as error:
                if self._loop.time() + pause >= ends:
                    _log.error("could not release %s; its lease will run out: %s", self.key, error)
                    return
            else:
                return
            await asyncio.sleep(pause)
            pause = 2 * pause

    def _giving_back(self) -> Awaitable[Ownership]:
        claim, store = self._held(), self._parts.store
        # In this order: a thread may end at any moment, and its success is not to be missed.
        thread_goes_on = any(call.thread_goes_on for call in self.calls)
        self.finished.update(call.name for call in self.calls if call.has_succeeded)
        finished = frozenset(self.finished)
        owed = frozenset(handler.name for handler in self.handlers) - finished
        if thread_goes_on:
            return store.extend(claim, finished, owed)
        if self.has_begun:
            return store.release(claim, finished, "cancelled at shutdown", owed=owed)
        return store.release(claim, finished, began=False)

    async def _unclaim(self, token: Token) -> None:
        """Give back what a call may have claimed whose answer never came."""
        lease = self._parts.limits.lease_seconds
        claim = Claimed(self.key, token, 1, _NONE, lease)
        pause, ends = _FIRST_PAUSE_SECONDS, self._loop.time() + lease
        while self._loop.time() < ends:
            await asyncio.sleep(pause)
            pause = 2 * pause
            try:
                await self._ask(self._parts.store.release(claim, _NONE, began=False))
            except StoreError:
                continue
            return
