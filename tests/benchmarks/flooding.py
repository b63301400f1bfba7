"""The peak memory of a server in a flood of large bodies, relative to the bodies in flight.

All connections send at the same time, again and again. Bodies of the largest allowed size are
genuine or forged. The server refuses larger bodies by their announced length or, if they announce
none, as soon as too many bytes have arrived. Each kind of body has its own server, because the
system reports the peak memory of a process.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from hookonce import Limits, sign
from hookonce.samples.events import event_body, new_event_id
from hookonce.verification.secrets import new_secret

from .measuring import AtMost, Result
from .serving import Server, serving

__all__ = ["flood", "resident_mib"]

_MIB = 1024 * 1024
_APP = "receiver, memory"
_CONNECTIONS = 64
_EACH, _QUICK_EACH = 20, 3
_LIMIT = Limits().body_bytes
_TOO_LARGE = 3 * _MIB
_PIECE = 64 * 1024
_PATIENCE_SECONDS = 120.0
# The server holds each body twice: in chunks and joined, or joined and as a parsed event. The other
# 0.5 is for bytes that the server reads ahead, and for memory that the allocator keeps.
_HELD = AtMost(2.5)
# The server refuses a large body early, so it holds only the bytes that it has read until then.
_NOT_HELD = AtMost(0.1)


class _Kind(NamedTuple):
    subject: str
    size: int
    status: int
    target: AtMost
    is_genuine: bool = True
    announces: bool = True


_KINDS = (
    _Kind("2 MiB, genuine: 200", _LIMIT, 200, _HELD),
    _Kind("2 MiB, forged: 401", _LIMIT, 401, _HELD, is_genuine=False),
    _Kind("3 MiB, announced: 413", _TOO_LARGE, 413, _NOT_HELD),
    _Kind("3 MiB, in chunks: 413", _TOO_LARGE, 413, _HELD, announces=False),
)


def flood(*, is_quick: bool) -> list[Result]:
    """Return the memory peaks, and the growth since idle as a multiple of all bodies' size."""
    each = _QUICK_EACH if is_quick else _EACH
    case = (
        f"the most memory of a server, {_CONNECTIONS} connections, {each} bodies each;"
        f" ratio: beyond idle, to {_CONNECTIONS} x 2 MiB"
    )
    secret = new_secret()
    results: list[Result] = []
    with TemporaryDirectory(prefix="hookonce-benchmark-") as folder:
        environment = {"BENCHMARK_SECRET": secret, "BENCHMARK_FOLDER": folder}
        for kind in _KINDS:
            with serving(_APP, environment) as server:
                idle = resident_mib(server.pid)
                signed_by = secret if kind.is_genuine else new_secret()
                asyncio.run(_sent(server, kind, signed_by, each))
                peak = resident_mib(server.pid, peak=True)
            if not results:
                results.append(Result(case, "idle", idle, "MiB"))
            ratio = (peak - idle) * _MIB / (_CONNECTIONS * _LIMIT)
            results.append(Result(case, kind.subject, peak, "MiB", 0.0, ratio, kind.target))
    return results


def resident_mib(pid: int | str, *, peak: bool = False) -> float:
    """Return the resident memory of a process, now or at its peak."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(rf"{'VmHWM' if peak else 'VmRSS'}:\s+(\d+) kB", status)
    assert found is not None, status
    return int(found[1]) / 1024


async def _sent(server: Server, kind: _Kind, secret: str, each: int) -> None:
    async with asyncio.timeout(_PATIENCE_SECONDS), asyncio.TaskGroup() as group:
        for _ in range(_CONNECTIONS):
            group.create_task(_send_all(server, kind, secret, each))


async def _send_all(server: Server, kind: _Kind, secret: str, each: int) -> None:
    for _ in range(each):
        event_id = new_event_id()
        body = _body(event_id, kind.size)
        headers = sign(secret, event_id, body)
        status = await _status(server.port, headers, body, announces=kind.announces)
        if status != kind.status:
            raise RuntimeError(f"{kind.subject}: answered {status}")


def _body(event_id: str, size: int) -> bytes:
    """Return an event with a text of such a length that the event has exactly this size."""
    bare = event_body("comment.received", event_id=event_id, data={"text": ""})
    text = b"x" * (size - len(bare))
    return bare.replace(b'"text":""', b'"text":"' + text + b'"', 1)


async def _status(port: int, headers: Mapping[str, str], body: bytes, *, announces: bool) -> int:
    """Send a delivery, stop as soon as an answer arrives, and return its status."""
    length = f"content-length: {len(body)}" if announces else "transfer-encoding: chunked"
    lines = ["POST /webhooks HTTP/1.1", "host: 127.0.0.1", length]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join([*lines, "", ""]).encode()
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", port))
        sending = asyncio.create_task(_send(connection, head, body, in_chunks=not announces))
        try:
            answer = await loop.sock_recv(connection, _PIECE)
        finally:
            sending.cancel()
            # A server that has refused a body closes the connection, and does not read the rest.
            await asyncio.gather(sending, return_exceptions=True)
    return int(answer.split(maxsplit=2)[1])


async def _send(connection: socket.socket, head: bytes, body: bytes, *, in_chunks: bool) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, head)
    for start in range(0, len(body), _PIECE):
        piece = body[start : start + _PIECE]
        await loop.sock_sendall(
            connection, b"%x\r\n%b\r\n" % (len(piece), piece) if in_chunks else piece
        )
    if in_chunks:
        await loop.sock_sendall(connection, b"0\r\n\r\n")
