"""Checks how long a server waits for a body that never ends."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from urllib.parse import SplitResult, urlsplit

from ...outcome import Reason
from .findings import Finding, fine, warning

_CHECK = "url.unfinished"

_MORE_SECONDS = 2.0  # the doctor waits this much longer than the sender
_CONNECT_SECONDS = 5.0
_REST_SECONDS = 1.0  # time limit for the rest of an answer
_MOST_ANSWER_BYTES = 16 * 1024

# Names in the Server header of servers that read each body in a thread.
_THREADED = ("gunicorn", "werkzeug", "wsgiserver")

_FIX = (
    "put a proxy in front that buffers requests (nginx: proxy_request_buffering on;"
    " client_body_timeout 5s;): `hookonce guide deployment`"
)


async def unfinished_finding(url: str, patience_seconds: float) -> Finding | None:
    """Send a delivery whose body never ends, and check how long the server waits for it.

    Args:
        url: the server's URL.
        patience_seconds: how long the sender waits for an answer.

    Returns:
        None if the server cannot be reached, which other checks report.
    """
    most_seconds = patience_seconds + _MORE_SECONDS
    loop = asyncio.get_running_loop()
    target = urlsplit(url)
    is_tls = target.scheme == "https"
    port = target.port or (443 if is_tls else 80)
    context = ssl.create_default_context() if is_tls else None
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(target.hostname, port, ssl=context)
    except (OSError, TimeoutError):
        return None
    started = loop.time()
    try:
        writer.write(_begun(target))
        answer = b""
        with suppress(ConnectionError):
            async with asyncio.timeout(most_seconds):
                answer = await reader.read(_MOST_ANSWER_BYTES)
        seconds = loop.time() - started
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_REST_SECONDS):
                while len(answer) < _MOST_ANSWER_BYTES and (more := await reader.read(4096)):
                    answer += more
    except TimeoutError:
        return warning(
            _CHECK,
            f"the server waits longer than {most_seconds:g} s for a body that never ends: a few"
            " slow clients can occupy all its threads",
            _FIX,
        )
    finally:
        writer.transport.abort()
    return _judged(answer, seconds)


def _begun(target: SplitResult) -> bytes:
    host = target.netloc.rpartition("@")[2]
    lines = (
        f"POST {target.path or '/'} HTTP/1.1",
        f"host: {host}",
        "content-type: application/json",
        "content-length: 100",
        "connection: close",
    )
    return "\r\n".join([*lines, "", "{"]).encode()


def _judged(answer: bytes, seconds: float) -> Finding:
    head, _, body = answer.partition(b"\r\n\r\n")
    servers = [
        line.partition(b":")[2].strip().decode("latin-1").lower()
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"server:")
    ]
    reached_receiver = f'"{Reason.BODY_TIMEOUT}"'.encode() in body
    if reached_receiver and any(server.startswith(_THREADED) for server in servers):
        return warning(
            _CHECK,
            "a body that never ends reaches the receiver, and blocks one of the server's threads"
            f" for {seconds:.1f} s",
            _FIX,
        )
    return fine(_CHECK, f"the server gives up on a body that never ends after {seconds:.1f} s")
