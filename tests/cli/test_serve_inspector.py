"""`hookonce serve --inspector`: its address, its access rules, and its end with the command."""

import asyncio
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
import uvicorn

from hookonce import Receiver
from hookonce.cli.application import service_app
from hookonce.cli.connections import ServerConnections
from hookonce.cli.serve import _Server
from hookonce.operations.inspector import Bounds, Inspector
from hookonce.testing import event_body, signed_request

from .running import PATIENCE_SECONDS, SECRET, Process, run, running

pytestmark = pytest.mark.sample(1, of="file")

APP = """
from hookonce import EnvironmentSecrets, Receiver
from hookonce.events import CommentReceived

receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")


@receiver.on(CommentReceived)
async def handle(_: CommentReceived) -> None: ...
"""

TOKEN = "a token for the inspector of these tests"


@contextmanager
def serving(
    here: Path, *options: str, token: str = "", name: str = "hooks:receiver"
) -> Iterator[tuple[Process, httpx2.Client]]:
    """Run the command in a folder; yield an HTTP client that has the printed token."""
    (here / "hooks.py").write_text(APP)
    arguments = ["serve", name, "--port", "0", *options]
    environment = {"HOOKONCE_INSPECTOR_TOKEN": token} if token else {}
    with running(*arguments, here=here, secrets=[SECRET], environment=environment) as process:
        url = process.printed(r"running on (http://127\.0\.0\.1:\d+) ")[1]
        with httpx2.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False) as client:
            if "--inspector" in options and not token:
                entered = client.get(printed_url(process))
                assert entered.status_code == 303
                assert str(entered.headers["location"]) == "/inspector/"
            yield process, client


def printed_url(process: Process) -> str:
    return process.printed(r"inspector: (http://\S+/inspector/\?token=[\w-]{43})\n")[1]


def stream_of(page: str) -> str:
    """Return the URL of a page's live updates."""
    cursor = page.partition('data-cursor="')[2].partition('"')[0]
    return f"/inspector/stream?cursor={cursor}"


def test_the_inspector_is_off_by_default(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, client):
        assert client.get("/inspector/").status_code == 404


def test_the_inspector_shows_deliveries_that_the_server_receives(tmp_path: Path) -> None:
    with serving(tmp_path, "--inspector") as (_, client):
        request = signed_request(event_body("comment.received", event_id="evt_seen"), SECRET)
        answer = client.post("/webhooks", content=request.body, headers=dict(request.headers))
        assert answer.json()["reason"] == "handled"
        assert client.get("/livez").status_code == 200
        assert client.get("/inspector").headers["location"] == "/inspector/"
        assert "evt_seen" in client.get("/inspector/").text


def test_one_inspector_shows_all_receivers_that_are_served(tmp_path: Path) -> None:
    two = """
import hooks
from hookonce import EnvironmentSecrets, Receiver

receivers = {
    name: Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db", endpoint=name)
    for name in ("acme", "bakery")
}
for receiver in receivers.values():
    receiver.on("comment.received", name="handle")(hooks.handle)
"""
    (tmp_path / "tenants.py").write_text(two)
    with serving(tmp_path, "--inspector", name="tenants:receivers") as (_, client):
        for name in ("acme", "bakery"):
            body = event_body("comment.received", event_id=f"evt_of_{name}")
            request = signed_request(body, SECRET)
            path = f"/webhooks/{name}"
            answer = client.post(path, content=request.body, headers=dict(request.headers))
            assert answer.json()["reason"] == "handled"
        assert client.get("/inspector/").headers["location"] == "/inspector/at/acme/"
        for name, other in (("acme", "bakery"), ("bakery", "acme")):
            page = client.get(f"/inspector/at/{name}/").text
            assert f"evt_of_{name}" in page
            assert f"evt_of_{other}" not in page


def test_without_a_token_serve_generates_a_token_prints_it_once_and_requires_it(
    tmp_path: Path,
) -> None:
    """Behind a proxy that adds no headers, any request seems to come from this machine."""
    request = signed_request(event_body("comment.received", event_id="evt_1"), SECRET)
    with serving(tmp_path, "--inspector", "--log-level", "debug") as (process, client):
        url = printed_url(process)
        made = url.partition("=")[2]
        assert url.startswith(str(client.base_url))
        client.post("/webhooks", content=request.body, headers=dict(request.headers))
        assert "evt_1" in client.get("/inspector/").text
        client.cookies.clear()
        for path in ("/", "/dead", "/stream", "/deliveries/1"):
            assert client.get(f"/inspector{path}").status_code == 401, path
        assert client.post("/inspector/dead/discard", json={"id": "evt_1"}).status_code == 401
        bearer = {"authorization": f"Bearer {made}"}
        assert client.get("/inspector/", headers=bearer).status_code == 200
        process.signal(signal.SIGTERM)
        ended = process.ended()
    assert ended.output.count(made) == 1
    assert made not in ended.errors, "the log is on stderr"


