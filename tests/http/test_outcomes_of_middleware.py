"""Answers when a handler or middleware wants a status that the sender punishes."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.httpsredirect import HTTPSRedirectMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from support.deliveries import SECRET, comment
from support.handlers import Handler
from support.servers import HttpSender, delivering, itself, starlette_routes

from hookonce import Receiver
from hookonce.http.guard import StatusGuard
from hookonce.outcome import Outcome

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_secret_is_logged")]


async def test_an_http_exception_of_a_handler_is_a_failure_like_any_other() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    handler = Handler(receiver)
    app = Starlette(routes=receiver.routes("/webhooks"), lifespan=receiver.lifespan)
    async with delivering(app, SECRET) as sender:
        event = comment()
        for status in (410, 301, 302, 303, 307, 308, 200, 204, 404):
            handler.raises(HTTPException(status, headers={"location": "/login"}))
            answer = (await sender.send(event)).expect(500, "handler_failed")
            assert "location" not in answer.headers
        handler.succeeds()
        (await sender.send(event)).expect(200, "handled")


class Answering:
    """Middleware that answers before the receiver, with a given status."""

    def __init__(self, app: ASGIApp, status: int) -> None:
        self.app = app
        self.status = status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {"location": "/login"}
        await PlainTextResponse("go away", self.status, headers)(scope, receive, send)


class Raising:
    """Middleware that raises instead of answering."""

    def __init__(self, app: ASGIApp, error: Exception) -> None:
        self.app = app
        self.error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        raise self.error


def answering(status: int) -> Middleware:
    return Middleware(Answering, status=status)


async def test_middleware_of_the_routes_cannot_answer_a_redirect_or_410(
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    punished = (410, 300, 301, 302, 303, 304, 307, 308, 399)
    app = Starlette(
        routes=[
            route
            for status in punished
            for route in receiver.routes(f"/{status}", middleware=[answering(status)])
        ]
    )
    async with delivering(app, SECRET) as sender:
        for status in punished:
            caplog.clear()
            sender.path = f"/{status}"
            answer = (await sender.send(comment())).expect(500, "internal_error")
            assert "location" not in answer.headers
            assert any(
                record.levelno == logging.ERROR and f"{status}" in record.getMessage()
                for record in caplog.records
            )


async def test_middleware_of_the_routes_may_answer_any_other_status() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    allowed = (200, 204, 299, 400, 401, 409, 411, 429, 503)
    app = Starlette(
        routes=[
            route
            for status in allowed
            for route in receiver.routes(f"/{status}", middleware=[answering(status)])
        ]
    )
    async with delivering(app, SECRET) as sender:
        for status in allowed:
            response = await sender.client.post(f"/{status}")
            assert response.status_code == status
            assert response.headers["location"] == "/login"


async def test_middleware_of_the_routes_that_raises_is_answered_500(
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    errors = {"gone": HTTPException(410), "found": HTTPException(302), "bug": KeyError("x")}
    app = Starlette(
        routes=[
            route
            for name, error in errors.items()
            for route in receiver.routes(f"/{name}", middleware=[Middleware(Raising, error=error)])
        ]
    )
    async with delivering(app, SECRET) as sender:
        for name, error in errors.items():
            sender.path = f"/{name}"
            (await sender.send(comment())).expect(500, "internal_error")
            assert any(r.exc_info and r.exc_info[1] is error for r in caplog.records)


class Wanting(Receiver):
    """A receiver whose ``handle`` a user has overridden."""

    wanted: Callable[[], Outcome]

    async def handle(self, *_: Any, **__: Any) -> Outcome:
        return self.wanted()


@pytest.mark.parametrize("mounted", [itself, starlette_routes])
@pytest.mark.parametrize(
    "wanted",
    [lambda: Outcome(410, "gone"), lambda: Outcome(302, "found"), lambda: Outcome(1 // 0, "")],
    ids=["410", "302", "raises"],
)
async def test_a_receiver_that_raises_or_returns_a_redirect_or_410_answers_500(
    wanted: Callable[[], Outcome],
    mounted: Callable[[Receiver], ASGIApp],
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiver = Wanting(secrets=SECRET, store="memory://")
    receiver.wanted = wanted
    async with delivering(mounted(receiver), SECRET) as sender:
        (await sender.send(comment())).expect(500, "internal_error")
    assert any(record.exc_info for record in caplog.records)


async def test_middleware_of_the_routes_runs_in_its_order_around_the_receiver() -> None:
    order: list[str] = []

    class Noting:
        def __init__(self, app: ASGIApp, name: str) -> None:
            self.app = app
            self.name = name

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            order.append(self.name)
            await self.app(scope, receive, send)

    receiver = Receiver(secrets=SECRET, store="memory://")
    Handler(receiver)
    middleware = [Middleware(Noting, "outer"), Middleware(Noting, name="inner")]
    routes = receiver.routes("/webhooks", middleware=middleware)
    async with delivering(Starlette(routes=routes), SECRET) as sender:
        (await sender.send(comment())).expect(200, "handled")
    assert order == ["outer", "inner"]


@asynccontextmanager
async def behind_guard(
    receiver: Receiver, *middleware: Middleware, guard: Middleware
) -> AsyncIterator[HttpSender]:
    async def page(request: Request) -> Response:
        return RedirectResponse(f"/elsewhere?from={request.url.path}")

    app = Starlette(
        routes=[*receiver.routes("/webhooks"), Route("/page", page)],
        middleware=[guard, *middleware],
        lifespan=receiver.lifespan,
    )
    async with delivering(app, SECRET) as sender:
        yield sender


async def test_a_guard_around_an_application_turns_its_redirect_of_a_delivery_into_500() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    guard = Middleware(StatusGuard, paths=["/webhooks"])
    async with behind_guard(receiver, Middleware(HTTPSRedirectMiddleware), guard=guard) as sender:
        (await sender.send(comment())).expect(500, "internal_error")
        sender.path = "/webhooks/"
        (await sender.send(comment())).expect(500, "internal_error")
        assert (await sender.client.get("/page")).status_code == 307


async def test_a_guard_around_an_application_lets_good_answers_and_other_paths_pass() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    Handler(receiver)
    guard = Middleware(StatusGuard, paths=["/webhooks/"])
    async with behind_guard(receiver, guard=guard) as sender:
        (await sender.send(comment())).expect(200, "handled")
        assert (await sender.client.get("/page")).status_code == 307


async def test_a_guard_without_paths_guards_the_whole_application() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    async with behind_guard(receiver, guard=Middleware(StatusGuard)) as sender:
        assert (await sender.client.get("/page")).status_code == 500


@pytest.mark.parametrize("status", [410, 302])
async def test_a_guard_around_an_application_answers_500_for_what_its_middleware_answers(
    status: int,
) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    guard = Middleware(StatusGuard, paths=["/webhooks"])
    async with behind_guard(receiver, answering(status), guard=guard) as sender:
        (await sender.send(comment())).expect(500, "internal_error")


async def test_a_guard_around_an_application_answers_500_for_what_its_middleware_raises() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    guard = Middleware(StatusGuard, paths=["/webhooks"])
    raising = Middleware(Raising, error=HTTPException(410))
    async with behind_guard(receiver, raising, guard=guard) as sender:
        (await sender.send(comment())).expect(500, "internal_error")
