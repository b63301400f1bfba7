"""Claims, done records and dead letters in SQLite.

``life`` defines what a step does. This module reads the record of an event from its rows, and
writes what a step has changed.

Leases are measured in seconds of uptime, so setting the machine's clock neither ends nor extends a
lease. A restart of the machine resets uptime; a lease with more time left than it lasts was granted
before the restart, and is over.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import ceil
from typing import Any, TypeVar, cast

import apsw

from ...clock import Clock, system_clock, uptime
from ...errors import StoreError
from ..formats import DamagedError, log_set_aside
from ..life import InboxEntry, Moment, Record
from ..record_store import EventStep
from ..values import DeadReason, Delivery, DeliveryKey
from .records import (
    COLUMNS,
    digest_of,
    dump_dead_letter,
    dump_history,
    dump_names,
    execute_rows,
    load_record,
)

T = TypeVar("T")

_READ = f"""
SELECT q.token, q.due, q.delay, d.expires, {COLUMNS}
FROM (SELECT ?1 AS key) LEFT JOIN attempts AS a USING (key) LEFT JOIN dead AS l USING (key)
LEFT JOIN entries AS q USING (key) LEFT JOIN done AS d USING (key)
"""
_WRITE_ATTEMPT = """
INSERT OR REPLACE INTO attempts
    (key, endpoint, token, until, lease, attempt, finished, outstanding, history, expires)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
# Records that an event is done, from every state (FREE.complete, CLAIMED.complete and so on in the
# table `life.LIFE`). REPLACE would be slower: SQLite would first copy each page, to be able to undo
# a conflict.
_FINISH = """
INSERT OR IGNORE INTO done
SELECT column1, ?1, column2 FROM (VALUES {rows}) WHERE column1 IS NOT NULL
"""
_FINISH_AGAIN = "UPDATE done SET expires = ?1 WHERE key IN ({rows})"
_FORGET_ATTEMPTS = "DELETE FROM attempts WHERE key IN ({rows})"
_FORGET_DEAD_LETTERS = "DELETE FROM dead WHERE key IN ({rows})"
_KEEPS_DELIVERIES = "SELECT EXISTS (SELECT 1 FROM dead) OR EXISTS (SELECT 1 FROM entries)"
_FORGET_ATTEMPT = "DELETE FROM attempts WHERE key = ?"
_FORGET_DEAD_LETTER = "DELETE FROM dead WHERE key = ?"
# Update `inbox_sizes` with each change of the inbox, so that an enqueue need not count entries.
_COUNT_OUT = """
UPDATE inbox_sizes SET depth = depth - events, bytes = bytes - size FROM (
    SELECT endpoint AS held_by, count(*) AS events, sum(size) AS size
    FROM entries WHERE key IN ({rows}) GROUP BY endpoint
) WHERE endpoint = held_by
"""
_LEAVE_INBOX = (
    "DELETE FROM inbox_bodies WHERE id IN (SELECT id FROM entries WHERE key IN ({rows}))",
    "DELETE FROM entries WHERE key IN ({rows})",
)
_SCHEDULE = "UPDATE entries SET due = ?, delay = ? WHERE key = ?"
_WAITING = """
SELECT endpoint, event_id, event_type, received_at, body
FROM entries JOIN inbox_bodies USING (id) WHERE key = ?
"""
_ADD_DEAD_LETTER = """
INSERT INTO dead (endpoint, event_id, event_type, received_at, body,
                  reason, error, buried_at, kept, attempts, finished, outstanding, history, key)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_UNREADABLE = f"""
SELECT {COLUMNS} FROM (SELECT ?1 AS key) LEFT JOIN attempts AS a USING (key)
LEFT JOIN dead AS l USING (key)
"""
# If the event is a dead letter already, it keeps its delivery and its place in listings.
_SET_ASIDE = """
INSERT INTO dead (endpoint, event_id, event_type, received_at, body, reason, error, buried_at, kept,
                  attempts, finished, outstanding, history, key, record)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET reason = excluded.reason, kept = 0, finished = '',
    outstanding = '', history = '', record = excluded.record
"""
_COMPLEMENT = """
UPDATE dead SET event_type = ?, received_at = ?, body = ? WHERE key = ? AND body = x''
"""
_CHANGE_DEAD_LETTER = """
UPDATE dead SET reason = ?, error = ?, buried_at = ?, kept = ?,
                attempts = ?, finished = ?, outstanding = ?, history = ? WHERE key = ?
