"""How keys, names, errors and histories are written into SQLite's columns, and read again."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

from ..values import DeadLetter, DeadReason, Delivery, DeliveryKey, FailedAttempt

__all__ = [
    "add_failure",
    "digest_of",
    "dump_names",
    "error_text",
    "load_history",
    "load_names",
    "read_letter",
]

_MAX_ERROR_CHARACTERS = 4_000
# A history is for a person to read; it is written anew with each failure.
_MAX_HISTORY = 20
_MAX_HISTORY_ERROR_CHARACTERS = 1_000


def digest_of(key: DeliveryKey) -> bytes:
    """Return the 16 bytes an event is found by."""
    return blake2b(key.encode(), digest_size=16).digest()


def error_text(error: str) -> str:
    """Return the text, bounded, with an escape for what no encoding can hold."""
    return error[:_MAX_ERROR_CHARACTERS].encode("utf-8", "backslashreplace").decode()


def dump_names(finished: frozenset[str]) -> str:
    """Return handlers' names as a column's text."""
    return json.dumps(sorted(finished)) if finished else ""


def load_names(text: str | None) -> frozenset[str]:
    """Return the handlers' names in a column's text."""
    return frozenset(json.loads(text)) if text else frozenset()


def add_failure(history: str, failure: FailedAttempt) -> str:
    """Return a history's text with one failure more, and its oldest ones left out at need."""
    entries = json.loads(history) if history else []
    error = failure.error[:_MAX_HISTORY_ERROR_CHARACTERS]
    entries.append([failure.number, failure.ended_at, error])
    return json.dumps(entries[-_MAX_HISTORY:])


def load_history(text: str) -> tuple[FailedAttempt, ...]:
    """Return the failures in a history's text."""
    return tuple(FailedAttempt(*entry) for entry in json.loads(text)) if text else ()


def read_letter(row: Any) -> DeadLetter:
    """Return the dead letter in a row: the delivery's columns, then the letter's."""
    delivery, (reason, error, attempts, finished, buried_at, history, owed) = row[:5], row[5:]
    return DeadLetter(
        delivery=Delivery(*delivery),
        reason=DeadReason(reason),
        error=error,
        attempts=attempts,
        finished=load_names(finished),
        buried_at=buried_at,
        history=load_history(history),
        owed=load_names(owed),
    )
