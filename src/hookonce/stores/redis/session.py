"""What belongs to one event loop of one process, and cannot be used from another."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

from .batches import Batches
from .codec import step
from .connection import connected, exchange
from .link import Link
from .url import Place
from .wake import Listener

__all__ = ["Session", "listed"]


class Session:
    """Connections, and the tasks that use them.

    Args:
        place: where the servers are.
        bases: what the keys of each shard begin with.
        channel: where workers hear that there is something to do.
        flushed: told of each batch: how many steps, and how many seconds.
        link: what the shards' links are made with besides.

    """

    def __init__(
        self,
        place: Place,
        bases: Sequence[bytes],
        channel: bytes,
        flushed: Callable[[int, float], None],
        **link: Any,
    ) -> None:
        self._owner = (asyncio.get_running_loop(), os.getpid())
        self.servers = place.connect()
        self.shards = [
            Batches(Link(base, self.servers, channel=channel, **link).send, flushed)
            for base in bases
        ]
        self.listener = Listener(self.servers, channel, self.is_due)

    @property
    def is_ours(self) -> bool:
        """Whether it was made by the event loop and in the process that ask."""
        return self._owner == (asyncio.get_running_loop(), os.getpid())

    async def is_due(self, endpoint: str) -> bool:
        """Return whether an endpoint may have something to take."""
        asked = (shard.run(step("due", endpoint)) for shard in self.shards)
        replies = await asyncio.gather(*asked, return_exceptions=True)
        return any(
            isinstance(reply, BaseException) or (reply.value and float(reply.value) <= 0)
            for reply in replies
        )

    async def server_times(self) -> list[float]:
        """Return the Unix time by the clock of each server."""
        times = []
        for pool in await self.servers.pools():
            async with connected(pool) as connection:
                [(seconds, microseconds)] = await exchange(connection, [(b"TIME",)])
                times.append(int(seconds) + int(microseconds) / 1_000_000)
        return times

    async def aclose(self) -> None:
        """Finish what is under way and close the connections."""
        for shard in self.shards:
            await shard.drain()
        await self.listener.aclose()
        await self.servers.aclose()


async def listed(shard: Batches, name: str, wanted: tuple[str, str, str], limit: int) -> list[Any]:
    """Return the first rows of a shard's list, a stretch at a time so that no call is long."""
    rows: list[Any] = []
    offset = b"0"
    while offset != b"-" and len(rows) < limit:
        reply = await shard.run(step(name, *wanted, offset, str(limit - len(rows))))
        offset, found = reply.value
        rows += found
    return rows
