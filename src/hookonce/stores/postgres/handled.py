"""Deliveries of handled events: a completion stores one, and deletes old ones beyond the limits.

Several rows of ``handled_sizes`` count the bytes of an endpoint, and each process changes one of
them: with a single row, the commits of all processes would wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import randrange
from typing import NamedTuple

from ..handled import Keeping
from ..values import Delivery
from .connection import Statement
from .records import dump_names
from .schema import NOW
from .wire import blobs, documents, dump_int, dump_time, floats, ints, texts

_SLOTS = 64
# The most rows that one transaction deletes, because other calls wait for the locked rows.
_MOST_AT_ONCE = 500

COUNT_OUT = """
INSERT INTO {schema}.handled_sizes AS s (endpoint, slot, events, bytes)
SELECT endpoint, {slot}, -count(*), -sum(size) FROM {table} GROUP BY endpoint ORDER BY endpoint
ON CONFLICT (endpoint, slot)
DO UPDATE SET events = s.events + excluded.events, bytes = s.bytes + excluded.bytes
"""
"""Counts deleted rows out of an endpoint; ``table`` has the columns ``endpoint`` and ``size``."""

_COUNT_IN = COUNT_OUT.replace("-count", "count").replace("-sum", "sum")
_FORGET_EXPIRED = f"""
WITH deleted AS (
    DELETE FROM {{schema}}.handled WHERE key = ANY ($2::bytea[]) AND expires <= {NOW}
    RETURNING endpoint, size
)
{COUNT_OUT.replace("{slot}", "$3::int8").replace("{table}", "deleted")}
"""
_KEEP = f"""
WITH added AS (
    INSERT INTO {{schema}}.handled (key, endpoint, event_id, event_type, received_at, finished,
        handled_at, expires, size, body)
    SELECT key, endpoint, event_id, event_type, received_at, finished::json, greatest(at.now, (
            SELECT max(b.started_at) FROM {{schema}}.replay_batches AS b
            WHERE b.endpoint = g.endpoint AND b.finished_at IS NULL
        )), at.now + seconds, length(body), body
    FROM unnest($2::bytea[], $4::text[], $5::text[], $6::text[], $7::float8[], $8::text[],
        $9::float8[], $10::bytea[]) WITH ORDINALITY
        AS g (key, endpoint, event_id, event_type, received_at, finished, seconds, body, number),
        (SELECT {NOW} AS now) AS at
    ORDER BY number ON CONFLICT (key) DO NOTHING RETURNING endpoint, size
)
{_COUNT_IN.replace("{slot}", "$3::int8").replace("{table}", "added")}
"""
# Only one transaction at a time deletes an endpoint's oldest deliveries: two would delete too many.
_MAKE_ROOM = f"""
WITH held AS MATERIALIZED (
    SELECT g.endpoint, g.at_most, (
        SELECT sum(s.bytes) FROM {{schema}}.handled_sizes AS s WHERE s.endpoint = g.endpoint
    ) - g.max_bytes AS excess
    FROM unnest($2::text[], $4::int8[], $5::int8[]) AS g (endpoint, max_bytes, at_most)
    WHERE pg_try_advisory_xact_lock(hashtext('{{schema}}.handled'), hashtext(g.endpoint))
), oldest AS MATERIALIZED (
    SELECT o.id, o.expires, held.excess,
        sum(o.size) OVER (PARTITION BY held.endpoint ORDER BY o.id) - o.size AS freed
    FROM held, LATERAL (
        SELECT id, size, expires FROM {{schema}}.handled WHERE endpoint = held.endpoint
        ORDER BY id LIMIT CASE WHEN held.excess > 0 THEN {_MOST_AT_ONCE} ELSE held.at_most END
    ) AS o
), deleted AS (
    DELETE FROM {{schema}}.handled AS h USING oldest
    WHERE h.id = oldest.id AND (oldest.expires <= {NOW} OR oldest.freed < oldest.excess)
    RETURNING h.endpoint, h.size
)
{COUNT_OUT.replace("{slot}", "$3::int8").replace("{table}", "deleted")}
"""


class Kept(NamedTuple):
    """A delivery to keep.

    Attributes:
        digest: the key of its event in the database.
        delivery: the delivery.
        finished: all handlers that have finished.
        keeping: how long and how much its endpoint keeps.
    """

    digest: bytes
    delivery: Delivery
    finished: frozenset[str]
    keeping: Keeping


class HandledTable:
    """Writes the deliveries of handled events in one schema."""

    def __init__(self, schema: str) -> None:
        self._slot = dump_int(randrange(_SLOTS))  # noqa: S311 - a random row for each process, not a secret
        self._forget_expired, self._keep, self._make_room = (
            sql.format(schema=schema).encode() for sql in (_FORGET_EXPIRED, _KEEP, _MAKE_ROOM)
        )

    def keep(self, given: Iterable[Kept], now: float | None) -> list[Statement]:
        """Return the statements that store deliveries, and delete old ones to keep the limits."""
        added = [one for one in given if _fits(one)]
        if not added:
            return []
        limits = {one.delivery.endpoint: one.keeping.max_bytes for one in added}
        at, keys = dump_time(now), blobs([one.digest for one in added])
        return [
            (self._forget_expired, [at, keys, self._slot]),
            (self._keep, [at, keys, self._slot, *_columns(added)]),
            (
                self._make_room,
                [
                    at,
                    texts(limits),
                    self._slot,
                    ints(limits.values()),
                    ints(2 * len(added) for _ in limits),  # delete more rows than were added
                ],
            ),
        ]


def _fits(one: Kept) -> bool:
    most = one.keeping.max_bytes
    return most is None or len(one.delivery.body) <= most


def _columns(added: Sequence[Kept]) -> list[bytes]:
    """Return the parameters 4 to 10 of the statement that keeps deliveries."""
    deliveries = [one.delivery for one in added]
    return [
        texts(one.endpoint for one in deliveries),
        texts(one.event_id for one in deliveries),
        texts(one.event_type for one in deliveries),
        floats(one.received_unix for one in deliveries),
        documents(dump_names(one.finished) for one in added),
        floats(one.keeping.seconds for one in added),
        blobs([one.body for one in deliveries]),
    ]
