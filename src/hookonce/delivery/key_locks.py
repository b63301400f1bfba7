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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

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
from .calls import Call
from .dependencies import Dependencies

_log = get_logger("hookonce.lease")


class Hold(Enum):
    """How far the holder of a key lock has come."""

    ASKED = "asked"
    """The store has not granted the lock yet."""
    HELD = "held"
    """The handler may run. The lock's lease is extended with the claim."""
    SUCCEEDED = "succeeded"
    """The handler has succeeded, and the store may not know its watermark. No more extension."""
    RELEASED = "released"
    """The lock is free, or its lease runs out. No more extension: it would acquire the lock."""


@dataclass(eq=False, repr=False, kw_only=True)
class KeyLockHolder:
    """Holds the key lock of one call of a handler: acquires, extends and releases it.

    Attributes:
        dependencies: what all attempts of the receiver share.
        key_lock: which lock.
        watermark: the event's, if the handler skips events that come too late.
        drop_ties: whether another event with the same time makes this one late, too.
        delivery: what the call handles, for the log; None if only a watermark is sent.
        attempt: the number of the attempt, for the log.
        event: the event of the inbox that waits for the lock; None outside an inbox.
        work: set when an event of the inbox was made due.
        hold: how far the holder has come.
    """

    dependencies: Dependencies
    key_lock: KeyLock
    watermark: Watermark | None = None
    drop_ties: bool = False
    delivery: Delivery | None = None
    attempt: int | None = None
    event: DeliveryKey | None = None
    work: asyncio.Event | None = None
    hold: Hold = Hold.ASKED
    _token: Token = field(default_factory=new_token)
    # Allows one call at a time: an extension after the release would acquire the lock again.
    _one_call: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def acquire(self) -> AcquireResult | None:
        """Ask for the lock once.

        Returns:
            None if the store granted the lock in vain: the lease is over because this process was
            blocked, or meanwhile a newer event of this process has succeeded. Ask again then.

        Raises:
            StoreError: the store failed.
        """
        asked_at = time.monotonic()
        result = await self._ask()
        if isinstance(result, Acquired):
            if self.has_unsent_watermark:
                await self._release_at_store(self._token, self.event)
                return None
            if time.monotonic() >= asked_at + self.dependencies.limits.lease_seconds:
                return None
            self.hold = Hold.HELD
        return result

    async def extend(self) -> None:
        """Renew the lease of a lock that is held."""
        async with self._one_call:
            if self.hold is not Hold.HELD:
                return
            try:
                result = await self._ask()
            except StoreError as error:
                self._log_warning("could not extend the key lock of %s: %s", error)
                return
        if not isinstance(result, Acquired):
            _log.error(
                "the key lock of %s was lost; another attempt may have acquired it",
                self.key_lock.handler,
                extra=self._log_fields(),
            )

    def succeed(self) -> None:
        """Keep the watermark of a success until the store has recorded it."""
        if self.hold is Hold.HELD:
            self.hold = Hold.SUCCEEDED
            if self.watermark is not None:
                self.dependencies.unrecorded.keep_watermark(self.key_lock, self.watermark)

    async def record_success(self, *, lease_is_over: Callable[[], bool]) -> None:
        """Release the lock after a success; repeat until the store has recorded the watermark.

        Args:
            lease_is_over: whether the attempt's lease is over; called after each failure.
        """
        pause, is_logged = FIRST_PAUSE_SECONDS, False
        while True:
            try:
                await self.release()
            except StoreError as error:
                if lease_is_over():
                    if not is_logged:
                        self._log_unreleased(error)
                    if not self.has_unsent_watermark:
                        return
                    is_logged = True
            else:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def give_up(self) -> None:
        """Release the lock without a success; if the store fails, the lock's lease runs out."""
        self.hold = Hold.RELEASED
        try:
            await self.release()
        except StoreError as error:
            self._log_unreleased(error)

    async def end(self, calls: Sequence[Call]) -> None:
        """Release a lock that is still held, unless the handler's thread goes on.

        No other call may run beside that thread, so the lock's lease is extended and then runs out.
        The lock of a thread that has succeeded is released together with the event, which can ask
        the store more than once.

        Args:
            calls: the calls of the attempt that have not ended, or were stopped.
        """
        if self.hold is not Hold.HELD:
            return
        own = [call for call in calls if call.name == self.key_lock.handler]
        if any(call.thread_goes_on for call in own):
            await self.extend()
        elif any(call.has_succeeded for call in own):
            self.succeed()
        else:
            await self.give_up()

    async def release(self) -> None:
        """Release the lock with any unsent watermark, and make the next waiting event due.

        The holder's own event leaves the lock's queue.

        Raises:
            StoreError: the store failed; it may have released the lock nevertheless.
        """
        async with self._one_call:
            await self._release_at_store(self._token, self.event)
            self.hold = Hold.RELEASED

    async def join_queue(self) -> None:
        """Let the event wait in the lock's queue; if the lock is free by now, make the event due.

        Raises:
            StoreError: the store failed.
        """
        if not isinstance(await self._ask(waiting=self.event), Busy):
            await self.give_up()
            if self.event is not None:
                await self._make_due(self.event)

    async def send_watermark(self) -> None:
        """Send the lock's unsent watermark, whoever holds the lock; StoreError if that fails."""
        await self._release_at_store(new_token())  # a new token releases nothing

    @property
    def has_unsent_watermark(self) -> bool:
        """Whether a success of this process has a watermark that the store may not know."""
        return self.key_lock in self.dependencies.unrecorded.watermarks

    async def _ask(self, waiting: DeliveryKey | None = None) -> AcquireResult:
        """Ask for the lock or a new lease; if the lock is busy, note an event as waiting."""
        # Send an unsent watermark first, or an older event could acquire the lock.
        if self.has_unsent_watermark:
            await self.send_watermark()
        limits = self.dependencies.limits
        call = self.dependencies.store.acquire_key_lock(
            self.key_lock,
            self._token,
            limits.lease_seconds,
            watermark=self.watermark,
            drop_ties=self.drop_ties,
            waiting=waiting,
        )
        return await within(limits.store_seconds, call)

    async def _release_at_store(self, token: Token, event: DeliveryKey | None = None) -> None:
        """Release the lock if the token holds it, and make the next waiting event due."""
        store, unrecorded = self.dependencies.store, self.dependencies.unrecorded
        while True:
            watermark = unrecorded.watermarks.get(self.key_lock)
            call = store.release_key_lock(self.key_lock, token, watermark=watermark, event=event)
            next_event = await within(self.dependencies.limits.store_seconds, call)
            unrecorded.forget_watermark(self.key_lock, watermark)
            # If that event has been handled in the meantime, another event may wait.
            if next_event is None or await self._make_due(next_event):
                return

    async def _make_due(self, event: DeliveryKey) -> bool:
        """Make an event of the inbox due; return False if it does not wait there any more."""
        store = self.dependencies.store
        if not isinstance(store, InboxListing):
            return False
        try:
            is_due = await within(self.dependencies.limits.store_seconds, store.make_due(event))
        except StoreError as error:
            self._log_warning("could not make the event due that waits for %s: %s", error)
            return True  # it becomes due when a lease ends
        if is_due and self.work is not None:
            self.work.set()
        return is_due

    def _log_fields(self) -> dict[str, object]:
        handler = self.key_lock.handler
        if self.delivery is None:
            return event_fields(self.key_lock.endpoint, None, None, handler=handler)
        return delivery_fields(self.delivery, self.attempt, handler)

    def _log_warning(self, text: str, error: StoreError) -> None:
        """Log a failure of the store; the text has places for the handler and for the error."""
        _log.warning(text, self.key_lock.handler, error, extra=self._log_fields())

    def _log_unreleased(self, error: StoreError) -> None:
        _log.error(
            "%s has succeeded, but its watermark could not be recorded while its lease lived;"
            " until it is, another process may handle an older event after it: %s"
            if self.hold is Hold.SUCCEEDED and self.has_unsent_watermark
            else "could not release the key lock of %s; its lease will run out: %s",
            self.key_lock.handler,
            error,
            extra=self._log_fields(),
        )


async def send_watermarks(dependencies: Dependencies) -> None:
    """Send the watermarks that the store had not recorded when their attempts ended."""
    pause = FIRST_PAUSE_SECONDS
    while key_locks := tuple(dependencies.unrecorded.watermarks):
        for key_lock in key_locks:
            with suppress(StoreError):
                await KeyLockHolder(dependencies=dependencies, key_lock=key_lock).send_watermark()
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
