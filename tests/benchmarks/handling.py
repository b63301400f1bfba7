"""What `Receiver.handle` costs in process, beside the same steps by hand: verify, read, run, note.

By hand an event is noted in a set, after a handler in a task of its own and with a time limit, as a
careful user writes it. What a store of its own process or machine takes on top is the rest.

It is measured twice: as the system places the threads, and with all of them on one processor, where
what one has just used is still at hand for the other. What is between the two is the price of going
from one processor to another, and of neighbours that are let in meanwhile.
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
from typing import TypeAlias

import uvloop
from support.redis_servers import redis_server

from hookonce import Receiver, Verifier, sign
from hookonce.clock import system_clock
from hookonce.events import CommentReceived, EventParser
from hookonce.samples.events import event_body
from hookonce.stores import open_store
from hookonce.verification.secrets import new_secret

from .measuring import AtMost, Part, Result, pinned
from .rounds import compared

__all__ = ["PART"]

# Many short rounds: within one a machine that is shared seldom changes its speed.
_ROUNDS, _QUICK_ROUNDS = 45, 21
_DELIVERIES = 1_000
_AT_ONCE = 64
_HANDLER_SECONDS = 900
_TARGETS = {"memory": AtMost(1.5), "SQLite": AtMost(3.2), "Redis": AtMost(2.3)}

_Delivery: TypeAlias = tuple[bytes, list[tuple[bytes, bytes]]]
_Handle: TypeAlias = Callable[[bytes, list[tuple[bytes, bytes]]], Awaitable[object]]

_numbers = count()


def _run(is_quick: bool) -> list[Result]:
    logging.getLogger("hookonce").setLevel(logging.CRITICAL)
    rounds = _QUICK_ROUNDS if is_quick else _ROUNDS
    places: dict[str, AbstractContextManager[None]] = {
        f"{_AT_ONCE} at once": nullcontext(),
        f"{_AT_ONCE} at once, on one processor": pinned(),
    }
    results: list[Result] = []
    with redis_server() as server:
        for case, place in places.items():
            server.flush()
            with TemporaryDirectory(prefix="hookonce-benchmark-") as folder, place:
                urls = {
                    "memory": "memory://",
                    "SQLite": f"sqlite:///{Path(folder)}/hooks.db",
                    "Redis": server.url,
                }
                values = uvloop.run(_measured(urls, rounds))
            results += compared(case, values, "µs", _TARGETS)
    return results


async def _measured(urls: dict[str, str], rounds: int) -> dict[str, list[float]]:
    secret = new_secret()
    async with AsyncExitStack() as stack:
        subjects: dict[str, _Handle] = {"by hand": _by_hand(secret)}
        for name, url in urls.items():
            receiver = Receiver(secrets=secret, store=open_store(url, clock=system_clock))
            receiver.on(CommentReceived, name="handle")(_handler)
            await stack.enter_async_context(receiver.opened())
            subjects[name] = receiver.handle
        values: dict[str, list[float]] = {name: [] for name in subjects}
        for handle in subjects.values():
            await _microseconds(handle, _deliveries(secret))
        for _ in range(rounds):
            for name, handle in subjects.items():
                values[name].append(await _microseconds(handle, _deliveries(secret)))
    return values


async def _handler(_: CommentReceived) -> None:
    """Do nothing: what is measured is all that is around it."""


def _by_hand(secret: str) -> _Handle:
    verifier, parser, seen = Verifier(secret), EventParser(), set[str]()

    async def handle(body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        delivery = verifier.verify(body, headers)
        event = parser.parse(delivery.body, delivery.id)
        if delivery.id in seen:
            return
        assert isinstance(event, CommentReceived)
        run = asyncio.wait_for(_handler(event), _HANDLER_SECONDS)
        await asyncio.shield(asyncio.get_running_loop().create_task(run))
        seen.add(delivery.id)

    return handle


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


async def _microseconds(handle: _Handle, deliveries: Sequence[_Delivery]) -> float:
    """Return the processor time of this process for a delivery, its threads included."""
    waiting: Iterator[_Delivery] = iter(deliveries)

    async def send() -> None:
        for body, headers in waiting:
            await handle(body, headers)

    gc.collect()
    started = time.process_time()
    await asyncio.gather(*(send() for _ in range(_AT_ONCE)))
    return (time.process_time() - started) / len(deliveries) * 1e6


PART = Part("handle", "a delivery in process, beside the same steps by hand", _run)
