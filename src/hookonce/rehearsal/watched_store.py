"""A store in a rehearsal: the real one, whose calls take real time in a loop that skips time.

Nobody else uses the store of a rehearsal, but for a receiver that is just being replaced. So an
idle worker, which looks every two seconds for a day of virtual time, is answered from memory for a
minute, unless something can have become due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from ..stores.contract import InboxStore, Store
from ..stores.values import (
    Batch,
    Claimed,
    ClaimResult,
    DeadLetter,
    DeadReason,
    Delivery,
    DeliveryKey,
    Entry,
    Ownership,
    PutResult,
    StoreStats,
    Token,
)
from .virtual_loop import VirtualLoop

__all__ = ["WatchedInboxStore", "WatchedStore", "watched"]

T = TypeVar("T")

_NONE: frozenset[str] = frozenset()

# A call that was given up may still be done by the store, later than anybody here can notice, and
# a receiver that is being replaced gives events back through a watched store of its own.
_LONGEST_MEMORY_SECONDS = 60.0


def watched(store: Store, loop: VirtualLoop) -> WatchedStore:
    """Return the store for use in this loop; it has an inbox if the store has one."""
    if isinstance(store, InboxStore):
        return WatchedInboxStore(store, loop)
    return WatchedStore(store, loop)


class WatchedStore:
    """Passes every call on, and lets no time be skipped until it has returned.

    Args:
        store: the real one.
        loop: where time is skipped.

    """

    def __init__(self, store: Store, loop: VirtualLoop) -> None:
        self._store = store
        self._loop = loop

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self._store).__name__})"

    @property
    def keeps_bodies(self) -> bool:
        """Whether dead letters and their bytes survive a restart."""
        return self._store.keeps_bodies

    async def _outside(self, call: Awaitable[T]) -> T:
        with self._loop.outside():
            return await call

    async def open(self) -> None:
        """Connect and prepare; see ``Store.open``."""
        await self._outside(self._store.open())

    async def warnings(self) -> tuple[str, ...]:
        """Return what an operator should mend; see ``Store.warnings``."""
        return await self._outside(self._store.warnings())

    async def aclose(self) -> None:
        """Let go of connections and threads; see ``Store.aclose``."""
        await self._outside(self._store.aclose())

    async def claim(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult:
        """Claim an event; see ``Store.claim``."""
        return await self._outside(self._store.claim(key, token, lease))

    async def extend(
        self, claim: Claimed, finished: frozenset[str] = _NONE, owed: frozenset[str] = _NONE
    ) -> Ownership:
        """Start the lease anew; see ``Store.extend``."""
        return await self._outside(self._store.extend(claim, finished, owed))

    async def complete(self, claim: Claimed) -> None:
        """Record that the event is handled; see ``Store.complete``."""
        await self._outside(self._store.complete(claim))

    async def release(
        self,
        claim: Claimed,
        finished: frozenset[str],
        error: str | None = None,
        *,
        owed: frozenset[str] = _NONE,
        began: bool = True,
    ) -> Ownership:
        """Give the event back; see ``Store.release``."""
        call = self._store.release(claim, finished, error, owed=owed, began=began)
        return await self._outside(call)

    async def keep(self, claim: Claimed, delivery: Delivery) -> Ownership:
        """Keep the delivery beside its claim; see ``Store.keep``."""
        return await self._outside(self._store.keep(claim, delivery))

    async def keep_in_flight(self, delivery: Delivery) -> None:
        """Keep the delivery of an event claimed elsewhere; see ``Store.keep_in_flight``."""
        await self._outside(self._store.keep_in_flight(delivery))

    async def bury(
        self,
        claim: Claimed,
        reason: DeadReason,
        *,
        error: str = "",
        finished: frozenset[str] = _NONE,
        owed: frozenset[str] = _NONE,
        delivery: Delivery | None = None,
    ) -> Ownership:
        """Make the event a dead letter; see ``Store.bury``."""
        call = self._store.bury(
            claim, reason, error=error, finished=finished, owed=owed, delivery=delivery
        )
        return await self._outside(call)

    async def dead_letters(
        self, *, endpoint: str | None = None, event_type: str | None = None, limit: int = 100
    ) -> list[DeadLetter]:
        """Return dead letters; see ``Store.dead_letters``."""
        call = self._store.dead_letters(endpoint=endpoint, event_type=event_type, limit=limit)
        return await self._outside(call)

    async def dead_letter(self, key: DeliveryKey) -> DeadLetter | None:
        """Return one dead letter; see ``Store.dead_letter``."""
        return await self._outside(self._store.dead_letter(key))

    async def replay(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult | None:
        """Claim a dead letter; see ``Store.replay``."""
        return await self._outside(self._store.replay(key, token, lease))

    async def discard(self, key: DeliveryKey) -> bool:
        """Forget a dead letter; see ``Store.discard``."""
        return await self._outside(self._store.discard(key))

    async def prune(self) -> int:
        """Remove records whose retention is over; see ``Store.prune``."""
        return await self._outside(self._store.prune())

    async def stats(self, *, endpoint: str | None = None) -> StoreStats:
        """Return how much the store holds; see ``Store.stats``."""
        return await self._outside(self._store.stats(endpoint=endpoint))


@dataclass(frozen=True, slots=True)
class _Quiet:
    """What is known after a take that found nothing, in the loop's time.

    Attributes:
        endpoint: whose inbox.
        due: when the next event is due, if one waits.
        until: when the store is to be asked again.

    """

    endpoint: str
    due: float | None
    until: float


class WatchedInboxStore(WatchedStore):
    """A watched store that has an inbox.

    Args:
        store: the real one.
        loop: where time is skipped.

    """

    def __init__(self, store: InboxStore, loop: VirtualLoop) -> None:
        super().__init__(store, loop)
        self._inbox = store
        self._quiet: _Quiet | None = None
        self._changes = 0

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Forget what is known of the inbox: something may be due earlier after the block.

        At its beginning as well as at its end, so that a take beside it is not remembered. Other
        calls only take events out, or make them due later.
        """
        self._changed()
        try:
            yield
        finally:
            self._changed()

    def _changed(self) -> None:
        self._quiet = None
        self._changes += 1

    async def release(
        self,
        claim: Claimed,
        finished: frozenset[str],
        error: str | None = None,
        *,
        owed: frozenset[str] = _NONE,
        began: bool = True,
    ) -> Ownership:
        """Give the event back; see ``Store.release``."""
        with self._changing():
            return await super().release(claim, finished, error, owed=owed, began=began)

    async def put(
        self,
        delivery: Delivery,
        token: Token,
        *,
        max_depth: int | None = None,
        max_bytes: int | None = None,
    ) -> PutResult:
        """Store a delivery durably; see ``InboxStore.put``."""
        call = self._inbox.put(delivery, token, max_depth=max_depth, max_bytes=max_bytes)
        with self._changing():
            return await self._outside(call)

    async def take(
        self, limit: int, lease: float, *, endpoint: str, worker: str, token: Token
    ) -> Batch:
        """Claim events that are due; see ``InboxStore.take``.

        The store is not asked while the last answer must still be true.
        """
        now, quiet = self._loop.time(), self._quiet
        if limit > 0 and quiet is not None and quiet.endpoint == endpoint and now < quiet.until:
            return Batch((), None if quiet.due is None else quiet.due - now)
        changes = self._changes
        call = self._inbox.take(limit, lease, endpoint=endpoint, worker=worker, token=token)
        batch = await self._outside(call)
        if not batch.taken and changes == self._changes:
            # Counted from before the call: rather a little too early than too late.
            due = None if batch.next_due is None else now + batch.next_due
            until = now + _LONGEST_MEMORY_SECONDS
            self._quiet = _Quiet(endpoint, due, until if due is None else min(until, due))
        return batch

    async def retry(
        self,
        claim: Claimed,
        after: float,
        finished: frozenset[str] = _NONE,
        error: str | None = None,
        *,
        owed: frozenset[str] = _NONE,
        began: bool = True,
    ) -> Ownership:
        """Give an event back to the inbox; see ``InboxStore.retry``."""
        call = self._inbox.retry(claim, after, finished, error, owed=owed, began=began)
        with self._changing():
            return await self._outside(call)

    async def wait(self, endpoint: str, seconds: float) -> None:  # noqa: ARG002 - the contract's
        """Return after ``seconds``: only this process puts, and that wakes its worker directly."""
        await asyncio.sleep(seconds)

    async def retire(self, worker: str) -> None:
        """Forget a worker that ends; see ``InboxStore.retire``."""
        await self._outside(self._inbox.retire(worker))

    async def entries(
        self, *, endpoint: str | None = None, event_type: str | None = None, limit: int = 100
    ) -> list[Entry]:
        """Return what is in the inbox; see ``InboxStore.entries``."""
        call = self._inbox.entries(endpoint=endpoint, event_type=event_type, limit=limit)
        return await self._outside(call)

    async def entry(self, key: DeliveryKey) -> Entry | None:
        """Return one event of the inbox; see ``InboxStore.entry``."""
        return await self._outside(self._inbox.entry(key))

    async def hasten(self, key: DeliveryKey) -> bool:
        """Make a waiting event due now; see ``InboxStore.hasten``."""
        with self._changing():
            return await self._outside(self._inbox.hasten(key))
