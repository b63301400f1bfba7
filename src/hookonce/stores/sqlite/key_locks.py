"""Key locks in SQLite; every function runs in the caller's transaction.

``stores.key_locks`` defines what a step does. A step looks at no more than two waiting events, so
only these are read: many events may wait.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, TypeVar

import apsw

from .. import key_locks
from ..key_locks import FREE, KeyLockRecord
from ..life import Moment
from ..record_store import KeyLockStep
from ..values import DeliveryKey, KeyLock, Watermark

T = TypeVar("T")

_READ = """
SELECT token, until, lease, created_at, event_id, generation, expires,
       (SELECT event FROM waiting WHERE key_lock = ?1 ORDER BY place LIMIT 1),
       (SELECT event FROM waiting WHERE key_lock = ?1 ORDER BY place LIMIT 1 OFFSET 1)
FROM key_locks WHERE key = ?1
"""
_WRITE = """
INSERT OR REPLACE INTO key_locks
    (key, token, until, lease, created_at, event_id, generation, expires)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_NO_WATERMARK = (None, None, None)
_FORGET = "DELETE FROM key_locks WHERE key = ?"
# An event enters the queue once; `place` keeps the order of arrival.
_NOTE = "INSERT OR IGNORE INTO waiting (key_lock, event) VALUES (?, ?)"
_FORGET_NOTE = "DELETE FROM waiting WHERE key_lock = ? AND event = ?"
_FORGET_NOTES = "DELETE FROM waiting WHERE key_lock = ?"


def take_step(
    connection: apsw.Connection,
    moment: Moment,
    key_lock: KeyLock,
    step: KeyLockStep[T],
    event: DeliveryKey | None = None,
) -> T:
    """Apply a step to a key lock, write the changes, and return the step's answer.

    A step may add a waiting event, or remove the first event. ``event`` no longer waits: it is
    removed here, since it may be any of the waiting events.
    """
    digest = _digest_of(key_lock)
    if event is not None:
        connection.execute(_FORGET_NOTE, (digest, event))
    known = _read(connection, digest, moment)
    answer, passage = step(known, moment)
    for noted in set(passage.waiting) - set(known.waiting):
        connection.execute(_NOTE, (digest, noted))
    for called in set(known.waiting) - set(passage.waiting):
        connection.execute(_FORGET_NOTE, (digest, called))
    if key_locks.is_forgotten(passage, moment):
        if known is not FREE:
            connection.execute(_FORGET, (digest,))
    elif passage[:3] != known[:3] or passage[4:] != known[4:]:
        row = (*passage[:3], *(passage.watermark or _NO_WATERMARK), passage.watermark_until)
        connection.execute(_WRITE, (digest, *row))
    return answer


def _read(connection: apsw.Connection, digest: bytes, moment: Moment) -> KeyLockRecord:
    """Return the state of a key lock, with its first two waiting events."""
    row: Any = connection.execute(_READ, (digest,)).get
    if row is None:
        return FREE
    token, until, lease, created_at, event_id, generation, expires, *first_two = row
    watermark = None if event_id is None else Watermark(created_at, event_id, generation)
    notes = tuple(event for event in first_two if event is not None)
    passage = KeyLockRecord(token, until, lease, notes, watermark, expires)
    if notes and key_locks.has_ended(passage, moment):
        connection.execute(_FORGET_NOTES, (digest,))
        return passage._replace(waiting=())
    return passage


def _digest_of(key_lock: KeyLock) -> bytes:
    """Return the 16 bytes that identify a key lock, even if its name contains lone surrogates."""
    return blake2b(key_lock.name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
