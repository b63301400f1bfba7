"""The ASGI face: routes that never redirect, lifespan and shutdown, connections as they come."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import apsw
import httpx2
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from support.processes import run_to_its_end
from support.servers import (
    HttpSender,
    RawConnection,
    Site,
    delivering,
    request_bytes,
    serving,
)
from support.stores import FaultyStore
from support.waiting import until, until_async

from hookonce import Context, Limits, Outcome, Receiver, StoreError
from hookonce.events import CommentReceived
from hookonce.http.guard import StatusGuard
from hookonce.stores.sqlite import SQLiteStore
from hookonce.testing import SignedRequest, TestSender, make_event, signed_request
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

SECRET = new_secret()
HTTP: list[Literal["httptools", "h11"]] = ["httptools", "h11"]


def counting(receiver: Receiver) -> list[str]:
    """Register a handler that notes the ids it ran for, and return the notes."""
    ran: list[str] = []

    @receiver.on(CommentReceived, name="counting")
    async def note(event: CommentReceived) -> None:
        ran.append(event.id)

    return ran


class Waiting:
    """A handler that waits at a gate and notes how it ended."""

    def __init__(self, receiver: Receiver) -> None:
        self.gate = asyncio.Event()
        self.began: list[str] = []
        self.ended: list[str] = []
        receiver.on(CommentReceived, name="waiting")(self)

    async def __call__(self, event: CommentReceived) -> None:
        self.began.append(event.id)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("finished")


def in_memory() -> Receiver:
    return Receiver(secrets=SECRET, store="memory://")


def on_file(tmp_path: Path, **limits: Any) -> Receiver:
    store = SQLiteStore(tmp_path / "hooks.db")
    return Receiver(secrets=SECRET, store=store, limits=Limits(**limits))


# routes


def starlette_routes(receiver: Receiver) -> ASGIApp:
    return Starlette(routes=receiver.routes("/webhooks"), lifespan=receiver.lifespan)


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


def itself(receiver: Receiver) -> ASGIApp:
    return receiver


@pytest.mark.parametrize(
    "made",
    [starlette_routes, starlette_routes_with_slash, fastapi_routes, fastapi_extended, itself],
)
async def test_a_path_answers_with_and_without_a_trailing_slash_and_never_redirects(
    made: Callable[[Receiver], ASGIApp],
) -> None:
    receiver = in_memory()
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
    receiver = in_memory()
    ran = counting(receiver)
    app = Starlette(routes=receiver.routes("/"), lifespan=receiver.lifespan)
    async with delivering(app, SECRET, path="/") as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
    assert len(ran) == 1


async def test_routes_of_two_receivers_keep_to_themselves() -> None:
    first, second = in_memory(), Receiver(secrets=new_secret(), store="memory://")
    ran = counting(first)
    app = Starlette(routes=[*first.routes("/first"), *second.routes("/second")])
    async with delivering(app, SECRET, path="/first") as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
        sender.path = "/second"
        (await sender.send(make_event(CommentReceived))).expect(401, "no_matching_signature")
    assert len(ran) == 1


async def test_a_path_without_a_slash_is_refused() -> None:
    with pytest.raises(ValueError, match="starts with a slash"):
        in_memory().routes("webhooks")


async def test_a_fastapi_application_still_describes_itself() -> None:
    async with delivering(fastapi_extended(in_memory()), SECRET) as sender:
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

    receiver = in_memory()
    ran = counting(receiver)
    app = Starlette(routes=receiver.routes("/webhooks"), middleware=[Middleware(Stamping)])
    async with delivering(app, SECRET) as sender:
        answer = (await sender.send(make_event(CommentReceived))).expect(200, "handled")
        assert answer.headers["stamp"] == "seen"
    assert len(ran) == 1


# mounted


@pytest.mark.parametrize("prefix", ["/hooks", "/api/hooks"])
async def test_a_mounted_receiver_answers_without_a_lifespan_of_its_own(
    tmp_path: Path, prefix: str
) -> None:
    receiver = on_file(tmp_path)
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
    receiver = in_memory()
    ran = counting(receiver)
    app = FastAPI()
    app.mount("/hooks", receiver)
    async with delivering(app, SECRET, path="/hooks/") as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
    assert len(ran) == 1


async def test_a_receiver_mounted_at_the_root_leaves_the_routes_before_it_alone() -> None:
    receiver = in_memory()
    ran = counting(receiver)
    app = Starlette(routes=[*receiver.health_routes(), Mount("/", app=receiver)])
    async with delivering(app, SECRET, path="/") as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
        assert (await sender.client.get("/livez")).status_code == 200
    assert len(ran) == 1


# alone


async def test_alone_it_answers_at_its_own_paths_and_404_elsewhere() -> None:
    receiver = in_memory()
    ran = counting(receiver)
    async with delivering(receiver, SECRET) as sender:
        for path in ("/", "/webhooks", "/webhooks/", "/webhooks?source=app"):
            sender.path = path
            (await sender.send(make_event(CommentReceived))).expect(200, "handled")
        for path in ("/other", "/webhooks/more", "/webhooksmore", "/Webhooks", "/webhooks//"):
            sender.path = path
            (await sender.send(make_event(CommentReceived))).expect(404, "not_found")
    assert len(ran) == 4


async def test_alone_behind_a_root_path_it_answers_below_it() -> None:
    receiver = in_memory()
    ran = counting(receiver)
    request = signed_request(make_event(CommentReceived), SECRET)
    async with serving(receiver, root_path="/api") as site:
        answer = await _post(site, request, path="/webhooks")
        answer.expect(200, "handled")
    assert len(ran) == 1


async def _post(site: Site, request: SignedRequest, *, path: str = "/webhooks") -> Any:
    async with await RawConnection.to(site) as connection:
        await connection.write(whole(request, path=path))
        return await connection.answer()


def whole(request: SignedRequest, *, path: str = "/webhooks") -> bytes:
    length = {"content-length": str(len(request.body))}
    return request_bytes(request, path=path, headers=length) + request.body


async def test_a_websocket_is_closed() -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/webhooks", "headers": []}
    await in_memory()(scope, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


async def test_a_websocket_handshake_is_refused_and_the_server_lives_on() -> None:
    receiver = in_memory()
    counting(receiver)
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    async with serving(receiver) as site:
        async with await RawConnection.to(site) as connection:
            request = SignedRequest(b"", {})
            await connection.write(request_bytes(request, method="GET", headers=upgrade))
            assert (await connection.answer()).status == 403
        answer = await _post(site, signed_request(make_event(CommentReceived), SECRET))
        answer.expect(200, "handled")


# the guard


def http_scope(path: str) -> dict[str, Any]:
    return {"type": "http", "http_version": "1.1", "method": "POST", "path": path, "headers": []}


async def answers_of(app: ASGIApp, path: str = "/webhooks") -> list[Message]:
    """Return what an application sends, also where it raises after it has begun to answer."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    with suppress(ZeroDivisionError):
        await app(http_scope(path), receive, send)
        sent.append({"type": "returned"})
    return sent


