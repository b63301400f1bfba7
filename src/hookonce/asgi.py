"""The HTTP face: pure ASGI around ``handle``, and a guard over what may go out.

Everything that is decided from HTTP alone is decided here (method, size, slowness), and this is the
only file of the core that builds responses or knows Starlette.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import Refusal
from .headers import RawHeaders
from .limits import Limits
from .outcome import BROKEN, NOT_FOUND, NOT_POST, TOO_LARGE, TOO_SLOW, Outcome
from .time_limit import limited

__all__ = [
    "ASGIApp",
    "DeliveryApp",
    "Message",
    "Middleware",
    "Readiness",
    "Receive",
    "Route",
    "Scope",
    "Send",
    "StatusGuard",
    "app_path",
    "application",
    "delivery_routes",
    "elsewhere",
    "health_routes",
    "note_changed_body",
    "run_lifespan",
]

_log = logging.getLogger("hookonce.http")

_MOST_LENGTH_DIGITS = 18

_NOTHING_CAME = (
    ", not even a part of it: the client is slow, or something before the receiver (middleware, a"
    " dependency) has consumed it; let that leave the receiver's path alone"
)


class Handle(Protocol):
    """Takes a delivery's body and headers and returns what to answer."""

    def __call__(
        self, body: bytes, headers: RawHeaders, *, started: float | None = None
    ) -> Awaitable[Outcome]: ...


class _TooLargeError(Exception):
    """The body is over the limit."""


class _GoneError(Exception):
    """The client is gone; nobody waits for an answer."""


class DeliveryApp:
    """An ASGI application that answers deliveries, whatever path it was routed to by.

    Args:
        handle: the receiver's pipeline.
        limits: size of the body, and how long it may take.
        unread: told of an answer that was given without the body, and after how many seconds.

    """

    def __init__(
        self, handle: Handle, limits: Limits, *, unread: Callable[[Outcome, float], None]
    ) -> None:
        self._handle = handle
        self._limits = limits
        self._unread = unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started = asyncio.get_running_loop().time()
        if scope["method"] != "POST":
            await self._refuse(send, NOT_POST, started)
            return
        headers = scope["headers"]
        pieces: list[bytes] = []
        try:
            body = await limited(
                self._limits.body_seconds,
                _read_body(headers, receive, self._limits.body_bytes, pieces),
            )
        except _TooLargeError:
            _log.warning("refused a body of more than %d bytes", self._limits.body_bytes)
            await self._refuse(send, TOO_LARGE, started, closing=scope)
        except TimeoutError:
            _log.warning(
                "a body had not arrived after %g s%s",
                self._limits.body_seconds,
                "" if any(pieces) else _NOTHING_CAME,
            )
            await self._refuse(send, TOO_SLOW, started, closing=scope)
        except _GoneError:
            _log.info("a client went away before its body had arrived")
        else:
            outcome = await self._handle(body, headers, started=started)
            if outcome.reason == Refusal.NO_MATCHING_SIGNATURE:
                note_changed_body(outcome, body, _announced(headers))
            await _respond(send, outcome)

    async def _refuse(
        self, send: Send, outcome: Outcome, started: float, *, closing: Scope | None = None
    ) -> None:
        self._unread(outcome, asyncio.get_running_loop().time() - started)
        await _respond(send, outcome, closing=closing)


async def _read_body(
    headers: Iterable[tuple[bytes, bytes]], receive: Receive, most: int, chunks: list[bytes]
) -> bytes:
    for name, value in headers:
        # By its length first: int() refuses thousands of digits.
        if name == b"content-length" and value.isdigit():
            too_large = len(value) > _MOST_LENGTH_DIGITS or int(value) > most
            if too_large:
                raise _TooLargeError
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _GoneError
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > most:
            raise _TooLargeError
        chunks.append(chunk)
        if not message.get("more_body", False):
            body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            chunks.clear()  # or a slow handler would hold a large body twice
            return body


def _announced(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    for name, value in headers:
        if name == b"content-length" and value.isdigit() and len(value) <= _MOST_LENGTH_DIGITS:
            return int(value)
    return None


def note_changed_body(outcome: Outcome, body: bytes, announced: int | None) -> None:
    """Say in the log where no signature matches since the body was written anew on its way.

    The refusal alone would send somebody to look for a wrong secret.

    Args:
        outcome: what the receiver answers.
        body: the body as it arrived at the receiver.
        announced: the content-length of the request, if it had one.

    """
    if outcome.reason == Refusal.NO_MATCHING_SIGNATURE and announced not in {None, len(body)}:
        _log.error(
            "the body of a delivery was changed on its way: it has %d bytes, and %s were announced."
            " Signatures cover the bytes as they were sent: hand them on as they are, without"
            " parsing, mapping or encoding them anew",
            len(body),
            announced,
        )


async def _respond(send: Send, outcome: Outcome, *, closing: Scope | None = None) -> None:
    """Send an outcome; ``closing`` a connection whose body was left unread."""
    body = outcome.body
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *((name.encode(), value.encode()) for name, value in outcome.headers.items()),
    ]
    if closing is not None and closing.get("http_version", "1.1") < "2":
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": int(outcome.status), "headers": headers})
    await send({"type": "http.response.body", "body": body})


