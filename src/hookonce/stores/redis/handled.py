"""The deliveries of handled events, and batches of replays, on the servers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Unpack

from ..handled import HandledEvent, HandledStats, Keeping, WantedHandled
from ..replays import ReplayBatch, ReplayPlan
from ..values import Claimed, Delivery, DeliveryKey
from . import codec
from .codec import Cursor, step
from .reports import listed
from .session import Session


class RedisHandled(ABC):
    """The part of a Redis store that implements ``HandledStore``.

    Each shard keeps its share of the bytes that an endpoint may keep. Batches are in the first
    shard.
    """

    @property
    @abstractmethod
    def _session(self) -> Session:
        """The session of the running event loop."""

    async def complete_and_keep(
        self, claim: Claimed, delivery: Delivery, finished: Collection[str], keeping: Keeping
    ) -> None:
        session = self._session
        limits = codec.write_keeping(keeping, len(delivery.body), len(session.shards))
        given = (*codec.write_delivery(delivery), codec.write_names(frozenset(finished)), *limits)
        await session.ask(claim.key, "complete_and_keep", *given)

    async def handled_events(
        self, *, after: str | None = None, limit: int = 100, **wanted: Unpack[WantedHandled]
    ) -> list[HandledEvent]:
        rows: list[Any] = []
        endpoint, before = wanted.get("endpoint"), wanted.get("before_unix")
        filters = (*codec.write_wanted(wanted), "" if before is None else before)
        behind = codec.write_cursor(after)
        for shard in self._session.shards:
            if endpoint is None:
                endpoints = await shard.run(step("handled_endpoints"))
            else:
                endpoints = [codec.encode(endpoint)]
            for name in endpoints:
                asked = (codec.decode(name), *filters)
                rows += await listed(shard, "handled_events", asked, behind, limit)
        found = sorted(rows, key=Cursor.of)[:limit]
        return [replace(codec.read_handled_event(row), place=str(Cursor.of(row))) for row in found]

    async def handled_event(self, key: DeliveryKey) -> HandledEvent | None:
        reply = await self._session.ask(key, "handled_event")
        return None if reply == b"N" else codec.read_handled_event(reply)

    async def handled_stats(self, endpoint: str) -> HandledStats:
        replies = await self._session.ask_all(step("handled_stats", endpoint))
        events, size = (sum(map(int, column)) for column in zip(*replies, strict=True))
        return HandledStats(events, size)

    async def begin_replay_batch(
        self, endpoint: str, handler: str, generation: int, plan: ReplayPlan
    ) -> ReplayBatch:
        session = self._session
        # The clocks of the shards differ, so begin the batch at the latest of their times: it then
        # includes every event that is already handled. After `cut_off`, no shard records an event
        # as handled before that time.
        started = max(map(float, await session.ask_all(step("time"))))
        await session.ask_all(step("cut_off", endpoint, handler, started))
        asked = step("begin_replay_batch", endpoint, handler, generation, plan.dump(), started)
        return codec.read_replay_batch(endpoint, handler, await session.shards[0].run(asked))

    async def end_replay_batch(self, batch: ReplayBatch) -> None:
        session, names = self._session, (batch.endpoint, batch.handler)
        await session.shards[0].run(step("end_replay_batch", *names, batch.generation))
        await session.ask_all(step("end_cut_off", *names, batch.started_unix))

    async def replay_batches(self, endpoint: str) -> list[ReplayBatch]:
        rows = await self._session.shards[0].run(step("replay_batches", endpoint))
        return [codec.read_replay_batch(endpoint, codec.decode(name), row) for name, row in rows]

    async def _prune_handled(self) -> int:
        """Delete deliveries that have expired, and return how many."""
        removed = 0
        for shard in self._session.shards:
            for endpoint in await shard.run(step("handled_endpoints")):
                while count := int(await shard.run(step("sweep_handled", endpoint))):
                    removed += count
        return removed
