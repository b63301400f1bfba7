"""The speed of a worker that empties a full inbox, beside its upper bounds.

Each drain runs alone in a process. The worker, or the queue that it is compared with, runs on the
last processor, and the Redis server on the first. With SQLite no process is pinned, because the
store has its own thread.

On PostgreSQL every subject has worker processes of its own and an empty database, whose statistics
are up to date. No process is pinned, because the server has several. The first events warm up the
connections and are not measured.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from support.pgbouncer import pgbouncer
from support.postgres import PostgresServer, postgres_server
from support.redis_servers import RedisServer, redis_server

from hookonce.stores.values import new_token

from .bulk import redis_bulk, row_by_row, slow_disk, sync_seconds
from .draining import Drained, Work, drain, handle_all
from .fleet import HOOKONCE, drain_by_processes
from .measuring import AtLeast, Part, Result, installed, pinned, spread
from .postgres_queues import QUEUES
from .queues import Drain, peers
from .rounds import compared, in_rounds
from .serving import family_cpu_seconds

__all__ = ["PART"]

_AT_ONCE, _QUICK_AT_ONCE = (16, 64), (64,)
_ROUNDS, _QUICK_ROUNDS = 5, 3
_EVENTS, _QUICK_EVENTS = 8_000, 3_000
_HANDLER_SECONDS = 0.005
# The row-by-row queue gets only one in this many events: it is slow, and its speed does not depend
# on the number of events.
_PART_ROW_BY_ROW = 20
_SLOW_SYNC_SECONDS = 0.005
_SYNCS = 101

_STORES = ("Redis", "SQLite", "PostgreSQL")
_WORKER = "hookonce worker"
_ALONE = "the handlers alone"
_THROUGH_PGBOUNCER = "hookonce through PgBouncer"
_NEXT_BEST = ("PgQueuer", "Procrastinate")
_PROCESSES = (1, 2, 4)
_POSTGRES_EVENTS, _QUICK_POSTGRES_EVENTS = 20_000, 6_000
_POSTGRES_SETTINGS = {
    "fsync": "on",
    "autovacuum": "on",
    "shared_buffers": "128MB",
    "max_connections": "100",
}
_PGBOUNCER_CONNECTIONS = 20
_REDIS_TARGET = AtLeast(0.35)
_SQLITE_TARGET = AtLeast(7)
_WAITING_TARGET = AtLeast(0.6)
_POSTGRES_TARGET = AtLeast(3)


def _run(is_quick: bool) -> list[Result]:
    return [result for store in _STORES for result in _of_store(is_quick, store)]


def _of_store(is_quick: bool, store: str) -> list[Result]:
    logging.getLogger("hookonce").setLevel(logging.CRITICAL)
    rounds = _QUICK_ROUNDS if is_quick else _ROUNDS
    if store == "PostgreSQL":
        return _postgres(rounds, is_quick=is_quick)
    if store not in _STORES:
        print(f"{store} has no inbox, and no worker is measured")
        return []
    events = _QUICK_EVENTS if is_quick else _EVENTS
    results = _disk() if store == "SQLite" else []
    for at_once in _QUICK_AT_ONCE if is_quick else _AT_ONCE:
        work = Work(events, at_once, 0.0)
        waiting = work._replace(handler_seconds=_HANDLER_SECONDS)
        if store == "Redis":
            results += _redis(work, rounds) + _redis(waiting, rounds)
            continue
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
        if work.handler_seconds:
            drains = {_ALONE: lambda _, work: handle_all(work), **drains}
        else:
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
        if work.handler_seconds:
            subjects = {_ALONE: lambda: asyncio.run(handle_all(work)), **subjects}
        else:
            subjects = {"a transaction to take, one to finish": one_by_one, **subjects}
        values = in_rounds(subjects, rounds)
    return _compared(f"SQLite{disk}", work, values, _SQLITE_TARGET)


def _postgres(rounds: int, *, is_quick: bool) -> list[Result]:
    events = _QUICK_POSTGRES_EVENTS if is_quick else _POSTGRES_EVENTS
    work = Work(events, max(_AT_ONCE), 0.0)
    waiting = work._replace(handler_seconds=_HANDLER_SECONDS)
    results: list[Result] = []
    with ExitStack() as stack:
        server = stack.enter_context(postgres_server(**_POSTGRES_SETTINGS))
        urls = {HOOKONCE: server.url}
        if shutil.which("pgbouncer"):
            bouncer = pgbouncer(server, connections=_PGBOUNCER_CONNECTIONS)
            urls[_THROUGH_PGBOUNCER] = stack.enter_context(bouncer)
        else:
            print("pgbouncer is not installed, and left out (package `pgbouncer`)")
        for name, queue in QUEUES.items():
            if all(map(installed, queue.modules)):
                urls[name] = server.url
        for processes in _PROCESSES:
            results += _on_postgres(server, urls, work, processes, rounds)
        results += _on_postgres(server, urls, waiting, 1, rounds)
    return results


def _on_postgres(
    server: PostgresServer, urls: Mapping[str, str], work: Work, processes: int, rounds: int
) -> list[Result]:
    subjects: dict[str, Callable[[], Drained]] = {
        name: partial(_drained, server, name, url, work, processes) for name, url in urls.items()
    }
    if work.handler_seconds:
        subjects = {_ALONE: lambda: asyncio.run(handle_all(work)), **subjects}
    drains = in_rounds(subjects, rounds)
    targets: dict[str, AtLeast] = {HOOKONCE: _WAITING_TARGET}
    if not work.handler_seconds:
        peers = [name for name in _NEXT_BEST if name in drains]
        if peers:
            base = max(peers, key=lambda name: statistics.median(each[0] for each in drains[name]))
            drains = {base: drains.pop(base), **drains}
            targets = {HOOKONCE: _POSTGRES_TARGET, _THROUGH_PGBOUNCER: _POSTGRES_TARGET}
    case = f"PostgreSQL, {processes} process{'es' if processes > 1 else ''}"
    case += f", {work.at_once} at once, {work.handlers}"
    rates = {name: [each.per_second for each in own] for name, own in drains.items()}
    results = compared(case, rates, "/s", targets)
    drains.pop(_ALONE, None)
    drains = {HOOKONCE: drains.pop(HOOKONCE), **drains}
    times = {
        f"{name}, processor time of {of}": [getattr(each, field) for each in own]
        for name, own in drains.items()
        for of, field in (("workers", "cpu_us"), ("server", "server_us"))
    }
    return results + [
        Result(case, name, statistics.median(own), "µs", spread(own)) for name, own in times.items()
    ]


def _drained(server: PostgresServer, name: str, url: str, work: Work, processes: int) -> Drained:
    """Drain a queue in a database of its own."""
    database = f"drain_{new_token()[2:10]}"
    server.execute(f"CREATE DATABASE {database}")

    def of(url: str) -> str:
        return f"{url.rpartition('/')[0]}/{database}"

    def analyze() -> None:
        with psycopg.connect(of(server.url), autocommit=True) as connection:
            connection.execute("ANALYZE")
            connection.execute("CHECKPOINT")

    assert server.process is not None
    queue = QUEUES.get(name)
    if queue is not None:
        work = work._replace(events=round(work.events * queue.part))
    try:
        return asyncio.run(
            drain_by_processes(
                of(url),
                work,
                processes,
                name=HOOKONCE if queue is None else name,
                server_cpu=partial(family_cpu_seconds, server.process.pid),
                filled=analyze,
            )
        )
    finally:
        server.execute(f"DROP DATABASE {database} WITH (FORCE)")


def _compared(
    store: str, work: Work, drains: Mapping[str, Sequence[Drained]], target: AtLeast
) -> list[Result]:
    """Return rates relative to the base, and processor times relative to the worker."""
    case = f"{store}, {work.at_once} at once, {work.handlers}"
    rates = {name: [drained.per_second for drained in own] for name, own in drains.items()}
    targets = {_WORKER: _WAITING_TARGET if work.handler_seconds else target}
    times = {
        f"{name}, processor time": [drained.cpu_us for drained in drains[name]]
        for name in sorted(drains, key=lambda name: name != _WORKER)
    }
    return compared(case, rates, "/s", targets) + compared(case, times, "µs")


@contextmanager
def _server() -> Iterator[RedisServer]:
    """Run a server on the first processor, if the system can do that."""
    with redis_server() as server:
        if hasattr(os, "sched_setaffinity") and server.process is not None:
            os.sched_setaffinity(server.process.pid, {min(os.sched_getaffinity(0))})
        yield server


def _disk() -> list[Result]:
    with TemporaryDirectory(prefix="hookonce-benchmark-") as folder:
        values = [sync_seconds(Path(folder)) * 1000 for _ in range(_SYNCS)]
    case = "the disk, which SQLite's ratios rest on"
    return [Result(case, "a sync", statistics.median(values), "ms", spread(values))]


PART = Part("workers", "events a worker drains, beside limits and other queues", _run, _of_store)
