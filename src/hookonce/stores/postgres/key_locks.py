"""Key locks in PostgreSQL.

``stores.key_locks`` defines what a step does. A step looks at no more than two waiting events, so
only these are read: many events may wait.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, TypeVar

from psycopg import AsyncConnection

from .. import key_locks
from ..key_locks import FREE, KeyLockRecord
from ..life import Moment
from ..record_store import KeyLockStep
from ..values import DeliveryKey, KeyLock, Token, Watermark
from .claims import ConflictError
from .connection import Statement, exchange
from .schema import NOW
from .wire import dump_float, dump_int, dump_text, dump_time, rows

T = TypeVar("T")

_LOCK = "SELECT FROM {schema}.key_locks WHERE key = $1::bytea FOR UPDATE"
_NOTED = """
(SELECT event FROM {{schema}}.waiting WHERE key_lock = $2::bytea ORDER BY place LIMIT 1 OFFSET {0})
"""
_READ = f"""
SELECT {NOW}, l.token, l.until, l.lease, l.created_at, l.event_id, l.generation, l.expires,
       {_NOTED.format(0)}, {_NOTED.format(1)}
FROM (VALUES (0)) AS always (one) LEFT JOIN {{schema}}.key_locks AS l ON l.key = $2::bytea
"""
_ADD = """
INSERT INTO {schema}.key_locks VALUES ($1::bytea, $2::text, $3::float8, $4::float8, $5::int8,
    $6::text, $7::int8, $8::float8)
ON CONFLICT (key) DO NOTHING RETURNING 1::int4
"""
_CHANGE = """
UPDATE {schema}.key_locks SET token = $2::text, until = $3::float8, lease = $4::float8,
    created_at = $5::int8, event_id = $6::text, generation = $7::int8, expires = $8::float8
WHERE key = $1::bytea RETURNING 1::int4
"""
_FORGET = "DELETE FROM {schema}.key_locks WHERE key = $1::bytea"
# An event enters the queue once; `place` keeps the order of arrival.
_NOTE = """
INSERT INTO {schema}.waiting (key_lock, event) VALUES ($1::bytea, $2::text)
ON CONFLICT (key_lock, md5(event)) DO NOTHING
"""
_FORGET_NOTE = "DELETE FROM {schema}.waiting WHERE key_lock = $1::bytea AND event = $2::text"
_FORGET_NOTES = "DELETE FROM {schema}.waiting WHERE key_lock = $1::bytea"


class KeyLocksTable:
    """Takes the steps on the key locks of one schema."""

    def __init__(self, schema: str, retention_seconds: float) -> None:
        def named(sql: str) -> bytes:
            return sql.format(schema=schema).encode()

        self._retention_seconds = retention_seconds
        self._lock, self._read = named(_LOCK), named(_READ)
        self._add, self._change, self._forget = named(_ADD), named(_CHANGE), named(_FORGET)
        self._note, self._forget_note = named(_NOTE), named(_FORGET_NOTE)
        self._forget_notes = named(_FORGET_NOTES)

    async def take_step(
        self,
        connection: AsyncConnection[Any],
        guard: Statement,
        now: float | None,
        key_lock: KeyLock,
        step: KeyLockStep[T],
        event: DeliveryKey | None,
    ) -> T:
        """Do a step on a key lock in a transaction, and return the step's answer.

        A step may note a waiting event, or remove the first one. ``event`` need not be the first:
        if it is given, it is removed here.

        Raises:
            ConflictError: nothing was written, and the step must be done again.
        """
        digest = digest_of_lock(key_lock)
        begin: list[Statement] = [(b"BEGIN", ()), guard, (self._lock, (digest,))]
        if event is not None:
            begin.append((self._forget_note, (digest, dump_text(event))))
        *_, result = await exchange(connection, [*begin, (self._read, (dump_time(now), digest))])
        at, *row = rows(result)[0]
        moment = Moment(at, at, at + self._retention_seconds)
        known, statements = self._load(row, digest, moment)
        answer, record = step(known, moment)
        exists = row[1] is not None
        statements += [
            (self._note, (digest, dump_text(noted)))
            for noted in record.waiting
            if noted not in known.waiting
        ]
        statements += [
            (self._forget_note, (digest, dump_text(called)))
            for called in known.waiting
            if called not in record.waiting
        ]
        if key_locks.is_forgotten(record, moment):
            if exists:
                statements.append((self._forget, (digest,)))
        elif record[:3] != known[:3] or record[4:] != known[4:] or not exists:
            write: Statement = (
                self._change if exists else self._add,
                [digest, *_columns(record)],
            )
            [result] = await exchange(connection, [write])
            if not result.ntuples:
                raise ConflictError
        await exchange(connection, [*statements, (b"COMMIT", ())])
        return answer

    def _load(
        self, row: list[Any], digest: bytes, moment: Moment
    ) -> tuple[KeyLockRecord, list[Statement]]:
        """Return the record with its first two waiting events, and statements to run with the step.

        The statements delete the queue if the lease has ended.
        """
        token, until, lease, created_at, event_id, generation, expires, *first_two = row
        if until is None:
            return FREE, []
        watermark = None if event_id is None else Watermark(created_at, event_id, generation)
        notes = tuple(DeliveryKey(event) for event in first_two if event is not None)
        holder = None if token is None else Token(token)
        record = KeyLockRecord(holder, until, lease, notes, watermark, expires)
        if notes and key_locks.has_ended(record, moment):
            return record._replace(waiting=()), [(self._forget_notes, (digest,))]
        return record, []


def _columns(record: KeyLockRecord) -> list[bytes | None]:
    watermark = record.watermark
    return [
        None if record.token is None else dump_text(record.token),
        dump_float(record.until),
        dump_float(record.lease),
        None if watermark is None else dump_int(watermark.created_unix_us),
        None if watermark is None else dump_text(watermark.event_id),
        None if watermark is None else dump_int(watermark.generation),
        dump_float(record.watermark_until),
    ]


def digest_of_lock(key_lock: KeyLock) -> bytes:
    """Return the 16 bytes that identify a key lock, even if its name contains lone surrogates."""
    return blake2b(key_lock.name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
