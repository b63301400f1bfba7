"""Lets a ledger for threads run the same code as an async ledger.

``InThread`` gives a ledger for threads the interface of an async one. Its coroutines never suspend,
so ``run_to_end`` can run them to their end in the handler's thread, without an event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar, cast

from ..stores.finishes import Finish
from ..stores.values import KeyLock
from .changes import RowChanges
from .ledger import (
    AnyLedger,
    Effect,
    Latest,
    Ledger,
    SyncFinishingLedger,
    SyncLedger,
    SyncWatermarkLedger,
    is_async_ledger,
)

T = TypeVar("T")
R = TypeVar("R")


class InThread(Generic[T]):
    """Adapts a ledger for threads to the async interface; ``run_to_end`` runs its coroutines."""

    def __init__(self, ledger: SyncLedger[T]) -> None:
        self._ledger = ledger

    @property
    def retention_seconds(self) -> float:
        return self._ledger.retention_seconds

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[T]:
        with self._ledger.transaction() as transaction:
            yield transaction

    async def insert(self, transaction: T, effect: Effect) -> bool:
        return self._ledger.insert(transaction, effect)

    async def holds(self, transaction: T, effect: Effect) -> bool:
        return self._ledger.holds(transaction, effect)

    async def finish(self, transaction: T, effect: Effect, finish: Finish) -> bool:
        return cast("SyncFinishingLedger[T]", self._ledger).finish(transaction, effect, finish)

    async def advance(self, transaction: T, latest: Latest) -> bool:
        return cast("SyncWatermarkLedger[T]", self._ledger).advance(transaction, latest)

    async def prune(self, transaction: T, limit: int) -> int:
        return self._ledger.prune(transaction, limit)

    async def count_changes(self, transaction: T) -> RowChanges | None:
        count = getattr(self._ledger, "count_changes", None)
        return None if count is None else cast("RowChanges | None", count(transaction))

    async def erase(self, transaction: T, effect: Effect, key_lock: KeyLock) -> None:
        erase = getattr(self._ledger, "erase", None)
        if erase is not None:
            erase(transaction, effect, key_lock)


def run_to_end(step: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never suspends, in this thread, and return its result."""
    try:
        step.send(None)
    except StopIteration as ended:
        result: R = ended.value
        return result
    step.close()
    raise RuntimeError("a ledger for threads awaited an event loop, and its thread has none")


async def on_ledger(ledger: AnyLedger[T], step: Callable[[Ledger[T]], Coroutine[Any, Any, R]]) -> R:
    """Await ``step`` with a ledger; if the ledger is for threads, run ``step`` in a thread."""
    if is_async_ledger(ledger):
        return await step(ledger)
    threaded = InThread(cast("SyncLedger[T]", ledger))
    return await asyncio.to_thread(lambda: run_to_end(step(threaded)))
