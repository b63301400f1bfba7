"""`hookonce serve` as operators use it: curl, a signature by openssl, signals, and mistakes."""

import http.client
import json
import re
import shutil
import signal
import subprocess
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hookonce.samples.events import event_body
from hookonce.verification.secrets import fingerprint, verifying_key

from .running import PATIENCE_SECONDS, SECRET, Process, eventually, invoke, run, running

pytestmark = pytest.mark.sample(2, of="file")

APP = '''
"""A receiver that writes down what it handles, and waits where a file tells it to."""
import asyncio
from pathlib import Path

from hookonce import EnvironmentSecrets, Receiver
from hookonce.events import CommentReceived

receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")
number = 3
nothing = None


def note(line: str) -> None:
    with open("journal", "a") as journal:
        journal.write(f"{line}\\n")


@receiver.on(CommentReceived)
async def handle(event: CommentReceived) -> None:
    note(f"started {event.id}")
    while Path(f"hold {event.id}").exists():
        await asyncio.sleep(0.005)
    note(f"finished {event.id}")
'''


HEALTH = {"HOOKONCE_HEALTH_TOKEN": "a token for those who may know"}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    location: str = ""


@dataclass
class Server:
    """A running `hookonce serve` in a folder with the receiver's module and its journal."""

    here: Path
    process: Process
    url: str = field(init=False)

    def __post_init__(self) -> None:
        self.url = self.process.printed(r"running on (http://127\.0\.0\.1:\d+) ")[1]

    def journal(self) -> list[str]:
        return journal_in(self.here)

    def get(self, path: str) -> Answer:
        return ask("GET", f"{self.url}{path}", {}, None, self.here)

    def deliver(
        self, event_id: str, *, path: str = "/webhooks", body: bytes = b"", change: bytes = b""
    ) -> Answer:
        """Post an event signed by openssl; if asked, change its body after signing."""
        body = body or event_body("comment.received", event_id=event_id)
        headers = {"content-type": "application/json", **signed_by_openssl(event_id, body)}
        return ask("POST", f"{self.url}{path}", headers, change or body, self.here)


def journal_in(here: Path) -> list[str]:
    path = here / "journal"
    return path.read_text().splitlines() if path.exists() else []


def signed_by_openssl(event_id: str, body: bytes) -> dict[str, str]:
    timestamp = str(int(time.time()))
    key = verifying_key(SECRET).raw.hex()
    digest = subprocess.run(
        ["openssl", "dgst", "-sha256", "-binary", "-mac", "HMAC", "-macopt", f"hexkey:{key}"],
        input=f"{event_id}.{timestamp}.".encode() + body,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    ).stdout
    return {
        "webhook-id": event_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{b64encode(digest).decode()}",
    }


def ask(
    method: str, url: str, headers: Mapping[str, str], body: bytes | None, folder: Path
) -> Answer:
    """Make a request with curl, or with the standard library if curl is missing."""
    curl = shutil.which("curl")
    if curl is None:
        return ask_without_curl(method, url, headers, body)
    sent, answered = folder / "sent", folder / "answered"
    sent.write_bytes(body or b"")
    answered.unlink(missing_ok=True)
    command = [curl, "--silent", "--noproxy", "*", "--request", method, "--output", str(answered)]
    command += ["--write-out", "%{http_code} %{redirect_url}"]
    for name, value in {**headers, "expect": ""}.items():
        command += ["--header", f"{name}: {value}"]
    if body is not None:
        command += ["--data-binary", f"@{sent}"]
    # Ignore curl's exit status: the server may hang up on a body that is too large.
    done = subprocess.run(
        [*command, url], capture_output=True, timeout=PATIENCE_SECONDS, check=False
    )
    status, _, location = done.stdout.decode().partition(" ")
    return Answer(int(status), answered.read_bytes() if answered.exists() else b"", location)


