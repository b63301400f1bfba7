"""Several receivers behind one port: an application that has them, or a mapping of receivers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import cast

from hookonce import Receiver
from hookonce.http.app import ASGIApp, Receive, Route, Scope, Send, application
from hookonce.http.health import Readiness, health_routes

from .loading import Loaded


def application_of(
    loaded: Loaded, more: Iterable[Route] = (), *, health_token: str | None = None
) -> ASGIApp:
    """Return what serves everything that was named, with ``/livez`` and ``/readyz`` beside it.

    An application is served as it is, under its own lifespan. Receivers of a mapping or a sequence
    answer at ``/webhooks/`` and the name of their endpoint.

    Raises:
        ValueError: the token is too short.

    """
    receivers = tuple(loaded.receivers.values())

    async def recent() -> Readiness:
        looks = [(one.endpoint, await one.recent_check()) for one in receivers]
        return Readiness(
            tuple(f"{name}: {text}" for name, look in looks for text in look.problems),
            tuple(f"{name}: {text}" for name, look in looks for text in look.warnings),
        )

    routes = [*health_routes(recent, token=health_token), *more]
    if not callable(loaded.named):
        for path, receiver in loaded.receivers.items():
            routes += receiver.routes(path)
        return application(routes, _lifespan_of(loaded.receivers))
    named = cast("ASGIApp", loaded.named)
    beside = application(routes, _nothing, named)

    async def whole(scope: Scope, receive: Receive, send: Send) -> None:
        await (named if scope["type"] == "lifespan" else beside)(scope, receive, send)

    return whole


def _lifespan_of(
    receivers: Mapping[str, Receiver],
) -> Callable[[object], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for receiver in receivers.values():
                await stack.enter_async_context(receiver)
            yield

    return lifespan


@asynccontextmanager
async def _nothing(_: object) -> AsyncIterator[None]:
    yield
