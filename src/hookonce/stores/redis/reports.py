"""Listings, counts and reports of workers, for operators, health checks and other processes."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from typing import Any, Unpack

from ...clock import utc
from ..activity import MOST_LINES, MOST_REPORTS, WATCHED_SECONDS, Activity, ReportedWorker
from ..applications import MOST_REMEMBERED, REMEMBERED_SECONDS, Application
from ..values import (
    DeadLetter,
    DeliveryKey,
    Entry,
    Known,
    StoreStats,
    Wanted,
    WantedDeadLetters,
    delivery_key,
)
from . import codec
from .codec import Cursor, step
from .session import Session
from .shard import Shard

_MOST_LOOKED_UP = 500


class RedisReports(ABC):
    """The part of a Redis store that implements ``Reports`` and the listings."""

    @property
    @abstractmethod
    def _session(self) -> Session:
        """The session of the running event loop."""

    @abstractmethod
    async def _prune_handled(self) -> int:
        """Delete deliveries of handled events that have expired, and return how many."""

    async def warnings(self) -> tuple[str, ...]:
        return await self._session.warnings()

    async def server_times(self) -> list[datetime]:
        """Return the time by the clock of each server, as an aware UTC ``datetime``.

        Raises:
            StoreError: a server does not answer.
        """
        return [utc(time) for time in await self._session.server_times()]

    async def dead_letters(
        self, *, after: str | None = None, limit: int = 100, **wanted: Unpack[WantedDeadLetters]
    ) -> list[DeadLetter]:
        behind = codec.write_cursor(after)
        asked = (wanted.get("endpoint") or "", *codec.write_wanted(wanted, wanted.get("reason")))
        lists = await asyncio.gather(
            *(listed(shard, "dead_letters", asked, behind, limit) for shard in self._session.shards)
        )
        found = sorted(chain(*lists), key=Cursor.of)[:limit]
        return [replace(codec.read_dead_letter(row), place=str(Cursor.of(row))) for row in found]

    async def dead_letter(self, key: DeliveryKey) -> DeadLetter | None:
        reply = await self._session.ask(key, "dead_letter")
        return None if reply == b"N" else codec.read_dead_letter(reply)

    async def entries(
        self, *, after: str | None = None, limit: int = 100, **wanted: Unpack[Wanted]
    ) -> list[Entry]:
        rows: list[Any] = []
        behind, asked = codec.write_cursor(after), codec.write_wanted(wanted)
        endpoint = wanted.get("endpoint")
        for shard in self._session.shards:
            if endpoint is None:
                endpoints = await shard.run(step("endpoints"))
            else:
                endpoints = [codec.encode(endpoint)]
            for name in endpoints:
                rows += await listed(shard, "entries", (codec.decode(name), *asked), behind, limit)
        offset = self._session.shards[0].clock_offset
        found = sorted(rows, key=Cursor.of)[:limit]
        return [replace(codec.read_entry(row, offset), place=str(Cursor.of(row))) for row in found]

    async def entry(self, key: DeliveryKey) -> Entry | None:
        reply = await self._session.ask(key, "entry")
        offset = self._session.shard_of(key).clock_offset
        return None if reply == b"N" else codec.read_entry(reply, offset)

    async def known(self, endpoint: str, event_ids: Sequence[str]) -> dict[str, Known]:
        by_shard: dict[Shard, list[str]] = {}
        for event_id in dict.fromkeys(event_ids):
            shard = self._session.shard_of(delivery_key(endpoint, event_id))
            by_shard.setdefault(shard, []).append(event_id)
        found: dict[str, Known] = {}
        for shard, ids in by_shard.items():
            for start in range(0, len(ids), _MOST_LOOKED_UP):
                batch = ids[start : start + _MOST_LOOKED_UP]
                keys = (delivery_key(endpoint, event_id) for event_id in batch)
                words = zip(batch, await shard.run(step("known", *keys)), strict=True)
                found |= {event_id: Known(codec.decode(word)) for event_id, word in words if word}
        return found

    async def prune(self) -> int:
        """Remove expired records, and return how many.

        The server expires records by itself. So unless the store has its own clock, this counts
        only their entries in lists.
        """
        removed = await self._prune_handled()
        for shard in self._session.shards:
            cursor = b"0"
            while True:
                cursor, count = await shard.run(step("sweep", cursor))
                removed += int(count)
                if cursor == b"0":
                    break
        return removed

    async def stats(self, *, endpoint: str | None = None) -> StoreStats:
        replies = await self._session.ask_all(step("stats", endpoint or ""))
        numbers = [[codec.read_count(number) for number in reply[:5]] for reply in replies]
        in_flight, dead, kept, depth, size = (sum(column) for column in zip(*numbers, strict=True))
        received = [float(reply[5]) for reply in replies if reply[5]]
        workers = {worker for reply in replies for worker in reply[6]}
        age = max(0.0, self._session.shards[0].unix_time - min(received)) if received else None
        return StoreStats(in_flight, dead, depth, size, age, len(workers), kept)

    async def register(
        self, endpoint: str, application: Application | None
    ) -> tuple[Application, ...]:
        own = "" if application is None else application.dump()
        asked = step("register", endpoint, REMEMBERED_SECONDS, MOST_REMEMBERED, own)
        rows = await self._session.shards[0].run(asked)
        seen = zip(rows[::2], rows[1::2], strict=True)
        return tuple(Application.load(text, float(at)) for text, at in seen)

    async def publish(self, endpoint: str, lines: Sequence[bytes]) -> bool:
        asked = step("publish", endpoint, WATCHED_SECONDS, MOST_LINES, *lines)
        return bool(await self._session.shards[0].run(asked) == b"1")

    async def follow(self, endpoint: str, place: int | None) -> Activity:
        behind = "" if place is None else str(place)
        last, lines = await self._session.shards[0].run(
            step("follow", endpoint, WATCHED_SECONDS, behind)
        )
        return Activity(int(last), tuple(lines))

    async def report_worker(self, endpoint: str, worker: str, report: bytes | None) -> None:
        asked = step("report_worker", endpoint, worker, MOST_REPORTS, report or b"")
        await self._session.shards[0].run(asked)

    async def workers(self, *, endpoint: str | None = None) -> list[ReportedWorker]:
        rows = await self._session.shards[0].run(step("workers", endpoint or ""))
        found = []
        for member, age, report in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
            place, _, worker = codec.decode(member).partition(":")
            found.append(ReportedWorker(place, worker, float(age), report))
        return found


async def listed(
    shard: Shard, name: str, wanted: Sequence[str | float], behind: tuple[str, str], limit: int
) -> list[Any]:
    """Return up to ``limit`` rows of a shard's list after a position; several calls read them."""
    rows: list[Any] = []
    score, member = map(codec.encode, behind)
    while score != b"-" and len(rows) < limit:
        asked = step(name, *wanted, score, member, str(limit - len(rows)))
        score, member, found = await shard.run(asked)
        rows += found
    return rows
