"""What is compared over HTTP: the least that can be done, receivers, and what is done by hand."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from tempfile import mkdtemp

import redis.asyncio
from standardwebhooks import Webhook, WebhookVerificationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hookonce import Inbox, Receiver
from hookonce.events import CommentReceived

from .ladder import LEAST, STEPS

__all__ = ["APPS", "make"]

PATH = "/webhooks"


async def null(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body and answer 204."""
    if scope["type"] == "lifespan":
        for step in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{step}.complete"})
        return
    while (await receive()).get("more_body", False):
        pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def null_route() -> ASGIApp:
    """Do the same in a route of Starlette."""

    async def receive(request: Request) -> Response:
        await request.body()
        return Response(status_code=204)

    return Starlette(routes=[Route(PATH, receive, methods=["POST"])])


def by_hand(redis_url: str | None) -> ASGIApp:
    """Do what a careful user would write today: verify, mark as seen, handle."""
    webhook = Webhook(os.environ["BENCHMARK_SECRET"])
    client = None if redis_url is None else redis.asyncio.from_url(redis_url)
    seen: set[str] = set()

    async def is_new(event_id: str) -> bool:
        if client is not None:
            return bool(await client.set(event_id, b"1", nx=True, ex=15 * 86_400))
        if event_id in seen:
            return False
        seen.add(event_id)
        return True

    async def receive(request: Request) -> Response:
        try:
            webhook.verify(await request.body(), dict(request.headers))
        except WebhookVerificationError:
            return Response(status_code=401)
        await is_new(request.headers["webhook-id"])
        return Response(status_code=204)

    return Starlette(routes=[Route(PATH, receive, methods=["POST"])])


def receiver(store: str, inbox: Inbox | None = None) -> ASGIApp:
    """Let a receiver do it, with a handler that does nothing."""
    made = Receiver(secrets=os.environ["BENCHMARK_SECRET"], store=store, inbox=inbox)

    @made.on(CommentReceived, name="nothing")
    async def nothing(event: CommentReceived) -> None: ...

    return made


def _file() -> str:
    return f"sqlite:///{mkdtemp(dir=os.environ['BENCHMARK_FOLDER'])}/hooks.db"


def _redis() -> str:
    return os.environ["BENCHMARK_REDIS"]


# An inbox without workers: what is measured is intake alone.
_INBOX = Inbox(embedded=False, max_depth=10_000_000)

APPS: Mapping[str, Callable[[], ASGIApp]] = {
    "null ASGI application": lambda: null,
    "null Starlette route": null_route,
    "by hand, set": lambda: by_hand(None),
    "by hand, Redis SET NX": lambda: by_hand(_redis()),
    "receiver, memory": lambda: receiver("memory://"),
    "receiver, SQLite": lambda: receiver(_file()),
    "receiver, Redis": lambda: receiver(_redis()),
    "receiver, SQLite inbox": lambda: receiver(_file(), _INBOX),
    "receiver, Redis inbox": lambda: receiver(f"{_redis()}?prefix=inbox", _INBOX),
}


def make() -> ASGIApp:
    """Return the application that the environment names; for uvicorn's ``--factory``."""
    logging.getLogger("hookonce").setLevel(logging.CRITICAL)
    return {**APPS, **STEPS, **LEAST}[os.environ["BENCHMARK_APP"]]()
