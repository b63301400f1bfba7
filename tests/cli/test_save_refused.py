"""`hookonce serve --save-refused` saves refused requests unchanged; `verify` explains them."""

import fcntl
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hookonce import sign
from hookonce.cli.refused import MOST_BYTES, MOST_FILES
from hookonce.cli.saved import Refused, SavedRequest
from hookonce.samples.events import event_body

from .running import OLD_SECRET, PATIENCE_SECONDS, SECRET, eventually, invoke, run, running
from .test_serve import APP, Answer, Server, ask_without_curl

pytestmark = pytest.mark.sample(1, of="file")

BODY = event_body("comment.received", event_id="evt_1")


@contextmanager
def serving(here: Path, *options: str, name: str = "hooks:receiver") -> Iterator[Server]:
    (here / "hooks.py").write_text(APP)
    arguments = [name, "--port", "0", "--save-refused", "refused", *options]
    with running("serve", *arguments, here=here, secrets=[SECRET]) as process:
        yield Server(here, process)


def post(server: Server, headers: Mapping[str, str], body: bytes) -> Answer:
    return ask_without_curl("POST", f"{server.url}/webhooks", headers, body)


def forge(server: Server, event_id: str = "evt_1", body: bytes = BODY) -> Answer:
    """Post a delivery that is signed with another secret."""
    return post(server, sign(OLD_SECRET, event_id, body), body)


def saved(here: Path) -> list[Path]:
    """Return the files in the folder, oldest first."""
    return sorted(path for path in (here / "refused").iterdir() if path.suffix == ".http")


def wait_for(here: Path, count: int) -> list[Path]:
    eventually(lambda: len(saved(here)) >= count, what=f"{count} saved requests")
    return saved(here)


def verify(path: Path, *secrets: str) -> str:
    return invoke("verify", "--request", str(path), secrets=secrets).output


def test_a_refused_request_is_saved_as_it_came_and_explained(tmp_path: Path) -> None:
    rewritten = json.dumps(json.loads(BODY)).encode()
    headers = {**sign(SECRET, "evt_1", BODY), "X-Proxy": "caf\xe9"}
    with serving(tmp_path) as server:
        assert post(server, headers, rewritten).status == 401
        [path] = wait_for(tmp_path, 1)
    request = SavedRequest.parse(path.read_bytes())
    assert request.body == rewritten
    assert (b"x-proxy", b"caf\xe9") in request.headers
    assert (b"webhook-signature", headers["webhook-signature"].encode()) in request.headers
    note, line, *_ = path.read_bytes().split(b"\r\n")
    assert re.fullmatch(
        rb"# refused by default: 401 no_matching_signature, received \d+\.\d{6}", note
    )
    assert line == b"POST /webhooks HTTP/1.1"
    assert "The body was parsed and rewritten before it was verified." in verify(path, SECRET)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert SECRET[6:].encode() not in path.read_bytes()


def test_a_saved_request_is_verified_as_of_its_arrival(tmp_path: Path) -> None:
    """With the right secret, a saved request still verifies hours later."""
    at = int(time.time()) - 7200
    headers = [
        (n.encode(), v.encode()) for n, v in sign(SECRET, "evt_1", BODY, timestamp=at).items()
    ]
    path = tmp_path / "saved.http"
    refused = Refused("default", 401, "no_matching_signature", at + 2)
    path.write_bytes(SavedRequest(BODY, headers, refused).to_bytes())
    assert verify(path, SECRET).startswith("genuine: evt_1, signed 2 s before")
    told = invoke("verify", "--request", str(path), "--now", str(at + 600), secrets=[SECRET])
    assert told.output.startswith("refused: timestamp_too_old")


