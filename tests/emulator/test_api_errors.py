"""Failures of the API that any operation can have: Errors (interface v1)."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Message
from support.servers import serving
from support.service_api import calling, checked_error, create, wanted

from hookonce.emulator import EmulatedService
from hookonce.emulator.deliveries import Deliveries

pytestmark = pytest.mark.anyio


@pytest.fixture
async def service() -> AsyncIterator[EmulatedService]:
    async with EmulatedService() as service:
        yield service


@pytest.fixture
async def api(service: EmulatedService) -> AsyncIterator[httpx2.AsyncClient]:
    async with calling(service) as client:
        yield client


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v2/webhooks",
        "/v1/webhooks/",
        "/v1/webhooks/x/",
        "/v1/webhooks/x/nothing",
        "/v1/webhooks/x/test/",
        "/webhooks",
        "/V1/webhooks",
        "/v1/webhooks%0A",
    ],
)
async def test_an_unknown_path_is_answered_404_and_never_redirected(
    api: httpx2.AsyncClient, path: str
) -> None:
    """Interface, Errors: "Every failure is JSON under an `error` key"."""
    error = checked_error(await api.post(path), 404, "api.not_found")
    assert error["kind"] == "not_found"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/webhooks", "POST"),
        ("PUT", "/v1/webhooks", "POST"),
        ("OPTIONS", "/v1/webhooks", "POST"),
        ("GET", "/v1/webhooks/x", "PATCH"),
        ("DELETE", "/v1/webhooks/x", "PATCH"),
        ("GET", "/v1/webhooks/x/test", "POST"),
        ("POST", "/v1/webhooks/x/deliveries", "GET"),
        ("PUT", "/v1/webhooks/x/rotate-secret", "POST"),
    ],
)
async def test_a_method_the_interface_does_not_show_is_answered_405(
    api: httpx2.AsyncClient, method: str, path: str, allowed: str
) -> None:
    """Interface, Endpoints, Gaps: listing endpoints is "not shown"; no operation reads or
    deletes one.
    """
    response = await api.request(method, path)
    checked_error(response, 405, "api.method_not_allowed")
    assert response.headers["allow"] == allowed


async def test_an_exception_is_answered_500_and_logged(
    api: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Interface, Errors: kind internal."""

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    path = f"/v1/webhooks/{(await create(api))['id']}"
    monkeypatch.setattr(Deliveries, "rows", broken)
    with caplog.at_level(logging.ERROR, "hookonce.emulator.api"):
        response = await api.get(f"{path}/deliveries")
    error = checked_error(response, 500, "api.internal")
    assert error["kind"] == "internal"
    assert "bug" not in response.text
    assert "a bug" in caplog.text
    assert response.headers["x-ratelimit-remaining"] == "49998"


async def test_nothing_secret_is_logged(
    api: httpx2.AsyncClient, service: EmulatedService, caplog: pytest.LogCaptureFixture
) -> None:
    """Interface, Authentication 4: a key is shown once. Resources: a secret is shown once."""
    key = service.new_key()
    with caplog.at_level(logging.DEBUG):
        created = await create(api)
        await api.post("/v1/webhooks", content=b'{"url": "x', headers={"x-api-key": key})
        rotated = await api.post(f"/v1/webhooks/{created['id']}/rotate-secret")
    for hidden in (key, created["secret"], rotated.json()["data"]["secret"]):
        assert hidden not in caplog.text


async def test_a_refusal_does_not_repeat_the_request(api: httpx2.AsyncClient) -> None:
    """Interface, Errors: "One sentence for people". This sentence quotes no body, because a body
    may hold secrets.
    """
    response = await api.post("/v1/webhooks", json=wanted(url="https://user:word@10.0.0.1/"))
    checked_error(response, 422, "webhook.url_private")
    assert "word" not in response.text
    response = await api.post("/v1/webhooks", json=wanted(events=["whsec_mine"], url=["word"]))
    checked_error(response, 422, "validation.failed")
    assert "word" not in response.text


async def test_the_checks_follow_an_order() -> None:
    """The API checks a request's key, plan, path, method, role, row and body in this order. The
    interface gives no order.
    """
    async with EmulatedService() as service:
        async with calling(service, service.new_key("viewer")) as viewer:
            checked_error(await viewer.post("/v1/nothing"), 404, "api.not_found")
            checked_error(await viewer.delete("/v1/webhooks"), 405, "api.method_not_allowed")
            checked_error(await viewer.patch("/v1/webhooks/x"), 403, "api.forbidden")
        async with calling(service) as admin:
            response = await admin.patch("/v1/webhooks/x", content=b"[]")
            checked_error(response, 404, "webhook.not_found")


async def test_the_api_can_be_mounted() -> None:
    """Interface, Versioning 1: "The version is in the path"; an application may mount the service
    at any path.
    """
    async with EmulatedService() as service:
        app = Starlette(routes=[Mount("/service", service.api)])
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app), base_url="https://test"
        ) as client:
            headers = {"x-api-key": service.new_key()}
            response = await client.post("/service/v1/webhooks", json=wanted(), headers=headers)
    assert response.status_code == 201


async def test_a_websocket_is_closed(service: EmulatedService) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await service.api({"type": "websocket", "path": "/v1/webhooks"}, asyncio.Queue().get, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_a_failure_over_http_is_json_too(service: EmulatedService) -> None:
    """Interface, Errors: "Every failure is JSON"."""
    async with serving(service.api) as site, httpx2.AsyncClient(base_url=site.url) as client:
        response = await client.post("/v1/webhooks", content=b"{")
        checked_error(response, 401, "api.unauthorized")
        headers = {"authorization": f"Bearer {service.new_key()}"}
        response = await client.patch("/v1/webhooks", headers=headers)
        assert json.loads(response.content)["error"]["code"] == "api.method_not_allowed"
