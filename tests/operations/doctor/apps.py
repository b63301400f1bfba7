"""Applications with one mistake each, and one application without a mistake."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hookonce import Receiver
from hookonce.events import WebhookTest

__all__ = [
    "Eating",
    "Leading",
    "Recoding",
    "Stripping",
    "answering",
    "behind",
    "connecting",
    "failing",
    "mounted",
    "refusing_large",
    "slow",
    "sound",
    "starting",
    "unlocking",
    "unwired",
]


def sound(receiver: Receiver) -> ASGIApp:
    return Starlette(routes=receiver.routes("/webhooks"), lifespan=receiver.lifespan)


def unwired(receiver: Receiver) -> ASGIApp:
    return Starlette(routes=receiver.routes("/webhooks"))


def mounted(receiver: Receiver) -> ASGIApp:
    """Mount the receiver, so that Starlette redirects from the path without a slash."""
    return Starlette(routes=[Mount("/webhooks", receiver)], lifespan=receiver.lifespan)


def refusing_large(receiver: Receiver, most: int, status: int) -> ASGIApp:
    """Return an application that answers large bodies itself, as a proxy with a limit does."""
    app = sound(receiver)

    async def limiting(scope: Scope, receive: Receive, send: Send) -> None:
        length = int(dict(scope.get("headers", ())).get(b"content-length", b"0"))
        if length > most:
            await Response("too large", status)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return limiting


def behind(middleware: Callable[[ASGIApp], ASGIApp]) -> Callable[[Receiver], ASGIApp]:
    def make(receiver: Receiver) -> ASGIApp:
        return Starlette(
            routes=receiver.routes("/webhooks"),
            lifespan=receiver.lifespan,
            middleware=[Middleware(middleware)],
        )

    return make


class Recoding(BaseHTTPMiddleware):
    """Middleware that parses JSON bodies and serializes them again."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        request._body = json.dumps(json.loads(await request.body())).encode()
        return await call_next(request)


class Eating:
    """Middleware that reads the whole body, and leaves nothing for the application."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            while (await receive()).get("more_body"):
                pass
        await self.app(scope, receive, send)


class Leading(BaseHTTPMiddleware):
    """Middleware that redirects every request to the login page."""

    async def dispatch(self, request: Request, _: RequestResponseEndpoint) -> Response:
        return RedirectResponse(f"/login?next={request.url.path}&key=opensesame", 302)


class Stripping:
    """Middleware that removes all headers except well-known headers."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            kept = [h for h in scope["headers"] if not h[0].startswith(b"webhook-")]
            scope = {**scope, "headers": kept}
        await self.app(scope, receive, send)


def answering(status: int) -> Callable[[Receiver], ASGIApp]:
    """Return a factory of applications whose own route comes before the receiver's route."""

    async def answer(_: Request) -> Response:
        return JSONResponse({"hello": "world"}, status)

    def make(receiver: Receiver) -> ASGIApp:
        own = Route("/webhooks", answer, methods=["POST"])
        return Starlette(routes=[own, *receiver.routes("/webhooks")], lifespan=receiver.lifespan)

    return make


def starting(before: Callable[[], Awaitable[object]]) -> Callable[[Receiver], ASGIApp]:
    """Return a factory of applications that call ``before`` when they start."""

    def make(receiver: Receiver) -> ASGIApp:
        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            await before()
            async with receiver:
                yield

        return Starlette(routes=receiver.routes("/webhooks"), lifespan=lifespan)

    return make


async def unlocking() -> None:
    raise KeyError("opensesame")


async def connecting() -> None:
    raise TimeoutError("opensesame")


def slow(receiver: Receiver, seconds: float, *, is_async: bool = True) -> ASGIApp:
    """Add a handler of test events that takes this many seconds."""
    if is_async:

        @receiver.on(WebhookTest, name="slow")
        async def wait(_: WebhookTest) -> None:
            await asyncio.sleep(seconds)
    else:

        @receiver.on(WebhookTest, name="slow")
        def block(_: WebhookTest) -> None:
            time.sleep(seconds)

    return sound(receiver)


def failing(receiver: Receiver) -> ASGIApp:
    """Add a handler of test events that fails."""

    @receiver.on(WebhookTest, name="failing")
    async def fail(_: WebhookTest) -> None:
        raise RuntimeError("opensesame")

    return sound(receiver)
