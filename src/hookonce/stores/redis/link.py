"""Gets a batch of steps done on the server that holds its shard, whatever happens on the way.

A batch may run twice, if a reply is lost: every step recognises its own token or nonce, and then
answers as it did the first time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, cast

from redis.exceptions import (
    AuthenticationError,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)

from ...errors import StoreError
from .codec import SCRIPT, SCRIPT_SHA, Step, bulk, decode
from .connection import Command, Servers, connected, exchange, without_frames

__all__ = ["Durability", "Link", "Safety", "explained", "is_passing"]

Durability: TypeAlias = Literal["memory", "fsync"]

# If no reply has begun to come by then, it is worth asking for again over a new connection.
_TRY_SECONDS = 1.0
# With appendfsync everysec a server may answer up to a second after the write.
_DURABLE_TRY_SECONDS = 2.5
_PART_TO_WAIT = 0.8
# It is answered just before the script: what follows may be long, and take its time, but it comes.
_PRELUDE = b"*1\r\n$4\r\nPING\r\n"
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.25

# What a server says while a cluster or a replication group finds itself again.
_PASSING = (
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MOVED",
    "NOREPLICAS",
    "READONLY",
    "TRYAGAIN",
)
_EXPLANATIONS = {
    "MISCONF": "it cannot write its snapshot or append-only file, and takes no writes until it can",
    "NOPERM": "the user may not do this; it needs the keys of the prefix, and EVALSHA with what the"
    " script calls",
    "NOREPLICAS": "it has fewer replicas than its min-replicas-to-write",
    "OOM": "its memory is full (maxmemory)",
    "READONLY": "it is a replica, and takes no writes",
    "WRONGPASS": "user name or password are wrong, or missing: redis://user:password@host",
}


@dataclass(frozen=True, slots=True)
class Safety:
    """What must have happened to a write before it counts.

    Attributes:
        durability: "fsync" if it must be on the server's disk.
        replicas: how many replicas must have it; on their disks too with "fsync".

    """

    durability: Durability = "memory"
    replicas: int = 0

    @property
    def is_asked_for(self) -> bool:
        """Whether the server's answer to the write is not enough."""
        return self.durability == "fsync" or self.replicas > 0

    def command(self, seconds: float) -> tuple[bytes, ...]:
        """Return the command that waits for it, after a write on the same connection."""
        milliseconds = b"%d" % max(1, int(seconds * 1000))
        if self.durability == "fsync":
            return (b"WAITAOF", b"1", b"%d" % self.replicas, milliseconds)
        return (b"WAIT", b"%d" % self.replicas, milliseconds)

    def check(self, reply: Any) -> None:
        """Raise StoreError unless it was reached."""
        if isinstance(reply, Exception):
            raise StoreError(self._inability(reply)) from without_frames(reply)
        local, replicas = reply if self.durability == "fsync" else (1, reply)
        if int(local) < 1:
            raise StoreError("the Redis server has not written it to its disk in time")
        if int(replicas) < self.replicas:
            raise StoreError(
                f"{int(replicas)} of {self.replicas} Redis replicas have it so far; start more of"
                " them, or ask for fewer with replicas="
            )

    def _inability(self, error: Exception) -> str:
        text = str(error)
        if "appendonly" in text:
            return "durability='fsync' needs a server with an append-only file: appendonly yes"
        if "unknown command" in text:
            return (
                "durability='fsync' needs WAITAOF, which Redis has from 7.2 and Valkey from 7.2 on"
            )
        return f"the Redis server cannot wait until a write is safe: {explained(error)}"


