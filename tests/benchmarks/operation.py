"""The cost of watching a receiver: an inspector with an open page, and metrics.

The same receiver on SQLite gets the same load in three ways, in turn: nobody watches it; a live
page of its inspector is open; the page is open, and Prometheus reads the metrics every second. In
all three, the file with the receiver's secrets is replaced ten times a second. The run stops at the
first refused delivery.
"""

from __future__ import annotations

import shutil
import statistics
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from hookonce.verification.secrets import new_secret

from .apps import INSPECTOR_TOKEN, SECRETS_FILE, WATCHED
from .measuring import AtLeast, Part, Result, pinned, spread
from .serving import Load, Server, load, serving, write_requests

__all__ = ["PART"]

_AT_ONCE = 64
_ROUNDS, _QUICK_ROUNDS = 21, 11
# Compile templates and fill caches before the measurement.
_FIRST_SECONDS = 1
_SECONDS, _QUICK_SECONDS = 2, 1
_TARGET = AtLeast(0.90)
# Prepare this many requests for each second: more than any store handles.
_MOST_PER_SECOND = 15_000
_MEASURES: tuple[tuple[str, str, Callable[[Load], float]], ...] = (
    ("", "/s", lambda one: one.per_second),
    (", processor", "µs", lambda one: one.cpu_us),
)
_PLAIN, _INSPECTED, _MEASURED = WATCHED


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
        # In production, browsers and the program that replaces secrets run on another machine. Here
        # they are threads of this process, so keep this process off the server's processor.
        stack.enter_context(pinned())
        names = list(WATCHED)
        for _ in range(_QUICK_ROUNDS if is_quick else _ROUNDS):
            names.reverse()
            write_requests(folder / "first", secret, _FIRST_SECONDS * _MOST_PER_SECOND)
            write_requests(folder / "requests", secret, seconds * _MOST_PER_SECOND)
            for name in names:
                # Start a new process each time: the memory layout of a process affects speed.
                with serving(name, environment) as server, ExitStack() as turn:
                    turn.enter_context(_rotated(secrets, secret))
                    turn.enter_context(_looked_at(server, name))
                    send = partial(load, wrk, server, at_once=_AT_ONCE, may_repeat=False)
                    send(folder / "first", seconds=_FIRST_SECONDS)
                    loads[name].append(send(folder / "requests", seconds=seconds))
    return [
        *_compared(loads, "inspector open", _INSPECTED, (_MEASURED,), _TARGET),
        *_compared(loads, "all of it", _PLAIN, (_INSPECTED, _MEASURED), None),
    ]


def _compared(
    loads: dict[str, list[Load]],
    case: str,
    base: str,
    others: Sequence[str],
    target: AtLeast | None,
) -> list[Result]:
    """Return each receiver's deliveries per second, and the processor time of one delivery."""
    results = []
    for name in (base, *others):
        for what, unit, of in _MEASURES:
            own, beside = ([of(one) for one in loads[which]] for which in (name, base))
            results.append(
                Result(
                    case,
                    f"{name}{what}",
                    statistics.median(own),
                    unit,
                    spread(own),
                    statistics.median(a / b for a, b in zip(own, beside, strict=True)),
                    target if name != base and not what else None,
                )
            )
    return results


@contextmanager
def _looked_at(server: Server, name: str) -> Iterator[None]:
    """Keep a live page of the inspector open; read the metrics, if served, every second."""
    url = f"http://127.0.0.1:{server.port}"
    stopped = threading.Event()

    def scrape() -> None:
        while not stopped.wait(1.0):
            with urllib.request.urlopen(f"{url}/metrics") as answer:
                answer.read()

    with ExitStack() as stack:
        jobs = [scrape] if name == _MEASURED else []
        if name != _PLAIN:
            headers = {"authorization": f"Bearer {INSPECTOR_TOKEN}"}
            stream = urllib.request.Request(f"{url}/inspector/stream", headers=headers)
            page = stack.enter_context(urllib.request.urlopen(stream))

            def read() -> None:
                while not stopped.is_set() and page.readline():
                    pass

            jobs.append(read)
        stack.enter_context(_in_threads(stopped, *jobs))
        yield


@contextmanager
def _rotated(file: Path, secret: str) -> Iterator[None]:
    """Replace the second of two secrets again and again during the block."""
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
