"""The inbox in SQLite: what waits, when it is due, and who works; steps of a transaction.

A row's ``due`` is when it may be taken: the time of the put, the end of a back-off, or the end of
the lease it was taken under, so that the event of a killed worker comes back by itself. It is
measured in seconds of uptime, like leases.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias, cast

import apsw

from .. import life
from ..contract import WORKER_SECONDS
from ..values import (
    Batch,
    Claimed,
    Delivery,
    DeliveryKey,
    EnqueueResult,
    Fetched,
    Full,
    Stored,
    Token,
    delivery_key,
)
from .batch import Job
from .claims import Claims
from .records import digest_of, execute_rows

# A worker that has nothing to do is written down again this often, and no more: each time is an
# fsync.
_SEEN_AGAIN_SECONDS = WORKER_SECONDS / 3

_SIZE = "SELECT depth, bytes FROM inbox_sizes WHERE endpoint = ?"
_PUT = """
INSERT INTO entries (key, endpoint, event_id, event_type, received_at, size, token, due, delay)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id
"""
_PUT_BODY = "INSERT INTO inbox_bodies VALUES (?, ?)"
# FREE.enqueue of what is new.
_PUT_NEW = """
INSERT INTO entries (key, endpoint, event_id, event_type, received_at, size, token, due, delay)
SELECT column1, column2, column3, column4, column5, column6, column7, ?1, 0
FROM (VALUES {rows})
WHERE column1 IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM done WHERE key = column1)
  AND NOT EXISTS (SELECT 1 FROM dead WHERE key = column1)
  AND NOT EXISTS (SELECT 1 FROM attempts WHERE key = column1)
ON CONFLICT (key) DO NOTHING
"""
_PUT_BODIES = """
INSERT INTO inbox_bodies
SELECT id, column3 FROM (VALUES {rows}) CROSS JOIN entries ON key = column1 WHERE token = column2
ON CONFLICT (id) DO NOTHING
"""
# Of what was put in now, from that row on. To group it SQLite would read an index by endpoint, with
# all that waits.
_COUNT_IN = """
INSERT INTO inbox_sizes
SELECT endpoint, count(*), sum(size) FROM entries NOT INDEXED WHERE id >= ? GROUP BY endpoint
ON CONFLICT (endpoint) DO UPDATE SET depth = depth + excluded.depth, bytes = bytes + excluded.bytes
"""
_PUT_WITH = """
SELECT key FROM (VALUES {rows}) CROSS JOIN entries ON key = column1 WHERE token = column2
"""
_DUE = """
SELECT id, event_id, event_type, received_at, body
FROM entries JOIN inbox_bodies USING (id)
WHERE endpoint = ? AND due <= ? ORDER BY due, id LIMIT ?
"""
_TAKEN_BEFORE = """
SELECT id, event_id, event_type, received_at, body
FROM entries JOIN inbox_bodies USING (id)
WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id
"""
_NEXT_DUE = "SELECT min(due) FROM entries WHERE endpoint = ?"
# WAITING.fetch of what waits for the first time.
_TAKE_NEW = """
INSERT INTO attempts (key, endpoint, token, until, lease, attempt, finished, history, expires)
SELECT key, endpoint, ?1, ?2 + ?3, ?3, 1, '', '', ?4 FROM entries
WHERE id IN ({rows})
  AND NOT EXISTS (SELECT 1 FROM done WHERE key = entries.key)
  AND NOT EXISTS (SELECT 1 FROM dead WHERE key = entries.key)
ON CONFLICT (key) DO NOTHING
"""
# One that had the same token before is no new one.
_TAKEN_NOW = """
SELECT id FROM entries CROSS JOIN attempts USING (key)
WHERE id IN ({rows})
  AND attempts.token = ?1 AND until = ?2 + ?3 AND lease = ?3 AND attempt = 1 AND finished = ''
