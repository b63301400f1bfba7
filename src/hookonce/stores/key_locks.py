"""A gate and its steps: who may pass, who waits, and the mark of the newest that has succeeded.

As in ``life``, these are values and pure functions: a store brings what it has of a gate and the
moment, and writes what it gets back. Three rules:

- One token at a time has a gate, until its lease ends or it leaves.
- The mark is a fact, and only rises. An event that is below it, or is the one that set it, is
  stale, whether somebody has the gate or not.
- Who waits is noted, so that whoever leaves can call the next. A note lasts as long as the lease it
  waits for, since its event is due again by then.
"""

from __future__ import annotations

from typing import NamedTuple

from .life import Moment
from .values import Acquired, AcquireResult, Busy, DeliveryKey, Stale, Token, Watermark


class Passage(NamedTuple):
    """What is known of a gate.

    Attributes:
        token: who has it; None where it was left.
        until: when the lease ends, by the clock of leases; of a gate that was left, when those who
            wait are forgotten.
        lease: seconds that it lasts.
        waiting: events of the inbox, the longest waiting first.
        mark: of the newest event that has succeeded.
        watermark_until: until when the mark is remembered, in Unix time.

    """

    token: Token | None = None
    until: float = 0.0
    lease: float = 0.0
    waiting: tuple[DeliveryKey, ...] = ()
    watermark: Watermark | None = None
    watermark_until: float = 0.0


FREE = Passage()
"""Of a gate that nobody has, waits at, or has succeeded behind."""


def acquire(
    passage: Passage,
    moment: Moment,
    token: Token,
    lease: float,
    *,
    watermark: Watermark | None = None,
    drop_ties: bool = False,
    waiting: DeliveryKey | None = None,
) -> tuple[AcquireResult, Passage]:
    """Pass a gate for so many seconds, or learn why not."""
    passage = _at(passage, moment)
    if passage.token != token:
        succeeded = passage.watermark
        if watermark and succeeded and is_stale(watermark, succeeded, drop_ties=drop_ties):
            return Stale(succeeded), passage
        if passage.token is not None:
            if waiting is not None and waiting not in passage.waiting:
                passage = passage._replace(waiting=(*passage.waiting, waiting))
            return Busy(moment.unix_time(passage.until)), passage
    return Acquired(), passage._replace(token=token, until=moment.now + lease, lease=lease)


def release(
    passage: Passage,
    moment: Moment,
    token: Token,
    *,
    watermark: Watermark | None = None,
    event: DeliveryKey | None = None,
) -> tuple[DeliveryKey | None, Passage]:
    """Give a gate back, if this token has it; return who is to come next."""
    passage = _at(passage, moment)
    if event in passage.waiting:
        passage = passage._replace(waiting=tuple(one for one in passage.waiting if one != event))
    if watermark is not None and (passage.watermark is None or watermark > passage.watermark):
        passage = passage._replace(watermark=watermark, watermark_until=moment.expires)
    if passage.token == token:
        passage = passage._replace(token=None)
    if passage.token is not None or not passage.waiting:
        return None, passage
    return passage.waiting[0], passage._replace(waiting=passage.waiting[1:])


def is_stale(watermark: Watermark, succeeded: Watermark, *, drop_ties: bool) -> bool:
    """Return whether an event comes too late, where this one has succeeded."""
    if watermark.created_at == succeeded.created_at:
        return drop_ties or watermark.event_id == succeeded.event_id
    return watermark < succeeded


def has_ended(passage: Passage, moment: Moment) -> bool:
    """Return whether the last lease of a gate is over, and with it the wait of who waited."""
    return moment.now >= min(passage.until, moment.now + passage.lease)


def is_forgotten(passage: Passage, moment: Moment) -> bool:
    """Return whether nothing has to be remembered of a gate any more."""
    passage = _at(passage, moment)
    return passage.token is None and not passage.waiting and passage.watermark is None


def _at(passage: Passage, moment: Moment) -> Passage:
    """Return what is left of a gate at this moment; leases and memories end by themselves."""
    token, until, lease, waiting, watermark, watermark_until = passage
    # A lease cannot end later than it lasts, unless its clock was set back or began anew.
    until = min(until, moment.now + lease)
    if moment.now >= until:
        token, waiting = None, ()
    if moment.unix >= watermark_until:
        watermark = None
    return Passage(token, until, lease, waiting, watermark, watermark_until)
