"""`hookonce emulate --port` emulates the whole service, with a workspace from a file."""

import json
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from hookonce import verify

from .recorder import Recorder, recording
from .running import SECRET, Process, eventually, invoke, run
from .running import running as running_command

pytestmark = pytest.mark.sample(1, of="file")

KEY = "example_sk_0123456789abcdef"
WORKSPACE = f"""
name: Corner Bakery
plan: starter
keys: [{{key: {KEY}, role: editor}}]
channels:
  - {{id: ch_gone, platform: facebook, username: gone, status: disconnected}}
  - {{id: ch_insta, platform: instagram, username: corner.bakery}}
"""


@pytest.fixture
def server() -> Iterator[Recorder]:
    """Run a server that accepts and records every request."""
    with recording() as recorder:
        yield recorder


def described(folder: Path, more: str = "") -> str:
    (folder / "workspace.yaml").write_text(WORKSPACE + more)
    return "workspace.yaml"


def tried(line: str) -> httpx2.Response:
    """Send the request of a printed curl line."""
    curl, *rest, url = shlex.split(line)
    assert curl == "curl"
    options = list(zip(rest[::2], rest[1::2], strict=True))
    headers = dict(value.split(": ", 1) for option, value in options if option == "-H")
    bodies = [value for option, value in options if option == "-d"]
    with httpx2.Client(trust_env=False) as client:
        return client.request(
            "POST" if bodies else "GET", url, headers=headers, content="".join(bodies)
        )


def printed_calls(process: Process) -> list[str]:
    process.printed("/v1/posts\n")
    return [line for line in process.output.splitlines() if line.startswith("curl ")]


def test_emulate_prints_a_key_and_three_calls_that_work(tmp_path: Path) -> None:
    arguments = ["--port", "0", "--data", described(tmp_path), "--no-events"]
    with running_command("emulate", *arguments, here=tmp_path) as process:
        me, channels, post = (tried(line).json()["data"] for line in printed_calls(process))
        assert f"key {KEY}\n" in process.output
        process.signal(signal.SIGTERM)
        assert process.ended().errors == ""
    assert (me["workspace"]["name"], me["workspace"]["plan"]) == ("Corner Bakery", "starter")
    assert (me["key"]["role"], me["limits"]) == ("editor", {"requestsPerDay": 1000})
    assert [channel["id"] for channel in channels] == ["ch_insta"]
    assert post["status"] == "publishing"


def test_a_program_gets_the_key_and_the_calls_as_json(tmp_path: Path) -> None:
    with running_command("emulate", "--port", "0", "--no-events", "--json", here=tmp_path) as run:
        run.printed(r"\}\n")
        started = json.loads(run.output.splitlines()[0])
        assert tried(started["try"][0]).json()["data"]["key"]["role"] == "admin"
        assert f"Bearer {started['key']}" in started["try"][0]
        assert len(started["try"]) == 3


def test_posts_published_over_the_api_are_delivered_and_counted(
    server: Recorder, tmp_path: Path
) -> None:
    """The interface says (Events) that post.target.* events are sent once the result is known."""
    webhook = {"url": server.url, "events": ["post.target.published"]}
    data = described(tmp_path, f"webhooks: [{json.dumps(webhook)}]\n")
    arguments = ["--port", "0", "--data", data, "--no-events", "--speed", "500"]
    with running_command("emulate", *arguments, here=tmp_path) as process:
        post = tried(printed_calls(process)[2]).json()["data"]
        assert post["status"] == "publishing"
        eventually(lambda: server.requests, what="the event of the target")
        process.printed("handled")
        process.signal(signal.SIGTERM)
        ended = process.ended()
    (request,) = server.requests
    assert json.loads(request.body)["data"]["status"] == "published"
    assert ended.status == 0, ended
    assert "sent        1 events\ndelivered   1\n" in ended.output
    assert "given up    0\n" in ended.output


def test_a_described_webhook_is_signed_with_the_configured_secret(
    server: Recorder, tmp_path: Path
) -> None:
    """The service never shows this webhook's secret, so no receiver could learn a new secret."""
    (tmp_path / "secrets").write_text(SECRET)
    data = described(tmp_path, f"webhooks: [{{url: '{server.url}'}}]\n")
    arguments = ["--port", "0", "--data", data, "--events", "1"]
    with running_command(
        "emulate", *arguments, "--secrets-file", "secrets", here=tmp_path
    ) as process:
        eventually(lambda: server.requests, what="the event")
        process.signal(signal.SIGTERM)
    verify(server.requests[0].body, server.requests[0].headers, SECRET)


