"""Tests for Litestar beyond the common suite: bodies that middleware has read, and routers."""

import logging
from typing import Any, cast

import pytest
from litestar import Litestar, Request, Router
from litestar.config.csrf import CSRFConfig
from litestar.connection import ASGIConnection
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send
from starlette.types import ASGIApp as StarletteApp
from support.servers import delivering

from hookonce import Limits, Receiver
from hookonce.events import CommentReceived
from hookonce.integrations.litestar import mount
from hookonce.testing import make_event
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

SECRET = new_secret()


def make_receiver(**limits: Any) -> Receiver:
    receiver = Receiver(secrets=SECRET, store="memory://", limits=Limits(**limits))

    @receiver.on(CommentReceived)
    async def note(event: CommentReceived) -> None: ...

    return receiver


def application(receiver: Receiver, *, guards: list[Any] | None = None, **options: Any) -> Any:
    """Return a Litestar application with these options and the receiver mounted."""
    # Litestar's default logging configuration would remove the log handlers of the test.
    app = Litestar(logging_config=None, **options)
    mount(app, receiver, guards=guards)
    return app


class Reading(ASGIMiddleware):
    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        assert await Request[Any, Any, Any](scope, receive=receive).body()
        await next_app(scope, receive, send)


class Consuming(ASGIMiddleware):
    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        async for _ in Request[Any, Any, Any](scope, receive=receive).stream():
            pass
        await next_app(scope, receive, send)


async def test_a_body_that_middleware_has_read_still_verifies() -> None:
    app = application(make_receiver(), middleware=[Reading()])
    async with delivering(app, SECRET) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
        (await sender.send(make_event(CommentReceived), tamper=True)).expect(401)


async def test_the_size_limit_holds_for_a_body_that_middleware_has_read() -> None:
    app = application(make_receiver(body_bytes=2000), middleware=[Reading()])
    async with delivering(app, SECRET) as sender:
        (await sender.send(b'"' + b"x" * 2000 + b'"')).expect(413, "body_too_large")


async def test_a_body_that_middleware_has_consumed_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = application(make_receiver(body_seconds=0.1), middleware=[Consuming()])
    async with delivering(app, SECRET) as sender:
        (await sender.send(make_event(CommentReceived))).expect(408, "body_timeout")
    assert "has consumed it" in caplog.text


async def test_deliveries_are_exempt_from_csrf_checks() -> None:
    csrf = CSRFConfig(secret="of this test")
    app = application(make_receiver(), csrf_config=csrf)
    async with delivering(app, SECRET) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")


@pytest.mark.parametrize("status", [302, 410])
async def test_no_guard_can_answer_a_redirect_or_410(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:  # noqa: ARG001 - guards have this parameter
        raise HTTPException(status_code=status, headers={"location": "/login"})

    app = application(make_receiver(), guards=[refuse])
    async with delivering(app, SECRET) as sender:
        answer = (await sender.send(make_event(CommentReceived))).expect(500, "internal_error")
        assert "location" not in answer.headers
    assert any(r.levelno == logging.ERROR and str(status) in r.getMessage() for r in caplog.records)


async def test_two_receivers_answer_below_the_path_of_a_router() -> None:
    hooks = Router("/hooks", route_handlers=[])
    mount(hooks, make_receiver(), "/a", name="a")
    mount(hooks, make_receiver(), "/b", name="b")
    app = cast("StarletteApp", Litestar([hooks], logging_config=None))
    async with delivering(app, SECRET) as sender:
        event = make_event(CommentReceived)
        for sender.path in ("/hooks/a", "/hooks/b", "/hooks/b/"):
            await sender.send(event)
        assert [answer.reason for answer in sender.answers] == ["handled", "handled", "duplicate"]
