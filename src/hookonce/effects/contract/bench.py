"""What a rule for ledgers is run on, and what every rule needs."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeAlias, TypeVar, cast
from uuid import uuid4

from ...clock import Clock
from ..ledger import AnyLedger, Effect, Latest, SyncLedger
from ..once import InThread, Once, Performed, finish, is_async_ledger

T = TypeVar("T")

PATIENCE_SECONDS = 10.0
"""A rule waits no longer for a ledger."""


class Bench(Protocol[T]):
    """A ledger under test, and a table of one column, ``key``, in the same database."""

    @property
    def ledger(self) -> AnyLedger[T]:
        """The ledger."""
        ...

    def write(self, transaction: T, key: str) -> Awaitable[object] | None:
        """Insert a row into the table; async where the ledger is."""
        ...

    def fail(self, transaction: T) -> Awaitable[object] | None:
        """Run a statement that fails, and raise what the database says."""
        ...

    async def read(self) -> list[str]:
        """Return the keys that are committed, in any order, as another connection sees them."""
        ...


MakeBench: TypeAlias = Callable[[Clock], AbstractAsyncContextManager[Bench[Any]]]
"""Makes a bench whose ledger takes the time from a clock, with both tables empty."""

Rule: TypeAlias = Callable[[MakeBench], Coroutine[Any, Any, None]]
"""Checks one thing that every ledger keeps to; AssertionError where this one does not."""


class WorkError(Exception):
    """What a handler raises."""


def new_effect() -> Effect:
    """Return an effect that nobody has seen."""
    return Effect("default", f"evt_{uuid4().hex}", "app.handlers.book")


async def perform(
    bench: Bench[T],
    effect: Effect,
    work: Callable[[T], Awaitable[object] | None],
    latest: Latest | None = None,
) -> Performed:
    """Perform an effect by the ledger of a bench, in a thread where it is one for threads."""

    async def worked(transaction: T) -> None:
        await awaited(work(transaction))

    ledger = bench.ledger
    if is_async_ledger(ledger):
        return await Once(ledger).perform(effect, worked, latest)
    once = Once(InThread(cast("SyncLedger[T]", ledger)))
    return await asyncio.to_thread(lambda: finish(once.perform(effect, worked, latest)))


async def wait_a_little(bench: Bench[Any]) -> None:
    """Wait within a handler, as the ledger's handlers do."""
    if is_async_ledger(bench.ledger):
        await asyncio.sleep(0.05)
    else:
        time.sleep(0.05)  # noqa: ASYNC251 - in a thread of its own


async def awaited(result: object) -> None:
    """Wait for what a bench has returned, where it is to be awaited."""
    if inspect.isawaitable(result):
        await result


def expect(condition: bool, otherwise: str) -> None:
    """Raise AssertionError with a text unless a condition holds."""
    if not condition:
        raise AssertionError(otherwise)


async def expect_rows(bench: Bench[Any], keys: list[str]) -> None:
    """Raise AssertionError unless exactly these rows are committed."""
    rows = sorted(await bench.read())
    expect(rows == sorted(keys), f"committed are {rows}, and not {sorted(keys)}")
