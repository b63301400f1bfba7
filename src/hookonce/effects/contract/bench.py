"""The bench, on which a rule tests a ledger, and helpers for rules."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar
from uuid import uuid4

from ...clock import ManualClock
from ..ledger import AnyLedger, Effect, Latest, Ledger, is_async_ledger
from ..once import Once, Performed
from ..threads import on_ledger

T = TypeVar("T")

PATIENCE_SECONDS = 10.0
"""The longest time that a rule waits for a ledger."""


@dataclass(frozen=True, kw_only=True)
class Bench(Generic[T]):
    """A ledger under test, and a table of one text column, ``key``, in the same database.

    All these tables are empty.

    Attributes:
        ledger: the ledger.
        clock: the clock that the ledger was given.
        write: inserts a key into the table in a transaction; async if the ledger is.
        fail: in a transaction, runs a statement that the database rejects, and raises the
            database's error; async if the ledger is.
        read: returns the committed keys, in any order, as another connection sees them; may be
            async.
    """

    ledger: AnyLedger[T]
    clock: ManualClock
    write: Callable[[T, str], object]
    fail: Callable[[T], object]
    read: Callable[[], list[str] | Awaitable[list[str]]]


Rule: TypeAlias = Callable[[Bench[Any]], Coroutine[Any, Any, None]]
"""Checks one promise of a ledger; raises AssertionError if the ledger breaks it."""


class WorkError(Exception):
    """The error of a failing handler."""


def new_effect() -> Effect:
    """Return an effect that no ledger has recorded."""
    return Effect("default", f"evt_{uuid4().hex}", "app.handlers.book")


async def perform(
    bench: Bench[T],
    effect: Effect,
    work: Callable[[T], object],
    latest: Latest | None = None,
) -> Performed:
    """Perform an effect in the bench's ledger, as a receiver does."""

    async def worked(transaction: T) -> None:
        await awaited(work(transaction))

    def step(ledger: Ledger[T]) -> Coroutine[Any, Any, Performed]:
        return Once(ledger).perform(effect, worked, latest)

    return await on_ledger(bench.ledger, step)


async def wait_a_little(bench: Bench[Any]) -> None:
    """Wait for 50 ms within a handler, in the event loop or in the handler's thread."""
    if is_async_ledger(bench.ledger):
        await asyncio.sleep(0.05)
    else:
        time.sleep(0.05)  # noqa: ASYNC251 - the handler has a thread of its own


async def awaited(result: object) -> Any:
    """Return the result of a function of the bench; await the result if it is awaitable."""
    return await result if inspect.isawaitable(result) else result


def expect(condition: bool, otherwise: str) -> None:
    """Raise AssertionError with this text unless the condition holds."""
    if not condition:
        raise AssertionError(otherwise)


async def expect_rows(bench: Bench[Any], keys: list[str]) -> None:
    """Raise AssertionError unless exactly these keys are committed."""
    rows = sorted(await awaited(bench.read()))
    expect(rows == sorted(keys), f"committed are {rows}, not {sorted(keys)}")


async def expect_not_held(ledger: Any, transaction: Any, effect: Effect) -> None:
    """Raise AssertionError if ``holds`` is true for a row that this transaction has not changed."""
    try:
        is_held = await ledger.holds(transaction, effect)
    except Exception:  # noqa: BLE001 - the rule accepts any error
        is_held = False
    expect(not is_held, "a row that this transaction has not inserted counts as held")
