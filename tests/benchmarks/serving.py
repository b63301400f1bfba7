"""Runs applications under uvicorn, and sends requests to them with wrk.

uvicorn (httptools, uvloop) has the first processor to itself, with all its threads: the one that
writes to SQLite is part of what is measured. wrk has the last processor, and so does a Redis
server, which could be on another machine and must not take turns with the application. The load
also shows how busy both processors are: if the first one is always busy and the last one is not,
the application is the limit. On a machine with one processor, all of them share it.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

from support.redis_servers import free_port

from hookonce import sign
from hookonce.samples.events import event_body

__all__ = [
    "Load",
    "Server",
    "family_cpu_seconds",
    "keep_beside",
    "load",
    "serving",
    "write_requests",
]

_SCRIPT = Path(__file__).with_name("requests.lua")
_PATIENCE_SECONDS = 20.0


class Server(NamedTuple):
    """A server of an application: one process, or a parent with several child processes."""

    pid: int
    port: int
    children: tuple[int, ...] = ()


class Load(NamedTuple):
    """The result of one run of wrk.

    Attributes:
        per_second: requests answered in a second.
        p50_ms: half the answers came within it.
        p99_ms: all but a hundredth of them did.
        cpu_us: processor time of the server's processes for one request, their threads and the
            system's part included.
        busy: how much of its processor the server used.
        busy_beside: how much of the last processor wrk and the processes ``beside`` it used.
        beside_us: processor time of the processes ``beside`` for one request.

    """

    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    busy: float
    busy_beside: float
    beside_us: float


@contextmanager
def serving(
    name: str, environment: Mapping[str, str], paths: Sequence[str] = sys.path
) -> Iterator[Server]:
    """Serve the application with this name until the block ends.

    Args:
        name: the name of an application of ``apps``.
        environment: variables for the server's process.
        paths: the folders from which it imports.
    """
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
            "PYTHONPATH": os.pathsep.join(paths),
        },
    )
    try:
        _pin(process.pid, first=True)
        _wait_for(process, port)
        yield Server(process.pid, port)
    finally:
        process.terminate()
        try:
            process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("a server did not start")
        time.sleep(0.02)


def keep_beside(pid: int) -> None:
    """Keep a process, its threads and its children on the last processor, not the applications'."""
    _pin(pid, first=False)  # first of all, because children inherit it
    for child in _family(pid)[1:]:
        with suppress(FileNotFoundError, ProcessLookupError):  # the child has ended
            _pin(child, first=False)


def _pin(pid: int, *, first: bool) -> None:
    """Keep a process on the first or the last processor, if the system can do that."""
    if not hasattr(os, "sched_setaffinity"):
        return
    usable = os.sched_getaffinity(0)
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {min(usable) if first else max(usable)})


def write_requests(file: Path, secret: str, count: int) -> None:
    """Write this many deliveries, each of another event, for wrk's script.

    Ids come in no order, as those of a sender do: in a table that is sorted by them, ids that only
    grow would all be written to one page.
    """
    with file.open("wb") as out:
        for _ in range(count):
            event_id = f"evt_{token_hex(12)}"
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


def load(
    wrk: str,
    server: Server,
    requests: Path,
    *,
    at_once: int,
    seconds: int,
    may_repeat: bool,
    beside: Sequence[int] = (),
) -> Load:
    """Send requests over this many connections, and return the result.

    Args:
        wrk: the program.
        server: where to.
        requests: what ``write_requests`` wrote.
        at_once: how many connections.
        seconds: how long.
        may_repeat: whether requests may be sent again when all have been sent; else RuntimeError.
        beside: processes whose work, and that of their children, counts with wrk's, since they do
            it on the same processor.

    """
    servers = [server.pid, *server.children]
    before, before_beside = _cpu_seconds(servers), sum(map(family_cpu_seconds, beside))
    process = subprocess.Popen(
        [
            *(wrk, "--threads", "1", "--connections", str(at_once), "--duration", f"{seconds}s"),
            *("--latency", "--script", str(_SCRIPT), f"http://127.0.0.1:{server.port}"),
            *("--", str(requests)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        keep_beside(process.pid)
        output, errors = process.communicate(timeout=seconds + _PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
    own = _cpu_seconds(servers) - before
    others = sum(map(family_cpu_seconds, beside)) - before_beside
    if process.returncode or "Non-2xx" in output or "Socket errors" in output:
        raise RuntimeError(f"not every delivery was accepted: {output}{errors}")
    if errors and not may_repeat:  # wrk has repeated requests, and its figures count them
        raise RuntimeError(errors)
    count, per_second = (
        _number(pattern, output) for pattern in (r"(\d+) requests in", r"Requests/sec: +([\d.]+)")
    )
    wrk_before, wrk_after = (
        _number(rf"processor seconds {when}: ([\d.]+)", output) for when in ("before", "after")
    )
    passed = count / per_second
    return Load(
        per_second=per_second,
        p50_ms=_milliseconds("50%", output),
        p99_ms=_milliseconds("99%", output),
        cpu_us=own / count * 1e6,
        busy=own / passed,
        busy_beside=(wrk_after - wrk_before + others) / passed,
        beside_us=others / count * 1e6,
    )


def family_cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and of its children."""
    return _cpu_seconds(_family(pid))


def _family(pid: int) -> list[int]:
    """Return a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [pid, *map(int, children.split())]


def _cpu_seconds(pids: Iterable[int]) -> float:
    """Return the processor time of processes and of their children that have ended."""
    return sum(map(_ticks, pids)) / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (
        FileNotFoundError,
        ProcessLookupError,
    ):  # a child that has ended since: its parent's time includes it now
        return 0
    # The second field is the name and may contain anything; after it, fields 12 to 15 are the user
    # and system time of the process and of its children that have ended.
    return sum(map(int, stat.rpartition(")")[2].split()[11:15]))


def _number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found[1])


def _milliseconds(what: str, text: str) -> float:
    found = re.search(rf"{what} +([\d.]+)(us|ms|s)\b", text)
    assert found is not None, text
    return float(found[1]) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[found[2]]
