"""The connections and tasks of one event loop in one process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any
from zlib import crc32

from redis.exceptions import RedisError

from ...errors import StoreError
from ..formats import FormatError, Upgrade, in_use, outdated, set_aside
from .checks import inspect
from .codec import EncodedStep, encode, step
from .connection import Servers, connected, exchange, without_frames
from .faults import explained, is_passing
from .fetching import Fetching
from .settings import RedisSettings
from .shard import CALL_SECONDS, Shard
from .wake import Listener

_PAUSE_SECONDS = 0.1

# Count the forks, because a forked process must not use the connections of its parent.
_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - the count belongs to the process, not to a store
    _forks += 1


if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(after_in_child=_count_fork)


class Session:
    """The connections of a store to its servers, and the tasks that use them.

    Args:
        flushed: called for each batch with the number of steps and the seconds it took.
    """

    def __init__(self, settings: RedisSettings, flushed: Callable[[int, float], None]) -> None:
        self._loop, self._forks = asyncio.get_running_loop(), _forks
        self._safety = settings.safety
        self.servers: Servers = settings.place.connect()
        self._formats = settings.formats
        self.shards: list[Shard] = [
            Shard(base, self.servers, flushed, settings, self._agree if number else None)
            for number, base in enumerate(settings.bases)
        ]
        self.fetching: Fetching = Fetching(self.shards)
        self.listener: Listener = Listener(self.servers, settings.channel, self.is_due)

    @property
    def is_ours(self) -> bool:
        """Whether the running event loop of this process has created the session."""
        return self._loop is asyncio.get_running_loop() and self._forks == _forks

    def shard_of(self, key: str) -> Shard:
        """Return the shard of an event's key, or of a key lock's name."""
        shards = self.shards
        return shards[0 if len(shards) == 1 else crc32(encode(key)) % len(shards)]

    def ask(self, key: str, name: str, *arguments: str | bytes | float) -> asyncio.Future[Any]:
        """Send a step about an event or a key lock, and return a future of its reply."""
        return self.shard_of(key).run(step(name, key, *arguments))

    async def ask_all(self, asked: EncodedStep) -> list[Any]:
        """Return the reply of each shard to a step."""
        return await asyncio.gather(*(shard.run(asked) for shard in self.shards))

    async def _agree(self) -> None:
        """Let the first shard check this process's number of shards before any other shard is used.

        A process with another number would look for an event in another shard. Every process has
        the same first shard.
        """
        await self.shards[0].run(step("agree"))

    async def is_due(self, endpoint: str) -> bool:
        """Return whether an endpoint may have an event to fetch."""
        asked = (shard.run(step("due", endpoint)) for shard in self.shards)
        replies = await asyncio.gather(*asked, return_exceptions=True)
        return any(
            isinstance(reply, BaseException) or (reply and float(reply) <= 0) for reply in replies
        )

    async def warnings(self) -> tuple[str, ...]:
        """Return warnings about the servers' configuration and the format of the records.

        Raises:
            StoreError: a server cannot be reached, or lacks something that the store needs, or the
                format is unknown.
        """
        warnings = await self._inspected()
        asked = (shard.run(step("agree")) for shard in self.shards)
        damaged = 0
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, FormatError):
                raise answer
            damaged += 0 if isinstance(answer, BaseException) else int(answer)
        return (*warnings, *outdated(self._format, self._formats), *set_aside(damaged))

    async def upgrade(self) -> Upgrade:
        """Raise the format; see ``UpgradableStore.upgrade``."""
        await self.ask_all(step("agree"))
        before, newest = self._format, self._formats[-1]
        for shard in self.shards:
            if shard.format < newest and (used := await shard.run(step("upgrade", str(newest)))):
                raise in_use(float(used))
        return Upgrade(before, newest)

    @property
    def _format(self) -> int:
        """The oldest format among the shards, as far as this session knows."""
        return min(shard.format for shard in self.shards)

    async def _inspected(self) -> tuple[str, ...]:
        deadline = self._loop.time() + CALL_SECONDS
        reason = ""
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await inspect(await self.servers.pools(), self._safety)
            except (RedisError, OSError, TimeoutError) as error:
                # A TimeoutError without a text explains nothing: report the error of an earlier
                # try.
                if not reason or not isinstance(error, TimeoutError) or str(error):
                    reason = explained(error)
                # Try again after a passing error: the server may be starting or failing over.
                if not is_passing(error) or self._loop.time() + _PAUSE_SECONDS >= deadline:
                    text = f"the Redis store cannot be opened: {reason}"
                    raise StoreError(text) from without_frames(error)
            self.servers.suspect()
            await asyncio.sleep(_PAUSE_SECONDS)

    async def server_times(self) -> list[float]:
        """Return the Unix time by the clock of each server; raises StoreError."""
        times = []
        try:
            async with asyncio.timeout(CALL_SECONDS):
                for pool in await self.servers.pools():
                    async with connected(pool) as connection:
                        [(seconds, microseconds)] = await exchange(connection, [(b"TIME",)])
                        times.append(int(seconds) + int(microseconds) / 1_000_000)
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreError(
                f"the Redis server's clock cannot be read: {explained(error)}"
            ) from without_frames(error)
        return times

    async def aclose(self) -> None:
        """Finish the calls in flight and close the connections."""
        # Close the first shard last, because the other shards may still send `agree` to it.
        for shard in reversed(self.shards):
            await shard.aclose()
        await self.listener.aclose()
        await self.servers.aclose()
