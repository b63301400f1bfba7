"""The key is sent to the service's base address only, and never shown."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from support.frames import leaks
from support.redis_servers import free_port
from support.scripted_api import BREAK, HANG, ScriptedApi, scripted_api

from hookonce.client import (
    ApiKeyError,
    Client,
    ClientError,
    EnvironmentKey,
    FileKey,
    NoAnswerError,
    PermissionDeniedError,
    UnreadableAnswerError,
)

from .conftest import KEY
from .test_operations import ME, MEDIA

pytestmark = pytest.mark.anyio

SECRET_PART = KEY.rpartition("_")[2]


def shown_by(error: BaseException) -> list[str]:
    """Return the places of a key in the data that an error tracker would send."""
    text = "".join(traceback.format_exception(error))
    return [*leaks(error, {"key": SECRET_PART}, but_in=__file__)] + (
        ["traceback"] if SECRET_PART in text else []
    )


@pytest.mark.parametrize(
    "fault", ["refused", "quoted", "broken", "hanging", "redirect", "unreadable"]
)
async def test_no_error_shows_the_key(api: ScriptedApi, fault: str) -> None:
    match fault:
        case "refused":
            api.refuse(401, "api.unauthorized", "permission")
        case "quoted":
            error = {"code": "x", "kind": "permission", "message": f"No {KEY}.", "details": [KEY]}
            api.say(401, {"error": error})
        case "broken":
            api.answers.append(BREAK)
        case "hanging":
            api.answers.append(HANG)
        case "redirect":
            api.say(302, headers={"location": "/elsewhere"})
        case "unreadable":
            api.say(200, {"data": KEY})
    async with Client(api.url, KEY, patience=0, answer_seconds=0.2) as client:
        with pytest.raises(ClientError) as caught:
            await client.posts.publish("post_1")
        assert shown_by(caught.value) == []
        assert SECRET_PART not in repr(vars(client)) + repr(vars(caught.value))


class Answering(httpx2.AsyncBaseTransport):
    """Answers with an error whose text quotes the key; ``write`` makes the text."""

    def __init__(self, write: Callable[[str], str]) -> None:
        self.write = write

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        said = self.write(request.headers["authorization"].removeprefix("Bearer "))
        error = '{"code":"x","kind":"permission","message":"No %s.","details":{"%s":["%s"]}}'
        content = '{"error":' + error % (said, said, said) + "}"
        return httpx2.Response(401, content=content.encode())


async def test_a_key_that_is_quoted_in_other_letters_of_json_is_not_shown() -> None:
    def escaped(key: str) -> str:
        return key.replace("/", "\\/").replace("s", "\\u0073")

    key = "example_sk_ab/cd_SECRETPART"
    async with Client("https://service.test", key, transport=Answering(escaped)) as client:
        with pytest.raises(PermissionDeniedError, match=r"No \(key\)\.") as caught:
            await client.me()
    assert leaks(caught.value, {"key": "SECRETPART"}, but_in=__file__) == []
    assert caught.value.details == {"(key)": ["(key)"]}


async def test_a_key_that_is_replaced_before_it_is_quoted_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)

    def replaced(key: str) -> str:
        file.write_text("example_sk_another")
        return key

    async with Client(
        "https://service.test", FileKey(file), transport=Answering(replaced)
    ) as client:
        with pytest.raises(PermissionDeniedError, match=r"No \(key\)\.") as caught:
            await client.me()
    assert shown_by(caught.value) == []


async def test_a_connection_that_fails_does_not_show_the_key() -> None:
    async with Client(f"http://127.0.0.1:{free_port()}", KEY, patience=0) as client:
        with pytest.raises(NoAnswerError) as caught:
            await client.me()
    assert shown_by(caught.value) == []


class Breaking(httpx2.AsyncBaseTransport):
    """Raises an unusual error in a frame that has the header in a local variable."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = request.headers.raw
        self.asked += 1
        raise self.error if headers else AssertionError


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(KEY),
        OSError(KEY),
        UnicodeError(KEY),
        httpx2.InvalidURL(KEY),
        httpx2.StreamError(KEY),
        ExceptionGroup(KEY, [ValueError(KEY)]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_transport_raises_is_an_error_of_the_client_without_the_key(
    error: Exception,
) -> None:
    transport = Breaking(error)
    async with Client("https://service.test", KEY, transport=transport) as client:
        with pytest.raises(NoAnswerError, match=rf"\({type(error).__name__}\)") as caught:
            await client.posts.publish("post_1")
    assert shown_by(caught.value) == []
    assert caught.value.may_have_arrived
    assert transport.asked == 1


async def test_a_request_of_a_closed_client_is_an_error_at_once(api: ScriptedApi) -> None:
    client = Client(api.url, KEY)
    await client.aclose()
    with pytest.raises(NoAnswerError, match=r"the client is closed.*inside its block") as caught:
        await client.me()
    assert not caught.value.may_have_arrived
    assert shown_by(caught.value) == []
    assert api.asked == []


def test_a_client_used_in_another_event_loop_is_an_error() -> None:
    client = Client("https://service.test", KEY, transport=Breaking(RuntimeError("is closed")))
    with pytest.raises(NoAnswerError, match="transport failed"):
        asyncio.run(client.me())
    with pytest.raises(NoAnswerError, match="make one client in each loop") as caught:
        asyncio.run(client.me())
    assert shown_by(caught.value) == []


class Holding(httpx2.AsyncBaseTransport):
    """Keeps the headers in a local variable, as a real transport does while it writes."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = request.headers.raw
        await asyncio.Event().wait()
        raise AssertionError(headers)


async def test_a_cancellation_does_not_show_the_key() -> None:
    shown: list[list[str]] = []

    async def ask(client: Client) -> None:
        try:
            await client.me()
        except asyncio.CancelledError as error:
            shown.append(leaks(error, {"key": SECRET_PART}, but_in=""))
            raise

    async with Client("https://service.test", KEY, transport=Holding()) as client:
        task = asyncio.create_task(ask(client))
        await asyncio.wait([task], timeout=0.05)
        task.cancel()
        await asyncio.wait([task])
    assert shown == [[]]


async def test_no_log_shows_the_key_or_more_of_an_upload_address_than_its_host(
    api: ScriptedApi, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        api.say(200, {"data": ME})
        api.say(201, {"data": upload_to(api)})
        api.say(200)
        api.say(200, {"data": MEDIA})
        await client.me()
        await client.media.upload(b"png", filename="a.png")
    assert "HTTP Request: GET" in caplog.text  # otherwise the test would check nothing
    assert "HTTP Request: PUT" in caplog.text
    assert SECRET_PART not in caplog.text
    assert "path-token" not in caplog.text
    assert "signature=abc" not in caplog.text
    assert api.asked[2].target == "/storage/path-token?signature=abc"


def upload_to(api: ScriptedApi) -> dict[str, object]:
    return {
        "mediaId": "med_1",
        "uploadUrl": f"{api.url}/storage/path-token?signature=abc",
        "method": "PUT",
        "headers": {"content-type": "image/png"},
        "url": MEDIA["url"],
    }


async def test_a_redirect_is_not_followed_even_within_the_base_address(
    client: Client, api: ScriptedApi
) -> None:
    async with scripted_api() as elsewhere:
        for location in (elsewhere.url, api.url + "/v1/me"):
            api.say(307, headers={"location": location})
            with pytest.raises(UnreadableAnswerError, match="redirects are not followed"):
                await client.me()
        assert elsewhere.asked == []
    assert len(api.asked) == 2


async def test_the_storage_gets_no_key_even_at_the_service_s_own_address(
    client: Client, api: ScriptedApi
) -> None:
    api.say(201, {"data": upload_to(api)})
    api.say(200)
    api.say(200, {"data": MEDIA})
    await client.media.upload(b"png", filename="a.png")
    assert ["authorization" in asked.headers for asked in api.asked] == [True, False, True]
    assert SECRET_PART not in repr(api.asked[1])


@pytest.mark.parametrize(
    "url",
    [
        "http://api.example.com",
        "https://user:password@api.example.com",
        "https://user:PASSWORD@api.example.com",
        "https://user:PASSWORD@[::1",
        "https://api.example.com?password=PASSWORD",
        "https://api.example.com#PASSWORD",
        "https://",
        "ftp://api.example.com",
        "api.example.com",
        "https://api.example.com?x=1",
        "https://[::1",
        "https://[v1.x]",
    ],
)
def test_a_base_address_that_would_give_the_key_away_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="base_url") as caught:
        Client(url, KEY)
    assert "password@" not in str(caught.value)
    assert shown_by(caught.value) == []
    assert leaks(caught.value, {"password": "PASSWORD"}, but_in=__file__) == []


@pytest.mark.parametrize("url", ["http://localhost:1", "http://127.0.0.1:1", "http://[::1]:1"])
def test_http_is_accepted_for_this_machine(url: str) -> None:
    assert repr(Client(url + "/", KEY)) == f"Client({url!r})"


def test_http_is_accepted_for_other_machines_if_allowed() -> None:
    client = Client("http://emulator:8000", KEY, allow_http=True)
    assert repr(client) == "Client('http://emulator:8000')"


@pytest.mark.parametrize("key", ["", "  ", "two words", "line\nbreak", "ключ", "whsec_abc", 5])
def test_a_key_that_cannot_be_used_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ApiKeyError) as caught:
        Client("https://api.example.com", key)
    if isinstance(key, str) and key.strip():
        assert leaks(caught.value, {"key": key}, but_in=__file__) == []


async def test_the_key_comes_from_the_environment_by_default(
    api: ScriptedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ApiKeyError, match="set the environment variable HOOKONCE_API_KEY"):
        Client(api.url)
    monkeypatch.setenv("HOOKONCE_API_KEY", KEY + "\n")
    api.say(200, {"data": ME})
    async with Client(api.url) as client:
        monkeypatch.delenv("HOOKONCE_API_KEY")
        await client.me()
    assert api.asked[0].headers["authorization"] == f"Bearer {KEY}"
    monkeypatch.setenv("OTHER", KEY)
    assert SECRET_PART not in repr(EnvironmentKey("OTHER"))


async def test_a_key_in_a_file_is_read_again_and_the_last_good_one_stays(
    api: ScriptedApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "key"
    with pytest.raises(ApiKeyError, match="No such file"):
        FileKey(file)
    file.write_text(KEY + "\n")
    api.say(200, {"data": ME})
    async with Client(api.url, FileKey(file)) as client:
        for text in (KEY, KEY + "2", "two words", KEY + "3"):
            file.write_text(text)
            await client.me()
    used = [asked.headers["authorization"].removeprefix(f"Bearer {KEY}") for asked in api.asked]
    assert used == ["", "2", "2", "3"]
    assert "the new API key cannot be used, so the old one stays" in caplog.text
    assert SECRET_PART not in caplog.text


async def test_an_error_of_a_provider_is_not_passed_on() -> None:
    class Vault:
        def current(self) -> str:
            raise RuntimeError(f"no {KEY}")

    async with Client("http://127.0.0.1:1", Vault()) as client:
        with pytest.raises(ApiKeyError, match="the provider of the key raised RuntimeError") as e:
            await client.me()
    assert SECRET_PART not in str(e.value)
