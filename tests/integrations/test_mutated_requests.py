"""Each adapter gives a documented answer to a delivery that was changed in any way."""

import asyncio
import base64
import io
import json
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import quote

import pytest
from django.core.asgi import get_asgi_application  # type: ignore[import-untyped]  # Django ships no types
from django.core.wsgi import get_wsgi_application  # type: ignore[import-untyped]
from fastapi import FastAPI
from flask import Flask
from litestar import Litestar
from starlette.applications import Starlette
from starlette.types import ASGIApp, Message

from hookonce import Limits, Reason, Receiver, Refusal
from hookonce.events import CommentReceived
from hookonce.integrations import aws_lambda, django, fastapi, flask, litestar
from hookonce.integrations.aws_lambda import MALFORMED, LambdaHandler
from hookonce.integrations.wsgi import WSGIReceiver
from hookonce.verification.secrets import new_secret
from integrations.django_project import project
from integrations.mutations import MOST_BODY_BYTES, Headers, Mutated, has_valid_signature, mutated
from integrations.test_wsgi import call

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

pytestmark = pytest.mark.anyio

SECRET = (
    new_secret()
)  # the seed chooses the mutations only; secrets, ids and times are new in each run
PATH = "/webhooks"
SEED = 20_26


@dataclass(frozen=True)
class Seen:
    """The input and the answer of an adapter; no answer if the client does not wait for it."""

    headers: Headers
    body: bytes
    answer: "tuple[int, dict[str, str], bytes] | None"


Deliver: TypeAlias = Callable[[Mutated], Awaitable[Seen]]


def make_receiver() -> Receiver:
    limits = Limits(body_bytes=MOST_BODY_BYTES)
    receiver = Receiver(secrets=SECRET, store="memory://", limits=limits)

    @receiver.on(CommentReceived)
    async def note(event: CommentReceived) -> None: ...

    return receiver


# Delivery by ASGI


def by_asgi(app: ASGIApp) -> Deliver:
    async def deliver(request: Mutated) -> Seen:
        headers = tuple((name.lower(), value) for name, value in request.headers)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": request.path,
            "raw_path": quote(request.path).encode(),
            "query_string": b"",
            "root_path": "",
            "headers": list(headers),
            "client": ("127.0.0.1", 50000),
            "server": ("localhost", 80),
            "state": {},
        }
        middle = len(request.body) // 2
        pieces = [
            {"type": "http.request", "body": request.body[:middle], "more_body": True},
            {"type": "http.request", "body": request.body[middle:], "more_body": False},
        ]
        if not request.ends:
            pieces[1] = {"type": "http.disconnect"}
        left = iter(pieces)
        sent: list[Message] = []
        is_answered = asyncio.Event()

        async def receive() -> Message:
            for message in left:
                return message
            await is_answered.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)
            if not message.get("more_body", False) and message["type"] == "http.response.body":
                is_answered.set()

        await app(scope, receive, send)
        if not sent:
            return Seen(headers, request.body, None)
        fields = {n.decode("latin-1").lower(): v.decode("latin-1") for n, v in sent[0]["headers"]}
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return Seen(headers, request.body, (sent[0]["status"], fields, body))

    return deliver


# Delivery by WSGI


def by_wsgi(app: "WSGIApplication") -> Deliver:
    async def deliver(request: Mutated) -> Seen:
        environ = environ_of(request)
        status, headers, body = await asyncio.to_thread(call, app, environ)
        given = tuple(
            (name.removeprefix("HTTP_").replace("_", "-").encode(), value.encode("latin-1"))
            for name, value in environ.items()
            if name.startswith("HTTP_")
        )
        read = request.body[: environ["wsgi.input"].tell()]
        return Seen(given, read, (int(status[:3]), headers, body))

    return deliver


def environ_of(request: Mutated) -> dict[str, Any]:
    """Return the environ of a WSGI server that marks the end of chunked bodies."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": request.path.encode().decode("latin-1"),
        "QUERY_STRING": "",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(request.body) if request.ends else _Broken(request.body),
        "wsgi.input_terminated": True,
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in request.headers:
        key = name.decode("latin-1").upper().replace("-", "_")
        key = key if key in {"CONTENT_LENGTH", "CONTENT_TYPE"} else f"HTTP_{key}"
        text = value.decode("latin-1")
        environ[key] = f"{environ[key]},{text}" if key in environ else text
    return environ


class _Broken(io.BytesIO):
    """An input that ends with an error."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body[: len(body) // 2])

    def read(self, size: int | None = -1, /) -> bytes:
        if data := super().read(size):
            return data
        raise ConnectionResetError("the client is gone")

    read1 = read


# Delivery by Lambda


