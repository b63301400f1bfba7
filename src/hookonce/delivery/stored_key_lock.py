"""A key lock in the store; each call about the lock also sends its unsent watermark.

`Unrecorded.watermarks` keeps the watermark of a handler that has succeeded until the store has
recorded the watermark. Until then an older event could acquire the lock, so every call sends the
watermark first.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from ..errors import StoreError
from ..logs import event_fields, get_logger
from ..stores.protocols import InboxListing
from ..stores.time_limit import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, within
from ..stores.values import (
    AcquireResult,
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


class MadeDue(Enum):
    """The result of asking the store to make a waiting event due."""

    NOW = "now"
    LATER = "later"
    """The store failed: the event becomes due by itself when a lease ends."""
    GONE = "gone"
    """The event does not wait any more, so another event may be the next."""


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class StoredKeyLock:
    """A key lock in the store, as an attempt uses it.

    Attributes:
        dependencies: what all attempts of the receiver share.
        key_lock: which lock.
        delivery: what the attempt handles, for the log; None outside an attempt.
        attempt: the number of the attempt, for the log.
        work: set when an event of the inbox was made due.
    """

    dependencies: Dependencies
    key_lock: KeyLock
    delivery: Delivery | None = None
    attempt: int | None = None
    work: asyncio.Event | None = None

    @property
    def has_unsent_watermark(self) -> bool:
        """Whether a success of this process has a watermark that the store may not know."""
        return self.key_lock in self.dependencies.unrecorded.watermarks

    def keep_watermark(self, watermark: Watermark) -> None:
        """Keep the watermark of a success until the store has recorded it."""
        self.dependencies.unrecorded.keep_watermark(self.key_lock, watermark)

    async def acquire(
        self,
        token: Token,
        *,
        watermark: Watermark | None,
        drop_ties: bool,
        waiting: DeliveryKey | None = None,
    ) -> AcquireResult:
        """Acquire the lock or renew its lease; if the lock is busy, put an event into its queue.

        Raises:
            StoreError: the store failed.
        """
        if self.has_unsent_watermark:
            await self.send_watermark()
        limits = self.dependencies.limits
        call = self.dependencies.store.acquire_key_lock(
            self.key_lock,
            token,
            limits.lease_seconds,
            watermark=watermark,
            drop_ties=drop_ties,
            waiting=waiting,
        )
        return await within(limits.store_seconds, call)

    async def release(self, token: Token, event: DeliveryKey | None = None) -> None:
        """Release the lock if the token holds it, and make the next waiting event due.

        Args:
            token: the token of the holder.
            event: the holder's own event, which leaves the lock's queue.

        Raises:
            StoreError: the store failed; it may have released the lock nevertheless.
        """
        store, unrecorded = self.dependencies.store, self.dependencies.unrecorded
        while True:
            watermark = unrecorded.watermarks.get(self.key_lock)
            call = store.release_key_lock(self.key_lock, token, watermark=watermark, event=event)
            next_event = await within(self.dependencies.limits.store_seconds, call)
            unrecorded.forget_watermark(self.key_lock, watermark)
            if next_event is None or await self.make_due(next_event) is not MadeDue.GONE:
                return

    async def send_watermark(self) -> None:
        """Send the unsent watermark, even if others hold the lock; StoreError if that fails."""
        await self.release(new_token())  # a new token holds no lock: only the watermark is sent

    async def make_due(self, event: DeliveryKey) -> MadeDue:
        """Make an event of the inbox due now."""
        store = self.dependencies.store
        if not isinstance(store, InboxListing):
            return MadeDue.GONE
        try:
            is_due = await within(self.dependencies.limits.store_seconds, store.make_due(event))
        except StoreError as error:
            self.log_warning("could not make the event due that waits for %s: %s", error)
            return MadeDue.LATER
        if is_due and self.work is not None:
            self.work.set()
        return MadeDue.NOW if is_due else MadeDue.GONE

    def log_fields(self) -> dict[str, object]:
        """Return the fields of a log record about the lock."""
        handler = self.key_lock.handler
        if self.delivery is None:
            return event_fields(self.key_lock.endpoint, None, None, handler=handler)
        return delivery_fields(self.delivery, self.attempt, handler)

    def log_warning(self, text: str, error: StoreError) -> None:
        """Log a failure of the store; ``text`` has placeholders for the handler and the error."""
        _log.warning(text, self.key_lock.handler, error, extra=self.log_fields())


async def send_watermarks(dependencies: Dependencies) -> None:
    """Send the watermarks that the store had not recorded when their attempts ended."""
    pause = FIRST_PAUSE_SECONDS
    while key_locks := tuple(dependencies.unrecorded.watermarks):
        for key_lock in key_locks:
            with suppress(StoreError):
                await StoredKeyLock(dependencies=dependencies, key_lock=key_lock).send_watermark()
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
