"""The PostgreSQL store, for the processes of many machines.

The store uses the server's clock. All calls of one iteration of the event loop are one transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Hashable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from psycopg import AsyncConnection

from ...clock import Clock, system_clock
from ...errors import StoreError
from ...logs import get_logger
from .. import life
from ..finishes import Finish
from ..formats import Upgrade, outdated, set_aside
from ..protocols import DEFAULT_RETENTION, Flushes
from ..record_store import EventStep, KeyLockStep, StepStore
from ..values import (
    Batch,
    Claimed,
    ClaimResult,
    Delivery,
    DeliveryKey,
    EnqueueResult,
    KeyLock,
    Ownership,
    Stored,
    Token,
)
from . import checks
from .batch import ClaimJob, CompleteJob, EnqueueJob, StepJob
from .finishes import finish_of
from .handled_events import PostgresHandled
from .key_locks import KeyLocksTable, digest_of_lock
from .reconciling import PostgresReconciling
from .reports import PostgresReports
from .rooms import InboxLimits
from .schema import FORMATS
from .session import Session
from .settings import Durability, settings_of
from .upkeep import Upkeep

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool

_log = get_logger("hookonce.store")

T = TypeVar("T")

_NONE: frozenset[str] = frozenset()
# How often an idle worker looks for events that other processes have stored.
_LOOK_SECONDS = 0.05
# How often a listening worker also looks for events, because notifications may be lost.
_LISTENING_LOOK_SECONDS = 2.0


class PostgresStore(StepStore, PostgresReports, PostgresReconciling, PostgresHandled):
    """Remembers events in a schema of a PostgreSQL database.

    Args:
        pool_or_url: a URL, or a pool of psycopg that is open in the running event loop.
        schema: the name of the schema, by default "hookonce"; it is created if it does not exist.
        durability: "fsync" if a write must be on the server's disk, which is the default;
            "remote_apply" if it must also be visible on the synchronous standbys.
        listen: whether an idle worker listens to NOTIFY on a connection of its own, instead of
            looking for new events 20 times a second; every process of the application must use the
            same value. This does not work through PgBouncer in transaction mode.
        retention: how long a done event is remembered; at least the span of the receiver's sender.
        clock: returns Unix time in seconds. A clock other than the system's replaces the server's.

    Attributes:
        formats: the formats of tables that this version can write, oldest first.
        retention_seconds: how long a done event is remembered.
        flushes: the functions to call after each batch.

    Raises:
        ValueError: an argument cannot be used.
    """

    keeps_bodies = True
    formats: tuple[int, ...] = FORMATS

    def __init__(
        self,
        pool_or_url: str | AsyncConnectionPool[Any],
        *,
        schema: str | None = None,
        durability: Durability | None = None,
        listen: bool | None = None,
        retention: float | timedelta = DEFAULT_RETENTION,
        clock: Clock = system_clock,
    ) -> None:
        try:
            self._settings = settings_of(
                pool_or_url, schema, durability, listen, retention=retention, clock=clock
            )
        finally:
            # The URL may hold a password, and error trackers upload local variables.
            del pool_or_url
        self._schema = self._settings.schema
        self.retention_seconds: float = self._settings.retention
        self.flushes: Flushes = Flushes()
        self._running: Session | None = None
        self._upkeep: Upkeep | None = None
        self._key_locks = KeyLocksTable(self._schema, self.retention_seconds)
        self._stored: dict[str, asyncio.Event] = {}
        self._counted = {}
        self._logged: set[str] = set()

    async def open(self) -> None:
        """Connect, create the tables if there are none, and log warnings; raises StoreError."""
        for warning in await self.warnings():
            if warning not in self._logged:
                self._logged.add(warning)
                _log.warning("%s", warning)

    async def warnings(self) -> tuple[str, ...]:
        """Warn of an older format, records that were set aside, and the server's settings."""
        session = self._session
        [[(count,)], [asked]] = await session.ask(
            self._count_damaged(), (checks.SETTINGS.format(schema=self._schema).encode(), ())
        )
        return (
            *outdated(session.format.number, self.formats),
            *set_aside(count),
            *checks.problems(asked, self._settings),
        )

    async def upgrade(self) -> Upgrade:
        """Migrate the tables to the newest format; see ``UpgradableStore.upgrade``."""
        session = self._session

        async def upgrade(connection: AsyncConnection[Any]) -> Upgrade:
            return await session.format.upgrade(connection, session.now())

        return await session.call(upgrade, is_prepared=False)

    async def aclose(self) -> None:
        """Finish the calls in flight and close the connections."""
        session, self._running = self._running, None
        upkeep, self._upkeep = self._upkeep, None
        if session is not None and session.is_ours:
            if upkeep is not None:
                await upkeep.aclose()
            await session.aclose()

    async def claim(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult:
        return await self._session.batches.run(ClaimJob(key, token, lease, may_be_dropped=True))

    async def replay(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult | None:
        return await self._session.batches.run(
            StepJob(
                key,
                lambda record, moment: life.replay(record, moment, key, token, lease),
                may_be_dropped=True,
            )
        )

    async def complete(self, claim: Claimed) -> None:
        await self._session.batches.run(CompleteJob(claim.key))

    def finish(self, claim: Claimed, handler: str, others: frozenset[str]) -> Finish:
        return finish_of(self._schema, claim, handler, others)

    async def extend(
        self, claim: Claimed, finished: frozenset[str] = _NONE, outstanding: frozenset[str] = _NONE
    ) -> Ownership:
        return await self._session.batches.run(
            StepJob(
                claim.key,
                lambda record, moment: life.extend(record, moment, claim, finished, outstanding),
                is_heartbeat=True,
            )
        )

    async def enqueue(
        self,
        delivery: Delivery,
        token: Token,
        *,
        max_depth: int | None = None,
        max_bytes: int | None = None,
        key_lock: KeyLock | None = None,
    ) -> EnqueueResult:
        limits = InboxLimits(max_depth, max_bytes)
        digest = None if key_lock is None else digest_of_lock(key_lock)
        session = self._session
        result = await session.batches.run(
            EnqueueJob(delivery.key, delivery, token, limits, digest, may_be_dropped=True)
        )
        if isinstance(result, Stored):
            session.signal(delivery.endpoint)
        return result

    def _hear(self, endpoint: str) -> None:
        """Wake the worker of this process that waits for an event of an endpoint."""
        if waiting := self._stored.get(endpoint):
            waiting.set()

    async def fetch(
        self, limit: int, lease: float, *, endpoint: str, worker: str, token: Token
    ) -> Batch:
        self._stored.setdefault(endpoint, asyncio.Event()).clear()
        session = self._session

        async def fetch(connection: AsyncConnection[Any]) -> Batch:
            return await session.inbox.fetch(
                connection,
                session.format.guard,
                session.now(),
                limit,
                lease,
                endpoint=endpoint,
                worker=worker,
                token=token,
            )

        batch = await session.call_of_worker(worker, fetch)
        session.look_back(endpoint)
        return batch

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
        return await self.change_event(
            claim.key,
            lambda record, moment: life.release(
                record,
                moment,
                claim,
                finished,
                error,
                outstanding=outstanding,
                began=began,
                after=after,
            ),
        )

    async def wait(self, endpoint: str, seconds: float) -> None:
        """Wait until there may be an event to fetch; see ``Queue.wait``."""
        stored = self._stored.setdefault(endpoint, asyncio.Event())
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        session = self._session
        if self._settings.listen:
            session.wakeups.listen()
        while (remaining := end - loop.time()) > 0:
            look = _LISTENING_LOOK_SECONDS if session.wakeups.is_listening else _LOOK_SECONDS
            try:
                async with asyncio.timeout(min(look, remaining)):
                    await stored.wait()
                    return
            except TimeoutError:
                pass
            [[(now, due, _)]] = await session.ask(session.inbox.next_due(endpoint, session.now()))
            if due is not None and due <= now:
                return

    async def retire(self, worker: str) -> None:
        await self._session.ask(self._session.inbox.retire(worker))

    async def make_due(self, key: DeliveryKey) -> bool:
        return await self.change_event(key, life.make_due)

    async def prune(self) -> int:
        """Remove expired records in small steps, and return how many."""
        return await Upkeep(self._session, self._schema).prune()

    @property
    def place(self) -> Hashable:
        """The identity of the store: its database and schema."""
        return self._settings.identity

    def __str__(self) -> str:
        """Return the database without user and password, and the schema."""
        return self._settings.name

    def change_event(
        self, key: DeliveryKey, step: EventStep[T], delivery: Delivery | None = None
    ) -> asyncio.Future[T]:
        return self._session.batches.run(StepJob(key, step, delivery=delivery))

    async def change_key_lock(
        self,
        key_lock: KeyLock,
        step: KeyLockStep[T],
        *,
        is_acquiring: bool,
        event: DeliveryKey | None = None,
    ) -> T:
        session = self._session

        async def take_step(connection: AsyncConnection[Any]) -> T:
            return await self._key_locks.take_step(
                connection, session.format.guard, session.now(), key_lock, step, event
            )

        answer = await session.call(take_step)
        if not is_acquiring:
            with contextlib.suppress(StoreError):  # a later look at all key locks wakes the event
                await session.wake([digest_of_lock(key_lock)])
        return answer

    @property
    def _session(self) -> Session:
        if self._running is None or not self._running.is_ours:
            # A session of another event loop or of the parent process cannot be closed here.
            self._running = Session(
                self._settings,
                self.formats,
                self.flushes.notify,
                self._keep_up,
                self._hear,
            )
            self._upkeep = Upkeep(self._running, self._schema)
        return self._running

    def _keep_up(self) -> None:
        if self._upkeep is not None:
            self._upkeep.start()
