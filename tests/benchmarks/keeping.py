"""The cost of a delivery with `keep_handled`, beside the cost of a delivery without it.

For each store two receivers are under the same load over HTTP in turns. "Processor" is the time
that the server's process takes of its processor for one delivery.
"""

from __future__ import annotations

import shutil
import statistics
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from support.postgres import postgres_server
from support.redis_servers import redis_server

from hookonce.verification.secrets import new_secret

from .apps import KEEPING
from .measuring import AtMost, Part, Result, pinned, spread
from .serving import Load, keep_beside, load, serving, write_requests

__all__ = ["PART"]

_AT_ONCE = 64
_ROUNDS, _QUICK_ROUNDS = 21, 7
# Compile statements and fill caches before the measurement.
_FIRST_SECONDS = 1
_SECONDS, _QUICK_SECONDS = 2, 1
# Prepare this many requests for each second: more than any store handles.
_MOST_PER_SECOND = 15_000
_TARGET = AtMost(1.15)
_MEASURES: tuple[tuple[str, str, Callable[[Load], float]], ...] = (
    (", processor", "µs", lambda one: one.cpu_us),
    ("", "/s", lambda one: one.per_second),
)


def _run(is_quick: bool) -> list[Result]:
    wrk = shutil.which("wrk")
    if wrk is None:
        print("wrk is not installed, and nothing can be measured (package `wrk`)")
        return []
    seconds = _QUICK_SECONDS if is_quick else _SECONDS
    secret, results = new_secret(), []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="hookonce-benchmark-")))
        redis = stack.enter_context(redis_server())
        postgres = stack.enter_context(postgres_server(fsync="on", shared_buffers="128MB"))
        for server_process in (redis.process, postgres.process):
            assert server_process is not None
            keep_beside(server_process.pid)
        environment = {
            "BENCHMARK_SECRET": secret,
            "BENCHMARK_FOLDER": str(folder),
            "BENCHMARK_REDIS": redis.url,
            "BENCHMARK_POSTGRES": postgres.url,
        }
        stack.enter_context(pinned())
        for store, pair in KEEPING.items():
            loads: defaultdict[str, list[Load]] = defaultdict(list)
            names = list(pair)
            for _ in range(_QUICK_ROUNDS if is_quick else _ROUNDS):
                names.reverse()
                write_requests(folder / "first", secret, _FIRST_SECONDS * _MOST_PER_SECOND)
                write_requests(folder / "requests", secret, seconds * _MOST_PER_SECOND)
                for name in names:
                    # Start a new process each time: the memory layout of a process affects speed.
                    with serving(name, environment) as server:
                        send = partial(load, wrk, server, at_once=_AT_ONCE, may_repeat=False)
                        send(folder / "first", seconds=_FIRST_SECONDS)
                        loads[name].append(send(folder / "requests", seconds=seconds))
                redis.flush()
            results += _compared(store, list(pair), loads)
    return results


def _compared(case: str, names: list[str], loads: dict[str, list[Load]]) -> list[Result]:
    """Return the processor time of a delivery, and the number of deliveries per second."""
    results = []
    for what, unit, of in _MEASURES:
        base = [of(one) for one in loads[names[0]]]
        for name in names:
            own = [of(one) for one in loads[name]]
            is_target = name != names[0] and unit == "µs"
            results.append(
                Result(
                    case,
                    f"{name}{what}",
                    statistics.median(own),
                    unit,
                    spread(own),
                    statistics.median(a / b for a, b in zip(own, base, strict=True)),
                    _TARGET if is_target else None,
                )
            )
    return results


PART = Part("keeping", "a delivery that is kept after its success, beside one that is not", _run)
