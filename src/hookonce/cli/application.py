"""The ASGI application that ``hookonce serve`` runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, cast

from hookonce import Receiver
from hookonce.http.app import ASGIApp, Message, Receive, Route, Scope, Send, application, elsewhere
from hookonce.http.health import Readiness, health_routes

from .loading import Loaded, logged_fault
from .output import one_line

if TYPE_CHECKING:
    from hookonce.operations.inspector import Inspector

INSPECTOR_PATH = "/inspector"


def service_app(
    receiver: Receiver,
    path: str,
    inspector: Inspector | None = None,
    more: Iterable[Route] = (),
    *,
    health_token: str | None = None,
) -> ASGIApp:
    """Return an application of one receiver, with ``/livez`` and ``/readyz``.

    Args:
        health_token: the bearer token that makes ``/readyz`` give its reasons.

    Raises:
        ValueError: the token is too short.
    """
    routes = [*receiver.routes(path), *receiver.health_routes(token=health_token), *more]
    otherwise = inspector.below(INSPECTOR_PATH, elsewhere) if inspector else elsewhere
    return application(routes, receiver.lifespan, otherwise)


def application_of(
    loaded: Loaded,
    inspector: Inspector | None,
    more: Iterable[Route],
    *,
    health_token: str | None,
) -> ASGIApp:
    """Return an application of several receivers, with ``/livez`` and ``/readyz`` for all of them.

    A user's application keeps its own paths and lifespan. Receivers in a mapping or a sequence
    receive deliveries at ``/webhooks/ENDPOINT``. See ``service_app`` for the arguments.

    Raises:
        ValueError: the token is too short.
    """
    receivers = tuple(loaded.receivers.values())

    async def readiness() -> Readiness:
        checks = [(one.endpoint, await one.recent_check()) for one in receivers]

        def named(part: Callable[[Readiness], Iterable[str]]) -> tuple[str, ...]:
            return tuple(f"{name}: {text}" for name, check in checks for text in part(check))

        return Readiness(
            named(lambda check: check.problems),
            named(lambda check: check.warnings),
            without_workers=named(lambda check: check.without_workers),
        )

    routes = [*health_routes(readiness, token=health_token), *more]
    if callable(loaded.named):
        whole = _beside(cast("ASGIApp", loaded.named), routes)
    else:
        for path, receiver in loaded.receivers.items():
            routes += receiver.routes(path)
        whole = application(routes, _lifespan_of(receivers))
    return inspector.below(INSPECTOR_PATH, whole) if inspector else whole


class ReportedStart:
    """Passes all calls to an application, and keeps the reason if the application cannot start.

    The server would log a traceback; the command ends with one line instead.

    Attributes:
        fault: why the application's lifespan failed at the start; None if it did not.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.fault: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request or the lifespan to the application."""
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return

        async def without_message(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed":
                lines = message.get("message", "").strip().splitlines()
                self.fault = one_line(lines[-1]) if lines else "its lifespan failed"
                message = {"type": message["type"]}
            await send(message)

        try:
            await self._app(scope, receive, without_message)
        except Exception as error:
            if self.fault is not None:
                self.fault = logged_fault(error)
            raise


def _beside(named: ASGIApp, routes: Iterable[Route]) -> ASGIApp:
    """Return an application that answers at ``routes``; ``named`` answers at all other paths."""
    with_routes = application(routes, _no_lifespan, named)

    async def whole(scope: Scope, receive: Receive, send: Send) -> None:
        await (named if scope["type"] == "lifespan" else with_routes)(scope, receive, send)

    return whole


def _lifespan_of(
    receivers: Iterable[Receiver],
) -> Callable[[object], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for receiver in receivers:
                await stack.enter_async_context(receiver)
            yield

    return lifespan


@asynccontextmanager
async def _no_lifespan(_: object) -> AsyncIterator[None]:
    yield
