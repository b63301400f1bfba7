"""Handlers that take turns: one run at a time for a key, and none for an event that comes too late.

A turn is a run's way through a gate of the store. Between its beginning and its end nobody else has
the gate, in any process; what has succeeded raises the gate's mark before the turn ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..errors import StoreError
from ..stores.contract import Listing
from ..stores.tokens import new_token
from ..stores.values import Busy, DeliveryKey, Entered, EnterResult, Gate, Mark, Token
from ..verification.loggers import get_logger
from .parts import Parts
from .time_limit import within

_log = get_logger("hookonce.lease")

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0


@dataclass(eq=False, repr=False, kw_only=True)
class Turn:
    """One run of a handler on one key: it enters a gate, keeps it, and leaves it.

    Attributes:
        parts: what the run works with.
        gate: which gate.
        mark: of the event, if it is left out where it comes too late.
        drop_ties: whether another event of the same time makes it late as well.
        event: which event it is of; None where it does not wait in an inbox.
        work: set when an event of the inbox was made due.
        is_over: whether it is ended, or was to be.

    """

    parts: Parts
    gate: Gate
    mark: Mark | None
    drop_ties: bool
    event: DeliveryKey | None
    work: asyncio.Event | None
    is_over: bool = False
    _token: Token = field(default_factory=new_token)
    # An extension that arrives after the end would begin anew.
    _one_call: asyncio.Lock = field(default_factory=asyncio.Lock)
    _held_until: float = 0.0  # time.monotonic

    @property
    def is_held(self) -> bool:
        """Whether the lease lives, as far as this process can tell."""
        return time.monotonic() < self._held_until

    async def enter(self, waiting: DeliveryKey | None = None) -> EnterResult:
        """Ask for the gate once, and note an event of the inbox as waiting where it is busy."""
        limits, asked_at = self.parts.limits, time.monotonic()
        call = self.parts.store.enter(
            self.gate,
            self._token,
            limits.lease_seconds,
            mark=self.mark,
            drop_ties=self.drop_ties,
            waiting=waiting,
        )
        result = await within(limits.store_seconds, call)
        if isinstance(result, Entered):
            self._held_until = asked_at + limits.lease_seconds
        return result

    async def extend(self) -> None:
        """Begin the lease anew, if the turn is not over."""
        async with self._one_call:
            if self.is_over:
                return
            try:
                result = await self.enter()
            except StoreError as error:
                _log.warning("could not extend the turn of %s: %s", self.gate.handler, error)
                return
        if not isinstance(result, Entered):
            _log.error("the turn of %s was lost; another run may have begun", self.gate.handler)

    async def end(self, *, succeeded: bool, gives_up: Callable[[], bool] = lambda: True) -> None:
        """Leave the gate, raise its mark, and call who comes next.

        Args:
            succeeded: whether the run has.
            gives_up: asked after each failure of the store.

        """
        self.is_over, pause = True, _FIRST_PAUSE_SECONDS
        mark = self.mark if succeeded else None
        async with self._one_call:
            while True:
                try:
                    called = await self._leave(mark)
                    break
                except StoreError as error:
                    if gives_up():
                        _log.error(
                            "could not end the turn of %s; its lease will run out%s: %s",
                            self.gate.handler,
                            ", and an older event would be run after it" if mark else "",
                            error,
                        )
                        return
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        try:
            # One that was noted may have been tried since, and not wait any more.
            while called is not None and not await self.call(called):
                called = await self._leave(None)
        except StoreError as error:
            _log.warning("could not call who waits for %s: %s", self.gate.handler, error)

    async def call(self, event: DeliveryKey) -> bool:
        """Let an event of the inbox be tried now; return False if it does not wait there."""
        store = self.parts.store
        if not isinstance(store, Listing):
            return False
        waited = await within(self.parts.limits.store_seconds, store.hasten(event))
        if waited and self.work is not None:
            self.work.set()
        return waited

    async def _leave(self, mark: Mark | None) -> DeliveryKey | None:
        call = self.parts.store.leave(self.gate, self._token, mark=mark, event=self.event)
        return await within(self.parts.limits.store_seconds, call)

    def busy_seconds(self, busy: Busy) -> float:
        """Return how long somebody else may have the gate, as far as that can be told."""
        left = busy.until - self.parts.clock()
        return min(max(0.0, left), self.parts.limits.lease_seconds)


@dataclass(slots=True)
class Turns:
    """The turns of a run, whose handlers may take several.

    Attributes:
        held: those under way.
        waiting: those that were not to be had.
        stale: how many handlers were not run, since their event came too late.
        all_stale: whether these were all.

    """

    held: list[Turn] = field(default_factory=list)
    waiting: list[Turn] = field(default_factory=list)
    stale: int = 0
    all_stale: bool = False
