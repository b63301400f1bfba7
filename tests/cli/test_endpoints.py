"""The commands for endpoints send the right requests, and print no secret and no key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
from click import ClickException

from hookonce.cli.rotate import asking, changing
from hookonce.cli.secrets_file import SecretsFile
from hookonce.client import NoAnswerError
from hookonce.verification.secrets import new_secret

from .running import Result, invoke
from .test_rotate import KEY, endpoint

DELIVERY = {
    "id": "dlv_1",
    "eventId": "evt_1",
    "eventType": "comment.received",
    "status": "pending",
    "attempts": 2,
    "responseStatus": 503,
    "isTest": False,
    "createdAt": "2026-07-01T09:00:00.000Z",
}


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None: ...


class Site:
    """A service that gives one fixed answer, and records the requests."""

    def __init__(self) -> None:
        self.status = "200 OK"
        self.answer: Any = {"data": endpoint()}
        self.asked: list[tuple[str, str, Any]] = []
        self.url = ""

    def __call__(self, environ: dict[str, Any], start: Any) -> list[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        sent = json.loads(body) if body else None
        self.asked.append((environ["REQUEST_METHOD"], environ["PATH_INFO"], sent))
        assert environ["HTTP_AUTHORIZATION"] == f"Bearer {KEY}"
        start(self.status, [("content-type", "application/json")])
        return [json.dumps(self.answer).encode()]

    def run(self, *arguments: str) -> Result:
        environment = {"HOOKONCE_API_URL": self.url, "HOOKONCE_API_KEY": KEY}
        return invoke("endpoints", *arguments, environment=environment)


@contextmanager
def serving() -> Iterator[Site]:
    site = Site()
    with make_server("127.0.0.1", 0, site, handler_class=_Quiet) as server:
        site.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield site
        server.shutdown()
        thread.join()


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


def test_create_writes_the_secret_to_a_private_file_and_does_not_print_it(
    site: Site, tmp_path: Path
) -> None:
    secret = new_secret()
    site.answer = {"data": endpoint(secret=secret)}
    file = tmp_path / "secrets"
    file.write_text("# ours\n")
    result = site.run(
        *("create", "https://hooks.example.com/", "--event", "comment.received"),
        *("--description", "ours", "--secrets-file", str(file), "--json"),
    )
    assert result.status == 0
    assert file.read_text() == f"{secret}\n# ours\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert secret[6:] not in result.output + result.errors
    made = json.loads(result.output)
    # Other records also call this field `secret_prefix`.
    assert (made["id"], made["secret_prefix"]) == ("wh_1", "whsec_AB")
    sent = {
        "url": "https://hooks.example.com/",
        "events": ["comment.received"],
        "description": "ours",
    }
    assert site.asked == [("POST", "/v1/webhooks", sent)]


def test_create_saves_the_secret_from_an_answer_that_it_cannot_parse(
    site: Site, tmp_path: Path
) -> None:
    secret = new_secret()
    site.answer = {"data": endpoint(secret=secret, description=None)}
    create = ("create", "https://hooks.example.com/", "--event", "comment.received")
    result = site.run(*create, "--secrets-file", str(tmp_path / "secrets"))
    result.says("wh_1 was created, and its secret is in", "data.description", status=1)
    assert (tmp_path / "secrets").read_text() == f"{secret}\n"
    site.answer = {"data": endpoint()}
    result = site.run(*create, "--secrets-file", str(tmp_path / "others"))
    result.says("the service gave no secret", status=1)
    assert [file.name for file in tmp_path.iterdir()] == ["secrets"]


def test_create_takes_no_file_that_holds_a_secret(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    file.write_text(f"{new_secret()}\n")
    before = file.read_text()
    create = ("create", "https://hooks.example.com/", "--event", "comment.received")
    result = site.run(*create, "--secrets-file", str(file))
    result.says("holds a secret already", status=2)
    assert (site.asked, file.read_text()) == ([], before)


@pytest.mark.parametrize(
    ("status", "is_said"), [("500 Oops", True), ("502 Bad gateway", True), ("403 Forbidden", False)]
)
def test_create_warns_of_a_lost_secret_if_the_service_may_have_made_an_endpoint(
    site: Site, tmp_path: Path, status: str, *, is_said: bool
) -> None:
    site.status = status
    site.answer = {"error": {"code": "x", "kind": "internal", "message": "No."}}
    create = ("create", "https://hooks.example.com/", "--event", "comment.received")
    result = site.run(*create, "--secrets-file", str(tmp_path / "secrets"))
    assert result.status == 1
    assert ("its secret is lost" in result.errors) == is_said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("may_have_arrived", [True, False])
def test_a_request_that_was_never_sent_loses_no_secret(
    tmp_path: Path, *, may_have_arrived: bool
) -> None:
    error = NoAnswerError("POST", "/", "no answer", may_have_arrived=may_have_arrived)
    file = SecretsFile(tmp_path / "secrets")

    def ask() -> None:
        with changing(file), asking(file, "it is lost"):
            raise error

    if may_have_arrived:
        with pytest.raises(ClickException, match="it is lost"):
            ask()
    else:
        with pytest.raises(NoAnswerError):
            ask()
    assert list(tmp_path.iterdir()) == []


def test_deliveries_are_printed_as_a_table(site: Site) -> None:
    site.answer = {"data": [DELIVERY], "nextCursor": None}
    result = site.run("list-deliveries", "wh_1")
    created, event, event_type, status, attempts, answer, *_ = result.output.rstrip("\n").split(
        "\t"
    )
    assert (event, event_type, status, attempts, answer) == (
        "evt_1",
        "comment.received",
        "pending",
        "2",
        "503",
    )
    assert created.startswith("2026-07-01T09:00")


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["enable", "wh_1"], ("PATCH", "/v1/webhooks/wh_1", {"enabled": True})),
        (["disable", "wh_1"], ("PATCH", "/v1/webhooks/wh_1", {"enabled": False})),
        (
            ["update", "wh_1", "--event", "channel.unhealthy", "--description", ""],
            ("PATCH", "/v1/webhooks/wh_1", {"events": ["channel.unhealthy"], "description": ""}),
        ),
        (["test", "wh_1"], ("POST", "/v1/webhooks/wh_1/test", None)),
    ],
)
def test_each_command_sends_one_request(site: Site, arguments: list[str], asked: Any) -> None:
    result = site.run(*arguments)
    assert result.status == 0, result
    assert result.output.startswith("wh_1: ")
    assert site.asked == [asked]


def test_a_refusal_is_one_line_without_the_key(site: Site) -> None:
    site.status = "403 Forbidden"
    error = {"code": "api.forbidden", "kind": "permission", "message": "An admin may do this."}
    site.answer = {"error": error}
    result = site.run("enable", "wh_1")
    result.says("403 api.forbidden: An admin may do this.")
    assert KEY not in result.errors


def test_a_refusal_names_each_field_and_its_fault(site: Site) -> None:
    site.status = "422 Unprocessable Content"
    issue = {"field": "events.0", "message": f"no such type, {KEY}\x1b[2J"}
    error = {"code": "validation.failed", "kind": "validation", "message": "It did not validate."}
    site.answer = {"error": {**error, "details": {"issues": [issue]}}}
    result = site.run("update", "wh_1", "--event", "nope")
    result.says("It did not validate. ", '"field": "events.0"', "no such type")
    assert KEY not in result.errors
    assert "\x1b" not in result.errors


def test_commands_that_cannot_begin_exit_with_2(site: Site) -> None:
    for arguments, words in {
        ("update", "wh_1"): "say what to change",
        ("create", "https://a.example", "--secrets-file", "s"): "--event",
        ("test", ""): "an id is text such as",  # an unset shell variable is an empty argument
        ("list-deliveries", ".."): "an id is text such as",
        (
            "enable",
            "wh_1",
            "--api-url",
            "http://api.example.com",
        ): "--api-url must be an https",
    }.items():
        site.run(*arguments).says(words, status=2)
    environment = {"HOOKONCE_API_URL": site.url}
    without_key = invoke("endpoints", "enable", "wh_1", environment=environment)
    without_key.says("set the environment variable HOOKONCE_API_KEY", status=2)
    without_url = invoke("endpoints", "enable", "wh_1")
    without_url.says("name the service's API: --api-url, or $HOOKONCE_API_URL", status=2)
    assert site.asked == []
