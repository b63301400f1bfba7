"""Connections: cut off, slow, pipelined, and many at once."""

import asyncio
import logging
from pathlib import Path
from typing import Literal

import pytest
from starlette.types import Message
from support.deliveries import SECRET, receiver_on, sqlite_url
from support.handlers import Waiting, counting
from support.servers import RawConnection, delivering, post, request_bytes, serving, whole
from support.waiting import until

from hookonce.events import CommentReceived
from hookonce.testing import make_event, signed_request

pytestmark = pytest.mark.anyio

HTTP: list[Literal["httptools", "h11"]] = ["httptools", "h11"]


@pytest.mark.parametrize("http", HTTP)
async def test_a_client_that_disconnects_does_not_cancel_the_handler(
    tmp_path: Path, http: Literal["httptools", "h11"]
) -> None:
    receiver = receiver_on(sqlite_url(tmp_path))
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
        retry = await post(site, signed_request(event, SECRET, attempt=2))
        retry.expect(200, "duplicate")
    assert len(waiting.began) == 1


@pytest.mark.parametrize("http", HTTP)
async def test_a_client_that_disconnects_before_its_body_has_arrived_runs_nothing(
    http: Literal["httptools", "h11"], caplog: pytest.LogCaptureFixture
) -> None:
    receiver = receiver_on()
    ran = counting(receiver)
    caplog.set_level(logging.INFO, logger="hookonce")
    async with serving(receiver, http=http) as site:
        request = signed_request(make_event(CommentReceived), SECRET)
        async with await RawConnection.to(site) as connection:
            await connection.write(whole(request)[:-5])
        await until(lambda: "disconnected before" in caplog.text)
        assert ran == []
        (await post(site, request)).expect(200, "handled")
    assert len(ran) == 1
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("http", HTTP)
async def test_a_body_that_arrives_in_chunks_of_one_byte_is_handled(
    http: Literal["httptools", "h11"],
) -> None:
    receiver = receiver_on()
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
    receiver = receiver_on()
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
    receiver = receiver_on()
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
    receiver = receiver_on()
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
async def test_expect_100_continue_is_answered_unless_the_body_is_too_large(
    http: Literal["httptools", "h11"],
) -> None:
    receiver = receiver_on()
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
async def test_a_huge_content_length_is_refused(length: str) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("the body was asked for")

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"content-length", length.encode())]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    await receiver_on()(scope, receive, send)
    assert sent[0]["status"] == 413


async def test_many_events_with_copies_at_once_run_once_each(any_store: str) -> None:
    receiver = receiver_on(any_store)
    ran = counting(receiver)
    events = [make_event(CommentReceived) for _ in range(30)]
    async with delivering(receiver, SECRET) as sender:
        answers = await asyncio.gather(*(sender.send(event) for event in events for _ in range(4)))
    assert sorted(ran) == sorted(event.id for event in events)
    reasons = [answer.expect(200).reason for answer in answers]
    assert (reasons.count("handled"), reasons.count("duplicate")) == (30, 90)


@pytest.mark.parametrize("http", HTTP)
async def test_trailers_do_not_count_as_headers(http: Literal["httptools", "h11"]) -> None:
    receiver = receiver_on()
    ran = counting(receiver)
    request = signed_request(make_event(CommentReceived), SECRET)
    fields = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    async with serving(receiver, http=http) as site, await RawConnection.to(site) as connection:
        await connection.write(b"POST /webhooks HTTP/1.1\r\nhost: here\r\n")
        await connection.write(b"transfer-encoding: chunked\r\n\r\n")
        await until(lambda: site.server.server_state.tasks)
        await asyncio.sleep(0)  # let the server's new task take its first step
        await connection.write_chunk(request.body)
        await connection.write(b"0\r\n" + fields.encode() + b"\r\n")
        (await connection.answer()).expect(400, "missing_id")
    assert ran == []
