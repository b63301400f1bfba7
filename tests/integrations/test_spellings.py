"""No framework redirects any spelling of a receiver's path."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from django.core.wsgi import get_wsgi_application  # type: ignore[import-untyped]  # Django ships no types
from django.urls import include, path  # type: ignore[import-untyped]
from fastapi import APIRouter, FastAPI
from flask import Flask, redirect
from flask.typing import ResponseReturnValue
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount
from starlette.types import ASGIApp
from support.servers import RawConnection, request_bytes, serving

from hookonce import Receiver
from hookonce.events import CommentReceived
from hookonce.http.guard import StatusGuard
from hookonce.integrations import django, fastapi, flask
from hookonce.testing import Answer, make_event, signed_request
from hookonce.verification.secrets import new_secret
from integrations.django_project import project
from integrations.sites import ADAPTERS, Adapter, Served, sending
from integrations.wsgi_servers import served_by_werkzeug

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = [pytest.mark.anyio, pytest.mark.sample(9, of="file")]

SECRET = new_secret()


def spellings(path: str) -> list[str]:
    """Return other spellings of a path; servers or frameworks treat some of them as the path."""
    name = path.rpartition("/")[2]
    return [
        f"{path}/",
        f"{path}//",
        f"{path}///",
        f"/{path}",
        f"//{path}//",
        path.replace("/", "//"),
        f"{path}%2F",
        f"{path}%2f%2F",
        f"%2F{path}",
        path.replace("/", "%2f"),
        f"{path}%252F",
        f"{path};v=1",
        f"{path}/;v=1",
        f"{path}/.",
        f"{path}/./",
        f"/.{path}",
        f"{path}/../{name}",
        f"{path}/..",
        f"{path}%2e",
        f"{path}/%2e%2e/{name}/",
        path.upper(),
        path.title(),
        f"{path}%20",
        f"{path}%00",
        f"{path}%0A",
        f"{path}%C3%A9",
        f"{path}%FF",
        f"{path}\\",
        f"{path}%5C",
        f"{path}?a=1",
        f"{path}//?a=//",
        f"{path}?",
        f"{path}#part",
        f"{path[:-1]}%{ord(path[-1]):x}",
    ]


def make_receiver() -> Receiver:
    receiver = Receiver(secrets=SECRET, store="memory://")

    @receiver.on(CommentReceived)
    async def note(event: CommentReceived) -> None: ...

    return receiver


async def answer_at(port: int, path: str) -> Answer:
    """Return the answer to a genuine delivery to a path that is sent exactly as written."""
    request = signed_request(make_event(CommentReceived), SECRET)
    headers = {"content-length": str(len(request.body)), "connection": "close"}
    async with await RawConnection.at(port) as connection:
        await connection.write(request_bytes(request, path=path, headers=headers) + request.body)
        return await connection.answer()


async def never_redirect(port: int, paths: "Iterable[str]", *, also: int = 404) -> None:
    """Check that the answer for each path has the status 200, 400, 404 or ``also``."""
    answers = {path: (await answer_at(port, path)).status for path in paths}
    assert {p: s for p, s in answers.items() if s not in {200, 400, 404, also}} == {}
    assert 200 in answers.values()


@pytest.mark.parametrize("name", [name for name, adapter in ADAPTERS.items() if adapter.listens])
async def test_no_adapter_redirects_any_spelling_of_its_path(name: str, tmp_path: Path) -> None:
    adapter = ADAPTERS[name]
    async with served(adapter, tmp_path) as site:
        await never_redirect(site.port, spellings(adapter.path))


@asynccontextmanager
async def served(adapter: Adapter, tmp_path: Path) -> AsyncIterator[Served]:
    url = f"sqlite:///{tmp_path / 'hooks.db'}"
    receiver = Receiver(secrets=SECRET, store=url)
    receiver.on(CommentReceived, name="note")(lambda _: None)
    async with sending(adapter, receiver, secret=SECRET, store=url) as site:
        yield site


def itself() -> ASGIApp:
    return make_receiver()


def below_a_mount() -> ASGIApp:
    return Starlette(routes=[Mount("/api", routes=make_receiver().routes("/webhooks"))])


def at_the_root_of_a_mount() -> ASGIApp:
    return Starlette(routes=[Mount("/api", routes=make_receiver().routes("/"))])


def mounted() -> ASGIApp:
    return Starlette(routes=[Mount("/api", app=make_receiver())])


def mounted_in_fastapi() -> ASGIApp:
    app = FastAPI()
    app.mount("/api", make_receiver())
    return app


def routed_in_fastapi() -> ASGIApp:
    return FastAPI(routes=list(make_receiver().routes("/webhooks")))


def at_a_prefix_alone() -> ASGIApp:
    app = FastAPI()
    hooks = APIRouter(prefix="/webhooks")
    fastapi.mount(hooks, make_receiver(), "")
    app.include_router(hooks)
    return app


@pytest.mark.parametrize(
    ("made", "path"),
    [
        (itself, "/webhooks"),
        (below_a_mount, "/api/webhooks"),
        (at_the_root_of_a_mount, "/api/"),
        (mounted, "/api/"),
        (mounted, "/api/webhooks"),
        (mounted_in_fastapi, "/api/webhooks"),
        (routed_in_fastapi, "/webhooks"),
        (at_a_prefix_alone, "/webhooks"),
    ],
)
async def test_no_mounted_receiver_redirects_any_spelling_of_its_path(
    made: object, path: str
) -> None:
    assert callable(made)
    paths = spellings(path) if path != "/api/" else [path, "/api//", "/api/%2F", "/api/.", "/api/;"]
    async with serving(made(), lifespan="off") as site:
        await never_redirect(site.port, paths)


async def test_a_guard_holds_where_a_mount_redirects_to_its_slash() -> None:
    """Starlette redirects before the receiver gets the request, so only the guard can refuse."""
    app = Starlette(
        routes=[Mount("/api", app=make_receiver())],
        middleware=[Middleware(StatusGuard, paths=["/api"])],
    )
    async with serving(app) as site:
        await never_redirect(site.port, ["/api", *spellings("/api/")], also=500)
        assert (await answer_at(site.port, "/api")).status == 500


@pytest.mark.parametrize("prefix", ["in", "in/"])
async def test_django_does_not_append_a_slash_to_what_is_included(prefix: str) -> None:
    pattern = django.mount(make_receiver(), "")
    with closing(pattern.callback), project([path(prefix, include([pattern]))]):
        async with served_by_werkzeug(get_wsgi_application()) as port:
            await never_redirect(port, ["/in", *spellings("/in")])


@pytest.mark.parametrize("path", ["/webhooks", "/<tenant>/webhooks"])
async def test_a_flask_hook_cannot_redirect_any_spelling(path: str) -> None:
    app = Flask("app_of_a_test")
    app.before_request(_log_in)
    with closing(flask.mount(app, make_receiver(), path)):
        async with served_by_werkzeug(app) as port:
            for spelling in ("", "/", "//", "%2F", "/.", ";v=1"):
                at = path.replace("<tenant>", "bakery") + spelling
                assert (await answer_at(port, at)).status == 500, at
            assert (await answer_at(port, "/elsewhere")).status == 302


def _log_in() -> ResponseReturnValue:
    return redirect("/login")
