"""Opens the dependencies of a receiver for its first user, and closes them after the last user.

    user                    uses                   open in addition to the store
    an operator             ``opened``             nothing
    a worker process        ``working``            the worker
    an application          ``begin``, ``end``     request handling; the worker, if embedded

Uses may overlap. The end of the last use closes the store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ..delivery.attempts import Attempts
from ..delivery.dependencies import Dependencies
from ..delivery.ignored import IgnoredTypes
from ..inbox.intake import InboxIntake
from ..logs import event_fields, get_logger
from ..routing.handler import Handler
from ..routing.registration import Registration
from ..stores.finishes import FinishingStore
from ..stores.protocols import Openable
from ..watching.activity import Reporter
from .ledgers import check_ledgers, ledgers_in_use, ledgers_that_share
from .workload import Workload

_log = get_logger("hookonce.lease")


@dataclass(eq=False, repr=False, kw_only=True)
class Lifetime:
    """Opens the dependencies of a receiver for its first user, and closes them after the last user.

    Attributes:
        dependencies: the dependencies of the receiver.
        attempts: the attempts in flight.
        store: the store to open and close.
        intake: the inbox, if there is one.
        registration: registers this application in the store.
        ignored: records the types of events that have no handler.
        workload: reports what this process does as a worker.
        reporter: publishes steps to the inspectors of other processes, if the store can.
    """

    dependencies: Dependencies
    attempts: Attempts
    store: Openable
    intake: InboxIntake | None
    registration: Registration
    ignored: IgnoredTypes
    workload: Workload
    reporter: Reporter | None
    _users: int = 0
    _applications: int = 0
    _prepared: tuple[Handler, ...] | None = None
    _ledgers: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def is_open(self) -> bool:
        """Whether the receiver is in use."""
        return self._users > 0

    @property
    def _handles(self) -> bool:
        """Whether the application handles events: inside requests, or by an embedded worker."""
        return self.intake is None or self.intake.embedded

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Keep the store open while the block lasts."""
        await self._enter()
        try:
            yield
        finally:
            await self._leave()

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Work on the inbox while the block lasts; see ``Receiver.working``."""
        if (intake := self.intake) is None:
            raise LookupError("there is nothing to work on: this receiver has no inbox")
        async with self.opened():
            await self._register()
            intake.worker.start()
            self.workload.begin()
            try:
                yield
            finally:
                await self._end_work(intake)
                self.workload.end()

    async def begin(self) -> None:
        """Open the receiver for an application; several applications may use it."""
        await self._enter()
        try:
            await self._register()
            if self.intake is not None and self.intake.embedded:
                self.intake.worker.start()
        except BaseException:
            await self._leave()
            raise
        self._applications += 1
        self.attempts.accepting = True
        if self._handles:
            self.workload.begin()

    async def end(self) -> None:
        """Close the receiver for an application; after the last application, drain all attempts."""
        self._applications -= 1
        try:
            if self._applications == 0:
                self.attempts.start_shutdown()
                if self.intake is not None and self.intake.embedded:
                    await self._end_work(self.intake)
                else:
                    await self.attempts.drain()
        finally:
            if self._handles:
                self.workload.end()
            await self._leave()

    async def _enter(self) -> None:
        self._users += 1
        try:
            await self.store.open()
        except BaseException:
            await self._leave()
            raise
        if self.reporter is not None:
            self.reporter.start()

    async def _leave(self) -> None:
        self._users -= 1
        if self._users == 0:
            self.registration.unregister()
            try:
                if self.intake is not None:
                    await self.intake.stop()
                await self.attempts.drain()
                await self.ignored.stop()
                for key_lock in self.dependencies.unrecorded.watermarks:
                    _log.error(
                        "%s has succeeded, but its watermark could not be recorded before the"
                        " shutdown; an older event may run after the one that succeeded",
                        key_lock.handler,
                        extra=event_fields(key_lock.endpoint, None, None, handler=key_lock.handler),
                    )
                if self.reporter is not None:
                    await self.reporter.stop()
            finally:  # do this even if the server cancels this task at its time limit
                self.dependencies.threads.close()
                await self._ledgers.aclose()
                await self.store.aclose()

    async def prepare(self) -> None:
        """If the handlers have changed, build the event parser and check the ledgers.

        Raises:
            LedgerError: a ledger cannot record effects.
            Exception: pydantic cannot build an event class.
        """
        handler_table = self.dependencies.handler_table
        _ = handler_table.parser
        if (handlers := handler_table.handlers) != self._prepared:
            retention: float | None = getattr(self.store, "retention_seconds", None)
            file: Path | None = getattr(self.store, "path", None)
            await check_ledgers(handlers, retention, file)
            await self._find_sharing(handlers)
            self._prepared = handlers

    async def _find_sharing(self, handlers: tuple[Handler, ...]) -> None:
        store, sharing = self.dependencies.store, self.dependencies.sharing
        sharing.ledgers = await ledgers_that_share(handlers, store)
        sharing.store = store if isinstance(store, FinishingStore) else None

    async def _register(self) -> None:
        """Check the configuration before the first event arrives."""
        handlers = self.dependencies.handler_table.handlers
        await self._ledgers.enter_async_context(ledgers_in_use(handlers))
        self._prepared = None  # check again: a ledger may have changed since the last use
        await self.prepare()
        await self.registration.register()

    async def _end_work(self, intake: InboxIntake) -> None:
        """Stop fetching from the inbox, drain all attempts, and unregister the worker."""
        await intake.stop()
        await self.attempts.drain()
        await intake.worker.retire()
