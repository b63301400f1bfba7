"""A real worker that drains an inbox: in this process, or in several of their own.

``python -m benchmarks.draining URL AT_ONCE HANDLER_SECONDS`` is such a process. It says that it is
ready, begins when it is given a line, tells how many events it has handled so far and when the last
of them was, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from hookonce import Inbox, Receiver
from hookonce.events import CommentReceived
from hookonce.stores.protocols import InboxStore
from hookonce.verification.secrets import new_secret

from .filling import deliveries, fill, inbox_store

__all__ = [
    "PATIENCE_SECONDS",
    "Drained",
    "Handled",
    "Stopwatch",
    "Work",
    "drain",
    "drain_by_processes",
]

PATIENCE_SECONDS = 90.0
"""Longer than any drain takes; only a broken one waits as long."""

_TELL_SECONDS = 0.02


class Work(NamedTuple):
    """What there is to do.

    Attributes:
        events: how many wait.
        at_once: how many a worker handles at once.
        handler_seconds: what a handler waits for, without using the processor; 0 for nothing.

    """

    events: int
    at_once: int
    handler_seconds: float

    @property
    def handlers(self) -> str:
        """Its handlers in words."""
        if not self.handler_seconds:
            return "handlers that do nothing"
        return f"handlers that wait {self.handler_seconds * 1000:g} ms"

    async def handle(self) -> None:
        """Do what a handler does."""
        if self.handler_seconds:
            await asyncio.sleep(self.handler_seconds)


class Drained(NamedTuple):
    """What a drain has taken.

    Attributes:
        per_second: events.
        cpu_us: processor time of this process for an event, its threads included. Other programs
            on the machine change it less than the rate.

    """

    per_second: float
    cpu_us: float


class Stopwatch:
    """Begins to measure when it is made, with no garbage from before."""

    def __init__(self) -> None:
        gc.collect()
        self._cpu, self._started = time.process_time(), time.perf_counter()

    def drained(self, events: int) -> Drained:
        """Return what it has measured up to now."""
        seconds = time.perf_counter() - self._started
        return Drained(events / seconds, (time.process_time() - self._cpu) / events * 1e6)


class Handled:
    """Counts events that were handled, and tells when so many were."""

    def __init__(self, wanted: int) -> None:
        self.count = 0
        self.last_at = time.monotonic()
        self.enough = asyncio.Event()
        self._wanted = wanted

    def one(self) -> None:
        self.count += 1
        self.last_at = time.monotonic()
        if self.count == self._wanted:
            self.enough.set()


async def drain(url: str, work: Work) -> Drained:
    """Fill the inbox, and return what it takes a worker to handle and settle it all."""
    store, handled = inbox_store(url), Handled(work.events)
    receiver = _receiver(store, work, handled)
    async with asyncio.timeout(PATIENCE_SECONDS), receiver.opened():
        await fill(store, deliveries(work.events))
        watch = Stopwatch()
        async with receiver.working():
            await handled.enough.wait()
        drained = watch.drained(work.events)  # the block has ended when everything is recorded
        if handled.count != work.events or (await store.stats()).depth:
            raise RuntimeError("not every event was handled once")
    return drained


def _receiver(store: InboxStore, work: Work, handled: Handled) -> Receiver:
    inbox = Inbox(embedded=False, concurrency=work.at_once)
    receiver = Receiver(secrets=new_secret(), store=store, inbox=inbox)

    @receiver.on(CommentReceived, name="drain")
    async def handle(_: CommentReceived) -> None:
        await work.handle()
        handled.one()

    return receiver


async def drain_by_processes(url: str, work: Work, processes: int) -> float:
    """Fill the inbox, and return how many events a second so many processes handle together."""
    store = inbox_store(url)
    await fill(store, deliveries(work.events))
    await store.aclose()
    counts, last_at = [0] * processes, 0.0
    enough = asyncio.Event()

    async def listen(number: int, worker: _Worker) -> None:
        nonlocal last_at
        async for line in worker.output:
            count, at = line.split()
            counts[number], last_at = int(count), max(last_at, float(at))
            if sum(counts) >= work.events:
                enough.set()
        if not enough.is_set():
            raise RuntimeError("a worker ended early")

    async with asyncio.timeout(PATIENCE_SECONDS), AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(_worker(url, work)) for _ in range(processes)]
        for worker in workers:
            await worker.output.readline()  # it is ready
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            listeners = [group.create_task(listen(*each)) for each in enumerate(workers)]
            for worker in workers:
                worker.input.write(b"go\n")
            await enough.wait()
            for listener in listeners:
                listener.cancel()
    if sum(counts) != work.events:
        raise RuntimeError("an event was handled twice")
    return work.events / (last_at - started)


class _Worker(NamedTuple):
    """A worker's process, as its parent speaks with it."""

    input: asyncio.StreamWriter
    output: asyncio.StreamReader


@asynccontextmanager
async def _worker(url: str, work: Work) -> AsyncIterator[_Worker]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.draining"),
        *(url, str(work.at_once), str(work.handler_seconds)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # what is imported here
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


async def _main(url: str, work: Work) -> None:
    store, handled = inbox_store(url), Handled(0)
    receiver, told = _receiver(store, work, handled), 0
    async with receiver.opened():
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        ended = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
        async with receiver.working():
            while not ended.done():
                if handled.count > told:
                    told = handled.count
                    print(told, handled.last_at, flush=True)
                await asyncio.wait([ended], timeout=_TELL_SECONDS)


def _arguments(given: Sequence[str]) -> tuple[str, Work]:
    url, at_once, handler_seconds = given
    return url, Work(0, int(at_once), float(handler_seconds))


if __name__ == "__main__":
    logging.getLogger("hookonce").setLevel(logging.CRITICAL)
    asyncio.run(_main(*_arguments(sys.argv[1:])))
