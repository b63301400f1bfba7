"""The errors of the client, and its retries (interface, Errors and Limits)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import pytest
from support.redis_servers import free_port
from support.scripted_api import BREAK, HANG, ScriptedApi

from hookonce.client import (
    ApiError,
    Client,
    ClientError,
    ConflictError,
    InternalError,
    LimitError,
    NoAnswerError,
    NotFoundError,
    PermissionDeniedError,
    PlatformError,
    UnreadableAnswerError,
    ValidationFailedError,
)
from hookonce.errors import WebhookError

from .conftest import KEY
from .test_operations import ME, SAVED, SINGLE_POST

pytestmark = [pytest.mark.anyio, pytest.mark.sample(20, of="file")]

DRAFT = {"targets": [{"channelId": "ch_1"}]}


@pytest.mark.parametrize(
    ("status", "code", "kind", "error_class"),
    [
        (422, "validation.failed", "validation", ValidationFailedError),
        (401, "api.key", "permission", PermissionDeniedError),
        (402, "api.not_on_plan", "permission", PermissionDeniedError),
        (404, "post.not_found", "not_found", NotFoundError),
        (409, "post.publishing", "conflict", ConflictError),
        (429, "quota", "limit", LimitError),
        (502, "platform.rejected", "platform", PlatformError),
        (500, "internal", "internal", InternalError),
        (418, "tomorrow.code", "tomorrow", ApiError),
    ],
)
async def test_each_kind_of_refusal_is_a_class_with_every_field_of_the_answer(
    client: Client, api: ScriptedApi, status: int, code: str, kind: str, error_class: type[ApiError]
) -> None:
    error = {
        "code": code,
        "kind": kind,
        "message": "It is refused.",
        "hint": "Do something else.",
        "details": {"validations": [{"any": "shape"}]},
    }
    api.say(status, {"error": error})
    with pytest.raises(error_class) as caught:
        await client.posts.publish("post_1")
    raised: ApiError = caught.value
    assert type(raised) is error_class
    assert (raised.method, raised.path) == ("POST", "/v1/posts/post_1/publish")
    assert raised.status == status
    for name, value in error.items():
        assert getattr(raised, name) == value
    assert isinstance(raised, ClientError)
    assert isinstance(raised, WebhookError)
    assert str(raised) == (
        f"POST /v1/posts/post_1/publish: {status} {code}: It is refused. (Do something else.)"
    )


async def test_after_a_429_every_request_is_repeated_when_the_service_says(
    client: Client, api: ScriptedApi
) -> None:
    api.refuse(429, "quota", "limit", retry_after="1")
    api.say(201, {"data": SAVED})
    began = monotonic()
    assert (await client.posts.create(DRAFT)).id == "post_1"
    assert monotonic() - began >= 1
    assert len(api.asked) == 2


async def test_a_429_is_raised_at_once_if_its_wait_exceeds_the_clients_limit(
    client: Client, api: ScriptedApi
) -> None:
    api.refuse(429, "quota", "limit", retry_after="6")
    with pytest.raises(LimitError) as caught:
        await client.me()
    assert caught.value.retry_after_seconds == 6
    assert len(api.asked) == 1


@pytest.mark.parametrize("retry_after", ["", "soon", "-1", "Wed, 21 Oct 2026 07:28:00 GMT"])
async def test_a_429_without_a_wait_is_raised_at_once(
    client: Client, api: ScriptedApi, retry_after: str
) -> None:
    api.refuse(429, "quota", "limit", retry_after=retry_after)
    with pytest.raises(LimitError) as caught:
        await client.me()
    assert caught.value.retry_after_seconds is None
    assert len(api.asked) == 1


ASKED_AGAIN: dict[str, tuple[Callable[[Client], Awaitable[Any]], Any]] = {
    "read": (lambda c: c.posts.get("post_1"), SINGLE_POST),
    "me": (lambda c: c.me(), ME),
    "a page": (lambda c: anext(aiter(c.comments.list().pages())), []),
}
ASKED_ONCE: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "create": lambda c: c.posts.create(DRAFT),
    "replace": lambda c: c.posts.replace("post_1", DRAFT),
    "delete": lambda c: c.posts.delete("post_1"),
    "publish": lambda c: c.posts.publish("post_1"),
    "start upload": lambda c: c.media.start_upload("a.png", "image/png", 1),
    "complete": lambda c: c.media.complete("med_1"),
    "reply": lambda c: c.comments.reply("cmt_1", "Thanks"),
    "create endpoint": lambda c: c.webhooks.create("https://a.example", ["comment.received"]),
    "test": lambda c: c.webhooks.test("wh_1"),
    "rotate": lambda c: c.webhooks.rotate_secret("wh_1"),
}


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookonce.client.connection._FIRST_WAIT_SECONDS", 0.001)


@pytest.mark.parametrize("fault", ["broken", 500, 502, 503, 504])
@pytest.mark.parametrize("name", ASKED_AGAIN)
@pytest.mark.usefixtures("no_backoff")
async def test_a_request_that_only_reads_is_repeated_after_a_temporary_fault(
    client: Client, api: ScriptedApi, name: str, fault: str | int
) -> None:
    call, data = ASKED_AGAIN[name]
    for _ in range(2):
        if isinstance(fault, int):
            api.refuse(fault, "internal", "internal")
        else:
            api.answers.append(BREAK)
    api.say(200, {"data": data})
    assert await call(client)
    assert len(api.asked) == 3


@pytest.mark.parametrize("fault", ["broken", 500, 502])
@pytest.mark.parametrize("name", ASKED_ONCE)
@pytest.mark.usefixtures("no_backoff")
async def test_a_changing_request_is_not_repeated_if_the_service_may_have_done_it(
    client: Client, api: ScriptedApi, name: str, fault: str | int
) -> None:
    if isinstance(fault, int):
        api.refuse(fault, "internal", "internal")
    else:
        api.answers.append(BREAK)
    with pytest.raises(ClientError) as caught:
        await ASKED_ONCE[name](client)
    assert len(api.asked) == 1
    if isinstance(caught.value, NoAnswerError):
        assert caught.value.may_have_arrived


@pytest.mark.usefixtures("no_backoff")
async def test_a_fault_that_lasts_is_raised_after_some_tries(
    client: Client, api: ScriptedApi
) -> None:
    api.refuse(503, "internal", "internal")
    with pytest.raises(InternalError):
        await client.me()
    assert 1 < len(api.asked) < 10


@pytest.mark.usefixtures("no_backoff")
async def test_every_request_is_repeated_if_no_connection_was_made() -> None:
    async with Client(f"http://127.0.0.1:{free_port()}", KEY) as client:
        with pytest.raises(NoAnswerError) as caught:
            await client.posts.create(DRAFT)
    assert not caught.value.may_have_arrived
    assert str(caught.value) == (
        "POST /v1/posts: cannot connect to 127.0.0.1 (ConnectError); it was not sent"
    )


async def test_a_missing_answer_is_an_error_after_the_time_limit(api: ScriptedApi) -> None:
    api.answers.append(HANG)
    async with Client(api.url, KEY, answer_seconds=0.1, patience=0) as client:
        with pytest.raises(
            NoAnswerError, match=r"within 0\.1 s; the service may have carried it out"
        ):
            await client.me()


async def test_a_client_can_be_cancelled(client: Client, api: ScriptedApi) -> None:
    api.answers.append(HANG)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await client.me()


@pytest.mark.parametrize(
    ("status", "body"),
    [(502, b"<html>Bad gateway"), (404, b""), (403, b'{"error": "no"}'), (500, b"\xff")],
)
async def test_an_undocumented_error_answer_has_a_class_of_its_own(
    client: Client, api: ScriptedApi, status: int, body: bytes
) -> None:
    api.say(status, body)
    with pytest.raises(UnreadableAnswerError) as caught:
        await client.posts.publish("post_1")
    assert caught.value.status == status
    assert "html" not in str(caught.value)


async def test_an_answer_of_another_shape_names_the_fields_and_shows_no_value(
    client: Client, api: ScriptedApi
) -> None:
    api.say(200, {"data": {"id": 5, "status": "private words"}})
    with pytest.raises(
        UnreadableAnswerError, match=r"data\.id: Input should be a valid string"
    ) as (caught):
        await client.posts.publish("post_1")
    assert caught.value.status == 200
    assert "private" not in str(caught.value)


async def test_a_cursor_that_leads_back_ends_the_list(client: Client, api: ScriptedApi) -> None:
    api.say(200, {"data": [], "nextCursor": "cmt_1"})
    with pytest.raises(UnreadableAnswerError, match="leads back"):
        _ = [one async for one in client.comments.list()]
    assert len(api.asked) == 2
