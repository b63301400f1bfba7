"""What belongs to one event loop of one process, and cannot be used from another."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

from .codec import encode, step
from .connection import connected, exchange
from .shard import Shard
from .url import Place
from .wake import Listener

__all__ = ["Session", "listed"]

# A connection cannot be used in two processes.
_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - it is what the process is, not what a store has
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class Session:
    """Connections, and the tasks that use them.

    Args:
        place: where the servers are.
        bases: what the keys of each shard begin with.
        channel: where workers hear that there is something to do.
        flushed: told of each batch: how many steps, and how many seconds.
        options: what the shards are made with besides.

    """

    def __init__(
        self,
        place: Place,
        bases: Sequence[bytes],
        channel: bytes,
        flushed: Callable[[int, float], None],
        **options: Any,
    ) -> None:
        self._loop, self._forks = asyncio.get_running_loop(), _forks
        self.servers = place.connect()
        self.shards = [
            Shard(base, self.servers, flushed, channel=channel, **options) for base in bases
        ]
        self.listener = Listener(self.servers, channel, self.is_due)

    @property
    def is_ours(self) -> bool:
        """Whether it was made by the event loop and in the process that ask."""
        return self._loop is asyncio.get_running_loop() and self._forks == _forks

    async def is_due(self, endpoint: str) -> bool:
        """Return whether an endpoint may have something to take."""
        asked = (shard.run(step("due", endpoint)) for shard in self.shards)
        replies = await asyncio.gather(*asked, return_exceptions=True)
        return any(
            isinstance(reply, BaseException) or (reply and float(reply) <= 0) for reply in replies
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
            await shard.aclose()
        await self.listener.aclose()
        await self.servers.aclose()


async def listed(
    shard: Shard, name: str, wanted: Sequence[str | float], after: tuple[str, str], limit: int
) -> list[Any]:
    """Return the first rows of a shard's list behind a place, a stretch at a time."""
    rows: list[Any] = []
    score, member = map(encode, after)
    while score != b"-" and len(rows) < limit:
        asked = step(name, *wanted, score, member, str(limit - len(rows)))
        score, member, found = await shard.run(asked)
        rows += found
    return rows