def test_a_request_whose_body_was_not_read_is_saved_without_it(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        place = urlsplit(server.url)
        with socket.create_connection((place.hostname, place.port), PATIENCE_SECONDS) as client:
            client.sendall(
                b"POST /webhooks?a=b HTTP/1.1\r\nhost: x\r\nwebhook-id: evt_1\r\n"
                b"content-length: 99999999\r\n\r\nbegin"
            )
            assert client.recv(4096).startswith(b"HTTP/1.1 413 ")
        [path] = wait_for(tmp_path, 1)
    request = SavedRequest.parse(path.read_bytes())
    assert (request.body, request.headers[1]) == (b"", (b"webhook-id", b"evt_1"))
    assert b"POST /webhooks?a=b HTTP/1.1\r\n" in path.read_bytes()
    told = invoke("verify", "--request", str(path), "--json", secrets=[SECRET])
    record = json.loads(told.output)
    assert (told.status, record["reason"]) == (1, "body_too_large")
    assert "the body was not saved" in record["findings"][0]["cause"]


def test_each_receiver_of_a_server_is_named_in_its_requests(tmp_path: Path) -> None:
    (tmp_path / "several.py").write_text(
        "from hooks import receiver\n"
        'receivers = [receiver.copy(endpoint=name, store="memory://") for name in ("a", "b")]\n'
    )
    with serving(tmp_path, name="several:receivers") as server:
        headers = sign(OLD_SECRET, "evt_1", BODY)
        answer = ask_without_curl("POST", f"{server.url}/webhooks/b", headers, BODY)
        assert answer.status == 401
        [path] = wait_for(tmp_path, 1)
    assert path.read_bytes().startswith(b"# refused by b: 401 no_matching_signature, received ")
    assert b"\r\nPOST /webhooks/b HTTP/1.1\r\n" in path.read_bytes()


def test_neither_genuine_deliveries_nor_browsers_are_saved(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        assert server.deliver("evt_1").status == 200
        assert server.get("/webhooks").status == 405
        assert server.deliver("evt_2", path="/elsewhere").status == 404
        assert forge(server).status == 401
        [path] = wait_for(tmp_path, 1)
        assert "no_matching_signature" in path.name
        server.process.signal(signal.SIGINT)
        server.process.ended()
    assert saved(tmp_path) == [path]


def test_a_flood_in_several_processes_stays_within_the_limits(tmp_path: Path) -> None:
    large = b"x" * (MOST_BYTES // 12)
    folder = tmp_path / "refused"
    folder.mkdir(mode=0o700)
    (folder / "mine.txt").write_text("not theirs")
    for number in range(MOST_FILES - 2):
        (folder / f"20200101T0000000{number:05}Z-missing_id-0000000a.http").write_bytes(b"old")
    (folder / "20200101T000000000000Z-missing_id-0000000b.http.part").write_bytes(b"unfinished")

    def is_within_limits() -> bool:
        sizes = []
        for path in saved(tmp_path):
            try:
                sizes.append(path.stat().st_size)
            except FileNotFoundError:
                continue
        assert len(sizes) <= MOST_FILES
        assert sum(sizes) <= MOST_BYTES
        return True

    with serving(tmp_path, "--processes", "3") as server, ThreadPoolExecutor(8) as senders:
        for body, count in ((BODY, 200), (large, 60)):
            answers = [senders.submit(forge, server, f"evt_{n}", body) for n in range(count)]
            while not all(answer.done() for answer in answers):
                assert is_within_limits()
            assert {answer.result().status for answer in answers} == {401}
        server.process.printed("requests are refused faster than they are saved in refused")
        server.process.signal(signal.SIGTERM)
        server.process.ended()
        assert is_within_limits()
    paths = saved(tmp_path)
    assert not any(path.name.startswith("2020") for path in paths), "the oldest go first"
    assert SavedRequest.parse(paths[-1].read_bytes()).body == large
    assert sum(path.stat().st_size for path in paths) + len(large) + 1000 > MOST_BYTES
    assert {path.name for path in folder.iterdir()} == {"mine.txt", *(path.name for path in paths)}


def test_a_disk_that_hangs_delays_no_answer_and_no_end(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        held = os.open(tmp_path / "refused", os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)  # the writer waits for this lock
        for number in range(30):
            assert forge(server, f"evt_{number}").status == 401
        assert server.deliver("evt_genuine").status == 200
        server.process.printed("refused faster than they are saved")
        assert saved(tmp_path) == []
        server.process.signal(signal.SIGINT)
        assert server.process.ended().status == 0
        os.close(held)


def test_requests_that_wait_are_saved_at_the_end(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        for number in range(5):
            assert forge(server, f"evt_{number}").status == 401
        server.process.signal(signal.SIGTERM)
        server.process.ended()
    assert len(saved(tmp_path)) == 5


def test_a_folder_that_is_lost_is_one_warning_and_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "refused"
    with serving(tmp_path) as server:
        folder.rmdir()
        folder.write_bytes(b"")
        for number in range(3):
            assert forge(server, f"evt_{number}").status == 401
        server.process.printed("cannot save refused requests in refused: Not a directory")
        folder.unlink()
        eventually(
            lambda: forge(server).status == 401 and [*folder.glob("*.http")], what="a saved request"
        )
    assert server.process.errors.count("cannot save refused requests") == 1


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("open", "other users may open it. Name a folder that does not exist yet"),
        ("missing/refused", "No such file or directory: 'missing/refused'"),
        ("hooks.py", "'hooks.py' is a file"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused(folder: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(APP)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    arguments = ["hooks:receiver", "--port", "0", "--save-refused", folder]
    run("serve", *arguments, here=tmp_path, secrets=[SECRET]).says(message, status=2)
