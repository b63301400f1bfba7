"""The time of an enqueue while the PostgreSQL store removes expired records.

The records are done events, in the table that every enqueue writes to. They are removed as by
``hookonce inbox prune``, without the pauses of the background work. Each delivery is an event of
its own, and 16 deliveries arrive at the same time.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import NamedTuple

from support.postgres import PostgresServer, postgres_server

from hookonce.stores.postgres import PostgresStore
from hookonce.stores.values import Stored, new_token

from .filling import deliveries
from .measuring import Part, Result
from .rounds import compared

__all__ = ["PART"]

_EXPIRED, _QUICK_EXPIRED = 1_000_000, 100_000
_ROUNDS, _QUICK_ROUNDS = 3, 3
_AT_ONCE = 16
_ALONE_SECONDS = 5.0
_PAUSE_SECONDS = 0.005
_SETTINGS = {"fsync": "on", "autovacuum": "on", "shared_buffers": "128MB"}
_FILL = """
INSERT INTO hookonce.ids (key, expires)
SELECT decode(md5(random()::text || n), 'hex'), 0 FROM generate_series(1, %s) AS n
"""
_ALONE, _BESIDE = "alone", "while {:,} expired records are removed"


class _Times(NamedTuple):
    """The times of enqueues, in milliseconds."""

    median: float
    p99: float
    longest: float


def _run(is_quick: bool) -> list[Result]:
    logging.getLogger("hookonce").setLevel(logging.CRITICAL)
    expired = _QUICK_EXPIRED if is_quick else _EXPIRED
    rounds = _QUICK_ROUNDS if is_quick else _ROUNDS
    with postgres_server(**_SETTINGS) as server:
        found, rates = asyncio.run(_measured(server, expired, rounds))
    names = {"median": "median", "p99": "99th percentile", "longest": "longest"}
    return [
        *(
            result
            for field, name in names.items()
            for result in compared(
                f"{_AT_ONCE} at once, an enqueue: {name}",
                {who: [getattr(each, field) for each in own] for who, own in found.items()},
                "ms",
            )
        ),
        *compared("records removed", {"": rates}, "/s"),
    ]


async def _measured(
    server: PostgresServer, expired: int, rounds: int
) -> tuple[Mapping[str, Sequence[_Times]], Sequence[float]]:
    alone: list[_Times] = []
    beside: list[_Times] = []
    rates: list[float] = []
    async with AsyncExitStack() as stack:
        intake, pruner = [
            await stack.enter_async_context(aclosing(PostgresStore(server.url))) for _ in range(2)
        ]
        for store in (intake, pruner):
            await store.open()

        async def prune() -> None:
            begun = time.perf_counter()
            removed = await pruner.prune()
            rates.append(removed / (time.perf_counter() - begun))
            if removed != expired:
                raise RuntimeError(f"{removed:,} of {expired:,} records were removed")

        for _ in range(rounds):
            await asyncio.to_thread(server.execute, _FILL, expired)
            await asyncio.to_thread(server.execute, "VACUUM ANALYZE hookonce.ids")
            alone.append(await _enqueue_during(intake, lambda: asyncio.sleep(_ALONE_SECONDS)))
            beside.append(await _enqueue_during(intake, prune))
    return {_ALONE: alone, _BESIDE.format(expired): beside}, rates


async def _enqueue_during(store: PostgresStore, work: Callable[[], Awaitable[None]]) -> _Times:
    """Enqueue events until the work has ended."""
    times: list[float] = []
    is_over = asyncio.Event()

    async def enqueue() -> None:
        while not is_over.is_set():
            [delivery] = deliveries(1)
            begun = time.perf_counter()
            result = await store.enqueue(delivery, new_token())
            times.append((time.perf_counter() - begun) * 1000)
            assert isinstance(result, Stored)
            await asyncio.sleep(_PAUSE_SECONDS)

    gc.collect()
    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(enqueue())
        await work()
        is_over.set()
    return _Times(statistics.median(times), statistics.quantiles(times, n=100)[98], max(times))


PART = Part("postgres-pruning", "enqueues while a PostgreSQL store removes expired records", _run)
