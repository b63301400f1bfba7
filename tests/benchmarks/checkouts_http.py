"""The cost of a delivery over HTTP in one checkout, beside another checkout.

``PYTHONPATH=tests python -m benchmarks.checkouts_http OLD NEW`` takes two folders with a
``src/hookonce`` and a ``tests/benchmarks``. In each pair both checkouts serve the same application
of ``apps``, each in a new process on the same processor; the next pair has the opposite order. The
result is the median of the pairs' ratios of processor time.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from support.redis_servers import redis_server

from hookonce.verification.secrets import new_secret

from .measuring import pinned
from .serving import keep_beside, load, serving, write_requests

_APPS = ("receiver, memory", "receiver, SQLite", "receiver, Redis")
_AT_ONCE = 64
_FIRST_SECONDS, _SECONDS = 1, 2
# No receiver handles as many events in a second; then the load would have to repeat events.
_MOST_PER_SECOND = 15_000


def _pair(wrk: str, name: str, order: Sequence[Path], *, seed: int) -> dict[Path, float]:
    """Return the microseconds of a delivery in each checkout."""
    secret, costs = new_secret(), dict[Path, float]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="hookonce-benchmark-")))
        stack.enter_context(pinned())
        first, requests = folder / "first", folder / "requests"
        write_requests(first, secret, _FIRST_SECONDS * _MOST_PER_SECOND)
        write_requests(requests, secret, _SECONDS * _MOST_PER_SECOND)
        for number, checkout in enumerate(order):
            own = folder / str(number)
            own.mkdir()
            with redis_server() as redis:
                assert redis.process is not None
                keep_beside(redis.process.pid)
                environment = {
                    "BENCHMARK_SECRET": secret,
                    "BENCHMARK_FOLDER": str(own),
                    "BENCHMARK_REDIS": redis.url,
                    "PYTHONHASHSEED": str(seed),
                }
                paths = [str(checkout / "src"), str(checkout / "tests")]
                with serving(name, environment, paths) as server:
                    load(
                        wrk,
                        server,
                        first,
                        at_once=_AT_ONCE,
                        seconds=_FIRST_SECONDS,
                        may_repeat=False,
                    )
                    measured = load(
                        wrk, server, requests, at_once=_AT_ONCE, seconds=_SECONDS, may_repeat=False
                    )
            costs[checkout] = measured.cpu_us
    return costs


def main(arguments: Sequence[str]) -> None:
    """Compare two checkouts, and print a line for each application."""
    parser = argparse.ArgumentParser(description="Compare the costs of two checkouts over HTTP.")
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--pairs", type=int, default=30)
    asked = parser.parse_args(arguments)
    wrk = shutil.which("wrk")
    if wrk is None:
        sys.exit("wrk is not installed, and nothing can be measured (package `wrk`)")
    old, new = asked.old.resolve(), asked.new.resolve()
    ratios: dict[str, list[float]] = defaultdict(list)
    for pair in range(asked.pairs):
        order = (old, new) if pair % 2 == 0 else (new, old)
        for name in _APPS:
            costs = _pair(wrk, name, order, seed=pair + 1)
            ratios[name].append(costs[new] / costs[old])
    for name, values in ratios.items():
        low, median, high = statistics.quantiles(values, n=4)
        print(f"{name:30} {median:.3f}  (quartiles {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main(sys.argv[1:])
