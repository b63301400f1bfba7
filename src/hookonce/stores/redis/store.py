"""The Redis store, for many machines: Redis or Valkey, alone, with sentinels or as a cluster.

The store uses the server's clock. All calls of one iteration of the event loop are sent as one
script call for each shard. How durable a write is depends on the server's configuration, and on the
arguments ``durability`` and ``replicas``.
"""

from __future__ import annotations

from collections.abc import Hashable
from datetime import timedelta
from math import ceil
from typing import TYPE_CHECKING

from ...clock import Clock, system_clock
from ...logs import get_logger
from ..formats import Upgrade, damaged
from ..protocols import DEFAULT_RETENTION, Flushes
from ..values import (
    AcquireResult,
    Batch,
    Claimed,
    ClaimResult,
    DeadReason,
    Delivery,
    DeliveryKey,
    EnqueueResult,
    KeyLock,
    Ownership,
    Stored,
    Token,
    Watermark,
    new_token,
)
from . import codec
from .codec import step
from .handled import RedisHandled
from .reconciling import RedisReconciling
from .reports import RedisReports
from .safety import Durability
from .session import Session
from .settings import settings_of

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster


_log = get_logger("hookonce.store")

# A larger fetch would block other clients of the server. A worker that can take more events fetches
# again.
_MOST_FETCHED = 256

_NONE: frozenset[str] = frozenset()


