"""The applications that the benchmark compares over HTTP: minimal, hand-written, and receivers."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from secrets import token_hex
from tempfile import mkdtemp

import asyncpg  # type: ignore[import-untyped]  # it has no types
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

_IsNew = Callable[[str, bytes], Awaitable[bool]]
_Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]


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
    """Return an application that does the same as `null`, in a Starlette route."""

    async def receive(request: Request) -> Response:
        await request.body()
        return Response(status_code=204)

    return Starlette(routes=[Route(PATH, receive, methods=["POST"])])


def by_hand(is_new: _IsNew, lifespan: _Lifespan | None = None) -> ASGIApp:
    """Return what a careful user would write by hand: verify, mark as seen, handle."""
    webhook = Webhook(os.environ["BENCHMARK_SECRET"])

    async def receive(request: Request) -> Response:
        body = await request.body()
        try:
            webhook.verify(body, dict(request.headers))
        except WebhookVerificationError:
            return Response(status_code=401)
        await is_new(request.headers["webhook-id"], body)
        return Response(status_code=204)

    return Starlette(routes=[Route(PATH, receive, methods=["POST"])], lifespan=lifespan)


def by_set() -> ASGIApp:
    """Return an application written by hand that keeps the ids in a set."""
    seen: set[str] = set()

    async def is_new(event_id: str, _: bytes) -> bool:
        if event_id in seen:
            return False
        seen.add(event_id)
        return True

    return by_hand(is_new)


def by_set_nx() -> ASGIApp:
    """Return an application written by hand that keeps the ids in Redis."""
    # The default pool has only 100 connections, and raises an error if more are used at once.
    client = redis.asyncio.from_url(_redis(), max_connections=1_024)

    async def is_new(event_id: str, _: bytes) -> bool:
        return bool(await client.set(event_id, b"1", nx=True, ex=15 * 86_400))

    return by_hand(is_new)


def by_insert(*, with_body: bool) -> ASGIApp:
    """Return an application written by hand that inserts a row into PostgreSQL.

    It uses asyncpg's pool as asyncpg documents it: psycopg's pool took a third more of the
    processor, and pools of 4, 20 and 40 connections were not faster than the usual 10.
    """
    table = f"by_hand_{token_hex(4)}"
    pools: list[asyncpg.Pool] = []

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with asyncpg.create_pool(os.environ["BENCHMARK_POSTGRES"]) as pool:
            await pool.execute(f"CREATE TABLE {table} (id text PRIMARY KEY, body bytea)")
            pools.append(pool)
            yield

    async def is_new(event_id: str, body: bytes) -> bool:
        status = await pools[0].execute(
            f"INSERT INTO {table} VALUES ($1, $2) ON CONFLICT DO NOTHING",
            event_id,
            body if with_body else None,
        )
        return bool(status == "INSERT 0 1")

    return by_hand(is_new, lifespan)


def receiver(
    store: str,
    inbox: Inbox | None = None,
    *,
    keep_handled: timedelta | None = None,
    keep_handled_bytes: int | None = None,
) -> ASGIApp:
    """Return an application with a receiver whose handler does nothing."""
    made = Receiver(
        secrets=os.environ["BENCHMARK_SECRET"],
        store=store,
        inbox=inbox,
        keep_handled=keep_handled,
        keep_handled_bytes=keep_handled_bytes,
    )

    @made.on(CommentReceived, name="nothing")
    async def nothing(event: CommentReceived) -> None: ...

    return made


def _file() -> str:
    return f"sqlite:///{mkdtemp(dir=os.environ['BENCHMARK_FOLDER'])}/hooks.db"


def _redis() -> str:
    return os.environ["BENCHMARK_REDIS"]


def _postgres(schema: str) -> str:
    return f"{os.environ['BENCHMARK_POSTGRES']}?schema={schema}"


# No worker runs: the benchmark measures only the intake.
_INBOX = Inbox(embedded=False, max_depth=10_000_000)

APPS: Mapping[str, Callable[[], ASGIApp]] = {
    "null ASGI application": lambda: null,
    "null Starlette route": null_route,
    "by hand, set": by_set,
    "by hand, Redis SET NX": by_set_nx,
    "by hand, PostgreSQL INSERT": lambda: by_insert(with_body=False),
    "by hand, PostgreSQL INSERT with the body": lambda: by_insert(with_body=True),
    "receiver, memory": lambda: receiver("memory://"),
    "receiver, SQLite": lambda: receiver(_file()),
    "receiver, Redis": lambda: receiver(_redis()),
    "receiver, PostgreSQL": lambda: receiver(_postgres("inline")),
    "receiver, SQLite inbox": lambda: receiver(_file(), _INBOX),
    "receiver, Redis inbox": lambda: receiver(f"{_redis()}?prefix=inbox", _INBOX),
    "receiver, PostgreSQL inbox": lambda: receiver(_postgres("inbox"), _INBOX),
}


def _keeping(store: str) -> ASGIApp:
    # The limit is so low that most kept events replace older events.
    return receiver(store, keep_handled=timedelta(days=3), keep_handled_bytes=4 * 1024**2)


KEEPING: Mapping[str, Mapping[str, Callable[[], ASGIApp]]] = {
    "memory": {
        "memory, keeps nothing": lambda: receiver("memory://"),
        "memory, keeps handled events": lambda: _keeping("memory://"),
    },
    "SQLite": {
        "SQLite, keeps nothing": lambda: receiver(_file()),
        "SQLite, keeps handled events": lambda: _keeping(_file()),
    },
    "Redis": {
        "Redis, keeps nothing": lambda: receiver(f"{_redis()}?prefix=nothing"),
        "Redis, keeps handled events": lambda: _keeping(f"{_redis()}?prefix=handled"),
    },
    "PostgreSQL": {
        "PostgreSQL, keeps nothing": lambda: receiver(_postgres("nothing")),
        "PostgreSQL, keeps handled events": lambda: _keeping(_postgres("handled")),
    },
}
"""For each store a receiver that keeps no handled events, and one that keeps them."""


SECRETS_FILE = "BENCHMARK_SECRETS_FILE"
INSPECTOR_TOKEN = "a token for the inspector of benchmarks"


def unwatched() -> ASGIApp:
    """Return an application with a receiver whose secrets are in a file."""
    made = _from_file([])
    return application(made.routes(PATH), made.lifespan)


def inspected(metrics: PrometheusObserver | None = None) -> ASGIApp:
    """Return an application with a receiver and its inspector, and with metrics if given."""
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
    """Return the application that the environment names; uvicorn's ``--factory`` calls this."""
    logging.getLogger("hookonce").setLevel(logging.CRITICAL)
    kept = {name: app for pair in KEEPING.values() for name, app in pair.items()}
    app = {**APPS, **STEPS, **LEAST, **WATCHED, **kept}[os.environ["BENCHMARK_APP"]]()
    collect_rarely()  # `hookonce serve` does the same
    return app