def test_a_secret_that_would_sign_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text(SECRET)
    file = str(tmp_path / "secrets")
    refusal = "--secrets-file has no use here: add --to, or describe a webhook without a secret"
    invoke("emulate", "--port", "0", "--secrets-file", file).says(refusal, status=2)


RECEIVER = """
from hookonce import EnvironmentSecrets, Receiver
from hookonce.events import CommentReceived

receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")

@receiver.on(CommentReceived)
async def note(event: CommentReceived) -> None: ...
"""


@pytest.mark.costs("5 s")
def test_the_printed_lines_are_all_that_reconcile_and_endpoints_need(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(RECEIVER)
    with running_command(
        "serve", "app:receiver", "--port", "0", here=tmp_path, secrets=[SECRET]
    ) as server:
        url = server.printed(r"http://127\.0\.0\.1:\d+")[0] + "/webhooks"
        arguments = ["--to", url, "--port", "0", "--type", "comment.received", "--events", "3"]
        with running_command("emulate", *arguments, here=tmp_path, secrets=[SECRET]) as service:
            webhook, to = service.printed(r"\nwebhook (\S+) to (\S+)\n").groups()
            exported = service.printed(r"\nexport (\S+) (\S+)\n").groups()
            environment = dict(setting.split("=", 1) for setting in exported)
            service.printed(r"(?s)(handled.*){3}")

            def command(*words: str) -> str:
                result = run(*words, here=tmp_path, secrets=[SECRET], environment=environment)
                assert result.status == 0, result
                return result.output

            assert to == url
            found = command("reconcile", "app:receiver", "--webhook", webhook)
            assert found.startswith("3 handled since ")
            assert command("endpoints", "list-deliveries", webhook).count("delivered") == 3
            assert command("endpoints", "test", webhook) == f"{webhook}: tested\n"
            assert command("endpoints", "disable", webhook) == f"{webhook}: disabled\n"
            assert command("endpoints", "enable", webhook) == f"{webhook}: active\n"
            changed = command("endpoints", "update", webhook, "--description", "Mine", "--json")
            assert json.loads(changed)["description"] == "Mine"
            service.signal(signal.SIGTERM)
            assert f"endpoint    {webhook} active, " in service.ended().output


def test_a_program_gets_the_webhooks_as_json(tmp_path: Path) -> None:
    hook = {"id": "wh_mine", "url": "http://127.0.0.1:9/", "events": ["comment.received"]}
    data = described(tmp_path, f"webhooks: [{json.dumps(hook)}]\n")
    arguments = ["--port", "0", "--data", data, "--no-events", "--json"]
    with running_command("emulate", *arguments, here=tmp_path) as process:
        process.printed(r"\}\n")
        started = json.loads(process.output.splitlines()[0])
    assert started["webhooks"] == [{"id": "wh_mine", "url": "http://127.0.0.1:9/"}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plan: golden", "plan: "),
        ("chanels: []", "chanels: Extra inputs are not permitted"),
        ("a: [", "this is not YAML"),
        ("keys: [{key: other_sk_0123456789}]", "a key is example_sk_"),
        ("channels: []\nposts: [{id: p, targets: [{channelId: c}]}]", "there is no channel 'c'"),
        ("- 1", "the workspace: "),
    ],
)
def test_a_file_that_describes_no_workspace_is_refused_in_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "workspace.yaml"
    path.write_text(text)
    invoke("emulate", "--port", "0", "--data", str(path)).says(message)


def test_a_workspace_can_be_described_in_json_and_faults_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "workspace.json"
    path.write_text('{"plan": "starter"')
    invoke("emulate", "--port", "0", "--data", str(path)).says("does not describe a workspace")
    path.write_bytes(b"\xff\xfe")
    invoke("emulate", "--port", "0", "--data", str(path)).says("does not describe a workspace")


def test_without_events_and_without_an_api_there_is_nothing_to_do() -> None:
    invoke("emulate", "--to", "http://127.0.0.1:9/", "--no-events").says("--port", status=2)
