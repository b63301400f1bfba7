"""An upload in its three steps (interface, Endpoints: Media)."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.scripted_api import BREAK, HANG, ScriptedApi

from hookonce.client import Client, UploadError

from .conftest import KEY
from .test_operations import MEDIA

pytestmark = pytest.mark.anyio

CONTENT = os.urandom(600_000)


def ready(api: ScriptedApi, *, method: str = "PUT", status: int = 200) -> None:
    """Prepare the service for one upload."""
    upload = {
        "mediaId": "med_1",
        "uploadUrl": f"{api.url}/storage/a",
        "method": method,
        "headers": {
            "content-type": "image/png",
            "x-storage": "ours",
            "Content-Length": "1",
            "Transfer-Encoding": "chunked",
            "Host": "hop.example.com",
            "Connection": "close",
            "Cookie": "a=b",
        },
        "url": MEDIA["url"],
    }
    api.say(201, {"data": upload})
    api.say(status, b"")
    api.say(200, {"data": MEDIA})


@pytest.mark.parametrize("method", ["PUT", "POST"])
async def test_the_bytes_of_a_path_go_to_the_storage_as_the_service_says(
    client: Client, api: ScriptedApi, tmp_path: Path, method: str
) -> None:
    ready(api, method=method)
    (path := tmp_path / "holiday.PNG").write_bytes(CONTENT)
    media = await client.media.upload(path, width=4, height=3)
    assert (media.id, media.status) == ("med_1", "ready")
    started, stored, completed = api.asked
    assert started.json == {"filename": "holiday.PNG", "mime": "image/png", "size": len(CONTENT)}
    assert (stored.method, stored.target, stored.body) == (method, "/storage/a", CONTENT)
    assert stored.headers["x-storage"] == "ours"
    assert "hop" not in stored.headers["host"]
    assert set(stored.headers) == {"host", "content-type", "content-length", "x-storage"}
    assert stored.headers["content-length"] == str(len(CONTENT))
    assert "transfer-encoding" not in stored.headers
    assert completed.target == "/v1/media/med_1/complete"
    assert completed.json == {"width": 4, "height": 3}


async def pieces() -> AsyncIterator[bytes]:
    yield CONTENT[:100]
    yield CONTENT[100:]


def file_at_10() -> io.BytesIO:
    file = io.BytesIO(b"0123456789" + CONTENT)
    file.seek(10)
    return file


@pytest.mark.parametrize(
    ("source", "size"),
    [
        (CONTENT, None),
        (bytearray(CONTENT), None),
        (memoryview(CONTENT), None),
        (memoryview(CONTENT).cast("Q"), None),
        (memoryview(CONTENT[::-1])[::-1], None),
        (file_at_10(), None),
        (pieces(), len(CONTENT)),
    ],
)
async def test_a_stream_is_sent_from_its_current_position(
    client: Client, api: ScriptedApi, source: Any, size: int | None
) -> None:
    ready(api)
    told: list[tuple[int, int]] = []
    await client.media.upload(
        source,
        filename="clip",
        mime="video/mp4",
        size=size,
        progress=lambda sent, total: told.append((sent, total)),
    )
    assert api.asked[1].body == CONTENT
    assert told == sorted(told)
    assert len(told) > 1
    assert told[-1] == (len(CONTENT), len(CONTENT))


async def test_a_missing_property_of_a_file_is_an_error_before_anything_is_sent(
    client: Client, api: ScriptedApi
) -> None:
    with pytest.raises(ValueError, match="needs a filename"):
        await client.media.upload(b"x")
    with pytest.raises(ValueError, match=r"media type of 'notes\.txt'"):
        await client.media.upload(b"x", filename="notes.txt")
    with pytest.raises(ValueError, match="finite number of seconds"):
        await client.media.upload(b"1", filename="a.png", seconds=float("nan"))
    with pytest.raises(ValueError, match="how many bytes"):
        await client.media.upload(pieces(), filename="a.png")
    with pytest.raises(FileNotFoundError):
        await client.media.upload("nowhere.png")
    for odd in ([b"x"], 5, None):
        with pytest.raises(TypeError, match="takes a path, bytes, a file"):
            await client.media.upload(odd, filename="a.png")  # type: ignore[arg-type]  # the test passes a wrong type
    assert api.asked == []


@pytest.mark.parametrize(("size", "words"), [(10, "more than 10"), (10**6, "fewer than 1000000")])
async def test_a_stream_that_is_shorter_or_longer_than_announced_fails_the_upload(
    client: Client, api: ScriptedApi, size: int, words: str
) -> None:
    ready(api)
    with pytest.raises(ValueError, match=words):
        await client.media.upload(pieces(), filename="a.png", size=size)
    assert "/complete" not in api.asked[-1].target


@pytest.mark.parametrize("status", [400, 403, 307, 500])
async def test_a_storage_that_refuses_is_not_asked_again_and_nothing_is_completed(
    client: Client, api: ScriptedApi, status: int
) -> None:
    ready(api, status=status)
    with pytest.raises(UploadError) as caught:
        await client.media.upload(b"x", filename="a.png")
    assert (caught.value.media_id, caught.value.status) == ("med_1", status)
    assert len(api.asked) == 2


async def test_a_storage_that_breaks_off_is_an_error_of_the_upload(
    client: Client, api: ScriptedApi
) -> None:
    ready(api)
    api.answers[1] = BREAK
    with pytest.raises(UploadError, match="the storage: the connection broke"):
        await client.media.upload(b"x", filename="a.png")


async def test_an_unsafe_upload_address_gets_no_bytes(client: Client, api: ScriptedApi) -> None:
    ready(api)
    api.answers[0] = api.answers[0]._replace(
        body=api.answers[0].body.replace(api.url.encode(), b"http://storage.example.com")
    )
    with pytest.raises(UploadError, match="an address that cannot be used"):
        await client.media.upload(b"x", filename="a.png")


class Service(httpx2.AsyncBaseTransport):
    """Starts uploads to an address, and records which request went where."""

    def __init__(self, upload_url: str, **headers: str) -> None:
        self.upload = {
            "mediaId": "med_1",
            "uploadUrl": upload_url,
            "method": "PUT",
            "headers": headers,
            "url": MEDIA["url"],
        }
        self.asked: list[httpx2.Request] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        await request.aread()
        data = self.upload if request.url.path.endswith("/uploads") else MEDIA
        return httpx2.Response(200, json={"data": data})


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://storage.example.com/a", "uses https, but named an http address"),
        ("http://127.0.0.1/a", "uses https, but named an http address"),
        *(
            (f"https://{host}/a", "on this machine or in a private network")
            for host in (
                *("localhost", "LOCALHOST.", "storage.localhost", "127.0.0.1", "127.8.8.8:81"),
                *("10.1.2.3", "172.16.0.1", "192.168.0.1", "100.64.0.1", "0.0.0.0"),
                *("169.254.169.254", "[::1]", "[::]", "[fd00::1]", "[fe80::1]"),
                *("[::ffff:10.0.0.1]", "[64:ff9b::10.0.0.1]", "[2002:a00:1::]", "[fec0::1]"),
            )
        ),
    ],
)
async def test_a_public_service_cannot_send_a_file_to_a_private_or_unencrypted_address(
    address: str, words: str
) -> None:
    service = Service(address)
    for allow_http in (False, True):
        async with Client(
            "https://api.example.com", KEY, transport=service, allow_http=allow_http
        ) as client:
            with pytest.raises(UploadError) as caught:
                await client.media.upload(b"x", filename="a.png")
        if allow_http:
            assert words in str(caught.value)
    assert len(service.asked) == 2


@pytest.mark.parametrize(
    ("base", "address"),
    [
        ("https://api.example.com", "https://storage.example.com/a"),
        ("https://api.example.com", "https://8.8.8.8/a"),
        ("https://api.internal", "https://api.internal:9000/a"),
        ("https://10.0.0.1", "https://10.0.0.2/a"),
        ("https://localhost", "https://192.168.0.1/a"),
        ("http://127.0.0.1", "http://127.0.0.1:9000/a"),
        ("http://127.0.0.1", "https://storage.example.com/a"),
    ],
)
async def test_a_private_service_may_send_a_file_to_its_own_or_a_public_address(
    base: str, address: str
) -> None:
    service = Service(address)
    async with Client(base, KEY, transport=service) as client:
        assert (await client.media.upload(b"x", filename="a.png")).id == "med_1"
    assert str(service.asked[1].url) == address.removesuffix("a") + "…"


async def test_a_host_name_with_a_private_address_is_refused_after_the_lookup(
    client: Client, api: ScriptedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here 127.0.0.1 counts as a public address, and 127.0.0.2 as a private one."""
    monkeypatch.setattr(
        "hookonce.client.connection.is_private_host", lambda host: host in {"127.0.0.2", "::1"}
    )
    got: list[bytes] = []

    async def storage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(storage, "127.0.0.2", 0)
    port = server.sockets[0].getsockname()[1]
    async with Client(api.url, KEY, allow_http=True) as client:
        for name in ("127.2", "0x7f.2", "2130706434"):  # the system resolves each to 127.0.0.2
            api.asked.clear()
            api.answers.clear()
            ready(api)
            api.answers[0] = api.answers[0]._replace(
                body=api.answers[0].body.replace(api.url.encode(), f"http://{name}:{port}".encode())
            )
            with pytest.raises(UploadError, match="on this machine or in a private network"):
                await client.media.upload(b"x", filename="a.png")
            assert len(api.asked) == 1
    server.close()
    await server.wait_closed()
    assert b"".join(got) == b""


