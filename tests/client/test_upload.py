"""An upload in its three steps (interface, Endpoints: Media)."""

from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.scripted_api import BREAK, ScriptedApi

from hookonce.client import Client, UploadError

from .test_operations import MEDIA

pytestmark = pytest.mark.anyio

CONTENT = os.urandom(600_000)


def ready(api: ScriptedApi, *, method: str = "PUT", status: int = 200) -> None:
    """Let the service be ready for one upload."""
    upload = {
        "mediaId": "med_1",
        "uploadUrl": f"{api.url}/storage/a",
        "method": method,
        "headers": {"content-type": "image/png", "x-storage": "ours", "Content-Length": "1"},
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
    ("source", "size"), [(CONTENT, None), (file_at_10(), None), (pieces(), len(CONTENT))]
)
async def test_a_stream_is_sent_from_where_it_is(
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


async def test_what_is_not_known_of_a_file_is_asked_for_before_anything_is_sent(
    client: Client, api: ScriptedApi
) -> None:
    with pytest.raises(ValueError, match="needs a filename"):
        await client.media.upload(b"x")
    with pytest.raises(ValueError, match=r"media type of 'notes\.txt'"):
        await client.media.upload(b"x", filename="notes.txt")
    with pytest.raises(ValueError, match="how many bytes"):
        await client.media.upload(pieces(), filename="a.png")
    with pytest.raises(FileNotFoundError):
        await client.media.upload("nowhere.png")
    assert api.asked == []


@pytest.mark.parametrize(("size", "words"), [(10, "more than 10"), (10**6, "fewer than 1000000")])
async def test_a_stream_of_another_length_than_was_said_is_no_upload(
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
    with pytest.raises(UploadError, match="the storage: the exchange broke"):
        await client.media.upload(b"x", filename="a.png")


async def test_an_address_that_is_no_safe_one_gets_no_bytes(
    client: Client, api: ScriptedApi
) -> None:
    ready(api)
    api.answers[0] = api.answers[0]._replace(
        body=api.answers[0].body.replace(api.url.encode(), b"http://storage.example.com")
    )
    with pytest.raises(UploadError, match="an address that nothing can be sent to"):
        await client.media.upload(b"x", filename="a.png")
