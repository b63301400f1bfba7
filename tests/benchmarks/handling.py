"""The cost of `Receiver.handle` in process, compared with the same steps written by hand.

The code by hand is what a careful user writes: it runs the handler in its own task with a time
limit, then adds the event's id to a set. The difference is the cost of the receiver and its store.

The receiver on PostgreSQL is compared with the same steps by hand on PostgreSQL: each id is written
before and after the handler, and ids that wait share a statement. There the benchmark also measures
the time that passes, which includes the server's work and the commits.

Everything is measured twice: with threads on the processors that the system chooses, and with all
threads on one processor, where they share its caches. The difference between the two is the cost of
moving between processors, and of other programs that run on them.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeAlias

import uvloop
from support.postgres import postgres_server
from support.redis_servers import redis_server

from hookonce import Receiver, Verifier, sign
from hookonce.clock import system_clock
from hookonce.events import CommentReceived, Event, EventParser
from hookonce.samples.events import event_body
from hookonce.stores import open_store
from hookonce.verification.secrets import new_secret

from .ladder import PostgresBatches
from .measuring import AtMost, Part, Result, pinned
from .rounds import compared

__all__ = ["PART"]

# Use many short rounds: the speed of a shared machine seldom changes within a short round.
_ROUNDS, _QUICK_ROUNDS = 45, 21
_DELIVERIES = 1_000
_AT_ONCE = 64
_HANDLER_SECONDS = 900
_TARGETS = {"memory": AtMost(1.5), "SQLite": AtMost(3.2), "Redis": AtMost(2.3)}
_POSTGRES_TARGETS = {"PostgreSQL": AtMost(2.5)}

_Delivery: TypeAlias = tuple[bytes, list[tuple[bytes, bytes]]]
_Handle: TypeAlias = Callable[[bytes, list[tuple[bytes, bytes]]], Awaitable[object]]

_numbers = count()


class _Cost(NamedTuple):
    """The microseconds for one delivery: processor time of this process, and until the answer."""

    processor: float
    elapsed: float


_Costs: TypeAlias = dict[str, list[_Cost]]


def _run(is_quick: bool, store: str | None) -> list[Result]:
    logging.getLogger("hookonce").setLevel(logging.CRITICAL)
    rounds = _QUICK_ROUNDS if is_quick else _ROUNDS
    places: dict[str, AbstractContextManager[None]] = {
        f"{_AT_ONCE} at once": nullcontext(),
        f"{_AT_ONCE} at once, on one processor": pinned(),
    }
    results: list[Result] = []
    with redis_server() as redis, postgres_server(fsync="on", shared_buffers="128MB") as postgres:
        for number, (case, place) in enumerate(places.items()):
            redis.flush()
            with TemporaryDirectory(prefix="hookonce-benchmark-") as folder, place:
                urls = {
                    "memory": "memory://",
                    "SQLite": f"sqlite:///{Path(folder)}/hooks.db",
                    "Redis": redis.url,
                }
                chosen = {name: url for name, url in urls.items() if store in {None, name}}
                if chosen:
                    costs = uvloop.run(_measured(chosen, rounds))
                    results += compared(case, _times(costs, 0), "µs", _TARGETS)
                if store in {None, "PostgreSQL"}:
                    url = {"PostgreSQL": f"{postgres.url}?schema=handle_{number}"}
                    costs = uvloop.run(_measured(url, rounds, PostgresBatches(postgres.url)))
                    on_it = f"{case}, on PostgreSQL"
                    results += compared(on_it, _times(costs, 0), "µs", _POSTGRES_TARGETS)
                    results += compared(f"{on_it}, until the answer", _times(costs, 1), "µs")
    return results


def _times(costs: _Costs, which: int) -> dict[str, list[float]]:
    return {name: [cost[which] for cost in own] for name, own in costs.items()}


async def _measured(
    urls: dict[str, str], rounds: int, batches: PostgresBatches | None = None
) -> _Costs:
    secret = new_secret()
    async with AsyncExitStack() as stack:
        if batches is None:
            subjects = {"by hand": _by_hand(secret)}
        else:
            stack.push_async_callback(batches.aclose)
            subjects = {"by hand, in batches": _by_hand_in_batches(secret, batches)}
        for name, url in urls.items():
            receiver = Receiver(secrets=secret, store=open_store(url, clock=system_clock))
            receiver.on(CommentReceived, name="handle")(_handler)
            await stack.enter_async_context(receiver.opened())
            subjects[name] = receiver.handle
        costs: _Costs = {name: [] for name in subjects}
        for handle in subjects.values():
            await _cost(handle, _deliveries(secret))
        for _ in range(rounds):
            for name, handle in subjects.items():
                costs[name].append(await _cost(handle, _deliveries(secret)))
    return costs


async def _handler(_: CommentReceived) -> None:
    """Do nothing, because the benchmark measures only the work around the handler."""


def _by_hand(secret: str) -> _Handle:
    verifier, parser, seen = Verifier(secret), EventParser(), set[str]()

    async def handle(body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        delivery = verifier.verify(body, headers)
        event = parser.parse(delivery.body, delivery.id)
        if delivery.id in seen:
            return
        await _in_a_task(event)
        seen.add(delivery.id)

    return handle


def _by_hand_in_batches(secret: str, remember: Callable[[str], Awaitable[None]]) -> _Handle:
    verifier, parser = Verifier(secret), EventParser()

    async def handle(body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        delivery = verifier.verify(body, headers)
        event = parser.parse(delivery.body, delivery.id)
        await remember(delivery.id)
        await _in_a_task(event)
        await remember(delivery.id)

    return handle


async def _in_a_task(event: Event[object]) -> None:
    assert isinstance(event, CommentReceived)
    run = asyncio.wait_for(_handler(event), _HANDLER_SECONDS)
    await asyncio.shield(asyncio.get_running_loop().create_task(run))


def _deliveries(secret: str) -> Sequence[_Delivery]:
    return [_delivery(secret, f"evt_{next(_numbers):012x}") for _ in range(_DELIVERIES)]


def _delivery(secret: str, event_id: str) -> _Delivery:
    body = event_body("comment.received", event_id=event_id)
    headers = {
        "host": "example.org",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "user-agent": "Service-Webhooks/1.0",
        **sign(secret, event_id, body),
        "example-event-type": "comment.received",
        "example-delivery-attempt": "1",
    }
    return body, [(name.encode(), value.encode()) for name, value in headers.items()]


async def _cost(handle: _Handle, deliveries: Sequence[_Delivery]) -> _Cost:
    waiting: Iterator[_Delivery] = iter(deliveries)

    async def send() -> None:
        for body, headers in waiting:
            await handle(body, headers)

    gc.collect()
    before = time.process_time(), time.perf_counter()
    await asyncio.gather(*(send() for _ in range(_AT_ONCE)))
    after = time.process_time(), time.perf_counter()
    scale = 1e6 / len(deliveries)
    return _Cost((after[0] - before[0]) * scale, (after[1] - before[1]) * scale)


PART = Part(
    "handle",
    "a delivery in process, beside the same steps by hand",
    lambda is_quick: _run(is_quick, None),
    _run,
)
