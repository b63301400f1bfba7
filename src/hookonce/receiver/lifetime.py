"""How long the parts of a receiver are open: as long as anybody uses them.

    who                     from                   what is open besides the store
    an operator             ``opened``             nothing
    a worker process        ``working``            the worker
    an application          ``begin`` to ``end``   what handles requests; the worker, if embedded

They may overlap. Whoever is the last to go closes the store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..delivery.activity import Reporter
from ..delivery.ledgers import check_ledgers
from ..delivery.parts import Parts
from ..delivery.registration import Registration
from ..delivery.runs import Runs
from ..inbox.intake import Intake
from ..stores.contract import Openable

__all__ = ["Lifetime"]


class Lifetime:
    """Opens the parts of a receiver for the first who uses them, and closes them after the last.

    Args:
        parts: what the receiver's rooms share.
        runs: the events under way.
        store: what is opened and closed.
        intake: the inbox, if there is one.
        registration: tells others of this application.
        reporter: tells others of the steps, where the store can.

    """

    def __init__(
        self,
        parts: Parts,
        runs: Runs,
        *,
        store: Openable,
        intake: Intake | None,
        registration: Registration,
        reporter: Reporter | None,
    ) -> None:
        self._parts = parts
        self._runs = runs
        self._store = store
        self._intake = intake
        self._registration = registration
        self._reporter = reporter
        self._users = self._applications = 0

    @property
    def is_open(self) -> bool:
        """Whether anybody uses them."""
        return self._users > 0

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
        if (intake := self._intake) is None:
            raise LookupError("there is nothing to work on: this receiver has no inbox")
        async with self.opened():
            await self._register()
            intake.start()
            try:
                yield
            finally:
                await self._end_work(intake)

    async def begin(self) -> None:
        """Begin to serve one application more."""
        await self._enter()
        try:
            await self._register()
            if self._intake is not None and self._intake.embedded:
                self._intake.start()
        except BaseException:
            await self._leave()
            raise
        self._applications += 1
        self._runs.accepting = True

    async def end(self) -> None:
        """Serve one application less: after the last, end what was begun and begin nothing more."""
        self._applications -= 1
        try:
            if self._applications == 0:
                self._runs.refuse()
                if self._intake is not None and self._intake.embedded:
                    await self._end_work(self._intake)
                else:
                    await self._runs.drain()
        finally:
            await self._leave()

    async def _enter(self) -> None:
        self._users += 1
        try:
            await self._store.open()
        except BaseException:
            await self._leave()
            raise
        if self._reporter is not None:
            self._reporter.start()

    async def _leave(self) -> None:
        self._users -= 1
        if self._users == 0:
            self._registration.leave()
            try:
                if self._intake is not None:
                    await self._intake.stop()
                await self._runs.drain()
                if self._reporter is not None:
                    await self._reporter.stop()
            finally:  # also where a server waits no longer
                self._parts.threads.close()
                await self._store.aclose()

    async def _register(self) -> None:
        """Find out before the first event what would go wrong with it."""
        retention: float | None = getattr(self._store, "retention_seconds", None)
        await check_ledgers(self._parts.router.handlers, retention)
        await self._registration.enter()

    async def _end_work(self, intake: Intake) -> None:
        """Take nothing more out of the inbox, and let what was begun end."""
        await intake.stop()
        await self._runs.drain()
        await intake.leave()
