"""Routes never redirect; a receiver works inside an application and alone."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message
from support.deliveries import SECRET, receiver_on, sqlite_url
from support.handlers import counting
from support.servers import (
    RawConnection,
    delivering,
    itself,
    post,
    request_bytes,
    serving,
    starlette_routes,
)

from hookonce import Receiver
from hookonce.events import CommentReceived
from hookonce.testing import SignedRequest, make_event, signed_request
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio


# Routes in an application


def starlette_routes_with_slash(receiver: Receiver) -> ASGIApp:
    return Starlette(routes=receiver.routes("/webhooks/"), lifespan=receiver.lifespan)


def fastapi_routes(receiver: Receiver) -> ASGIApp:
    return FastAPI(routes=list(receiver.routes("/webhooks")), lifespan=receiver.lifespan)


def fastapi_extended(receiver: Receiver) -> ASGIApp:
    app = FastAPI(lifespan=receiver.lifespan)
    app.router.routes.extend(receiver.routes("/webhooks"))

    @app.get("/")
    async def index() -> str:
        return "hello"

    return app


@pytest.mark.parametrize(
    "made",
    [starlette_routes, starlette_routes_with_slash, fastapi_routes, fastapi_extended, itself],
)
async def test_a_path_answers_with_and_without_a_trailing_slash_and_never_redirects(
    made: Callable[[Receiver], ASGIApp],
) -> None:
    receiver = receiver_on()
    ran = counting(receiver)
    async with delivering(made(receiver), SECRET) as sender:
        for path in ("/webhooks", "/webhooks/"):
            sender.path = path
            (await sender.send(make_event(CommentReceived))).expect(200, "handled")
            for method in ("GET", "PUT"):
                response = await sender.client.request(method, path)
                assert response.status_code == 405
    assert len(ran) == 2


async def test_routes_can_be_at_the_root_of_an_application() -> None:
    receiver = receiver_on()
    ran = counting(receiver)
    app = Starlette(routes=receiver.routes("/"), lifespan=receiver.lifespan)
    async with delivering(app, SECRET, path="/") as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
    assert len(ran) == 1


async def test_routes_of_two_receivers_do_not_mix() -> None:
    first, second = receiver_on(), Receiver(secrets=new_secret(), store="memory://")
    ran = counting(first)
    app = Starlette(routes=[*first.routes("/first"), *second.routes("/second")])
    async with delivering(app, SECRET, path="/first") as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
        sender.path = "/second"
        (await sender.send(make_event(CommentReceived))).expect(401, "no_matching_signature")
    assert len(ran) == 1


async def test_a_path_without_a_slash_is_refused() -> None:
    with pytest.raises(ValueError, match="starts with a slash"):
        receiver_on().routes("webhooks")


async def test_a_fastapi_application_still_describes_itself() -> None:
    async with delivering(fastapi_extended(receiver_on()), SECRET) as sender:
        described = (await sender.client.get("/openapi.json")).json()
        assert list(described["paths"]) == ["/"]


async def test_middleware_that_wraps_requests_and_responses_does_not_disturb() -> None:
    class Stamping(BaseHTTPMiddleware):
        async def dispatch(
            self, request: Request, call_next: Callable[[Request], Awaitable[Response]]
        ) -> Response:
            response = await call_next(request)
            response.headers["stamp"] = "seen"
            return response

    receiver = receiver_on()
    ran = counting(receiver)
    app = Starlette(routes=receiver.routes("/webhooks"), middleware=[Middleware(Stamping)])
    async with delivering(app, SECRET) as sender:
        answer = (await sender.send(make_event(CommentReceived))).expect(200, "handled")
        assert answer.headers["stamp"] == "seen"
    assert len(ran) == 1


# A receiver mounted in an application


@pytest.mark.parametrize("prefix", ["/hooks", "/api/hooks"])
async def test_a_mounted_receiver_answers_without_a_lifespan_of_its_own(
    tmp_path: Path, prefix: str
) -> None:
    receiver = receiver_on(sqlite_url(tmp_path))
    ran = counting(receiver)
    app: ASGIApp = Starlette(routes=[Mount("/hooks", app=receiver)])
    if prefix == "/api/hooks":
        app = Starlette(routes=[Mount("/api", app=app)])
    async with delivering(app, SECRET) as sender:
        for path in (f"{prefix}/", f"{prefix}/webhooks", f"{prefix}/webhooks/"):
            sender.path = path
            (await sender.send(make_event(CommentReceived))).expect(200, "handled")
        sender.path = f"{prefix}/elsewhere"
        (await sender.send(make_event(CommentReceived))).expect(404, "not_found")
    await receiver.store.aclose()
    assert len(ran) == 3


async def test_a_receiver_mounted_in_fastapi_answers() -> None:
    receiver = receiver_on()
    ran = counting(receiver)
    app = FastAPI()
    app.mount("/hooks", receiver)
    async with delivering(app, SECRET, path="/hooks/") as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
    assert len(ran) == 1


async def test_a_receiver_mounted_at_the_root_leaves_the_routes_before_it_alone() -> None:
    receiver = receiver_on()
    ran = counting(receiver)
    app = Starlette(routes=[*receiver.health_routes(), Mount("/", app=receiver)])
    async with delivering(app, SECRET, path="/") as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
        assert (await sender.client.get("/livez")).status_code == 200
    assert len(ran) == 1


# A receiver as the application itself


async def test_a_receiver_alone_answers_at_its_own_paths_and_404_elsewhere() -> None:
    receiver = receiver_on()
    ran = counting(receiver)
    async with delivering(receiver, SECRET) as sender:
        for path in ("/", "/webhooks", "/webhooks/", "/webhooks?source=app"):
            sender.path = path
            (await sender.send(make_event(CommentReceived))).expect(200, "handled")
        for path in ("/other", "/webhooks/more", "/webhooksmore", "/Webhooks", "/webhooks//"):
            sender.path = path
            (await sender.send(make_event(CommentReceived))).expect(404, "not_found")
    assert len(ran) == 4


async def test_a_receiver_alone_answers_below_a_root_path() -> None:
    receiver = receiver_on()
    ran = counting(receiver)
    request = signed_request(make_event(CommentReceived), SECRET)
    async with serving(receiver, root_path="/api") as site:
        answer = await post(site, request, path="/webhooks")
        answer.expect(200, "handled")
    assert len(ran) == 1


async def test_a_websocket_is_closed() -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/webhooks", "headers": []}
    await receiver_on()(scope, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # an old uvicorn uses a new websockets
async def test_a_websocket_handshake_is_refused_and_the_server_lives_on() -> None:
    receiver = receiver_on()
    counting(receiver)
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    async with serving(receiver, ws="auto") as site:
        async with await RawConnection.to(site) as connection:
            request = SignedRequest(b"", {})
            await connection.write(request_bytes(request, method="GET", headers=upgrade))
            assert (await connection.answer()).status == 403
        answer = await post(site, signed_request(make_event(CommentReceived), SECRET))
        answer.expect(200, "handled")


def test_a_receiver_works_in_the_test_client_of_starlette(tmp_path: Path) -> None:
    receiver = receiver_on(sqlite_url(tmp_path))
    ran = counting(receiver)
    app = starlette_routes(receiver)
    request = signed_request(make_event(CommentReceived), SECRET)
    for reason in ("handled", "duplicate"):
        with TestClient(app) as client:
            for expected in (reason, "duplicate"):
                response = client.post(
                    "/webhooks", content=request.body, headers=dict(request.headers)
                )
                assert (response.status_code, response.json()["reason"]) == (200, expected)
    assert len(ran) == 1
