"""A receiver does not report an incomplete body as a wrong signature."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from support.servers import RawConnection, request_bytes

from hookonce import Receiver
from hookonce.events import CommentReceived
from hookonce.integrations.aws_lambda import mount
from hookonce.testing import make_event, signed_request
from hookonce.verification.secrets import new_secret
from integrations.gunicorn_apps import GUNICORN_APPS, behind_gunicorn
from integrations.sites import ADAPTERS, sending

pytestmark = [pytest.mark.anyio, pytest.mark.sample(12, of="file")]

SECRET = new_secret()
LISTENING = [name for name, adapter in ADAPTERS.items() if adapter.listens]
CHUNKED = {"transfer-encoding": "chunked"}
END = b"0\r\n\r\n"


@asynccontextmanager
async def connected(name: str, tmp_path: Path) -> AsyncIterator[tuple[str, RawConnection]]:
    """Serve a receiver through an adapter; yield its path and a connection."""
    url = f"sqlite:///{tmp_path / 'hooks.db'}"
    receiver = Receiver(secrets=SECRET, store=url)

    @receiver.on(CommentReceived)
    async def note(event: CommentReceived) -> None: ...

    async with (
        sending(ADAPTERS[name], receiver, secret=SECRET, store=url) as served,
        await served.connection() as connection,
    ):
        yield ADAPTERS[name].path, connection


@pytest.mark.parametrize("app", GUNICORN_APPS)
async def test_a_chunked_body_behind_gunicorn_is_handled(app: str, tmp_path: Path) -> None:
    with behind_gunicorn(app, here=tmp_path, secret=SECRET) as (port, _):
        request = signed_request(make_event(CommentReceived), SECRET)
        async with await RawConnection.at(port) as connection:
            await connection.write(request_bytes(request, headers=CHUNKED))
            await connection.write_chunk(request.body[:100])
            await connection.write_chunk(request.body[100:])
            await connection.write_chunk(b"")
            (await connection.answer()).expect(200, "handled")
        async with await RawConnection.at(port) as connection:
            await connection.write(request_bytes(request, headers=CHUNKED))
            await connection.write(b"7\r\nbroken\r\nnot a length\r\n")
            (await connection.answer()).expect(500, "body_incomplete")


@pytest.mark.parametrize("name", LISTENING)
async def test_a_chunked_body_is_handled_or_refused_as_incomplete(
    name: str, tmp_path: Path
) -> None:
    request = signed_request(make_event(CommentReceived), SECRET)
    async with connected(name, tmp_path) as (path, connection):
        # Write it all at once: a server that reads no chunks may answer and close before the end.
        head = request_bytes(request, path=path, headers=CHUNKED)
        await connection.write(head + b"%x\r\n%b\r\n" % (len(request.body), request.body) + END)
        answer = await connection.answer()
    # The standard library's server does not read chunks.
    wanted = (500, "body_incomplete") if name == "wsgi" else (200, "handled")
    assert (answer.status, answer.reason) == wanted


@pytest.mark.parametrize("name", LISTENING)
async def test_an_empty_chunked_body_is_refused_as_incomplete(name: str, tmp_path: Path) -> None:
    request = signed_request(make_event(CommentReceived), SECRET)
    async with connected(name, tmp_path) as (path, connection):
        await connection.write(request_bytes(request, path=path, headers=CHUNKED) + END)
        (await connection.answer()).expect(500, "body_incomplete")


@pytest.mark.parametrize("name", LISTENING)
@pytest.mark.parametrize("upgrade", ["h2c", "TLS/1.0"])
async def test_a_body_that_the_server_drops_is_refused_as_incomplete(
    name: str, upgrade: str, tmp_path: Path
) -> None:
    """uvicorn drops the body of a request that asks to upgrade the protocol."""
    request = signed_request(make_event(CommentReceived), SECRET)
    headers = {"connection": "upgrade", "upgrade": upgrade}
    headers["content-length"] = str(len(request.body))
    async with connected(name, tmp_path) as (path, connection):
        head = request_bytes(request, path=path, headers=headers)
        await connection.write(head + request.body)
        answer = await connection.answer()
    assert (answer.status, answer.reason) in {(200, "handled"), (500, "body_incomplete")}


@pytest.mark.parametrize("name", LISTENING)
async def test_a_connection_that_breaks_off_is_not_a_wrong_signature(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    request = signed_request(make_event(CommentReceived), SECRET)
    headers = {"content-length": str(len(request.body) + 1)}
    async with connected(name, tmp_path) as (path, connection):
        head = request_bytes(request, path=path, headers=headers)
        await connection.write(head + request.body)
        await connection.end()
        answer = await connection.answer_if_any()
    assert answer is None or (answer.status, answer.reason) == (500, "body_incomplete")
    assert "no_matching_signature" not in caplog.text


@pytest.mark.parametrize("left", [0, 10])
def test_a_body_that_a_gateway_cuts_is_refused_as_incomplete(left: int) -> None:
    request = signed_request(make_event(CommentReceived), SECRET)
    event = {
        "httpMethod": "POST",
        "headers": {**request.headers, "content-length": str(len(request.body))},
        "body": request.body[:left].decode(),
    }
    with closing(mount(Receiver(secrets=SECRET, store="memory://"))) as function:
        answer = function(event, None)
    assert (answer["statusCode"], "body_incomplete" in answer["body"]) == (500, True)
