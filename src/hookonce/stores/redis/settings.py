"""Settings of a Redis store, from a URL or a client and from arguments."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from ...clock import Clock, span_seconds, system_clock
from .safety import Durability, Safety
from .url import Place, place_of, place_of_client

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster


_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_MOST_SHARDS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings:
    """Checked settings of a Redis store.

    Attributes:
        identity: a value that two stores share if they remember the same events.
        prefix: the beginning of all keys.
        bases: the prefix of the keys of each shard.
        channel: the channel on which waiting workers are notified.
        retention: seconds a done event is remembered.
        clock: replaces the server's clock; None for the server's clock.
        formats: the formats of records that the store may write, oldest first.
    """

    place: Place
    identity: Hashable
    prefix: str
    bases: tuple[bytes, ...]
    channel: bytes
    safety: Safety
    retention: float
    clock: Clock | None
    formats: tuple[int, ...]


def settings_of(
    client_or_url: str | Redis | RedisCluster,
    prefix: str | None,
    shards: int | None,
    durability: Durability | None,
    replicas: int | None,
    *,
    retention: float | timedelta,
    clock: Clock,
    formats: tuple[int, ...],
) -> RedisSettings:
    """Return checked settings; None means the value in the URL, or the default.

    Raises:
        ValueError: a setting cannot be used, or is given twice.
    """
    try:
        server: Hashable
        if isinstance(client_or_url, str):
            place = place_of(client_or_url)
            # A digest, because the URL may hold a password.
            server = blake2b(client_or_url.encode()).digest()
        else:
            place = place_of_client(client_or_url)
            server = client_or_url
    finally:
        del client_or_url  # the URL may hold a password, and error trackers upload local variables
    prefix = _either("prefix", prefix, place.options, "hookonce")
    shards = _either("shards", shards, place.options, place.shards)
    durability = _either("durability", durability, place.options, "memory")
    replicas = _either("replicas", replicas, place.options, 0)
    if not isinstance(prefix, str) or _PREFIX.fullmatch(prefix) is None:
        raise ValueError(
            "prefix takes 1 to 64 letters, digits, underscores, full stops, colons and hyphens"
        )
    if type(shards) is not int or not 1 <= shards <= _MOST_SHARDS:
        raise ValueError(f"shards takes a number from 1 to {_MOST_SHARDS}")
    if durability not in {"memory", "fsync"}:
        raise ValueError("durability takes 'memory' or 'fsync'")
    if type(replicas) is not int or replicas < 0:
        raise ValueError("replicas takes a number from 0 on")
    return RedisSettings(
        place=place,
        identity=(server, prefix),
        prefix=prefix,
        bases=tuple(f"{{{prefix}:{shard}}}".encode() for shard in range(shards)),
        channel=f"{prefix}:wake".encode(),
        safety=Safety(durability, replicas),
        retention=span_seconds("retention", retention, positive=True),
        clock=None if clock is system_clock else clock,
        formats=formats,
    )


def _either(name: str, given: Any, options: dict[str, Any], usual: Any) -> Any:
    if given is not None and name in options:
        raise ValueError(f"{name} is given twice, in the URL and as an argument")
    return given if given is not None else options.get(name, usual)
