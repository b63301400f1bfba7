"""A handler within a ledger, and the replays of the events that it has handled.

Old versions of hookonce have none of this, so the program imports it only where it is needed.
"""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from typing import Any

from hookonce import Context, Event, Receiver
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.errors import ReplayError
from hookonce.stores.handled import HandledStore, Keeping
from hookonce.stores.protocols import Store
from hookonce.stores.values import Claimed, Delivery

from .journal import Writer

__all__ = ["HANDLER", "TABLES", "add_booking", "replay"]

HANDLER = "book"
"""The name of the handler."""

TABLES = """
CREATE TABLE booked (event_id TEXT NOT NULL, generation INTEGER NOT NULL);
CREATE TABLE batches (generation INTEGER PRIMARY KEY, started_at REAL NOT NULL);
"""
"""The tables in the ledger's file: each effect of the handler, and each batch of replays."""

_PAUSE_SECONDS = 0.3
_BUSY_SECONDS = 10.0


def add_booking(receiver: Receiver, store: Store, ledger: str, journal: Writer) -> None:
    """Add the handler to a receiver, and note in the journal which events the store keeps."""

    @receiver.on("comment.received", "response.*", name=HANDLER, within=SQLiteLedger(ledger))
    def book(event: Event[Any], connection: sqlite3.Connection, context: Context) -> None:
        connection.execute("INSERT INTO booked VALUES (?, ?)", (event.id, context.generation))

    assert isinstance(store, HandledStore)
    complete_and_keep = store.complete_and_keep

    async def noted(
        claim: Claimed, delivery: Delivery, finished: Collection[str], keeping: Keeping
    ) -> None:
        await complete_and_keep(claim, delivery, finished, keeping)
        journal.write("done", delivery.event_id, "-", claim.attempt)

    store.complete_and_keep = noted  # type: ignore[method-assign]  # replaces one method of a real store


async def replay(receiver: Receiver, ledger: str, ready: Callable[[], None]) -> None:
    """Replay batch after batch; after SIGTERM, finish the open batch and return."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with receiver:
        ready()
        while not stopped.is_set():
            # If another process has begun a later batch, this call may raise ReplayError. The next
            # call joins that batch.
            with suppress(ReplayError):
                await _replay_batch(receiver, ledger)
            await asyncio.sleep(_PAUSE_SECONDS)


async def _replay_batch(receiver: Receiver, ledger: str) -> None:
    """Replay the open batch, or begin a new batch; note when the batch began."""
    batch = await receiver.handled.open_batch(handler=HANDLER)
    if batch.finished_at is not None:
        batch = await receiver.handled.open_batch(handler=HANDLER, new=True)
    with closing(sqlite3.connect(ledger, timeout=_BUSY_SECONDS)) as connection, connection:
        noted = batch.generation, batch.started_unix
        connection.execute("INSERT OR IGNORE INTO batches VALUES (?, ?)", noted)
    async for _ in receiver.handled.replay_all(batch):
        pass
