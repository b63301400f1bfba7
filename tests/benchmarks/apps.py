"""What is compared over HTTP: the least that can be done, receivers, and what is done by hand."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from tempfile import mkdtemp

import redis.asyncio
from standardwebhooks import Webhook, WebhookVerificationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hookonce import FileSecrets, Inbox, Receiver
from hookonce.cli.collecting import collect_rarely
from hookonce.events import CommentReceived
from hookonce.http.app import application, elsewhere
from hookonce.operations.inspector import Inspector
from hookonce.operations.prometheus import PrometheusObserver, metrics_routes
from hookonce.watching.records import Observer

from .ladder import LEAST, STEPS

__all__ = ["APPS", "SECRETS_FILE", "WATCHED", "make"]

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
    # By default the pool raises at the hundred and first request.
    client = redis_url and redis.asyncio.from_url(redis_url, max_connections=1_024)
    seen: set[str] = set()

    async def is_new(event_id: str) -> bool:
        if client:
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


SECRETS_FILE = "BENCHMARK_SECRETS_FILE"
INSPECTOR_TOKEN = "a token for the inspector of benchmarks"


def unwatched() -> ASGIApp:
    """Let a receiver do it whose secrets are in a file."""
    made = _from_file([])
    return application(made.routes(PATH), made.lifespan)


def inspected(metrics: PrometheusObserver | None = None) -> ASGIApp:
    """Let one do it that has an inspector, and counts for Prometheus if there is an observer."""
    made = _from_file([metrics] if metrics else [])
    routes = [*made.routes(PATH), *(metrics_routes(made, metrics) if metrics else ())]
    inspector = Inspector(made, token=INSPECTOR_TOKEN).below("/inspector", elsewhere)
    return application(routes, made.lifespan, inspector)


def _from_file(observers: Sequence[Observer]) -> Receiver:
    made = Receiver(
        secrets=FileSecrets(os.environ[SECRETS_FILE]), store=_file(), observers=observers
    )

    @made.on(CommentReceived, name="nothing")
    async def nothing(event: CommentReceived) -> None: ...

    return made


WATCHED: Mapping[str, Callable[[], ASGIApp]] = {
    "receiver, SQLite, secrets in a file": unwatched,
    "the same, inspector open": inspected,
    "the same, inspector open, metrics on": lambda: inspected(PrometheusObserver()),
}


def make() -> ASGIApp:
    """Return the application that the environment names; for uvicorn's ``--factory``."""
    logging.getLogger("hookonce").setLevel(logging.CRITICAL)
    app = {**APPS, **STEPS, **LEAST, **WATCHED}[os.environ["BENCHMARK_APP"]]()
    collect_rarely()  # as `hookonce serve` does
    return app
