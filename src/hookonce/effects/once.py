"""Performs an effect once: begin, insert the row, run the handler, mark the row as done, commit.

The row comes first, so that a second attempt waits for the first instead of working at the same
time. The row says "begun". After the work, the same transaction changes it to "done". So neither a
transaction that was rolled back below the handler nor a row that was committed too early counts as
success. An error rolls everything back and is not recorded.

The code here is for async ledgers. The module ``threads`` runs the same code on a ledger for
threads.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from enum import Enum
from typing import Any, Generic, TypeVar, cast

from ..errors import LedgerError, Retry
from ..logs import event_fields, get_logger
from ..stores.finishes import CLAIM_LOST, Finish
from .database_errors import first_line, is_conflict, sqlstate
from .ledger import (
    AnyLedger,
    Effect,
    FinishingLedger,
    Latest,
    Ledger,
    WatermarkLedger,
)
from .threads import on_ledger

_log = get_logger("hookonce.effects")

T = TypeVar("T")

TABLE_HINT = (
    "do its tables exist, as `hookonce ledger sql` prints them, may this user write to them, and"
    " can the database be reached?"
)

TRIES = 5
"""How often a transaction is tried if it conflicts with other transactions."""

_LONG_SECONDS = 5.0
"""A transaction that lasts longer holds its locks and its connection for too long."""

_PRUNE_SECONDS = 60.0
_PRUNE_ROWS = 1000

_OUT_OF_REACH = {"42P01", "42501"}  # SQLSTATE codes: undefined_table, insufficient_privilege
_NOT_REACHED = (
    "the ledger cannot reach its row after the handler, which has changed the search_path or the"
    " role; name the ledger's table with its schema (table='public.hookonce_effects'), and set the"
    " role back before the handler ends"
)
_NOT_COMMITTABLE = (
    "the handler's transaction cannot be committed any more: its connection was lost, or a"
    " statement failed and the handler went on; do not catch such an error, or put the statement"
    " into a savepoint"
)
_ENDED_EARLY = (
    "the handler's transaction ended before the handler: the ledger commits it, and rolls it back"
    " if the handler raises; remove commit() and rollback() from the handler, and whatever makes"
    " its connection commit by itself"
)


class ClaimLostError(Retry):
    """Another attempt owns the event, so the handler's transaction was rolled back."""

    def __str__(self) -> str:
        return "another attempt has claimed the event; the handler's transaction was rolled back"


class EndedEarlyError(LedgerError):
    """The transaction ended before its handler, so the ledger cannot roll back all changes."""

    def __str__(self) -> str:
        return _ENDED_EARLY


class Performed(Enum):
    """The result of an attempt to perform an effect, if the attempt raised no error."""

    NOW = "now"
    BEFORE = "before"
    """The effect's row existed already, so nothing was run."""

    STALE = "stale"
    """The event came too late, so nothing was run, and the effect's row was committed."""


