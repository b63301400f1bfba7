"""Steps of ``life`` on events in the database: read the records, do the steps, write the changes.

A transaction locks the rows of its events in one order, entries before ids, and each table by key.
A row that is missing cannot be locked. So a new event is inserted, and if another transaction has
inserted it first, the whole transaction is repeated.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from psycopg import AsyncConnection

from ...errors import StoreError
from ..formats import DamagedError, log_set_aside
from ..life import NEW, DeadLetterRecord, InboxEntry, Moment, Record
from ..values import DeadReason, Delivery, DeliveryKey
from .connection import Statement, exchange
from .finishes import FINISHES, record_after
from .records import ATTEMPT, columns, digest_of, dump_attempt, dump_kept, load_queued, load_record
from .schema import NOW
from .wire import blobs, documents, dump_float, dump_time, floats, ints, rows, texts

_NAMES = ", ".join(ATTEMPT)
_CASTS = (
    "{0}.token, {0}.until, {0}.lease, {0}.attempt::int4, {0}.finished::json,"
    " {0}.outstanding::json, {0}.history::json"
)
_ATTEMPT_ARRAYS = (
    "${0}::text[], ${1}::float8[], ${2}::float8[], ${3}::int8[], ${4}::text[], ${5}::text[],"
    " ${6}::text[]"
)


def _arrays(first: int) -> str:
    return _ATTEMPT_ARRAYS.format(*range(first, first + len(ATTEMPT)))


_LOCK = """
SELECT FROM {schema}.{table} WHERE key = ANY ($1::bytea[]) ORDER BY key FOR {strength}
"""
# The tables to lock: FOR UPDATE in a step that may end a claim, FOR NO KEY UPDATE in a heartbeat.
# See `finishes`.
_LOCKS = {"UPDATE": ("entries", "ids", "dead"), "NO KEY UPDATE": ("entries", "ids")}
# Identifies a server since its last start or recovery, because the number of a lost transaction may
# be given to another transaction: by another server after a failover, or by the same server after a
# backend has crashed. Then the server recovers and resets its statistics, but does not start anew.
_SERVER = """concat(extract(epoch FROM pg_postmaster_start_time()), '/',
    extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time()))"""
_TRANSACTION = f"pg_current_xact_id()::text || ' ' || {_SERVER}"
# The query writes a message to the server's log of changes. So its own commit waits until the
# synchronous standbys have all earlier commits, including the commit that the query asks about.
STATUS = f"""
SELECT CASE WHEN split_part($1::text, ' ', 2) = {_SERVER}
       THEN pg_xact_status(split_part($1::text, ' ', 1)::xid8) END,
       pg_logical_emit_message(true, 'hookonce', '')::text
""".encode()
"""Returns the status of a transaction that ``ClaimsTable.read`` has named; NULL if the server has
started or recovered since, or is another server."""
_READ = f"""
SELECT {{transaction}}, {NOW}, i.key, i.expires, {columns("i")},
       e.enqueue_token, e.due, e.delay, {columns("e")},
       d.reason, d.error, d.buried_at, d.kept, {columns("d")}, {FINISHES}
FROM (VALUES (0)) AS always (one) LEFT JOIN (
    {{schema}}.ids AS i LEFT JOIN {{schema}}.entries AS e USING (key)
    LEFT JOIN {{schema}}.dead AS d USING (key)
) ON i.key = ANY ($2::bytea[])
"""
# The rows FREE.complete, CLAIMED.complete and so on of `life.LIFE`, for every state. The first two
# statements wait for every other transaction that changes the events. The third statement takes its
# snapshot afterwards, so it finds the entries and dead letters of those transactions.
_FINISH = (
    "DELETE FROM {schema}.entries WHERE key = ANY ($1::bytea[]) RETURNING key_lock",
    """
SELECT FROM {schema}.ids WHERE key = ANY ($1::bytea[]) AND (
    attempt IS NOT NULL OR EXISTS (SELECT FROM {schema}.dead WHERE dead.key = ids.key)
) ORDER BY key FOR UPDATE
""",
    f"""
