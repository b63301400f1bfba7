"""Tests for FastAPI beyond the common suite: dependencies, prefixes, and OpenAPI."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Annotated, Any

import httpx2
import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from support.servers import HttpSender, delivering

from hookonce import Receiver
from hookonce.events import CommentReceived
from hookonce.integrations.fastapi import mount
from hookonce.senders import Sender, openai, svix
from hookonce.testing import make_event
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

SECRET = new_secret()


def make_receiver(runs: list[str]) -> Receiver:
    receiver = Receiver(secrets=SECRET, store="memory://")

    @receiver.on(CommentReceived)
    async def note(event: CommentReceived) -> None:
        runs.append(event.id)

    return receiver


@asynccontextmanager
async def included(path: str = "/webhooks", **options: Any) -> AsyncIterator[HttpSender]:
    """Serve an application that includes a router with these options."""
    receiver = make_receiver([])
    router = APIRouter()
    mount(router, receiver, path)
    app = FastAPI(lifespan=receiver.lifespan)
    app.include_router(router, **options)
    async with delivering(app, SECRET, path=path) as sender:
        yield sender


async def reads_all(request: Request) -> None:
    await request.body()


async def reads_json(request: Request) -> None:
    await request.json()


async def consumes(request: Request) -> None:
    async for _ in request.stream():
        pass


@pytest.mark.parametrize("dependency", [reads_all, reads_json])
async def test_a_body_that_a_dependency_has_read_still_verifies(
    dependency: Any,
) -> None:
    async with included(dependencies=[Depends(dependency)]) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")


async def test_a_body_that_a_dependency_has_consumed_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with included(dependencies=[Depends(consumes)]) as sender:
        (await sender.send(make_event(CommentReceived))).expect(500, "body_incomplete")
    assert "the body of a delivery is consumed" in caplog.text
    assert "await request.body()" in caplog.text


@pytest.mark.parametrize("status", [301, 307, 410])
async def test_no_dependency_can_answer_a_redirect_or_410(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse() -> None:
        raise HTTPException(status, headers={"location": "/login"})

    async with included(dependencies=[Depends(refuse)]) as sender:
        answer = (await sender.send(make_event(CommentReceived))).expect(500, "internal_error")
        assert "location" not in answer.headers
    assert any(r.levelno == logging.ERROR and str(status) in r.getMessage() for r in caplog.records)


async def test_the_applications_own_dependencies_and_overrides_still_work() -> None:
    def tenant() -> str:
        return "bakery"

    receiver = make_receiver([])
    app = FastAPI(lifespan=receiver.lifespan)
    mount(app, receiver)

    @app.get("/tenant")
    async def whose(name: Annotated[str, Depends(tenant)]) -> str:
        return name

    app.dependency_overrides[tenant] = lambda: "cafe"
    async with delivering(app, SECRET) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
        assert (await sender.client.get("/tenant")).json() == "cafe"


@pytest.mark.parametrize(
    ("path", "prefix", "url"),
    [("/", "", "/"), ("", "/hooks", "/hooks"), ("/in/", "/a/b", "/a/b/in")],
)
async def test_prefixes_and_paths_of_any_kind_answer_with_and_without_a_slash(
    path: str, prefix: str, url: str
) -> None:
    async with included(path, prefix=prefix) as sender:
        for sender.path in {url, f"{url.rstrip('/')}/"}:
            assert (await sender.send(make_event(CommentReceived))).status == 200
            response = await sender.client.get(sender.path)
            assert (response.status_code, response.json()["status"]) == (405, "refused")


async def test_two_receivers_can_be_mounted_in_nested_routers() -> None:
    first, second = list[str](), list[str]()
    routers = APIRouter(prefix="/hooks")
    inner = APIRouter()
    mount(inner, make_receiver(first), "/a", tags=["webhooks"])
    routers.include_router(inner)
    mount(routers, make_receiver(second), "/b")
    app = FastAPI()
    app.include_router(routers, prefix="/api")
    async with delivering(app, SECRET, path="/api/hooks/a") as sender:
        (await sender.send(event := make_event(CommentReceived))).expect(200, "handled")
    assert (first, second) == ([event.id], [])


def test_a_path_without_a_slash_is_refused() -> None:
    with pytest.raises(ValueError, match="starts with a slash"):
        mount(FastAPI(), make_receiver([]), "webhooks")
    with pytest.raises(ValueError, match="starts with a slash"):
        mount(FastAPI(), make_receiver([]), "")


def test_openapi_claims_no_fields_of_another_sender() -> None:
    app = FastAPI()
    mount(app, Receiver(secrets=SECRET, store="memory://", sender=openai), "/webhooks")
    operation = app.openapi()["paths"]["/webhooks"]["post"]
    content = operation["requestBody"]["content"]["application/json"]
    assert content["schema"] == {"type": "object", "title": "Event"}


@pytest.mark.parametrize(
    ("sender", "prefixes"), [(svix, ["svix", "webhook"]), (replace(svix, headers=("a",)), ["a"])]
)
def test_openapi_names_the_headers_of_the_sender(sender: Sender, prefixes: list[str]) -> None:
    app = FastAPI()
    mount(app, Receiver(secrets=SECRET, store="memory://", sender=sender), "/webhooks")
    parameters = app.openapi()["paths"]["/webhooks"]["post"]["parameters"]
    assert [one["name"] for one in parameters] == [
        f"{prefix}-{ending}" for prefix in prefixes for ending in ("id", "timestamp", "signature")
    ]
    assert {one["required"] for one in parameters} == {len(prefixes) == 1}


async def test_openapi_describes_the_request_and_the_answers() -> None:
    async with included(prefix="/api") as sender:
        document: Any = (await sender.client.get("/openapi.json")).json()
        docs: httpx2.Response = await sender.client.get("/docs")
    assert docs.status_code == 200
    assert list(document["paths"]) == ["/api/webhooks"]
    assert list(document["paths"]["/api/webhooks"]) == ["post"]
    operation = document["paths"]["/api/webhooks"]["post"]
    assert {
        p["name"] for p in operation["parameters"] if p["in"] == "header" and p["required"]
    } == {
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
    }
    envelope = operation["requestBody"]["content"]["application/json"]["schema"]
    assert set(envelope["required"]) == {"id", "type", "createdAt", "workspaceId", "data"}
    assert "$ref" not in str(envelope)
    assert set(operation["responses"]) == {
        *("200", "202", "400", "401", "405", "408", "413", "500", "503")
    }
    refused = operation["responses"]["401"]["content"]["application/json"]["schema"]
    answer = document["components"]["schemas"][refused["$ref"].rpartition("/")[2]]
    assert answer["required"] == ["status", "reason"]
