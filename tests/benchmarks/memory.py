"""The memory or disk space of remembered ids, many deliveries, a flood of bodies, and an import.

A measurement of a process's own memory runs in a new process. Otherwise it would count or reuse
memory that other parts of the benchmark have left.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import apsw
from support.redis_servers import redis_server

from hookonce import Reason, Receiver, sign
from hookonce.clock import system_clock
from hookonce.events import CommentReceived
from hookonce.samples.events import event_body
from hookonce.stores import open_store
from hookonce.stores.memory import MemoryStore
from hookonce.stores.protocols import Store
from hookonce.stores.values import Claimed, DeliveryKey, new_token
from hookonce.verification.secrets import new_secret

from .flooding import flood, resident_mib
from .importing import imports
from .measuring import AtMost, Part, Result

__all__ = ["PART"]

T = TypeVar("T")

_IDS, _QUICK_IDS = 1_000_000, 100_000
_DELIVERIES, _QUICK_DELIVERIES = 5_000_000, 40_000
_WARM_UP = 10_000
# SQLite is slower, and gets a tenth of the events.
_SQLITE_SHARE = 10
# The memory store never remembers more events than this: a fast clock ends the retention of older
# events. SQLite remembers its events on disk.
_REMEMBERED = 5_000
_RETENTION = timedelta(hours=26)
_IN_TURN = 64
_MIB = 1024 * 1024
_GROWTH = AtMost(1.1)
_PATIENCE_SECONDS = 3_600.0
_STORE_SECONDS = 30.0


def _run(is_quick: bool) -> list[Result]:
    if not Path("/proc/self/status").exists():
        print("resident memory is read from /proc, which this system does not have")
        return imports(is_quick=is_quick)
    return [
        *_remembered(_QUICK_IDS if is_quick else _IDS),
        *_delivered(_QUICK_DELIVERIES if is_quick else _DELIVERIES),
        *flood(is_quick=is_quick),
        *imports(is_quick=is_quick),
    ]


def _in_new_process(measure: Callable[[], T]) -> T:
    with get_context("spawn").Pool(1) as pool:  # the end of the block ends the process
        return pool.apply_async(measure).get(_PATIENCE_SECONDS)


def _remembered(count: int) -> list[Result]:
    """Return the memory or disk space that each handled event takes during its retention."""
    sizes = {
        "memory store, resident": _in_new_process(partial(_resident_for, count)),
        "SQLite, the file": _file_for(count),
        "Redis, used_memory": _redis_for(count),
    }
    case = f"each of {count:,} remembered ids of 28 characters"
    return [Result(case, name, size / count, "bytes") for name, size in sizes.items()]


def _resident_for(count: int) -> float:
    store = MemoryStore(max_records=count + _IN_TURN)
    asyncio.run(_remember(store, "warm-up", _IN_TURN))
    gc.collect()
    before = resident_mib("self")
    asyncio.run(_remember(store, "id", count))
    gc.collect()
    return (resident_mib("self") - before) * _MIB


def _file_for(count: int) -> float:
    with TemporaryDirectory(prefix="hookonce-benchmark-") as folder:
        file = Path(folder) / "hooks.db"
        asyncio.run(_remember(open_store(f"sqlite:///{file}", clock=system_clock), "id", count))
        connection = apsw.Connection(str(file))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        return file.stat().st_size


def _redis_for(count: int) -> float:
    # Use an append-only file, because a store warns about a server without persistence.
    with redis_server(append_only=True) as server, server.client() as client:
        asyncio.run(_remember(open_store(server.url, clock=system_clock), "warm-up", _IN_TURN))
        before = int(client.info("memory")["used_memory"])
        asyncio.run(_remember(open_store(server.url, clock=system_clock), "id", count))
        return int(client.info("memory")["used_memory"]) - before


async def _remember(store: Store, prefix: str, count: int) -> None:
    """Claim and complete this many events, with ids of the service's length."""

    async def handle(number: int) -> None:
        key = DeliveryKey(f"default:{prefix:_<8}{number:020d}")
        claim = await store.claim(key, new_token(), 30.0)
        assert isinstance(claim, Claimed)
        await store.complete(claim)

    await store.open()
    try:
        for first in range(0, count, 500):
            async with asyncio.timeout(_STORE_SECONDS):
                await asyncio.gather(*map(handle, range(first, min(first + 500, count))))
    finally:
        await store.aclose()


def _delivered(count: int) -> list[Result]:
    """Return the growth of memory through deliveries: only the store's records may stay."""
    results: list[Result] = []
    with TemporaryDirectory(prefix="hookonce-benchmark-") as folder:
        for name, url, number in (
            ("memory", "memory://", count),
            ("SQLite", f"sqlite:///{folder}/hooks.db", count // _SQLITE_SHARE),
        ):
            case = f"resident, receiver, {name}; ratio: to the end of the warm-up"
            before, after = _in_new_process(partial(_resident_around, url, number))
            results += [
                Result(case, f"after {_WARM_UP:,} deliveries", before, "MiB"),
                Result(case, f"after {number:,} more", after, "MiB", 0.0, after / before, _GROWTH),
            ]
    return results


def _resident_around(url: str, count: int) -> tuple[float, float]:
    """Return the resident memory before and after this many deliveries."""
    return asyncio.run(_deliver(url, count))


async def _deliver(url: str, count: int) -> tuple[float, float]:
    secret, clock = new_secret(), _Clock()
    receiver = Receiver(secrets=secret, store=url, retention=_RETENTION, clock=clock)

    @receiver.on(CommentReceived, name="nothing")
    async def nothing(event: CommentReceived) -> None: ...

    mark = "evt_the-place-of-an-id"
    start, end = event_body("comment.received", event_id=mark).split(mark.encode())

    async def deliver(number: int) -> None:
        event_id = f"evt_{number:024x}"
        body = b"%b%b%b" % (start, event_id.encode(), end)
        headers = sign(secret, event_id, body, timestamp=clock())
        outcome = await receiver.handle(body, headers)
        assert outcome.reason == Reason.HANDLED, outcome

    async def deliver_all(numbers: range) -> float:
        for first in range(numbers.start, numbers.stop, _IN_TURN):
            turn = range(first, min(first + _IN_TURN, numbers.stop))
            await asyncio.gather(*map(deliver, turn))
            clock.now += _RETENTION.total_seconds() / _REMEMBERED * len(turn)
        gc.collect()
        return resident_mib("self")

    async with receiver:
        return (
            await deliver_all(range(_WARM_UP)),
            await deliver_all(range(_WARM_UP, _WARM_UP + count)),
        )


class _Clock:
    """A clock so fast that the store remembers only the latest deliveries."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


PART = Part("memory", "what ids, deliveries, floods of large bodies and imports take", _run)
