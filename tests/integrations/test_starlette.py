"""Starlette middleware in front of a receiver may read or rewrite the body."""

import json

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from support.servers import delivering

from hookonce import Limits, Receiver
from hookonce.events import CommentReceived
from hookonce.testing import make_event
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

SECRET = new_secret()


def make_receiver() -> Receiver:
    receiver = Receiver(secrets=SECRET, store="memory://", limits=Limits(body_seconds=0.1))

    @receiver.on(CommentReceived)
    async def note(event: CommentReceived) -> None: ...

    return receiver


class Reading(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        assert await request.json()
        return await call_next(request)


class Consuming:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await Request(scope, receive).body()
        await self.app(scope, receive, send)


async def test_a_body_that_middleware_has_read_still_verifies() -> None:
    routes = make_receiver().routes("/webhooks")
    async with delivering(Starlette(routes=routes, middleware=[Middleware(Reading)]), SECRET) as s:
        (await s.send(make_event(CommentReceived))).expect(200, "handled")


async def test_a_body_that_middleware_has_consumed_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    routes = make_receiver().routes("/webhooks", middleware=[Middleware(Consuming)])
    async with delivering(Starlette(routes=routes), SECRET) as sender:
        (await sender.send(make_event(CommentReceived))).expect(408, "body_timeout")
    assert "has consumed it" in caplog.text


class Reencoding:
    """Middleware that parses JSON bodies and serializes them again."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = json.dumps(await Request(scope, receive).json(), indent=2).encode()

        async def again() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, again, send)


async def test_a_body_that_middleware_has_rewritten_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    routes = make_receiver().routes("/webhooks", middleware=[Middleware(Reencoding)])
    async with delivering(Starlette(routes=routes), SECRET) as sender:
        (await sender.send(make_event(CommentReceived))).expect(401, "no_matching_signature")
    assert "was changed on its way" in caplog.text
