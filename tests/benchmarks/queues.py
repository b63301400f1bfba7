"""Queues that a user might choose instead of hookonce, each with its worker in this process.

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

# Make as many calls at once as there are connections; more calls would wait for a connection.
_FILLED_AT_ONCE = 50
_LOOK_SECONDS = 0.001
_IDLE_SECONDS = 0.2

Drain: TypeAlias = Callable[[str, Work], Coroutine[Any, Any, Drained]]
"""Fills the queue at a URL, and drains it."""

Put: TypeAlias = Callable[[str], Awaitable[object]]


def peers() -> Mapping[str, Drain]:
    """Return a drain for each installed queue package; its queue is on a Redis server."""
    found: dict[str, Drain] = {}
    if installed("taskiq") and installed("taskiq_redis"):
        found["taskiq, Redis streams"] = drain_taskiq
    if installed("saq"):
        found["saq"] = drain_saq
    return found


async def drain_taskiq(url: str, work: Work) -> Drained:
    """Return the cost for taskiq to handle and acknowledge all events."""
    taskiq, handled = installed("taskiq.receiver"), Handled(work.events)
    broker: Any = installed("taskiq_redis").RedisStreamBroker(url)

    async def handle(body: str) -> None:  # noqa: ARG001 - the queue transports the body, although no handler uses it
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
        while (await client.xpending(*group))["pending"]:  # noqa: ASYNC110 - only the server knows when no event is pending
            await asyncio.sleep(_LOOK_SECONDS)
        drained = watch.drained(work.events)
        stop.set()
        await listening
        await broker.shutdown()
    return drained


async def drain_saq(url: str, work: Work) -> Drained:
    """Return the cost for saq to handle and finish all events."""
    logging.getLogger("saq").setLevel(logging.ERROR)  # saq logs a warning when it ends
    saq, handled = installed("saq"), Handled(work.events)
    queue: Any = saq.Queue.from_url(url)

    async def handle(_: object, *, body: str) -> None:  # noqa: ARG001 - the queue transports the body, although no handler uses it
        await work.handle()

    async def finished(_: object) -> None:
        handled.one()

    worker = saq.Worker(
        queue,
        [("handle", handle)],
        concurrency=work.at_once,
        after_process=finished,
        burst=True,  # saq ends when its queue is empty
        dequeue_timeout=_IDLE_SECONDS,
    )
    worker.SIGNALS = []  # saq must leave interrupts to this process
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
