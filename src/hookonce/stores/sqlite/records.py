"""Conversion of keys, handler names, histories and records to SQLite's columns, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, lru_cache
from hashlib import blake2b
from itertools import chain, repeat
from typing import Any

import apsw

from ..formats import damaged
from ..life import DeadLetterRecord, InboxEntry, Record
from ..values import DeadReason, DeliveryKey, FailedAttempt

COLUMNS = """
a.token, a.until, a.lease, a.attempt, a.finished, a.outstanding, a.history, a.expires,
l.reason, l.error, l.buried_at, l.kept, l.attempts, l.finished, l.outstanding, l.history
"""
"""The columns of ``attempts`` (a) and ``dead`` (l) that ``load_record`` reads."""


def digest_of(key: DeliveryKey) -> bytes:
    """Return the 16 bytes that identify an event."""
    return blake2b(key.encode(), digest_size=16).digest()


@lru_cache(maxsize=256)  # a receiver's handlers are the same for many events
def dump_names(names: frozenset[str]) -> str:
    return json.dumps(sorted(names)) if names else ""


def load_names(text: str | None) -> frozenset[str]:
    return frozenset(json.loads(text)) if text else frozenset()


def dump_history(history: tuple[FailedAttempt, ...]) -> str:
    if not history:
        return ""
    return json.dumps([[failure.number, failure.ended_unix, failure.error] for failure in history])


def load_history(text: str | None) -> tuple[FailedAttempt, ...]:
    return tuple(FailedAttempt(*entry) for entry in json.loads(text)) if text else ()


def dump_dead_letter(dead_letter: DeadLetterRecord) -> tuple[str, str, float, int]:
    """Return a dead letter as columns; ``schema`` explains the last column, ``kept``."""
    kept = dead_letter.is_kept + dead_letter.sender_retries
    return dead_letter.reason, dead_letter.error, dead_letter.buried_unix, kept


def load_record(
    columns: tuple[Any, ...], queued: InboxEntry | None = None, done_until: int | None = None
) -> Record:
    """Return the record of an event, or raise DamagedError.

    Args:
        columns: the values of ``COLUMNS``; None where a table has no row of the event.
        done_until: Unix time until which a done event is remembered.
    """
    try:
        return _load_record(columns, queued, done_until)
    except (ValueError, TypeError) as error:  # foreign or damaged text
        raise damaged() from error


def _load_record(
    columns: tuple[Any, ...], queued: InboxEntry | None, done_until: int | None
) -> Record:
    token, until, lease, *counted, expires = columns[:8]
    reason, error, buried_at, kept, *counted_with_dead_letter = columns[8:]
    dead_letter = None
    if reason is not None:
        dead_letter = DeadLetterRecord(DeadReason(reason), error, buried_at, kept > 0, kept > 1)
    # A dead letter has its own copy of these columns, since it outlives the event's other row.
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
        dead_letter,
        done_until or 0.0,
    )


def execute_rows(
    connection: apsw.Connection,
    statement: str,
    constants: Sequence[apsw.SQLiteValue],
    rows: Sequence[tuple[apsw.SQLiteValue, ...]],
) -> list[Any]:
    """Execute a statement over rows of values, and return its results.

    Args:
        statement: has ``{rows}`` in place of the rows, after VALUES or in a list. It must ignore
            rows of NULL, which may follow.
        constants: the values of ?1, ?2 and so on.
        rows: at least one; 1,000 rows may have 31 columns, by SQLite's limit on parameters.
    """
    width = len(rows[0])
    # The count is rounded up to a power of two, so that SQLite compiles few statements.
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
