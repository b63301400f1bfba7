"""Transports: requests to receivers in this process and over HTTP."""

import asyncio
import gc
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from support.recorder import Recorder
from support.servers import serving
from support.waiting import PATIENCE_SECONDS, until

from hookonce.emulator import EmulatedService, transport
from hookonce.emulator.over_http import OverHttp
from hookonce.emulator.transport import (
    CALM,
    Break,
    InProcess,
    Network,
    OutgoingRequest,
    Transport,
    pieces,
)

pytestmark = pytest.mark.anyio

URL = "https://receiver.test/in"
BODY = b'{"id":"evt_1"}'


def request_to(url: str, body: bytes = BODY) -> OutgoingRequest:
    headers = {
        "content-type": "application/json",
        "webhook-id": "evt_1",
        "webhook-timestamp": "1",
        "example-delivery-attempt": "1",
        "user-agent": "mine/1.0",
    }
    return OutgoingRequest(url, headers, body)


def no_others() -> AbstractAsyncContextManager[Transport]:
    raise AssertionError("nothing else is to be reached")


@contextmanager
def nothing_reported() -> Iterator[None]:
    """Check that the event loop reports no unhandled error."""
    reported: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    try:
        yield
        gc.collect()
    finally:
        loop.set_exception_handler(before)
    assert reported == []


# Simulated network faults


async def brought(body: bytes, network: Network) -> list[bytes]:
    return [piece async for piece in pieces(body, network)]


@pytest.mark.parametrize("body", [b"", b"a", b"abc", b"abcd", b"abcdefghi", b"x" * 1000])
async def test_a_body_arrives_whole_in_up_to_four_pieces(body: bytes) -> None:
    assert await brought(body, CALM) == [body]
    in_pieces = await brought(body, Network(body_seconds=1e-6))
    assert b"".join(in_pieces) == body
    assert 1 <= len(in_pieces) <= 4
    assert await brought(body, Network(breaks=Break.BEFORE_THE_ANSWER)) == in_pieces


@pytest.mark.parametrize("body", [b"abc", b"abcdefghi", b"x" * 1000])
async def test_a_broken_body_ends_in_its_middle(body: bytes) -> None:
    arrived = b""

    async def arrive() -> None:
        nonlocal arrived
        async for piece in pieces(body, Network(breaks=Break.IN_THE_BODY)):
            arrived += piece

    with pytest.raises(ConnectionResetError):
        await arrive()
    assert body.startswith(arrived)
    assert 0 < len(arrived) < len(body)


# Behaviour of both transports


class Anywhere:
    """An application that a test reaches in this process or over HTTP."""

    def __init__(self, by: str, app: object) -> None:
        self.by, self.app = by, app

    async def post(self, network: Network = CALM) -> tuple[int, bytes]:
        assert callable(self.app)
        if self.by == "in process":
            inside = InProcess(no_others)
            inside.mount(URL, self.app)
            async with inside:
                answer = await inside.post(request_to(URL), network)
        else:
            async with serving(self.app, lifespan="auto") as site, OverHttp() as outside:
                answer = await outside.post(request_to(f"{site.url}/in"), network)
        return answer.status, answer.body


