"""WSGI behind nginx with the lines of the guide: no unfinished body reaches a thread."""

import asyncio
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli.running import eventually
from documents.reading import GUIDE, blocks
from support.needs import needed
from support.redis_servers import free_port
from support.servers import RawConnection, request_bytes, whole
from support.waiting import PATIENCE_SECONDS

from hookonce.events import CommentReceived
from hookonce.testing import Answer, make_event, signed_request
from hookonce.verification.secrets import new_secret
from integrations.gunicorn_apps import behind_gunicorn

pytestmark = [pytest.mark.anyio, pytest.mark.costs("3 s")]

SECRET = new_secret()

# What nginx wants beside a server, in a folder of this test.
AROUND = """
daemon off;
pid nginx.pid;
error_log stderr;
{user}
events {{}}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
{server}
}}
"""


def server_of_the_guide(*, listen: int, pass_to: int) -> str:
    """Return the server block of the guide, on ports of this test and without TLS."""
    found = [b.text for b in blocks(GUIDE / "deployment.md") if b.language == "nginx"]
    server = next(text for text in found if "proxy_pass" in text)
    for line, instead in (
        (r"listen 443 ssl;", f"listen 127.0.0.1:{listen};"),
        (r"ssl_certificate\S* .*;", ""),
        (r"127\.0\.0\.1:8000", f"127.0.0.1:{pass_to}"),
        (r"client_body_timeout 5s;", "client_body_timeout 1s;"),
    ):
        server, count = re.subn(line, instead, server)
        assert count, line
    return server


@contextmanager
def behind_nginx(port: int, *, here: Path) -> Iterator[int]:
    """Serve what listens at a port through nginx; give the port of that."""
    program, own = needed("nginx", package="nginx"), free_port()
    here.mkdir()
    user = "user root;" if os.geteuid() == 0 else ""
    server = server_of_the_guide(listen=own, pass_to=port)
    (here / "nginx.conf").write_text(AROUND.format(user=user, server=server))
    with (here / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "-p", str(here), "-e", "stderr", "-c", "nginx.conf"], stdout=log, stderr=log
        )
    try:
        eventually((here / "nginx.pid").exists, what="nginx has started")
        yield own
        assert process.poll() is None, (here / "log").read_text()
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


async def deliver(port: int, *, body: bytes | None = None) -> Answer:
    request = signed_request(body or make_event(CommentReceived), SECRET)
    async with await RawConnection.at(port) as connection:
        await connection.write(whole(request))
        return await connection.answer()


async def test_no_unfinished_body_comes_through_and_deliveries_do(tmp_path: Path) -> None:
    with (
        behind_gunicorn("wsgi", here=tmp_path, secret=SECRET) as (behind, gunicorn),
        behind_nginx(behind, here=tmp_path / "nginx") as port,
    ):
        (await deliver(port)).expect(200, "handled")
        head = request_bytes(signed_request(b"{}", SECRET), headers={"content-length": "1000"})
        unfinished = [await RawConnection.at(port) for _ in range(8)]
        for connection in unfinished:
            await connection.write(head + b"{")
        (await deliver(port)).expect(200, "handled")
        answers = await asyncio.gather(*(one.answer_if_any() for one in unfinished))
        assert {answer.status for answer in answers if answer is not None} <= {408}
        for connection in unfinished:
            await connection.close()
        assert "had not arrived in time" not in gunicorn.errors, "one came through"


async def test_a_body_in_chunks_and_one_that_is_too_large(tmp_path: Path) -> None:
    with (
        behind_gunicorn("flask", here=tmp_path, secret=SECRET) as (behind, gunicorn),
        behind_nginx(behind, here=tmp_path / "nginx") as port,
    ):
        request = signed_request(make_event(CommentReceived), SECRET)
        async with await RawConnection.at(port) as connection:
            chunked = {"transfer-encoding": "chunked"}
            await connection.write(request_bytes(request, headers=chunked))
            await connection.write_chunk(request.body)
            await connection.write_chunk(b"")
            (await connection.answer()).expect(200, "handled")
        async with await RawConnection.at(port) as connection:
            await connection.write(request_bytes(request, headers={"content-length": "3000000"}))
            assert (await connection.answer()).status == 413
        assert "refused a body" not in gunicorn.errors, "it came through"
