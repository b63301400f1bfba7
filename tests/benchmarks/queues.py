"""Queues that a user would otherwise take, drained by a worker of their own in this process.

taskiq with its streams of Redis, which acknowledge like an inbox, and saq: both are asyncio, need
only Redis, and are maintained. arq is maintained no further, and needs a redis-py of before 6;
celery and rq run no coroutines, and dramatiq runs them in a thread beside its own. As they are used
here, neither refuses duplicates or looks at the event: they do less than an inbox does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from itertools import islice
from typing import Any, TypeAlias

import redis.asyncio

from .draining import PATIENCE_SECONDS, Drained, Handled, Stopwatch, Work
from .filling import deliveries
from .measuring import installed

__all__ = ["Drain", "peers"]

# What waits for a connection each; more would only wait for each other.
_FILLED_AT_ONCE = 50
_LOOK_SECONDS = 0.001
_IDLE_SECONDS = 0.2

Drain: TypeAlias = Callable[[str, Work], Coroutine[Any, Any, Drained]]
"""Fills what a URL names, and drains it."""

Put: TypeAlias = Callable[[str], Awaitable[object]]


def peers() -> Mapping[str, Drain]:
    """Return what is installed: each drains its queue on a Redis server."""
    found: dict[str, Drain] = {}
    if installed("taskiq") and installed("taskiq_redis"):
        found["taskiq, Redis streams"] = drain_taskiq
    if installed("saq"):
        found["saq"] = drain_saq
    return found


async def drain_taskiq(url: str, work: Work) -> Drained:
    """Return what it takes taskiq to handle and acknowledge it all."""
    taskiq, handled = installed("taskiq.receiver"), Handled(work.events)
    broker: Any = installed("taskiq_redis").RedisStreamBroker(url)

    async def handle(body: str) -> None:  # noqa: ARG001 - it is brought all the same
        await work.handle()
        handled.one()

    task = broker.register_task(handle, task_name="handle")
    receiver = taskiq.Receiver(broker, max_async_tasks=work.at_once, run_startup=False)
    stop = asyncio.Event()
    async with asyncio.timeout(PATIENCE_SECONDS), redis.asyncio.from_url(url) as client:
        await broker.startup()
        await _fill(task.kiq, work.events)
        watch = Stopwatch()
        listening = asyncio.ensure_future(receiver.listen(stop))
        await handled.enough.wait()
        group = broker.queue_name, broker.consumer_group_name
        while (await client.xpending(*group))["pending"]:  # noqa: ASYNC110 - the server knows
            await asyncio.sleep(_LOOK_SECONDS)
        drained = watch.drained(work.events)
        stop.set()
        await listening
        await broker.shutdown()
    return drained


async def drain_saq(url: str, work: Work) -> Drained:
    """Return what it takes saq to handle and finish it all."""
    logging.getLogger("saq").setLevel(logging.ERROR)  # it warns of its own end
    saq, handled = installed("saq"), Handled(work.events)
    queue: Any = saq.Queue.from_url(url)

    async def handle(_: object, *, body: str) -> None:  # noqa: ARG001 - it is brought all the same
        await work.handle()

    async def finished(_: object) -> None:
        handled.one()

    worker = saq.Worker(
        queue,
        [("handle", handle)],
        concurrency=work.at_once,
        after_process=finished,
        burst=True,  # it ends when nothing waits
        dequeue_timeout=_IDLE_SECONDS,
    )
    worker.SIGNALS = []  # an interrupt is ours
    async with asyncio.timeout(PATIENCE_SECONDS):
        await queue.connect()
        await _fill(lambda body: queue.enqueue("handle", body=body), work.events)
        watch = Stopwatch()
        working = asyncio.ensure_future(worker.start())
        await handled.enough.wait()
        drained = watch.drained(work.events)
        await working
        await queue.disconnect()
    return drained


async def _fill(put: Put, events: int) -> None:
    bodies = (delivery.body.decode() for delivery in deliveries(events))
    while some := list(islice(bodies, _FILLED_AT_ONCE)):
        await asyncio.gather(*map(put, some))
