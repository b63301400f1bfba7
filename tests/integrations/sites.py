"""Every adapter around a receiver, each behind a server that is used in production."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import httpx2
from django.core.asgi import get_asgi_application  # type: ignore[import-untyped]  # Django ships no types
from django.core.wsgi import get_wsgi_application  # type: ignore[import-untyped]
from fastapi import APIRouter, FastAPI
from flask import Blueprint, Flask, Response
from litestar import Litestar
from starlette.applications import Starlette
from starlette.types import ASGIApp
from support.servers import HttpSender, RawConnection, serving
from support.waiting import PATIENCE_SECONDS

from hookonce import Receiver
from hookonce.integrations import aws_lambda, django, fastapi, flask, litestar, wsgi
from integrations.django_project import project
from integrations.lambda_gateways import GATEWAYS, Gateway, LambdaTransport
from integrations.wsgi_servers import served_by_werkzeug, served_by_wsgiref

__all__ = ["ADAPTERS", "Adapter", "Served", "sending"]


@dataclass(frozen=True)
class Served:
    """A receiver behind an adapter.

    Attributes:
        sender: sends deliveries to it.
        port: where it listens; 0 where nothing does.

    """

    sender: HttpSender
    port: int

    async def connection(self) -> RawConnection:
        return await RawConnection.at(self.port)


Serve: TypeAlias = Callable[[Receiver], AbstractAsyncContextManager[int]]


@dataclass(frozen=True)
class Adapter:
    """A way to serve a receiver, and its properties.

    Attributes:
        serve: serves a receiver, and gives the port.
        gateway: makes AWS events, if there is no server.
        path: where deliveries arrive.
        sees_bodies_arrive: whether the adapter has the request before its body is complete.

    """

    serve: Serve | None = None
    gateway: Gateway | None = None
    path: str = "/webhooks"
    sees_bodies_arrive: bool = True

    @property
    def listens(self) -> bool:
        """Whether a server listens; an adapter without a server answers after its handlers have
        ended.
        """
        return self.serve is not None


@asynccontextmanager
async def sending(
    adapter: Adapter, receiver: Receiver, *, secret: str, store: str
) -> AsyncIterator[Served]:
    """Serve a receiver, whose store has this URL, through an adapter; yield a sender."""
    if adapter.serve is None:
        assert adapter.gateway is not None
        async with _in_lambda(receiver, store, adapter.gateway) as client:
            yield Served(HttpSender(client, secret, adapter.path), 0)
        return
    async with (
        adapter.serve(receiver) as port,
        httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS, verify=False
        ) as client,
    ):
        yield Served(HttpSender(client, secret, adapter.path), port)


@asynccontextmanager
async def _in_lambda(
    receiver: Receiver, store: str, gateway: Gateway
) -> AsyncIterator[httpx2.AsyncClient]:
    instances: list[aws_lambda.LambdaHandler] = []

    def start() -> aws_lambda.LambdaHandler:
        # Each Lambda instance is a separate machine; all instances share only the store.
        instances.append(aws_lambda.mount(receiver.copy(store=store)))
        return instances[-1]

    transport = LambdaTransport(start, gateway)
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://function") as client:
            yield client
    finally:
        for instance in instances:
            await asyncio.to_thread(instance.close)


@asynccontextmanager
async def _starlette(receiver: Receiver) -> AsyncIterator[int]:
    app = Starlette(routes=receiver.routes("/webhooks"), lifespan=receiver.lifespan)
    async with serving(app) as site:
        yield site.port


@asynccontextmanager
async def _fastapi(receiver: Receiver) -> AsyncIterator[int]:
    app = FastAPI(lifespan=receiver.lifespan)
    fastapi.mount(app, receiver, "/webhooks")
    async with serving(app) as site:
        yield site.port


@asynccontextmanager
async def _fastapi_router(receiver: Receiver) -> AsyncIterator[int]:
    hooks = APIRouter()
    fastapi.mount(hooks, receiver)
    app = FastAPI(lifespan=receiver.lifespan)
    app.include_router(hooks, prefix="/api")
    async with serving(app) as site:
        yield site.port


@asynccontextmanager
async def _litestar(receiver: Receiver) -> AsyncIterator[int]:
    # Litestar's default logging configuration would remove the log handlers of the test.
    app = Litestar(lifespan=[receiver.lifespan], logging_config=None)
    litestar.mount(app, receiver)
    async with serving(cast("ASGIApp", app)) as site:
        yield site.port


@asynccontextmanager
async def _wsgi(receiver: Receiver) -> AsyncIterator[int]:
    app = wsgi.mount(_nothing_here, receiver)
    try:
        async with served_by_wsgiref(app) as port:
            yield port
    finally:
        await asyncio.to_thread(app.close)


def _nothing_here(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    return Response(status=404)(environ, start_response)


@asynccontextmanager
async def _flask(receiver: Receiver) -> AsyncIterator[int]:
    app = Flask("app_of_a_test")
    mounted = flask.mount(app, receiver)
    try:
        async with served_by_werkzeug(app) as port:
            yield port
    finally:
        await asyncio.to_thread(mounted.close)


@asynccontextmanager
async def _flask_blueprint(receiver: Receiver) -> AsyncIterator[int]:
    hooks = Blueprint("hooks", "app_of_a_test")
    mounted = flask.mount(hooks, receiver)
    app = Flask("app_of_a_test")
    app.register_blueprint(hooks, url_prefix="/api")
    try:
        async with served_by_werkzeug(app) as port:
            yield port
    finally:
        await asyncio.to_thread(mounted.close)


@asynccontextmanager
async def _django_wsgi(receiver: Receiver) -> AsyncIterator[int]:
    with _django(receiver):
        async with served_by_werkzeug(get_wsgi_application()) as port:
            yield port


@asynccontextmanager
async def _django_asgi(receiver: Receiver) -> AsyncIterator[int]:
    with _django(receiver):
        async with serving(get_asgi_application(), lifespan="off") as site:
            yield site.port


@contextmanager
def _django(receiver: Receiver) -> Iterator[None]:
    pattern = django.mount(receiver)
    with project([pattern]):
        yield
    pattern.callback.close()


ADAPTERS = {
    "starlette": Adapter(_starlette),
    "fastapi": Adapter(_fastapi),
    "fastapi router": Adapter(_fastapi_router, path="/api/webhooks"),
    "litestar": Adapter(_litestar),
    "wsgi": Adapter(_wsgi),
    "flask": Adapter(_flask),
    "flask blueprint": Adapter(_flask_blueprint, path="/api/webhooks"),
    "django wsgi": Adapter(_django_wsgi, sees_bodies_arrive=False),
    "django asgi": Adapter(_django_asgi, sees_bodies_arrive=False),
    **{f"lambda {name}": Adapter(gateway=gateway) for name, gateway in GATEWAYS.items()},
}
