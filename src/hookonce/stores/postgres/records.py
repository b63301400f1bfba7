"""Conversion of the record of an event to columns, and back."""

from __future__ import annotations

import json
from functools import lru_cache
from hashlib import blake2b
from math import inf
from typing import Any

from ..formats import damaged
from ..life import DeadLetterRecord, InboxEntry, Record
from ..values import DeadReason, DeliveryKey, FailedAttempt, Token
from .parking import PARKED_SECONDS

ATTEMPT = ("token", "until", "lease", "attempt", "finished", "outstanding", "history")
"""The columns of an event's attempts, in ``ids``, ``entries`` and ``dead``."""


def columns(table: str) -> str:
    """Return the names of the columns ``ATTEMPT``, qualified with a table."""
    return ", ".join(f"{table}.{column}" for column in ATTEMPT)


@lru_cache(maxsize=1024)  # a claim and a completion need the same one
def digest_of(key: DeliveryKey) -> bytes:
    """Return the 16 bytes that identify an event."""
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@lru_cache(maxsize=256)  # a receiver's handlers are the same for many events
def dump_names(names: frozenset[str]) -> str | None:
    return json.dumps(sorted(names)) if names else None


def load_names(text: str | None) -> frozenset[str]:
    return frozenset(json.loads(text)) if text else frozenset()


def dump_history(history: tuple[FailedAttempt, ...]) -> str | None:
    if not history:
        return None
    return json.dumps([[failure.number, failure.ended_unix, failure.error] for failure in history])


def load_history(text: str | None) -> tuple[FailedAttempt, ...]:
    if not text:
        return ()
    return tuple(FailedAttempt(int(n), float(at), str(error)) for n, at, error in json.loads(text))


def dump_attempt(record: Record) -> tuple[Any, ...]:
    """Return the values of the columns ``ATTEMPT``."""
    return (
        *record[:4],
        dump_names(record.finished),
        dump_names(record.outstanding),
        dump_history(record.history),
    )


def load_queued(token: Token, due: float, delay: float, *, now: float) -> InboxEntry:
    """Return the place of an event in the inbox, read at the time ``now``."""
    if due == inf:  # parked: a worker may fetch it when its key lock is free, see `parking`
        return InboxEntry(token, now + PARKED_SECONDS, PARKED_SECONDS)
    return InboxEntry(token, due, delay)


def load_record(
    attempt: tuple[Any, ...],
    expires: float,
    queued: InboxEntry | None,
    dead: tuple[Any, ...] | None,
) -> Record:
    """Return the record of an event that has a row; raise DamagedError if it cannot be read.

    Args:
        attempt: the columns of ``ATTEMPT`` of the table that holds them.
        expires: the column of ``ids``.
        queued: the place in the inbox.
        dead: the columns ``reason``, ``error``, ``buried_at`` and ``kept``.
    """
    token, until, lease, number, finished, outstanding, history = attempt
    if number is None:
        return Record(done_until=expires)
    try:
        dead_letter = None
        if dead is not None:
            reason, error, buried_unix, kept = dead
            dead_letter = DeadLetterRecord(
                DeadReason(reason), error, buried_unix, kept > 0, kept > 1
            )
        return Record(
            token,
            until or 0.0,
            lease or 0.0,
            number,
            load_names(finished),
            load_names(outstanding),
            load_history(history),
            expires,
            queued,
            dead_letter,
        )
    except (ValueError, TypeError) as error:  # foreign or damaged JSON
        raise damaged() from error


def dump_kept(dead_letter: DeadLetterRecord) -> int:
    """Return the value of the column ``kept``.

    It is 0 for a dead letter, and 1 for a kept delivery that becomes a dead letter if its claim
    ends without a result. It is 2 for a kept delivery that becomes a dead letter at ``buried_at``;
    until then the sender may send the event again.
    """
    return dead_letter.is_kept + dead_letter.sender_retries
