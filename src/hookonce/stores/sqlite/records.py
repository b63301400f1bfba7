"""How keys, names, histories and records are written into SQLite, and read again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from itertools import chain, repeat
from typing import Any

import apsw

from ..life import Letter, Queued, Record
from ..values import DeadReason, DeliveryKey, FailedAttempt

COLUMNS = """
a.token, a.until, a.lease, a.attempt, a.finished, a.outstanding, a.history, a.expires,
l.reason, l.error, l.buried_at, l.kept, l.attempts, l.finished, l.outstanding, l.history
"""
"""What ``load_record`` reads, of a row of attempts and one of dead."""


def digest_of(key: DeliveryKey) -> bytes:
    """Return the 16 bytes an event is found by."""
    return blake2b(key.encode(), digest_size=16).digest()


def dump_names(finished: frozenset[str]) -> str:
    """Return handlers' names as a column's text."""
    return json.dumps(sorted(finished)) if finished else ""


def load_names(text: str | None) -> frozenset[str]:
    """Return the handlers' names in a column's text."""
    return frozenset(json.loads(text)) if text else frozenset()


def dump_history(history: tuple[FailedAttempt, ...]) -> str:
    """Return failures as a column's text."""
    if not history:
        return ""
    return json.dumps([[failure.number, failure.ended_at, failure.error] for failure in history])


def load_history(text: str | None) -> tuple[FailedAttempt, ...]:
    """Return the failures in a column's text."""
    return tuple(FailedAttempt(*entry) for entry in json.loads(text)) if text else ()


def dump_dead_letter(letter: Letter) -> tuple[str, str, float, int]:
    """Return a letter as its columns; ``kept`` is 2 while the sender may bring the event."""
    return letter.reason, letter.error, letter.buried_at, letter.is_kept + letter.is_saved


def load_record(
    columns: tuple[Any, ...], queued: Queued | None = None, done_until: int | None = None
) -> Record:
    """Return what is known of an event.

    Args:
        columns: those of ``COLUMNS``, with NULL where there is no such row.
        queued: its place in the inbox.
        done_until: of a done one, until when that is remembered.

    """
    token, until, lease, *counted, expires = columns[:8]
    reason, error, buried_at, kept, *counted_with_dead_letter = columns[8:]
    letter = None
    if reason is not None:
        letter = Letter(DeadReason(reason), error, buried_at, kept > 0, kept > 1)
    # A letter outlives the row of its attempts.
    attempt, finished, outstanding, history = counted_with_dead_letter if until is None else counted
    return Record(
        token,
        until or 0.0,
        lease or 0.0,
        attempt or 0,
        load_names(finished),
        load_names(outstanding),
        load_history(history),
        expires or 0.0,
        queued,
        letter,
        done_until or 0.0,
    )


def execute_rows(
    connection: apsw.Connection,
    statement: str,
    constants: Sequence[apsw.SQLiteValue],
    rows: Sequence[tuple[apsw.SQLiteValue, ...]],
) -> list[Any]:
    """Execute a statement over rows of values, and return the rows it gives.

    Args:
        connection: where.
        statement: has ``{rows}`` for them, after VALUES or in a list. Rows of NULL can follow them.
        constants: the values of ?1, ?2 and so on.
        rows: at least one; for 1,000 of them SQLite takes 31 columns.

    """
    width = len(rows[0])
    # Of a power of two, so that few texts have to be compiled.
    count = 1 << (len(rows) - 1).bit_length()
    padding = repeat(None, (count - len(rows)) * width)
    text = _with_rows(statement, len(constants) + 1, count, width)
    values = (*constants, *chain.from_iterable(rows), *padding)
    return connection.execute(text, values).fetchall()


@cache
def _with_rows(statement: str, first: int, count: int, width: int) -> str:
    numbers = range(first, first + count * width)
    rows = (
        ", ".join(f"?{number}" for number in numbers[start : start + width])
        for start in range(0, len(numbers), width)
    )
    return statement.format(rows=", ".join(f"({row})" for row in rows))