WITH left_inbox AS (
    DELETE FROM {{schema}}.entries WHERE key = ANY ($2::bytea[])
), forgotten AS (
    DELETE FROM {{schema}}.dead WHERE key = ANY ($2::bytea[])
), noted AS (
    DELETE FROM {{schema}}.finishes WHERE key = ANY ($2::bytea[])
)
INSERT INTO {{schema}}.ids AS i (key, expires)
SELECT key, ceil({NOW} + $3)::int8 FROM unnest($2::bytea[]) AS done (key)
WHERE NOT EXISTS ( -- an event of the inbox that is handled within the second of its enqueue
    SELECT FROM {{schema}}.ids AS known
    WHERE known.key = done.key AND known.attempt IS NULL AND known.expires = ceil({NOW} + $3)::int8
)
ORDER BY key
ON CONFLICT (key) DO UPDATE
SET expires = excluded.expires, endpoint = NULL, token = NULL, until = NULL, lease = NULL,
    attempt = NULL, finished = NULL, outstanding = NULL, history = NULL
""",
)
_ADD_IDS = f"""
INSERT INTO {{schema}}.ids (key, expires, endpoint, {_NAMES})
SELECT g.key, g.expires, g.endpoint, {_CASTS.format("g")}
FROM unnest($1::bytea[], $2::int8[], $3::text[], {_arrays(4)})
    AS g (key, expires, endpoint, {_NAMES})
ORDER BY key ON CONFLICT (key) DO NOTHING RETURNING 1::int4
"""
_CHANGE_IDS = f"""
UPDATE {{schema}}.ids AS i SET expires = g.expires, endpoint = g.endpoint,
    ({_NAMES}) = ROW ({_CASTS.format("g")})
FROM unnest($1::bytea[], $2::int8[], $3::text[], {_arrays(4)})
    AS g (key, expires, endpoint, {_NAMES})
WHERE i.key = g.key
"""
_ADD_ENTRIES = f"""
WITH g AS MATERIALIZED (
    SELECT * FROM unnest($1::bytea[], $2::text[], $3::text[], $4::text[], $5::float8[],
        $6::bytea[], $7::text[], $8::float8[], $9::float8[], {_arrays(10)}) WITH ORDINALITY
    AS g (key, endpoint, event_id, event_type, received_at, body, enqueue_token, due, delay,
        {_NAMES}, number)
), added AS (
    INSERT INTO {{schema}}.entries (key, endpoint, event_id, event_type, received_at, size, part,
        enqueue_token, due, delay, {_NAMES})
    SELECT key, endpoint, event_id, event_type, received_at, length(body), body_part.part,
        enqueue_token, due, delay, {_CASTS.format("g")}
    FROM g, {{schema}}.body_part ORDER BY number RETURNING id, key, part
)
INSERT INTO {{schema}}.bodies SELECT part, id, body FROM added JOIN g USING (key)
"""
_CHANGE_ENTRIES = f"""
UPDATE {{schema}}.entries AS e SET due = g.due, delay = g.delay,
    ({_NAMES}) = ROW ({_CASTS.format("g")})
FROM unnest($1::bytea[], $2::float8[], $3::float8[], {_arrays(4)})
    AS g (key, due, delay, {_NAMES})
WHERE e.key = g.key RETURNING CASE WHEN g.token IS NULL THEN e.key_lock END AS key_lock
"""
_LEAVE_INBOX = "DELETE FROM {schema}.entries WHERE key = ANY ($1::bytea[]) RETURNING key_lock"
# Inserts dead letters, each with the given delivery or, if none was given, the delivery in the
# inbox.
_ADD_DEAD = f"""
INSERT INTO {{schema}}.dead (key, endpoint, event_id, event_type, received_at, body, reason, error,
    buried_at, kept, record, {_NAMES})
