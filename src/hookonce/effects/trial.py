"""Runs a handler's work in a transaction that is rolled back, and counts the rows it changes.

The transaction first inserts a row into the ledger. After the rollback, another transaction looks
for the row: if it is missing, nothing was committed. The row has a key of its own, so it locks
nothing that an attempt at the event needs.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

from ..errors import LedgerError
from ..stores.values import KeyLock
from .changes import RowChanges
from .database_errors import first_line, is_conflict
from .ledger import Effect, Ledger
from .once import TRIES, expect_held, rolled_back

T = TypeVar("T")

_ENDPOINT = "hookonce.try"
"""The endpoint in the row of a trial: no receiver has events under this name."""


@dataclass(slots=True)
class RolledBack:
    """The result of a trial; its fields are also set if the work raises an error.

    Attributes:
        seconds: how long the work took.
        rows: how many rows it changed, by table; None if the work raised, or if the database does
            not count changes.
        has_committed: whether the work has committed its transaction itself, so that a part of its
            changes is in the database.
    """

    seconds: float = 0.0
    rows: Mapping[str, int] | None = None
    has_committed: bool = False


async def roll_back(
    ledger: Ledger[T], handler: str, work: Callable[[T], Awaitable[object]], found: RolledBack
) -> None:
    """Run a handler's work in a transaction, and roll the transaction back.

    After a serialization failure or a deadlock, the work runs again, as for an effect.

    Args:
        ledger: begins the transaction.
        handler: the handler's name.
        work: changes the user's tables.
        found: receives the results.

    Raises:
        LedgerError: the work has ended its transaction, or it is unknown whether it has.
        Exception: whatever the work raises.
    """
    effect = Effect(_ENDPOINT, uuid4().hex, handler)
    for left in reversed(range(TRIES)):
        try:
            await _run(ledger, effect, work, found)
        except Exception as error:
            if found.has_committed or not left or not is_conflict(error):
                raise
        else:
            return


async def _run(
    ledger: Ledger[T], effect: Effect, work: Callable[[T], Awaitable[object]], found: RolledBack
) -> None:
    try:
        async with rolled_back(ledger) as transaction:
            await ledger.insert(transaction, effect)
            before = await _count(ledger, transaction)
            began = time.perf_counter()
            try:
                await work(transaction)
            finally:
                found.seconds = time.perf_counter() - began
            await expect_held(ledger, transaction, effect)
            after = await _count(ledger, transaction)
            if before is not None and after is not None:
                # Leave out one change: `expect_held` calls `holds`, which updates the row of the
                # effect.
                found.rows = after.since(before, own=1)
    finally:
        found.has_committed = await _is_committed(ledger, effect)


async def _count(ledger: Ledger[Any], transaction: object) -> RowChanges | None:
    count = getattr(ledger, "count_changes", None)  # a user's ledger may lack this method
    return None if count is None else await count(transaction)


async def _is_committed(ledger: Ledger[Any], effect: Effect) -> bool:
    """Return whether the row of a trial was committed; if so, delete the row."""
    try:
        try:
            async with rolled_back(ledger) as transaction:
                if await ledger.insert(transaction, effect):
                    return False
        except LedgerError:  # the row exists, and says "begun"
            pass
        erase = getattr(ledger, "erase", None)
        if erase is not None:
            async with ledger.transaction() as transaction:
                await erase(transaction, effect, KeyLock(*effect[:3]))
    except Exception as error:
        raise LedgerError(
            f"it is unknown whether {effect.handler} has committed: {first_line(error)}"
        ) from error
    return True
