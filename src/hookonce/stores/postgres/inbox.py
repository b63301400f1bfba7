"""The inbox in PostgreSQL: statements over many events at once.

An entry may be fetched from its ``due`` time on, which is the time of the enqueue or the end of a
backoff, unless it has a lease that has not ended (``until``). So the event of a killed worker can
be fetched again without a further step.

A fetch leaves ``due`` as it is, so no index changes (a HOT update), and the fetched entries are the
first ones of the index on ``due``: a fetch skips them. A heartbeat moves ``due`` to the end of the
lease, so an event that takes long does not hold back the bound of ``bounds``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any, TypeAlias

from psycopg import AsyncConnection

from .. import life
from ..life import Moment, Record
from ..protocols import WORKER_SECONDS
from ..values import (
    Batch,
    Claimed,
    Delivery,
    DeliveryKey,
    Fetched,
    Token,
    delivery_key,
)
from .bounds import DueBounds
from .claims import ClaimsTable
from .connection import Statement, exchange
from .faults import ServerError
from .parking import Parking, has_entry, has_parked, is_held
from .records import load_names
from .schema import NOW
from .wire import (
    blobs,
    dump_float,
    dump_int,
    dump_text,
    dump_time,
    floats,
    ints,
    rows,
    texts,
)

# A lease with more time left than its length is not live: it was granted before the clock was set
# back. The fetch reads the entry, and its step shortens the lease.
_IS_LEASED = "until > (SELECT now FROM at) AND until <= (SELECT now FROM at) + lease"

# The row FREE.enqueue of `life.LIFE`, for events that the store does not know.
_PUT = f"""
WITH given AS MATERIALIZED (
    SELECT * FROM unnest($2::bytea[], $3::text[], $4::text[], $5::text[], $6::float8[], $7::text[],
        $8::bytea[], $10::bytea[]) WITH ORDINALITY
    AS g (key, endpoint, event_id, event_type, received_at, token, body, key_lock, number)
), new AS (
    INSERT INTO {{schema}}.ids (key, expires)
    SELECT key, ceil({NOW} + $9)::int8 FROM given ORDER BY key
    ON CONFLICT (key) DO NOTHING RETURNING key
), put AS (
    INSERT INTO {{schema}}.entries (key, endpoint, event_id, event_type, received_at, size, part,
        enqueue_token, {{columns}})
    SELECT key, endpoint, event_id, event_type, received_at, length(body), body_part.part, token,
        {{values}}
    FROM {{given}}, {{schema}}.body_part, (SELECT {NOW} AS now) AS at
    ORDER BY number RETURNING id, part, key, due, key_lock
), filled AS (
    INSERT INTO {{schema}}.bodies SELECT part, id, body FROM put JOIN given USING (key)
)
SELECT {{results}} FROM put
"""
_FREE = {
    "columns": "due, delay",
    "values": "now, 0",
    "given": "given JOIN new USING (key)",
    "results": "key",
}
# These parts of the statement replace `_FREE` if some of the entries need a key lock. The statement
# parks an entry if another entry with the same lock is parked, fetched or due, because the end of
# that other entry makes this entry due. An entry that waits for its next attempt makes no other
# entry due. The second result is the key lock of a parked entry.
_WITH_KEY_LOCKS = {
    "columns": "due, delay, key_lock",
    "values": "coalesce(parked, now), 0, key_lock",
    "given": f"""(
        SELECT g.*, CASE WHEN key_lock IS NOT NULL AND (
            row_number() OVER (PARTITION BY key_lock ORDER BY number) > 1
            OR {has_parked("g.key_lock")} OR {has_entry("g.key_lock", NOW)}
        ) THEN 'infinity'::float8 END AS parked FROM given AS g JOIN new USING (key)
    ) AS given""",
    "results": "key, CASE WHEN due = 'infinity' THEN key_lock END",
}
_SIZE = """
SELECT count(*), coalesce(sum(size), 0)::int8 FROM {schema}.entries
WHERE endpoint = $1::text AND due >= $2::float8
"""
# The row WAITING.fetch of `life.LIFE`, for entries without an owner. For entries with an owner the
# statement returns no `attempt`, because each of these entries needs its own step. It returns no
# `body` if the rotation has moved the body since the statement began: an update finds the newest
# row of the entry, but the statement does not see the copy of the body. For each entry that it
# parks it returns only the key lock.
_FETCH = f"""
WITH at AS MATERIALIZED (SELECT {NOW} AS now),
due AS MATERIALIZED (
    SELECT id, due, size, token IS NULL AS is_free, key_lock FROM {{schema}}.entries
    WHERE endpoint = $2::text AND due <= (SELECT now FROM at) AND due >= $7::float8
      AND ({_IS_LEASED}) IS NOT TRUE
    ORDER BY endpoint, due, id LIMIT $3::int8 FOR UPDATE SKIP LOCKED
), seen AS MATERIALIZED (
    SELECT due.*, key_lock IS NOT NULL AND is_free AND (
        row_number() OVER (PARTITION BY key_lock ORDER BY due, id) > 1
        OR {is_held("due.key_lock", "now")} OR EXISTS (
            SELECT FROM {{schema}}.entries AS o
            WHERE o.key_lock = due.key_lock AND o.due < 'infinity'
            AND o.token IS NOT NULL AND o.until > now
        )
    ) AS is_behind FROM due, at
), parked AS (
    UPDATE {{schema}}.entries AS e
    SET due = 'infinity', delay = 0 FROM seen WHERE e.id = seen.id AND is_behind
    RETURNING e.key_lock
), fits AS MATERIALIZED (
    SELECT * FROM (
        SELECT id, due, is_free, row_number() OVER w AS number, sum(size) OVER w AS total FROM seen
        WHERE NOT is_behind WINDOW w AS (ORDER BY due, id)
    ) AS counted WHERE number = 1 OR total <= $4::int8
), taken AS (
    UPDATE {{schema}}.entries AS e
    SET token = $5::text, until = at.now + $6::float8, lease = $6::float8, attempt = attempt + 1,
        delay = 0
    FROM fits, at WHERE e.id = fits.id AND is_free
    RETURNING e.due, e.id, e.part, e.event_id, e.event_type, e.received_at, e.attempt, e.finished,
        e.outstanding
), found AS (
    SELECT * FROM taken
    UNION ALL
    SELECT e.due, e.id, e.part, e.event_id, e.event_type, e.received_at, NULL, NULL, NULL
    FROM fits JOIN {{schema}}.entries AS e USING (id) WHERE NOT is_free
)
SELECT due, id, event_id, event_type, received_at, body, attempt, finished, outstanding,
    NULL::bytea
