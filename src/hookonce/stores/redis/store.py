"""The Redis store, for many machines: Redis or Valkey, alone, with sentinels or as a cluster.

Time is the server's. Whatever is asked in one turn of the event loop goes out as one script call.
How safe a write is, is the server's configuration and ``durability`` and ``replicas`` here.
"""

from __future__ import annotations

from collections.abc import Hashable
from datetime import timedelta
from math import ceil
from typing import TYPE_CHECKING

from ...clock import Clock, system_clock
from ...logs import get_logger
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
from .reconciling import RedisReconciling
from .reports import RedisReports
from .safety import Durability
from .session import Session
from .settings import settings_of

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster


_log = get_logger("hookonce.store")

# More at once would keep the server from everybody else; a worker that can do more asks again.
_MOST_TAKEN = 256

_NONE: frozenset[str] = frozenset()


class RedisStore(RedisReports, RedisReconciling):
    """Remembers events on a Redis or Valkey server, which many machines may share.

    While a shard cannot be reached, calls about its events fail with StoreError, and workers take
    from the others. In a cluster that is so too while the shard's slot is being migrated.

    Args:
        client_or_url: a URL, or a client of redis-py's asyncio whose settings are used; the store
            makes connections of its own.
        prefix: what its keys begin with.
        shards: into how many parts events are divided, which the nodes of a cluster share; 1 for a
            server and 16 for a cluster unless given. It must be the same everywhere, and must not
            be changed while events are remembered.
        durability: "memory" if the server's answer is enough; "fsync" to wait until it has written
            to its append-only file, once for each batch.
        replicas: how many replicas must have a write before it counts.
        retention: how long a done event is remembered; at least 26 hours.
        clock: Unix time in seconds; other than the system's, it is used in place of the server's.

    Attributes:
        retention_seconds: how long a done event is remembered.
        flushes: who is told of each batch.

    Raises:
        ValueError: a URL, or another argument, that cannot be used.
    """

    keeps_bodies = True

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
            )
        finally:
            del client_or_url  # error trackers send the locals of every frame away
        self.retention_seconds = self._settings.retention
        self.flushes = Flushes()
        self._running: Session | None = None
        self._logged: set[str] = set()

    async def open(self) -> None:
        """Connect and check what the servers can do, or raise StoreError.

        What is dangerous about their configuration is logged, once.
        """
        for warning in await self.warnings():
            if warning not in self._logged:
                self._logged.add(warning)
                _log.warning("%s", warning)

    async def aclose(self) -> None:
        """Finish what is under way and close the connections."""
        session, self._running = self._running, None
        if session is not None and session.is_ours:
            await session.aclose()

    async def claim(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult:
        """Claim an event; see ``Store.claim``."""
        shard = self._session.shard_of(key)
        reply = await shard.run(codec.claim_step(key, token, lease), may_be_dropped=True)
        if reply == b"C":
            return Claimed(key, token, 1, _NONE, lease)
        return codec.read_claim(reply, key, token, shard.clock_offset)

    async def replay(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult | None:
        """Claim a dead letter; see ``Store.replay``."""
        shard = self._session.shard_of(key)
        reply = await shard.run(step("replay", key, token, lease), may_be_dropped=True)
        if reply == b"N":
            return None
        return codec.read_claim(reply, key, token, shard.clock_offset)

    async def extend(
        self, claim: Claimed, finished: frozenset[str] = _NONE, outstanding: frozenset[str] = _NONE
    ) -> Ownership:
        """Start the lease anew; see ``Store.extend``."""
        names = codec.write_names(finished), codec.write_names(outstanding)
        return await self._own(claim, "extend", claim.lease, *names)

    async def complete(self, claim: Claimed) -> None:
        """Record that the event is handled; see ``Store.complete``."""
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
        """Give the event back; see ``Store.release``."""
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
        """Give an event back to the inbox for later; see ``InboxStore.retry``."""
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
        self, claim: Claimed, delivery: Delivery, *, dead_unix: float | None = None
    ) -> Ownership:
        """Keep the delivery beside its claim; see ``Store.keep``."""
        given = codec.write_delivery(delivery)
        return await self._own(claim, "keep", *given, "" if dead_unix is None else dead_unix)

    async def keep_in_flight(self, delivery: Delivery, *, dead_unix: float | None = None) -> None:
        """Keep a delivery beside somebody else's claim; see ``Store.keep_in_flight``."""
        given = codec.write_delivery(delivery)
        at = "" if dead_unix is None else dead_unix
        await self._session.ask(delivery.key, "keep_in_flight", *given, at)

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
        """Make the event a dead letter; see ``Store.bury``."""
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
        """Acquire a key lock; see ``KeyLocks.acquire_key_lock``."""
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
        """Release a key lock; see ``KeyLocks.release_key_lock``."""
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
        """Forget a dead letter and remember the event as done; see ``Store.discard``."""
        return bool(await self._session.ask(key, "discard", new_token()) == b"1")

    async def enqueue(
        self,
        delivery: Delivery,
        token: Token,
        *,
        max_depth: int | None = None,
        max_bytes: int | None = None,
    ) -> EnqueueResult:
        """Store a delivery; see ``InboxStore.enqueue``.

        With several shards each has its part of the limits, rounded up; but one that holds nothing
        of the endpoint takes any body that is no larger than ``max_bytes``.
        """
        shards = len(self._settings.bases)
        depth = "" if max_depth is None else str(ceil(max_depth / shards))
        size = ""
        if max_bytes is not None:
            size = str(max(ceil(max_bytes / shards), min(max_bytes, len(delivery.body))))
        given = codec.write_delivery(delivery)
        reply = await self._session.shard_of(delivery.key).run(
            step("enqueue", *given, token, depth, size, delivery.key), may_be_dropped=True
        )
        result = codec.ENQUEUE_RESULTS[reply]
        if isinstance(result, Stored):
            self._session.listener.signal(delivery.endpoint)
        return result

    async def fetch(
        self, limit: int, lease: float, *, endpoint: str, worker: str, token: Token
    ) -> Batch:
        """Claim events that are due; see ``InboxStore.fetch``.

        Shards that do not answer are left out, unless none does.
        """
        session = self._session
        session.listener.looks(endpoint)
        return await session.fetching.fetch(
            min(limit, _MOST_TAKEN), lease, endpoint=endpoint, worker=worker, token=token
        )

    async def wait(self, endpoint: str, seconds: float) -> None:
        """Return when there may be something new to take; see ``InboxStore.wait``."""
        await self._session.listener.wait(endpoint, seconds)

    async def retire(self, worker: str) -> None:
        """Forget a worker that ends."""
        session = self._session
        await session.ask_all(step("retire", worker, session.fetching.end(worker)))

    async def make_due(self, key: DeliveryKey) -> bool:
        """Make a waiting event due now; see ``InboxStore.make_due``."""
        return bool(await self._session.ask(key, "make_due") == b"1")

    def __str__(self) -> str:
        """Return the URL of the servers without user and password, and the prefix of the keys."""
        return f"{self._settings.place.name} (prefix {self._settings.prefix})"

    @property
    def place(self) -> Hashable:
        """What is equal for two stores of one URL and prefix; see ``RegisteringStore.place``."""
        return self._settings.identity

    @property
    def _session(self) -> Session:
        if self._running is None or not self._running.is_ours:
            # What belongs to another loop, or to the parent process, cannot even be closed here.
            self._running = Session(self._settings, self.flushes.notify)
        return self._running

    async def _own(self, claim: Claimed, name: str, *arguments: str | bytes | float) -> Ownership:
        """Run a step that only the owner of the claim may take."""
        return codec.read_ownership(
            await self._session.ask(claim.key, name, claim.token, *arguments)
        )
