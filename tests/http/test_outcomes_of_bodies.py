"""Answers to bodies that are too long or too slow, and to other methods."""

import asyncio
import time
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from support.deliveries import SECRET, comment
from support.handlers import Handler
from support.servers import PlainAwaitable, RawConnection, delivering, request_bytes, serving

from hookonce import Limits, Receiver
from hookonce.http.app import DeliveryApp
from hookonce.outcome import Outcome
from hookonce.simulation.virtual_loop import VirtualLoop
from hookonce.testing import signed_request
from hookonce.verification.headers import RawHeaders

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_secret_is_logged")]


LENGTH_LIMIT = Limits(body_bytes=2_000, body_seconds=20)


async def test_a_body_of_exactly_the_limit_is_read_and_one_byte_more_is_answered_413() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", limits=LENGTH_LIMIT)
    async with delivering(receiver, SECRET) as sender:
        (await sender.send(b"x" * 2_000)).expect(500, "unreadable")
        (await sender.send(b"x" * 2_001)).expect(413, "body_too_large")


async def test_two_mebibytes_are_read_by_default_and_one_byte_more_is_answered_413() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    request = signed_request(b"x" * 2 * 1024 * 1024, SECRET)
    async with serving(receiver) as site, await RawConnection.to(site) as connection:
        length = {"content-length": str(len(request.body))}
        await connection.write(request_bytes(request, headers=length) + request.body)
        (await connection.answer()).expect(500, "unreadable")
        length = {"content-length": str(len(request.body) + 1)}
        await connection.write(request_bytes(request, headers=length))
        (await connection.answer()).expect(413, "body_too_large")


@pytest.mark.parametrize("http", ["httptools", "h11"])
async def test_a_length_over_the_limit_is_answered_413_without_a_byte_of_the_body(
    http: Any,
) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", limits=LENGTH_LIMIT)
    request = signed_request(comment(), SECRET)
    async with serving(receiver, http=http) as site, await RawConnection.to(site) as connection:
        await connection.write(request_bytes(request, headers={"content-length": "2001"}))
        answer = (await connection.answer()).expect(413, "body_too_large")
        assert answer.headers["connection"] == "close"
        assert await connection.is_closed()


@pytest.mark.parametrize("http", ["httptools", "h11"])
async def test_a_stream_over_the_limit_is_answered_413_before_it_ends(http: Any) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", limits=LENGTH_LIMIT)
    request = signed_request(comment(), SECRET)
    async with serving(receiver, http=http) as site, await RawConnection.to(site) as connection:
        await connection.write(request_bytes(request, headers={"transfer-encoding": "chunked"}))
        for _ in range(21):
            await connection.write_chunk(b"x" * 100)
        answer = (await connection.answer()).expect(413, "body_too_large")
        assert answer.headers["connection"] == "close"
        assert await connection.is_closed()


