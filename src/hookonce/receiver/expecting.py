"""``Receiver.expecting`` lets a program wait for an event that it has caused."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar

from ..clock import span_seconds
from ..errors import PayloadError, WebhookError
from ..events import Event, EventParser
from ..logs import get_logger
from ..verification.signature import VerifiedDelivery
from ..watching.observers import Observers
from ..watching.records import DeliveryAnswered, DeliveryAuthenticated, Observer

_log = get_logger("hookonce.dispatch")

E = TypeVar("E", bound=Event[Any])
P = TypeVar("P")

# Poll rarely: a publication takes seconds to minutes, and each poll costs a request of the daily
# quota.
_POLL_SECONDS = 15.0

# Accept events of the last minute too: an event may arrive before the program begins to wait.
_EARLY_SECONDS = 60.0

Poll: TypeAlias = Callable[[], Awaitable[P | None]]
"""Asks the service for the expected result; returns None if there is none yet."""


class Expectation(Observer, Generic[E, P]):
    """Expects events that arrive in this process while the block lasts.

    Get it from ``Receiver.expecting``.

    Use it as an async context manager. It gives each event once, as soon as its delivery is
    verified, before or while handlers run. With a condition it also gives events of the last
    minute, because the condition says which events are meant.

    Args:
        observers: the observers of the receiver.
        recent: returns the deliveries of the given last seconds.
        parser: returns the parser of the receiver's events.
        classes: the expected classes of events.
        where: the condition; None for every event of these classes.
        within: the time limit, from the beginning of the block.
        poll: asks the service as well: at once, for an event that came earlier, and repeatedly, for
            an event that reaches another process or never arrives.
        poll_every: the time between polls; None for 15 s.
    """

    def __init__(
        self,
        observers: Observers,
        recent: Callable[[float], Iterable[VerifiedDelivery]],
        parser: Callable[[], EventParser],
        classes: tuple[type[E], ...],
        *,
        where: Callable[[E], bool] | None,
        within: float | timedelta,
        poll: Poll[P] | None,
        poll_every: float | timedelta | None,
    ) -> None:
        if not classes:
            raise TypeError("expecting() takes at least one event class")
        if poll is None and poll_every is not None:
            raise TypeError(
                "poll_every is the time between polls: give a poll, or leave poll_every out"
            )
        if poll_every is None:
            poll_every = _POLL_SECONDS
        self._observers = observers
        self._recent = recent
        self._parser = parser
        self._classes = classes
        self._where = where
        self._seconds = span_seconds("within", within, positive=True)
        self._poll = poll
        self._poll_seconds = span_seconds("poll_every", poll_every, positive=True)
        self._came: deque[E | Exception] = deque()
        self._arrived = asyncio.Event()
        self._seen: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deadline = 0.0

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + self._seconds
        self._observers.add(self)
        if self._where is not None:
            for delivery in self._recent(_EARLY_SECONDS):
                self._keep_if_expected(delivery)
            await asyncio.sleep(0)  # let `_keep` run now, so that `first` finds the recent events
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._observers.remove(self)

    def delivery_authenticated(self, record: DeliveryAuthenticated) -> None:
        """Check whether a verified delivery is expected."""
        self._keep_if_expected(record.delivery)

    def delivery_answered(self, record: DeliveryAnswered) -> None:
        """Check an answered delivery, because it may have been verified before the block began."""
        if self._where is not None and record.event_type is not None and record.verified:
            self._keep_if_expected(record.verified)

    def _keep_if_expected(self, delivery: VerifiedDelivery) -> None:
        """Keep the event of a delivery if it is expected."""
        if delivery.id in self._seen or self._loop is None:
            return
        self._seen.add(delivery.id)
        found: E | Exception
        try:
            event = self._parser().parse(delivery.body, delivery.id)
            if not isinstance(event, self._classes):
                return
            found = event
            if self._where is not None and not self._where(event):
                return
        # The body is unreadable, so the receiver makes the event a dead letter.
        except PayloadError:
            return
        except Exception as error:  # noqa: BLE001 - `where` failed: `first` raises its error
            found = error
        # The receiver may run in another thread's event loop.
        self._loop.call_soon_threadsafe(self._keep, found)

    def _keep(self, found: E | Exception) -> None:
        """Keep the event, or the error of ``where``, for ``first``."""
        self._came.append(found)
        self._arrived.set()

    async def first(self) -> E | P:
        """Return the next event or the poll's result, whichever comes first.

        An event that arrives while this call is cancelled stays for the next call.

        Raises:
            TimeoutError: neither came in time.
            RuntimeError: the block has not begun.
        """
        if self._loop is None:
            raise RuntimeError(
                "wait inside the block: async with receiver.expecting(…) as expected"
            )
        while not self._came:
            polled = await self._wait()
            if polled is not None:
                return polled
        found = self._came.popleft()
        if isinstance(found, Exception):
            raise found
        return found

    async def _wait(self) -> P | None:
        """Wait, and return the poll's result; return None as soon as there is an event.

        The event stays in the queue: if the caller is cancelled in the same turn of the event loop,
        an event that was taken out already would be lost.
        """
        coming = asyncio.create_task(self._arrival())
        waits: set[asyncio.Task[Any]] = {coming}
        if self._poll is not None:
            waits.add(asyncio.create_task(self._polled(self._poll)))
        try:
            left = self._deadline - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.wait(waits)
        if self._came or coming in done:
            return None
        if not done:
            raise TimeoutError(f"no expected event came within {self._seconds:g} s")
        polled: P = done.pop().result()
        return polled

    async def _arrival(self) -> None:
        while not self._came:
            self._arrived.clear()
            await self._arrived.wait()

    async def _polled(self, poll: Poll[P]) -> P:
        while True:
            try:
                found = await poll()
            # A failed poll must not end the block: the event may still arrive.
            except WebhookError as error:
                _log.warning("a poll for an expected event failed: %s", error)
                found = None
            if found is not None:
                return found
            await asyncio.sleep(self._poll_seconds)