SELECT g.key, g.endpoint, g.event_id,
    CASE WHEN g.body IS NULL THEN e.event_type ELSE g.event_type END,
    CASE WHEN g.body IS NULL THEN coalesce(e.received_at, g.buried_at)
        ELSE g.received_at END,
    coalesce(g.body, b.body, ''), g.reason, g.error, g.buried_at, g.kept, g.record,
    {_CASTS.format("g")}
FROM unnest($1::bytea[], $2::text[], $3::text[], $4::text[], $5::float8[], $6::bytea[], $7::text[],
    $8::text[], $9::float8[], $10::int8[], $11::bytea[], {_arrays(12)}) WITH ORDINALITY
    AS g (key, endpoint, event_id, event_type, received_at, body, reason, error, buried_at, kept,
        record, {_NAMES}, number)
LEFT JOIN {{schema}}.entries AS e USING (key)
LEFT JOIN {{schema}}.bodies AS b ON b.part = e.part AND b.id = e.id
ORDER BY number
"""
_CHANGE_DEAD = f"""
UPDATE {{schema}}.dead AS d SET reason = g.reason, error = g.error, buried_at = g.buried_at,
    kept = g.kept, record = coalesce(g.record, d.record),
    ({_NAMES}) = ROW ({_CASTS.format("g")})
FROM unnest($1::bytea[], $2::text[], $3::text[], $4::float8[], $5::int8[], $6::bytea[],
    {_arrays(7)}) AS g (key, reason, error, buried_at, kept, record, {_NAMES})
WHERE d.key = g.key
"""
_FORGET_DEAD = "DELETE FROM {schema}.dead WHERE key = ANY ($1::bytea[])"
_FORGET_FINISHES = "DELETE FROM {schema}.finishes WHERE key = ANY ($1::bytea[])"
_COMPLEMENT = """
UPDATE {schema}.dead SET event_type = g.event_type, received_at = g.received_at, body = g.body
FROM unnest($1::bytea[], $2::text[], $3::float8[], $4::bytea[])
    AS g (key, event_type, received_at, body)
WHERE dead.key = g.key AND dead.body = ''
"""


def key_locks_left(results: Sequence[Any]) -> set[bytes]:
    """Return the key locks that the completed events needed, from the statements' results."""
    return {
        key_lock
        for result in results
        if result.nfields and result.fname(0) == b"key_lock"
        for (key_lock,) in rows(result)
        if key_lock is not None
    }


class ConflictError(Exception):
    """Another transaction has inserted an event that this transaction treated as new."""


@dataclass(slots=True)
class Held:
    """An event whose rows a transaction has locked.

    Attributes:
        key: the event.
        digest: the key in the database.
        known: the record as it was read.
        record: the record after the steps that were done.
        exists: whether the event has a row in ``ids``.
        has_finishes: whether the event has rows in ``finishes``.
        raw: the record as JSON, if it cannot be read.
        delivery: the delivery to store with an entry or a dead letter, from one of the steps.
    """

    key: DeliveryKey
    digest: bytes
    known: Record = NEW
    record: Record = NEW
    exists: bool = False
    has_finishes: bool = False
    raw: bytes | None = None
    delivery: Delivery | None = None

    def accept(self, record: Record, given: Delivery | None) -> None:
        """Take over the record that a step returns, and the delivery that came with the step.

        Raises:
            StoreError: the step makes a dead letter, and no delivery was given or stored.
        """
        before = self.record
        is_buried = record.dead_letter is not None and before.dead_letter is None
        if is_buried and given is None and before.queued is None:
            raise StoreError("cannot bury the event: no delivery was given, and none is stored")
        is_queued = record.queued is not None and before.queued is None
        if given is not None and (is_buried or is_queued):
            self.delivery = given
        self.record = record

    @property
    def is_damaged(self) -> bool:
        """Whether the store has set the record aside, and no operator has decided about it."""
        letter = self.record.dead_letter
        return letter is not None and letter.reason is DeadReason.DAMAGED