class RedisStore(RedisHandled, RedisReports, RedisReconciling):
    """Remembers events on a Redis or Valkey server, which many machines may share.

    While a shard cannot be reached, calls about its events fail with StoreError, and workers fetch
    from the other shards. The same happens in a cluster while the shard's slot is migrated.

    Args:
        client_or_url: a URL, or an asyncio client of redis-py. The store uses the client's
            settings, but opens its own connections.
        prefix: the prefix of all keys of the store.
        shards: the number of parts into which events are divided, so that the nodes of a cluster
            share the load; by default 1 for a server and 16 for a cluster. All processes must use
            the same number, and it must not change while the store remembers events.
        durability: "memory" if the server's answer is enough; "fsync" to wait, once for each batch,
            until the server has written its append-only file to disk.
        replicas: how many replicas must have a write before the store reports success.
        retention: how long a done event is remembered; at least the span of the receiver's sender.
        clock: returns Unix time in seconds. A clock other than the system's replaces the server's.

    Attributes:
        formats: the formats of records that this version can write, oldest first.
        retention_seconds: how long a done event is remembered.
        flushes: the functions to call after each batch.

    Raises:
        ValueError: the URL or another argument cannot be used.
    """

    keeps_bodies = True
    formats: tuple[int, ...] = codec.FORMATS

    def __init__(
        self,
        client_or_url: str | Redis | RedisCluster,
        *,
        prefix: str | None = None,
        shards: int | None = None,
        durability: Durability | None = None,
        replicas: int | None = None,
        retention: float | timedelta = DEFAULT_RETENTION,
        clock: Clock = system_clock,
    ) -> None:
        try:
            self._settings = settings_of(
                client_or_url,
                prefix,
                shards,
                durability,
                replicas,
                retention=retention,
                clock=clock,
                formats=self.formats,
            )
        finally:
            # The URL may hold a password, and error trackers upload local variables.
            del client_or_url
        self.retention_seconds: float = self._settings.retention
        self.flushes: Flushes = Flushes()
        self._running: Session | None = None
        self._logged: set[str] = set()

    async def open(self) -> None:
        """Connect to the servers and check their versions and configuration.

        A dangerous configuration is logged as a warning, once.

        Raises:
            StoreError: a server cannot be reached, or lacks something that the store needs.
        """
        for warning in await self.warnings():
            if warning not in self._logged:
                self._logged.add(warning)
                _log.warning("%s", warning)

    async def upgrade(self) -> Upgrade:
        """Raise the format of the records; see ``UpgradableStore.upgrade``."""
        # Use a new session, because no other step may share a call with the upgrade.
        session = Session(self._settings, self.flushes.notify)
        try:
            return await session.upgrade()
        finally:
            await session.aclose()

    async def aclose(self) -> None:
        """Finish the calls in flight and close the connections."""
        session, self._running = self._running, None
        if session is not None and session.is_ours:
            await session.aclose()

    async def claim(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult:
        shard = self._session.shard_of(key)
        reply = await shard.run(codec.claim_step(key, token, lease), may_be_dropped=True)
        if reply == b"C":
            return Claimed(key, token, 1, _NONE, lease)
        return codec.read_claim(reply, key, token, shard.clock_offset)

    async def replay(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult | None:
        shard = self._session.shard_of(key)
        reply = await shard.run(step("replay", key, token, lease), may_be_dropped=True)
        if reply == b"N":
            return None
        return codec.read_claim(reply, key, token, shard.clock_offset)

    async def extend(
        self, claim: Claimed, finished: frozenset[str] = _NONE, outstanding: frozenset[str] = _NONE
    ) -> Ownership:
        names = codec.write_names(finished), codec.write_names(outstanding)
        return await self._own(claim, "extend", claim.lease_seconds, *names)

    async def complete(self, claim: Claimed) -> None:
        await self._session.shard_of(claim.key).run(codec.completion_step(claim.key))

    async def release(
        self,
        claim: Claimed,
        finished: frozenset[str],
        error: str | None = None,
        *,
        outstanding: frozenset[str] = _NONE,
        began: bool = True,
    ) -> Ownership:
        return await self.retry(claim, 0.0, finished, error, outstanding=outstanding, began=began)

    async def retry(
        self,
        claim: Claimed,
        after: float,
        finished: frozenset[str] = _NONE,
        error: str | None = None,
        *,
        outstanding: frozenset[str] = _NONE,
        began: bool = True,
    ) -> Ownership:
        return await self._own(
            claim,
            "give_back",
            new_token(),
            codec.write_names(finished),
            *codec.error_arguments(error),
            max(0.0, after),
            codec.write_names(outstanding),
            "1" if began else "0",
        )

    async def keep(
        self,
        claim: Claimed,
        delivery: Delivery,
        *,
        dead_unix: float | None = None,
        renew: bool = False,
    ) -> Ownership:
        given = codec.write_delivery(delivery)
        at = "" if dead_unix is None else dead_unix
        return await self._own(claim, "keep", *given, at, "1" if renew else "0")

    async def keep_in_flight(
        self, delivery: Delivery, *, dead_unix: float | None = None, renew: bool = False
    ) -> None:
        given = codec.write_delivery(delivery)
        at = "" if dead_unix is None else dead_unix
        await self._session.ask(delivery.key, "keep_in_flight", *given, at, "1" if renew else "0")

    async def bury(
        self,
        claim: Claimed,
        reason: DeadReason,
        *,
        error: str = "",
        finished: frozenset[str] = _NONE,
        outstanding: frozenset[str] = _NONE,
        delivery: Delivery | None = None,
    ) -> Ownership:
        return await self._own(
            claim,
            "bury",
            new_token(),
            codec.write_names(finished),
            *codec.error_arguments(error),
            str(reason),
            codec.write_names(outstanding),
            *(() if delivery is None else codec.write_delivery(delivery)),
        )

    async def acquire_key_lock(
        self,
        key_lock: KeyLock,
        token: Token,
        lease: float,
        *,
        watermark: Watermark | None = None,
        drop_ties: bool = False,
        waiting: DeliveryKey | None = None,
    ) -> AcquireResult:
        shard, ties = self._session.shard_of(key_lock.name), "1" if drop_ties else "0"
        asked = step(
            "acquire_key_lock",
            key_lock.name,
            token,
            lease,
            *codec.write_watermark(watermark),
            ties,
            waiting or "",
        )
        reply = await shard.run(asked, may_be_dropped=True)
        return codec.read_acquired(reply, shard.clock_offset)

    async def release_key_lock(
        self,
        key_lock: KeyLock,
        token: Token,
        *,
        watermark: Watermark | None = None,
        event: DeliveryKey | None = None,
    ) -> DeliveryKey | None:
        called = await self._session.ask(
            key_lock.name,
            "release_key_lock",
            token,
            new_token(),
            *codec.write_watermark(watermark),
            event or "",
        )
        return DeliveryKey(codec.decode(called)) if called else None

    async def discard(self, key: DeliveryKey) -> bool:
        return bool(await self._session.ask(key, "discard", new_token()) == b"1")

    async def enqueue(
        self,
        delivery: Delivery,
        token: Token,
        *,
        max_depth: int | None = None,
        max_bytes: int | None = None,
        key_lock: KeyLock | None = None,  # noqa: ARG002 - optional: it only saves workers useless fetches
    ) -> EnqueueResult:
        """Store a delivery; see ``InboxStore.enqueue``.

        Each shard gets an equal part of the limits, rounded up. An empty shard accepts any body up
        to ``max_bytes``.
        """
        shards = len(self._settings.bases)
        depth = "" if max_depth is None else str(ceil(max_depth / shards))
        size = ""
        if max_bytes is not None:
            size = str(max(ceil(max_bytes / shards), min(max_bytes, len(delivery.body))))
        given = codec.write_delivery(delivery)
        session = self._session
        reply = await session.shard_of(delivery.key).run(
            step("enqueue", *given, token, depth, size, delivery.key), may_be_dropped=True
        )
        if reply == b"U":
            raise damaged()
        result = codec.ENQUEUE_RESULTS[reply]
        if isinstance(result, Stored):
            session.listener.signal(delivery.endpoint)
        return result

    async def fetch(
        self, limit: int, lease: float, *, endpoint: str, worker: str, token: Token
    ) -> Batch:
        """Claim events that are due; see ``InboxStore.fetch``.

        Raises:
            StoreError: no shard answers; if only some do not answer, they are skipped.
        """
        session = self._session
        session.listener.looks(endpoint)
        return await session.fetching.fetch(
            min(limit, _MOST_FETCHED), lease, endpoint=endpoint, worker=worker, token=token
        )

    async def wait(self, endpoint: str, seconds: float) -> None:
        await self._session.listener.wait(endpoint, seconds)

    async def retire(self, worker: str) -> None:
        session = self._session
        await session.ask_all(step("retire", worker, session.fetching.end(worker)))

    async def make_due(self, key: DeliveryKey) -> bool:
        return bool(await self._session.ask(key, "make_due") == b"1")

    def __str__(self) -> str:
        """Return the URL of the servers without user and password, and the prefix of the keys."""
        return f"{self._settings.place.name} (prefix {self._settings.prefix})"

    @property
    def place(self) -> Hashable:
        """The identity of the store: its URL and prefix."""
        return self._settings.identity

    @property
    def _session(self) -> Session:
        if self._running is None or not self._running.is_ours:
            # A session of another event loop or of the parent process cannot be closed here.
            self._running = Session(self._settings, self.flushes.notify)
        return self._running

    async def _own(self, claim: Claimed, name: str, *arguments: str | bytes | float) -> Ownership:
        """Run a step that only the owner of the claim may take."""
        return codec.read_ownership(
            await self._session.ask(claim.key, name, claim.token, *arguments)
        )
