"""Waiting in a program for an event that it has caused, such as the end of what it published."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from ..delivery.observers import Observers
from ..delivery.records import DeliveryAuthenticated, Observer
from ..errors import PayloadError, WebhookError
from ..events import Event, EventParser
from ..verification.loggers import get_logger

__all__ = ["POLL_SECONDS", "Expectation", "Poll"]

_log = get_logger("hookonce.dispatch")

E = TypeVar("E", bound=Event[Any])
P = TypeVar("P")

POLL_SECONDS = 15.0
"""A publication takes seconds to minutes, and each look costs a request of the day's quota."""

Poll = Callable[[], Awaitable[P | None]]
"""Asks elsewhere for what is waited for; None where it is not known yet."""


class Expectation(Observer, Generic[E, P]):
    """Events that arrive in this process while the block lasts; an async context manager.

    Each event is given once, when its delivery has been verified, before or while its handlers run.

    Args:
        observers: of the receiver.
        parser: reads its events.
        classes: the classes of event that are waited for.
        where: which of these.
        seconds: how long the wait may take, from the beginning of the block.
        poll: what to ask as well: at the beginning, for what came earlier, and now and then, for
            what arrives elsewhere or never.
        poll_seconds: how often.

    """

    def __init__(
        self,
        observers: Observers,
        parser: Callable[[], EventParser],
        classes: tuple[type[E], ...],
        *,
        where: Callable[[E], bool] | None,
        seconds: float,
        poll: Poll[P] | None,
        poll_seconds: float,
    ) -> None:
        if not classes:
            raise TypeError("expecting() takes at least one event class")
        if not (0 < seconds < float("inf") and poll_seconds > 0):
            raise ValueError("within and poll_every are more than 0 seconds")
        self._observers = observers
        self._parser = parser
        self._classes = classes
        self._where = where
        self._seconds = seconds
        self._poll = poll
        self._poll_seconds = poll_seconds
        self._came: asyncio.Queue[E | Exception] = asyncio.Queue()
        self._seen: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deadline = 0.0

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + self._seconds
        self._observers.add(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._observers.remove(self)

    def delivery_authenticated(self, record: DeliveryAuthenticated) -> None:
        """See a genuine delivery, and keep its event if it is waited for."""
        delivery = record.delivery
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
        self._loop.call_soon_threadsafe(self._came.put_nowait, found)

    async def first(self) -> E | P:
        """Return the next event, or what the poll has found, whichever is earlier.

        Raises:
            TimeoutError: neither came in time.
            RuntimeError: the block has not begun.

        """
        if self._loop is None:
            raise RuntimeError(
                "wait inside the block: async with receiver.expecting(…) as expected"
            )
        if not self._came.empty():
            return _event(self._came.get_nowait())
        coming = asyncio.create_task(self._came.get())
        waits: set[asyncio.Task[Any]] = {coming}
        if self._poll is not None:
            waits.add(asyncio.create_task(self._polled(self._poll)))
        try:
            left = self._deadline - self._loop.time()
            done, _ = await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise TimeoutError(f"nothing that was expected came within {self._seconds:g} s")
            if coming in done:
                return _event(coming.result())
            polled: P = done.pop().result()
            return polled
        finally:
            for task in waits:
                task.cancel()
            await asyncio.wait(waits)

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


def _event(found: E | Exception) -> E:
    if isinstance(found, Exception):
        raise found
    return found
