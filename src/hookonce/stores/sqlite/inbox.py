"""The inbox in SQLite: events that wait, when they are due, and the workers that fetch them.

``due`` is the time from which an entry may be fetched: the time of the enqueue, the end of a
backoff, or the end of the lease of its last fetch, so that the event of a killed worker becomes due
again by itself. It is measured in seconds of uptime, as leases are.
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
from ..protocols import WORKER_SECONDS
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
from .claims import ClaimsTable
from .records import digest_of, execute_rows

# How often an idle worker updates its row. It does so rarely, because every write costs an fsync.
_SEEN_AGAIN_SECONDS = WORKER_SECONDS / 3

_SIZE = "SELECT depth, bytes FROM inbox_sizes WHERE endpoint = ?"
_INSERT = """
INSERT INTO entries (key, endpoint, event_id, event_type, received_at, size, token, due, delay)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id
"""
_INSERT_BODY = "INSERT INTO inbox_bodies VALUES (?, ?)"
# Enqueues new events (FREE.enqueue in the table `life.LIFE`).
_INSERT_NEW = """
INSERT INTO entries (key, endpoint, event_id, event_type, received_at, size, token, due, delay)
SELECT column1, column2, column3, column4, column5, column6, column7, ?1, 0
FROM (VALUES {rows})
WHERE column1 IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM done WHERE key = column1)
  AND NOT EXISTS (SELECT 1 FROM dead WHERE key = column1)
  AND NOT EXISTS (SELECT 1 FROM attempts WHERE key = column1)
ON CONFLICT (key) DO NOTHING
"""
_INSERT_BODIES = """
INSERT INTO inbox_bodies
SELECT id, column3 FROM (VALUES {rows}) CROSS JOIN entries ON key = column1 WHERE token = column2
ON CONFLICT (id) DO NOTHING
"""
# Count only the rows inserted by this batch. Without NOT INDEXED, SQLite would group by reading an
# index of all entries.
_COUNT_IN = """
INSERT INTO inbox_sizes
SELECT endpoint, count(*), sum(size) FROM entries NOT INDEXED WHERE id >= ? GROUP BY endpoint
ON CONFLICT (endpoint) DO UPDATE SET depth = depth + excluded.depth, bytes = bytes + excluded.bytes
"""
_INSERTED_WITH = """
SELECT key FROM (VALUES {rows}) CROSS JOIN entries ON key = column1 WHERE token = column2
"""
_DUE = """
SELECT id, event_id, event_type, received_at, body
FROM entries JOIN inbox_bodies USING (id)
WHERE endpoint = ? AND due <= ? ORDER BY due, id LIMIT ?
"""
_FETCHED_BEFORE = """
SELECT id, event_id, event_type, received_at, body
FROM entries JOIN inbox_bodies USING (id)
WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id
"""
_NEXT_DUE = "SELECT min(due) FROM entries WHERE endpoint = ?"
# Claims events that have had no attempt yet (WAITING.fetch in the table `life.LIFE`).
_CLAIM_NEW = """
INSERT INTO attempts (key, endpoint, token, until, lease, attempt, finished, history, expires)
SELECT key, endpoint, ?1, ?2 + ?3, ?3, 1, '', '', ?4 FROM entries
WHERE id IN ({rows})
  AND NOT EXISTS (SELECT 1 FROM done WHERE key = entries.key)
  AND NOT EXISTS (SELECT 1 FROM dead WHERE key = entries.key)
ON CONFLICT (key) DO NOTHING
"""
# Finds the claims that were just inserted, but no older claim with the same token.
_CLAIMED_NOW = """
SELECT id FROM entries CROSS JOIN attempts USING (key)
WHERE id IN ({rows})
  AND attempts.token = ?1 AND until = ?2 + ?3 AND lease = ?3 AND attempt = 1 AND finished = ''
