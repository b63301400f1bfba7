"""The upload procedure: Endpoints, Media (interface v1)."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from support.servers import serving
from support.service_api import checked_error
from support.workspaces import Bakery, bakery

from hookonce.emulator.storage import fits_media_type

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"
FTYP = b"\x00\x00\x00\x18ftyp"
STARTS = {
    "image/jpeg": b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01",
    "image/png": PNG,
    "image/webp": b"RIFF\x24\x00\x00\x00WEBPVP8 ",
    "image/heic": FTYP + b"heic\x00\x00",
    "video/mp4": FTYP + b"isom\x00\x00",
    "video/quicktime": FTYP + b"qt  \x00\x00",
    "video/webm": b"\x1a\x45\xdf\xa3\x01\x00\x00\x00",
}


@pytest.fixture
async def here() -> AsyncIterator[Bakery]:
    async with bakery() as place:
        yield place


@pytest.fixture
async def outside(here: Bakery) -> AsyncIterator[httpx2.AsyncClient]:
    """Yield a client that sends no key."""
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(here.service.api)) as client:
        yield client


async def started(here: Bakery, content: bytes = PNG, mime: str = "image/png") -> dict[str, Any]:
    body = {"filename": "Crème & Brot.png", "mime": mime, "size": len(content)}
    response = await here.api.post("/v1/media/uploads", json=body)
    assert response.status_code == 201, response.text
    upload: dict[str, Any] = response.json()["data"]
    return upload


async def send(
    outside: httpx2.AsyncClient, upload: dict[str, Any], content: bytes, **changes: Any
) -> httpx2.Response:
    """Send the request that the upload describes, with these changes."""
    request = {"method": upload["method"], "url": upload["uploadUrl"], "headers": upload["headers"]}
    return await outside.request(**{**request, "content": content, **changes})


@pytest.mark.parametrize("mime", STARTS)
async def test_a_file_of_every_accepted_type_can_be_uploaded(
    here: Bakery, outside: httpx2.AsyncClient, mime: str
) -> None:
    """Interface, Media: "JPEG, PNG, WebP, HEIC, MP4, QuickTime, WebM"; States: uploading, then
    ready.
    """
    content = STARTS[mime]
    upload = await started(here, content, mime)
    assert upload["method"] == ("PUT" if mime.startswith("image/") else "POST")
    assert (await send(outside, upload, content)).status_code == 200
    complete = await here.api.post(f"/v1/media/{upload['mediaId']}/complete")
    media = complete.json()["data"]
    assert (media["status"], media["kind"], media["size"]) == (
        "ready",
        mime.partition("/")[0],
        len(content),
    )
    assert media["url"] == upload["url"]
    served = await outside.get(upload["url"])
    assert (served.content, served.headers["content-type"]) == (content, mime)


def test_a_file_of_one_type_does_not_fit_another() -> None:
    for mime, start in STARTS.items():
        assert [other for other in STARTS if fits_media_type(other, start)] == [mime]
        assert not fits_media_type(mime, b"")


async def test_media_without_bytes_cannot_be_completed(
    here: Bakery, outside: httpx2.AsyncClient
) -> None:
    """Interface, Upload procedure: step (2) comes before step (3); the interface does not say how
    step (3) alone is refused.
    """
    upload = await started(here)
    path = f"/v1/media/{upload['mediaId']}/complete"
    checked_error(await here.api.post(path), 409, "media.not_uploaded")
    await send(outside, upload, PNG)
    listed = (await here.api.get("/v1/media")).json()["data"]
    assert upload["mediaId"] not in [media["id"] for media in listed]
    first = (await here.api.post(path, json={"width": 3})).json()["data"]
    again = (await here.api.post(path, json={"height": 4})).json()["data"]
    assert again == first | {"height": 4}


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"content": PNG + b"!"}, 413),
        ({"content": PNG[:-1]}, 400),
        ({"content": b"\xff\xd8\xff" + PNG[3:]}, 400),
        ({"method": "POST"}, 405),
        ({"headers": {"content-type": "image/png"}}, 403),
        ({"url": "https://service.test/storage/nothing"}, 403),
    ],
    ids=["more", "less", "another type", "another method", "a header less", "unknown"],
)
async def test_the_storage_accepts_only_the_announced_request(
    here: Bakery, outside: httpx2.AsyncClient, changes: dict[str, Any], status: int
) -> None:
    """Interface, Upload procedure: "with the method and the headers given"."""
    upload = await started(here)
    refused = await send(outside, upload, **{"content": PNG, **changes})
    checked_error(refused, status, "storage.refused")
    assert (await send(outside, upload, PNG)).status_code == 200


async def test_the_storage_refuses_a_key(here: Bakery, outside: httpx2.AsyncClient) -> None:
    """Interface, Upload procedure: "directly to storage (the bytes never pass through the API)"."""
    upload = await started(here)
    key = here.service.new_key()
    for header in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
        refused = await send(outside, upload, PNG, headers={**upload["headers"], **header})
        checked_error(refused, 400, "storage.refused")
        assert key not in refused.text


async def test_an_address_is_valid_for_an_hour_or_until_the_upload_is_complete(
    here: Bakery, outside: httpx2.AsyncClient
) -> None:
    upload, late = await started(here), await started(here)
    await send(outside, upload, PNG)
    await here.api.post(f"/v1/media/{upload['mediaId']}/complete")
    checked_error(await send(outside, upload, PNG), 403, "storage.refused")
    await here.service.advance(hours=1)
    checked_error(await send(outside, late, PNG), 403, "storage.refused")
    checked_error(await outside.get(late["url"]), 404, "storage.refused")
    checked_error(await outside.delete(upload["url"]), 405, "storage.refused")


async def test_a_failed_upload_cannot_be_completed() -> None:
    """Interface, States: Media: uploading, ready, failed."""
    from hookonce.emulator.described import DescribedMedia

    failed = DescribedMedia(
        id="med_bad", filename="bad.png", mime="image/png", size=9, status="failed"
    )
    async with bakery(media=[failed], posts=[]) as here:
        response = await here.api.post("/v1/media/med_bad/complete")
        checked_error(response, 409, "media.failed")


async def test_addresses_include_the_path_of_a_mounted_service() -> None:
    async with bakery() as here:
        app = Starlette(routes=[Mount("/service", here.service.api)])
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="https://test") as client:
            body = {"filename": "a.png", "mime": "image/png", "size": len(PNG)}
            key = {"x-api-key": here.service.new_key()}
            answer = await client.post("/service/v1/media/uploads", json=body, headers=key)
            upload = answer.json()["data"]
            assert upload["uploadUrl"].startswith("https://test/service/storage/")
            assert (await send(client, upload, PNG)).status_code == 200


async def test_addresses_lead_to_the_same_server() -> None:
    async with bakery() as here, serving(here.service.api) as site, httpx2.AsyncClient() as client:
        key = {"authorization": f"Bearer {here.service.new_key('contributor')}"}
        body = {"filename": "a.png", "mime": "image/png", "size": len(PNG)}
        answer = await client.post(f"{site.url}/v1/media/uploads", json=body, headers=key)
        upload = answer.json()["data"]
        assert upload["uploadUrl"].startswith(f"{site.url}/storage/")
        assert (await send(client, upload, PNG)).status_code == 200
        assert (await client.get(upload["url"])).content == PNG
