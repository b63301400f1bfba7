"""Commands accept a receiver, several receivers, an application with receivers, or a factory."""

import json
from pathlib import Path

import httpx2
import pytest

from hookonce.cli.logs import log_settings

from .inboxes import url_of
from .running import SECRET, invoke, run, running

pytestmark = pytest.mark.sample(2, of="file")

APP = '''
"""Two tenants in one application, and every way to name them."""
from starlette.applications import Starlette

from hookonce import EnvironmentSecrets, Inbox, Receiver
from hookonce.events import CommentReceived

receivers = {
    name: Receiver(
        secrets=EnvironmentSecrets(),
        store="sqlite:///hookonce.db",
        endpoint=name,
        inbox=Inbox(embedded=False),
    )
    for name in ("acme", "bakery")
}


async def handle(event):
    with open("journal", "a") as journal:
        journal.write(f"{event.id}\\n")


for receiver in receivers.values():
    receiver.on(CommentReceived, name="handle")(handle)


def create_app():
    routes = [r for name, one in receivers.items() for r in one.routes(f"/hooks/{name}")]
    return Starlette(routes=routes)


async def create_later():
    return create_app()


app = create_app()
nothing = 5
'''

in_a_process = pytest.mark.sample(1, of="file")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a folder with the module."""
    (tmp_path / "tenants.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.costs("2 s")
@in_a_process
@pytest.mark.parametrize(
    ("arguments", "paths"),
    [
        (["tenants:receivers.bakery"], {"bakery": "/webhooks"}),
        (["tenants:receivers"], {"acme": "/webhooks/acme", "bakery": "/webhooks/bakery"}),
        (["tenants:app"], {"acme": "/hooks/acme", "bakery": "/hooks/bakery"}),
        (["tenants:create_app", "--factory"], {"acme": "/hooks/acme", "bakery": "/hooks/bakery"}),
    ],
)
def test_every_named_receiver_is_served_and_has_a_worker(
    arguments: list[str], paths: dict[str, str], here: Path
) -> None:
    """One process stores the events of every endpoint, and another process handles them."""
    command = ["serve", *arguments, "--port", "0"]
    health = {"HOOKONCE_HEALTH_TOKEN": "a token for those who may know"}
    with running(*command, here=here, secrets=[SECRET], environment=health) as server:
        url = url_of(server)
        for name, path in paths.items():
            result = run(
                *("send", "comment.received", "--url", f"{url}{path}", "--id", f"evt_{name}"),
                here=here,
                secrets=[SECRET],
            )
            assert "202" in result.output, result
        shown = {"authorization": f"Bearer {health['HOOKONCE_HEALTH_TOKEN']}"}
        ready = httpx2.get(f"{url}/readyz", headers=shown, trust_env=False).json()
        assert ready["ready"], "deliveries can be stored"
        assert len(ready["warnings"]) == len(paths), "no worker has begun"
        required = httpx2.get(
            f"{url}/readyz?workers=required", headers=shown, trust_env=False
        ).json()
        assert (required["ready"], required["problems"]) == (False, ready["warnings"])
    with running("worker", *arguments, here=here, secrets=[SECRET]) as worker:
        for name in paths:
            worker.printed(rf"at endpoint {name}, handlers: handle\n")
            worker.printed(
                rf"comment\.received evt_{name} at {name}: attempt 1 handled \([\d.]+ ms\)\n"
            )
        worker.process.terminate()
        assert worker.ended().status == 0
    assert sorted((here / "journal").read_text().split()) == [f"evt_{name}" for name in paths]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tenants:receivers.acne"], "no 'acne' in tenants.receivers; there is acme, bakery"),
        (["tenants:create_app"], "is a function; call it with --factory"),
        (["tenants:create_later", "--factory"], "is async; a factory must be a plain function"),
        (["tenants:nothing", "--factory"], "is not a function; leave out --factory"),
        (["tenants:nothing"], "is of type int, not a Receiver"),
        (["tenants:receivers."], "does not name a receiver"),
    ],
)
@pytest.mark.parametrize("command", ["worker", "serve", "chaos"])
def test_an_unusable_target_is_refused_in_one_line(
    command: str, arguments: list[str], words: str
) -> None:
    invoke(command, *arguments, secrets=[SECRET]).says(words, status=2)


BROKEN = """
import json
from hookonce import Receiver

def settings():
    return json.loads("no JSON")

receiver = Receiver(secrets=settings())
"""


@in_a_process
def test_an_error_of_a_module_shows_the_users_line(here: Path) -> None:
    (here / "broken.py").write_text(BROKEN)
    result = run("serve", "broken:receiver", here=here, secrets=[SECRET])
    result.says(
        "broken cannot start: json.decoder.JSONDecodeError: Expecting value",
        '(broken.py, line 6: return json.loads("no JSON"))',
        "python -c 'import broken' shows the full traceback",
        status=2,
    )


@in_a_process
def test_a_module_that_ends_itself_is_no_success(here: Path) -> None:
    (here / "ending.py").write_text("import sys\nsys.exit(0)\n")
    result = run("worker", "ending:receiver", here=here, secrets=[SECRET])
    result.says("ending called sys.exit(0) while it was imported", status=2)


@in_a_process
def test_the_log_of_a_server_is_json_on_demand(here: Path) -> None:
    arguments = ["tenants:app", "--port", "0", "--log-format", "json"]
    with running("serve", *arguments, here=here, secrets=[SECRET]) as server:
        url = server.printed(r"running on (http://\S+) ")[1]
        run("send", "comment.received", "--url", f"{url}/hooks/acme", here=here, secrets=[SECRET])
        server.printed("202 stored")
        lines = [json.loads(line) for line in server.errors.splitlines()]
    [line] = [one for one in lines if one.get("reason") == "stored"]
    assert (line["level"], line["logger"]) == ("info", "hookonce")
    assert (line["endpoint"], line["type"]) == ("acme", "comment.received")
    assert line["milliseconds"] > 0
    assert not any("color_message" in one for one in lines)


def test_the_log_says_no_more_than_its_level() -> None:
    loggers = log_settings("warning", "json", every_traceback=False)["loggers"]
    assert {loggers[name]["level"] for name in ("hookonce", "uvicorn")} == {"WARNING"}
    result = invoke("worker", "tenants:app", "--log-level", "loud")
    result.says("'loud' is not one of 'debug', 'info', 'warning', 'error'", status=2)
