"""A receiver in a Litestar application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from litestar import Request, Router
from litestar.handlers import route
from litestar.types import ASGIApp
from litestar.utils.scope.state import ScopeState

from ..http import app as own
from ..http.app import Message, Receive, Scope, Send
from ..http.guard import StatusGuard
from ..receiver import Receiver

if TYPE_CHECKING:
    from litestar.types import Method

__all__ = ["mount"]

# Without routes for these methods, Litestar would send its own answer. It does not know TRACE.
_METHODS: tuple[Method, ...] = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")


def mount(
    app: Router,
    receiver: Receiver,
    path: str = "/webhooks",
    *,
    name: str = "hookonce",
    **options: Any,
) -> None:
    """Add a route that answers deliveries at ``path``, with and without a trailing slash.

    The application opens and closes the receiver with its lifespan::

        app = Litestar(lifespan=[receiver.lifespan])
        mount(app, receiver, "/webhooks")

    The body is read raw, within the receiver's limits. The route is exempt from CSRF checks and
    authentication, and no guard can send a 3xx or a 410 from it.

    Args:
        app: the application, or a ``Router`` that is registered later.
        receiver: answers the deliveries.
        path: where deliveries arrive, after the path of a router.
        name: the name of the route; a second receiver of one application needs another.
        options: for Litestar's ``route``, such as ``guards``.
    """
    delivery = receiver.routes("/")[0].endpoint

    # Use a route: an ASGI handler would fail after middleware that reads the body, such as
    # Litestar's logging middleware.
    @route(
        path,
        http_method=_METHODS,
        name=name,
        include_in_schema=False,
        middleware=[_guarded],
        exclude_from_csrf=True,
        exclude_from_auth=True,
        **options,
    )
    async def deliver(request: Request[Any, Any, Any]) -> ASGIApp:
        kept = ScopeState.from_scope(request.scope).body

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await delivery(scope, _given(kept) if isinstance(kept, bytes) else receive, send)

        return cast("ASGIApp", answer)

    app.register(deliver)


def _guarded(app: ASGIApp) -> ASGIApp:
    return cast("ASGIApp", StatusGuard(cast("own.ASGIApp", app)))


def _given(body: bytes) -> Receive:
    """Return a ``receive`` that yields a body which Litestar has already read."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
