"""`hookonce serve` needs little memory for requests that are mostly framing, not body."""

import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import httpx2
import pytest

from hookonce.testing import SignedRequest, event_body, signed_request

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
    while Path("hold").exists():
        await asyncio.sleep(0.005)
'''

MEBI = 1024 * 1024
SENT_BYTES = 4 * MEBI  # on each of four connections
MOST_GROWTH = 24 * MEBI

LAST_CHUNK = b"2\r\n{}\r\n0\r\n"


def head(*lines: str, request: SignedRequest | None = None, path: str = "/webhooks") -> bytes:
    every = [f"POST {path} HTTP/1.1", "host: here", *lines]
    every += [f"{name}: {value}" for name, value in (request.headers if request else {}).items()]
    return "\r\n".join([*every, "", ""]).encode()


CHUNKED = head("transfer-encoding: chunked")


@contextmanager
def serving(here: Path, *options: str) -> Iterator[tuple[Process, str, tuple[str, int]]]:
    """Run the command in a folder; yield its process, its URL and its address."""
    (here / "hooks.py").write_text(APP)
    arguments = ["serve", "hooks:receiver", "--port", "0", "--idle-timeout", "1s", *options]
    with running(*arguments, here=here, secrets=[SECRET]) as process:
        url = process.printed(r"running on (http://127\.0\.0\.1:\d+) ")[1]
        yield process, url, ("127.0.0.1", int(url.rpartition(":")[2]))
        assert process.process.poll() is None, process.errors
        assert process.errors.count("Traceback") == 0, process.errors


def most_memory(process: Process) -> int:
    """Return the most memory that a process has used so far, in bytes."""
    status = Path(f"/proc/{process.process.pid}/status").read_text("ascii")
    match = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def deliver(url: str, event_id: str) -> httpx2.Response:
    request = signed_request(event_body("comment.received", event_id=event_id), SECRET)
    return httpx2.post(
        f"{url}/webhooks",
        content=request.body,
        headers=dict(request.headers),
        timeout=PATIENCE_SECONDS,
        trust_env=False,
    )


def said_to(address: tuple[str, int], *pieces: bytes, ends: bool = False) -> bytes:
    """Send pieces on a connection; return the bytes that the server sends until it hangs up.

    Args:
        address: where it listens.
        pieces: what to send.
        ends: whether to close this direction then, at which uvicorn gives no answer.

    """
    with socket.create_connection(address, PATIENCE_SECONDS) as connection:
        parts: list[bytes] = []
        try:
            for piece in pieces:
                connection.sendall(piece)
            if ends:
                connection.shutdown(socket.SHUT_WR)
        except ConnectionError:
            pass
        try:
            while part := connection.recv(65536):
                parts.append(part)
        except ConnectionError:
            pass
        return b"".join(parts)


def repeated(data: bytes) -> Callable[[], Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        piece = data * (128 * 1024 // len(data) + 1)
        for _ in range(SENT_BYTES // len(piece)):
            yield piece

    return pieces


FLOODS = {
    "trailers": (CHUNKED + LAST_CHUNK, repeated(b"a:b\r\n")),
    "one trailer without an end": (CHUNKED + LAST_CHUNK + b"a: ", repeated(b"b")),
    "trailers of an answered request": (
        head("transfer-encoding: chunked", path="/elsewhere") + LAST_CHUNK,
        repeated(b"a:b\r\n"),
    ),
    "trailers of a GET": (CHUNKED.replace(b"POST", b"GET") + LAST_CHUNK, repeated(b"a:b\r\n")),
    "a chunk extension without an end": (CHUNKED + b"2;", repeated(b"x")),
    "chunk extensions": (CHUNKED, repeated(b"1;" + b"x" * 1000 + b"\r\n{\r\n")),
    "chunks of one byte": (CHUNKED, repeated(b"1\r\n{\r\n")),
    "a length of zeros": (CHUNKED, repeated(b"0")),
    "header fields": (head()[:-2], repeated(b"a:b\r\n")),
    "folded lines": (head()[:-2] + b"a: b\r\n", repeated(b" b\r\n")),
    "a query": (b"POST /webhooks?", repeated(b"x")),
    "empty lines": (b"", repeated(b"\r\n")),
    "pipelined requests": (b"", repeated(b"GET / HTTP/1.1\r\n\r\n")),
    "pipelined bodies": (b"", repeated(head("content-length: 4000") + b"{" * 4000)),
    "pipelined chunks": (b"", repeated(CHUNKED + LAST_CHUNK + b"\r\n")),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_four_hostile_connections_need_little_memory(kind: str, tmp_path: Path) -> None:
    begin, pieces = FLOODS[kind]
    with serving(tmp_path) as (process, url, address), ThreadPoolExecutor(4) as clients:
        assert deliver(url, "evt_before").status_code == 200
        before = most_memory(process)
        floods = [clients.submit(said_to, address, begin, *pieces(), ends=True) for _ in range(4)]
        assert deliver(url, "evt_meanwhile").status_code == 200
        for flood in floods:
            assert_refused(flood.result())
        assert deliver(url, "evt_after").status_code == 200
        growth = most_memory(process) - before
        assert growth < MOST_GROWTH, f"{growth / MEBI:.0f} MiB"


def assert_refused(said: bytes) -> None:
    """Check that each status is a failure, and not the 410 that disables an endpoint."""
    statuses = {int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", said)}
    assert not {status for status in statuses if status < 400 or status == 410}, said[:500]


def delivery(*, trailing: bool, event_id: str = "evt_1") -> tuple[bytes, bytes]:
    """Return a chunked delivery in two parts; the second part begins with the last chunk."""
    request = signed_request(event_body("comment.received", event_id=event_id), SECRET)
    fields = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    chunk = b"%x\r\n%b\r\n" % (len(request.body), request.body)
    if trailing:
        return CHUNKED + chunk, b"0\r\n" + fields.encode() + b"\r\n"
    return head("transfer-encoding: chunked", request=request) + chunk, b"0\r\n\r\n"


def statuses(said: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", said)]


INSERTED = [
    *(b"\r\n", b"\n", b"\0", b":", b";", b" folded\r\n", b"0\r\n\r\n", b"f" * 16 + b"\r\n"),
    *(b"content-length: 5\r\n", b"1\r\nx\r\n" * 300, b"a: b\r\n" * 300),
    b"GET /elsewhere HTTP/1.1\r\n\r\n" * 30,
]


def mutated(data: bytes, random: Random) -> bytes:
    """Return a request with some bytes changed, removed, inserted or repeated."""
    for _ in range(random.choice([1, 1, 2, 5])):
        place, other = sorted(random.choices(range(len(data) + 1), k=2))
        change = random.choice(
            [
                bytes([random.randrange(256)]),
                b"",
                data[place:other] + random.choice(INSERTED),
                data[place:other] * 2,
            ]
        )
        data = data[:place] + change + data[other:]
    return data[: 64 * 1024]


@pytest.mark.parametrize("seed", range(6))
def test_no_mutated_chunks_are_taken_for_a_delivery(seed: int, tmp_path: Path) -> None:
    """Each request is forged, so the server must refuse it, whatever its chunks are."""
    random = Random(seed)
    with serving(tmp_path) as (process, url, address):
        assert deliver(url, "evt_before").status_code == 200
        before = most_memory(process)
        for _ in range(200):
            start, end = delivery(trailing=random.random() < 0.2)
            forged = start.replace(b"evt_1", b"evt_2")
            assert forged.count(b"evt_2") > start.count(b"evt_2")
            data = mutated(forged + end, random)
            with socket.create_connection(address, PATIENCE_SECONDS) as connection:
                connection.settimeout(0.02)
                # The server may have closed the connection, or may wait for more.
                with suppress(OSError):
                    connection.sendall(data)
                    assert_refused(connection.recv(65536))
        assert deliver(url, "evt_after").status_code == 200
        assert most_memory(process) - before < MOST_GROWTH


def test_trailers_are_not_treated_as_headers(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, _, address):
        for pieces in (
            delivery(trailing=True),
            # In one piece, so that the server parses everything before the receiver starts.
            (b"".join(delivery(trailing=True)),),
        ):
            said = said_to(address, *pieces)
            assert statuses(said) == [400], said
            assert b'"missing_id"' in said
        start, end = delivery(trailing=False)
        said = said_to(address, start + end[:3] + b"x-checksum: 1\r\nwebhook-id: other\r\n\r\n")
        assert statuses(said) == [200], said


def test_more_header_fields_than_anybody_sends_are_refused(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, _, address):
        for number, wanted in ((200, 405), (300, 431)):
            fields = [f"x-{field}: 1" for field in range(number)]
            said = said_to(address, head("content-length: 0", *fields).replace(b"POST", b"GET"))
            assert statuses(said) == [wanted]


def test_trailers_without_an_end_are_refused_and_not_logged_as_an_error(tmp_path: Path) -> None:
    start, end = delivery(trailing=False)
    with serving(tmp_path) as (process, url, address):
        said = said_to(address, start, end[:3], b"a: b\r\n" * 100_000)
        assert statuses(said) in ([431], []), "a closed connection may lose what was said"
        assert deliver(url, "evt_1").json()["reason"] == "handled", "nothing of it was handled"
        assert "ERROR" not in process.errors


def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    wanted = [200, 404] * 10
    with serving(tmp_path) as (_, _, address):
        requests = [
            b"".join(delivery(trailing=False, event_id=f"evt_{number}"))
            if status == 200
            else head("content-length: 2", path="/elsewhere") + b"{}"
            for number, status in enumerate(wanted)
        ]
        assert statuses(said_to(address, b"".join(requests))) == wanted


def test_too_many_pipelined_requests_close_the_connection_without_a_wrong_answer(
    tmp_path: Path,
) -> None:
    (tmp_path / "hold").touch()
    with serving(tmp_path) as (_, url, address):
        first = b"".join(delivery(trailing=False))
        assert said_to(address, first + head("content-length: 0", path="/elsewhere") * 100) == b""
        (tmp_path / "hold").unlink()
        assert deliver(url, "evt_1").status_code == 200


def test_a_client_that_does_not_read_answers_is_closed_like_an_idle_client(
    tmp_path: Path,
) -> None:
    metrics = b"GET /metrics HTTP/1.1\r\nhost: here\r\n\r\n"
    with serving(tmp_path, "--metrics") as (_, url, address), socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(address)

        def go_on() -> bool:
            """Send another request without reading; return whether the server has hung up."""
            try:
                connection.sendall(metrics)
            except ConnectionError:
                return True
            return False

        eventually(go_on, what="the connection is closed")
        assert deliver(url, "evt_1").status_code == 200
