"""The ignored event types and the accepted gaps that ``reconcile`` reads from the servers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any

from ..reconciling import JOIN_SECONDS, MOST_SPANS, Span
from ..values import delivery_key
from . import codec
from .codec import step
from .session import Session

# One script call handles no more events or spans than this, because it blocks the server.
_MOST_AT_ONCE = 500


class RedisReconciling(ABC):
    """The part of a Redis store that implements ``ReconcilingStore``."""

    @property
    @abstractmethod
    def _session(self) -> Session:
        """The session of the running event loop."""

    async def note_ignored(self, endpoint: str, spans: Mapping[str, Sequence[Span]]) -> None:
        rows = [(event_type, span) for event_type, ignored in spans.items() for span in ignored]
        for start in range(0, len(rows), _MOST_AT_ONCE):
            words: list[str | float] = []
            for event_type, span in rows[start : start + _MOST_AT_ONCE]:
                words += event_type, *span
            asked = step("note_ignored", endpoint, JOIN_SECONDS, MOST_SPANS, *words)
            await self._session.shards[0].run(asked)

    async def ignored(
        self, endpoint: str, event_types: Collection[str]
    ) -> dict[str, tuple[Span, ...]]:
        rows = await self._session.shards[0].run(step("ignored", endpoint))
        found: dict[str, list[Span]] = {}
        for member, last in zip(rows[::2], rows[1::2], strict=True):
            first, _, event_type = codec.decode(member).partition(":")
            if event_type in event_types:
                found.setdefault(event_type, []).append(Span(int(first), int(float(last))))
        return {event_type: tuple(spans) for event_type, spans in found.items()}

    async def accept(self, endpoint: str, event_ids: Sequence[str]) -> None:
        async for _ in self._run_for_each("accept", endpoint, event_ids):
            pass

    async def accepted(self, endpoint: str, event_ids: Sequence[str]) -> frozenset[str]:
        found: set[str] = set()
        async for batch, replies in self._run_for_each("accepted", endpoint, event_ids):
            found.update(event_id for event_id, reply in zip(batch, replies, strict=True) if reply)
        return frozenset(found)

    async def _run_for_each(
        self, name: str, endpoint: str, event_ids: Sequence[str]
    ) -> AsyncIterator[tuple[Sequence[str], Any]]:
        """Run a step for all events in batches; yield each batch with its replies."""
        by_shard: dict[Any, list[str]] = {}
        for event_id in dict.fromkeys(event_ids):
            shard = self._session.shard_of(delivery_key(endpoint, event_id))
            by_shard.setdefault(shard, []).append(event_id)
        for shard, ids in by_shard.items():
            for start in range(0, len(ids), _MOST_AT_ONCE):
                batch = ids[start : start + _MOST_AT_ONCE]
                keys = (delivery_key(endpoint, event_id) for event_id in batch)
                yield batch, await shard.run(step(name, *keys))
