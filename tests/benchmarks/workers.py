"""What a worker drains of an inbox that was filled before, beside what can be done at the most.

Each drain is a process's only work: the worker, or the queue it is compared with, has the last
processor, and the Redis server the first. With SQLite nothing is pinned, since the store has a
thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from support.redis_servers import RedisServer, redis_server

from hookonce.stores.values import new_token

from .bulk import redis_bulk, row_by_row, slow_disk, sync_seconds
from .draining import Drained, Work, drain
from .measuring import AtLeast, Part, Result, pinned, spread
from .queues import Drain, peers
from .rounds import compared, in_rounds

__all__ = ["PART"]

_AT_ONCE, _QUICK_AT_ONCE = (16, 64), (64,)
_ROUNDS, _QUICK_ROUNDS = 5, 3
_EVENTS, _QUICK_EVENTS = 8_000, 3_000
_HANDLER_SECONDS = 0.005
# Row by row is as fast with few events as with many, and slow.
_PART_ROW_BY_ROW = 20
_SLOW_SYNC_SECONDS = 0.005
_SYNCS = 101

_WORKER = "hookonce worker"
_REDIS_TARGET = AtLeast(0.35)
_SQLITE_TARGET = AtLeast(7)


def _run(is_quick: bool) -> list[Result]:
    logging.getLogger("hookonce").setLevel(logging.CRITICAL)
    rounds = _QUICK_ROUNDS if is_quick else _ROUNDS
    events = _QUICK_EVENTS if is_quick else _EVENTS
    results = _disk()
    for at_once in _QUICK_AT_ONCE if is_quick else _AT_ONCE:
        work = Work(events, at_once, 0.0)
        waiting = work._replace(handler_seconds=_HANDLER_SECONDS)
        results += _redis(work, rounds) + _redis(waiting, rounds)
        results += _sqlite(work, rounds) + _sqlite(waiting, rounds)
        with slow_disk(_SLOW_SYNC_SECONDS):
            disk = f", syncs {_SLOW_SYNC_SECONDS * 1000:g} ms longer"
            results += _sqlite(work, rounds, disk)
    return results


def _redis(work: Work, rounds: int) -> list[Result]:
    with _server() as server, pinned():

        def on_it(drain: Drain) -> Drained:
            server.flush()
            return asyncio.run(drain(server.url, work))

        drains: dict[str, Drain] = {_WORKER: drain, **peers()}
        if not work.handler_seconds:
            drains = {"bulk limit": lambda url, work: redis_bulk(url, work.events), **drains}
        subjects: dict[str, Callable[[], Drained]] = {
            name: partial(on_it, of_it) for name, of_it in drains.items()
        }
        return _compared("Redis", work, in_rounds(subjects, rounds), _REDIS_TARGET)


def _sqlite(work: Work, rounds: int, disk: str = "") -> list[Result]:
    with TemporaryDirectory(prefix="hookonce-benchmark-") as name:
        folder = Path(name)

        def on_a_file() -> Drained:
            return asyncio.run(drain(f"sqlite:///{folder}/{new_token()}.db", work))

        one_by_one = partial(row_by_row, folder, work.events // _PART_ROW_BY_ROW)
        subjects: dict[str, Callable[[], Drained]] = {_WORKER: on_a_file}
        if not work.handler_seconds:
            subjects = {"a transaction to take, one to finish": one_by_one, **subjects}
        values = in_rounds(subjects, rounds)
    return _compared(f"SQLite{disk}", work, values, _SQLITE_TARGET)


def _compared(
    store: str, work: Work, drains: Mapping[str, Sequence[Drained]], target: AtLeast
) -> list[Result]:
    """Return rates beside that of the base, and processor times beside that of the worker."""
    case = f"{store}, {work.at_once} at once, {work.handlers}"
    rates = {name: [drained.per_second for drained in own] for name, own in drains.items()}
    if work.handler_seconds:
        ideal = [work.at_once / work.handler_seconds] * len(drains[_WORKER])
        rates = {"ideal: nothing but the handlers": ideal, **rates}
    targets = {} if work.handler_seconds else {_WORKER: target}
    times = {
        f"{name}, processor time": [drained.cpu_us for drained in drains[name]]
        for name in sorted(drains, key=lambda name: name != _WORKER)
    }
    return compared(case, rates, "/s", targets) + compared(case, times, "µs")


@contextmanager
def _server() -> Iterator[RedisServer]:
    """Run a server on the first processor, where the system can do so."""
    with redis_server() as server:
        if hasattr(os, "sched_setaffinity") and server.process is not None:
            os.sched_setaffinity(server.process.pid, {min(os.sched_getaffinity(0))})
        yield server


def _disk() -> list[Result]:
    with TemporaryDirectory(prefix="hookonce-benchmark-") as folder:
        values = [sync_seconds(Path(folder)) * 1000 for _ in range(_SYNCS)]
    case = "the disk, which SQLite's ratios rest on"
    return [Result(case, "a sync", statistics.median(values), "ms", spread(values))]


PART = Part("workers", "events a worker drains, beside limits and other queues", _run)
