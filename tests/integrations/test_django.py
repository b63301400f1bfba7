"""Tests for Django beyond the common suite: settings and middleware, under WSGI and ASGI."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx2
import pytest
from django.core.asgi import get_asgi_application  # type: ignore[import-untyped]  # Django ships no types
from django.core.wsgi import get_wsgi_application  # type: ignore[import-untyped]
from documents.reading import GUIDE, blocks
from support.servers import HttpSender, RawConnection, post, request_bytes, serving
from support.waiting import PATIENCE_SECONDS

from hookonce import Limits, Receiver
from hookonce.events import CommentReceived
from hookonce.integrations.django import mount
from hookonce.testing import make_event, signed_request
from hookonce.verification.secrets import new_secret
from integrations.django_project import project
from integrations.wsgi_servers import served_by_werkzeug

pytestmark = pytest.mark.anyio

SECRET = new_secret()


@asynccontextmanager
async def by_asgi() -> AsyncIterator[int]:
    async with serving(get_asgi_application(), lifespan="off") as site:
        yield site.port


@asynccontextmanager
async def by_wsgi() -> AsyncIterator[int]:
    async with served_by_werkzeug(get_wsgi_application()) as port:
        yield port


@pytest.fixture(params=[by_asgi, by_wsgi])
def serve(request: pytest.FixtureRequest) -> Any:
    return request.param


Serve = Callable[[], AbstractAsyncContextManager[int]]


@asynccontextmanager
async def delivering(
    serve: Serve, path: str = "webhooks", **changed: Any
) -> AsyncIterator[HttpSender]:
    """Serve a project with these settings; yield a sender."""
    receiver = Receiver(secrets=SECRET, store="memory://")

    @receiver.on(CommentReceived)
    async def note(event: CommentReceived) -> None: ...

    pattern = mount(receiver, path)
    with project([pattern], **changed):
        async with (
            serve() as port,
            httpx2.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS, verify=False
            ) as client,
        ):
            yield HttpSender(client, SECRET)
    pattern.callback.close()


def middleware(*names: str) -> list[str]:
    return [f"integrations.django_middleware.{name}" for name in names]


async def test_a_body_that_middleware_has_read_still_verifies(
    serve: Serve,
) -> None:
    async with delivering(serve, MIDDLEWARE=middleware("parsing", "reading")) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")


async def test_a_body_that_middleware_has_consumed_is_named_in_the_log(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async with delivering(serve, MIDDLEWARE=middleware("consuming")) as sender:
        (await sender.send(make_event(CommentReceived))).expect(500, "body_incomplete")
    assert "the body of a delivery is consumed" in caplog.text
    assert "request.body" in caplog.text


async def test_a_body_over_djangos_own_limit_is_answered_413_and_the_setting_is_named(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async with delivering(serve, DATA_UPLOAD_MAX_MEMORY_SIZE=2000) as sender:
        (await sender.send(b"x" * 2001)).expect(413, "body_too_large")
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
    assert "DATA_UPLOAD_MAX_MEMORY_SIZE" in caplog.text


async def test_login_middleware_does_not_redirect_deliveries(serve: Serve) -> None:
    logins = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.auth.middleware.LoginRequiredMiddleware",
    ]
    apps = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"]
    async with delivering(serve, MIDDLEWARE=logins, INSTALLED_APPS=apps) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")


async def test_only_the_path_itself_is_answered(serve: Serve) -> None:
    async with delivering(serve, "in.box/") as sender:
        for sender.path, wanted in (("/in.box", "handled"), ("/in.box/", "handled")):
            (await sender.send(make_event(CommentReceived))).expect(200, wanted)
        for path in ("/inxbox", "/in.box/x", "/in.box//", "/in.box%0A"):
            assert (await sender.client.post(path)).status_code == 404


@pytest.mark.parametrize("path", ["in/box", "/in/box", "in/box/"])
async def test_a_path_may_begin_and_end_with_a_slash(serve: Serve, path: str) -> None:
    async with delivering(serve, path) as sender:
        sender.path = "/in/box"
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")


async def test_a_receiver_beside_django_as_in_the_guide_applies_its_own_limits() -> None:
    limits = Limits(body_bytes=4096, body_seconds=0.2)
    receiver = Receiver(secrets=SECRET, store="memory://", limits=limits)

    @receiver.on(CommentReceived)
    async def note(event: CommentReceived) -> None: ...

    [shown] = [b.text for b in blocks(GUIDE / "deployment.md") if b.file == "asgi.py"]
    names: dict[str, Any] = {"receiver": receiver, "project": get_asgi_application()}
    exec(shown[shown.index("async def application") :], names)
    request = signed_request(make_event(CommentReceived), SECRET)
    chunked = request_bytes(request, headers={"transfer-encoding": "chunked"})
    with project([]):
        async with serving(names["application"]) as site:
            assert receiver.is_open, "by the server's lifespan"
            (await post(site, request)).expect(200, "handled")
            async with await RawConnection.to(site) as connection:
                await connection.write(chunked)
                (await connection.answer()).expect(408, "body_timeout")
            async with await RawConnection.to(site) as connection:
                await connection.write(chunked)
                await connection.write_chunk(b"x" * 5000)
                (await connection.answer()).expect(413, "body_too_large")
            elsewhere = await post(site, request, path="/elsewhere")
            assert (elsewhere.status, elsewhere.reason) == (404, ""), "Django's own page"
