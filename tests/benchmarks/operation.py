"""What it costs to watch a receiver: metrics, an open inspector, and secrets that are rotated.

The same receiver on SQLite is under the same load twice, in turns. Once it is watched by nobody.
The other time it counts for Prometheus, who asks every second; a live page of its inspector is
open; and the file its secrets are read from is replaced ten times a second. One delivery refused
ends the run.
"""

from __future__ import annotations

import shutil
import statistics
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from hookonce.secrets import new_secret

from .apps import SECRETS_FILE, WATCHED
from .measuring import AtLeast, Part, Result, spread
from .serving import Load, Server, load, serving, write_requests

__all__ = ["PART"]

_AT_ONCE = 64
_ROUNDS, _QUICK_ROUNDS = 9, 5
_SECONDS, _QUICK_SECONDS = 3, 2
_TARGET = AtLeast(0.90)
# More than any store takes in a second.
_MOST_PER_SECOND = 15_000
_PLAIN, _WATCHED = WATCHED


def _run(is_quick: bool) -> list[Result]:
    wrk = shutil.which("wrk")
    if wrk is None:
        print("wrk is not installed, and nothing can be measured (package `wrk`)")
        return []
    seconds = _QUICK_SECONDS if is_quick else _SECONDS
    secret = new_secret()
    loads: defaultdict[str, list[Load]] = defaultdict(list)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="hookonce-benchmark-")))
        secrets = folder / "secrets"
        secrets.write_text(secret)
        environment = {
            "BENCHMARK_SECRET": secret,
            "BENCHMARK_FOLDER": str(folder),
            SECRETS_FILE: str(secrets),
        }
        servers = {name: stack.enter_context(serving(name, environment)) for name in WATCHED}
        for _ in range(_QUICK_ROUNDS if is_quick else _ROUNDS):
            for name, server in servers.items():
                write_requests(folder / "requests", secret, seconds * _MOST_PER_SECOND)
                with ExitStack() as turn:
                    if name == _WATCHED:
                        turn.enter_context(_looked_at(server))
                        turn.enter_context(_rotated(secrets, secret))
                    loads[name].append(
                        load(
                            wrk,
                            server,
                            folder / "requests",
                            at_once=_AT_ONCE,
                            seconds=seconds,
                            may_repeat=False,
                        )
                    )
    return [
        *_compared(loads, "", "/s", lambda one: one.per_second, _TARGET),
        *_compared(loads, ", processor", "µs", lambda one: one.cpu_us, None),
        *_compared(loads, ", p99", "ms", lambda one: one.p99_ms, None),
    ]


def _compared(
    loads: dict[str, list[Load]],
    what: str,
    unit: str,
    of: Callable[[Load], float],
    target: AtLeast | None,
) -> list[Result]:
    results = []
    for name in WATCHED:
        own, base = ([of(one) for one in loads[which]] for which in (name, _PLAIN))
        results.append(
            Result(
                f"{_AT_ONCE} at once",
                f"{name}{what}",
                statistics.median(own),
                unit,
                spread(own),
                statistics.median(a / b for a, b in zip(own, base, strict=True)),
                target if name == _WATCHED else None,
            )
        )
    return results


@contextmanager
def _looked_at(server: Server) -> Iterator[None]:
    """Keep a live page of the inspector open, and read the metrics every second."""
    url = f"http://127.0.0.1:{server.port}"
    stopped = threading.Event()
    with urllib.request.urlopen(f"{url}/inspector/stream") as stream:

        def read() -> None:
            while not stopped.is_set() and stream.readline():
                pass

        def scrape() -> None:
            while not stopped.wait(1.0):
                with urllib.request.urlopen(f"{url}/metrics") as answer:
                    answer.read()

        with _in_threads(stopped, read, scrape):
            yield


@contextmanager
def _rotated(file: Path, secret: str) -> Iterator[None]:
    """Put another secret in force beside this one, again and again."""
    stopped = threading.Event()

    def rotate() -> None:
        while not stopped.wait(0.1):
            new = file.with_suffix(".new")
            new.write_text(f"{secret}\n{new_secret()}\n")
            new.replace(file)

    with _in_threads(stopped, rotate):
        yield


@contextmanager
def _in_threads(stopped: threading.Event, *functions: Callable[[], None]) -> Iterator[None]:
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join(5.0)


PART = Part("operation", "a receiver that is watched, beside one that is not", _run)