FROM found LEFT JOIN {{schema}}.bodies USING (part, id)
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, key_lock FROM parked
ORDER BY 1, 2
"""
# Finds entries without bodies. A backup may contain such an entry if the rotation has emptied a
# partition after the backup's snapshot.
_WITHOUT_BODY = """
SELECT e.event_id FROM {schema}.entries AS e WHERE e.id = ANY ($1::int8[])
AND NOT EXISTS (SELECT FROM {schema}.bodies AS b WHERE b.part = e.part AND b.id = e.id)
"""
_FETCHED_BEFORE = """
SELECT e.id, e.event_id, e.event_type, e.received_at, b.body, NULL::int4, NULL::json, NULL::json
FROM {schema}.entries AS e JOIN {schema}.bodies AS b ON b.part = e.part AND b.id = e.id
WHERE e.endpoint = $1::text AND e.token = $2::text ORDER BY e.id
"""
# Returns the time, the time at which the next event may be fetched, and the first due time from the
# bound on. Reads only the entries with a lease before the first entry without one.
_NEXT_DUE = f"""
WITH at AS MATERIALIZED (SELECT {NOW} AS now),
free AS MATERIALIZED (
    SELECT due FROM {{schema}}.entries
    WHERE endpoint = $2::text AND due >= $3::float8 AND due < 'infinity'
      AND ({_IS_LEASED}) IS NOT TRUE
    ORDER BY endpoint, due, id LIMIT 1
)
SELECT at.now, least((SELECT due FROM free), leased.next), least((SELECT due FROM free), leased.due)
FROM at, (
    SELECT min(greatest(due, until)) AS next, min(due) AS due FROM {{schema}}.entries
    WHERE endpoint = $2::text AND due >= $3::float8 AND due < 'infinity' AND {_IS_LEASED}
      AND due <= coalesce((SELECT due FROM free), 'infinity')
) AS leased
"""
_DUE_BEFORE = """
SELECT due FROM {schema}.entries WHERE endpoint = $1::text AND due < $2::float8
ORDER BY endpoint, due, id LIMIT 1
"""
# Allow 60 seconds for statements that look back or count, because they also read deleted rows that
# are not vacuumed yet.
TAKE_LONGER: Statement = (b"SELECT set_config('statement_timeout', '60s', true)", ())
# If the clock was set back, due times and leases lie too far in the future. The first statement
# locks these entries, and the second one corrects them by a newer time. So the correction cannot
# shorten a lease that began between the two.
_LOCK_TOO_LATE = f"""
WITH at AS MATERIALIZED (SELECT {NOW} AS now)
SELECT key FROM {{schema}}.entries, at
WHERE endpoint = $2::text AND due > (SELECT now FROM at) AND due < 'infinity'
  AND (due > now + delay OR until > now + lease)
