"""Tests for Flask beyond the common suite: hooks that read bodies, and hooks that answer."""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from flask import Flask, abort, redirect, request
from flask.typing import ResponseReturnValue
from support.servers import HttpSender
from support.waiting import PATIENCE_SECONDS

from hookonce import Limits, Receiver
from hookonce.events import CommentReceived
from hookonce.integrations.flask import mount
from hookonce.testing import make_event, signed_request
from hookonce.verification.secrets import new_secret
from integrations.wsgi_servers import served_by_werkzeug

pytestmark = pytest.mark.anyio

SECRET = new_secret()


def make_receiver() -> Receiver:
    receiver = Receiver(secrets=SECRET, store="memory://", limits=Limits(body_bytes=4096))

    @receiver.on(CommentReceived)
    async def note(event: CommentReceived) -> None: ...

    return receiver


@pytest.fixture
def app() -> Iterator[Flask]:
    app = Flask("app_of_a_test")
    wsgi = mount(app, make_receiver())
    yield app
    wsgi.close()


@asynccontextmanager
async def delivering(app: Flask) -> AsyncIterator[HttpSender]:
    async with (
        served_by_werkzeug(app) as port,
        httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS, verify=False
        ) as client,
    ):
        yield HttpSender(client, SECRET)


async def test_a_body_that_a_hook_has_read_still_verifies(app: Flask) -> None:
    @app.before_request
    def look() -> None:
        assert request.get_json()["type"]

    async with delivering(app) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")


async def test_a_body_that_a_hook_has_consumed_is_named_in_the_log(
    app: Flask, caplog: pytest.LogCaptureFixture
) -> None:
    @app.before_request
    def consume() -> None:
        request.stream.read()

    async with delivering(app) as sender:
        (await sender.send(make_event(CommentReceived))).expect(500, "body_incomplete")
    assert "the body of a delivery is consumed" in caplog.text


@pytest.mark.parametrize("status", [302, 308, 410])
async def test_no_hook_can_answer_a_redirect_or_410(
    app: Flask, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    @app.before_request
    def log_in() -> ResponseReturnValue:
        return abort(410) if status == 410 else redirect("/login", status)

    async with delivering(app) as sender:
        answer = (await sender.send(make_event(CommentReceived))).expect(500, "internal_error")
        assert "location" not in answer.headers
        assert (await sender.client.get("/elsewhere")).status_code == status
    assert any(r.levelno == logging.ERROR and str(status) in r.getMessage() for r in caplog.records)


async def test_a_hook_may_answer_another_status(app: Flask) -> None:
    @app.before_request
    def close_the_shop() -> ResponseReturnValue:
        return {"status": "retry", "reason": "closed"}, 503

    async with delivering(app) as sender:
        (await sender.send(make_event(CommentReceived))).expect(503, "closed")


async def test_a_chunked_body_is_read_to_its_end_and_not_beyond_the_limit(app: Flask) -> None:
    async with delivering(app) as sender:

        async def post(body: bytes) -> httpx2.Response:
            async def pieces() -> AsyncIterator[bytes]:
                for start in range(0, len(body), 100):
                    yield body[start : start + 100]

            signed = signed_request(body, SECRET)
            return await sender.client.post(
                "/webhooks", content=pieces(), headers=dict(signed.headers)
            )

        whole = signed_request(make_event(CommentReceived), SECRET).body
        response = await post(whole)
        assert (response.status_code, response.json()["reason"]) == (200, "handled")
        response = await post(b"x" * 4097)
        assert (response.status_code, response.json()["reason"]) == (413, "body_too_large")


async def test_two_receivers_answer_in_one_application(app: Flask) -> None:
    second = mount(app, make_receiver(), "/second", name="second")
    async with delivering(app) as sender:
        event = make_event(CommentReceived)
        for sender.path in ("/webhooks", "/second", "/second/"):
            assert (await sender.send(event)).status == 200
        assert [answer.reason for answer in sender.answers] == ["handled", "handled", "duplicate"]
    second.close()