def answering(status: int, *, then: Callable[[], object] = lambda: None) -> ASGIApp:
    """Return an application that answers in two pieces, with something in between."""

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        then()
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})

    return app


async def test_nothing_of_a_punished_answer_passes_the_guard() -> None:
    passed = await answers_of(StatusGuard(answering(410)))
    assert [message["type"] for message in passed] == [
        "http.response.start",
        "http.response.body",
        "returned",
    ]
    assert passed[0]["status"] == 500
    assert b"internal_error" in passed[1]["body"]


async def test_a_good_answer_passes_the_guard_in_its_pieces() -> None:
    guarded = await answers_of(StatusGuard(answering(201)))
    assert guarded == await answers_of(answering(201))
    assert len(guarded) == 4


async def test_the_guard_does_not_answer_twice_where_an_answer_breaks_off() -> None:
    broken = StatusGuard(answering(200, then=lambda: 1 // 0))
    passed = await answers_of(broken)
    assert [message["type"] for message in passed] == ["http.response.start"]


@pytest.mark.parametrize("guarded", ["/webhooks", "/webhooks/"])
async def test_a_guarded_path_is_guarded_with_and_without_its_slash(guarded: str) -> None:
    app = StatusGuard(answering(302), paths=[guarded])
    for path, status in (("/webhooks", 500), ("/webhooks/", 500), ("/webhooks/more", 302)):
        assert (await answers_of(app, path))[0]["status"] == status


# lifespan


async def test_a_store_that_cannot_be_opened_stops_the_server_loudly(tmp_path: Path) -> None:
    status, said = await run_to_its_end(
        tmp_path,
        """
        serve(Receiver(secrets=secret, store=f"sqlite:///{here}/missing/hooks.db"))
        """,
        SECRET,
    )
    assert status != 0
    assert "it cannot be opened; does its folder exist" in said
    assert SECRET not in said


@pytest.mark.parametrize("made", [itself, starlette_routes])
async def test_a_store_that_cannot_be_opened_fails_the_lifespan(
    tmp_path: Path, made: Callable[[Receiver], ASGIApp]
) -> None:
    receiver = Receiver(secrets=SECRET, store=f"sqlite:///{tmp_path}/missing/hooks.db")
    with pytest.raises((StoreError, RuntimeError), match="does its folder exist"):
        async with TestSender(made(receiver), secrets=SECRET):
            raise AssertionError("it started")
    await receiver.store.aclose()


async def test_the_lifespan_protocol_reports_a_failed_start_to_the_server(tmp_path: Path) -> None:
    receiver = Receiver(secrets=SECRET, store=f"sqlite:///{tmp_path}/missing/hooks.db")
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "lifespan.startup"}

    async def send(message: Message) -> None:
        sent.append(message)

    with pytest.raises(StoreError):
        await receiver({"type": "lifespan"}, receive, send)
    [said] = sent
    assert said["type"] == "lifespan.startup.failed"
    assert "does its folder exist" in said["message"]
    await receiver.store.aclose()


async def test_without_a_lifespan_the_store_opens_at_the_first_delivery(tmp_path: Path) -> None:
    receiver = on_file(tmp_path)
    ran = counting(receiver)
    app = Starlette(routes=receiver.routes("/webhooks"))
    async with delivering(app, SECRET) as sender:
        assert not (tmp_path / "hooks.db").exists()
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(200, "handled")
        (await sender.send(event)).expect(200, "duplicate")
    await receiver.store.aclose()
    assert len(ran) == 1


async def test_a_receiver_can_live_again_after_its_lifespan(tmp_path: Path) -> None:
    receiver = on_file(tmp_path)
    ran = counting(receiver)
    event = make_event(CommentReceived)
    for reason in ("handled", "duplicate"):
        async with delivering(receiver, SECRET) as sender:
            (await sender.send(event)).expect(200, reason)
    assert len(ran) == 1


# shutdown


async def test_a_shutdown_waits_for_a_request_under_way_and_it_is_answered(
    tmp_path: Path,
) -> None:
    receiver = on_file(tmp_path)
    waiting = Waiting(receiver)
    async with delivering_site(receiver) as (site, sender):
        event = make_event(CommentReceived)
        answer = asyncio.create_task(sender.send(event))
        await until(lambda: waiting.began)
        stopped = asyncio.create_task(site.stop())
        await asyncio.wait({stopped}, timeout=0.2)
        assert not stopped.done()
        waiting.gate.set()
        (await answer).expect(200, "handled")
        await stopped
    await is_done(tmp_path, event)


@asynccontextmanager
async def delivering_site(app: ASGIApp) -> AsyncIterator[tuple[Site, HttpSender]]:
    async with (
        serving(app) as site,
        httpx2.AsyncClient(base_url=site.url, timeout=20, verify=False) as client,
    ):
        yield site, HttpSender(client, SECRET)


async def is_done(tmp_path: Path, event: CommentReceived) -> None:
    """Check that the next process knows an event as handled."""
    await at_the_next_process(tmp_path, event, "duplicate")


async def at_the_next_process(tmp_path: Path, event: CommentReceived, reason: str) -> list[str]:
    """Deliver an event to another receiver on the same file and return what ran there."""
    receiver = on_file(tmp_path, answer_seconds=2)  # less than a lease
    ran = counting(receiver)
    for name in ("waiting", "failing"):  # an event owes its handlers until they have succeeded
        receiver.on(CommentReceived, name=name)(lambda _: None)
    async with TestSender(receiver, secrets=SECRET) as sender:
        (await sender.send(event, attempt=2)).expect(200, reason)
    return ran


async def test_a_shutdown_waits_for_handlers_that_outlived_their_request(tmp_path: Path) -> None:
    receiver = on_file(tmp_path, answer_seconds=0.1)
    waiting = Waiting(receiver)
    async with delivering_site(receiver) as (site, sender):
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(503, "still_running")
        stopped = asyncio.create_task(site.stop())
        await shuts_down(receiver)
        assert waiting.ended == []
        waiting.gate.set()
        await stopped
        assert waiting.ended == ["finished"]
    await is_done(tmp_path, event)


async def shuts_down(receiver: Receiver) -> None:
    """Return once a receiver has begun to shut down."""

    async def unready() -> bool:
        return not (await receiver.check()).ready

    await until_async(unready, what="it has begun to shut down")


async def test_a_handler_that_outlives_the_drain_is_cancelled_and_released(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = on_file(tmp_path, answer_seconds=0.1, drain_seconds=0.1)
    waiting = Waiting(receiver)
    done = counting(receiver)
    told: list[BaseException] = []
    receiver.on_error(told.append)
    async with delivering_site(receiver) as (site, sender):
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(503, "still_running")
        await site.stop()
        assert waiting.ended == ["cancelled"]
        assert done == [event.id]
    assert "handlers still running after 0.1 s: 1;" in caplog.text
    assert told == [], "a shutdown is no failure of the handler"
    receiver = on_file(tmp_path, answer_seconds=2)  # less than a lease
    again, done_again = Waiting(receiver), counting(receiver)
    again.gate.set()
    async with TestSender(receiver, secrets=SECRET) as next_sender:
        (await next_sender.send(event, attempt=2)).expect(200, "handled")
    assert again.ended == ["finished"]
    assert done_again == [], "what had finished was not recorded with the release"


async def test_a_thread_that_outlives_the_drain_keeps_its_event_to_itself_for_its_lease(
    tmp_path: Path,
) -> None:
    receiver = on_file(tmp_path, drain_seconds=0.1, lease_seconds=1.5, threads=1)
    done, gate, began = counting(receiver), threading.Event(), list[str]()

    @receiver.on(CommentReceived, name="thread")
    def block(event: CommentReceived) -> None:
        began.append(event.id)
        assert gate.wait(20)

    @receiver.on(CommentReceived, name="queued")
    def queued(event: CommentReceived) -> None:
        began.append(f"queued {event.id}")

    async with TestSender(receiver, secrets=SECRET) as sender:
        event = make_event(CommentReceived)
        answer = asyncio.create_task(sender.send(event))
        await until(lambda: began and done)
        try:
            await receiver.__aexit__(None, None, None)
            (await answer).expect(503, "shutting_down")
            next_receiver = on_file(tmp_path, answer_seconds=0.2)
            done_again = counting(next_receiver)
            next_receiver.on(CommentReceived, name="thread")(lambda event: began.append(event.id))
            next_receiver.on(CommentReceived, name="queued")(lambda _: None)
            async with TestSender(next_receiver, secrets=SECRET) as next_sender:
                (await next_sender.send(event)).expect(503, "in_flight")
                assert began == [event.id]

                async def handled() -> bool:
                    # On a slow disk it is recorded when the answer has gone out already.
                    return (await next_sender.send(event)).reason in {"handled", "duplicate"}

                await until_async(handled)
        finally:
            gate.set()
    assert began == [event.id, event.id], "what waited for a thread was run all the same"
    assert (done, done_again) == ([event.id], [])


async def test_a_thread_that_ends_while_the_rest_is_cancelled_counts_as_finished(
    tmp_path: Path,
) -> None:
    receiver = on_file(tmp_path, drain_seconds=0.05)
    gate, ended, began = threading.Event(), threading.Event(), list[str]()

    @receiver.on(CommentReceived, name="thread")
    def block(event: CommentReceived) -> None:
        began.append(event.id)
        assert gate.wait(20)
        ended.set()

    @receiver.on(CommentReceived, name="cancelled")
    async def tidy_up(_: CommentReceived) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            gate.set()
            await until(ended.is_set)
            await asyncio.sleep(0.05)  # for the thread's future to know

    async with TestSender(receiver, secrets=SECRET) as sender:
        event = make_event(CommentReceived)
        answer = asyncio.create_task(sender.send(event))
        await until(lambda: began)
        await receiver.__aexit__(None, None, None)
        (await answer).expect(503, "shutting_down")
    next_receiver = on_file(tmp_path, answer_seconds=2)  # less than a lease
    next_receiver.on(CommentReceived, name="thread")(lambda event: began.append(event.id))
    next_receiver.on(CommentReceived, name="cancelled")(lambda _: None)
    async with TestSender(next_receiver, secrets=SECRET) as next_sender:
        (await next_sender.send(event)).expect(200, "handled")
    assert began == [event.id]


async def test_what_finished_just_before_the_end_is_recorded_with_the_release(
    tmp_path: Path,
) -> None:
    receiver = on_file(tmp_path, drain_seconds=0.01)
    waiting, done = Waiting(receiver), counting(receiver)
    async with TestSender(receiver, secrets=SECRET) as sender:
        event = make_event(CommentReceived)
        answer = asyncio.create_task(sender.send(event))
        await until(lambda: waiting.began and done)
        await receiver.__aexit__(None, None, None)  # sooner than the next checkpoint
        (await answer).expect(503, "shutting_down")
    assert waiting.ended == ["cancelled"]
    assert await at_the_next_process(tmp_path, event, "handled") == []


async def test_while_it_shuts_down_a_receiver_takes_nothing_more(tmp_path: Path) -> None:
    receiver = on_file(tmp_path)
    waiting = Waiting(receiver)
    async with TestSender(receiver, secrets=SECRET) as sender:
        first = asyncio.create_task(sender.send(make_event(CommentReceived)))
        await until(lambda: waiting.began)
        closing = asyncio.create_task(receiver.__aexit__(None, None, None))
        await shuts_down(receiver)
        answer = (await sender.send(make_event(CommentReceived))).expect(503, "shutting_down")
        assert int(answer.headers["retry-after"]) >= 1
        assert len(waiting.began) == 1
        waiting.gate.set()
        (await first).expect(200, "handled")
        await closing


async def test_a_delivery_that_claims_while_the_receiver_shuts_down_runs_nothing(
    tmp_path: Path,
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver = Receiver(secrets=SECRET, store=store)
    ran = counting(receiver)
    request = signed_request(event := make_event(CommentReceived), SECRET)
    gate = store.hang("claim")
    async with receiver:
        outcome = asyncio.create_task(receiver.handle(request.body, request.headers))
        await until(lambda: store.calls["claim"])
        asyncio.get_running_loop().call_later(0.1, gate.set)
    assert gate.is_set(), "the shutdown did not wait for the claim"
    assert (await outcome).reason == "shutting_down"
    assert ran == []
    await store.aclose()
    await at_the_next_process(tmp_path, event, "handled")


async def test_a_release_under_way_is_not_cut_off_by_a_shutdown(tmp_path: Path) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    limits = Limits(answer_seconds=0.1, drain_seconds=0.1)
    receiver = Receiver(secrets=SECRET, store=store, limits=limits)

    @receiver.on(CommentReceived, name="failing")
    async def fail(_: CommentReceived) -> None:
        raise ValueError("x")

    gate = store.hang("release")
    async with TestSender(receiver, secrets=SECRET) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(503, "still_running")
        assert store.calls["release"] == 1
        asyncio.get_running_loop().call_later(0.4, gate.set)
    assert await at_the_next_process(tmp_path, event, "handled") == [event.id]


async def test_a_cancelled_attempt_whose_release_fails_leaves_its_lease_to_run_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    limits = Limits(answer_seconds=0.1, drain_seconds=0.1, lease_seconds=0.5)
    receiver = Receiver(secrets=SECRET, store=store, limits=limits)
    waiting = Waiting(receiver)
    async with TestSender(receiver, secrets=SECRET) as sender:
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(503, "still_running")
        store.failures["release"] = -1
    assert waiting.ended == ["cancelled"]
    assert "its lease will run out" in caplog.text
    assert await at_the_next_process(tmp_path, event, "handled") == [event.id]


# connections


@pytest.mark.parametrize("http", HTTP)
async def test_a_client_that_goes_away_does_not_cancel_the_handler(
    tmp_path: Path, http: Literal["httptools", "h11"]
) -> None:
    receiver = on_file(tmp_path)
    waiting = Waiting(receiver)
    async with serving(receiver, http=http) as site:
        event = make_event(CommentReceived)
        async with await RawConnection.to(site) as connection:
            await connection.write(whole(signed_request(event, SECRET)))
            await until(lambda: waiting.began)
        await until(lambda: not site.server.server_state.connections)
        waiting.gate.set()
        await until(lambda: waiting.ended)
        assert waiting.ended == ["finished"]
        retry = await _post(site, signed_request(event, SECRET, attempt=2))
        retry.expect(200, "duplicate")
    assert len(waiting.began) == 1


@pytest.mark.parametrize("http", HTTP)
async def test_a_client_that_goes_away_before_its_body_has_arrived_runs_nothing(
    http: Literal["httptools", "h11"], caplog: pytest.LogCaptureFixture
) -> None:
    receiver = in_memory()
    ran = counting(receiver)
    caplog.set_level(logging.INFO, logger="hookonce")
    async with serving(receiver, http=http) as site:
        request = signed_request(make_event(CommentReceived), SECRET)
        async with await RawConnection.to(site) as connection:
            await connection.write(whole(request)[:-5])
        await until(lambda: "went away" in caplog.text)
        assert ran == []
        (await _post(site, request)).expect(200, "handled")
    assert len(ran) == 1
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("http", HTTP)
async def test_a_body_that_arrives_in_chunks_of_one_byte_is_handled(
    http: Literal["httptools", "h11"],
) -> None:
    receiver = in_memory()
    ran = counting(receiver)
    async with serving(receiver, http=http) as site, await RawConnection.to(site) as connection:
        request = signed_request(event := make_event(CommentReceived), SECRET)
        await connection.write(request_bytes(request, headers={"transfer-encoding": "chunked"}))
        for byte in request.body:
            await connection.write_chunk(bytes([byte]))
        await connection.write_chunk(b"")
        (await connection.answer()).expect(200, "handled")
    assert ran == [event.id]


@pytest.mark.parametrize("http", HTTP)
async def test_a_request_that_arrives_byte_by_byte_is_handled(
    http: Literal["httptools", "h11"],
) -> None:
    receiver = in_memory()
    ran = counting(receiver)
    async with serving(receiver, http=http) as site, await RawConnection.to(site) as connection:
        request = signed_request(event := make_event(CommentReceived), SECRET)
        for byte in whole(request):
            await connection.write(bytes([byte]))
            await asyncio.sleep(0)
        (await connection.answer()).expect(200, "handled")
    assert ran == [event.id]


@pytest.mark.parametrize("http", HTTP)
async def test_pipelined_requests_are_each_answered_in_order(
    http: Literal["httptools", "h11"],
) -> None:
    receiver = in_memory()
    ran = counting(receiver)
    events = [make_event(CommentReceived) for _ in range(20)]
    requests = [signed_request(event, SECRET) for event in events]
    requests[5] = requests[5].tampered()
    requests[7] = requests[6]
    async with serving(receiver, http=http) as site, await RawConnection.to(site) as connection:
        await connection.write(b"".join(whole(request) for request in requests))
        answers = [await connection.answer() for _ in requests]
    wanted = ["handled"] * 20
    wanted[5], wanted[7] = "no_matching_signature", "duplicate"
    assert [answer.reason for answer in answers] == wanted
    assert ran == [event.id for index, event in enumerate(events) if index not in {5, 7}]


@pytest.mark.parametrize("http", HTTP)
async def test_a_refusal_leaves_the_connection_usable(
    http: Literal["httptools", "h11"],
) -> None:
    receiver = in_memory()
    counting(receiver)
    async with serving(receiver, http=http) as site, await RawConnection.to(site) as connection:
        request = signed_request(make_event(CommentReceived), SECRET)
        length = {"content-length": str(len(request.body))}
        await connection.write(request_bytes(request, method="PUT", headers=length) + request.body)
        (await connection.answer()).expect(405, "method_not_allowed")
        await connection.write(whole(request, path="/elsewhere"))
        (await connection.answer()).expect(404, "not_found")
        await connection.write(whole(request.tampered()))
        (await connection.answer()).expect(401, "no_matching_signature")
        await connection.write(whole(request))
        (await connection.answer()).expect(200, "handled")


@pytest.mark.parametrize("http", HTTP)
async def test_a_client_that_asks_first_is_told_to_continue_unless_its_body_is_too_large(
    http: Literal["httptools", "h11"],
) -> None:
    receiver = in_memory()
    counting(receiver)
    request = signed_request(make_event(CommentReceived), SECRET)
    async with serving(receiver, http=http) as site:
        for size, status in ((len(request.body), 100), (10_000_000, 413)):
            async with await RawConnection.to(site) as connection:
                headers = {"content-length": str(size), "expect": "100-continue"}
                await connection.write(request_bytes(request, headers=headers))
                assert (await connection.answer()).status == status
                if status == 100:
                    await connection.write(request.body)
                    (await connection.answer()).expect(200, "handled")


@pytest.mark.parametrize("length", ["9" * 18, "9" * 19, "9" * 5_000])
async def test_an_absurd_length_is_refused(length: str) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("the body was asked for")

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"content-length", length.encode())]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    await in_memory()(scope, receive, send)
    assert sent[0]["status"] == 413


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_many_events_with_copies_at_once_run_once_each(store: str, tmp_path: Path) -> None:
    receiver = in_memory() if store == "memory" else on_file(tmp_path)
    ran = counting(receiver)
    events = [make_event(CommentReceived) for _ in range(30)]
    async with delivering(receiver, SECRET) as sender:
        answers = await asyncio.gather(*(sender.send(event) for event in events for _ in range(4)))
    assert sorted(ran) == sorted(event.id for event in events)
    reasons = [answer.expect(200).reason for answer in answers]
    assert (reasons.count("handled"), reasons.count("duplicate")) == (30, 90)


# the pipeline without HTTP


async def test_handle_is_the_whole_pipeline_without_http(tmp_path: Path) -> None:
    receiver = on_file(tmp_path)
    ran = counting(receiver)
    request = signed_request(event := make_event(CommentReceived), SECRET)
    async with receiver:
        pairs = [(name.encode(), value.encode()) for name, value in request.headers.items()]
        first = await receiver.handle(request.body, pairs)
        assert (first.status, first.reason) == (200, "handled")
        assert first.body == b'{"status": "accepted", "reason": "handled"}'
        second = await receiver.handle(request.body, request.headers)
        assert (second.status, second.reason) == (200, "duplicate")
        third = await receiver.handle(request.tampered().body, request.headers)
        assert third == Outcome(401, "no_matching_signature")
    assert ran == [event.id]


@pytest.mark.parametrize(
    "shape",
    [
        dict,
        lambda headers: {name.encode(): value.encode() for name, value in headers.items()},
        lambda headers: list(headers.items()),
        lambda headers: iter(headers.items()),
        lambda headers: ((name.upper(), value) for name, value in headers.items()),
        lambda headers: [(name.encode(), value.encode()) for name, value in headers.items()],
    ],
    ids=["mapping", "mapping of bytes", "pairs", "iterator", "generator", "pairs of bytes"],
)
async def test_handle_takes_headers_in_any_shape_with_their_hints(
    tmp_path: Path, shape: Callable[[Any], Any]
) -> None:
    receiver = on_file(tmp_path)
    contexts: list[Context] = []

    @receiver.on(CommentReceived)
    async def note(_: CommentReceived, context: Context) -> None:
        contexts.append(context)

    request = signed_request(make_event(CommentReceived), SECRET, attempt=9)
    async with receiver:
        outcome = await receiver.handle(request.body, shape(request.headers))
        assert (outcome.status, outcome.reason) == (200, "handled")
    [context] = contexts
    assert (context.delivery_attempt, context.last_chance) == (9, True)


def test_it_works_in_the_test_client_of_starlette(tmp_path: Path) -> None:
    receiver = on_file(tmp_path)
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


# health


@asynccontextmanager
async def with_health(receiver: Receiver) -> AsyncIterator[HttpSender]:
    routes = [*receiver.routes("/webhooks"), *receiver.health_routes()]
    async with delivering(Starlette(routes=routes, lifespan=receiver.lifespan), SECRET) as sender:
        yield sender


async def is_ready(sender: HttpSender) -> None:
    """Return once /readyz, whose look is kept for a moment, says that all is well."""

    async def ready() -> bool:
        return (await sender.client.get("/readyz")).status_code == 200

    await until_async(ready, what="it is ready again")


async def test_a_receiver_that_works_is_alive_and_ready(tmp_path: Path) -> None:
    async with with_health(on_file(tmp_path)) as sender:
        live = await sender.client.get("/livez")
        assert (live.status_code, live.json()) == (200, {"alive": True})
        ready = await sender.client.get("/readyz")
        assert (ready.status_code, ready.json()) == (
            200,
            {"ready": True, "problems": [], "warnings": []},
        )
        assert (await sender.client.post("/readyz")).status_code == 405


async def test_a_locked_store_is_unready_and_alive(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with with_health(on_file(tmp_path)) as sender:
        blocker = apsw.Connection(str(tmp_path / "hooks.db"))
        blocker.execute("BEGIN IMMEDIATE")
        try:
            began = time.monotonic()
            ready = await sender.client.get("/readyz")
            assert time.monotonic() - began < 3.5
            assert ready.status_code == 503
            assert ready.json()["ready"] is False
            assert ready.json()["problems"] == ["the store cannot be used; the log says why"]
            assert "another process keeps it locked" in caplog.text
            assert (await sender.client.get("/livez")).status_code == 200
        finally:
            blocker.execute("ROLLBACK")
            blocker.close()
        await is_ready(sender)


async def test_a_store_that_hangs_is_unready(tmp_path: Path) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver = Receiver(secrets=SECRET, store=store, limits=Limits(store_seconds=0.1))
    async with with_health(receiver) as sender:
        gate = store.hang("warnings")
        ready = await sender.client.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["problems"] == ["the store cannot be used; the log says why"]
        gate.set()
        await is_ready(sender)


async def test_a_receiver_that_shuts_down_is_unready_and_alive(tmp_path: Path) -> None:
    receiver = on_file(tmp_path)
    waiting = Waiting(receiver)
    async with with_health(receiver) as sender:
        first = asyncio.create_task(sender.send(make_event(CommentReceived)))
        await until(lambda: waiting.began)
        closing = asyncio.create_task(receiver.__aexit__(None, None, None))
        await shuts_down(receiver)
        ready = await sender.client.get("/readyz")
        assert (ready.status_code, ready.json()["ready"]) == (503, False)
        assert (await sender.client.get("/livez")).status_code == 200
        waiting.gate.set()
        (await first).expect(200, "handled")
        await closing


# what cannot be configured


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"endpoint": ""}, "endpoint takes"),
        ({"endpoint": "a:b"}, "endpoint takes"),
        ({"endpoint": "x" * 65}, "endpoint takes"),
        ({"endpoint": "new\n"}, "endpoint takes"),
        ({"store": "mysql://"}, "no store has the scheme"),
        ({"store": "sqlite://hooks.db"}, "three slashes"),
        ({"tolerance": -1}, "tolerance"),
        ({"secrets": []}, "at least one secret"),
        ({"secrets": "whsec_"}, "empty"),
    ],
)
def test_a_receiver_refuses_what_cannot_work(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Receiver(**{"secrets": SECRET, "store": "memory://", **arguments})


@pytest.mark.parametrize(
    "limits",
    [
        {"answer_seconds": 10.0},
        {"answer_seconds": 0},
        {"lease_seconds": -1},
        {"body_bytes": 0},
        {"drain_seconds": float("nan")},
        {"store_seconds": float("inf")},
    ],
)
def test_limits_that_cannot_work_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(limits))):
        Limits(**limits)


class NoSecretsAnyMore:
    """A provider whose source has broken at run time."""

    def __init__(self, *secrets: str) -> None:
        self.secrets = list(secrets)

    def current(self) -> list[str]:
        return self.secrets


async def test_secrets_that_cannot_be_used_any_more_are_no_reason_to_refuse_for_good() -> None:
    provider = NoSecretsAnyMore(SECRET)
    receiver = Receiver(secrets=provider, store="memory://")
    async with TestSender(receiver, secrets=SECRET) as sender:
        provider.secrets.clear()
        event = make_event(CommentReceived)
        (await sender.send(event)).expect(500, "secrets_unavailable")
        provider.secrets.append(SECRET)
        (await sender.send(event)).expect(200, "no_handler")
