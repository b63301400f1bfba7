"""The ASGI application around ``Receiver.handle``, and its routes.

This folder makes the decisions that depend only on HTTP: the method, and the size and time limit of
a body. No other part of the core builds responses or imports Starlette.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol

from starlette.convertors import Convertor, register_url_convertor
from starlette.middleware import Middleware
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..delivery.limits import Limits
from ..logs import get_logger
from ..outcome import BROKEN, NOT_FOUND, NOT_POST, TOO_SLOW, Outcome
from ..stores.time_limit import OutOfTimeError, limited
from ..verification.headers import RawHeaders
from .body import (
    BodyBudget,
    GoneError,
    PartialBody,
    RequestRefusedError,
    announced_length,
    check_whole,
    length_header,
    note_changed_body,
    piece_of,
    read_rest,
)
from .guard import StatusGuard, check_path, respond

__all__ = [
    "MORE_SLASHES",
    "REACHED",
    "ASGIApp",
    "DeliveryApp",
    "Message",
    "Middleware",
    "Receive",
    "Route",
    "Scope",
    "Send",
    "application",
    "delivery_routes",
    "elsewhere",
    "run_lifespan",
]

_log = get_logger("hookonce.http")

REACHED = "hookonce.reached"
"""The scope key of a list: each receiver that a request reaches adds itself to the list."""

_NOTHING_CAME = (
    ", not even a part of it: the client is slow, or something before the receiver (middleware, a"
    " dependency) has consumed it; exempt the receiver's path from that"
)


class _Slashes(Convertor[str]):
    """Matches extra slashes at the end of a path."""

    regex = "/+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("hookonce_slashes", _Slashes())
# Matches more than one slash at the end of a path: without such a route, a router would strip the
# slashes and redirect.
MORE_SLASHES = "{more:hookonce_slashes}"


class Handle(Protocol):
    """Handles a delivery, given its body and headers, and returns the answer."""

    def __call__(
        self, body: bytes, headers: RawHeaders, *, started: float | None = None
    ) -> Awaitable[Outcome]: ...


class DeliveryApp:
    """An ASGI application that answers deliveries at any path.

    Args:
        handle: the receiver's pipeline.
        unread: called for a request whose body was not read, with the answer and its seconds.
    """

    def __init__(
        self, handle: Handle, limits: Limits, *, unread: Callable[[Outcome, float], None]
    ) -> None:
        self._handle = handle
        self._limits = limits
        self._unread = unread
        self._budget = BodyBudget(limits.bodies_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, with 500 after an unexpected exception."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        if (reached := scope.get(REACHED)) is not None:
            reached.append(self)
        if scope["method"] != "POST":
            await self._refuse(send, NOT_POST, started)
            return
        # Copy the list: uvicorn with httptools appends trailers to it when they arrive.
        headers, limits, partial = list(scope["headers"]), self._limits, None
        most = limits.body_bytes
        try:
            announced = announced_length(length_header(headers), most)
            message = await limited(limits.body_seconds, receive())
            body = piece_of(message, 0, most)
            if message.get("more_body", False):
                partial = PartialBody([body], len(body))
                del message, body  # otherwise these names would keep an evicted body alive
                left = started + limits.body_seconds - loop.time()
                body = await limited(left, read_rest(receive, most, partial, self._budget))
            if len(body) < (announced or 1):
                is_chunked = any(name == b"transfer-encoding" for name, _ in headers)
                check_whole(body, announced, is_chunked=is_chunked)
            outcome = await self._handle(body, headers, started=started)
            if announced != len(body):
                note_changed_body(outcome, body, announced)
        except RequestRefusedError as refused:
            await self._refuse(send, refused.outcome, started, closing=scope)
        except OutOfTimeError:
            what = _NOTHING_CAME if partial is None or not partial.size else ""
            _log.warning("a body had not arrived after %g s%s", limits.body_seconds, what)
            await self._refuse(send, TOO_SLOW, started, closing=scope)
        except GoneError:
            _log.info("a client disconnected before its body had arrived")
        except Exception:  # noqa: BLE001 - the client must get an answer
            _log.exception("a receiver raised; answered 500")
            await respond(send, BROKEN)
        else:
            await respond(send, outcome)

    async def _refuse(
        self, send: Send, outcome: Outcome, started: float, *, closing: Scope | None = None
    ) -> None:
        self._unread(outcome, asyncio.get_running_loop().time() - started)
        await respond(send, outcome, closing=closing)


def delivery_routes(path: str, app: DeliveryApp, middleware: Iterable[Middleware]) -> list[Route]:
    """Return routes for ``path`` with and without a trailing slash; more slashes are answered 404.

    Starlette would redirect from one spelling to the other, and a redirect is a failed delivery.

    Raises:
        ValueError: the path does not start with a slash.
    """
    check_path(path)
    guarded: ASGIApp = app
    for wrapper in reversed(list(middleware)):
        guarded = wrapper.cls(guarded, *wrapper.args, **wrapper.kwargs)
    if guarded is not app:
        guarded = StatusGuard(guarded)
    bare = path.rstrip("/")
    routes = [
        Route(spelling, endpoint=guarded, name="hookonce", include_in_schema=False)
        for spelling in ((bare, f"{bare}/") if bare else ("/",))
    ]
    # Pass an instance of a class, because Starlette would call a function as a view.
    wrong = StatusGuard(elsewhere)
    more = Route(f"{bare}/{MORE_SLASHES}", endpoint=wrong, name="hookonce", include_in_schema=False)
    return [*routes, more]


async def elsewhere(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - ASGI prescribes these parameters
    """Answer a path that takes no deliveries with 404, or close its WebSocket."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
    else:
        await respond(send, NOT_FOUND)


def application(
    routes: Iterable[Route],
    lifespan: Callable[[object], AbstractAsyncContextManager[None]],
    otherwise: ASGIApp = elsewhere,
) -> ASGIApp:
    """Return an application of these routes; it never redirects.

    Args:
        routes: the routes, first match first.
        lifespan: makes the context that is open while the application runs.
        otherwise: answers requests that match no route.
    """
    return Router(list(routes), redirect_slashes=False, default=otherwise, lifespan=lifespan)


async def run_lifespan(
    context: AbstractAsyncContextManager[object], receive: Receive, send: Send
) -> None:
    """Enter and exit a context manager as the ASGI lifespan protocol asks."""
    exit_ = partial(context.__aexit__, None, None, None)
    for name, step in (("startup", context.__aenter__), ("shutdown", exit_)):
        await receive()
        try:
            await step()
        except Exception as error:
            await send({"type": f"lifespan.{name}.failed", "message": str(error)})
            raise
        await send({"type": f"lifespan.{name}.complete"})