def test_each_start_makes_another_token(tmp_path: Path) -> None:
    urls = set()
    for _ in range(2):
        with serving(tmp_path, "--inspector") as (process, _):
            urls.add(printed_url(process).partition("=")[2])
    assert len(urls) == 2


@pytest.mark.parametrize("host", ["0.0.0.0", "::1", "localhost"])
def test_the_printed_url_opens_the_inspector_at_any_address(tmp_path: Path, host: str) -> None:
    (tmp_path / "hooks.py").write_text(APP)
    arguments = ["serve", "hooks:receiver", "--port", "0", "--inspector", "--host", host]
    with running(*arguments, here=tmp_path, secrets=[SECRET]) as process:
        url = printed_url(process)
        with httpx2.Client(timeout=PATIENCE_SECONDS, trust_env=False) as client:
            assert client.get(url, follow_redirects=True).status_code == 200


def test_a_token_in_the_environment_is_required(tmp_path: Path) -> None:
    with serving(tmp_path, "--inspector", token=TOKEN) as (process, client):
        assert client.get("/inspector/").status_code == 401
        headers = {"authorization": f"Bearer {TOKEN}"}
        assert client.get("/inspector/", headers=headers).status_code == 200
        assert client.get("/inspector/", params={"token": TOKEN}).status_code == 303
        assert client.get("/inspector/", params={"token": f"{TOKEN}!"}).status_code == 401
        assert "token=" not in process.output + process.errors
        assert TOKEN not in process.output + process.errors


def test_other_host_names_are_accepted_if_an_option_names_them(tmp_path: Path) -> None:
    elsewhere = {"host": "hooks.internal"}
    with serving(tmp_path, "--inspector", "--inspector-host", "hooks.internal") as (_, client):
        assert client.get("/inspector/", headers=elsewhere).status_code == 200
        assert client.get("/inspector/").status_code == 200
        assert client.get("/inspector/", headers={"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--inspector-host", "a.example"], "--inspector-host needs --inspector"),
        (["--inspector", "--path", "/inspector/hooks"], "/inspector is the path of the inspector"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: list[str], message: str, tmp_path: Path
) -> None:
    run("serve", "hooks:receiver", *options, here=tmp_path, secrets=[SECRET]).says(
        message, status=2
    )


@pytest.mark.parametrize(
    ("options", "token", "message"),
    [
        ([], "short", "at least 16 characters"),
        (["--inspector-host", "http://a.example"], "", "a host is a name"),
    ],
)
def test_settings_that_the_inspector_cannot_use_are_refused_in_one_line(
    options: list[str], token: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "hooks.py").write_text(APP)
    result = run(
        *("serve", "hooks:receiver", "--inspector", *options),
        here=tmp_path,
        secrets=[SECRET],
        environment={"HOOKONCE_INSPECTOR_TOKEN": token},
    )
    result.says(message)


def test_without_jinja2_the_error_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(APP)
    absent = "import sys; sys.modules['jinja2'] = None; from hookonce.cli import main; main()"
    result = run(
        *("serve", "hooks:receiver", "--inspector"),
        here=tmp_path,
        secrets=[SECRET],
        command=[sys.executable, "-c", absent],
    )
    result.says("pip install 'hookonce[inspector]'")


def test_a_signal_ends_the_server_while_a_live_page_is_open(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--inspector") as (process, client),
        client.stream("GET", stream_of(client.get("/inspector/").text)) as stream,
    ):
        assert stream.status_code == 200
        process.signal(signal.SIGINT)
        ended = process.ended()
    assert ended.status == 0
    assert "Traceback" not in ended.errors


@pytest.mark.anyio
async def test_live_pages_are_ended_before_the_server_waits_for_them() -> None:
    """In this test streams last for an hour, so only the shutdown can have ended them."""
    receiver = Receiver(secrets=[SECRET], store="memory://")
    inspector = Inspector(receiver, token=TOKEN, bounds=Bounds(stream_seconds=3600))
    listener = socket.create_server(("127.0.0.1", 0))
    app = service_app(receiver, "/webhooks", inspector)
    config = uvicorn.Config(app, ws="none", log_config=None)
    connections = ServerConnections(100, idle_seconds=3600, refuse=receiver)
    server = _Server(config, connections, before_end=inspector.end, after_start=lambda _: None)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    running_server = asyncio.create_task(server.serve(sockets=[listener]))
    shown = {"authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS, headers=shown) as client:
        path = stream_of((await client.get("/inspector/")).text)
        async with client.stream("GET", path) as stream:
            assert stream.status_code == 200
            server.should_exit = True
            async with asyncio.timeout(PATIENCE_SECONDS):
                await running_server
