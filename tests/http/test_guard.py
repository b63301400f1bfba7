"""The guard completely replaces an answer that the sender would punish."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hookonce.http.guard import StatusGuard

pytestmark = pytest.mark.anyio


def http_scope(path: str) -> dict[str, Any]:
    return {"type": "http", "http_version": "1.1", "method": "POST", "path": path, "headers": []}


async def answers_of(app: ASGIApp, path: str = "/webhooks") -> list[Message]:
    """Return the messages that an application sends, even if it raises after the first."""
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
    """Return an application that answers in two pieces, and calls ``then`` in between."""

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        then()
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})

    return app


async def test_the_guard_replaces_the_whole_of_a_redirect_or_410() -> None:
    passed = await answers_of(StatusGuard(answering(410)))
    assert [message["type"] for message in passed] == [
        "http.response.start",
        "http.response.body",
        "returned",
    ]
    assert passed[0]["status"] == 500
    assert b"internal_error" in passed[1]["body"]


async def test_the_guard_passes_another_answer_on_piece_by_piece() -> None:
    guarded = await answers_of(StatusGuard(answering(201)))
    assert guarded == await answers_of(answering(201))
    assert len(guarded) == 4


async def test_the_guard_adds_no_second_answer_when_an_answer_breaks_off() -> None:
    broken = StatusGuard(answering(200, then=lambda: 1 // 0))
    passed = await answers_of(broken)
    assert [message["type"] for message in passed] == ["http.response.start"]


@pytest.mark.parametrize("guarded", ["/webhooks", "/webhooks/"])
async def test_a_guarded_path_is_guarded_with_and_without_its_slash(guarded: str) -> None:
    app = StatusGuard(answering(302), paths=[guarded])
    for path, status in (("/webhooks", 500), ("/webhooks/", 500), ("/webhooks/more", 302)):
        assert (await answers_of(app, path))[0]["status"] == status
