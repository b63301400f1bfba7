"""Handlers that take turns: one run at a time for a key, and none for an event that comes too late.

A turn is a run's way through a gate of the store. Between its beginning and its end nobody else has
the gate, in any process; what has succeeded raises the gate's mark before the turn ends.

While the store cannot be reached, `Dependencies.watermarks` keeps the watermark of a handler that
has succeeded. Every later call about that key lock sends the watermark first, and the handler
counts as finished only after that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from ..errors import StoreError
from ..logs import get_logger
from ..stores.contract import Listing
from ..stores.time_limit import within
from ..stores.values import Busy, DeliveryKey, Entered, EnterResult, Gate, Mark, Token, new_token
from .dependencies import Dependencies

_log = get_logger("hookonce.lease")

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0


@dataclass(eq=False, repr=False, kw_only=True)
class Turn:
    """One run of a handler on one key: it enters a gate, keeps it, and leaves it.

    Attributes:
        dependencies: what the run works with.
        gate: which gate.
        mark: of the event, if it is left out where it comes too late.
        drop_ties: whether another event of the same time makes it late as well.
        event: which event it is of; None where it does not wait in an inbox.
        work: set when an event of the inbox was made due.
        is_over: whether it is ended, or was to be.
        has_succeeded: whether its run has.

    """

    dependencies: Dependencies
    gate: Gate
    mark: Mark | None = None
    drop_ties: bool = False
    event: DeliveryKey | None = None
    work: asyncio.Event | None = None
    is_over: bool = False
    has_succeeded: bool = False
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
        # Send the watermark first, or an older event could acquire the lock before it is stored.
        if self.gate in self.dependencies.watermarks:
            await self._leave(new_token())
        limits, asked_at = self.dependencies.limits, time.monotonic()
        call = self.dependencies.store.enter(
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

    def succeed(self) -> None:
        """Keep the watermark of a run that has succeeded, until the store has recorded it."""
        self.is_over = self.has_succeeded = True
        if self.mark is not None:
            watermarks = self.dependencies.watermarks
            watermarks[self.gate] = max(self.mark, watermarks.get(self.gate, self.mark))

    @property
    def owes_watermark(self) -> bool:
        """Whether the run has succeeded, and the store may not know its watermark."""
        return self.has_succeeded and self.gate in self.dependencies.watermarks

    async def end(self, *, gives_up: Callable[[], bool] = lambda: True) -> None:
        """Leave the gate, and call who comes next; ask until a watermark is recorded.

        Args:
            gives_up: asked after each failure of the store, whether the lease is over.

        """
        self.is_over, pause, is_told = True, _FIRST_PAUSE_SECONDS, False
        while True:
            try:
                async with self._one_call:
                    await self.leave()
            except StoreError as error:
                if gives_up():
                    if not is_told:
                        self._tell_unended(error)
                    if not self.owes_watermark:
                        return
                    is_told = True
            else:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _tell_unended(self, error: StoreError) -> None:
        if self.owes_watermark:
            _log.error(
                "%s has succeeded, but its watermark could not be recorded while its lease lived;"
                " until it is, another process may run an older event after it: %s",
                self.gate.handler,
                error,
            )
        else:
            _log.error(
                "could not end the turn of %s; its lease will run out: %s",
                self.gate.handler,
                error,
            )

    async def leave(self) -> None:
        """Leave the gate, and call who comes next; StoreError if the store does not answer."""
        await self._leave(self._token, self.event)

    async def _leave(self, token: Token, event: DeliveryKey | None = None) -> None:
        called = await self._left(token, event)
        try:
            # One that was noted may have been tried since, and not wait any more.
            while called is not None and not await self.call(called):
                called = await self._left(token, event)
        except StoreError as error:
            _log.warning("could not call who waits for %s: %s", self.gate.handler, error)

    async def _left(self, token: Token, event: DeliveryKey | None) -> DeliveryKey | None:
        """Leave the gate with the watermark that is not sent yet; return who is to come next."""
        watermarks, gate = self.dependencies.watermarks, self.gate
        mark = watermarks.get(gate)
        call = self.dependencies.store.leave(gate, token, mark=mark, event=event)
        called = await within(self.dependencies.limits.store_seconds, call)
        if mark is not None and watermarks.get(gate) == mark:  # a newer one may have come meanwhile
            del watermarks[gate]
        return called

    async def call(self, event: DeliveryKey) -> bool:
        """Let an event of the inbox be tried now; return False if it does not wait there."""
        store = self.dependencies.store
        if not isinstance(store, Listing):
            return False
        waited = await within(self.dependencies.limits.store_seconds, store.hasten(event))
        if waited and self.work is not None:
            self.work.set()
        return waited

    def busy_seconds(self, busy: Busy) -> float:
        """Return how long somebody else may have the gate, as far as that can be told."""
        left = busy.until - self.dependencies.clock()
        return min(max(0.0, left), self.dependencies.limits.lease_seconds)


async def send_watermarks(dependencies: Dependencies) -> None:
    """Send the watermarks of runs that a shutdown, or the end of their loop, has cut off."""
    pause = _FIRST_PAUSE_SECONDS
    while dependencies.watermarks:
        for gate in tuple(dependencies.watermarks):
            with suppress(StoreError):
                await Turn(dependencies=dependencies, gate=gate).leave()
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
