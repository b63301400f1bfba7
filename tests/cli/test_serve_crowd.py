"""`hookonce serve` still answers deliveries while many idle connections are open."""

import socket
import time
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest

from hookonce.testing import event_body, signed_request

from .running import PATIENCE_SECONDS, SECRET, Process, eventually, running

pytestmark = pytest.mark.sample(1, of="file")

APP = '''
"""A receiver that waits where a file tells it to."""
import asyncio
from pathlib import Path

from hookonce import EnvironmentSecrets, Receiver
from hookonce.events import CommentReceived

receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")


@receiver.on(CommentReceived)
async def handle(event: CommentReceived) -> None:
    Path(f"began {event.id}").touch()
    while Path("hold").exists():
        await asyncio.sleep(0.005)
'''
MOST = 20


@contextmanager
def serving(here: Path, *options: str) -> Iterator[tuple[Process, str, tuple[str, int]]]:
    """Run the command in a folder; yield its process, its URL and its address."""
    (here / "hooks.py").write_text(APP)
    arguments = ["serve", "hooks:receiver", "--port", "0", "--max-connections", str(MOST), *options]
    with running(*arguments, here=here, secrets=[SECRET]) as process:
        url = process.printed(r"running on (http://127\.0\.0\.1:\d+) ")[1]
        yield process, url, ("127.0.0.1", int(url.rpartition(":")[2]))
        assert process.process.poll() is None, process.errors


@contextmanager
def connections(address: tuple[str, int], number: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(address, PATIENCE_SECONDS))
            for _ in range(number)
        ]


def deliver(url: str, event_id: str, *, body: bytes = b"") -> httpx2.Response:
    request = signed_request(body or event_body("comment.received", event_id=event_id), SECRET)
    return httpx2.post(
        f"{url}/webhooks",
        content=request.body,
        headers=dict(request.headers),
        timeout=PATIENCE_SECONDS,
        trust_env=False,
    )


def is_closed(connection: socket.socket) -> bool:
    """Return whether the server has closed a connection without an answer."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def said(connection: socket.socket) -> bytes:
    """Return the bytes that the server sends until it closes the connection."""
    connection.settimeout(PATIENCE_SECONDS)
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def test_a_delivery_is_answered_among_twice_as_many_idle_connections(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--idle-timeout", "10m") as (process, url, address),
        connections(address, 2 * MOST) as idle,
    ):
        assert deliver(url, "evt_1").status_code == 200
        eventually(
            lambda: sum(map(is_closed, idle)) > MOST, what="the first of them have given way"
        )
        assert sum(map(is_closed, idle)) <= MOST + 2, "no more than was needed"
        assert is_closed(idle[0])
        assert not is_closed(idle[-1])
        process.printed(r"WARNING +hookonce: all 20 connections are in use")
        assert process.errors.count("connections are in use") == 1


@pytest.mark.parametrize("sent", [b"", b"POST /webhooks HTTP/1.1\r\nhost: here\r\nx-slow: "])
def test_a_connection_without_a_whole_request_head_is_closed_after_the_idle_limit(
    sent: bytes, tmp_path: Path
) -> None:
    with serving(tmp_path, "--idle-timeout", "500ms") as (_, _, address):
        began = time.monotonic()
        with connections(address, 1) as [connection]:
            connection.sendall(sent)
            while not is_closed(connection):
                connection.setblocking(True)
                try:
                    connection.sendall(b"x" if sent else b"")
                except ConnectionError:
                    break
                assert time.monotonic() - began < PATIENCE_SECONDS
                time.sleep(0.02)  # send slowly, byte by byte
            assert time.monotonic() - began >= 0.5


def test_the_idle_limit_of_a_kept_connection_restarts_after_each_answer(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--idle-timeout", "500ms") as (_, _, address),
        connections(address, 1) as [connection],
    ):
        for _ in range(3):
            connection.sendall(b"GET /livez HTTP/1.1\r\nhost: here\r\n\r\n")
            answer = b""
            while not answer.endswith(b'{"alive":true}'):
                answer += connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200 ")
        assert said(connection) == b""


def test_a_head_without_an_end_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, url, address):
        with connections(address, 1) as [connection]:
            connection.sendall(b"GET /livez HTTP/1.1\r\nx: ")
            with pytest.raises(ConnectionError):
                connection.sendall(b"y" * 64 * 1024 * 1024)
        assert deliver(url, "evt_1").status_code == 200
        assert "Traceback" not in process.errors


def test_a_new_connection_is_refused_if_all_others_are_busy(tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    with serving(tmp_path) as (_, url, _), ThreadPoolExecutor(MOST) as senders:
        waiting = [senders.submit(deliver, url, f"evt_{number}") for number in range(MOST)]
        for number in range(MOST):
            eventually((tmp_path / f"began evt_{number}").exists, what=f"evt_{number} is handled")
        refused = deliver(url, "evt_more")
        assert (refused.status_code, refused.json()["reason"]) == (503, "overloaded")
        assert refused.headers["connection"] == "close"
        assert refused.headers["retry-after"]
        (tmp_path / "hold").unlink()
        assert {answer.result().status_code for answer in waiting} == {200}
        assert deliver(url, "evt_more").status_code == 200


def test_connections_with_endless_bodies_are_closed_for_a_new_delivery(tmp_path: Path) -> None:
    head = b"POST /webhooks HTTP/1.1\r\nhost: here\r\ncontent-length: 1000000\r\n\r\n"
    with serving(tmp_path) as (_, url, address), connections(address, MOST) as half:
        for connection in half:
            connection.sendall(head + b"x" * 100)
        assert deliver(url, "evt_1").status_code == 200
        answer = said(half[0])
        assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"connection: close\r\n" in answer
        assert b'"overloaded"' in answer


def test_a_websocket_request_is_answered_as_a_plain_request(tmp_path: Path) -> None:
    key = b64encode(b"0123456789abcdef").decode()
    upgrade = f"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: {key}\r\n"
    upgrade += "sec-websocket-version: 13\r\n\r\n"
    with serving(tmp_path) as (process, url, address):
        with connections(address, 1) as [connection]:
            connection.sendall(f"GET /webhooks HTTP/1.1\r\nhost: here\r\n{upgrade}".encode())
            assert connection.recv(65536).startswith(b"HTTP/1.1 405 ")
        assert deliver(url, "evt_1").status_code == 200
        assert "WebSocket" not in process.errors
