"""The list of handled events whose deliveries are kept, and batches of replays."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Unpack

from ...errors import StoreError
from ..handled import HandledEvent, HandledStats, Keeping, WantedHandled
from ..replays import ReplayBatch, ReplayPlan
from ..values import Claimed, Delivery, DeliveryKey
from .batch import CompleteAndKeepJob
from .handled import Kept
from .records import digest_of, load_names
from .reports import FILTERS, HAS_HANDLER, listing
from .schema import NOW
from .session import Session
from .wire import dump_float, dump_int, dump_text, dump_time

_HANDLED_EVENT = """
SELECT h.id, h.endpoint, h.event_id, h.event_type, h.received_at, {body}, h.finished, h.handled_at,
       h.expires
FROM {schema}.handled AS h
"""
# An index holds the events of each endpoint in the order of `id`. So read a page of every endpoint,
# and sort these pages together.
_HANDLED_EVENTS = f"""
SELECT listed.* FROM (
    SELECT DISTINCT endpoint FROM {{schema}}.handled_sizes
) AS kept, LATERAL (
{_HANDLED_EVENT.replace("{body}", "''::bytea")}
WHERE h.endpoint = kept.endpoint AND h.expires > {NOW} AND {FILTERS.format("h")}
  AND {HAS_HANDLER.format("h.finished")}
  AND ($7::float8 IS NULL OR h.handled_at >= $7::float8)
  AND ($8::float8 IS NULL OR h.handled_at < $8::float8)
ORDER BY h.id LIMIT $9::int8
) AS listed ORDER BY listed.id LIMIT $9::int8
"""
_ONE_HANDLED_EVENT = (
    _HANDLED_EVENT.replace("{body}", "h.body") + f"WHERE h.key = $2::bytea AND h.expires > {NOW}"
)
_STATS = """
SELECT coalesce(sum(events), 0)::int8, coalesce(sum(bytes), 0)::int8
FROM {schema}.handled_sizes WHERE endpoint = $1::text
"""
_NOW = f"SELECT {NOW}"
# Finds the open transactions that may have completed an event.
_COMPLETING = """
SELECT virtualtransaction FROM pg_locks
WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND relation = to_regclass('{schema}.handled') AND mode = 'RowExclusiveLock' AND granted
"""
_BEGIN = """
INSERT INTO {schema}.replay_batches AS b
VALUES ($1::text, $2::text, $3::int8, $4::text::json, $5::float8, NULL)
ON CONFLICT (endpoint, handler) DO UPDATE SET generation = excluded.generation,
    plan = excluded.plan, started_at = excluded.started_at, finished_at = NULL
WHERE b.generation < excluded.generation
"""
_END = f"""
UPDATE {{schema}}.replay_batches SET finished_at = {NOW}
WHERE endpoint = $2::text AND handler = $3::text AND generation = $4::int8 AND finished_at IS NULL
"""
_BATCHES = """
SELECT handler, generation, plan, started_at, finished_at FROM {schema}.replay_batches
WHERE endpoint = $1::text AND handler = coalesce($2::text, handler)
"""

# A completion commits within this time, because each of its statements has a time limit.
_COMMIT_SECONDS = 20.0
_LOOK_SECONDS = 0.05


class PostgresHandled:
    """The part of a PostgreSQL store that implements ``HandledStore``."""

    _schema: str

    @property
    def _session(self) -> Session:
        raise NotImplementedError

    def _sql(self, statement: str) -> bytes:
        return statement.format(schema=self._schema).encode()

    async def complete_and_keep(
        self, claim: Claimed, delivery: Delivery, finished: Collection[str], keeping: Keeping
    ) -> None:
        kept = Kept(digest_of(claim.key), delivery, frozenset(finished), keeping)
        await self._session.batches.run(CompleteAndKeepJob(claim.key, kept))

    async def handled_events(
        self, *, after: str | None = None, limit: int = 100, **wanted: Unpack[WantedHandled]
    ) -> list[HandledEvent]:
        before = wanted.get("before_unix")
        values = [
            *listing(after, wanted, dump_time(self._session.now())),
            None if before is None else dump_float(before),
            dump_int(limit),
        ]
        return await self._handled(_HANDLED_EVENTS, values)

    async def handled_event(self, key: DeliveryKey) -> HandledEvent | None:
        values = [dump_time(self._session.now()), digest_of(key)]
        found = await self._handled(_ONE_HANDLED_EVENT, values)
        return found[0] if found else None

    async def handled_stats(self, endpoint: str) -> HandledStats:
        [[row]] = await self._session.ask((self._sql(_STATS), (dump_text(endpoint),)))
        return HandledStats(*row)

    async def begin_replay_batch(
        self, endpoint: str, handler: str, generation: int, plan: ReplayPlan
    ) -> ReplayBatch:
        names = dump_text(endpoint), dump_text(handler)
        begun = (*names, dump_int(generation), plan.dump().encode())
        started = await self._cut_off()
        _, [row] = await self._session.ask(
            (self._sql(_BEGIN), (*begun, dump_float(started))), (self._sql(_BATCHES), names)
        )
        return _load_batch(endpoint, *row)

    async def _cut_off(self) -> float:
        """Return a time; listings already show every event that was handled before this time.

        A completion reads its time first, and on a slow disk it may commit much later.
        """
        ask, completing = self._session.ask, (self._sql(_COMPLETING), ())
        [[(now,)], waits] = await ask(
            (_NOW.encode(), (dump_time(self._session.now()),)), completing
        )
        due = asyncio.get_running_loop().time() + _COMMIT_SECONDS
        waits_for = set(waits)
        while waits_for:
            if asyncio.get_running_loop().time() >= due:
                raise StoreError(
                    f"a transaction has been writing to {self._schema}.handled for"
                    f" {_COMMIT_SECONDS:g} s, so a batch of replays cannot begin"
                )
            await asyncio.sleep(_LOOK_SECONDS)
            [waits] = await ask(completing)
            waits_for.intersection_update(waits)
        return float(now)

    async def end_replay_batch(self, batch: ReplayBatch) -> None:
        names = dump_text(batch.endpoint), dump_text(batch.handler)
        at, number = dump_time(self._session.now()), dump_int(batch.generation)
        await self._session.ask((self._sql(_END), (at, *names, number)))

    async def replay_batches(self, endpoint: str) -> list[ReplayBatch]:
        [found] = await self._session.ask((self._sql(_BATCHES), (dump_text(endpoint), None)))
        return [_load_batch(endpoint, *row) for row in found]

    async def _handled(self, statement: str, values: Sequence[bytes | None]) -> list[HandledEvent]:
        [found] = await self._session.ask((self._sql(statement), values))
        return [_load(row) for row in found]


def _load(row: tuple[Any, ...]) -> HandledEvent:
    number, *delivery, finished, handled_at, expires = row
    return HandledEvent(
        Delivery(*delivery), _names(finished), handled_at, expires, place=str(number)
    )


def _names(text: str | None) -> frozenset[str]:
    """Return the names of handlers in a text; none if the text cannot be read."""
    try:
        return load_names(text)
    except (ValueError, TypeError):
        return frozenset()


def _load_batch(
    endpoint: str,
    handler: str,
    generation: int,
    plan: str,
    started_at: float,
    finished_at: float | None,
) -> ReplayBatch:
    loaded = ReplayPlan.load(plan)
    return ReplayBatch(endpoint, handler, generation, loaded, started_at, finished_at)
