"""Handlers with a key: one call at a time for each key; ``latest_by`` skips older events.

A `KeyLockHolder` holds a key lock of the store for one call of a handler. Until it releases the
lock, no other process can acquire it. A success raises the lock's watermark before the release.

The handler counts as finished only after the store has recorded its watermark.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ..errors import StoreError
from ..logs import get_logger
from ..stores.time_limit import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from ..stores.values import (
    Acquired,
    AcquireResult,
    Busy,
    DeliveryKey,
    Token,
    Watermark,
    new_token,
)
from .calls import Call
from .stored_key_lock import StoredKeyLock

_log = get_logger("hookonce.lease")


class HolderState(Enum):
    """The stages that the holder of a key lock goes through."""

    ASKED = "asked"
    """The store has not granted the lock yet."""
    HELD = "held"
    """The handler may run. The lock's lease is extended with the claim."""
    SUCCEEDED = "succeeded"
    """The handler has succeeded, and the store may not know its watermark. No more extension."""
    RELEASED = "released"
    """The lock is free, or its lease runs out. No more extension: it would acquire the lock."""


class AskAgain(NamedTuple):
    """The store granted a lock that this process must not use, so the attempt must ask again.

    The lease is over already because this process was blocked, or a newer event has succeeded in
    this process in the meantime.
    """


@dataclass(eq=False, repr=False, kw_only=True)
class KeyLockHolder:
    """Holds the key lock of one call of a handler: acquires, extends and releases it.

    Attributes:
        lock: the lock in the store.
        watermark: the watermark of the event; None if the handler runs late events, too.
        drop_ties: whether another event with the same time makes this event late, too.
        late: whether the handler runs even if a newer event has succeeded. Its success raises the
            watermark as usual.
        event: the event of the inbox that waits for the lock; None outside an inbox.
        state: how far the holder has come.
    """

    lock: StoredKeyLock
    watermark: Watermark | None
    drop_ties: bool
    event: DeliveryKey | None
    late: bool = False
    state: HolderState = HolderState.ASKED
    _token: Token = field(default_factory=new_token)
    # Only one call to the store at a time: an extension that came after the release would acquire
    # the lock again.
    _one_call: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def handler(self) -> str:
        """The name of the handler that the lock belongs to."""
        return self.lock.key_lock.handler

    @property
    def has_succeeded(self) -> bool:
        """Whether the handler has succeeded, but its lock is not released yet."""
        return self.state is HolderState.SUCCEEDED

    async def acquire(self) -> AcquireResult | AskAgain:
        """Ask for the lock once.

        Raises:
            StoreError: the store failed.
        """
        asked_at = time.monotonic()
        result = await self._ask()
        if isinstance(result, Acquired):
            if self.lock.has_unsent_watermark:
                await self.lock.release(self._token, self.event)
                return AskAgain()
            if time.monotonic() >= asked_at + self.lock.dependencies.limits.lease_seconds:
                return AskAgain()
            self.state = HolderState.HELD
        return result

    async def extend(self) -> None:
        """Renew the lease of a lock that is held."""
        async with self._one_call:
            if self.state is not HolderState.HELD:
                return
            try:
                result = await self._ask()
            except StoreError as error:
                self.lock.log_warning("could not extend the key lock of %s: %s", error)
                return
        if not isinstance(result, Acquired):
            _log.error(
                "the key lock of %s was lost; another attempt may have acquired it",
                self.handler,
                extra=self.lock.log_fields(),
            )

    def succeed(self) -> None:
        """Keep the watermark of a success until the store has recorded it."""
        if self.state is HolderState.HELD:
            self.state = HolderState.SUCCEEDED
            if self.watermark is not None:
                self.lock.keep_watermark(self.watermark)

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
                    if not self.lock.has_unsent_watermark:
                        return
                    is_logged = True
            else:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def try_release(self) -> None:
        """Release the lock without a success; if the store fails, the lock's lease runs out."""
        self.state = HolderState.RELEASED
        try:
            await self.release()
        except StoreError as error:
            self._log_unreleased(error)

    async def end(self, calls: Sequence[Call]) -> None:
        """Release a lock that is still held, unless the handler's thread goes on.

        No other call may run beside that thread, so the lock's lease is extended and then runs out.
        If the thread has succeeded, `abandon` releases the lock before the event: it calls the
        store again after a failure.

        Args:
            calls: the calls of the attempt that have not ended, or were stopped.
        """
        if self.state is not HolderState.HELD:
            return
        own = [call for call in calls if call.name == self.handler]
        if any(call.thread_goes_on for call in own):
            await self.extend()
        elif any(call.has_succeeded for call in own):
            self.succeed()
        else:
            await self.try_release()

    async def release(self) -> None:
        """Release the lock with any unsent watermark, and make the next waiting event due.

        The holder's own event leaves the lock's queue.

        Raises:
            StoreError: the store failed; it may have released the lock nevertheless.
        """
        async with self._one_call:
            await self.lock.release(self._token, self.event)
            self.state = HolderState.RELEASED

    async def join_queue(self) -> None:
        """Let the event wait in the lock's queue; if the lock is free by now, make the event due.

        Raises:
            StoreError: the store failed.
        """
        if not isinstance(await self._ask(waiting=self.event), Busy):
            await self.try_release()
            if self.event is not None:
                await self.lock.make_due(self.event)

    async def _ask(self, waiting: DeliveryKey | None = None) -> AcquireResult:
        """Ask for the lock or a new lease; if the lock is busy, put an event into its queue."""
        watermark = None if self.late else self.watermark
        return await self.lock.acquire(
            self._token, watermark=watermark, drop_ties=self.drop_ties, waiting=waiting
        )

    def _log_unreleased(self, error: StoreError) -> None:
        _log.error(
            "%s has succeeded, but its watermark could not be recorded before the lease ended;"
            " until it is, another process may handle an older event: %s"
            if self.has_succeeded and self.lock.has_unsent_watermark
            else "could not release the key lock of %s; its lease will run out: %s",
            self.handler,
            error,
            extra=self.lock.log_fields(),
        )
