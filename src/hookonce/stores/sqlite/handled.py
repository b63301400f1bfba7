"""Deliveries of handled events: completions store them, and delete old deliveries above the limits.

Ids grow in the order of completion, so the oldest deliveries of an endpoint have the lowest ids.
Every change of ``handled`` updates ``handled_sizes``, so that a completion need not add up bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import apsw

from ..handled import Keeping
from ..values import Delivery, DeliveryKey
from .batch import Job
from .claims import ClaimsTable
from .records import digest_of, dump_names, execute_rows

_LAST_ID = "SELECT seq FROM sqlite_sequence WHERE name = 'handled'"
_KEEP = """
INSERT INTO handled
    (id, endpoint, event_id, event_type, received_at, finished, handled_at, expires, size, body)
SELECT column1, column2, column3, column4, column5, column6, max(?1, coalesce((
           SELECT max(started_at) FROM replay_batches
           WHERE endpoint = column2 AND finished_at IS NULL
       ), ?1)), ?1 + column7, length(column8), column8
FROM (VALUES {rows}) WHERE column1 IS NOT NULL
"""
_DELETED = "RETURNING endpoint, size"
_FORGET_EXPIRED = f"""
DELETE FROM handled WHERE expires <= ?1
    AND id IN (SELECT handled FROM done WHERE key IN (SELECT column1 FROM (VALUES {{rows}})))
{_DELETED}
"""
# Links a new delivery to an event that was done before, unless that event has a delivery.
_TAKE = """
UPDATE done SET handled = column2 FROM (VALUES {rows})
WHERE key = column1 AND NOT EXISTS (SELECT 1 FROM handled WHERE id = done.handled)
RETURNING handled
"""
_COUNT = """
INSERT INTO handled_sizes VALUES (?, ?, ?) ON CONFLICT (endpoint)
DO UPDATE SET events = events + excluded.events, bytes = bytes + excluded.bytes
RETURNING bytes
"""
_OLDEST = "SELECT id, size, expires FROM handled WHERE endpoint = ? ORDER BY id LIMIT ?"
_FORGET_UP_TO = f"DELETE FROM handled WHERE endpoint = ? AND id <= ? {_DELETED}"
_FORGET = f"DELETE FROM handled WHERE id > ? AND id <= ? AND expires <= ? {_DELETED}"

# Claims wait while a transaction runs, so one transaction deletes no more rows than this.
_MOST_AT_ONCE = 500


@dataclass(eq=False, slots=True)
class CompleteAndKeepJob(Job[None]):
    """A call of ``HandledStore.complete_and_keep``."""

    key: DeliveryKey
    claims: ClaimsTable
    delivery: Delivery
    finished: Collection[str]
    keeping: Keeping

    def do(self, connection: apsw.Connection) -> None:
        """Record that one event is handled, and keep its delivery."""
        self.do_all(connection, [self])

    @classmethod
    def do_all(
        cls, connection: apsw.Connection, jobs: Sequence[CompleteAndKeepJob]
    ) -> Sequence[CompleteAndKeepJob]:
        """Record that all these events are handled, and keep their deliveries."""
        claims = jobs[0].claims
        last: Any = connection.execute(_LAST_ID).get
        ids = count((last or 0) + 1)
        events: list[tuple[bytes, int | None]] = []
        rows: list[tuple[Any, ...]] = []
        limits: dict[str, int | None] = {}
        for job in jobs:
            job.outcome = None
            delivery, (seconds, max_bytes) = job.delivery, job.keeping
            if max_bytes is not None and len(delivery.body) > max_bytes:
                events.append((digest_of(job.key), None))
                continue
            number = next(ids)
            events.append((digest_of(job.key), number))
            names = dump_names(frozenset(job.finished))
            rows.append((number, *delivery[:4], names, seconds, delivery.body))
            limits[delivery.endpoint] = max_bytes
        now, added = claims.clock(), claims.finish(connection, events)
        if added < len(jobs):
            rows = _without_kept(connection, now, events, rows)
        if rows:
            execute_rows(connection, _KEEP, (now,), rows)
            held = _count(connection, [(row[1], len(row[-1])) for row in rows], 1)
            for endpoint, size in held.items():
                _make_room(connection, now, endpoint, size, limits[endpoint])
        return ()


def prune_handled(
    connection: apsw.Connection, now: float, after: bytes | int, upto: bytes | int
) -> int:
    """Delete the expired deliveries in a range of ids, and return their number."""
    deleted: Any = connection.execute(_FORGET, (after, upto, now)).fetchall()
    _count(connection, deleted, -1)
    return len(deleted)


def _without_kept(
    connection: apsw.Connection,
    now: float,
    events: Iterable[tuple[bytes, int | None]],
    rows: Iterable[tuple[Any, ...]],
) -> list[tuple[Any, ...]]:
    """Delete expired deliveries of these events; return the rows of events without a delivery."""
    given = [event for event in events if event[1] is not None]
    if not given:
        return []
    _count(connection, execute_rows(connection, _FORGET_EXPIRED, (now,), given), -1)
    taken = {number for (number,) in execute_rows(connection, _TAKE, (), given)}
    return [row for row in rows if row[0] in taken]


def _count(
    connection: apsw.Connection, rows: Iterable[tuple[str, int]], sign: int
) -> dict[str, int]:
    """Count added or deleted rows, and return how many bytes their endpoints keep now.

    Args:
        rows: the endpoint and the size of each row.
        sign: 1 for added rows, and -1 for deleted rows.
    """
    sizes: defaultdict[str, list[int]] = defaultdict(list)
    for endpoint, size in rows:
        sizes[endpoint].append(size)
    held: dict[str, Any] = {}
    for endpoint, own in sizes.items():
        held[endpoint] = connection.execute(
            _COUNT, (endpoint, sign * len(own), sign * sum(own))
        ).get
    return held


def _make_room(
    connection: apsw.Connection, now: float, endpoint: str, held: int, max_bytes: int | None
) -> None:
    """Delete an endpoint's oldest deliveries while they have expired or exceed ``max_bytes``."""
    last = None
    oldest: Any = connection.execute(_OLDEST, (endpoint, _MOST_AT_ONCE))
    for number, size, expires in oldest:
        if expires > now and (max_bytes is None or held <= max_bytes):
            break
        last, held = number, held - size
    oldest.close()
    if last is not None:
        deleted: Any = connection.execute(_FORGET_UP_TO, (endpoint, last)).fetchall()
        _count(connection, deleted, -1)