"""
_SCHEDULE_ALL = "UPDATE entries SET due = ?1, delay = ?2 WHERE id IN ({rows})"
# Corrects due times that lie too far in the future, because a restart reset uptime or a clock was
# set back.
_PULL_FORWARD = """
UPDATE entries SET due = ?1 + delay WHERE due > ?1 + delay;
UPDATE attempts SET until = ?1 + lease WHERE until > ?1 + lease;
"""
_WORKER = "SELECT seen, token, fetched FROM workers WHERE worker = ?"
_SEEN = "INSERT OR REPLACE INTO workers VALUES (?, ?, ?, ?, ?)"
# Delete a worker also if `seen` is in the future: its last fetch was before uptime was reset.
_FORGET_WORKERS = "DELETE FROM workers WHERE seen <= ?1 - ?2 OR seen > ?1"
# A fetch blocks all other calls, so it returns at most this many bytes of bodies, or one larger
# event. The enqueues of one batch also copy at most this many bytes in memory.
_MOST_BYTES = 8 * 1024 * 1024
_MOST_EVENTS = 1_000

_NONE: frozenset[str] = frozenset()

_Row: TypeAlias = tuple[int, str, str | None, float, bytes]


class InboxLimits(NamedTuple):
    """How much the inbox of an endpoint may hold; see ``Queue.enqueue``."""

    max_depth: int | None
    max_bytes: int | None

    def allow(self, connection: apsw.Connection, endpoint: str, count: int, size: int) -> bool:
        """Return whether ``count`` more events, with ``size`` bytes of bodies, are allowed."""
        max_depth, max_bytes = self
        if max_depth is None and max_bytes is None:
            return True
        known: Any = connection.execute(_SIZE, (endpoint,)).get
        depth, held = known or (0, 0)
        return (max_depth is None or depth + count <= max_depth) and (
            max_bytes is None or held + size <= max_bytes
        )


class InboxTable:
    """Fetches from the inbox; every method runs in the caller's transaction."""

    def __init__(self, claims: ClaimsTable) -> None:
        self.claims = claims
        self._last_uptime: float | None = None

    def looked(self) -> None:
        """Remember the uptime of a committed fetch; a smaller uptime later shows a restart."""
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
        now = self.claims.uptime()
        if self._last_uptime is None or now < self._last_uptime:
            connection.execute(_PULL_FORWARD, (now, now))
        known: Any = connection.execute(_WORKER, (worker,)).get
        seen, last_token, last_ids = known or (float("-inf"), "", "[]")
        is_repeated = last_token == token
        if is_repeated:
            rows = connection.execute(_FETCHED_BEFORE, (last_ids,))
        else:
            rows = connection.execute(_DUE, (endpoint, now, min(limit, _MOST_EVENTS)))
        fetched: list[Fetched] = []
        ids: list[int] = []
        due = _first_rows(rows)
        new: Collection[int] = ()
        step = life.fetch_again if is_repeated else life.fetch
        if due and not is_repeated:
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
                fetched.append(Fetched(claim, Delivery(endpoint, *row[1:])))
                ids.append(row[0])
        if fetched or not now - _SEEN_AGAIN_SECONDS < seen <= now:
            connection.execute(_SEEN, (worker, endpoint, now, token, json.dumps(ids)))
            connection.execute(_FORGET_WORKERS, (now, WORKER_SECONDS))
        next_due = cast("float | None", connection.execute(_NEXT_DUE, (endpoint,)).get)
        return Batch(tuple(fetched), None if next_due is None else max(0.0, next_due - now))

    def _claim_new(
        self, connection: apsw.Connection, due: Sequence[_Row], token: Token, lease: float
    ) -> Collection[int]:
        """Claim the events that have had no attempt yet, and return the ids of their rows."""
        now = self.claims.uptime()
        rows = [(row[0],) for row in due]
        claim = (token, now, lease)
        execute_rows(connection, _CLAIM_NEW, (*claim, self.claims.expires()), rows)
        if connection.changes() < len(rows):
            rows = execute_rows(connection, _CLAIMED_NOW, claim, rows)
        if rows:
            execute_rows(connection, _SCHEDULE_ALL, (now + lease, lease), rows)
        return {number for (number,) in rows}