class ClaimsTable:
    """Reads and writes the records of events in one schema.

    Args:
        schema: the name of the schema.
        retention_seconds: how long a done event is remembered.
    """

    def __init__(self, schema: str, retention_seconds: float) -> None:
        def named(sql: str) -> bytes:
            return sql.format(schema=schema).encode()

        self.retention_seconds = retention_seconds
        self._finish = [named(sql) for sql in _FINISH]
        self._locks = {
            strength: [
                _LOCK.format(schema=schema, table=table, strength=strength).encode()
                for table in tables
            ]
            for strength, tables in _LOCKS.items()
        }
        self._read = named(_READ.replace("{transaction}", "''"))
        self._read_locked = named(_READ.replace("{transaction}", _TRANSACTION))
        self._add_ids, self._change_ids = named(_ADD_IDS), named(_CHANGE_IDS)
        self._add_entries, self._change_entries = named(_ADD_ENTRIES), named(_CHANGE_ENTRIES)
        self._add_dead, self._change_dead = named(_ADD_DEAD), named(_CHANGE_DEAD)
        self._leave_inbox, self._forget_dead = named(_LEAVE_INBOX), named(_FORGET_DEAD)
        self._forget_finishes = named(_FORGET_FINISHES)
        self._complement = named(_COMPLEMENT)

    def moment(self, now: float) -> Moment:
        """Convert a time to the ``Moment`` that the steps of ``life`` take."""
        # Round up, as the database does, so that the store forgets no event early.
        return Moment(now, now, ceil(now + self.retention_seconds))

    def finish(self, digests: Iterable[bytes], now: float | None) -> list[Statement]:
        """Return the statements that mark events as done, whatever their state is."""
        keys = blobs(sorted(digests))
        leave, lock, finish = self._finish
        values = [dump_time(now), keys, dump_float(self.retention_seconds)]
        return [(leave, [keys]), (lock, [keys]), (finish, values)]

    async def read(
        self,
        connection: AsyncConnection[Any],
        guard: Statement,
        keys: Iterable[DeliveryKey],
        now: float | None,
        *,
        locks: bool = True,
        heartbeats: frozenset[DeliveryKey] = frozenset(),
    ) -> tuple[str, Moment, dict[DeliveryKey, Held]]:
        """Read events, and return the transaction's name, the time, and the events by key.

        With ``locks`` this begins a transaction, which holds the rows until it ends. For
        ``heartbeats`` it leaves the owners of the events as they are, and reads no finishes.
        """
        held = {digest_of(key): Held(key, digest_of(key)) for key in keys}
        digests = blobs(sorted(held))
        beating = {digest_of(key) for key in heartbeats}
        locked: list[Statement] = []
        if locks:
            # Lock all rows in one order first. This prevents deadlocks: a transaction that a later
            # statement waits for cannot wait for these rows.
            if beating:
                locked += [(lock, (digests,)) for lock in self._locks["NO KEY UPDATE"]]
            if others := sorted(held.keys() - beating):
                locked += [(lock, (blobs(others),)) for lock in self._locks["UPDATE"]]
        begin: list[Statement] = [(b"BEGIN", ())] if locks else []
        sql = self._read_locked if locks else self._read
        *_, result = await exchange(
            connection, [*begin, guard, *locked, (sql, (dump_time(now), digests))]
        )
        found = rows(result)
        transaction, at = found[0][:2]
        moment = self.moment(at)
        for row in found:
            if row[2] is not None:
                one, finishes = held[row[2]], row[-1]
                self._load(one, row[3:-1], at)
                if finishes is not None and one.digest not in beating and one.raw is None:
                    one.has_finishes = True
                    one.record = record_after(one.known, finishes, moment)
        return transaction, moment, {one.key: one for one in held.values()}

    def _load(self, held: Held, row: tuple[Any, ...], now: float) -> None:
        width = len(ATTEMPT)
        expires, attempt, row = row[0], row[1 : 1 + width], row[1 + width :]
        entry, waiting, row = row[:3], row[3 : 3 + width], row[3 + width :]
        dead, buried = row[:4], row[4:]
        queued = None if entry[0] is None else load_queued(*entry, now=now)
        held.exists = True
        is_dead = dead[0] is not None
        part = waiting if queued is not None else buried if is_dead else attempt
        try:
            record = load_record(part, expires, queued, dead if is_dead else None)
        except DamagedError:
            log_set_aside(held.key)
            held.raw = json.dumps([part, dead], default=repr).encode()
            letter = DeadLetterRecord(DeadReason.DAMAGED, "", now, is_kept=False)
            held.known = Record(
                queued=queued, dead_letter=letter if is_dead else None, expires=expires
            )
            held.record = Record(dead_letter=letter, expires=expires)
        else:
            held.known = held.record = record

    async def set_aside(
        self,
        connection: AsyncConnection[Any],
        guard: Statement,
        keys: Sequence[DeliveryKey],
        now: float | None,
    ) -> None:
        """Set aside events of the inbox whose bodies are missing; the next delivery brings one."""
        if not keys:
            return
        _, moment, held = await self.read(connection, guard, keys, now)
        for one in held.values():
            if one.record.queued is not None:
                log_set_aside(one.key)
                one.raw = b"the body is missing"
                letter = DeadLetterRecord(DeadReason.DAMAGED, "", moment.unix, is_kept=False)
                one.record = Record(dead_letter=letter, expires=one.record.expires)
        await self.write(connection, list(held.values()), moment)

    def complement(self, held: Held) -> Statement | None:
        """Return a statement that adds the missing delivery to a record that was set aside."""
        delivery = held.delivery
        if delivery is None or not held.is_damaged:
            return None
        values = [
            blobs([held.digest]),
            texts([delivery.event_type]),
            floats([delivery.received_unix]),
            blobs([delivery.body]),
        ]
        return self._complement, values

    async def write(
        self,
        connection: AsyncConnection[Any],
        held: Iterable[Held],
        moment: Moment,
        then: Sequence[Statement] = (),
    ) -> set[bytes]:
        """Write the changed records and commit; return the key locks whose next event may begin.

        Args:
            then: statements to run before the commit.

        Raises:
            ConflictError: nothing was written, and the steps must be done again.
        """
        changed = sorted(
            (one for one in held if one.record is not one.known), key=lambda one: one.digest
        )
        others = [one for one in changed if one.record.done_until <= moment.unix]
        done = [one for one in changed if one.record.done_until > moment.unix]
        new = [one for one in others if not one.exists]
        statements: list[Statement] = [
            *self._ids_written(new, self._add_ids, moment),
            *self._ids_written([one for one in others if one.exists], self._change_ids, moment),
            *self._dead_written(others),
            *self._entries_written(others),
        ]
        if done:
            statements += self.finish([one.digest for one in done], moment.now)
        if noted := [one.digest for one in others if one.has_finishes]:
            statements.append((self._forget_finishes, [blobs(noted)]))
        statements += [one for event in held if (one := self.complement(event)) is not None]
        if new:
            # Insert the new events first and alone: after a conflict, the transaction must write
            # nothing else.
            result, *_ = await exchange(connection, statements[:1])
            if result.ntuples < len(new):
                await exchange(connection, [(b"ROLLBACK", ())])
                raise ConflictError
            statements = statements[1:]
        return key_locks_left(await exchange(connection, [*statements, *then, (b"COMMIT", ())]))

    def _ids_written(self, events: Sequence[Held], sql: bytes, moment: Moment) -> list[Statement]:
        values: list[tuple[Any, ...]] = []
        expires: list[int] = []
        chosen: list[Held] = []
        for one in events:
            record = one.record
            is_here = record.queued is None and record.dead_letter is None
            was_here = one.known.queued is None and one.known.dead_letter is None
            if one.exists and not is_here and not was_here:
                continue
            chosen.append(one)
            values.append(dump_attempt(record) if is_here else (None,) * len(ATTEMPT))
            # The row must outlive the inbox entry even if the event has no attempts: see `Upkeep`.
            expires.append(ceil(record.expires if is_here else moment.expires))
        if not chosen:
            return []
        endpoints = [
            None if row[3] is None else one.key.partition(":")[0]
            for one, row in zip(chosen, values, strict=True)
        ]
        digests = blobs([one.digest for one in chosen])
        return [(sql, [digests, ints(expires), texts(endpoints), *_attempts(values)])]

    def _entries_written(self, events: Sequence[Held]) -> list[Statement]:
        queued = [one for one in events if one.record.queued is not None]
        new = [one for one in queued if one.known.queued is None and one.delivery is not None]
        known = [one for one in queued if one.known.queued is not None]
        left = [one for one in events if one.record.queued is None and one.known.queued is not None]
        statements: list[Statement] = []
        if new:
            given = [one.delivery for one in new if one.delivery is not None]
            values = [
                blobs([one.digest for one in new]),
                *_deliveries(given),
                *_queues([one.record.queued for one in new], with_token=True),
                *_attempts([dump_attempt(one.record) for one in new]),
            ]
            statements.append((self._add_entries, values))
        if known:
            values = [
                blobs([one.digest for one in known]),
                *_queues([one.record.queued for one in known], with_token=False),
                *_attempts([dump_attempt(one.record) for one in known]),
            ]
            statements.append((self._change_entries, values))
        if left:
            statements.append((self._leave_inbox, [blobs([one.digest for one in left])]))
        return statements

    def _dead_written(self, events: Sequence[Held]) -> list[Statement]:
        with_letter = [
            (one, one.record.dead_letter) for one in events if one.record.dead_letter is not None
        ]
        new = [(one, letter) for one, letter in with_letter if one.known.dead_letter is None]
        known = [(one, letter) for one, letter in with_letter if one.known.dead_letter is not None]
        left = [
            one
            for one in events
            if one.record.dead_letter is None and one.known.dead_letter is not None
        ]
        statements: list[Statement] = []
        for chosen, sql in ((new, self._add_dead), (known, self._change_dead)):
            if not chosen:
                continue
            values = [blobs([one.digest for one, _ in chosen])]
            if sql is self._add_dead:
                values += _buried([one for one, _ in chosen])
            values += [
                texts(letter.reason for _, letter in chosen),
                texts(letter.error for _, letter in chosen),
                floats(letter.buried_unix for _, letter in chosen),
                ints(dump_kept(letter) for _, letter in chosen),
                blobs([one.raw for one, _ in chosen]),
                *_attempts([dump_attempt(one.record) for one, _ in chosen]),
            ]
            statements.append((sql, values))
        if left:
            statements.append((self._forget_dead, [blobs([one.digest for one in left])]))
        return statements


