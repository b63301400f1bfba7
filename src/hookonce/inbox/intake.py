"""Stores verified deliveries for workers, and reports an inbox without a worker."""

from __future__ import annotations

import asyncio

from ..delivery.attempts import Attempts
from ..delivery.dependencies import Dependencies
from ..errors import StoreError
from ..logs import get_logger
from ..stores.protocols import Queue
from ..stores.time_limit import within
from ..stores.values import Delivery, EnqueueResult, KeyLock, Stored, new_token
from ..watching.records import EventEnqueued
from .settings import Inbox
from .waiting import WaitingEvents
from .worker import Worker

_log = get_logger("hookonce")

# The pause between two checks for a worker. At the first check, a worker that has just started may
# not be visible yet.
_LOOK_FOR_WORKERS_SECONDS = 30.0


class InboxIntake:
    """Enqueues deliveries in an endpoint's inbox, and reports an inbox without a worker.

    Args:
        dependencies: the dependencies of the receiver.
        store: holds the inbox.
        waiting: the operator's view of the inbox.
        settings: the settings of the inbox.
        attempts: the attempts in flight.

    Attributes:
        embedded: whether the application's own process runs the worker.
        worker: the worker of this process; it runs once it is started.
    """

    def __init__(
        self,
        dependencies: Dependencies,
        *,
        store: Queue,
        waiting: WaitingEvents,
        settings: Inbox,
        attempts: Attempts,
    ) -> None:
        self._dependencies = dependencies
        self._store = store
        self._waiting = waiting
        self._settings = settings
        self.embedded: bool = settings.embedded
        self.worker: Worker = Worker(
            dependencies, store=store, settings=settings, attempts=attempts
        )
        self._look: asyncio.Task[None] | None = None
        self._next_look = 0.0

    async def stop(self) -> None:
        """Stop fetching events; attempts in flight continue."""
        if self._look is not None:
            self._look.cancel()
        await self.worker.stop()

    async def enqueue(self, delivery: Delivery, key_lock: KeyLock | None = None) -> EnqueueResult:
        """Store a delivery durably, unless its event is known or the inbox is full.

        Args:
            delivery: the delivery to store.
            key_lock: the key lock that the event's only handler needs, if it has a key.
        """
        result = await self._store.enqueue(
            delivery,
            new_token(),
            max_depth=self._settings.max_depth,
            max_bytes=self._settings.max_bytes,
            key_lock=key_lock,
        )
        self._dependencies.observers.notify_of(EventEnqueued, delivery, result)
        if isinstance(result, Stored):
            self.worker.nudge()
            self._look_for_workers()
        return result

    async def problem(self) -> str | None:
        """Return a message if the inbox has no worker, else None; raises StoreError."""
        if self.worker.is_running:
            return None
        stats = await within(self._dependencies.limits.store_seconds, self._waiting.stats())
        if stats.workers:
            return None
        remedy = (
            "run the application with the receiver's lifespan"
            if self._settings.embedded
            else "start `hookonce worker`"
        )
        return (
            f"the inbox of {self._dependencies.endpoint} has no worker"
            f" ({stats.depth} waiting); {remedy}"
        )

    def _look_for_workers(self) -> None:
        """Log an error if the inbox has no worker, but not at every delivery."""
        loop = asyncio.get_running_loop()
        if self.worker.is_running or (self._look is not None and not self._look.done()):
            return
        if loop.time() >= self._next_look:
            self._next_look = loop.time() + _LOOK_FOR_WORKERS_SECONDS
            self._look = loop.create_task(self._complain())

    async def _complain(self) -> None:
        try:
            problem = await self.problem()
        except StoreError as error:
            _log.warning("cannot check whether the inbox has a worker: %s", error)
        else:
            if problem is not None:
                _log.error("%s", problem)