class Link:
    """Sends the steps of one shard.

    Args:
        base: what the keys of the shard begin with.
        servers: who holds them.
        safety: what must have happened before a batch counts as done.
        clock: a time to go by instead of the server's own.
        retention: seconds a done event is remembered.
        channel: where workers hear that there is something to do.

    """

    def __init__(
        self,
        base: bytes,
        servers: Servers,
        *,
        safety: Safety,
        clock: Callable[[], float] | None,
        retention: float,
        channel: bytes,
    ) -> None:
        self._base = base
        self._servers = servers
        self._safety = safety
        self._clock = clock
        self._retention = repr(retention).encode()
        self._channel = channel

    async def send(self, steps: Sequence[Step], deadline: float) -> list[Any]:
        """Return the script's time and the answer to each step, or raise StoreError."""
        loop = asyncio.get_running_loop()
        try_seconds = _DURABLE_TRY_SECONDS if self._safety.is_asked_for else _TRY_SECONDS
        # The time stays the same when a call is repeated, as the rest of it does.
        now = b"" if self._clock is None else repr(self._clock()).encode()
        pause = 0.0
        while True:
            seconds = min(deadline - loop.time(), try_seconds)
            try:
                async with asyncio.timeout(seconds) as limit:
                    heard = partial(limit.reschedule, deadline)
                    return await self._try(steps, now, seconds, heard)
            except (RedisError, OSError, TimeoutError) as error:
                if not is_passing(error) or loop.time() + pause >= deadline:
                    text = f"the Redis store failed: {explained(error)}"
                    raise StoreError(text) from without_frames(error)
            self._servers.suspect()
            await asyncio.sleep(pause)
            pause = min(max(_FIRST_PAUSE_SECONDS, 2 * pause), _LONGEST_PAUSE_SECONDS)

    async def _try(
        self, steps: Sequence[Step], now: bytes, seconds: float, heard: Callable[[], None]
    ) -> list[Any]:
        safety = self._safety
        # The server is to say how far it has come before the time is up.
        wait = [safety.command(_PART_TO_WAIT * seconds)] if safety.is_asked_for else []
        pool = await self._servers.pool(self._base)
        # What is raised in this block closes the connection, so that the next try makes a new one.
        async with connected(pool) as connection:
            for script in ((b"EVALSHA", SCRIPT_SHA), (b"EVAL", SCRIPT)):
                commands: list[Command] = [_PRELUDE, self._call(script, now, steps), *wait]
                _, answer, *waited = await exchange(connection, commands, heard=heard)
                if not isinstance(answer, NoScriptError):
                    break
            if isinstance(answer, Exception):
                raise answer
            for reply in answer[1:]:
                if isinstance(reply, list) and reply and reply[0] == b"!":
                    error = ResponseError(decode(reply[1]))
                    if is_passing(error):
                        raise error
                    reply[1] = explained(error).encode()
        for reply in waited:
            safety.check(reply)
        return cast("list[Any]", answer)

    def _call(self, script: tuple[bytes, ...], now: bytes, steps: Sequence[Step]) -> bytes:
        is_safe = b"1" if self._safety.is_asked_for else b"0"
        head = (*script, b"1", self._base, now, self._retention, self._channel, is_safe)
        count = len(head) + sum(step.words for step in steps)
        requests = (step.request for step in steps)
        return b"".join([b"*%d\r\n" % count, *map(bulk, head), *requests])


def is_passing(error: Exception) -> bool:
    """Whether the same call may succeed in a moment."""
    if isinstance(error, AuthenticationError):
        return False
    if isinstance(error, ResponseError):
        return _code(error) in _PASSING
    return True


def _code(error: Exception) -> str:
    # redis-py makes classes of some codes, and takes these codes from the text.
    name = type(error).__name__.removesuffix("Error").upper()
    known = {*_PASSING, *_EXPLANATIONS}
    first = str(error).partition(" ")[0].lstrip("-")
    return first if first in known else _CLASSES.get(name, name)


_CLASSES = {
    "OUTOFMEMORY": "OOM",
    "NOPERMISSION": "NOPERM",
    "AUTHENTICATION": "WRONGPASS",
    "BUSYLOADING": "LOADING",
}


def explained(error: BaseException) -> str:
    """Return what went wrong and what to do, without anything that was sent."""
    if isinstance(error, TimeoutError) and not str(error):
        return "it did not answer in time; is it overloaded, or the network down?"
    code = _code(error) if isinstance(error, Exception) else ""
    if "unauthenticated" in str(error):  # said of a call that is too long for a stranger
        code = "WRONGPASS"
    if code in _EXPLANATIONS:
        return _EXPLANATIONS[code]
    if isinstance(error, RedisConnectionError):
        return f"no connection: {error}"
    return str(error) or type(error).__name__
