"""Bounds for a worker's speed: the Redis script called directly, and a row-by-row queue.

The Redis script does the same as for a worker, in the largest calls that the store makes. The
benchmark encodes the steps in advance, and does not parse the replies. The row-by-row queue in
SQLite is one that a careful user would write: a transaction to take each event, and another to
finish it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import apsw

from hookonce.stores.redis import RedisStore
from hookonce.stores.redis.codec import EncodedStep, step
from hookonce.stores.values import Delivery, new_token

from .draining import PATIENCE_SECONDS, Drained, Stopwatch
from .filling import ENDPOINT, deliveries, fill

__all__ = ["redis_bulk", "row_by_row", "slow_disk", "sync_seconds"]

_AT_ONCE = 256
_LEASE_SECONDS = 30.0
_PAGE_BYTES = 4096

_QUEUE = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE queue (
    id INTEGER PRIMARY KEY,
    event_id TEXT NOT NULL UNIQUE,
    body BLOB NOT NULL,
    leased_until REAL NOT NULL DEFAULT 0,
    done_at REAL
);
CREATE INDEX waiting ON queue (id) WHERE done_at IS NULL;
"""
_PUT = "INSERT INTO queue (event_id, body) VALUES (?, ?)"
_TAKE = """
UPDATE queue SET leased_until = ?1 + ?2
WHERE id = (SELECT id FROM queue WHERE done_at IS NULL AND leased_until < ?1 ORDER BY id LIMIT 1)
RETURNING id, body
"""
_FINISH = "UPDATE queue SET done_at = ? WHERE id = ?"


async def redis_bulk(url: str, events: int) -> Drained:
    """Return the cost of fetching and completing this many events in the Redis server alone."""
    store = RedisStore(url)
    given = list(deliveries(events))
    await fill(store, iter(given))
    [shard] = store._session.shards
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    calls = list(_calls(given))
    watch = Stopwatch()
    for steps in calls:
        await shard._send(steps, deadline)
    drained = watch.drained(events)
    depth = (await store.stats()).depth
    await store.aclose()
    if depth:
        raise RuntimeError("not every event was completed")
    return drained


def _calls(given: list[Delivery]) -> Iterator[list[EncodedStep]]:
    """Yield calls; each call completes the events of the previous call, and fetches new events."""
    # The store returns events in the order in which they were stored, so their keys are known here.
    keys = [delivery.key for delivery in given]
    for first in range(0, len(keys) + _AT_ONCE, _AT_ONCE):
        steps = [step("complete", key) for key in keys[max(0, first - _AT_ONCE) : first]]
        taken = step("fetch", ENDPOINT, "bulk", new_token(), first + 1, _AT_ONCE, _LEASE_SECONDS)
        yield [*steps, taken]


def row_by_row(folder: Path, events: int) -> Drained:
    """Return the cost of fetching and completing this many events in a hand-written queue."""
    connection = apsw.Connection(str(folder / f"queue-{new_token()}.db"))
    try:
        connection.execute(_QUEUE).fetchall()  # `fetchall` makes apsw execute all statements
        with connection:
            rows = ((delivery.event_id, delivery.body) for delivery in deliveries(events))
            connection.executemany(_PUT, rows)
        finished = 0
        watch = Stopwatch()
        while (
            taken := _in_transaction(connection, _TAKE, time.time(), _LEASE_SECONDS)
        ) is not None:
            _in_transaction(connection, _FINISH, time.time(), taken[0])
            finished += 1
        drained = watch.drained(events)
    finally:
        connection.close()
    if finished != events:
        raise RuntimeError("not every event was finished")
    return drained


def _in_transaction(connection: apsw.Connection, query: str, *bindings: float) -> Any:
    connection.execute("BEGIN IMMEDIATE")
    row: Any = connection.execute(query, bindings).fetchone()
    connection.execute("COMMIT")
    return row


def sync_seconds(folder: Path) -> float:
    """Return how long the disk takes to sync a page that was appended to a file."""
    with NamedTemporaryFile(dir=folder) as file:
        os.write(file.fileno(), bytes(_PAGE_BYTES))
        started = time.perf_counter()
        os.fdatasync(file.fileno())
        return time.perf_counter() - started


@contextmanager
def slow_disk(longer_seconds: float) -> Iterator[None]:
    """Delay each sync of a file that SQLite opens inside the block."""
    usual = apsw.vfs_names()[0]

    class File(apsw.VFSFile):
        def xSync(self, flags: int) -> None:  # noqa: N802 - apsw calls this name
            time.sleep(longer_seconds)
            super().xSync(flags)

    class Disk(apsw.VFS):
        def xOpen(self, name: Any, flags: Any) -> File:  # noqa: N802 - apsw calls this name
            return File(usual, name, flags)

    disk = Disk("hookonce-slow-disk", usual, makedefault=True)
    try:
        yield
    finally:
        disk.unregister()
