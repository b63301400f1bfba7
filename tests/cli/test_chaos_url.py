"""`hookonce chaos --url` disturbs a running receiver, refuses wrong options, and reports."""

import json
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from support.redis_servers import free_port

from .running import (
    COMMAND,
    PATIENCE_SECONDS,
    SECRET,
    Result,
    eventually,
    invoke,
    run,
    running,
)

pytestmark = pytest.mark.sample(2, of="file")


QUICK = Path(__file__).parents[1] / "chaos" / "receivers"
"""The folder with a sender of short patience."""


ONCE = """
import os, pathlib, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
pathlib.Path("started").mkdir()  # fails when it starts again

class Connection(BaseHTTPRequestHandler):
    def do_POST(self):
        effect = self.headers["webhook-id"].encode()
        urllib.request.urlopen(os.environ["HOOKONCE_EFFECTS_URL"], effect)

ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Connection).serve_forever()
"""


class Server(ThreadingHTTPServer):
    """A receiver that accepts every request without verification.

    Attributes:
        effects_url: where it reports effects.
        status: what it answers.

    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, effects_url: str, status: int) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.effects_url = effects_url
        self.status = status

    def handle_error(self, request: object, client_address: object) -> None:
        pass


class Connection(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        status = self.server.status
        if status == 204:
            try:
                urlopen(self.server.effects_url, self.headers["webhook-id"].encode()).close()
            except HTTPError as error:
                error.close()
                status = 500
        self.send_response(status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class has this name
        pass


@contextmanager
def receiving(effects_port: int, status: int = 204) -> Iterator[str]:
    with Server(f"http://127.0.0.1:{effects_port}", status) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/webhooks"
        finally:
            server.shutdown()


def disturb(*options: str, status: int = 204) -> Result:
    """Run the command against a receiver that accepts every request."""
    port = free_port()
    with receiving(port, status) as url:
        return run(
            *("chaos", "--url", url, "--effects-port", str(port), "--settle", "0s"),
            *("--seed", "3", *options),
            here=QUICK,
            secrets=[SECRET],
        )


def records(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.output.splitlines()]


def test_a_receiver_that_verifies_nothing_accepts_forgeries() -> None:
    result = disturb(
        "--events", "12", "--chaos", "0.9", "--json", "--speed", "10000", "--sender", "quick:sender"
    )
    *findings, report = records(result)
    assert result.status == 1
    assert {finding["breach"] for finding in findings} >= {"accepted_forgery", "handled_twice"}
    assert report["accepted_forgery"] > 0
    assert report["events"] == 12
    assert report["restarts"] == 0
    assert report["passed"] is False


def test_without_faults_a_simple_receiver_passes_and_the_report_is_a_table() -> None:
    result = disturb("--events", "3", "--chaos", "0", "--type", "comment.received")
    assert result.status == 0, result
    rows = [line.rsplit(maxsplit=1) for line in result.output.splitlines()[:6]]
    assert [(row[0], row[1]) for row in rows] == [
        ("lost", "0"),
        ("done twice", "0"),
        ("answered late", "0"),
        ("wrongly accepted", "0"),
        ("answers that can disable the endpoint", "0"),
        ("unfinished", "0"),
    ]
    assert "3 events, 3 requests, 0 of them disturbed; 3 calls of the effect" in result.output
    assert result.output.endswith("the same faults again: --seed 3\n")


def test_the_time_limit_ends_a_run_that_does_not_settle() -> None:
    options = ("--events", "2", "--chaos", "0", "--speed", "1", "--time-limit", "2s", "--json")
    result = disturb(*options, status=500)
    assert result.status == 1
    (report,) = records(result)
    assert report["unfinished"] == 2
    assert report["lost"] == 0


def test_an_event_whose_every_attempt_fails_is_lost() -> None:
    options = ("--events", "2", "--chaos", "0", "--speed", "100000", "--json")
    *findings, report = records(disturb(*options, status=500))
    assert report["lost"] == 2
    assert [len(finding["story"]) for finding in findings] == [9, 9]


def test_the_data_of_events_of_another_sender_are_given(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text('{"user.created": {"userId": "u_1"}}')
    data = str(tmp_path / "data.json")
    result = disturb("--sender", "standard", "--data", data, "--events", "2", "--chaos", "0")
    assert result.status == 0, result
    assert "2 events, 2 requests" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "name either MODULE:RECEIVER or --url"),
        ("app:receiver --url http://127.0.0.1:9", "name either MODULE:RECEIVER or --url"),
        ("app:receiver --speed 5", "--speed has no use here: it is for --url"),
        ("--url http://127.0.0.1:9 --inbox", "--inbox has no use here: it is for MODULE:RECEIVER"),
        ("--url ftp://127.0.0.1:9", "names no host to disturb"),
        ("--url http://user:word@127.0.0.1:9", "the URL of a receiver has no user and no password"),
        ("--url http://192.0.2.1/webhooks", "add --i-own-this-receiver"),
        ("--url http://127.0.0.1:9 --run false", "the command of --run ended"),
        ("--url http://127.0.0.1:9 --sender standard", "names no event types; add --type"),
        ("--url http://127.0.0.1:9 --type no.such", "'no.such' is no event type of the sender"),
    ],
)
def test_what_cannot_be_disturbed_is_refused_in_one_line(arguments: str, message: str) -> None:
    invoke("chaos", *arguments.split(), secrets=[SECRET]).says(message, status=2)


def test_a_receiver_that_does_not_start_again_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(ONCE)
    port = free_port()
    result = run(
        *("chaos", "--url", f"http://127.0.0.1:{port}/", "--run", f"{sys.executable} server.py"),
        *("--events", "1", "--seed", "3"),
        here=tmp_path,
        secrets=[SECRET],
        environment={"PORT": str(port)},
    )
    result.says("the command of --run ended", "no server answers", status=2)


def test_an_event_that_cannot_be_made_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text('{"comment.received": {"noSuchField": 1}}')
    data = str(tmp_path / "data.json")
    arguments = ("--url", "http://127.0.0.1:9", "--data", data, "--events", "100")
    invoke("chaos", *arguments, secrets=[SECRET]).says("noSuchField", "--data", status=2)


@pytest.mark.parametrize(
    ("number", "shell", "status"),
    [
        (signal.SIGINT, (), 130),
        (signal.SIGTERM, (), 143),
        (signal.SIGTERM, ("bash", "-c", 'trap \'\' INT; exec "$0" "$@"'), 143),
    ],
    ids=["interrupted", "terminated", "terminated in the background"],
)
def test_an_interrupted_run_ends_the_receiver_and_names_its_seed(
    number: signal.Signals, shell: tuple[str, ...], status: int, tmp_path: Path
) -> None:
    port = free_port()
    serve = f"{sys.executable} -m http.server --bind 127.0.0.1 {port} 2>requests"
    options = ("--events", "1000", "--seed", "3", "--run", serve)
    with running(
        *("chaos", "--url", f"http://127.0.0.1:{port}/", *options),
        here=tmp_path,
        secrets=[SECRET],
        command=[*shell, *COMMAND],
    ) as command:
        requests = tmp_path / "requests"
        eventually(
            lambda: requests.exists() and "POST" in requests.read_text(), what="a first request"
        )
        command.process.send_signal(number)
        assert command.process.wait(PATIENCE_SECONDS) == status
        assert "the same faults again: --seed 3" in command.output
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_without_a_secret_nothing_is_sent() -> None:
    invoke("chaos", "--url", "http://127.0.0.1:9").says("HOOKONCE_SECRETS", status=2)


def test_a_running_server_is_not_started_again() -> None:
    with receiving(free_port()) as url:
        result = invoke("chaos", "--url", url, "--run", "true", secrets=[SECRET])
    result.says("answers at", "already", status=2)


def test_the_receiver_of_run_ends_with_the_command(tmp_path: Path) -> None:
    port = free_port()
    serve = f"{sys.executable} -m http.server --bind 127.0.0.1 {port} & wait"
    result = run(
        *("chaos", "--url", f"http://127.0.0.1:{port}/", "--run", serve),
        *("--events", "1", "--chaos", "0", "--speed", "100000", "--settle", "0s"),
        here=tmp_path,
        secrets=[SECRET],
    )
    assert result.status == 1, result
    assert "delivery 1: 501" in result.output
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