def ask_without_curl(
    method: str, url: str, headers: Mapping[str, str], body: bytes | None
) -> Answer:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.netloc, timeout=PATIENCE_SECONDS)
    try:
        connection.request(method, place.path, body, dict(headers))
        response = connection.getresponse()
        return Answer(response.status, response.read(), response.getheader("location", ""))
    finally:
        connection.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Share one server among all tests that do not disturb each other."""
    here = tmp_path_factory.mktemp("serve")
    (here / "hooks.py").write_text(APP)
    arguments = ["hooks:receiver", "--port", "0"]
    with running("serve", *arguments, here=here, secrets=[SECRET], environment=HEALTH) as process:
        yield Server(here, process)
        assert process.process.poll() is None, process.errors


def test_a_delivery_signed_by_openssl_is_handled_and_its_copy_is_not_handled_again(
    server: Server,
) -> None:
    body = event_body("comment.received", event_id="evt_1")
    answers = [server.deliver("evt_1", body=body) for _ in range(2)]
    assert [(answer.status, json.loads(answer.body)["reason"]) for answer in answers] == [
        (200, "handled"),
        (200, "duplicate"),
    ]
    assert server.journal().count("started evt_1") == 1


def test_one_changed_byte_is_refused_and_runs_nothing(server: Server) -> None:
    body = event_body("comment.received", event_id="evt_changed")
    answer = server.deliver("evt_changed", body=body, change=body[:-2] + b" }")
    assert (answer.status, json.loads(answer.body)["reason"]) == (401, "no_matching_signature")
    assert not [line for line in server.journal() if "evt_changed" in line]


def test_a_body_of_two_mebibytes_is_taken_and_one_byte_more_is_not(server: Server) -> None:
    envelope = event_body("comment.received", event_id="evt_large")
    largest = envelope + b" " * (2 * 1024 * 1024 - len(envelope))
    assert server.deliver("evt_large", body=largest).status == 200
    answer = server.deliver("evt_larger", body=largest + b" ")
    assert (answer.status, json.loads(answer.body)["reason"]) == (413, "body_too_large")


def test_a_get_is_refused(server: Server) -> None:
    assert server.get("/webhooks").status == 405


def test_the_trailing_slash_is_answered_and_not_redirected(server: Server) -> None:
    answer = server.deliver("evt_slash", path="/webhooks/")
    assert (answer.status, answer.location) == (200, "")
    assert server.journal().count("finished evt_slash") == 1


def test_the_server_reports_that_it_lives_and_is_ready(server: Server) -> None:
    live, ready = server.get("/livez"), server.get("/readyz")
    assert (live.status, json.loads(live.body)) == (200, {"alive": True})
    assert (ready.status, json.loads(ready.body)) == (200, {"ready": True})
    asked = ["health", f"{server.url}/readyz"]
    assert json.loads(run(*asked, here=server.here).output) == {"ready": True}
    told = run(*asked, here=server.here, environment=HEALTH)
    assert told.status == 0
    said = json.loads(told.output)
    said.pop("refused", None)  # another test may have sent a forgery before
    assert re.fullmatch(r"[^:]+:\d+:[0-9a-f]{6}", said.pop("process"))
    assert said == {
        "ready": True,
        "problems": [],
        "warnings": [],
        "secrets": [fingerprint(SECRET)],
    }


def test_a_health_token_that_can_be_guessed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(APP)
    environment = {"HOOKONCE_HEALTH_TOKEN": "short"}
    arguments = ["serve", "hooks:receiver", "--port", "0"]
    refused = run(*arguments, here=tmp_path, secrets=[SECRET], environment=environment)
    refused.says("HOOKONCE_HEALTH_TOKEN", "at least 16 characters")


def test_other_paths_are_not_found(server: Server) -> None:
    assert server.deliver("evt_elsewhere", path="/webhook").status == 404
    server.process.printed(
        r"WARNING hookonce\.requests: a delivery did not reach a receiver: POST '/webhook'"
        r" \(answered 404\); deliveries go to /webhooks\n"
    )


def test_each_delivery_is_a_line_of_the_log_without_secret_or_signature(server: Server) -> None:
    server.deliver("evt_logged")
    server.process.printed(
        r"INFO +hookonce: comment\.received evt_logged at default: 200 handled \([\d.]+ ms\)\n"
    )
    # The library's own tests check more; this test checks how `serve` sets up logging.
    assert SECRET.removeprefix("whsec_") not in server.process.errors
    assert "v1," not in server.process.errors
    assert server.process.errors.count(" evt_logged ") == 1, "each line stands there once"


def test_sigterm_lets_a_running_handler_finish_and_its_success_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(APP)
    arguments = ["serve", "hooks:receiver", "--port", "0"]
    hold = tmp_path / "hold evt_slow"
    hold.touch()
    body = event_body("comment.received", event_id="evt_slow")
    with (
        running(*arguments, here=tmp_path, secrets=[SECRET]) as process,
        ThreadPoolExecutor(1) as elsewhere,
    ):
        server = Server(tmp_path, process)
        waiting = elsewhere.submit(server.deliver, "evt_slow", body=body)
        eventually(lambda: "started evt_slow" in server.journal(), what="the handler runs")
        process.signal(signal.SIGTERM)
        process.printed("Shutting down")
        assert server.journal() == ["started evt_slow"]
        hold.unlink()
        assert waiting.result(PATIENCE_SECONDS).status == 200
        ended = process.ended()
    assert ended.status in {0, -signal.SIGTERM}
    assert "Traceback" not in ended.errors
    assert journal_in(tmp_path) == ["started evt_slow", "finished evt_slow"]
    with running(*arguments, here=tmp_path, secrets=[SECRET]) as process:
        answer = Server(tmp_path, process).deliver("evt_slow", body=body)
        assert json.loads(answer.body)["reason"] == "duplicate"
        process.signal(signal.SIGINT)
        assert process.ended().status == 0, "Ctrl-C is the way to end it"


def test_a_running_thread_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    limits = "store='sqlite:///hookonce.db', limits=Limits(answer_seconds=0.1, drain_seconds=0.1)"
    app = APP.replace('store="sqlite:///hookonce.db"', limits)
    app = app.replace("Receiver\nfrom", "Limits, Receiver\nfrom").replace("async def", "def")
    app = app.replace("import asyncio", "import time").replace("await asyncio", "time")
    (tmp_path / "hooks.py").write_text(app)
    (tmp_path / "hold evt_slow").touch()
    arguments = ["serve", "hooks:receiver", "--port", "0"]
    with running(*arguments, here=tmp_path, secrets=[SECRET]) as process:
        server = Server(tmp_path, process)
        assert server.deliver("evt_slow").status == 503
        process.signal(signal.SIGINT)
        ended = process.ended()
    assert ended.status == 1
    assert "ended while sync handlers were running" in ended.errors
    assert journal_in(tmp_path) == ["started evt_slow"]


def test_another_path_and_the_port_in_the_environment_are_used(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(APP)
    environment = {"PORT": "0"}
    arguments = ["serve", "hooks:receiver", "--path", "/in/here"]
    with running(*arguments, here=tmp_path, secrets=[SECRET], environment=environment) as process:
        server = Server(tmp_path, process)
        assert not server.url.endswith(":8000")
        assert server.deliver("evt_1", path="/in/here").status == 200
        assert server.deliver("evt_2", path="/webhooks").status == 404


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing:receiver", "there is no module 'missing'"),
        ("hooks.missing:receiver", "there is no module 'hooks.missing'"),
        ("hooks:missing", "there is no 'missing' in hooks"),
        ("hooks:nothing", "there is no 'nothing' in hooks"),
        ("hooks:number", "'number' in hooks is of type int, not a Receiver"),
    ],
)
def test_a_receiver_that_cannot_be_found_is_reported_in_one_line(
    name: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "hooks.py").write_text(APP)
    run("serve", name, here=tmp_path, secrets=[SECRET]).says(message)


@pytest.mark.parametrize("name", ["hooks", "hooks:", ":receiver", "./hooks.py:receiver", "a..b:c"])
def test_an_argument_that_names_no_receiver_is_refused_with_the_right_form(name: str) -> None:
    invoke("serve", name).says(repr(name), "write MODULE:NAME, for example app.hooks:receiver")


def test_an_import_that_fails_is_reported_with_the_missing_module(tmp_path: Path) -> None:
    """The message does not blame the receiver's own module."""
    (tmp_path / "hooks.py").write_text("import no_such_dependency")
    result = run("serve", "hooks:receiver", here=tmp_path, secrets=[SECRET])
    result.says("ModuleNotFoundError: No module named 'no_such_dependency' (hooks.py, line 1: ")


