"""What a delivery costs over HTTP, beside an application that does nothing.

uvicorn with httptools and uvloop on one processor, wrk on another. Every request is signed
beforehand and has an id of its own, so that each is handled.
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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import NamedTuple

from support.redis_servers import free_port, redis_server

from hookonce import sign
from hookonce.samples import event_body
from hookonce.secrets import new_secret

from .apps import APPS
from .measuring import AtLeast, AtMost, Part, Result, spread

__all__ = ["PART"]

_AT_ONCE, _QUICK_AT_ONCE = (1, 16, 64, 256), (64,)
_ROUNDS, _QUICK_ROUNDS = 5, 3
_SECONDS, _QUICK_SECONDS = 3, 1
# As many as one processor can take at the most, and a tenth more.
_MOST_PER_SECOND = 22_000
_BASE = next(iter(APPS))
_RATE_TARGETS = {
    "receiver, memory": AtLeast(0.75),
    "receiver, SQLite": AtLeast(0.50),
    "receiver, Redis": AtLeast(0.65),
}
_P99_TARGETS = {"receiver, Redis": AtMost(3)}
# The targets are for the middle; one at a time or hundreds show something else.
_TARGETED = 64
_SCRIPT = Path(__file__).with_name("requests.lua")
_PATIENCE_SECONDS = 20.0


class _Load(NamedTuple):
    """What one run of wrk found."""

    per_second: float
    p50_ms: float
    p99_ms: float


def _run(is_quick: bool) -> list[Result]:
    wrk = shutil.which("wrk")
    if wrk is None:
        print("wrk is not installed, and nothing can be measured (package `wrk`)")
        return []
    results: list[Result] = []
    for at_once in _QUICK_AT_ONCE if is_quick else _AT_ONCE:
        results += _compared(wrk, at_once, is_quick=is_quick)
    return results


def _compared(wrk: str, at_once: int, *, is_quick: bool) -> list[Result]:
    seconds = _QUICK_SECONDS if is_quick else _SECONDS
    loads: defaultdict[str, list[_Load]] = defaultdict(list)
    secret = new_secret()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="hookonce-benchmark-")))
        server = stack.enter_context(redis_server())
        environment = {
            "BENCHMARK_SECRET": secret,
            "BENCHMARK_FOLDER": str(folder),
            "BENCHMARK_REDIS": server.url,
        }
        ports = {name: stack.enter_context(_serving(name, environment)) for name in APPS}
        for _ in range(_QUICK_ROUNDS if is_quick else _ROUNDS):
            for name, port in ports.items():
                requests = _signed(folder / "requests", secret, seconds * _MOST_PER_SECOND)
                may_repeat = name.startswith("null")  # it handles nothing
                load = _load(wrk, port, at_once, seconds, requests, may_repeat=may_repeat)
                loads[name].append(load)
    case = f"{at_once} at once"
    targets = _RATE_TARGETS if at_once == _TARGETED else {}
    p99_targets = _P99_TARGETS if at_once == _TARGETED else {}
    base = loads[_BASE]
    results = []
    for name, own in loads.items():
        rates = [load.per_second for load in own]
        ratio = _ratio(rates, [load.per_second for load in base])
        results.append(
            Result(
                case, name, statistics.median(rates), "/s", spread(rates), ratio, targets.get(name)
            )
        )
    for name, own in loads.items():
        for what, times, bases in (
            ("p50", [load.p50_ms for load in own], [load.p50_ms for load in base]),
            ("p99", [load.p99_ms for load in own], [load.p99_ms for load in base]),
        ):
            target = p99_targets.get(name) if what == "p99" else None
            middle, ratio = statistics.median(times), _ratio(times, bases)
            results.append(
                Result(case, f"{name}, {what}", middle, "ms", spread(times), ratio, target)
            )
    return results


def _ratio(own: list[float], base: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(own, base, strict=True))


def _signed(file: Path, secret: str, count: int) -> Path:
    """Write so many requests, each with an event of its own, for wrk's script."""
    run = token_hex(6)
    with file.open("wb") as out:
        for number in range(count):
            event_id = f"evt_{run}{number:012x}"
            body = event_body("comment.received", event_id=event_id)
            headers = {
                "host": "127.0.0.1",
                "content-type": "application/json",
                "content-length": str(len(body)),
                "user-agent": "example-webhooks/1.0 (+https://docs.example/webhooks)",
                "example-event-type": "comment.received",
                "example-delivery-attempt": "1",
                **sign(secret, event_id, body),
            }
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            out.write(f"POST /webhooks HTTP/1.1\r\n{head}\r\n".encode() + body + b"\0")
    return file


@contextmanager
def _serving(name: str, environment: dict[str, str]) -> Iterator[int]:
    """Serve an application on the first processor, and give its port."""
    port = free_port()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "uvicorn", "benchmarks.apps:make", "--factory"),
            *("--http", "httptools", "--loop", "uvloop", "--port", str(port)),
            *("--log-level", "error", "--no-access-log"),
        ],
        env={
            **os.environ,
            **environment,
            "BENCHMARK_APP": name,
            "PYTHONPATH": str(Path(__file__).parents[1]),
        },
    )
    try:
        _pin(process, first=True)
        _wait_for(process, port)
        yield port
    finally:
        process.terminate()
        process.wait(_PATIENCE_SECONDS)


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("a server did not start")
        time.sleep(0.02)


def _pin(process: subprocess.Popen[bytes], *, first: bool) -> None:
    """Keep a process on the first processor, or on the last, where the system can do so."""
    if hasattr(os, "sched_setaffinity"):
        usable = os.sched_getaffinity(0)
        os.sched_setaffinity(process.pid, {min(usable) if first else max(usable)})


def _load(
    wrk: str, port: int, at_once: int, seconds: int, requests: Path, *, may_repeat: bool
) -> _Load:
    process = subprocess.Popen(
        [
            *(wrk, "--threads", "1", "--connections", str(at_once), "--duration", f"{seconds}s"),
            *("--latency", "--script", str(_SCRIPT), f"http://127.0.0.1:{port}"),
            *("--", str(requests)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    _pin(process, first=False)
    output, errors = process.communicate()
    text = output.decode()
    if "Non-2xx" in text or "Socket errors" in text:
        raise RuntimeError(f"not every delivery was accepted: {text}")
    if errors and not may_repeat:  # else duplicates were counted
        raise RuntimeError(errors.decode())
    rate = re.search(r"Requests/sec: +([\d.]+)", text)
    assert rate is not None, text
    return _Load(float(rate[1]), _milliseconds(text, "50%"), _milliseconds(text, "99%"))


def _milliseconds(text: str, what: str) -> float:
    found = re.search(rf"{what} +([\d.]+)(us|ms|s)\b", text)
    assert found is not None, text
    return float(found[1]) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[found[2]]


PART = Part("intake", "deliveries over HTTP, each with an id of its own, by store", _run)
