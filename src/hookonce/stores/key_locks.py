"""Key locks: the holder, the queue of waiting events, and the watermark.

As in ``life``, this file has values and pure functions: a store passes its record of a key lock and
the moment, and writes the record that it gets back. Three rules:

- One token at a time holds a key lock, until its lease ends or it releases the key lock.
- The watermark only rises. An event below the watermark, or the event that set it, is stale, even
  if the key lock is free. A later generation of the event that set it is not stale.
- Waiting events form a queue, so that a release can make the next event due. The queue is forgotten
  when the lease of the holder ends, because the waiting events are due again by then.
"""

from __future__ import annotations

from typing import NamedTuple

from .life import Moment
from .values import Acquired, AcquireResult, Busy, DeliveryKey, Stale, Token, Watermark


class KeyLockRecord(NamedTuple):
    """The record of a key lock.

    Attributes:
        token: the holder's token; None if the key lock is free.
        until: when the lease ends, by the clock of leases; the queue is forgotten then, also if the
            key lock was released before.
        lease: the length of the lease in seconds.
        waiting: waiting events of the inbox, the longest waiting first.
        watermark: the newest event that has succeeded.
        watermark_until: when the watermark is forgotten, in Unix time.
    """

    token: Token | None = None
    until: float = 0.0
    lease: float = 0.0
    waiting: tuple[DeliveryKey, ...] = ()
    watermark: Watermark | None = None
    watermark_until: float = 0.0


FREE = KeyLockRecord()
"""The record of a key lock that the store has not seen, or has forgotten."""


def acquire(
    record: KeyLockRecord,
    moment: Moment,
    token: Token,
    lease: float,
    *,
    watermark: Watermark | None = None,
    drop_ties: bool = False,
    waiting: DeliveryKey | None = None,
) -> tuple[AcquireResult, KeyLockRecord]:
    """Acquire a key lock for ``lease`` seconds; return ``Busy`` or ``Stale`` if that fails."""
    record = _at(record, moment)
    if record.token != token:
        succeeded = record.watermark
        if watermark and succeeded and is_stale(watermark, succeeded, drop_ties=drop_ties):
            return Stale(succeeded), record
        if record.token is not None:
            if waiting is not None and waiting not in record.waiting:
                record = record._replace(waiting=(*record.waiting, waiting))
            return Busy(moment.unix_time(record.until)), record
    return Acquired(), record._replace(token=token, until=moment.now + lease, lease=lease)


def release(
    record: KeyLockRecord,
    moment: Moment,
    token: Token,
    *,
    watermark: Watermark | None = None,
    event: DeliveryKey | None = None,
) -> tuple[DeliveryKey | None, KeyLockRecord]:
    """Release a key lock, if this token holds it; return the next waiting event."""
    record = _at(record, moment)
    if event in record.waiting:
        record = record._replace(waiting=tuple(one for one in record.waiting if one != event))
    if watermark is not None and (record.watermark is None or watermark > record.watermark):
        record = record._replace(watermark=watermark, watermark_until=moment.expires)
    if record.token == token:
        record = record._replace(token=None)
    if record.token is not None or not record.waiting:
        return None, record
    return record.waiting[0], record._replace(waiting=record.waiting[1:])


def is_stale(watermark: Watermark, succeeded: Watermark, *, drop_ties: bool) -> bool:
    """Return whether an event comes too late: the event itself or a newer event has succeeded."""
    if watermark.event_id == succeeded.event_id:
        return watermark <= succeeded
    if watermark.created_unix_us == succeeded.created_unix_us:
        return drop_ties
    return watermark < succeeded


def has_ended(record: KeyLockRecord, moment: Moment) -> bool:
    """Return whether the last lease has ended, and with it the queue of waiting events."""
    return moment.now >= min(record.until, moment.now + record.lease)


def is_forgotten(record: KeyLockRecord, moment: Moment) -> bool:
    """Return whether the store may delete the ``record`` of a key lock at a ``moment``."""
    record = _at(record, moment)
    return record.token is None and not record.waiting and record.watermark is None


def _at(record: KeyLockRecord, moment: Moment) -> KeyLockRecord:
    """Return the record without the parts (lease, queue, watermark) that have expired."""
    token, until, lease, waiting, watermark, watermark_until = record
    # Shorten a lease with more time left than its length: the clock was set back or has restarted.
    until = min(until, moment.now + lease)
    if moment.now >= until:
        token, waiting = None, ()
    if moment.unix >= watermark_until:
        watermark = None
    return KeyLockRecord(token, until, lease, waiting, watermark, watermark_until)
