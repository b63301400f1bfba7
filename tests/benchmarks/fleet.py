"""Workers in processes of their own, which empty an inbox or another queue together.

``python -m benchmarks.fleet NAME URL AT_ONCE HANDLER_SECONDS`` is such a process. It prints that it
is ready, and begins when it reads a line. Then it prints again and again how many events it has
handled so far, when it handled the last one, and how much processor time it has used. It ends when
its standard input ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from .draining import PATIENCE_SECONDS, Drained, Handled, Work, draining_receiver
from .filling import deliveries, fill, inbox_store
from .postgres_queues import QUEUES, PostgresQueue

__all__ = ["HOOKONCE", "drain_by_processes"]

HOOKONCE = "hookonce"

_TELL_SECONDS = 0.02
# Connections, caches and the number of prefetched events need some time, so the first events are
# not measured.
_WARM_UP_PART = 0.1


async def _fill(url: str, events: int) -> None:
    store = inbox_store(url)
    await fill(store, deliveries(events))
    await store.aclose()


@asynccontextmanager
async def _working(url: str, work: Work, handled: Handled) -> AsyncIterator[None]:
    receiver = draining_receiver(inbox_store(url), work, handled)
    async with receiver.opened(), receiver.working():
        yield


_QUEUES: Mapping[str, PostgresQueue] = {HOOKONCE: PostgresQueue((), _fill, _working), **QUEUES}


class _Reading(NamedTuple):
    """The sum of what the processes have printed, and the processor time of the server."""

    handled: int
    at: float
    cpu: float
    server_cpu: float


async def drain_by_processes(
    url: str,
    work: Work,
    processes: int,
    *,
    name: str = HOOKONCE,
    server_cpu: Callable[[], float] = float,
    filled: Callable[[], object] = bool,
) -> Drained:
    """Fill a queue; return the cost for this many processes to handle all events together.

    Args:
        url: an empty inbox of hookonce, or an empty database.
        work: the events and their handlers.
        processes: how many workers run.
        name: hookonce, or a queue of ``postgres_queues``.
        server_cpu: returns the processor time that the server has used, in seconds.
        filled: called after the queue was filled.
    """
    await _QUEUES[name].fill(url, work.events)
    filled()
    counts, cpus, last_at = [0] * processes, [0.0] * processes, 0.0
    readings: list[_Reading] = []
    enough = asyncio.Event()

    async def listen(number: int, worker: _Worker) -> None:
        nonlocal last_at
        async for line in worker.output:
            count, at, cpu = line.split()
            counts[number], cpus[number] = int(count), float(cpu)
            last_at = max(last_at, float(at))
            total = sum(counts)
            is_warm = total >= work.events * (_WARM_UP_PART if all(counts) else 0.5)
            if total >= work.events or (is_warm and not readings):
                readings.append(_Reading(total, last_at, sum(cpus), server_cpu()))
            if total >= work.events:
                enough.set()
        if not enough.is_set():
            raise RuntimeError("a worker ended early")

    async with asyncio.timeout(PATIENCE_SECONDS), AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(_worker(name, url, work)) for _ in range(processes)
        ]
        for worker in workers:
            await worker.output.readline()  # wait until the process is ready
        async with asyncio.TaskGroup() as group:
            listeners = [group.create_task(listen(*each)) for each in enumerate(workers)]
            for worker in workers:
                worker.input.write(b"go\n")
            await enough.wait()
            for listener in listeners:
                listener.cancel()
    if sum(counts) != work.events:
        raise RuntimeError("an event was handled twice")
    first, last = readings[0], readings[-1]
    if last.handled == first.handled:
        raise RuntimeError("there were too few events to measure")
    events = last.handled - first.handled
    return Drained(
        events / (last.at - first.at),
        (last.cpu - first.cpu) / events * 1e6,
        (last.server_cpu - first.server_cpu) / events * 1e6,
    )


class _Worker(NamedTuple):
    """A worker's process, as seen by its parent."""

    input: asyncio.StreamWriter
    output: asyncio.StreamReader


@asynccontextmanager
async def _worker(name: str, url: str, work: Work) -> AsyncIterator[_Worker]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.fleet"),
        *(name, url, str(work.at_once), str(work.handler_seconds)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        # Let the worker import from the same folders as this process.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        yield _Worker(process.stdin, process.stdout)
        process.stdin.close()
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _main(name: str, url: str, work: Work) -> None:
    handled, told = Handled(0), 0
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    ended = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    async with _QUEUES[name].working(url, work, handled):
        while not ended.done():
            if handled.count > told:
                told = handled.count
                print(told, handled.last_at, time.process_time(), flush=True)
            await asyncio.wait([ended], timeout=_TELL_SECONDS)


def _arguments(given: Sequence[str]) -> tuple[str, str, Work]:
    name, url, at_once, handler_seconds = given
    return name, url, Work(0, int(at_once), float(handler_seconds))


if __name__ == "__main__":
    logging.getLogger("hookonce").setLevel(logging.CRITICAL)
    asyncio.run(_main(*_arguments(sys.argv[1:])))
