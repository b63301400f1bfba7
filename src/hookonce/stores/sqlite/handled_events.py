"""The list of handled events whose deliveries are kept, and batches of replays."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, Unpack

import apsw

from ..handled import HandledEvent, HandledStats, WantedHandled
from ..replays import ReplayBatch, ReplayPlan
from ..values import Delivery, DeliveryKey, number_behind
from .records import digest_of, load_names
from .shared import SharedFile

T = TypeVar("T")

_HANDLED_EVENT = """
SELECT id, endpoint, event_id, event_type, received_at, {body}, finished, handled_at, expires
FROM handled
"""
_HANDLED_EVENTS = f"""
{_HANDLED_EVENT.format(body="x''")}
WHERE id > :after AND expires > :now
  AND (:endpoint IS NULL OR endpoint = :endpoint)
  AND (:event_type IS NULL OR event_type = :event_type)
  AND (:event_id IS NULL OR event_id = :event_id)
  AND (:handler IS NULL
       OR :handler IN (SELECT value FROM json_each(iif(json_valid(finished), finished, '[]'))))
  AND (:since_unix IS NULL OR handled_at >= :since_unix)
  AND (:before_unix IS NULL OR handled_at < :before_unix)
ORDER BY id LIMIT :limit
"""
_ONE_HANDLED_EVENT = f"""
{_HANDLED_EVENT.format(body="body")}
WHERE id = (SELECT handled FROM done WHERE key = :key) AND expires > :now
"""
_STATS = "SELECT events, bytes FROM handled_sizes WHERE endpoint = ?"


_BEGIN = """
INSERT INTO replay_batches VALUES (?1, ?2, ?3, ?4, ?5, NULL)
ON CONFLICT (endpoint, handler) DO UPDATE
SET generation = ?3, plan = ?4, started_at = ?5, finished_at = NULL WHERE generation < ?3
"""
_END = """
UPDATE replay_batches SET finished_at = ?4
WHERE endpoint = ?1 AND handler = ?2 AND generation = ?3 AND finished_at IS NULL
"""
_BATCHES = """
SELECT handler, generation, plan, started_at, finished_at FROM replay_batches
WHERE endpoint = ?1 AND (?2 IS NULL OR handler = ?2)
"""


class SQLiteHandled(ABC):
    """The part of a SQLite store that implements ``HandledStore`` apart from the completion."""

    _file: SharedFile

    @abstractmethod
    def _run(self, step: Callable[[apsw.Connection], T]) -> Awaitable[T]:
        """Run ``step`` in a transaction."""

    async def handled_events(
        self, *, after: str | None = None, limit: int = 100, **wanted: Unpack[WantedHandled]
    ) -> list[HandledEvent]:
        named = {
            **dict.fromkeys(WantedHandled.__optional_keys__),
            **wanted,
            "after": number_behind(after),
            "limit": limit,
        }
        return await self._handled(_HANDLED_EVENTS, named)

    async def handled_event(self, key: DeliveryKey) -> HandledEvent | None:
        found = await self._handled(_ONE_HANDLED_EVENT, {"key": digest_of(key)})
        return found[0] if found else None

    async def handled_stats(self, endpoint: str) -> HandledStats:
        def read(connection: apsw.Connection) -> HandledStats:
            row: Any = connection.execute(_STATS, (endpoint,)).fetchone()
            return HandledStats(*row) if row else HandledStats(0, 0)

        return await self._run(read)

    async def begin_replay_batch(
        self, endpoint: str, handler: str, generation: int, plan: ReplayPlan
    ) -> ReplayBatch:
        def begin(connection: apsw.Connection) -> ReplayBatch:
            name, now = json.dumps(handler), self._file.claims.clock()
            connection.execute(_BEGIN, (endpoint, name, generation, plan.dump(), now))
            row: Any = connection.execute(_BATCHES, (endpoint, name)).fetchone()
            return _load_batch(endpoint, *row)

        return await self._run(begin)

    async def end_replay_batch(self, batch: ReplayBatch) -> None:
        def end(connection: apsw.Connection) -> None:
            name, now = json.dumps(batch.handler), self._file.claims.clock()
            connection.execute(_END, (batch.endpoint, name, batch.generation, now))

        await self._run(end)

    async def replay_batches(self, endpoint: str) -> list[ReplayBatch]:
        def read(connection: apsw.Connection) -> list[ReplayBatch]:
            found: Any = connection.execute(_BATCHES, (endpoint, None)).fetchall()
            return [_load_batch(endpoint, *row) for row in found]

        return await self._run(read)

    async def _handled(self, statement: str, named: dict[str, Any]) -> list[HandledEvent]:
        def read(connection: apsw.Connection) -> list[HandledEvent]:
            given = {**named, "now": self._file.claims.clock()}
            return [_load(row) for row in connection.execute(statement, given).fetchall()]

        return await self._run(read)


def _load(row: tuple[Any, ...]) -> HandledEvent:
    number, *delivery, finished, handled_at, expires = row
    return HandledEvent(
        Delivery(*delivery), _names(finished), handled_at, expires, place=str(number)
    )


def _names(text: str) -> frozenset[str]:
    """Return the names of handlers in a text, which may be unreadable: then return no names."""
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
    return ReplayBatch(endpoint, json.loads(handler), generation, loaded, started_at, finished_at)