ORDER BY key FOR NO KEY UPDATE OF entries
"""
_PULL_FORWARD = f"""
UPDATE {{schema}}.entries SET due = least(due, {NOW} + delay), until = least(until, {NOW} + lease)
WHERE key = ANY ($2::bytea[])
"""
_SEEN = f"""
INSERT INTO {{schema}}.workers VALUES ($2::text, $3::text, {NOW})
ON CONFLICT (worker) DO UPDATE SET endpoint = excluded.endpoint, seen = excluded.seen
"""
_FORGET_WORKERS = f"""
DELETE FROM {{schema}}.workers WHERE seen <= {NOW} - $2::float8 OR seen > {NOW}
"""
_FORGET_WORKER = "DELETE FROM {schema}.workers WHERE worker = $1::text"

# The most bytes of bodies that one fetch returns, unless its first event is larger.
_MOST_BYTES = 8 * 1024 * 1024
_MOST_EVENTS = 1_000
# How often an idle worker updates its row, which shows that the worker still runs.
_SEEN_AGAIN_SECONDS = WORKER_SECONDS / 3


FetchStep: TypeAlias = Callable[
    [Record, Moment, DeliveryKey, Token, float], tuple[Claimed | None, Record]
]


class InboxTable:
    """Enqueues to and fetches from the inbox of one schema."""

    def __init__(self, schema: str, claims: ClaimsTable) -> None:
        def named(sql: str) -> bytes:
            return sql.format(schema=schema).encode()

        self._claims = claims
        self._put = _PUT.format(schema=schema, **_FREE).encode()
        self._put_with_key_locks = _PUT.format(
            schema=schema,
            **{name: part.format(schema=schema) for name, part in _WITH_KEY_LOCKS.items()},
        ).encode()
        self._size = named(_SIZE)
        self._forget_worker = named(_FORGET_WORKER)
        self._due, self._fetched_before = named(_FETCH), named(_FETCHED_BEFORE)
        self._next_due, self._without_body = named(_NEXT_DUE), named(_WITHOUT_BODY)
        self._lock_too_late, self._pull_forward = named(_LOCK_TOO_LATE), named(_PULL_FORWARD)
        self._seen, self._forget_workers = named(_SEEN), named(_FORGET_WORKERS)
        self._due_before = named(_DUE_BEFORE)
        self.bounds: DueBounds = DueBounds()
        self.parking: Parking = Parking(schema)
        self._corrected: set[str] = set()
        self._last: dict[str, float] = {}
        self._tokens: dict[str, Token] = {}
        self._unanswered: set[str] = set()
        self._seen_at: dict[str, tuple[str, float]] = {}

    def next_due(self, endpoint: str, now: float | None) -> Statement:
        """Return the statement that reads the time, the time of the next event, and a new bound."""
        bound = self.bounds.bound(endpoint)
        return self._next_due, (dump_time(now), dump_text(endpoint), dump_float(bound))

    def due_before(self, endpoint: str) -> Sequence[Statement]:
        """Return the statements that find an event that is due before the endpoint's bound."""
        bound = dump_float(self.bounds.bound(endpoint))
        return TAKE_LONGER, (self._due_before, (dump_text(endpoint), bound))

    def must_correct(self, endpoint: str) -> bool:
        """Return whether the caller must correct due times: once, and after `correct_again`."""
        is_first = endpoint not in self._corrected
        self._corrected.add(endpoint)
        return is_first

    def correct_again(self, endpoint: str) -> None:
        """Let `must_correct` return True again."""
        self._corrected.discard(endpoint)

    async def correct(
        self,
        connection: AsyncConnection[Any],
        guard: Statement,
        now: Callable[[], float | None],
        endpoint: str,
    ) -> None:
        """Correct due times and leases after the clock was set back."""
        look: Statement = (self._lock_too_late, (dump_time(now()), dump_text(endpoint)))
        *_, found = await exchange(connection, [(b"BEGIN", ()), guard, TAKE_LONGER, look])
        keys = blobs([key for (key,) in rows(found)])
        correct: Statement = (self._pull_forward, (dump_time(now()), keys))
        await exchange(connection, [correct, (b"COMMIT", ())])

    def retire(self, worker: str) -> Statement:
        """Return the statement that removes a worker."""
        self._tokens.pop(worker, None)
        self._unanswered.discard(worker)
        self._seen_at.pop(worker, None)
        return self._forget_worker, (dump_text(worker),)

    def put(
        self, given: Sequence[tuple[bytes, Delivery, Token, bytes | None]], now: float | None
    ) -> Statement:
        """Return the statement that stores the deliveries of new events, and returns their keys.

        If any of them needs a key lock, it also returns the key lock of each entry that it parks.
        Each delivery comes with the digest of its key, a token, and the digest of its key lock, if
        it needs one.
        """
        deliveries = [delivery for _, delivery, _, _ in given]
        key_locks = [key_lock for *_, key_lock in given]
        has_key_locks = any(key_lock is not None for key_lock in key_locks)
        return self._put_with_key_locks if has_key_locks else self._put, [
            dump_time(now),
            blobs([digest for digest, *_ in given]),
            texts(one.endpoint for one in deliveries),
            texts(one.event_id for one in deliveries),
            texts(one.event_type for one in deliveries),
            floats(one.received_unix for one in deliveries),
            texts(token for _, _, token, _ in given),
            blobs([one.body for one in deliveries]),
            dump_float(self._claims.retention_seconds),
            blobs(key_locks),
        ]

    def size(self, endpoint: str) -> Statement:
        """Return the statement that counts the events of an endpoint and their bytes."""
        return self._size, [dump_text(endpoint), dump_float(self.bounds.bound(endpoint))]

    async def fetch(
        self,
        connection: AsyncConnection[Any],
        guard: Statement,
        now: float | None,
        limit: int,
        lease: float,
        *,
        endpoint: str,
        worker: str,
        token: Token,
    ) -> Batch:
        """Claim the events that are due; see ``Queue.fetch``."""
        time, name, who = dump_time(now), dump_text(endpoint), dump_text(worker)
        bound = self.bounds.bound(endpoint)
        next_due = self.next_due(endpoint, now)
        if self._tokens.get(worker) == token:
            batch = await self._fetch_again(
                connection, guard, now, lease, next_due, endpoint, token
            )
            if batch.fetched or worker not in self._unanswered:
                return batch
        self._tokens[worker] = token
        self._unanswered.add(worker)  # removed when a reply shows what the fetch has claimed
        values = [
            time,
            name,
            dump_int(min(limit, _MOST_EVENTS)),
            dump_int(_MOST_BYTES),
            dump_text(token),
            dump_float(lease),
            dump_float(bound),
        ]
        seen: list[Statement] = []
        looked = asyncio.get_running_loop().time() if now is None else now
        before, seen_at = self._seen_at.get(worker, ("", -inf))
        if before != endpoint or not 0 <= looked - seen_at < _SEEN_AGAIN_SECONDS:
            seen = [
                (self._forget_workers, (time, dump_float(WORKER_SECONDS))),
                (self._seen, (time, who, name)),
            ]
        *_, found, result = await exchange(
            connection, [guard, *seen, (self._due, values), next_due]
        )
        self._unanswered.discard(worker)
        if seen:
            self._seen_at[worker] = endpoint, looked
        [(at, due, first)] = rows(result)
        last, self._last[endpoint] = self._last.get(endpoint, -inf), at
        if at < last:
            self.bounds.forget(endpoint)
            self.correct_again(endpoint)  # in the background, if the correction takes too long here
            await self.correct(connection, guard, lambda: now, endpoint)
            self._corrected.add(endpoint)
            bound, next_due = self.bounds.bound(endpoint), self.next_due(endpoint, now)
            [(at, due, first)] = rows((await exchange(connection, [guard, next_due]))[1])
        events = rows(found)
        if parked := {key_lock for *_, key_lock in events if key_lock is not None}:
            wake = self.parking.wake(parked, now)
            [(at, due, first)] = rows((await exchange(connection, [guard, wake, next_due]))[2])
            events = [row for row in events if row[-1] is None]
        if moved := [number for _, number, _, _, _, body, *_ in events if body is None]:
            lost = rows(
                (await exchange(connection, [guard, (self._without_body, [ints(moved)])]))[1]
            )
            keys = [delivery_key(endpoint, event_id) for (event_id,) in lost]
            await self._claims.set_aside(connection, guard, keys, now)
            return await self._fetch_again(connection, guard, now, lease, next_due, endpoint, token)
        fetched: dict[int, Fetched] = {}
        others: dict[DeliveryKey, tuple[int, Delivery]] = {}
        order = []
        for _, number, event_id, event_type, received, body, attempt, *names, _ in events:
            key = delivery_key(endpoint, event_id)
            delivery = Delivery(endpoint, event_id, event_type, received, body)
            order.append(number)
            if attempt is not None:
                with contextlib.suppress(ValueError, TypeError):  # damaged, so set aside below
                    finished, outstanding = map(load_names, names)
                    claim = Claimed(key, token, attempt, finished, lease, outstanding)
                    fetched[number] = Fetched(claim, delivery)
                    continue
            others[key] = number, delivery
        if others:
            claims = await self._claim(connection, guard, now, others, _fetch_or_own, token, lease)
            for key, claimed in claims.items():
                number, delivery = others[key]
                fetched[number] = Fetched(claimed, delivery)
            [(at, due, first)] = rows((await exchange(connection, [guard, next_due]))[1])
        self.bounds.saw(endpoint, bound, first, at)
        return Batch(
            tuple(fetched[number] for number in order if number in fetched), _until(at, due)
        )

    async def _fetch_again(
        self,
        connection: AsyncConnection[Any],
        guard: Statement,
        now: float | None,
        lease: float,
        next_due: Statement,
        endpoint: str,
        token: Token,
    ) -> Batch:
        """Return the events of a repeated fetch whose claims still hold."""
        before: Statement = (self._fetched_before, (dump_text(endpoint), dump_text(token)))
        _, found = await exchange(connection, [guard, before])
        others = {
            delivery_key(endpoint, row[1]): (row[0], Delivery(endpoint, *row[1:5]))
            for row in rows(found)
        }
        claims: dict[DeliveryKey, Claimed] = {}
        if others:
            claims = await self._claim(
                connection, guard, now, others, life.fetch_again, token, lease
            )
        _, result = await exchange(connection, [guard, next_due])
        return Batch(
            tuple(Fetched(claims[key], one) for key, (_, one) in others.items() if key in claims),
            _until(*rows(result)[0][:2]),
        )

    async def _claim(
        self,
        connection: AsyncConnection[Any],
        guard: Statement,
        now: float | None,
        keys: Iterable[DeliveryKey],
        step: FetchStep,
        token: Token,
        lease: float,
    ) -> dict[DeliveryKey, Claimed]:
        """Claim events one by one, and return the granted claims."""
        _, moment, held = await self._claims.read(connection, guard, keys, now)
        granted: dict[DeliveryKey, Claimed] = {}
        for key, one in held.items():
            claimed, one.record = step(one.record, moment, key, token, lease)
            if claimed is not None:
                granted[key] = claimed
        left = await self._claims.write(connection, list(held.values()), moment)
        if left:
            # These key locks belong to events that a commit had completed before their process
            # ended. If the statement fails, a later look at all key locks wakes the next events.
            with contextlib.suppress(ServerError):
                await exchange(connection, [guard, self.parking.wake(left, now)])
        return granted


def _fetch_or_own(
    record: Record, moment: Moment, key: DeliveryKey, token: Token, lease: float
) -> tuple[Claimed | None, Record]:
    """Claim an event, or extend the claim that the previous statement has given to this token."""
    if record.token == token:
        return life.fetch_again(record, moment, key, token, lease)
    return life.fetch(record, moment, key, token, lease)


def _until(now: float, due: float | None) -> float | None:
    return None if due is None else max(0.0, due - now)