class Once(Generic[T]):
    """Performs each effect once, in one transaction with its row in a ledger."""

    def __init__(self, ledger: Ledger[T]) -> None:
        self._ledger = ledger
        self._prune_at = 0.0

    async def perform(
        self,
        effect: Effect,
        work: Callable[[T], Awaitable[object]],
        latest: Latest | None = None,
        *,
        log_fields: Mapping[str, object] | None = None,
        finish: Callable[[], Finish] | None = None,
    ) -> Performed:
        """Run the work in a transaction with the effect's row, unless the effect is already done.

        With ``latest``, which needs a ledger that keeps watermarks, the work is also left out if a
        newer event of the resource was handled. Attempts on one resource wait for each other.

        After a serialization failure or a deadlock, the work is tried again at once in a new
        transaction, at most five times in all. Any other error rolls back and is raised.

        Args:
            effect: the row of the ledger.
            work: changes the user's tables.
            latest: the condition that the event is the latest of its resource.
            log_fields: the fields of log records; see ``logs.event_fields``.
            finish: returns what finishes the event in the store, if the store is in the ledger's
                database; it is called after the work.

        Raises:
            ClaimLostError: another attempt owns the event; nothing was committed.
        """
        if log_fields is None:
            log_fields = event_fields(
                effect.endpoint, effect.event_id, None, handler=effect.handler
            )
        for left in reversed(range(TRIES)):
            try:
                performed = await self._try(effect, work, latest, log_fields, finish)
            except Exception as error:
                if not left or not is_conflict(error):
                    raise
                _log.info(
                    "%s conflicted with another transaction (SQLSTATE %s); trying again",
                    effect.handler,
                    sqlstate(error),
                    extra=log_fields,
                )
            else:
                break
        if performed is Performed.BEFORE:
            _log.info(
                "%s is already done for %s: its row is in the ledger",
                effect.handler,
                effect.event_id,
                extra=log_fields,
            )
        await self._prune_now_and_then()
        return performed

    async def _try(
        self,
        effect: Effect,
        work: Callable[[T], Awaitable[object]],
        latest: Latest | None,
        log_fields: Mapping[str, object],
        finish: Callable[[], Finish] | None,
    ) -> Performed:
        ledger, performed, began = self._ledger, None, 0.0
        try:
            async with ledger.transaction() as transaction:
                try:
                    if not await ledger.insert(transaction, effect):
                        return Performed.BEFORE
                    is_late = latest is not None and not (
                        await advance(ledger, transaction, latest) or latest.late
                    )
                except Exception as error:
                    if not is_conflict(error) and not isinstance(error, LedgerError):
                        error.add_note(f"while recording the effect: {TABLE_HINT}")
                    raise
                # Measure from here, to leave out the wait for other transactions.
                began = time.perf_counter()
                if not is_late:
                    await work(transaction)
                await expect_held(ledger, transaction, effect, finish)
                performed = Performed.STALE if is_late else Performed.NOW
        except Exception as error:
            # If a COMMIT raises, it may still have succeeded: perhaps only its answer was lost.
            if (
                performed is None
                or is_conflict(error)
                or not await self._is_committed(effect, error, log_fields)
            ):
                raise
        seconds = time.perf_counter() - began
        if seconds >= _LONG_SECONDS:
            _log.warning(
                "%s held its transaction, with its locks and its connection, for %.1f s; move calls"
                " to other services into a separate handler without `within`",
                effect.handler,
                seconds,
                extra=log_fields,
            )
        return performed

    async def _is_committed(
        self, effect: Effect, lost: Exception, log_fields: Mapping[str, object]
    ) -> bool:
        """Return whether a COMMIT without an answer succeeded; ask on a new connection.

        Use an INSERT, which waits until the old transaction has ended; a SELECT would not wait.
        """
        try:
            async with rolled_back(self._ledger) as transaction:
                is_new = await self._ledger.insert(transaction, effect)
        except Exception as error:  # noqa: BLE001 - the next attempt at the event looks for the row again
            lost.add_note(f"could not look up whether it was committed: {first_line(error)}")
            return False
        if not is_new:
            _log.warning(
                "lost the answer to the COMMIT of %s (%s); its row shows that it was committed",
                effect.handler,
                first_line(lost),
                extra=log_fields,
            )
        return not is_new

    async def _prune_now_and_then(self) -> None:
        """Delete some old rows once a minute, or after each effect while many old rows are left."""
        now = time.monotonic()
        if now < self._prune_at:
            return
        self._prune_at = now + _PRUNE_SECONDS
        try:
            if await _prune_some(self._ledger) == _PRUNE_ROWS:
                self._prune_at = now
        except Exception as error:  # noqa: BLE001 - the effect is done; a later call deletes the old rows
            _log.warning("could not delete old rows of the ledger: %s", first_line(error))


async def advance(ledger: Ledger[T], transaction: T, latest: Latest) -> bool:
    """Advance a watermark in a ledger that keeps watermarks."""
    return await cast("WatermarkLedger[T]", ledger).advance(transaction, latest)


async def finish_event(ledger: Ledger[T], transaction: T, effect: Effect, finish: Finish) -> bool:
    """Complete an event in its store within the transaction of a ``FinishingLedger``."""
    return await cast("FinishingLedger[T]", ledger).finish(transaction, effect, finish)


async def expect_held(
    ledger: Ledger[T], transaction: T, effect: Effect, finish: Callable[[], Finish] | None = None
) -> None:
    """Run a transaction's last statement; LedgerError if a COMMIT would not keep the effect.

    Raises:
        ClaimLostError: ``finish`` was given, and another attempt owns the event.
    """
    finished = None if finish is None else finish()
    try:
        if finished is not None:
            is_held = await finish_event(ledger, transaction, effect, finished)
        else:
            is_held = await ledger.holds(transaction, effect)
    except Exception as error:
        if sqlstate(error) == CLAIM_LOST:
            raise ClaimLostError from error
        why = _NOT_REACHED if sqlstate(error) in _OUT_OF_REACH else _NOT_COMMITTABLE
        raise LedgerError(why) from error
    if not is_held:
        raise EndedEarlyError


class _RollBackError(Exception):
    """Raised to roll a transaction back."""


@asynccontextmanager
async def rolled_back(ledger: Ledger[T]) -> AsyncIterator[T]:
    """Return the context of a new transaction that is rolled back at its end."""
    with suppress(_RollBackError):
        async with ledger.transaction() as transaction:
            yield transaction
            raise _RollBackError


async def prune(ledger: AnyLedger[Any]) -> int:
    """Delete every row of a ledger that is older than its retention; return how many.

    It deletes in small steps. A receiver prunes by itself when it handles events. If events are
    rare, call this function regularly.
    """
    return await on_ledger(ledger, _prune_all)


async def _prune_all(ledger: Ledger[Any]) -> int:
    pruned = 0
    while (step := await _prune_some(ledger)) == _PRUNE_ROWS:
        pruned += step
    return pruned + step


async def _prune_some(ledger: Ledger[T]) -> int:
    async with ledger.transaction() as transaction:
        return await ledger.prune(transaction, _PRUNE_ROWS)
