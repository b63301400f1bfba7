"""Checks of the servers' versions and configuration when the store opens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.asyncio.connection import AbstractConnection, ConnectionPool

from ...errors import StoreError
from ...logs import get_logger
from .codec import SCRIPT, decode
from .connection import connected, exchange
from .faults import explained
from .safety import Safety

_log = get_logger("hookonce.store")

_OLDEST_VERSION = (7, 0)
_SETTINGS = (b"maxmemory-policy", b"maxmemory", b"save", b"appendonly", b"appendfsync")


async def inspect(pools: Sequence[ConnectionPool], safety: Safety) -> tuple[str, ...]:
    """Load the script on every server and return warnings about the configuration.

    Raises:
        StoreError: a server lacks something that the store needs.
    """
    warnings: list[str | None] = []
    for pool in pools:
        async with connected(pool) as connection:
            warnings += await _inspect(connection, safety)
    return tuple(dict.fromkeys(warning for warning in warnings if warning))


async def _inspect(connection: AbstractConnection, safety: Safety) -> list[str | None]:
    info, loaded, shown = await exchange(
        connection,
        [(b"INFO",), (b"SCRIPT", b"LOAD", SCRIPT), (b"CONFIG", b"GET", *_SETTINGS)],
    )
    if isinstance(loaded, Exception):
        raise StoreError(f"the Redis store cannot load its script: {explained(loaded)}")
    facts = _facts(info)
    _check_version(facts)
    if facts.get("role") == "slave":
        raise StoreError(
            "the Redis server is a replica, which accepts no writes; use the address of the master,"
            " or redis+sentinel:// with the addresses of the sentinels"
        )
    if safety.durability == "fsync":
        # Test whether the server can wait for fsync. This connection has no writes to wait for, so
        # a working server answers at once.
        [reply] = await exchange(connection, [(b"WAITAOF", b"1", b"0", b"1000")])
        if isinstance(reply, Exception):
            safety.check(reply)
    if isinstance(shown, Exception):
        _log.debug("the Redis server does not show its configuration, so it is not checked")
        shown = []
    texts = [decode(text) for text in shown]
    settings = dict(zip(texts[::2], texts[1::2], strict=True))
    policy = settings.get("maxmemory-policy", facts.get("maxmemory_policy"))
    return [
        _eviction(policy, settings.get("maxmemory")),
        _persistence(settings.get("save"), settings.get("appendonly")),
        _syncing(settings.get("appendfsync"), safety),
        _replicas(facts, safety),
    ]


def _facts(info: Any) -> dict[str, str]:
    if isinstance(info, Exception):
        return {}
    pairs = (line.partition(":") for line in decode(info).splitlines() if ":" in line)
    return {name: value.strip() for name, _, value in pairs}


def _check_version(facts: dict[str, str]) -> None:
    text = facts.get("redis_version", "")
    numbers = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    if len(numbers) == 2 and numbers < _OLDEST_VERSION:
        raise StoreError(f"the store needs Redis 7.0 or Valkey, but the server is Redis {text}")


def _eviction(policy: str | None, memory: str | None) -> str | None:
    if policy in {None, "noeviction"}:
        return None
    moment = (
        "as soon as a maxmemory is set"
        if memory == "0"
        else f"when its memory is full (maxmemory {memory})"
        if memory
        else "when its memory is full"
    )
    return (
        f"the Redis server has the maxmemory-policy {policy}: {moment} it deletes records, so"
        " that events are lost or handled twice; set it to noeviction"
    )


def _persistence(save: str | None, append: str | None) -> str | None:
    if save != "" or append != "no":
        return None
    return (
        "the Redis server keeps nothing on disk (save '' and appendonly no): after a restart,"
        " accepted events are lost and done events are handled again; set appendonly yes"
    )


def _syncing(sync: str | None, safety: Safety) -> str | None:
    if safety.durability != "fsync" or sync in {None, "always"}:
        return None
    return (
        f"the Redis server has appendfsync {sync}: some versions, such as Valkey 9.1, then"
        " confirm a write before it is on the disk, and a power cut loses the last second; set"
        " appendfsync always"
    )


def _replicas(facts: dict[str, str], safety: Safety) -> str | None:
    connected = facts.get("connected_slaves", "")
    if not connected.isdigit() or int(connected) >= safety.replicas:
        return None
    return (
        f"the Redis server has {connected} replicas, fewer than replicas={safety.replicas}: no"
        " event is accepted until enough replicas are connected"
    )
