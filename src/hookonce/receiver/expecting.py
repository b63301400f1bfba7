"""Waiting in a program for an event that it has caused, such as the end of what it published."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from ..errors import PayloadError, WebhookError
from ..events import Event, EventParser
from ..logs import get_logger
from ..verification.signature import VerifiedDelivery
from ..watching.observers import Observers
from ..watching.records import DeliveryAnswered, DeliveryAuthenticated, Observer

_log = get_logger("hookonce.dispatch")

E = TypeVar("E", bound=Event[Any])
P = TypeVar("P")

# A publication takes seconds to minutes, and each look costs a request of the day's quota.
_POLL_SECONDS = 15.0

# A program that causes an event and then waits for it does so within moments.
_EARLY_SECONDS = 60.0

Poll = Callable[[], Awaitable[P | None]]
"""Asks elsewhere for what is waited for; None where it is not known yet."""


class Expectation(Observer, Generic[E, P]):
    """Events that arrive in this process while the block lasts; an async context manager.

    Each event is given once, when its delivery has been verified, before or while its handlers run.
    Where a condition tells which events are meant, those of the last minute are given too.

    Args:
        observers: of the receiver.
        recent: returns the deliveries of so many last seconds.
        parser: reads its events.
        classes: the classes of event that are waited for.
        where: which of these.
        seconds: how long the wait may take, from the beginning of the block.
        poll: what to ask as well: at the beginning, for what came earlier, and now and then, for
            what arrives elsewhere or never.
        poll_seconds: how often; None for every 15 s.

    """

    def __init__(
        self,
        observers: Observers,
        recent: Callable[[float], Iterable[VerifiedDelivery]],
        parser: Callable[[], EventParser],
        classes: tuple[type[E], ...],
        *,
        where: Callable[[E], bool] | None,
        seconds: float,
        poll: Poll[P] | None,
        poll_seconds: float | None,
    ) -> None:
        if not classes:
            raise TypeError("expecting() takes at least one event class")
        if poll is None and poll_seconds is not None:
            raise TypeError("poll_every says how often poll is asked: give a poll, or leave it out")
        if poll_seconds is None:
            poll_seconds = _POLL_SECONDS
        if not (0 < seconds < float("inf") and poll_seconds > 0):
            raise ValueError("within and poll_every are more than 0 seconds")
        self._observers = observers
        self._recent = recent
        self._parser = parser
        self._classes = classes
        self._where = where
        self._seconds = seconds
        self._poll = poll
        self._poll_seconds = poll_seconds
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
                self._take(delivery)
            await asyncio.sleep(0)  # so that `first` finds them there
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._observers.remove(self)

    def delivery_authenticated(self, record: DeliveryAuthenticated) -> None:
        """See a genuine delivery."""
        self._take(record.delivery)

    def delivery_answered(self, record: DeliveryAnswered) -> None:
        """See one that was under way when the block began."""
        if self._where is not None and record.event_type is not None and record.verified:
            self._take(record.verified)

    def _take(self, delivery: VerifiedDelivery) -> None:
        """Keep the event of a delivery if it is waited for."""
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
        except PayloadError:  # the receiver buries it
            return
        except Exception as error:  # noqa: BLE001 - of `where`; it is the waiting program's own
            found = error
        # The receiver may run in the loop of another thread.
        self._loop.call_soon_threadsafe(self._keep, found)

    def _keep(self, found: E | Exception) -> None:
        """Keep what was found until somebody asks for it."""
        self._came.append(found)
        self._arrived.set()

    async def first(self) -> E | P:
        """Return the next event, or what the poll has found, whichever is earlier.

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
        """Wait for an event, or return what the poll has found.

        The event is left where it is. Whoever is cancelled in the turn of the loop in which it
        arrives must not have taken it already, or it is lost.
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
            raise TimeoutError(f"nothing that was expected came within {self._seconds:g} s")
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
            except WebhookError as error:  # the service cannot be asked; the event may still come
                _log.warning("a poll for what is expected failed: %s", error)
                found = None
            if found is not None:
                return found
            await asyncio.sleep(self._poll_seconds)