def by_lambda(function: LambdaHandler, shape: str) -> Deliver:
    async def deliver(request: Mutated) -> Seen:
        headers = {
            name.decode("latin-1"): value.decode("utf-8", "replace")
            for name, value in request.headers
        }
        is_text = shape == "text"
        body = (
            request.body.decode("utf-8", "replace")
            if is_text
            else base64.b64encode(request.body).decode()
        )
        event: dict[str, Any] = {
            "path": request.path,
            "headers": headers,
            "body": body if request.ends else body[: len(body) // 2],
            "isBase64Encoded": not is_text,
        }
        if shape == "http":
            event["requestContext"] = {"http": {"method": request.method}}
        else:
            event["httpMethod"] = request.method
        if shape == "text":
            event["multiValueHeaders"] = {name: [value] for name, value in headers.items()}
        answer = await asyncio.to_thread(function, event, None)
        fields = {name.lower(): value for name, value in answer["headers"].items()}
        given = tuple(
            (name.encode("latin-1", "replace"), value.encode()) for name, value in headers.items()
        )
        received = event["body"].encode() if is_text else request.body
        return Seen(given, received, (answer["statusCode"], fields, answer["body"].encode()))

    return deliver


# The adapters under test


@contextmanager
def _wsgi() -> Iterator[Deliver]:
    app = WSGIReceiver(make_receiver())
    yield by_wsgi(app)
    app.close()


@contextmanager
def _flask() -> Iterator[Deliver]:
    app = Flask("app_of_a_test")
    wsgi = flask.mount(app, make_receiver())
    yield by_wsgi(app)
    wsgi.close()


@contextmanager
def _django(*, is_async: bool) -> Iterator[Deliver]:
    pattern = django.mount(make_receiver())
    with project([pattern]):
        yield by_asgi(get_asgi_application()) if is_async else by_wsgi(get_wsgi_application())
    pattern.callback.close()


@contextmanager
def _lambda(shape: str) -> Iterator[Deliver]:
    function = aws_lambda.mount(make_receiver())
    yield by_lambda(function, shape)
    function.close()


def _starlette(receiver: Receiver) -> ASGIApp:
    return Starlette(routes=receiver.routes(PATH))


def _fastapi(receiver: Receiver) -> ASGIApp:
    app = FastAPI()
    fastapi.mount(app, receiver, PATH)
    return app


def _litestar(receiver: Receiver) -> ASGIApp:
    app = Litestar(logging_config=None)
    litestar.mount(app, receiver, PATH)
    return cast("ASGIApp", app)


@asynccontextmanager
async def _within(make: Callable[[Receiver], ASGIApp]) -> AsyncIterator[Deliver]:
    async with make_receiver() as receiver:
        yield by_asgi(make(receiver))


ASGI: dict[str, Callable[[Receiver], ASGIApp]] = {
    "itself": lambda receiver: receiver,
    "starlette": _starlette,
    "fastapi": _fastapi,
    "litestar": _litestar,
}
OTHERS: dict[str, Callable[[], Any]] = {
    "wsgi": _wsgi,
    "flask": _flask,
    "django wsgi": lambda: _django(is_async=False),
    "django asgi": lambda: _django(is_async=True),
    "lambda rest": lambda: _lambda("rest"),
    "lambda http": lambda: _lambda("http"),
    "lambda text": lambda: _lambda("text"),
}

ACCEPTED = {
    (200, Reason.HANDLED),
    (200, Reason.DUPLICATE),
    (200, Reason.NO_HANDLER),
    (200, Reason.UNKNOWN_TYPE),
}
REFUSED = {
    (401, Refusal.NO_MATCHING_SIGNATURE),
    (401, Refusal.TIMESTAMP_TOO_OLD),
    (401, Refusal.TIMESTAMP_TOO_NEW),
    *((400, reason) for reason in Refusal if reason.startswith(("missing", "malf", "confl"))),
    (400, MALFORMED.reason),
    (404, Reason.NOT_FOUND),
    (405, Reason.METHOD_NOT_ALLOWED),
    (413, Reason.BODY_TOO_LARGE),
    (500, Reason.BODY_INCOMPLETE),
    (500, Reason.UNREADABLE),  # the memory store keeps no bodies, so it cannot quarantine
}
# Answers of a framework to a path or method without a route, or to a header that it cannot read.
FOREIGN = {400, 404, 405, 413}


@pytest.fixture(autouse=True)
def no_exception_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.ERROR)
    yield
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "count", [200, pytest.param(3000, marks=pytest.mark.full("1 to 9 s", draw=6))]
)
@pytest.mark.parametrize("name", [*ASGI, *OTHERS])
async def test_a_mutated_request_has_a_documented_answer(name: str, count: int) -> None:
    answers: dict[object, int] = {}
    async with AsyncExitStack() as stack:
        if name in ASGI:
            deliver = await stack.enter_async_context(_within(ASGI[name]))
        else:
            deliver = stack.enter_context(OTHERS[name]())
        for number in range(count):
            request = mutated(random.Random(f"{SEED} {name} {number}"), SECRET, PATH)
            seen = await deliver(request)
            said = outcome(request, seen)
            answers[said] = answers.get(said, 0) + 1
    assert answers[200, Reason.HANDLED] > count / 20, "the mutations leave nothing genuine"
    assert len(answers) > 12, "the mutations are not many kinds"


def outcome(
    request: Mutated,
    seen: Seen,
    *,
    secret: str = SECRET,
    families: Sequence[str] = ("webhook",),
    accepted: Collection[object] = ACCEPTED,
) -> object:
    """Return the status and the reason of an answer, and check that it is allowed."""
    if seen.answer is None:
        assert not request.ends, request
        return None
    status, headers, body = seen.answer
    shown = (request, status, body)
    assert "location" not in headers, shown
    assert b"Traceback" not in body, shown
    try:
        said = (status, json.loads(body)["reason"])
    except (ValueError, KeyError, TypeError):
        assert status in FOREIGN, shown
        return status
    assert said in {*accepted, *REFUSED}, shown
    if said in accepted:
        assert has_valid_signature(seen.headers, seen.body, secret, families), shown
    if not request.changes and seen.body == request.body:
        assert said in {*accepted, (500, Reason.UNREADABLE)}, shown
    return said
