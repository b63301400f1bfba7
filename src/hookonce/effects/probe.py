"""Checks a ledger before its first event, in transactions that are rolled back.

``check`` records an effect and looks for its row; ``shares_database`` looks for a claim of the
store.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from ..errors import LedgerError
from ..logs import get_logger
from ..stores.finishes import CLAIM_LOST, Finish
from ..stores.values import KeyLock, Watermark
from .database_errors import first_line, sqlstate
from .ledger import AnyLedger, Effect, Latest, Ledger, keeps_watermarks
from .once import TABLE_HINT, advance, finish_event, rolled_back
from .threads import on_ledger

_log = get_logger("hookonce.effects")

# These error codes show that the store and the ledger are in different databases:
# invalid_schema_name, undefined_function, or CLAIM_LOST if the ledger's database has another store
# of the same name.
_ELSEWHERE = {"3F000", "42883", CLAIM_LOST}

_NOT_UNIQUE = (
    "would record an effect twice: its table is old, or not a ledger's; its primary key must be"
    " endpoint, event_id and handler, as `hookonce ledger sql` prints it"
)
_NOT_NEWER = (
    "would not skip events that come too late: its table of watermarks is old, or not a ledger's;"
    " make it as `hookonce ledger sql` prints it"
)
_NOT_UNDONE = (
    "commits by itself: a rollback did not remove its row, so an attempt that fails would count as"
    " done; take isolation_level (None or AUTOCOMMIT) and autocommit out of the arguments of the"
    " engine, its connect_args and the pool; in MySQL, the tables must be InnoDB"
)
_NOT_HELD = (
    "does not find, in its own transaction, the row that it inserted there; so no handler could"
    " succeed"
)


async def check(ledger: AnyLedger[Any]) -> None:
    """Check that a ledger can record effects, and watermarks if it keeps them; leave no rows.

    Raises:
        LedgerError: it cannot; the message says what to do.
    """
    await on_ledger(ledger, _Probe(type(ledger).__name__, keeps_watermarks(ledger)).run)


async def shares_database(ledger: AnyLedger[Any], finish: Finish) -> bool:
    """Return whether a ledger's transaction can finish an event of the store.

    Args:
        ledger: a ledger that can finish events.
        finish: belongs to a claim that the store has just granted. Only the store's own database
            holds the claim; a copy of that database does not.
    """

    async def ask(ledger: Ledger[Any]) -> bool:
        effect = _new_effect()
        async with rolled_back(ledger) as transaction:
            return await ledger.insert(transaction, effect) and await finish_event(
                ledger, transaction, effect, finish
            )

    try:
        return await on_ledger(ledger, ask)
    except Exception as error:  # noqa: BLE001 - log only: the ledger also works if it cannot complete events
        if sqlstate(error) not in _ELSEWHERE and not isinstance(error, LedgerError):
            _log.warning(
                "%s cannot complete events of the store in its own commits (%s); may its user"
                " SELECT from and UPDATE all tables of the store's schema, and INSERT there?",
                type(ledger).__name__,
                first_line(error),
            )
        return False


def _new_effect() -> Effect:
    return Effect("hookonce.check", uuid4().hex, "check")


class _Probe:
    """An effect that the check records and rolls back."""

    def __init__(self, name: str, keeps_watermarks: bool) -> None:
        self._name = name
        self._keeps_watermarks = keeps_watermarks
        self._effect = _new_effect()
        self._key_lock = KeyLock(self._effect.endpoint, self._effect.handler, self._effect.event_id)
        self._has_inserted = False

    async def run(self, ledger: Ledger[Any]) -> None:
        try:
            fault = await self._find_fault(ledger)
        except Exception as error:
            says_what_to_do = isinstance(error, LedgerError)
            why = f": {error}" if says_what_to_do else f" ({first_line(error)}); {TABLE_HINT}"
            raise await self._refusal(ledger, f"cannot record effects{why}") from error
        if fault is not None:
            raise await self._refusal(ledger, fault)

    async def _find_fault(self, ledger: Ledger[Any]) -> str | None:
        effect = self._effect
        older, newer = (
            Latest(self._key_lock, Watermark(created_at, effect.event_id)) for created_at in (1, 2)
        )
        async with rolled_back(ledger) as transaction:
            is_first = await ledger.insert(transaction, effect)
            self._has_inserted = True
            is_held = await ledger.holds(transaction, effect)
            if is_held:
                if not is_first or await ledger.insert(transaction, effect):
                    return _NOT_UNIQUE
                if self._keeps_watermarks:
                    steps = (newer, older, newer)
                    advanced = [await advance(ledger, transaction, step) for step in steps]
                    if advanced != [True, False, True]:
                        return _NOT_NEWER
        async with rolled_back(ledger) as transaction:
            try:
                is_gone = await ledger.insert(transaction, effect)
            except LedgerError:  # the row still exists and says "begun"
                is_gone = False
            if is_gone and is_held and self._keeps_watermarks:
                is_gone = await advance(ledger, transaction, older)
        if not is_gone:
            return _NOT_UNDONE
        return None if is_held else _NOT_HELD

    async def _refusal(self, ledger: Ledger[Any], fault: str) -> LedgerError:
        """Delete the rows that the ledger did not roll back, and return the error to raise."""
        refusal = LedgerError(f"{self._name} {fault}")
        erase = getattr(ledger, "erase", None)
        if self._has_inserted and erase is not None:
            try:
                async with ledger.transaction() as transaction:
                    await erase(transaction, self._effect, self._key_lock)
            except Exception as error:  # noqa: BLE001 - the refusal matters more, so add this error to it as a note
                refusal.add_note(f"nor can it delete the row that it inserted: {first_line(error)}")
        return refusal
