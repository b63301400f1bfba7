"""The gain of a second process: `hookonce serve` with one and with two workers, same load.

wrk runs on the last processor only. The servers, wrk and a Redis server share all processors, as on
a small machine. Each run starts a new server with an empty store.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory

from support.redis_servers import free_port, redis_server

from hookonce.verification.secrets import new_secret

from .measuring import Part, Result, spread
from .serving import Load, Server, load, write_requests

__all__ = ["PART"]

_AT_ONCE = 64
_ROUNDS, _QUICK_ROUNDS = 9, 3
_SECONDS, _QUICK_SECONDS = 4, 2
_FIRST_SECONDS = 1
_WORKERS = (1, 2)
_PATIENCE_SECONDS = 30.0
# Prepare this many requests for each second: more than any store handles.
_MOST_PER_SECOND = 15_000

_BESIDE: tuple[tuple[str, str, Callable[[Load], float]], ...] = (
    ("processor", "µs", attrgetter("cpu_us")),
    ("p99", "ms", attrgetter("p99_ms")),
)

_RECEIVER = """
import os

from hookonce import EnvironmentSecrets, Receiver
from hookonce.events import CommentReceived

receiver = Receiver(secrets=EnvironmentSecrets(), store=os.environ["STORE"])


@receiver.on(CommentReceived)
async def handle(event: CommentReceived) -> None: ...
"""


def _run(is_quick: bool) -> list[Result]:
    wrk = shutil.which("wrk")
    if wrk is None:
        print("wrk is not installed, and nothing can be measured (package `wrk`)")
        return []
    seconds = _QUICK_SECONDS if is_quick else _SECONDS
    loads: defaultdict[tuple[str, int], list[Load]] = defaultdict(list)
    secret = new_secret()
    with TemporaryDirectory(prefix="hookonce-benchmark-") as name, redis_server() as redis:
        folder = Path(name)
        (folder / "served.py").write_text(_RECEIVER)
        for number in range(_QUICK_ROUNDS if is_quick else _ROUNDS):
            write_requests(folder / "first", secret, _FIRST_SECONDS * _MOST_PER_SECOND)
            write_requests(folder / "requests", secret, seconds * _MOST_PER_SECOND)
            for store, url in (
                ("SQLite", "sqlite:///{}.db"),
                ("Redis", f"{redis.url}?prefix={{}}"),
            ):
                for workers in _WORKERS if number % 2 else reversed(_WORKERS):
                    environment = {
                        "HOOKONCE_SECRETS": secret,
                        "STORE": url.format(f"round{number}x{workers}"),
                    }
                    with _serving(folder, workers, environment) as server:
                        for file, length in (("first", _FIRST_SECONDS), ("requests", seconds)):
                            found = load(
                                wrk,
                                server,
                                folder / file,
                                at_once=_AT_ONCE,
                                seconds=length,
                                may_repeat=False,
                            )
                    loads[store, workers].append(found)
    return [result for store in ("SQLite", "Redis") for result in _compared(store, loads)]


def _compared(store: str, loads: dict[tuple[str, int], list[Load]]) -> Iterator[Result]:
    case = f"{store}, {_AT_ONCE} connections"
    alone = [one.per_second for one in loads[store, _WORKERS[0]]]
    for workers in _WORKERS:
        found = [one.per_second for one in loads[store, workers]]
        ratio = statistics.median(a / b for a, b in zip(found, alone, strict=True))
        name = f"{workers} worker{'s' if workers > 1 else ''}"
        yield Result(case, name, statistics.median(found), "/s", spread(found), ratio)
        for what, unit, of in _BESIDE:
            values = [of(one) for one in loads[store, workers]]
            yield Result(case, f"{name}, {what}", statistics.median(values), unit, spread(values))


@contextmanager
def _serving(folder: Path, workers: int, environment: dict[str, str]) -> Iterator[Server]:
    """Serve the receiver in this many processes until the block ends."""
    port = free_port()
    log = folder / "log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", "from hookonce.cli import main; main()", "serve"),
                *("served:receiver", "--port", str(port), "--processes", str(workers)),
            ],
            cwd=folder,
            env={**os.environ, **environment},
            stderr=errors,
        )
    try:
        _wait_for(process, port, log, workers)
        children = re.findall(r"process \S+:(\d+):\S+ is ready", log.read_text())
        yield Server(process.pid, port, tuple(map(int, children)))
    finally:
        process.terminate()
        process.wait(_PATIENCE_SECONDS)


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path, workers: int) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        with socket.socket() as connection:
            answers = connection.connect_ex(("127.0.0.1", port)) == 0
        started = log.read_text().count("is ready" if workers > 1 else "running on")
        if answers and started == workers:
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"a server did not start: {log.read_text()}")
        time.sleep(0.02)


PART = Part("processes", "throughput of `hookonce serve` with one worker and with two", _run)
