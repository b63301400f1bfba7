"""Where verified deliveries are stored for workers, and where it shows when nobody works."""

from __future__ import annotations

import asyncio
import logging

from ..delivery.lease import within
from ..delivery.limits import Limits
from ..delivery.records import EventPut, Observers
from ..delivery.router import Router
from ..delivery.runs import Runs
from ..errors import StoreError
from ..stores.contract import InboxStore
from ..stores.tokens import new_token
from ..stores.values import Delivery, PutResult, Stored
from .settings import Inbox
from .waiting import WaitingEvents
from .worker import Worker

__all__ = ["Intake"]

_log = logging.getLogger("hookonce")

# A worker that was started together with the first delivery has been seen by the second look.
_LOOK_FOR_WORKERS_SECONDS = 30.0


class Intake:
    """Puts deliveries into the inbox of one endpoint, and works on them where that is asked for.

    Args:
        store: where they wait.
        inbox: how much may wait, and how it is worked off.
        router: the handlers.
        runs: where attempts are begun.
        endpoint: the endpoint's name.
        limits: time limits.
        observers: who is told of what is stored and taken.

    Attributes:
        waiting: what is in the inbox, for an operator.

    """

    def __init__(
        self,
        *,
        store: InboxStore,
        inbox: Inbox,
        router: Router,
        runs: Runs,
        endpoint: str,
        limits: Limits,
        observers: Observers,
    ) -> None:
        self._store = store
        self._inbox = inbox
        self._endpoint = endpoint
        self._limits = limits
        self._observers = observers
        self._worker = Worker(
            store=store,
            router=router,
            runs=runs,
            inbox=inbox,
            endpoint=endpoint,
            limits=limits,
            observers=observers,
        )
        self._working: asyncio.Task[None] | None = None
        self._look: asyncio.Task[None] | None = None
        self._next_look = 0.0
        self.waiting = WaitingEvents(store=store, endpoint=endpoint)

    @property
    def embedded(self) -> bool:
        """Whether the application itself works on it."""
        return self._inbox.embedded

    def start(self) -> None:
        """Start the worker of this process, or raise RuntimeError if it runs already."""
        if self._working is not None:
            raise RuntimeError("this receiver works on its inbox already")
        self._working = asyncio.get_running_loop().create_task(self._worker.run())

    async def stop(self) -> None:
        """Take nothing more; what was begun goes on."""
        if self._look is not None:
            self._look.cancel()
        if self._working is not None:
            self._worker.stop()
            await asyncio.wait({self._working})

    async def leave(self) -> None:
        """Be no worker any more: after ``stop``, and when what was begun has ended."""
        if self._working is not None:
            await self._worker.retire()
            self._working = None

    async def put(self, delivery: Delivery) -> PutResult:
        """Store a delivery durably, unless its event is known or there is no room."""
        result = await self._store.put(
            delivery,
            new_token(),
            max_depth=self._inbox.max_depth,
            max_bytes=self._inbox.max_bytes,
        )
        if self._observers.wants(EventPut, delivery.event_id):
            self._observers.tell(EventPut(delivery, result))
        if isinstance(result, Stored):
            self._worker.nudge()
            self._look_for_workers()
        return result

    async def problem(self) -> str | None:
        """Return what is wrong if nobody works on what is stored; raises StoreError."""
        if self._worker.is_running:
            return None
        stats = await within(self._limits.store_seconds, self._store.stats(endpoint=self._endpoint))
        if stats.workers:
            return None
        remedy = (
            "run the application with the receiver's lifespan"
            if self._inbox.embedded
            else "start `hookonce worker`"
        )
        return f"nobody works on the inbox of {self._endpoint} ({stats.depth} waiting); {remedy}"

    def _look_for_workers(self) -> None:
        """Say it loudly, but not with every delivery, when nobody works."""
        loop = asyncio.get_running_loop()
        if self._worker.is_running or (self._look is not None and not self._look.done()):
            return
        if loop.time() >= self._next_look:
            self._next_look = loop.time() + _LOOK_FOR_WORKERS_SECONDS
            self._look = loop.create_task(self._complain())

    async def _complain(self) -> None:
        try:
            problem = await self.problem()
        except StoreError as error:
            _log.warning("cannot see whether anybody works on the inbox: %s", error)
        else:
            if problem is not None:
                _log.error("%s", problem)
