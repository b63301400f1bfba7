"""Handlers with a key: one call at a time for each key; ``latest_by`` skips older events.

A `KeyLockHolder` holds a key lock of the store for one call of a handler. Until it releases the
lock, no other process can acquire it. A success raises the lock's watermark before the release.

While the store cannot be reached, `Unrecorded.watermarks` keeps the watermark of a handler that
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
from ..logs import event_fields, get_logger
from ..stores.protocols import InboxListing
from ..stores.time_limit import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, within
from ..stores.values import (
    Acquired,
    AcquireResult,
    Busy,
    Delivery,
    DeliveryKey,
    KeyLock,
    Token,
    Watermark,
    new_token,
)
from ..watching.log import delivery_fields
from .dependencies import Dependencies

_log = get_logger("hookonce.lease")


@dataclass(eq=False, repr=False, kw_only=True)
class KeyLockHolder:
    """Holds the key lock of one call of a handler: acquires, extends and releases it.

    Attributes:
        dependencies: what all attempts of the receiver share.
        key_lock: which lock.
        watermark: the event's, if the handler skips events that come too late.
        drop_ties: whether another event with the same time makes this one late, too.
        delivery: what the call handles, for the log; None if the lock is only released.
        attempt: the number of the attempt, for the log.
        event: the event of the inbox that waits for the lock; None outside an inbox.
        work: set when an event of the inbox was made due.
        is_released: whether the lock has been released, or is about to be; it is not extended then.
        has_succeeded: whether the call has succeeded.
    """

    dependencies: Dependencies
    key_lock: KeyLock
    watermark: Watermark | None = None
    drop_ties: bool = False
    delivery: Delivery | None = None
    attempt: int | None = None
    event: DeliveryKey | None = None
    work: asyncio.Event | None = None
    is_released: bool = False
    has_succeeded: bool = False
    _token: Token = field(default_factory=new_token)
    # Allows one call at a time: an extension after the release would acquire the lock again.
    _one_call: asyncio.Lock = field(default_factory=asyncio.Lock)
    _held_until: float = 0.0  # in the time of time.monotonic

    @property
    def is_held(self) -> bool:
        """Whether the lease still lasts, by this process's clock."""
        return time.monotonic() < self._held_until

    async def acquire(self, waiting: DeliveryKey | None = None) -> AcquireResult:
        """Ask for the lock once; if it is busy, note the event of the inbox as waiting."""
        # Send an unsent watermark first, or an older event could acquire the lock.
        if self.key_lock in self.dependencies.unrecorded.watermarks:
            await self.send_watermark()
        limits, asked_at = self.dependencies.limits, time.monotonic()
        call = self.dependencies.store.acquire_key_lock(
            self.key_lock,
            self._token,
            limits.lease_seconds,
            watermark=self.watermark,
            drop_ties=self.drop_ties,
            waiting=waiting,
        )
        result = await within(limits.store_seconds, call)
        if isinstance(result, Acquired):
            self._held_until = asked_at + limits.lease_seconds
        return result

    async def extend(self) -> None:
        """Renew the lock's lease, unless the lock has been released."""
        async with self._one_call:
            if self.is_released:
                return
            try:
                result = await self.acquire()
            except StoreError as error:
                _log.warning(
                    "could not extend the key lock of %s: %s",
                    self.key_lock.handler,
                    error,
                    extra=self._log_fields(),
                )
                return
        if not isinstance(result, Acquired):
            _log.error(
                "the key lock of %s was lost; another attempt may have acquired it",
                self.key_lock.handler,
                extra=self._log_fields(),
            )

    def succeed(self) -> None:
        """Keep the watermark of a success until the store has recorded it."""
        self.is_released = self.has_succeeded = True
        if self.watermark is not None:
            watermarks = self.dependencies.unrecorded.watermarks
            watermarks[self.key_lock] = max(
                self.watermark, watermarks.get(self.key_lock, self.watermark)
            )

    @property
    def has_unsent_watermark(self) -> bool:
        """Whether the call has succeeded and the store may not know its watermark."""
        return self.has_succeeded and self.key_lock in self.dependencies.unrecorded.watermarks

    async def release(self, *, gives_up: Callable[[], bool] = lambda: True) -> None:
        """Release the lock and make the next event due; repeat until the watermark is recorded.

        Args:
            gives_up: called after each failure of the store; True once the attempt's lease is over.
        """
        self.is_released, pause, is_logged = True, FIRST_PAUSE_SECONDS, False
        while True:
            try:
                async with self._one_call:
                    await self.release_once()
            except StoreError as error:
                if gives_up():
                    if not is_logged:
                        self._log_unreleased(error)
                    if not self.has_unsent_watermark:
                        return
                    is_logged = True
            else:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _log_fields(self) -> dict[str, object]:
        handler = self.key_lock.handler
        if self.delivery is None:
            return event_fields(self.key_lock.endpoint, None, None, handler=handler)
        return delivery_fields(self.delivery, self.attempt, handler)

    def _log_unreleased(self, error: StoreError) -> None:
        if self.has_unsent_watermark:
            _log.error(
                "%s has succeeded, but its watermark could not be recorded while its lease lived;"
                " until it is, another process may handle an older event after it: %s",
                self.key_lock.handler,
                error,
                extra=self._log_fields(),
            )
        else:
            _log.error(
                "could not release the key lock of %s; its lease will run out: %s",
                self.key_lock.handler,
                error,
                extra=self._log_fields(),
            )

    async def release_once(self) -> None:
        """Release the lock and make the next event due; StoreError if the store fails."""
        await self._release(self._token, self.event)

    async def send_watermark(self) -> None:
        """Send the lock's unsent watermark, whoever holds the lock; StoreError if that fails."""
        await self._release(new_token())  # a new token releases nothing

    async def _release(self, token: Token, event: DeliveryKey | None = None) -> None:
        next_event = await self._release_and_shift(token, event)
        try:
            # If that event has been handled in the meantime, make the next waiting event due.
            while next_event is not None and not await self.make_due(next_event):
                next_event = await self._release_and_shift(token, event)
        except StoreError as error:
            _log.warning(
                "could not make the event due that waits for %s: %s",
                self.key_lock.handler,
                error,
                extra=self._log_fields(),
            )

    async def _release_and_shift(
        self, token: Token, event: DeliveryKey | None
    ) -> DeliveryKey | None:
        """Release the lock with any unsent watermark; take the next event from its queue."""
        watermarks, key_lock = self.dependencies.unrecorded.watermarks, self.key_lock
        watermark = watermarks.get(key_lock)
        call = self.dependencies.store.release_key_lock(
            key_lock, token, watermark=watermark, event=event
        )
        next_event = await within(self.dependencies.limits.store_seconds, call)
        # A newer watermark may have come in the meantime.
        if watermark is not None and watermarks.get(key_lock) == watermark:
            del watermarks[key_lock]
        return next_event

    async def make_due(self, event: DeliveryKey) -> bool:
        """Make an event of the inbox due now; return False if it does not wait there."""
        store = self.dependencies.store
        if not isinstance(store, InboxListing):
            return False
        waited = await within(self.dependencies.limits.store_seconds, store.make_due(event))
        if waited and self.work is not None:
            self.work.set()
        return waited

    def busy_seconds(self, busy: Busy) -> float:
        """Return for how long another attempt may hold the lock, by this process's clock."""
        left = busy.until_unix - self.dependencies.clock()
        return min(max(0.0, left), self.dependencies.limits.lease_seconds)


async def send_watermarks(dependencies: Dependencies) -> None:
    """Send the watermarks that the store had not recorded when their attempts ended."""
    pause = FIRST_PAUSE_SECONDS
    while dependencies.unrecorded.watermarks:
        for key_lock in tuple(dependencies.unrecorded.watermarks):
            with suppress(StoreError):
                await KeyLockHolder(dependencies=dependencies, key_lock=key_lock).send_watermark()
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
