"""The once-only step: begin, insert the row first, work, commit.

The row comes first, so that a second run waits for the first instead of working beside it, and
finds its row, or none where it was rolled back. An error is never recorded: it rolls back.

The row says at first that the handler has begun. After the work the same transaction lets it say
that the effect is done, and reads it by that. So neither a transaction that was rolled back below
the handler nor a row that was committed too early is ever taken for success.

It is written once, for async ledgers; ``in_thread`` makes one of a ledger for threads, and
``finish`` runs the step there, where nothing of it ever waits for an event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from enum import Enum
from typing import Any, Generic, TypeGuard, TypeVar, cast
from uuid import uuid4

from ..errors import LedgerError
from ..logs import get_logger
from ..stores.values import KeyLock, Watermark
from .ledger import (
    AnyLedger,
    Effect,
    Latest,
    Ledger,
    SyncLedger,
    SyncWatermarkLedger,
    WatermarkLedger,
)

_log = get_logger("hookonce.effects")

T = TypeVar("T")
R = TypeVar("R")

_TRIES = 5
_CONFLICTS = {"40001", "40P01"}  # serialization_failure and deadlock_detected, in SQL's own words
_MYSQL_DEADLOCK = 1213  # its drivers tell the number, and not the SQLSTATE, which is 40001

_LONG_SECONDS = 5.0
"""A transaction that lasts longer holds its locks and its connection for too long."""

_PRUNE_SECONDS = 60.0
_PRUNE_ROWS = 1000

_TABLE_HINT = (
    "are its tables there, as `hookonce ledger sql` prints them, and may this user write to them?"
)


_NOT_UNIQUE = (
    "would record an effect twice: its table is old or not ours; endpoint, event_id and handler are"
    " to be its primary key, as `hookonce ledger sql` prints it"
)
_NOT_NEWER = (
    "would let events pass that come too late: its table of watermarks is old or not ours; make it"
    " as `hookonce ledger sql` prints it"
)
_NOT_UNDONE = (
    "commits by itself: a rollback has not removed what it had recorded, so an attempt that fails"
    " would count as done; take isolation_level (None or AUTOCOMMIT) and autocommit out of what the"
    " engine, its connect_args or the pool is given; in MySQL, the tables are to be InnoDB"
)
_NOT_HELD = (
    "does not find, in its own transaction, the row that it has inserted there; so no handler could"
    " succeed"
)
_NOT_COMMITTABLE = (
    "the handler's transaction cannot be committed any more: its connection was lost, or a"
    " statement has failed and the handler went on; let such an error pass, or put the"
    " statement into a savepoint"
)
_OUT_OF_REACH = {"42P01", "42501"}  # undefined_table and insufficient_privilege
_NOT_REACHED = (
    "the ledger cannot reach its row after the handler, which has changed the search_path or the"
    " role; name the ledger's table with its schema (table='public.hookonce_effects'), and set the"
    " role back before the handler ends"
)


class Performed(Enum):
    """What became of an effect that did not fail."""

    NOW = "now"
    BEFORE = "before"
    """Its record was there: nothing was run."""

    STALE = "stale"
    """Its event comes too late: nothing was run, and that is recorded."""


class _UndoError(Exception):
    """Rolls a transaction back."""


class Once(Generic[T]):
    """Performs effects once, each with its record in a ledger.

    Args:
        ledger: where they are recorded.

    """

    def __init__(self, ledger: Ledger[T]) -> None:
        self._ledger = ledger
        self._prune_at = 0.0

    async def perform(
        self,
        effect: Effect,
        work: Callable[[T], Awaitable[object]],
        latest: Latest | None = None,
    ) -> Performed:
        """Do the work in a transaction with the effect's record; or nothing, if it was done before.

        With ``latest``, which needs a ledger that keeps watermarks, nothing is done either if a
        newer event of the resource was done. Attempts on one resource wait for each other.

        A serialization failure or a deadlock is tried again at once, on a new transaction, a few
        times. Whatever else is raised is raised here, and everything is rolled back.
        """
        for left in reversed(range(_TRIES)):
            try:
                performed = await self._try(effect, work, latest)
            except Exception as error:
                if not left or not is_conflict(error):
                    raise
                _log.info(
                    "%s met another transaction (%s), and is tried again",
                    effect.handler,
                    sqlstate(error),
                )
            else:
                break
        if performed is Performed.BEFORE:
            _log.info("%s was done before for %s, by its record", effect.handler, effect.event_id)
        await self._prune_now_and_then()
        return performed

    async def _try(
        self, effect: Effect, work: Callable[[T], Awaitable[object]], latest: Latest | None
    ) -> Performed:
        ledger, performed, began = self._ledger, None, 0.0
        try:
            async with ledger.transaction() as transaction:
                try:
                    if not await ledger.insert(transaction, effect):
                        return Performed.BEFORE
                    is_late = latest is not None and not await _advance(ledger, transaction, latest)
                except Exception as error:
                    if not is_conflict(error) and not isinstance(error, LedgerError):
                        error.add_note(f"while recording the effect: {_TABLE_HINT}")
                    raise
                began = time.perf_counter()  # what it waited for others' rows is not its own
                if not is_late:
                    await work(transaction)
                await _check_intact(ledger, transaction, effect)
                performed = Performed.STALE if is_late else Performed.NOW
        except Exception as error:
            # Of a COMMIT that fails nobody knows whether it was done.
            if (
                performed is None
                or is_conflict(error)
                or not await self._is_committed(effect, error)
            ):
                raise
        seconds = time.perf_counter() - began
        if seconds >= _LONG_SECONDS:
            _log.warning(
                "%s has held its transaction for %.1f s, with its locks and its connection; call"
                " other services in a handler of its own, outside of `within`",
                effect.handler,
                seconds,
            )
        return performed

    async def _is_committed(self, effect: Effect, lost: Exception) -> bool:
        """Look on a new connection whether a COMMIT whose answer was lost was done.

        By an insert, which waits for the old transaction where that has still to end.
        """
        try:
            async with _undone(self._ledger) as transaction:
                is_new = await self._ledger.insert(transaction, effect)
        except Exception as error:  # noqa: BLE001 - then the next attempt at the event finds out
            lost.add_note(f"whether it was committed could not be looked up: {_first_line(error)}")
            return False
        if not is_new:
            _log.warning(
                "the answer to the COMMIT of %s was lost (%s); it was done",
                effect.handler,
                _first_line(lost),
            )
        return not is_new

    async def _prune_now_and_then(self) -> None:
        """Delete some rows whose retention is over; those who keep too many go on at each event."""
        now = time.monotonic()
        if now < self._prune_at:
            return
        self._prune_at = now + _PRUNE_SECONDS
        try:
            if await _prune_some(self._ledger) == _PRUNE_ROWS:
                self._prune_at = now
        except Exception as error:  # noqa: BLE001 - the effect is done, whatever becomes of old rows
            _log.warning("old rows of the ledger could not be deleted: %s", _first_line(error))


async def _advance(ledger: Ledger[T], transaction: T, latest: Latest) -> bool:
    return await cast("WatermarkLedger[T]", ledger).advance(transaction, latest)


async def _check_intact(ledger: Ledger[T], transaction: T, effect: Effect) -> None:
    try:
        is_intact = await ledger.holds(transaction, effect)
    except Exception as error:
        why = _NOT_REACHED if sqlstate(error) in _OUT_OF_REACH else _NOT_COMMITTABLE
        raise LedgerError(why) from error
    if not is_intact:
        raise LedgerError(
            "the handler's transaction has ended before the handler: the ledger commits it, and"
            " rolls it back where the handler raises; take commit() and rollback() out of it, and"
            " whatever makes its connection commit by itself"
        )


@asynccontextmanager
async def _undone(ledger: Ledger[T]) -> AsyncIterator[T]:
    """Return the context of a transaction that is only begun to look: it is rolled back."""
    with suppress(_UndoError):
        async with ledger.transaction() as transaction:
            yield transaction
            raise _UndoError


async def check(ledger: AnyLedger[Any]) -> None:
    """Check that the ledger can record effects, and watermarks if it keeps them; leave no rows.

    Raises:
        LedgerError: they cannot; the message says what to do.

    """
    name, with_watermarks = type(ledger).__name__, keeps_watermarks(ledger)
    await _either(
        ledger, lambda any_ledger: _check(any_ledger, name, with_watermarks=with_watermarks)
    )


async def prune(ledger: AnyLedger[Any]) -> int:
    """Delete every row of the ledger whose retention is over, in small steps; return how many.

    A receiver does this by and by; this is for a job of your own, where events are rare.
    """
    return await _either(ledger, _prune_all)


async def _either(
    ledger: AnyLedger[Any], step: Callable[[Ledger[Any]], Coroutine[Any, Any, R]]
) -> R:
    if is_async_ledger(ledger):
        return await step(ledger)
    threaded = InThread(cast("SyncLedger[Any]", ledger))
    return await asyncio.to_thread(lambda: finish(step(threaded)))


async def _check(ledger: Ledger[Any], name: str, *, with_watermarks: bool) -> None:
    probe = Effect("hookonce.check", uuid4().hex, "check")
    key_lock = KeyLock(probe.endpoint, probe.handler, probe.event_id)
    inserted: list[bool] = []
    try:
        wrong = await _probe(ledger, probe, key_lock if with_watermarks else None, inserted)
    except Exception as error:
        if inserted:
            await _erase(ledger, probe, key_lock, error)
        says_what_to_do = isinstance(error, LedgerError)
        why = f": {error}" if says_what_to_do else f" ({_first_line(error)}); {_TABLE_HINT}"
        raise LedgerError(f"{name} cannot record effects{why}") from error
    if wrong is not None:
        refusal = LedgerError(f"{name} {wrong}")
        await _erase(ledger, probe, key_lock, refusal)
        raise refusal


async def _probe(
    ledger: Ledger[Any], probe: Effect, key_lock: KeyLock | None, inserted: list[bool]
) -> str | None:
    """Record an effect, roll it back, and look whether it is gone; return what is wrong.

    What each insert has returned is added to ``inserted``, so that it is known after an error too.
    """
    advanced: list[bool] = []
    older, newer = (
        key_lock and Latest(key_lock, Watermark(moment, probe.event_id)) for moment in (1, 2)
    )
    async with _undone(ledger) as transaction:
        inserted.append(await ledger.insert(transaction, probe))
        is_held = await ledger.holds(transaction, probe)
        if is_held:
            inserted.append(await ledger.insert(transaction, probe))
            if inserted == [True, False]:
                steps = (newer, older, newer)
                advanced = [await _advance(ledger, transaction, one) for one in steps if one]
    if is_held and inserted != [True, False]:
        return _NOT_UNIQUE
    if advanced not in ([], [True, False, True]):
        return _NOT_NEWER
    async with _undone(ledger) as transaction:
        try:
            is_gone = await ledger.insert(transaction, probe)
        except LedgerError:  # the row is there, and says that its handler has only begun
            is_gone = False
        if is_gone and is_held and older is not None:
            is_gone = await _advance(ledger, transaction, older)
    if not is_gone:
        return _NOT_UNDONE
    return None if is_held else _NOT_HELD


async def _erase(ledger: Ledger[Any], probe: Effect, key_lock: KeyLock, error: Exception) -> None:
    """Delete what a ledger that rolls nothing back has kept of a probe."""
    erase = getattr(ledger, "erase", None)
    if erase is None:
        return
    try:
        async with ledger.transaction() as transaction:
            await erase(transaction, probe, key_lock)
    except Exception as raised:  # noqa: BLE001 - the error of the check says more
        error.add_note(f"nor can it delete what it has recorded: {_first_line(raised)}")


async def _prune_all(ledger: Ledger[Any]) -> int:
    pruned = 0
    while (step := await _prune_some(ledger)) == _PRUNE_ROWS:
        pruned += step
    return pruned + step


async def _prune_some(ledger: Ledger[T]) -> int:
    async with ledger.transaction() as transaction:
        return await ledger.prune(transaction, _PRUNE_ROWS)


def sqlstate(error: BaseException) -> str | None:
    """Return the SQLSTATE that an error carries, or what it was raised from; None if none does.

    By the code and not by a driver's class: each driver has its own, and libraries wrap them.
    """
    seen: set[int] = set()
    look: BaseException | None = error
    while look is not None and id(look) not in seen:
        seen.add(id(look))
        for name in ("sqlstate", "pgcode"):
            code = getattr(look, name, None)
            if isinstance(code, str):
                return code
        if look.args[:1] == (_MYSQL_DEADLOCK,):
            return "40001"
        wrapped = getattr(look, "orig", None)  # SQLAlchemy's name for the driver's error
        look = wrapped if isinstance(wrapped, BaseException) else look.__cause__
    return None


def is_conflict(error: BaseException) -> bool:
    """Return whether another transaction was in the way, and this one is rolled back."""
    return sqlstate(error) in _CONFLICTS


def _first_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_async_ledger(ledger: AnyLedger[T]) -> TypeGuard[Ledger[T]]:
    """Return whether a ledger is one for async handlers; else it is one for threads."""
    return inspect.iscoroutinefunction(getattr(ledger, "insert", None))


def keeps_watermarks(ledger: AnyLedger[Any]) -> bool:
    """Return whether a ledger knows how far a handler has come with a resource."""
    return callable(getattr(ledger, "advance", None))


class InThread(Generic[T]):
    """A ledger for threads, as the step wants it; used with ``finish``, in the handler's thread.

    Args:
        ledger: the ledger for threads.

    """

    def __init__(self, ledger: SyncLedger[T]) -> None:
        self._ledger = ledger

    @property
    def retention_seconds(self) -> float:
        """As the ledger says."""
        return self._ledger.retention_seconds

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[T]:
        """Return the context of a new transaction."""
        with self._ledger.transaction() as transaction:
            yield transaction

    async def insert(self, transaction: T, effect: Effect) -> bool:
        """Insert the effect's row; return False if it was there."""
        return self._ledger.insert(transaction, effect)

    async def holds(self, transaction: T, effect: Effect) -> bool:
        """Let the row say that the effect is done, and return whether a commit would keep it."""
        return self._ledger.holds(transaction, effect)

    async def advance(self, transaction: T, latest: Latest) -> bool:
        """Advance the resource's watermark; return False if the event comes too late."""
        return cast("SyncWatermarkLedger[T]", self._ledger).advance(transaction, latest)

    async def prune(self, transaction: T, limit: int) -> int:
        """Delete old rows; return how many."""
        return self._ledger.prune(transaction, limit)

    async def erase(self, transaction: T, effect: Effect, key_lock: KeyLock) -> None:
        """Delete the row of an effect, and that of a watermark, where the ledger can."""
        erase = getattr(self._ledger, "erase", None)
        if erase is not None:
            erase(transaction, effect, key_lock)


def finish(step: Coroutine[Any, Any, R]) -> R:
    """Run to its end, in this thread, what waits for nothing."""
    try:
        step.send(None)
    except StopIteration as ended:
        result: R = ended.value
        return result
    step.close()
    raise RuntimeError("a ledger for threads has waited for an event loop, and there is none here")
