"""The costs with several processes, with many remembered events, and with a deep inbox."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from tempfile import TemporaryDirectory

from support.redis_servers import redis_server

from hookonce.stores.values import new_token

from .crowd import InboxBurst, RememberingBurst, inbox_burst, remembering_burst
from .draining import Work
from .filling import deliveries, fill
from .fleet import drain_by_processes
from .measuring import AtMost, Part, Result
from .places import INBOX_PLACES, PLACES, remember
from .rounds import compared, in_rounds

__all__ = ["PART"]

_ROUNDS, _QUICK_ROUNDS = 5, 3
_EVENTS, _QUICK_EVENTS = 10_000, 4_000
_AT_ONCE = 64
_HANDLER_SECONDS = 0.005
_REMEMBERED, _QUICK_REMEMBERED = 1_000_000, 100_000
_DEPTH, _QUICK_DEPTH = 1_000_000, 100_000
_BURSTS, _QUICK_BURSTS = 31, 15
# Warm up first, so that the figures leave out new connections and new pages of the file.
_WARM_UPS = 2
# Remembered events must not slow down claims, since every delivery waits for its claim.
_CLAIM_TARGET = AtMost(1.20)
_POSTGRES_TARGETS = dict.fromkeys(("claim", "put", "take", "complete"), AtMost(1.20))


def _run(is_quick: bool) -> list[Result]:
    return [
        *_by_processes(is_quick=is_quick),
        *(result for name in PLACES for result in _of_store(is_quick, name)),
    ]


def _of_store(is_quick: bool, name: str) -> list[Result]:
    logging.getLogger("hookonce").setLevel(logging.CRITICAL)
    bursts = _QUICK_BURSTS if is_quick else _BURSTS
    results = _remembering(name, _QUICK_REMEMBERED if is_quick else _REMEMBERED, bursts)
    if name in INBOX_PLACES:
        results += _deep(name, _QUICK_DEPTH if is_quick else _DEPTH, bursts)
    return results


def _by_processes(*, is_quick: bool) -> list[Result]:
    logging.getLogger("hookonce").setLevel(logging.CRITICAL)
    work = Work(_QUICK_EVENTS if is_quick else _EVENTS, _AT_ONCE, 0.0)
    waiting = work._replace(handler_seconds=_HANDLER_SECONDS)
    rounds = _QUICK_ROUNDS if is_quick else _ROUNDS
    results: list[Result] = []
    with ExitStack() as stack:
        server = stack.enter_context(redis_server())
        folder = stack.enter_context(TemporaryDirectory(prefix="hookonce-benchmark-"))

        def on_redis() -> str:
            server.flush()
            return server.url

        def on_sqlite() -> str:
            return f"sqlite:///{folder}/{new_token()}.db"

        results += _processes("one Redis server", on_redis, work, (1, 2, 4), rounds)
        if not is_quick:
            results += _processes("one Redis server", on_redis, waiting, (1, 2, 4), rounds)
        results += _processes("one SQLite file", on_sqlite, work, (1, 2), rounds)
    return results


def _processes(
    what: str, new_inbox: Callable[[], str], work: Work, counts: Sequence[int], rounds: int
) -> list[Result]:
    def drained_by(processes: int) -> float:
        return asyncio.run(drain_by_processes(new_inbox(), work, processes)).per_second

    subjects = {_worker_processes(count): partial(drained_by, count) for count in counts}
    case = f"{what}, {work.handlers}, on {os.cpu_count()} processors"
    return compared(case, in_rounds(subjects, rounds), "/s")


def _worker_processes(count: int) -> str:
    return f"{count} worker processes" if count > 1 else "1 worker process"


def _remembering(name: str, number: int, bursts: int) -> list[Result]:
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        empty, crowded = (stack.enter_context(PLACES[name]()) for _ in range(2))
        runner.run(remember(crowded, number))
        stores = {"nothing": empty, f"{number:,} events": crowded}
        found: dict[str, list[RememberingBurst]] = {what: [] for what in stores}
        for _ in range(_WARM_UPS + bursts):
            for what, store in stores.items():
                found[what].append(runner.run(remembering_burst(store)))
        for store in (empty, crowded):
            runner.run(store.aclose())
    return _by_step(name, "remembering", found, _targets(name))


def _deep(name: str, depth: int, bursts: int) -> list[Result]:
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        shallow, deep = (stack.enter_context(INBOX_PLACES[name]()) for _ in range(2))
        for store in (shallow, deep):
            runner.run(store.open())
        runner.run(fill(deep, deliveries(depth)))
        stores = {"nothing": shallow, f"{depth:,} events": deep}
        found: dict[str, list[InboxBurst]] = {what: [] for what in stores}
        for _ in range(_WARM_UPS + bursts):
            for what, store in stores.items():
                found[what].append(runner.run(inbox_burst(store)))
        for store in (shallow, deep):
            runner.run(store.aclose())
    return _by_step(name, "waiting", found, _targets(name) if name == "PostgreSQL" else {})


def _targets(name: str) -> Mapping[str, AtMost]:
    return _POSTGRES_TARGETS if name == "PostgreSQL" else {"claim": _CLAIM_TARGET}


def _by_step(
    name: str,
    what: str,
    found: Mapping[str, Sequence[tuple[float, ...]]],
    targets: Mapping[str, AtMost],
) -> list[Result]:
    """Compare a full store with an empty store, step by step."""
    steps = InboxBurst._fields if what == "waiting" else RememberingBurst._fields
    results: list[Result] = []
    for place, step in enumerate(steps):
        values = {each: [burst[place] for burst in own[_WARM_UPS:]] for each, own in found.items()}
        own_target = {each: targets[step] for each in list(values)[1:] if step in targets}
        results += compared(f"{name}, {step}, {what}", values, "µs", own_target)
    return results


PART = Part("scale", "several processes, many remembered events, a deep inbox", _run, _of_store)