"""
_SCHEDULE_ALL = "UPDATE entries SET due = ?1, delay = ?2 WHERE id IN ({rows})"
# Uptime has begun anew, or a caller's own clock was set back.
_PULL_FORWARD = """
UPDATE entries SET due = ?1 + delay WHERE due > ?1 + delay;
UPDATE attempts SET until = ?1 + lease WHERE until > ?1 + lease;
"""
_WORKER = "SELECT seen, token, taken FROM workers WHERE worker = ?"
_SEEN = "INSERT OR REPLACE INTO workers VALUES (?, ?, ?, ?, ?)"
# One seen later than now was seen before uptime began anew.
_FORGET_WORKERS = "DELETE FROM workers WHERE seen <= ?1 - ?2 OR seen > ?1"
# What one take hands over at the most, beside its first event: it holds the file meanwhile. Of puts
# that come together, what is held in memory once more.
_MOST_BYTES = 8 * 1024 * 1024
_MOST_EVENTS = 1_000

_NONE: frozenset[str] = frozenset()

_Row: TypeAlias = tuple[int, str, str | None, float, bytes]


class Limits(NamedTuple):
    """How much the inbox of an endpoint may hold; as in ``Queue.put``."""

    max_depth: int | None
    max_bytes: int | None

    def leave_room(self, connection: apsw.Connection, endpoint: str, count: int, size: int) -> bool:
        """Whether so many events more fit, whose bodies add up to ``size``."""
        max_depth, max_bytes = self
        if max_depth is None and max_bytes is None:
            return True
        known: Any = connection.execute(_SIZE, (endpoint,)).get
        depth, held = known or (0, 0)
        return (max_depth is None or depth + count <= max_depth) and (
            max_bytes is None or held + size <= max_bytes
        )


class InboxTable:
    """Takes from the inbox; every method runs within the caller's transaction.

    Args:
        claims: the claims in the same file.

    """

    def __init__(self, claims: Claims) -> None:
        self.claims = claims
        self._last_uptime: float | None = None

    def looked(self) -> None:
        """Note that a look at the inbox was committed: uptime may begin anew only after now."""
        self._last_uptime = self.claims.uptime()

    def fetch(
        self,
        connection: apsw.Connection,
        limit: int,
        lease: float,
        endpoint: str,
        worker: str,
        token: Token,
    ) -> Batch:
        """Claim events that are due; see ``InboxStore.take``."""
        now = self.claims.uptime()
        if self._last_uptime is None or now < self._last_uptime:
            connection.execute(_PULL_FORWARD, (now, now))
        known: Any = connection.execute(_WORKER, (worker,)).get
        seen, last_token, last_ids = known or (float("-inf"), "", "[]")
        is_again = last_token == token
        if is_again:
            rows = connection.execute(_TAKEN_BEFORE, (last_ids,))
        else:
            rows = connection.execute(_DUE, (endpoint, now, min(limit, _MOST_EVENTS)))
        taken: list[Fetched] = []
        ids: list[int] = []
        due = _some_bytes_of(rows)
        new: Collection[int] = ()
        step = life.fetch_again if is_again else life.fetch
        if due and not is_again:
            new = self._claim_new(connection, due, token, lease)
        for row in due:
            key = delivery_key(endpoint, row[1])
            claim: Claimed | None
            if row[0] in new:
                claim = Claimed(key, token, 1, _NONE, lease)
            else:
                claim = self.claims.step(
                    connection, key, partial(step, key=key, token=token, lease=lease)
                )
            if claim is not None:
                taken.append(Fetched(claim, Delivery(endpoint, *row[1:])))
                ids.append(row[0])
        if taken or not now - _SEEN_AGAIN_SECONDS < seen <= now:
            connection.execute(_SEEN, (worker, endpoint, now, token, json.dumps(ids)))
            connection.execute(_FORGET_WORKERS, (now, WORKER_SECONDS))
        next_due = cast("float | None", connection.execute(_NEXT_DUE, (endpoint,)).get)
        return Batch(tuple(taken), None if next_due is None else max(0.0, next_due - now))

    def _claim_new(
        self, connection: apsw.Connection, due: Sequence[_Row], token: Token, lease: float
    ) -> Collection[int]:
        """Claim the events that have not been tried yet, and return which rows they are."""
        now = self.claims.uptime()
        rows = [(row[0],) for row in due]
        claim = (token, now, lease)
        execute_rows(connection, _TAKE_NEW, (*claim, self.claims.expires()), rows)
        if connection.changes() < len(rows):
            rows = execute_rows(connection, _TAKEN_NOW, claim, rows)
        if rows:
            execute_rows(connection, _SCHEDULE_ALL, (now + lease, lease), rows)
        return {number for (number,) in rows}


@dataclass(eq=False, slots=True)
class Put(Job[EnqueueResult]):
    """A call of ``Queue.put``."""

    key: DeliveryKey
    claims: Claims
    delivery: Delivery
    token: Token
    limits: Limits

    def do(self, connection: apsw.Connection) -> None:
        """Store one delivery, whatever is known of its event."""
        claims, delivery, size = self.claims, self.delivery, len(self.delivery.body)
        digest = digest_of(self.key)
        known = claims.read(connection, digest)
        self.outcome, record = life.enqueue(known, claims.moment(), self.token)
        if record.queued is None or known.queued is not None:
            return
        if not self.limits.leave_room(connection, delivery.endpoint, 1, size):
            self.outcome = Full()
            return
        row = (digest, *delivery[:4], size, *record.queued)
        number: Any = connection.execute(_PUT, row).get
        connection.execute(_PUT_BODY, (number, delivery.body))
        connection.execute(_COUNT_IN, (number,))
        if known.letter is not None:  # SAVED.enqueue, SAVED_CLAIMED.enqueue: its dead letter goes
            queued = known._replace(queued=record.queued)
            claims.write(connection, self.key, digest, queued, record)

    @classmethod
    def do_all(cls, connection: apsw.Connection, jobs: Sequence[Put]) -> Sequence[Put]:
        """Store those of events that nothing is known of, unless they are too much together."""
        if not _fit(connection, jobs):
            return jobs
        digests = [digest_of(job.key) for job in jobs]
        rows = [
            (digest, *job.delivery[:4], len(job.delivery.body), job.token)
            for digest, job in zip(digests, jobs, strict=True)
        ]
        execute_rows(connection, _PUT_NEW, (jobs[0].claims.uptime(),), rows)
        count, last = connection.changes(), connection.last_insert_rowid()
        bodies = [
            (digest, job.token, job.delivery.body)
            for digest, job in zip(digests, jobs, strict=True)
        ]
        execute_rows(connection, _PUT_BODIES, (), bodies)
        if count:  # each row has the number after the one before it
            connection.execute(_COUNT_IN, (last - count + 1,))
        stored = set(digests)
        if count < len(jobs):
            own = [row[:2] for row in bodies]
            stored = {digest for (digest,) in execute_rows(connection, _PUT_WITH, (), own)}
        left: list[Put] = []
        for digest, job in zip(digests, jobs, strict=True):
            if digest in stored:
                job.outcome = Stored()
            else:
                left.append(job)
        return left


def _fit(connection: apsw.Connection, jobs: Sequence[Put]) -> bool:
    """Whether each endpoint has room for all that come for it, by every limit given."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for job in jobs:
        counts[job.delivery.endpoint] += 1
        sizes[job.delivery.endpoint] += len(job.delivery.body)
    return sizes.total() <= _MOST_BYTES and all(
        limits.leave_room(connection, endpoint, counts[endpoint], sizes[endpoint])
        for endpoint, limits in {(job.delivery.endpoint, job.limits) for job in jobs}
    )


def _some_bytes_of(cursor: apsw.Cursor) -> list[Any]:
    """Return the first rows, the last column of which is a body, up to a number of bytes."""
    some: list[Any] = []
    size = 0
    with closing(cursor):  # an open cursor would keep its snapshot, and the log would only grow
        for row in cursor:
            body: Any = row[-1]
            size += len(body)
            if some and size > _MOST_BYTES:
                break
            some.append(row)
    return some