@pytest.fixture(params=["in process", "over HTTP"])
def by(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_request_arrives_as_it_was_sent(by: str) -> None:
    app = Recorder()
    assert await Anywhere(by, app).post() == (204, b"")
    (one,) = app.received
    assert (one.path, one.body) == ("/in", BODY)
    sent = request_to(URL).headers
    assert {name: one.headers[name] for name in sent} == sent
    assert one.headers["content-length"] == str(len(BODY))
    assert "transfer-encoding" not in one.headers


async def test_an_answer_comes_back_whole(by: str) -> None:
    async def answer(request: Request) -> Response:
        body = await request.body()

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield body

        return StreamingResponse(parts(), 202)

    app = Starlette(routes=[Route("/in", answer, methods=["POST"])])
    assert await Anywhere(by, app).post() == (202, BODY * 3)


async def test_an_answer_may_come_before_the_body_is_read(by: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await PlainTextResponse("too much", 413)(scope, receive, send)

    assert await Anywhere(by, app).post() == (413, b"too much")


@pytest.mark.parametrize("where", Break)
async def test_a_connection_breaks_at_the_chosen_place(by: str, where: Break) -> None:
    app = Recorder()
    with nothing_reported(), pytest.raises(ConnectionError, match="the connection broke"):
        await Anywhere(by, app).post(Network(breaks=where))
    await until(lambda: app.received)
    (one,) = app.received
    assert one.is_complete == (where is Break.BEFORE_THE_ANSWER)
    assert one.body == (BODY if one.is_complete else BODY[: len(one.body)])


async def test_an_application_that_raises_has_answered_500(by: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raise LookupError("a bug")
        await Starlette()(scope, receive, send)

    status, _ = await Anywhere(by, app).post()
    assert status == 500


async def test_an_application_may_have_no_lifespan(by: str) -> None:
    """Django, for example, raises for every ASGI scope except that of a request."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ValueError("only requests here")
        await PlainTextResponse("fine")(scope, receive, send)

    assert await Anywhere(by, app).post() == (200, b"fine")


# Applications in this process


async def test_the_lifespan_of_an_application_runs_around_it() -> None:
    steps: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while scope["type"] == "lifespan":
            step = (await receive())["type"]
            steps.append(step)
            await send({"type": f"{step}.complete"})
            if step == "lifespan.shutdown":
                return
        steps.append("delivery")
        await PlainTextResponse("fine")(scope, receive, send)

    async with EmulatedService(app) as service:
        await service.emit("comment.received")
        assert service.attempts()[0].status == 200
    assert steps == ["lifespan.startup", "delivery", "lifespan.shutdown"]


async def test_a_failing_lifespan_raises() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "lifespan"
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    with pytest.raises(RuntimeError, match="no database"):
        async with EmulatedService(app):
            raise AssertionError("it has started")


async def test_an_application_that_never_ends_is_cancelled_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "_CLOSING_SECONDS", 0.02)
    ended: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await Starlette()(scope, receive, send)
            return
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    before = asyncio.all_tasks()
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        EmulatedService(app, answer_seconds=0.01) as service,
    ):
        await service.emit("comment.received")
        assert ended == []
    assert ended == ["cancelled"]
    assert asyncio.all_tasks() == before


async def test_an_application_receives_only_at_its_path() -> None:
    app = Recorder()
    inside = InProcess(no_others)
    inside.mount(URL, app)
    async with inside:
        await inside.post(request_to(URL))
        with pytest.raises(AssertionError, match="nothing else"):
            await inside.post(request_to(f"{URL}/deeper"))
    assert [one.path for one in app.received] == ["/in"]
    mine = Recorder()
    async with EmulatedService(mine, path="/hooks/in") as service:
        await service.emit("comment.received")
        assert service.endpoint().url.endswith("/hooks/in")
    assert [one.path for one in mine.received] == ["/hooks/in"]


# Applications over HTTP


async def test_a_refused_connection_is_one_connection_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    async with OverHttp() as outside:
        for network in (CALM, *(Network(breaks=where) for where in Break)):
            with nothing_reported(), pytest.raises(ConnectionError, match="ConnectError"):
                await outside.post(request_to(url), network)


@pytest.mark.parametrize("network", [CALM, *(Network(breaks=where) for where in Break)])
async def test_a_cancelled_request_leaves_nothing_behind(network: Network) -> None:
    """The server never accepts the connection; the client cancels."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        before = asyncio.all_tasks()
        with nothing_reported():
            async with OverHttp() as outside:
                sending = asyncio.create_task(outside.post(request_to(url, BODY * 10**6), network))
                await asyncio.sleep(0.05)
                sending.cancel()
                await asyncio.wait({sending})
            assert asyncio.all_tasks() == before


async def test_no_request_waits_until_others_have_ended() -> None:
    """The receiver answers only when all requests have arrived."""
    arrived = asyncio.Barrier(150)

    async def answer(_: Request) -> Response:
        await arrived.wait()
        return Response(status_code=204)

    app = Starlette(routes=[Route("/", answer, methods=["POST"])])
    async with serving(app) as site, OverHttp() as outside, asyncio.timeout(PATIENCE_SECONDS):
        calls = [outside.post(request_to(f"{site.url}/")) for _ in range(arrived.parties)]
        answers = await asyncio.gather(*calls)
    assert {one.status for one in answers} == {204}


@pytest.mark.parametrize(
    "url", ["http://[::/", "http://a b/", f"http://{'a' * 70}.test/", "http://a..test/"]
)
async def test_an_invalid_url_is_a_connection_error(url: str) -> None:
    async with OverHttp() as outside:
        with pytest.raises(ConnectionError):
            await outside.post(request_to(url))


async def test_a_service_that_is_entered_again_delivers_over_http_again() -> None:
    app = Recorder()
    async with serving(app) as site:
        service = EmulatedService(f"{site.url}/in")
        for _ in range(2):
            async with service:
                await service.emit("comment.received")
    assert len(app.received) == 2


async def test_a_proxy_from_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert await Anywhere("over HTTP", Recorder()).post() == (204, b"")


async def test_the_reason_in_an_answer_is_recorded_and_other_bodies_are_ignored() -> None:
    bodies = [
        (json.dumps({"reason": "duplicate"}).encode(), "duplicate"),
        (b"", ""),
        (b"\xff{", ""),
        (b"[]", ""),
        (b'"reason"', ""),
        (b'{"reason": 5}', ""),
        (b"[" * 100_000, ""),
    ]
    left = [body for body, _ in bodies]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await Response(left.pop(0))(scope, receive, send)

    async with EmulatedService(app) as service:
        for _ in bodies:
            await service.emit("comment.received")
        assert [one.reason for one in service.attempts()] == [reason for _, reason in bodies]
        assert {row.status for row in service.deliveries()} == {"delivered"}