@pytest.mark.parametrize("where", ["header", "address"])
async def test_the_key_goes_to_no_storage_even_if_the_service_wants_it(where: str) -> None:
    address = f"https://storage.example.com/a?key={KEY if where == 'address' else ''}"
    service = Service(address, authorization=f"Bearer {KEY if where == 'header' else 'x'}")
    async with Client("https://api.example.com", KEY, transport=service) as client:
        with pytest.raises(UploadError, match="wants the API key sent to the storage") as caught:
            await client.media.upload(b"x", filename="a.png")
    assert len(service.asked) == 1
    assert KEY not in str(caught.value)


async def test_no_cookie_of_the_service_goes_anywhere(client: Client, api: ScriptedApi) -> None:
    ready(api)
    api.answers[0] = api.answers[0]._replace(headers={"set-cookie": "session=abc; Path=/"})
    await client.media.upload(b"x", filename="a.png")
    assert all("cookie" not in asked.headers for asked in api.asked)


async def slow_storage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\nx")
    await asyncio.sleep(0.7)
    writer.write(b"HTTP/1.1 200 -\r\ncontent-length: 0\r\n\r\n")
    writer.close()


async def test_an_upload_may_take_longer_than_an_answer(api: ScriptedApi) -> None:
    server = await asyncio.start_server(slow_storage, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    ready(api)
    api.answers[0] = api.answers[0]._replace(
        body=api.answers[0].body.replace(api.url.encode(), url.encode())
    )
    api.answers.pop(1)
    async with server, Client(api.url, KEY, answer_seconds=0.3) as client:
        media = await client.media.upload(b"x", filename="a.png", seconds=30)
    assert media.status == "ready"


async def test_an_upload_that_takes_too_long_names_its_own_limit(
    client: Client, api: ScriptedApi
) -> None:
    ready(api)
    api.answers[1] = HANG
    with pytest.raises(UploadError, match=r"the storage: no answer within 0\.2 s"):
        await client.media.upload(b"x", filename="a.png", seconds=0.2)


async def test_only_the_status_of_the_storages_answer_is_read(
    client: Client, api: ScriptedApi
) -> None:
    ready(api)
    api.answers[1] = api.answers[1]._replace(
        body=b"not gzip at all", headers={"content-encoding": "gzip"}
    )
    assert (await client.media.upload(b"x", filename="a.png")).id == "med_1"
