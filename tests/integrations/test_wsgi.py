"""Tests for WSGI beyond the common suite: inputs, mounts, and a guard around an application."""

import io
import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.wrappers import Response

from hookonce import Limits, Receiver
from hookonce.events import CommentReceived
from hookonce.integrations.wsgi import WSGIReceiver, WSGIStatusGuard, mount
from hookonce.testing import SignedRequest, make_event, signed_request
from hookonce.verification.secrets import new_secret

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

SECRET = new_secret()


@pytest.fixture
def app() -> Iterator[WSGIReceiver]:
    limits = Limits(body_bytes=4096, body_seconds=0.1)
    receiver = Receiver(secrets=SECRET, store="memory://", limits=limits)

    @receiver.on(CommentReceived)
    async def note(event: CommentReceived) -> None: ...

    app = WSGIReceiver(receiver)
    yield app
    app.close()


def signed() -> SignedRequest:
    return signed_request(make_event(CommentReceived), SECRET)


def environ_of(
    request: SignedRequest, *, path: str = "/webhooks", **changed: Any
) -> dict[str, Any]:
    """Return the environ of a delivery (PEP 3333); the value None leaves a key out."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": path,
        "CONTENT_LENGTH": str(len(request.body)),
        "CONTENT_TYPE": "application/json",
        "QUERY_STRING": "",
        "wsgi.input": io.BytesIO(request.body),
    }
    for name, value in request.headers.items():
        if name != "content-type":
            environ["HTTP_" + name.upper().replace("-", "_")] = value.encode().decode("latin-1")
    setup_testing_defaults(environ)
    environ["SCRIPT_NAME"] = ""
    environ |= changed
    return {name: value for name, value in environ.items() if value is not None}


def call(app: "WSGIApplication", environ: dict[str, Any]) -> tuple[str, dict[str, str], bytes]:
    """Return the status line, the headers and the body of a response."""
    started: list[tuple[str, dict[str, str]]] = []

    def start_response(
        status: str,
        headers: list[tuple[str, str]],
        exc_info: object = None,  # noqa: ARG001 - WSGI has this parameter
    ) -> Callable[[bytes], object]:
        started.append((status, {name.lower(): value for name, value in headers}))
        return lambda _: None

    parts = app(environ, start_response)
    body = b"".join(parts)
    close = getattr(parts, "close", None)
    if close is not None:
        close()
    [(status, headers)] = started
    return status, headers, body


def test_the_wsgi_receiver_conforms_to_pep_3333(app: WSGIReceiver) -> None:
    status, headers, body = call(validator(app), environ_of(signed()))
    assert status == "200 OK"
    assert headers == {"content-type": "application/json", "content-length": str(len(body))}
    status, _, body = call(validator(app), environ_of(signed(), REQUEST_METHOD="HEAD"))
    assert (status, body) == ("405 Method Not Allowed", b"")
    assert call(validator(app), environ_of(signed(), path="/"))[0] == "200 OK"
    assert call(validator(app), environ_of(signed(), path="/elsewhere"))[0] == "404 Not Found"


def test_a_non_ascii_id_is_verified_in_its_original_bytes(app: WSGIReceiver) -> None:
    request = signed_request(make_event(CommentReceived, event_id="evt_zażółć🍞"), SECRET)
    assert call(app, environ_of(request))[0] == "200 OK"


def test_an_input_that_is_already_read_is_named_in_the_log(
    app: WSGIReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    environ = environ_of(signed())
    environ["wsgi.input"].read()
    assert call(app, environ)[0] == "500 Internal Server Error"
    assert "the body of a delivery is consumed" in caplog.text


def test_an_input_that_breaks_off_is_not_handled(
    app: WSGIReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    request = signed()
    environ = environ_of(request, CONTENT_LENGTH=str(len(request.body) + 5))
    assert call(app, environ)[0] == "500 Internal Server Error"
    assert f"only {len(request.body)} of {len(request.body) + 5} bytes" in caplog.text


def test_only_the_announced_length_is_read(app: WSGIReceiver) -> None:
    request = signed()
    both = io.BytesIO(request.body + b"POST /another HTTP/1.1")
    assert call(app, environ_of(request) | {"wsgi.input": both})[0] == "200 OK"
    assert both.read() == b"POST /another HTTP/1.1"


@pytest.mark.parametrize("length", ["4097", "9" * 30])
def test_a_body_over_the_limit_is_not_read(app: WSGIReceiver, length: str) -> None:
    environ = environ_of(signed(), CONTENT_LENGTH=length)
    assert call(app, environ)[0].startswith("413 ")
    assert environ["wsgi.input"].tell() == 0


@pytest.mark.parametrize("length", ["", "-1", "+5", "a", "٤"])
def test_an_invalid_content_length_means_an_empty_body(app: WSGIReceiver, length: str) -> None:
    request = SignedRequest(b"", {})
    assert call(app, environ_of(request, CONTENT_LENGTH=length))[0].startswith("400 ")


def test_chunks_on_a_server_that_cannot_delimit_them_are_refused_with_advice(
    app: WSGIReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    environ = environ_of(signed(), CONTENT_LENGTH=None, HTTP_TRANSFER_ENCODING="chunked")
    assert call(app, environ)[0] == "500 Internal Server Error"
    assert "wsgi.input_terminated" in caplog.text
    environ["wsgi.input_terminated"] = True
    assert call(app, environ)[0] == "200 OK"


def test_any_error_of_the_input_is_answered(
    app: WSGIReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(io.BytesIO):
        def __init__(self, error: Exception) -> None:
            super().__init__()
            self.error = error

        def read1(self, size: int | None = -1, /) -> bytes:  # noqa: ARG002 - an input has this parameter
            raise self.error

    for error, wanted in ((OSError("reset"), "500"), (TimeoutError("socket"), "408")):
        environ = environ_of(signed()) | {"wsgi.input": Broken(error)}
        assert call(app, environ)[0].startswith(wanted)
    assert "reset" in caplog.text


def test_the_wsgi_receiver_can_be_mounted_below_a_path(app: WSGIReceiver) -> None:
    def elsewhere(environ: Any, start_response: Any) -> Any:
        return Response(status=404)(environ, start_response)

    mounted = DispatcherMiddleware(elsewhere, {"/api/hooks": app})
    for path in ("/api/hooks", "/api/hooks/"):
        assert call(mounted, environ_of(signed(), path=path))[0] == "200 OK"
    assert call(mounted, environ_of(signed(), path="/api/hooks/x"))[0] == "404 Not Found"


def test_the_wsgi_receiver_can_be_mounted_on_another_application() -> None:
    site = Response(b"the site")
    receiver = Receiver(secrets=SECRET, store="memory://")
    with closing(mount(site, receiver, "/hooks/")) as app:
        for path in ("/hooks", "/hooks/"):
            assert b"no_handler" in call(validator(app), environ_of(signed(), path=path))[2]
        for path in ("", "/", "/hooks/x", "/webhooks"):
            assert call(app, environ_of(signed(), path=path))[2] == b"the site"


def test_a_path_without_a_slash_is_refused() -> None:
    receiver = Receiver(secrets=SECRET, store="memory://")
    with pytest.raises(ValueError, match="starts with a slash, unlike 'hooks'"):
        mount(Response(), receiver, "hooks")


def test_the_application_below_cannot_redirect_a_delivery() -> None:
    login = Response(b"go away", 302, {"location": "/login"})
    receiver = Receiver(secrets=SECRET, store="memory://")
    with closing(mount(login, receiver, "/hooks")) as app:
        for path, status in (("/hooks", "200"), ("//hooks", "500"), ("/hooks//", "500")):
            assert call(app, environ_of(signed(), path=path))[0].startswith(status)
        assert call(app, environ_of(signed(), path="/page"))[0].startswith("302")


@pytest.mark.parametrize("status", [301, 302, 307, 308, 410])
def test_a_guard_replaces_redirects_and_410(status: int, caplog: pytest.LogCaptureFixture) -> None:
    answers = Response(b"go away", status, {"location": "/login"})
    guarded = WSGIStatusGuard(answers, paths=["/webhooks"])
    for path in ("/webhooks", "/webhooks/"):
        answer, headers, body = call(validator(guarded), environ_of(signed(), path=path))
        assert answer == "500 Internal Server Error"
        assert "location" not in headers
        assert body == b'{"status": "retry", "reason": "internal_error"}'
    assert call(guarded, environ_of(signed(), path="/page"))[0].startswith(str(status))
    assert any(r.levelno == logging.ERROR and str(status) in r.getMessage() for r in caplog.records)


def test_a_guard_passes_other_answers_on(app: WSGIReceiver) -> None:
    status, _, body = call(validator(WSGIStatusGuard(app)), environ_of(signed()))
    assert (status, b"handled" in body) == ("200 OK", True)


def test_a_guard_works_for_an_application_that_answers_late() -> None:
    def generator(environ: Any, start_response: Any) -> Iterator[bytes]:  # noqa: ARG001 - WSGI has this parameter
        start_response("302 Found", [("Location", "/login")])
        yield b"go away"

    answer, headers, body = call(WSGIStatusGuard(generator), environ_of(signed()))
    assert answer == "500 Internal Server Error"
    assert "location" not in headers
    assert body == b'{"status": "retry", "reason": "internal_error"}'


def test_the_receivers_file_remembers_events_after_a_restart(tmp_path: Path) -> None:
    for wanted in (b"handled", b"duplicate"):
        receiver = Receiver(secrets=SECRET, store=f"sqlite:///{tmp_path / 'hooks.db'}")

        @receiver.on(CommentReceived, name="note")
        def note(event: CommentReceived) -> None: ...

        app = WSGIReceiver(receiver, path="/in/")
        request = signed_request(make_event(CommentReceived, event_id="evt_1"), SECRET)
        assert wanted in call(app, environ_of(request, path="/in"))[2]
        app.close()