"""
# If a lease has more time left than its length, the clock has restarted: the lease is over.
LIVE = "until > :now AND until <= :now + lease"


class ClaimsTable:
    """Reads and writes the records of events; every method runs in the caller's transaction.

    Args:
        retention_seconds: how long a done event is remembered.
        clock: Unix time in seconds. Any clock but the system's measures leases as well.
    """

    def __init__(self, retention_seconds: float, clock: Clock) -> None:
        self._retention_seconds = retention_seconds
        self.clock = clock
        self.uptime: Clock = uptime if clock is system_clock else clock

    def moment(self) -> Moment:
        """Return the current time as the ``Moment`` that the steps of ``life`` take."""
        return Moment(self.uptime(), self.clock(), self.expires())

    def expires(self) -> int:
        """Return the Unix time until which the store remembers an event that is done now."""
        # Round up, so that the store forgets no event early.
        return ceil(self.clock() + self._retention_seconds)

    def remembered_since(self) -> float:
        """Return the earliest time, as Unix time, from which done events are still remembered."""
        return self.clock() - self._retention_seconds

    def step(
        self,
        connection: apsw.Connection,
        key: DeliveryKey,
        step: EventStep[T],
        delivery: Delivery | None = None,
    ) -> T:
        """Apply a step of ``life`` to an event, write the changes, and return the answer.

        Args:
            delivery: the delivery to store if the step creates a dead letter.

        Raises:
            StoreError: the step creates a dead letter, and no delivery was given or kept.
        """
        digest = digest_of(key)
        known = self.read(connection, key, digest)
        if delivery is not None:
            self.complement(connection, digest, known, delivery)
        answer, record = step(known, self.moment())
        if record is not known:
            self.write(connection, key, digest, known, record, delivery)
        return answer

    def read(self, connection: apsw.Connection, key: DeliveryKey, digest: bytes) -> Record:
        """Return the record of an event; if it cannot be read, set it aside first."""
        try:
            return self._read(connection, digest)
        except DamagedError:
            self.set_aside(connection, key, digest)
            return self._read(connection, digest)

    def _read(self, connection: apsw.Connection, digest: bytes) -> Record:
        row = cast("tuple[Any, ...]", connection.execute(_READ, (digest,)).get)
        queued = None if row[0] is None else InboxEntry(*row[:3])
        return load_record(row[4:], queued, row[3])

    def set_aside(self, connection: apsw.Connection, key: DeliveryKey, digest: bytes) -> None:
        """Turn an event with unreadable rows into a dead letter that keeps the text of the rows."""
        rows = connection.execute(_UNREADABLE, (digest,)).fetchall()
        raw = json.dumps(rows, default=repr).encode()
        endpoint, _, event_id = key.partition(":")
        waiting: Any = connection.execute(_WAITING, (digest,)).get
        new = (endpoint, event_id, None, self.clock(), b"")
        letter = (*(waiting or new), DeadReason.DAMAGED, "", self.clock(), 0, 0, "", "", "", digest)
        connection.execute(_SET_ASIDE, (*letter, raw))
        connection.execute(_FORGET_ATTEMPT, (digest,))
        self.leave_inbox(connection, [(digest,)])
        log_set_aside(key)

    def complement(
        self, connection: apsw.Connection, digest: bytes, known: Record, delivery: Delivery
    ) -> None:
        """Add the missing delivery to a record that was set aside: a replay needs the body."""
        if known.dead_letter is not None and known.dead_letter.reason is DeadReason.DAMAGED:
            connection.execute(_COMPLEMENT, (*delivery[2:], digest))

    def write(
        self,
        connection: apsw.Connection,
        key: DeliveryKey,
        digest: bytes,
        known: Record,
        record: Record,
        delivery: Delivery | None = None,
    ) -> None:
        """Write the changes of a step to a record; ``delivery`` is as in ``step``."""
        # Do not use `!=`: `known` may have the past `done_until` of an expired row.
        if record.done_until > known.done_until:
            self.finish(connection, [(digest, None)])
            return
        names = (
            dump_names(record.finished),
            dump_names(record.outstanding),
            dump_history(record.history),
        )
        if record.dead_letter is not None:
            dead_letter = (*dump_dead_letter(record.dead_letter), record.attempt, *names, digest)
            if known.dead_letter is not None:
                connection.execute(_CHANGE_DEAD_LETTER, dead_letter)
            else:
                row: Any = delivery and (*delivery,)
                row = row or connection.execute(_WAITING, (digest,)).get
                if row is None:
                    raise StoreError(
                        "cannot bury the event: no delivery was given, and none is stored"
                    )
                connection.execute(_ADD_DEAD_LETTER, (*row, *dead_letter))
        elif known.dead_letter is not None:
            connection.execute(_FORGET_DEAD_LETTER, (digest,))
        if record.dead_letter is not None and record.token is None:
            connection.execute(
                _FORGET_ATTEMPT, (digest,)
            )  # the dead letter's row has the same data
        elif record[:8] != known[:8] or (
            known.dead_letter is not None and record.dead_letter is None
        ):
            attempt = (*record[:4], *names, record.expires)
            connection.execute(_WRITE_ATTEMPT, (digest, key.partition(":")[0], *attempt))
        if record.queued is None and known.queued is not None:
            self.leave_inbox(connection, [(digest,)])
        elif record.queued is not None and record.queued != known.queued:
            connection.execute(_SCHEDULE, (*record.queued[1:], digest))

    def leave_inbox(self, connection: apsw.Connection, digests: Sequence[tuple[bytes]]) -> None:
        """Remove events and their bodies from the inbox, if they are in it."""
        execute_rows(connection, _COUNT_OUT, (), digests)
        if connection.changes():
            for forget in _LEAVE_INBOX:
                execute_rows(connection, forget, (), digests)

    def finish(
        self, connection: apsw.Connection, events: Sequence[tuple[bytes, int | None]]
    ) -> int:
        """Record that events are handled, as ``life.complete`` does in every state.

        Args:
            events: the digest of each event, and the id of its delivery in ``handled``. An event
                that was done already keeps its delivery.

        Returns:
            The number of events that were not done already.
        """
        expires = self.expires()
        execute_rows(connection, _FINISH, (expires,), events)
        added = connection.changes()
        digests = [(digest,) for digest, _ in events]
        if added < len(events):
            execute_rows(connection, _FINISH_AGAIN, (expires,), digests)
        execute_rows(connection, _FORGET_ATTEMPTS, (), digests)
        # Often the store has no dead letters and no inbox events. Then this one query replaces a
        # search for each handled event.
        if connection.execute(_KEEPS_DELIVERIES).get:
            execute_rows(connection, _FORGET_DEAD_LETTERS, (), digests)
            self.leave_inbox(connection, digests)
        return added
