"""Gates as SQLite keeps them, as steps of a transaction.

What a step does is in ``stores.gates``. It is given no more of those who wait than it looks at,
since they may be many.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TypeVar

import apsw

from .. import gates
from ..gates import FREE, Passage
from ..life import Moment
from ..values import DeliveryKey, EnterResult, Gate, Mark, Token
from .batch import DroppableStep, Step

__all__ = ["Entering", "Leaving", "enter", "leave"]

T = TypeVar("T")

_READ = """
SELECT token, until, lease, created_at, event_id, expires,
       (SELECT event FROM waiting WHERE gate = ?1 ORDER BY place LIMIT 1),
       (SELECT event FROM waiting WHERE gate = ?1 ORDER BY place LIMIT 1 OFFSET 1),
       EXISTS (SELECT 1 FROM waiting WHERE gate = ?1 AND event = ?2)
FROM gates WHERE key = ?1
"""
_WRITE = """
INSERT OR REPLACE INTO gates (key, token, until, lease, created_at, event_id, expires)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_FORGET = "DELETE FROM gates WHERE key = ?"
_NOTE = "INSERT INTO waiting (gate, event) VALUES (?, ?)"
_FORGET_NOTE = "DELETE FROM waiting WHERE gate = ? AND event = ?"
_FORGET_NOTES = "DELETE FROM waiting WHERE gate = ?"


class Entering(DroppableStep[T]):
    """A call of ``Gates.enter``; nobody else would leave a gate that nobody waits to enter.

    Who is inside when the power is cut is inside no more.
    """

    __slots__ = ()

    may_be_lost = True


class Leaving(Step[T]):
    """A call of ``Gates.leave``.

    The success that a mark stands for counts once it is recorded, by a later commit that waits for
    the disk and takes the mark along.
    """

    __slots__ = ()

    may_be_lost = True


def enter(
    connection: apsw.Connection,
    moment: Moment,
    gate: Gate,
    token: Token,
    lease: float,
    *,
    mark: Mark | None,
    drop_ties: bool,
    waiting: DeliveryKey | None,
) -> EnterResult:
    """Pass a gate, or learn why not; see ``Gates.enter``."""
    digest = _digest_of(gate)
    known, _, is_noted = _read(connection, digest, moment, waiting)
    if waiting is not None and is_noted:
        known = known._replace(waiting=(waiting,))
    result, passage = gates.enter(
        known, moment, token, lease, mark=mark, drop_ties=drop_ties, waiting=waiting
    )
    for event in set(passage.waiting) - set(known.waiting):
        connection.execute(_NOTE, (digest, event))
    _write(connection, digest, known, passage, moment)
    return result


def leave(
    connection: apsw.Connection, moment: Moment, gate: Gate, token: Token, *, mark: Mark | None
) -> DeliveryKey | None:
    """Give a gate back, and return who is to come next; see ``Gates.leave``."""
    digest = _digest_of(gate)
    known, first_two, _ = _read(connection, digest, moment)
    known = known._replace(waiting=first_two)
    called, passage = gates.leave(known, moment, token, mark=mark)
    if called is not None:
        connection.execute(_FORGET_NOTE, (digest, called))
    _write(connection, digest, known, passage, moment)
    return called


def _read(
    connection: apsw.Connection, digest: bytes, moment: Moment, waiting: DeliveryKey | None = None
) -> tuple[Passage, tuple[DeliveryKey, ...], bool]:
    """Return what is known of a gate, the first two who wait, and whether this one does."""
    row = connection.execute(_READ, (digest, waiting)).fetchone()
    if row is None:
        return FREE, (), False
    token, until, lease, created_at, event_id, expires, *first_two, is_noted = row
    mark = None if event_id is None else Mark(created_at, event_id)
    passage = Passage(token, until, lease, (), mark, expires)
    some = tuple(event for event in first_two if event is not None)
    if some and gates.has_ended(passage, moment):
        connection.execute(_FORGET_NOTES, (digest,))
        return passage, (), False
    return passage, some, bool(is_noted)


def _write(
    connection: apsw.Connection, digest: bytes, known: Passage, passage: Passage, moment: Moment
) -> None:
    if passage == known:
        return
    if gates.is_forgotten(passage, moment):
        connection.execute(_FORGET, (digest,))
        return
    created_at, event_id = passage.mark or (None, None)
    row = (*passage[:3], created_at, event_id, passage.marked_until)
    connection.execute(_WRITE, (digest, *row))


def _digest_of(gate: Gate) -> bytes:
    """Return the 16 bytes a gate is found by; a key may be any text that JSON can hold."""
    return blake2b(gate.name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