@dataclass(eq=False, slots=True)
class EnqueueJob(Job[EnqueueResult]):
    """A call of ``Queue.enqueue``."""

    key: DeliveryKey
    claims: ClaimsTable
    delivery: Delivery
    token: Token
    limits: InboxLimits

    def do(self, connection: apsw.Connection) -> None:
        """Store one delivery of a new or a known event."""
        claims, delivery, size = self.claims, self.delivery, len(self.delivery.body)
        digest = digest_of(self.key)
        known = claims.read(connection, self.key, digest)
        claims.complement(connection, digest, known, delivery)
        self.outcome, record = life.enqueue(known, claims.moment(), self.token)
        if record.queued is None or known.queued is not None:
            return
        if not self.limits.allow(connection, delivery.endpoint, 1, size):
            self.outcome = Full()
            return
        row = (digest, *delivery[:4], size, *record.queued)
        number: Any = connection.execute(_INSERT, row).get
        connection.execute(_INSERT_BODY, (number, delivery.body))
        connection.execute(_COUNT_IN, (number,))
        if known.dead_letter is not None:
            # Drop the kept delivery, because the inbox has a copy (KEPT_FREE.enqueue and
            # KEPT_CLAIMED.enqueue in `life.LIFE`).
            queued = known._replace(queued=record.queued)
            claims.write(connection, self.key, digest, queued, record)

    @classmethod
    def do_all(
        cls, connection: apsw.Connection, jobs: Sequence[EnqueueJob]
    ) -> Sequence[EnqueueJob]:
        """Store the deliveries of new events if all fit; return the jobs that were not done."""
        if not _fit(connection, jobs):
            return jobs
        digests = [digest_of(job.key) for job in jobs]
        rows = [
            (digest, *job.delivery[:4], len(job.delivery.body), job.token)
            for digest, job in zip(digests, jobs, strict=True)
        ]
        execute_rows(connection, _INSERT_NEW, (jobs[0].claims.uptime(),), rows)
        count, last = connection.changes(), connection.last_insert_rowid()
        bodies = [
            (digest, job.token, job.delivery.body)
            for digest, job in zip(digests, jobs, strict=True)
        ]
        execute_rows(connection, _INSERT_BODIES, (), bodies)
        if count:  # the ids of the inserted rows are consecutive
            connection.execute(_COUNT_IN, (last - count + 1,))
        stored = set(digests)
        if count < len(jobs):
            own = [row[:2] for row in bodies]
            stored = {digest for (digest,) in execute_rows(connection, _INSERTED_WITH, (), own)}
        left: list[EnqueueJob] = []
        for digest, job in zip(digests, jobs, strict=True):
            if digest in stored:
                job.outcome = Stored()
            else:
                left.append(job)
        return left


def _fit(connection: apsw.Connection, jobs: Sequence[EnqueueJob]) -> bool:
    """Return whether all deliveries fit within the limits of their endpoints' inboxes."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for job in jobs:
        counts[job.delivery.endpoint] += 1
        sizes[job.delivery.endpoint] += len(job.delivery.body)
    return sizes.total() <= _MOST_BYTES and all(
        limits.allow(connection, endpoint, counts[endpoint], sizes[endpoint])
        for endpoint, limits in {(job.delivery.endpoint, job.limits) for job in jobs}
    )


def _first_rows(cursor: apsw.Cursor) -> list[Any]:
    """Return rows until their bodies, which are the last column, exceed ``_MOST_BYTES``."""
    first: list[Any] = []
    size = 0
    with closing(cursor):  # an open cursor would keep its snapshot, and the log would only grow
        for row in cursor:
            body: Any = row[-1]
            size += len(body)
            if first and size > _MOST_BYTES:
                break
            first.append(row)
    return first
