"""Queues in PostgreSQL that a user might choose instead of hookonce.

Procrastinate and PgQueuer run handlers in asyncio, as hookonce does. awa is a worker in Rust that
calls handlers in Python. pgmq is a set of SQL functions with a client, installed without its
extension; its users write their own worker, and the one here is short.

Each queue has the settings that were fastest here among those that record each success durably.
PgQueuer is measured with its default batches too, which are much slower. As they are used here,
none refuses duplicates, reads the event, remembers that the event is done or holds a lease for each
key: they do less than an inbox does.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from .draining import Handled, Work
from .filling import deliveries
from .measuring import installed

__all__ = ["QUEUES", "PostgresQueue"]

_NAME = "drain"
_FILLED_AT_ONCE = 500
_CONNECTIONS = 10
_LEASE_SECONDS = 30
_LOOK_SECONDS = 0.01
_DEFAULT_BATCH = 10  # PgQueuer's, also of its command


class PostgresQueue(NamedTuple):
    """A queue package.

    Attributes:
        modules: the modules that must be installed.
        fill: creates a queue in the empty database of a URL, and enqueues this many events.
        working: works on the queue while the block runs.
        part: the share of the usual events that is enough to measure the queue.
    """

    modules: tuple[str, ...]
    fill: Callable[[str, int], Coroutine[Any, Any, None]]
    working: Callable[[str, Work, Handled], AbstractAsyncContextManager[None]]
    part: float = 1.0


def _bodies(events: int) -> Iterator[list[str]]:
    bodies = (delivery.body.decode() for delivery in deliveries(events))
    while some := list(islice(bodies, _FILLED_AT_ONCE)):
        yield some


def _procrastinate(url: str, handle: Callable[[str], Awaitable[None]]) -> tuple[Any, Any]:
    logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
    procrastinate = installed("procrastinate")
    connector = procrastinate.PsycopgConnector(
        conninfo=url, min_size=_CONNECTIONS, max_size=_CONNECTIONS
    )
    app = procrastinate.App(connector=connector)

    async def run(body: str) -> None:
        await handle(body)

    return app, app.task(run, name=_NAME)


async def _nothing(_: str) -> None: ...


async def _fill_procrastinate(url: str, events: int) -> None:
    app, task = _procrastinate(url, _nothing)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for some in _bodies(events):
            await task.batch_defer_async(*({"body": body} for body in some))


@asynccontextmanager
async def _working_procrastinate(url: str, work: Work, handled: Handled) -> AsyncIterator[None]:
    async def handle(_: str) -> None:
        await work.handle()
        handled.one()

    app, _ = _procrastinate(url, handle)
    async with app.open_async():
        worker = asyncio.ensure_future(
            app.run_worker_async(
                concurrency=work.at_once, install_signal_handlers=False, delete_jobs="always"
            )
        )
        try:
            yield
        finally:
            worker.cancel()  # the worker then stops in order
            with suppress(asyncio.CancelledError):
                await worker


@asynccontextmanager
async def _pgqueuer(url: str) -> AsyncIterator[Any]:
    logging.getLogger("pgqueuer").setLevel(logging.CRITICAL)
    async with installed("asyncpg").create_pool(url, max_size=_CONNECTIONS) as pool:
        yield installed("pgqueuer.db").AsyncpgPoolDriver(pool)


async def _fill_pgqueuer(url: str, events: int) -> None:
    async with _pgqueuer(url) as driver:
        queries = installed("pgqueuer.queries").Queries(driver)
        await queries.install()
        for some in _bodies(events):
            bodies = [body.encode() for body in some]
            await queries.enqueue([_NAME] * len(some), bodies, [0] * len(some))


@asynccontextmanager
async def _working_pgqueuer(
    url: str, work: Work, handled: Handled, *, batch: int | None = None
) -> AsyncIterator[None]:
    async with _pgqueuer(url) as driver:
        queuer = installed("pgqueuer").PgQueuer(driver)

        async def handle(_: object) -> None:
            await work.handle()
            handled.one()

        queuer.entrypoint(_NAME)(handle)
        # Handlers that wait are limited to the places. Without the limit, PgQueuer is faster; so
        # handlers that do nothing are not limited.
        limits: dict[str, int] = {}
        if work.handler_seconds:
            limits["max_concurrent_tasks"] = work.at_once
        usual = work.at_once // 2 if work.handler_seconds else work.at_once
        limits["batch_size"] = batch or usual
        task = asyncio.ensure_future(queuer.run(**limits))
        try:
            yield
        finally:
            queuer.shutdown.set()
            await task


def _pgmq(url: str) -> Any:
    queue = installed("pgmq.async_queue").PGMQueue
    return queue(conn_string=url, init_extension=False, pool_size=_CONNECTIONS)


async def _fill_pgmq(url: str, events: int) -> None:
    await asyncio.to_thread(installed("pgmq.install").install_pgmq_from_sql, dsn=url)
    client = _pgmq(url)
    await client.init()
    await client.create_queue(_NAME)
    for some in _bodies(events):
        await client.send_batch(_NAME, [json.loads(body) for body in some])
    await client.close()


@asynccontextmanager
async def _working_pgmq(url: str, work: Work, handled: Handled) -> AsyncIterator[None]:
    async def handle(_: object) -> None:
        await work.handle()
        handled.one()

    stopped = asyncio.Event()

    async def consume(client: Any, batch: int) -> None:
        while not stopped.is_set():
            found = await client.read_batch(_NAME, vt=_LEASE_SECONDS, batch_size=batch)
            if not found:
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            await asyncio.gather(*map(handle, found))
            await client.delete_batch(_NAME, [message.msg_id for message in found])

    # Two consumers are faster than one: one reads or deletes while the handlers of the other run.
    # Handlers that wait share the places; handlers that do nothing never run at the same time.
    batch = work.at_once // 2 if work.handler_seconds else work.at_once
    client = _pgmq(url)
    await client.init()
    async with asyncio.TaskGroup() as consumers:
        for _ in range(2):
            consumers.create_task(consume(client, batch))
        try:
            yield
        finally:
            stopped.set()
    await client.close()


@dataclass
class _Drain:
    """The arguments of a job for awa."""

    body: str


@asynccontextmanager
async def _awa(url: str) -> AsyncIterator[Any]:
    async with installed("awa").AsyncClient(url, max_connections=2 * _CONNECTIONS) as client:
        yield client


async def _fill_awa(url: str, events: int) -> None:
    async with _awa(url) as client:
        await client.migrate()
        await client.install_queue_storage()
        for some in _bodies(events):
            await client.enqueue_many_copy([_Drain(body) for body in some], queue=_NAME)


@asynccontextmanager
async def _working_awa(url: str, work: Work, handled: Handled) -> AsyncIterator[None]:
    async def handle(_: object) -> None:
        await work.handle()
        handled.one()

    async with _awa(url) as client:
        client.task(_Drain, queue=_NAME)(handle)
        queue = {"name": _NAME, "max_workers": work.at_once, "claim_batch_size": work.at_once}
        await client.start([queue])
        try:
            yield
        finally:
            await client.shutdown()


QUEUES: dict[str, PostgresQueue] = {
    # Procrastinate fetches and finishes each job in a transaction of its own.
    "Procrastinate": PostgresQueue(
        ("procrastinate",), _fill_procrastinate, _working_procrastinate, part=0.03
    ),
    "PgQueuer": PostgresQueue(("pgqueuer", "asyncpg"), _fill_pgqueuer, _working_pgqueuer),
    "PgQueuer, its default batches": PostgresQueue(
        ("pgqueuer", "asyncpg"),
        _fill_pgqueuer,
        partial(_working_pgqueuer, batch=_DEFAULT_BATCH),
        part=0.3,
    ),
    "pgmq": PostgresQueue(("pgmq", "asyncpg"), _fill_pgmq, _working_pgmq),
    "awa": PostgresQueue(("awa",), _fill_awa, _working_awa),
}
