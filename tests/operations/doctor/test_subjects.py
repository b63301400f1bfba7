"""Receivers are found in applications of every framework, with their paths."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from litestar import Litestar, Router
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import Mount
from starlette.types import ASGIApp

from hookonce import Receiver
from hookonce.http.guard import StatusGuard
from hookonce.integrations import fastapi as for_fastapi
from hookonce.integrations import litestar as for_litestar
from hookonce.operations.doctor import subjects_in
from hookonce.verification.secrets import new_secret


def new_receiver() -> Receiver:
    return Receiver(secrets=new_secret(), store="memory://")


def fastapi_with_router(receiver: Receiver) -> ASGIApp:
    router = APIRouter()
    for_fastapi.mount(router, receiver, "/hooks")
    app = FastAPI()
    app.include_router(router, prefix="/api")
    return app


def fastapi(receiver: Receiver) -> ASGIApp:
    app = FastAPI()
    for_fastapi.mount(app, receiver, "/hooks")
    return app


def litestar(receiver: Receiver) -> ASGIApp:
    router = Router("/api", route_handlers=[])
    for_litestar.mount(router, receiver, "/hooks")
    return Litestar([router])  # type: ignore[return-value]  # the framework has its own ASGI types


APPS: dict[str, tuple[Callable[[Receiver], ASGIApp], str]] = {
    "routes": (lambda r: Starlette(routes=r.routes("/hooks")), "/hooks"),
    "routes with a slash": (lambda r: Starlette(routes=r.routes("/hooks/")), "/hooks"),
    "routes at the root": (lambda r: Starlette(routes=r.routes("/")), "/"),
    "routes with middleware": (
        lambda r: Starlette(routes=r.routes("/hooks", middleware=[Middleware(BaseHTTPMiddleware)])),
        "/hooks",
    ),
    "mounted": (lambda r: Starlette(routes=[Mount("/hooks", r)]), "/hooks"),
    "mounted routes": (
        lambda r: Starlette(routes=[Mount("/api", routes=r.routes("/hooks"))]),
        "/api/hooks",
    ),
    "mounted application": (
        lambda r: Starlette(routes=[Mount("/api", Starlette(routes=r.routes("/hooks")))]),
        "/api/hooks",
    ),
    "wrapped": (lambda r: StatusGuard(Starlette(routes=r.routes("/hooks"))), "/hooks"),
    "FastAPI routes": (lambda r: FastAPI(routes=list(r.routes("/hooks"))), "/hooks"),
    "FastAPI": (fastapi, "/hooks"),
    "FastAPI router": (fastapi_with_router, "/api/hooks"),
    "Litestar": (litestar, "/api/hooks"),
    "alone": (lambda r: r, "/webhooks"),
}


@pytest.mark.parametrize("kind", APPS)
def test_a_receiver_is_found_with_its_path(kind: str) -> None:
    receiver = new_receiver()
    make, path = APPS[kind]
    [subject] = subjects_in(make(receiver))
    assert subject.receiver is receiver
    assert subject.path == path
    assert subject.is_alone is (kind == "alone")


def test_each_of_several_receivers_is_found_once() -> None:
    first, second = new_receiver(), new_receiver()
    app = Starlette(routes=[*first.routes("/one"), *second.routes("/two"), *first.routes("/three")])
    assert [(s.receiver, s.path) for s in subjects_in(app)] == [(first, "/one"), (second, "/two")]


def test_an_application_without_a_receiver_has_none() -> None:
    assert subjects_in(FastAPI()) == ()


def test_a_function_may_name_a_variable_that_has_no_value_yet() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await later(scope, receive, send)

    assert subjects_in(app) == ()
    later = app