class Spy:
    """Replaces the pipeline, and records the bodies that reach it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.unread: list[Outcome] = []

    def note_unread(self, outcome: Outcome, seconds: float) -> None:
        assert seconds >= 0
        self.unread.append(outcome)

    async def handle(
        self, body: bytes, headers: RawHeaders, *, started: float | None = None
    ) -> Outcome:
        assert headers
        assert started is not None
        self.bodies.append(body)
        return Outcome(200, "handled")


def delivery_scope(headers: list[tuple[bytes, bytes]]) -> Scope:
    return {"type": "http", "method": "POST", "http_version": "1.1", "headers": headers}


async def test_a_length_over_the_limit_asks_the_server_for_no_body_and_verifies_nothing() -> None:
    spy, sent = Spy(), list[Message]()

    async def receive() -> Message:
        raise AssertionError("the body was asked for")

    async def send(message: Message) -> None:
        sent.append(message)

    app = DeliveryApp(spy.handle, LENGTH_LIMIT, unread=spy.note_unread)
    await app(delivery_scope([(b"content-length", b"2001")]), receive, send)
    assert sent[0]["status"] == 413
    assert not spy.bodies
    assert [outcome.reason for outcome in spy.unread] == ["body_too_large"]


async def test_an_endless_stream_is_read_up_to_the_limit_and_one_chunk() -> None:
    spy, sent, taken = Spy(), list[Message](), list[int]()

    async def receive() -> Message:
        taken.append(300)
        return {"type": "http.request", "body": b"x" * 300, "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    await DeliveryApp(spy.handle, LENGTH_LIMIT, unread=spy.note_unread)(
        delivery_scope([]), receive, send
    )
    assert sent[0]["status"] == 413
    assert sum(taken) == 2_100
    assert not spy.bodies


async def test_a_body_longer_than_its_content_length_is_held_to_the_limit() -> None:
    spy, sent = Spy(), list[Message]()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"x" * 300, "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = delivery_scope([(b"content-length", b"300")])
    await DeliveryApp(spy.handle, LENGTH_LIMIT, unread=spy.note_unread)(scope, receive, send)
    assert sent[0]["status"] == 413
    assert not spy.bodies


@pytest.mark.parametrize("error", [RuntimeError, TimeoutError])
async def test_a_server_that_fails_to_deliver_the_body_causes_a_500(
    error: type[Exception],
) -> None:
    spy, sent = Spy(), list[Message]()

    async def receive() -> Message:
        raise error

    async def send(message: Message) -> None:
        sent.append(message)

    app = DeliveryApp(spy.handle, LENGTH_LIMIT, unread=spy.note_unread)
    await app(delivery_scope([]), receive, send)
    assert sent[0]["status"] == 500
    assert b"internal_error" in sent[1]["body"]
    assert not spy.bodies


async def test_a_server_may_give_the_body_by_any_awaitable() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", limits=Limits(body_seconds=0.5))
    handler = Handler(receiver)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receiver(scope, lambda: PlainAwaitable(asyncio.ensure_future(receive())), send)

    request = signed_request(comment(), SECRET)
    start = request_bytes(request, headers={"content-length": str(len(request.body))})
    async with serving(app) as site, await RawConnection.to(site) as connection:
        await connection.write(start + request.body)
        (await connection.answer()).expect(200, "handled")
        await connection.write(start)
        (await connection.answer()).expect(408, "body_timeout")
    assert handler.runs == 1


@pytest.mark.parametrize("http", ["httptools", "h11"])
@pytest.mark.parametrize("some", [True, False], ids=["some of it", "nothing of it"])
async def test_a_body_that_does_not_arrive_in_time_is_answered_408(
    http: Any, some: bool, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", limits=Limits(body_seconds=0.2))
    handler = Handler(receiver)
    request = signed_request(comment(), SECRET)
    async with serving(receiver, http=http) as site, await RawConnection.to(site) as connection:
        length = {"content-length": str(len(request.body))}
        await connection.write(request_bytes(request, headers=length) + request.body[:-1] * some)
        began = time.monotonic()
        answer = (await connection.answer()).expect(408, "body_timeout")
        assert time.monotonic() - began < 2
        assert answer.headers["connection"] == "close"
        assert await connection.is_closed()
    assert handler.runs == 0
    assert ("not even a part" not in caplog.text) == some


async def test_a_body_that_arrives_too_slowly_is_answered_408() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://", limits=Limits(body_seconds=0.3))
    request = signed_request(comment(), SECRET)
    async with serving(receiver) as site, await RawConnection.to(site) as connection:
        await connection.write(request_bytes(request, headers={"transfer-encoding": "chunked"}))
        answer = asyncio.create_task(connection.answer())
        while not answer.done():
            try:
                await connection.write_chunk(b"x")
            except ConnectionError:  # the server has answered and closed
                break
            await asyncio.wait({answer}, timeout=0.02)
        (await answer).expect(408, "body_timeout")


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"loop_factory": VirtualLoop})], ids=[""])
@pytest.mark.parametrize("pauses", [[6, 3, 3], [3, 6, 3], [6, 60], [60]])
async def test_the_time_limit_covers_all_pauses_of_a_body_together(pauses: list[int]) -> None:
    spy, sent, left = Spy(), list[Message](), iter(pauses)

    async def receive() -> Message:
        await asyncio.sleep(next(left))
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    began = asyncio.get_running_loop().time()
    app = DeliveryApp(spy.handle, Limits(body_seconds=10), unread=spy.note_unread)
    await app(delivery_scope([]), receive, send)
    assert asyncio.get_running_loop().time() - began == pytest.approx(10, abs=0.01)
    assert sent[0]["status"] == 408
    assert not spy.bodies


@pytest.mark.parametrize("face", ["itself", "routes"])
async def test_other_methods_are_answered_405_and_run_nothing(face: str) -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    handler = Handler(receiver)
    app: ASGIApp = receiver
    if face == "routes":
        app = Starlette(routes=receiver.routes("/webhooks"), lifespan=receiver.lifespan)
    async with delivering(app, SECRET) as sender:
        request = signed_request(comment(), SECRET)
        for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"):
            answer = await sender.request(method, "/webhooks", request)
            answer.expect(405, "method_not_allowed")
            assert answer.headers["allow"] == "POST"
        answer = (await sender.request("HEAD", "/webhooks", request)).expect(405)
        assert (answer.headers["allow"], answer.body) == ("POST", b"")
    assert handler.runs == 0