@pytest.mark.parametrize(
    ("secrets", "message"),
    [
        ([], "hooks cannot start: set the environment variable HOOKONCE_SECRETS"),
        (["whsec_!"], "hooks cannot start: secret 1 in HOOKONCE_SECRETS cannot be used"),
        ([SECRET, "null"], "hooks cannot start: secret 2 in HOOKONCE_SECRETS cannot be used"),
    ],
)
def test_serve_does_not_start_without_usable_secrets(
    secrets: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "hooks.py").write_text(APP)
    run("serve", "hooks:receiver", here=tmp_path, secrets=secrets).says(message)


def test_serve_does_not_start_if_the_store_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(APP.replace("sqlite:///", "sqlite:///no/such/folder/"))
    result = run("serve", "hooks:receiver", "--port", "0", here=tmp_path, secrets=[SECRET])
    result.says("no/such/folder/hookonce.db", "does its folder exist")


def test_a_path_without_a_slash_is_refused(tmp_path: Path) -> None:
    result = run("serve", "hooks:receiver", "--path", "webhooks", here=tmp_path, secrets=[SECRET])
    result.says("a path starts with a slash, unlike 'webhooks'", status=2)


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/readyz/"])
def test_deliveries_cannot_have_the_path_of_a_health_check(path: str) -> None:
    result = invoke("serve", "hooks:receiver", "--path", path)
    result.says(f"{path} is the path of a health check", status=2)
