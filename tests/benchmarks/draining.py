"""A real worker that empties an inbox in this process."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import NamedTuple

from hookonce import Inbox, Receiver
from hookonce.events import CommentReceived
from hookonce.stores.protocols import InboxStore
from hookonce.verification.secrets import new_secret

from .filling import deliveries, fill, inbox_store

__all__ = [
    "PATIENCE_SECONDS",
    "Drained",
    "Handled",
    "Stopwatch",
    "Work",
    "drain",
    "drain_store",
    "draining_receiver",
    "handle_all",
]

PATIENCE_SECONDS = 90.0
"""Longer than any drain takes; only a broken one waits as long."""


class Work(NamedTuple):
    """The events of a drain, and the work of their handlers.

    Attributes:
        events: the number of events in the inbox.
        at_once: the number of events that a worker handles at the same time.
        handler_seconds: how long a handler waits without using the processor; 0 for no wait.

    """

    events: int
    at_once: int
    handler_seconds: float

    @property
    def handlers(self) -> str:
        """A description of what the handlers do."""
        if not self.handler_seconds:
            return "handlers that do nothing"
        return f"handlers that wait {self.handler_seconds * 1000:g} ms"

    async def handle(self) -> None:
        """Wait as long as a handler would."""
        if self.handler_seconds:
            await asyncio.sleep(self.handler_seconds)


class Drained(NamedTuple):
    """The cost of a drain.

    Attributes:
        per_second: events.
        cpu_us: processor time of the worker's processes for an event, their threads included. Other
            programs on the machine change it less than the rate.
        server_us: processor time of the database server for an event, if it was measured.

    """

    per_second: float
    cpu_us: float
    server_us: float = 0.0


class Stopwatch:
    """A stopwatch that starts when it is made, after a garbage collection."""

    def __init__(self) -> None:
        gc.collect()
        self._cpu, self._started = time.process_time(), time.perf_counter()

    def drained(self, events: int) -> Drained:
        """Return the measurements since the start."""
        seconds = time.perf_counter() - self._started
        return Drained(events / seconds, (time.process_time() - self._cpu) / events * 1e6)


class Handled:
    """Counts handled events; ``enough`` is set when this many are handled."""

    def __init__(self, wanted: int) -> None:
        self.count = 0
        self.last_at = time.monotonic()
        self.enough = asyncio.Event()
        self._wanted = wanted

    def one(self) -> None:
        self.count += 1
        self.last_at = time.monotonic()
        if self.count == self._wanted:
            self.enough.set()


async def drain(url: str, work: Work) -> Drained:
    """Fill the inbox; return the cost for a worker to handle and settle all events."""
    return await drain_store(inbox_store(url), work)


async def drain_store(store: InboxStore, work: Work, *, remaining: int = 0) -> Drained:
    """Drain this store like ``drain``; fail unless ``remaining`` events are then in the inbox."""
    handled = Handled(work.events)
    receiver = draining_receiver(store, work, handled)
    async with asyncio.timeout(PATIENCE_SECONDS), receiver.opened():
        await fill(store, deliveries(work.events))
        watch = Stopwatch()
        async with receiver.working():
            await handled.enough.wait()
        drained = watch.drained(work.events)  # by now every success is recorded
        if handled.count != work.events or (await store.stats()).depth != remaining:
            raise RuntimeError("not every event was handled once")
    return drained


async def handle_all(work: Work) -> Drained:
    """Return the cost of the same handlers without an inbox, with the same number at once."""
    remaining = iter(range(work.events))

    async def handle_some() -> None:
        for _ in remaining:
            await work.handle()

    watch = Stopwatch()
    await asyncio.gather(*(handle_some() for _ in range(work.at_once)))
    return watch.drained(work.events)


def draining_receiver(store: InboxStore, work: Work, handled: Handled) -> Receiver:
    """Return a receiver whose only handler counts the events."""
    inbox = Inbox(embedded=False, concurrency=work.at_once)
    receiver = Receiver(secrets=new_secret(), store=store, inbox=inbox)

    @receiver.on(CommentReceived, name="drain")
    async def handle(_: CommentReceived) -> None:
        await work.handle()
        handled.one()

    return receiver
