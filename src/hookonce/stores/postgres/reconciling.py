"""The ignored event types and the accepted gaps that ``reconcile`` reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..reconciling import JOIN_SECONDS, MOST_SPANS, Span
from ..values import delivery_key
from .connection import Statement
from .records import digest_of
from .schema import NOW
from .session import Session
from .wire import blobs, dump_float, dump_int, dump_text, dump_time, texts

_MOST_AT_ONCE = 500

_LOCK = "SELECT FROM pg_advisory_xact_lock(hashtext('{schema}.ignored'), hashtext($1::text))"
_JOIN = f"""
WITH near AS (
    DELETE FROM {{schema}}.ignored WHERE endpoint = $1::text AND event_type = $2::text
        AND first <= $4::int8 + {JOIN_SECONDS} AND last >= $3::int8 - {JOIN_SECONDS}
    RETURNING first, last
)
INSERT INTO {{schema}}.ignored
SELECT $1::text, $2::text, least($3::int8, min(first)), greatest($4::int8, max(last)) FROM near
ON CONFLICT (endpoint, event_type, first) DO UPDATE SET last = excluded.last
"""
_FORGET_OLD = f"DELETE FROM {{schema}}.ignored WHERE endpoint = $2::text AND last <= {NOW} - $3"
_FORGET_MOST = f"""
DELETE FROM {{schema}}.ignored WHERE endpoint = $1::text AND last <= (
    SELECT last FROM {{schema}}.ignored WHERE endpoint = $1::text
    ORDER BY last DESC LIMIT 1 OFFSET {MOST_SPANS}
)
"""
_IGNORED = f"""
SELECT event_type, first, last FROM {{schema}}.ignored
WHERE endpoint = $2::text AND event_type = ANY ($3::text[]) AND last > {NOW} - $4
ORDER BY event_type, first
"""
_ACCEPT = f"""
INSERT INTO {{schema}}.accepted SELECT key, ceil({NOW} + $3)::int8
FROM unnest($2::bytea[]) AS given (key) ORDER BY key
ON CONFLICT (key) DO UPDATE SET expires = excluded.expires
"""
_ACCEPTED = f"""
SELECT key FROM {{schema}}.accepted WHERE key = ANY ($2::bytea[]) AND expires > {NOW}
"""


class PostgresReconciling:
    """The part of a PostgreSQL store that implements ``ReconcilingStore``."""

    retention_seconds: float
    _schema: str

    @property
    def _session(self) -> Session:
        raise NotImplementedError

    def _sql(self, statement: str) -> bytes:
        return statement.format(schema=self._schema).encode()

    async def note_ignored(self, endpoint: str, spans: Mapping[str, Sequence[Span]]) -> None:
        """Remember when types were ignored; see ``ReconcilingStore.note_ignored``."""
        session, name = self._session, dump_text(endpoint)
        retention = dump_float(self.retention_seconds)
        rows = [(kind, span) for kind, ignored in spans.items() for span in ignored]
        for start in range(0, len(rows), _MOST_AT_ONCE):
            joins: list[Statement] = [
                (
                    self._sql(_JOIN),
                    (name, dump_text(kind), dump_int(span.first_unix), dump_int(span.last_unix)),
                )
                for kind, span in rows[start : start + _MOST_AT_ONCE]
            ]
            await session.ask(
                # The lock keeps two processes from joining the same spans at once.
                (self._sql(_LOCK), (name,)),
                *joins,
                (self._sql(_FORGET_OLD), (dump_time(session.now()), name, retention)),
                (self._sql(_FORGET_MOST), (name,)),
            )

    async def ignored(
        self, endpoint: str, event_types: Collection[str]
    ) -> dict[str, tuple[Span, ...]]:
        session = self._session
        values = [
            dump_time(session.now()),
            dump_text(endpoint),
            texts(event_types),
            dump_float(self.retention_seconds),
        ]
        [listed] = await session.ask((self._sql(_IGNORED), values))
        found: dict[str, tuple[Span, ...]] = {}
        for event_type, first, last in listed:
            found[event_type] = (*found.get(event_type, ()), Span(first, last))
        return found

    async def accept(self, endpoint: str, event_ids: Sequence[str]) -> None:
        session = self._session
        retention = dump_float(self.retention_seconds)
        for start in range(0, len(event_ids), _MOST_AT_ONCE):
            batch = event_ids[start : start + _MOST_AT_ONCE]
            digests = {digest_of(delivery_key(endpoint, event_id)) for event_id in batch}
            values = [dump_time(session.now()), blobs(sorted(digests)), retention]
            await session.ask((self._sql(_ACCEPT), values))

    async def accepted(self, endpoint: str, event_ids: Sequence[str]) -> frozenset[str]:
        session = self._session
        found: set[str] = set()
        for start in range(0, len(event_ids), _MOST_AT_ONCE):
            batch = event_ids[start : start + _MOST_AT_ONCE]
            digests = {digest_of(delivery_key(endpoint, event_id)): event_id for event_id in batch}
            values = [dump_time(session.now()), blobs(list(digests))]
            [listed] = await session.ask((self._sql(_ACCEPTED), values))
            found |= {digests[key] for (key,) in listed}
        return frozenset(found)