class StatusGuard:
    """ASGI middleware that never lets out an answer the sender would punish.

    A 410 disables the endpoint at once and a redirect is a failed delivery (interface, Events), so
    both become 500, and so does an exception that nothing inside has turned into an answer. The
    routes of a receiver have one around them; put another around an application whose own
    middleware may answer first, such as a redirect to a login page::

        Starlette(middleware=[Middleware(StatusGuard, paths=["/webhooks"]), ...])

    Args:
        app: the application to guard.
        paths: the paths to guard, with or without a trailing slash; every path by default.

    """

    def __init__(self, app: ASGIApp, paths: Collection[str] | None = None) -> None:
        self._app = app
        self._paths = None if paths is None else {path.rstrip("/") for path in paths}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and guard its answer."""
        if scope["type"] != "http" or not self._guards(scope):
            await self._app(scope, receive, send)
            return
        answer = _GuardedAnswer(send, scope["path"])
        try:
            await self._app(scope, receive, answer.send)
        except Exception:
            if answer.started:
                raise
            _log.exception("the application around a receiver raised; answered 500")
            await _respond(send, BROKEN)

    def _guards(self, scope: Scope) -> bool:
        return self._paths is None or app_path(scope).rstrip("/") in self._paths


@dataclass(slots=True)
class _GuardedAnswer:
    _send: Send
    _path: str
    started: bool = False
    replaced: bool = False

    async def send(self, message: Message) -> None:
        if self.replaced:
            return
        if message["type"] == "http.response.start":
            self.started = True
            status = message["status"]
            if status == 410 or 300 <= status < 400:
                self.replaced = True
                _log.error(
                    "the application answered a delivery to %s with %d; sent 500 instead",
                    self._path,
                    status,
                )
                await _respond(self._send, BROKEN)
                return
        await self._send(message)


def app_path(scope: Scope) -> str:
    """Return the path within the application, which is mounted at ``root_path``."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) else path


def delivery_routes(
    path: str, app: DeliveryApp, middleware: Iterable[Middleware] = ()
) -> list[Route]:
    """Return routes that answer at ``path`` with and without a trailing slash.

    Starlette would redirect from one to the other, and a redirect is a failed delivery.

    Raises:
        ValueError: the path does not start with a slash.

    """
    if not path.startswith("/"):
        raise ValueError(f"a path starts with a slash, unlike {path!r}")
    guarded: ASGIApp = app
    for wrapper in reversed(list(middleware)):
        guarded = wrapper.cls(guarded, *wrapper.args, **wrapper.kwargs)
    guarded = StatusGuard(guarded)
    bare = path.rstrip("/")
    return [
        Route(spelling, endpoint=guarded, name="hookonce", include_in_schema=False)
        for spelling in ((bare, f"{bare}/") if bare else ("/",))
    ]


async def elsewhere(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - the signature of an ASGI application
    """Answer what is no delivery: 404 for a request, a closed door for a WebSocket."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
    else:
        await _respond(send, NOT_FOUND)


def application(
    routes: Iterable[Route],
    lifespan: Callable[[object], AbstractAsyncContextManager[None]],
    otherwise: ASGIApp = elsewhere,
) -> ASGIApp:
    """Return an application of these routes; it never redirects.

    Args:
        routes: tried in this order.
        lifespan: what is open while it runs.
        otherwise: answers what no route is for.

    """
    return Router(list(routes), redirect_slashes=False, default=otherwise, lifespan=lifespan)


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a receiver can take deliveries.

    Attributes:
        problems: why it cannot.
        warnings: what an operator should mend, though it can.

    """

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def health_routes(check: Callable[[], Awaitable[Readiness]]) -> list[Route]:
    """Return ``/livez`` (the process answers) and ``/readyz`` (it can take deliveries)."""

    async def livez(request: Request) -> Response:  # noqa: ARG001 - the signature of a route
        return JSONResponse({"alive": True})

    async def readyz(request: Request) -> Response:  # noqa: ARG001 - the signature of a route
        readiness = await check()
        return JSONResponse(
            {
                "ready": readiness.ready,
                "problems": list(readiness.problems),
                "warnings": list(readiness.warnings),
            },
            HTTPStatus.OK if readiness.ready else HTTPStatus.SERVICE_UNAVAILABLE,
        )

    return [Route("/livez", livez), Route("/readyz", readyz)]


async def run_lifespan(
    context: AbstractAsyncContextManager[object], receive: Receive, send: Send
) -> None:
    """Speak the ASGI lifespan protocol for a context manager."""
    await receive()
    try:
        await context.__aenter__()
    except Exception as error:
        await send({"type": "lifespan.startup.failed", "message": str(error)})
        raise
    await send({"type": "lifespan.startup.complete"})
    await receive()
    try:
        await context.__aexit__(None, None, None)
    except Exception as error:
        await send({"type": "lifespan.shutdown.failed", "message": str(error)})
        raise
    await send({"type": "lifespan.shutdown.complete"})
