"""A store that fails or hangs on demand, around a real one."""

import asyncio
from collections import Counter

from hookonce.errors import StoreError
from hookonce.stores.contract import InboxStore, Store
from hookonce.stores.values import (
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

__all__ = ["FaultyInboxStore", "FaultyStore"]

_NONE: frozenset[str] = frozenset()


class FaultyStore:
    """Passes every call on to a real store, unless it was told otherwise.

    Attributes:
        calls: how often each call was begun.
        failures: how many more times a call raises StoreError; -1 for always.
        gates: calls that wait for an event before they reach the store.

    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.calls: Counter[str] = Counter()
        self.failures: dict[str, int] = {}
        self.gates: dict[str, asyncio.Event] = {}

    def hang(self, call: str) -> asyncio.Event:
        """Let a call wait until the returned event is set."""
        self.gates[call] = asyncio.Event()
        return self.gates[call]

    async def _enter(self, call: str) -> None:
        self.calls[call] += 1
        if call in self.gates:
            await self.gates[call].wait()
        if self.failures.get(call):
            self.failures[call] -= 1
            raise StoreError(f"{call} was told to fail")

    @property
    def keeps_bodies(self) -> bool:
        return self.inner.keeps_bodies

    async def open(self) -> None:
        await self._enter("open")
        await self.inner.open()

    async def warnings(self) -> tuple[str, ...]:
        await self._enter("warnings")
        return await self.inner.warnings()

    async def aclose(self) -> None:
        await self._enter("aclose")
        await self.inner.aclose()

    async def claim(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult:
        await self._enter("claim")
        return await self.inner.claim(key, token, lease)

    async def extend(
        self, claim: Claimed, finished: frozenset[str] = _NONE, owed: frozenset[str] = _NONE
    ) -> Ownership:
        await self._enter("extend")
        return await self.inner.extend(claim, finished, owed)

    async def complete(self, claim: Claimed) -> None:
        await self._enter("complete")
        await self.inner.complete(claim)

    async def release(
        self,
        claim: Claimed,
        finished: frozenset[str],
        error: str | None = None,
        *,
        owed: frozenset[str] = _NONE,
        began: bool = True,
    ) -> Ownership:
        await self._enter("release")
        return await self.inner.release(claim, finished, error, owed=owed, began=began)

    async def keep(self, claim: Claimed, delivery: Delivery) -> Ownership:
        await self._enter("keep")
        return await self.inner.keep(claim, delivery)

    async def keep_in_flight(self, delivery: Delivery) -> None:
        await self._enter("keep_in_flight")
        await self.inner.keep_in_flight(delivery)

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
        await self._enter("bury")
        return await self.inner.bury(
            claim, reason, error=error, finished=finished, owed=owed, delivery=delivery
        )

    async def dead_letters(
        self, *, endpoint: str | None = None, event_type: str | None = None, limit: int = 100
    ) -> list[DeadLetter]:
        await self._enter("dead_letters")
        return await self.inner.dead_letters(endpoint=endpoint, event_type=event_type, limit=limit)

    async def dead_letter(self, key: DeliveryKey) -> DeadLetter | None:
        await self._enter("dead_letter")
        return await self.inner.dead_letter(key)

    async def replay(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult | None:
        await self._enter("replay")
        return await self.inner.replay(key, token, lease)

    async def discard(self, key: DeliveryKey) -> bool:
        await self._enter("discard")
        return await self.inner.discard(key)

    async def prune(self) -> int:
        await self._enter("prune")
        return await self.inner.prune()

    async def stats(self, *, endpoint: str | None = None) -> StoreStats:
        await self._enter("stats")
        return await self.inner.stats(endpoint=endpoint)


class FaultyInboxStore(FaultyStore):
    """The same around a store with an inbox."""

    inner: InboxStore

    async def put(
        self,
        delivery: Delivery,
        token: Token,
        *,
        max_depth: int | None = None,
        max_bytes: int | None = None,
    ) -> PutResult:
        await self._enter("put")
        return await self.inner.put(delivery, token, max_depth=max_depth, max_bytes=max_bytes)

    async def take(
        self, limit: int, lease: float, *, endpoint: str, worker: str, token: Token
    ) -> Batch:
        await self._enter("take")
        return await self.inner.take(limit, lease, endpoint=endpoint, worker=worker, token=token)

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
        await self._enter("retry")
        return await self.inner.retry(claim, after, finished, error, owed=owed, began=began)

    async def wait(self, endpoint: str, seconds: float) -> None:
        await self._enter("wait")
        await self.inner.wait(endpoint, seconds)

    async def retire(self, worker: str) -> None:
        await self._enter("retire")
        await self.inner.retire(worker)

    async def entries(
        self, *, endpoint: str | None = None, event_type: str | None = None, limit: int = 100
    ) -> list[Entry]:
        await self._enter("entries")
        return await self.inner.entries(endpoint=endpoint, event_type=event_type, limit=limit)

    async def entry(self, key: DeliveryKey) -> Entry | None:
        await self._enter("entry")
        return await self.inner.entry(key)

    async def hasten(self, key: DeliveryKey) -> bool:
        await self._enter("hasten")
        return await self.inner.hasten(key)