def _attempts(values: Sequence[tuple[Any, ...]]) -> list[bytes]:
    token, until, lease, attempt, *names = zip(*values, strict=True)
    return [texts(token), floats(until), floats(lease), ints(attempt), *map(documents, names)]


def _deliveries(given: Sequence[Delivery]) -> list[bytes]:
    return [
        texts(one.endpoint for one in given),
        texts(one.event_id for one in given),
        texts(one.event_type for one in given),
        floats(one.received_unix for one in given),
        blobs([one.body for one in given]),
    ]


def _queues(given: Sequence[InboxEntry | None], *, with_token: bool) -> list[bytes]:
    queues = [one for one in given if one is not None]
    tokens = [texts(one.token for one in queues)] if with_token else []
    return [*tokens, floats(one.due for one in queues), floats(one.delay for one in queues)]


def _buried(events: Sequence[Held]) -> list[bytes]:
    """Return the deliveries' columns; the SQL replaces a missing body by the body in the inbox."""
    parts = [one.key.partition(":") for one in events]
    given = [one.delivery for one in events]
    return [
        texts(endpoint for endpoint, _, _ in parts),
        texts(event_id for _, _, event_id in parts),
        texts(one and one.event_type for one in given),
        floats(one.received_unix if one else 0.0 for one in given),
        blobs([None if one is None else one.body for one in given]),
    ]
