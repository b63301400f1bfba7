"""A real uvicorn on a free loopback port, in the test's event loop, and clients for it."""

import asyncio
import json
import socket
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal, Self

import httpx2
import uvicorn
import uvicorn.server
from starlette.applications import Starlette
from starlette.types import ASGIApp

from hookonce import Receiver
from hookonce.testing import Answer, Payload, SignedRequest, signed_request
from hookonce.verification.secrets import verifying_key

from .waiting import PATIENCE_SECONDS, until

__all__ = [
    "HttpSender",
    "PlainAwaitable",
    "RawConnection",
    "Site",
    "check_answer",
    "delivering",
    "itself",
    "post",
    "request_bytes",
    "retry_after",
    "serving",
    "starlette_routes",
    "whole",
]

HttpImplementation = Literal["httptools", "h11"]


async def _pause(seconds: float) -> None:
    await asyncio.sleep(min(seconds, 0.005))


# At its shutdown uvicorn pauses for 0.1 s, and again while connections or tasks are left. Shorten
# these pauses, which would delay every test with a server.
vars(uvicorn.server)["asyncio"] = SimpleNamespace(**vars(asyncio) | {"sleep": _pause})


class _Server(uvicorn.Server):
    """Uvicorn's server without signal handlers; it stops at once instead of at its next tick.

    It differs in nothing else.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        self._stopped.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:  # pytest handles the signals of a test run
        yield

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self._stopped.wait()


@dataclass(frozen=True, slots=True)
class Site:
    """A server's address, and a way to stop it before the test ends."""

    port: int
    server: _Server
    running: asyncio.Task[None]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        """Shut down gracefully, like after SIGTERM."""
        self.server.stop()
        await asyncio.wait_for(asyncio.shield(self.running), PATIENCE_SECONDS)


@asynccontextmanager
async def serving(
    app: ASGIApp,
    *,
    http: HttpImplementation = "httptools",
    ws: Literal["auto", "none"] = "none",
    lifespan: Literal["auto", "on", "off"] = "on",
    root_path: str = "",
    access_log: bool = False,
) -> AsyncIterator[Site]:
    """Serve an application with uvicorn until the block ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=access_log,
        http=http,
        ws=ws,
        lifespan=lifespan,
        root_path=root_path,
    )
    server = _Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    site = Site(listener.getsockname()[1], server, running)
    try:
        await until(lambda: server.started or running.done(), what="the server has started")
        if running.done():
            running.result()  # raises the error that kept the server from starting
        yield site
    finally:
        await site.stop()
        listener.close()


def check_answer(answer: Answer, request: SignedRequest, secrets: Sequence[str] = ()) -> None:
    """Check the rules that every answer to a delivery must follow."""
    assert answer.status != 410
    assert not 300 <= answer.status < 400
    content = json.loads(answer.body)
    assert set(content) == {"status", "reason"}
    wanted = "accepted" if answer.status < 400 else "refused" if answer.status < 500 else "retry"
    assert content["status"] == wanted
    assert content["reason"]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == str(len(answer.body))
    shown = answer.body + repr(sorted(answer.headers.items())).encode()
    for hidden in _never_shown(request, secrets):
        assert hidden not in shown


def _never_shown(request: SignedRequest, secrets: Sequence[str]) -> list[bytes]:
    signatures = request.headers.get("webhook-signature", "").split()
    return [
        b"Traceback",
        b".py",
        b"whsec_",
        *(entry.removeprefix("v1,").encode() for entry in signatures if len(entry) > len("v1,")),
        *(b64encode(verifying_key(secret).raw) for secret in secrets),
        *(verifying_key(secret).raw for secret in secrets),
    ]


@dataclass
class HttpSender:
    """Sends signed deliveries over HTTP, and checks every answer."""

    client: httpx2.AsyncClient
    secret: str
    path: str = "/webhooks"
    answers: list[Answer] = field(default_factory=list)

    async def send(
        self,
        payload: Payload,
        *,
        attempt: int = 1,
        skew: float = 0.0,
        tamper: bool = False,
        message_id: str | None = None,
        secrets: str | Sequence[str] | None = None,
    ) -> Answer:
        request = signed_request(
            payload, secrets or self.secret, attempt=attempt, skew=skew, message_id=message_id
        )
        return await self.post(request.tampered() if tamper else request)

    async def post(self, request: SignedRequest) -> Answer:
        return await self.request("POST", self.path, request)

    async def request(self, method: str, path: str, request: SignedRequest) -> Answer:
        response = await self.client.request(
            method, path, content=request.body, headers=dict(request.headers)
        )
        answer = Answer(response.status_code, dict(response.headers), response.content)
        if method != "HEAD":
            check_answer(answer, request, [self.secret])
        self.answers.append(answer)
        return answer


@asynccontextmanager
async def delivering(
    app: ASGIApp,
    secret: str,
    *,
    path: str = "/webhooks",
    http: HttpImplementation = "httptools",
    lifespan: Literal["auto", "on", "off"] = "on",
) -> AsyncIterator[HttpSender]:
    """Serve an application, and yield a sender to it."""
    async with (
        serving(app, http=http, lifespan=lifespan) as site,
        httpx2.AsyncClient(base_url=site.url, timeout=PATIENCE_SECONDS, verify=False) as client,
    ):
        yield HttpSender(client, secret, path)


def request_bytes(
    request: SignedRequest,
    *,
    path: str = "/webhooks",
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Return the head of a request, with the headers of a delivery and other headers."""
    every = {"host": "127.0.0.1", **request.headers, **(headers or {})}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in every.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def whole(request: SignedRequest, *, path: str = "/webhooks") -> bytes:
    """Return the bytes of a whole request, with head and body."""
    length = {"content-length": str(len(request.body))}
    return request_bytes(request, path=path, headers=length) + request.body


async def post(site: Site, request: SignedRequest, *, path: str = "/webhooks") -> Answer:
    """Return the answer to a request on a new connection."""
    async with await RawConnection.to(site) as connection:
        await connection.write(whole(request, path=path))
        return await connection.answer()


def retry_after(answer: Answer) -> int:
    return int(answer.headers["retry-after"])


def starlette_routes(receiver: Receiver) -> ASGIApp:
    return Starlette(routes=receiver.routes("/webhooks"), lifespan=receiver.lifespan)


def itself(receiver: Receiver) -> ASGIApp:
    return receiver


class PlainAwaitable:
    """An awaitable with only the required method, like Granian's ``receive``."""

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self._steps = future.__await__()

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> object:
        return next(self._steps)


class RawConnection:
    """A TCP connection for requests that no HTTP client would send."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, site: Site) -> Self:
        return await cls.at(site.port)

    @classmethod
    async def at(cls, port: int) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def write_chunk(self, data: bytes) -> None:
        """Write one chunk of a chunked body; an empty chunk ends the body."""
        await self.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def answer(self) -> Answer:
        """Return the next answer of this connection."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status_line, *lines = head.strip().split("\r\n")
            headers = {
                name.strip().lower(): value.strip()
                for name, _, value in (line.partition(":") for line in lines)
            }
            body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(status_line.split()[1]), headers, body)

    async def end(self) -> None:
        """Send no more, but keep reading."""
        self._writer.write_eof()

    async def answer_if_any(self) -> Answer | None:
        """Return the next answer; None if the server closes the connection without one."""
        try:
            return await self.answer()
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def is_closed(self) -> bool:
        """Return whether the server closes the connection without another byte."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                return await self._reader.read(1) == b""
            except ConnectionError:
                return True

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()
