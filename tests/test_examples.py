"""Every example runs with the command in its first lines, and does what its text says."""

import json
import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from cli.running import COMMAND, PATIENCE_SECONDS, SECRET, Process, Result, eventually, run, running

from hookonce.senders import Sender, openai
from hookonce.testing import SignedRequest, event_body, signed_request
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.sample(3, of="file")

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"

COVERED = {
    "answering.py": "test_the_bot_that_answers_comments_passes_a_simulation_with_its_api",
    "django_app.py": "test_the_django_project_handles_each_event_once",
    "fastapi_app.py": "test_the_fastapi_application_handles_each_event_once",
    "flask_app.py": "test_the_flask_view_verifies_and_reads_deliveries",
    "flask_receiver.py": "test_the_flask_application_handles_each_event_once",
    "inbox_app.py": "test_a_worker_handles_the_events_that_the_web_process_has_stored",
    "lambda_function.py": "test_the_lambda_function_handles_each_event_once",
    "litestar_app.py": "test_the_litestar_application_handles_each_event_once",
    "mcp_events.py": "test_mcp_events_are_received_and_the_challenge_is_answered",
    "metrics_app.py": "test_the_metrics_of_the_example_are_on_a_separate_port",
    "openai_app.py": "test_completed_responses_of_openai_are_handled_once",
    "out_of_turn.py": "test_chaos_finds_the_mistake_of_the_example_with_times_of_arrival",
    "own_store.py": "test_a_store_of_your_own_remembers_events_after_a_restart",
    "publishing.py": "test_the_events_missed_in_a_two_day_outage_are_backfilled",
    "social_inbox.py": "test_two_workers_handle_the_events_of_three_tenants",
    "seen_too_soon.py": "test_chaos_finds_the_mistake_of_the_example_that_marks_events_too_soon",
    "standalone_verify.py": "test_the_standalone_script_prints_its_results",
    "starlette_app.py": "test_the_starlette_application_handles_each_event_once",
    "wsgi_app.py": "test_the_wsgi_application_handles_each_event_once",
}
"""The test of each example."""


def test_every_example_has_a_test() -> None:
    names = {path.name for path in EXAMPLES.rglob("*.py")}
    assert {name for name in names if not name.startswith("test_")} == set(COVERED)
    assert [name for name in COVERED.values() if not callable(globals().get(name))] == []


@pytest.mark.parametrize("name", COVERED)
def test_an_example_says_how_it_is_run(name: str) -> None:
    module = name.removesuffix(".py")
    docstring = (EXAMPLES / name).read_text("utf-8").split('"""')[1]
    assert f"examples.{module}" in docstring or f"python examples/{name}" in docstring


MODULE = [sys.executable, "-m"]


class Site:
    """A running example, and the folder in which it was started."""

    def __init__(self, client: httpx2.Client, process: Process) -> None:
        self._client = client
        self.process = process

    def deliver(
        self, event_type: str, event_id: str, *, attempt: int = 1, path: str = "/webhooks"
    ) -> httpx2.Response:
        body = event_body(event_type, event_id=event_id)
        return self.post(signed_request(body, SECRET, attempt=attempt), path=path)

    def post(self, request: SignedRequest, *, path: str = "/webhooks") -> httpx2.Response:
        return self._client.post(path, content=request.body, headers=dict(request.headers))

    def get(self, path: str) -> httpx2.Response:
        return self._client.get(path)


@contextmanager
def served(
    here: Path, *arguments: str, command: Sequence[str] = MODULE, **settings: str
) -> Iterator[Site]:
    """Run a server in a folder, by default with ``python -m``."""
    environment = {"PYTHONPATH": str(ROOT), **settings}
    with running(
        *arguments, here=here, secrets=[SECRET], environment=environment, command=command
    ) as process:
        url = process.printed(r"(?i)running on (http://127\.0\.0\.1:\d+)")[1]
        with httpx2.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False) as client:
            yield Site(client, process)


@contextmanager
def served_by_uvicorn(here: Path, app: str) -> Iterator[Site]:
    with served(here, "uvicorn", app, "--port", "0") as site:
        yield site
        assert (here / "hookonce.db").exists()


def reason(response: httpx2.Response) -> str:
    return str(response.json()["reason"])


def signed(body: Mapping[str, object], message_id: str, sender: Sender) -> SignedRequest:
    return signed_request(json.dumps(body).encode(), SECRET, message_id=message_id, sender=sender)


def test_completed_responses_of_openai_are_handled_once(tmp_path: Path) -> None:
    def event(event_type: str) -> dict[str, object]:
        return {
            "id": "evt_abc123",
            "object": "event",
            "created_at": 1719168000,
            "type": event_type,
            "data": {"id": "resp_abc123"},
        }

    with served_by_uvicorn(tmp_path, "examples.openai_app:app") as site:
        completed = signed(event("response.completed"), "wh_1", openai)
        assert reason(site.post(completed)) == "handled"
        assert reason(site.post(completed)) == "duplicate"
        assert reason(site.post(signed(event("response.failed"), "wh_2", openai))) == "handled"
        assert reason(site.post(signed(event("video.completed"), "wh_3", openai))) == "handled"
        assert site.post(completed.tampered()).status_code == 401
        site.process.printed("no class for video.completed")
    printed = site.process.output
    assert re.search(r"completed: resp_abc123 \(default:wh_1:\S*completed\)\n", printed)
    assert "response.failed: resp_abc123 at " in printed


def test_mcp_events_are_received_and_the_challenge_is_answered(tmp_path: Path) -> None:
    incident = {
        "eventId": "evt_789",
        "name": "incident.created",
        "timestamp": "2026-02-19T16:00:00Z",
        "data": {"incidentId": "INC-1234", "title": "Pool exhausted", "severity": "P1"},
        "cursor": "cursor_xyz",
    }
    mcp = Sender(name="mcp-events")
    with served_by_uvicorn(tmp_path, "examples.mcp_events:app") as site:
        challenge = {"type": "verification", "challenge": "n0nce"}
        answer = site.post(signed(challenge, "msg_verification_1", mcp))
        assert (answer.status_code, answer.json()) == (200, {"challenge": "n0nce"})
        forged = signed(challenge, "msg_verification_1", mcp).tampered()
        assert site.post(forged).status_code == 401
        assert reason(site.post(signed(incident, "evt_789", mcp))) == "handled"
        assert reason(site.post(signed(incident, "evt_789", mcp))) == "duplicate"
        gap = {"type": "gap", "cursor": "cursor_new"}
        assert reason(site.post(signed(gap, "msg_gap_1", mcp))) == "handled"
        site.process.printed("the subscription: gap")
    printed = site.process.output
    assert printed.count("INC-1234: Pool exhausted\ncursor: cursor_xyz\n") == 1


def test_the_starlette_application_handles_each_event_once(tmp_path: Path) -> None:
    with served_by_uvicorn(tmp_path, "examples.starlette_app:app") as site:
        assert reason(site.deliver("comment.received", "evt_1")) == "handled"
        assert reason(site.deliver("comment.received", "evt_1", path="/webhooks/")) == "duplicate"
        assert site.deliver("post.target.failed", "evt_2").status_code == 200
        assert reason(site.deliver("webhook.test", "evt_3")) == "no_handler"
        forged = signed_request(event_body("comment.received"), SECRET).tampered()
        assert site.post(forged).status_code == 401
        assert site.get("/livez").status_code == 200
        assert site.get("/readyz").json()["ready"] is True
        site.process.printed("instagram: media.rejected")
    printed = site.process.output
    assert printed.count("ines.walks: Do you have the walnut bread") == 1
    assert re.search(r"instagram: media\.rejected \(default:evt_2:\S*alert\)\n", printed)


def test_the_fastapi_application_handles_each_event_once(tmp_path: Path) -> None:
    with served_by_uvicorn(tmp_path, "examples.fastapi_app:app") as site:
        assert site.get("/messages").json() == []
        for wanted in ("handled", "duplicate"):
            assert reason(site.deliver("message.received", "evt_1")) == wanted
        assert site.get("/messages").json() == ["direct_message"]
        assert site.deliver("channel.unhealthy", "evt_2").status_code == 200
        assert site.deliver("channel.disconnected", "evt_3").status_code == 200
        assert site.get("/webhooks").status_code == 405
    printed = site.process.output
    assert "harbour.bakery is needs_reconnect\n" in printed
    assert "harbour.bakery is disconnected\n" in printed


@pytest.mark.parametrize("module", ["starlette_app", "fastapi_app"])
def test_the_receiver_of_an_example_can_be_served_alone(module: str, tmp_path: Path) -> None:
    arguments = ["serve", f"examples.{module}:receiver", "--port", "0"]
    with served(tmp_path, *arguments, command=COMMAND) as site:
        wanted = {"starlette_app": "comment.received", "fastapi_app": "message.received"}[module]
        assert reason(site.deliver(wanted, "evt_1")) == "handled"
        assert reason(site.deliver(wanted, "evt_1")) == "duplicate"
        assert site.get("/readyz").status_code == 200


def test_an_example_remembers_handled_events_after_a_restart(tmp_path: Path) -> None:
    for wanted in ("handled", "duplicate"):
        with served_by_uvicorn(tmp_path, "examples.fastapi_app:app") as site:
            assert reason(site.deliver("message.received", "evt_1")) == wanted


def test_a_store_of_your_own_remembers_events_after_a_restart(tmp_path: Path) -> None:
    arguments = ["serve", "examples.own_store:receiver", "--port", "0"]
    for wanted in ("handled", "duplicate"):
        with served(tmp_path, *arguments, command=COMMAND) as site:
            assert reason(site.deliver("comment.received", "evt_1")) == wanted
            assert site.get("/readyz").status_code == 200
    [event] = (tmp_path / "events" / "events").iterdir()
    assert event.stat().st_mode & 0o077 == 0


def test_a_worker_handles_the_events_that_the_web_process_has_stored(tmp_path: Path) -> None:
    with served_by_uvicorn(tmp_path, "examples.inbox_app:app") as site:
        assert reason(site.deliver("comment.received", "evt_1")) == "stored"
        assert reason(site.deliver("comment.received", "evt_1", attempt=2)) == "duplicate"
        assert site.get("/readyz?workers=required").status_code == 503
        environment = {
            "PYTHONPATH": str(ROOT),
            "STORE_URL": f"sqlite:///{tmp_path / 'hookonce.db'}",
        }
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        arguments = ["worker", "examples.inbox_app:receiver"]
        with running(
            *arguments, here=elsewhere, secrets=[SECRET], environment=environment
        ) as worker:
            worker.printed("attempt 2: Do you have the walnut bread")
            assert reason(site.deliver("post.target.failed", "evt_2")) == "stored"
            worker.printed("instagram: media.rejected")
            eventually(
                lambda: site.get("/readyz?workers=required").status_code == 200, what="it is ready"
            )
        assert "walnut" not in site.process.output


def test_two_workers_handle_the_events_of_three_tenants(tmp_path: Path) -> None:
    secrets = {tenant: new_secret() for tenant in ("acme", "bakery", "clinic")}
    settings = {f"{tenant.upper()}_SECRETS": secret for tenant, secret in secrets.items()}
    arguments = ["uvicorn", "examples.social_inbox:app", "--port", "0"]
    environment = {"PYTHONPATH": str(ROOT), **settings}
    with served(tmp_path, *arguments, **settings) as site:
        for tenant, secret in secrets.items():
            body = event_body("comment.received", event_id="evt_1", data={"text": f"Hi {tenant}"})
            answer = site.post(signed_request(body, secret), path=f"/webhooks/{tenant}")
            assert reason(answer) == "stored"
        assert site.get("/readyz").status_code == 200, "deliveries are stored without workers"
        worker = ["worker", "examples.social_inbox:receivers", "--processes", "2"]
        with running(*worker, here=tmp_path, environment=environment) as working:
            for tenant in secrets:
                working.printed(rf"comment\.received evt_1 at {tenant}: attempt 1 handled")
            spam = event_body("comment.received", event_id="evt_2", data={"text": "Free followers"})
            site.post(signed_request(spam, secrets["bakery"]), path="/webhooks/bakery")
            working.printed(r"comment\.received evt_2 at bakery: attempt 1 buried as rejected")
        for tenant in secrets:
            [item] = site.get(f"/tenants/{tenant}/items").json()
            assert item["text"] == f"Hi {tenant}"
        assert site.get("/tenants/nobody/items").status_code == 404
    named = ["dead", "list", "examples.social_inbox:receivers.bakery"]
    listed = run(*named, here=tmp_path, environment=environment)
    assert "evt_2" in listed.output, listed


def test_the_flask_view_verifies_and_reads_deliveries(tmp_path: Path) -> None:
    with served(tmp_path, "flask", "--app", "examples.flask_app", "run", "--port", "0") as site:
        for path in ("/webhooks", "/webhooks/"):
            answer = site.deliver("comment.received", "evt_1", path=path)
            assert (answer.status_code, answer.text) == (200, "handled")
        site.process.printed("ines.walks: Do you have the walnut bread")
        request = signed_request(event_body("comment.received"), SECRET)
        forged = site.post(request.tampered())
        assert (forged.status_code, forged.text) == (401, "no_matching_signature")
        unsigned = site.post(SignedRequest(request.body, {"content-type": "application/json"}))
        assert (unsigned.status_code, unsigned.text) == (400, "missing_id")
        unreadable = site.post(signed_request(b"no JSON", SECRET))
        assert (unreadable.status_code, unreadable.text) == (500, "not_json")
        assert site.get("/webhooks").status_code == 405


def test_the_flask_application_handles_each_event_once(tmp_path: Path) -> None:
    arguments = ["flask", "--app", "examples.flask_receiver", "run", "--port", "0"]
    with served(tmp_path, *arguments) as site:
        check_a_comment_is_handled_once(site)
        assert site.get("/comments").json() == ["Do you have the walnut bread on Saturdays? 🍞"]
        assert site.deliver("post.target.failed", "evt_2").status_code == 200
        site.process.printed(r"instagram: default:evt_2:\S*alert")


def check_a_comment_is_handled_once(site: Site) -> None:
    assert reason(site.deliver("comment.received", "evt_1")) == "handled"
    assert reason(site.deliver("comment.received", "evt_1", path="/webhooks/")) == "duplicate"
    forged = signed_request(event_body("comment.received"), SECRET).tampered()
    assert site.post(forged).status_code == 401
    assert site.get("/webhooks").status_code == 405


def test_the_wsgi_application_handles_each_event_once(tmp_path: Path) -> None:
    script = str(EXAMPLES / "wsgi_app.py")
    with served(tmp_path, script, command=[sys.executable], PORT="0") as site:
        check_a_comment_is_handled_once(site)
        assert site.get("/elsewhere").status_code == 404
    assert site.process.output.count("ines.walks: Do you have the walnut bread") == 1


def test_the_django_project_handles_each_event_once(tmp_path: Path) -> None:
    with served_by_uvicorn(tmp_path, "examples.django_app:application") as site:
        check_a_comment_is_handled_once(site)
        [comment] = site.get("/comments/").json()["comments"]
        assert comment.startswith("Do you have the walnut bread")


def test_the_litestar_application_handles_each_event_once(tmp_path: Path) -> None:
    with served_by_uvicorn(tmp_path, "examples.litestar_app:app") as site:
        check_a_comment_is_handled_once(site)
        assert site.get("/comments").json() == ["Do you have the walnut bread on Saturdays? 🍞"]


INVOCATIONS = """
import json, sys
from examples.lambda_function import handler
for event in json.loads(sys.argv[1]):
    print(json.loads(handler(event, None)["body"])["reason"], flush=True)
"""


def test_the_lambda_function_handles_each_event_once(tmp_path: Path) -> None:
    request = signed_request(event_body("comment.received"), SECRET)
    event = {
        "version": "2.0",
        "headers": dict(request.headers),
        "requestContext": {"http": {"method": "POST"}},
        "body": request.body.decode(),
        "isBase64Encoded": False,
    }
    result = run(
        json.dumps([event, event]),
        here=tmp_path,
        secrets=[SECRET],
        command=[sys.executable, "-c", INVOCATIONS],
        environment={
            "PYTHONPATH": str(ROOT),
            "STORE_URL": f"sqlite:///{tmp_path / 'hookonce.db'}",
        },
    )
    assert (result.status, result.errors) == (0, "")
    said, *reasons = result.output.splitlines()
    assert said.startswith("ines.walks: Do you have the walnut bread")
    assert reasons == ["handled", "duplicate"]


def test_the_bot_that_answers_comments_passes_a_simulation_with_its_api() -> None:
    arguments = ("chaos", "examples.answering:receiver", "--events", "60", "--seed", "7", "--json")
    result = run(*arguments, here=ROOT)
    assert (result.status, result.errors) == (0, "")
    report = json.loads(result.output)
    assert report["replies"] > 0
    assert report["replied_twice"] == 0


def test_chaos_finds_the_mistake_of_the_example_that_marks_events_too_soon(tmp_path: Path) -> None:
    arguments = ["chaos", "examples.seen_too_soon:receiver", "--events", "40", "--seed", "1"]
    result = run(*arguments, here=tmp_path, environment={"PYTHONPATH": str(ROOT)})
    assert result.status == 1
    assert result.output.startswith("lost: comment.received evt_")
    assert "receiver  answers 200 duplicate\n" in result.output
    assert list(tmp_path.iterdir()) == []


def test_chaos_finds_the_mistake_of_the_example_with_times_of_arrival(tmp_path: Path) -> None:
    arguments = ["chaos", "examples.out_of_turn:receiver", "--events", "40", "--seed", "1"]
    result = run(*arguments, "--json", here=tmp_path, environment={"PYTHONPATH": str(ROOT)})
    assert result.status == 1
    *findings, summary = map(json.loads, result.output.splitlines())
    assert {found["breach"] for found in findings} == {"stale_overwrite"}
    assert summary["stale_overwrite"] > 0
    assert summary["lost"] == summary["handled_twice"] == summary["overlap"] == 0


def test_the_standalone_script_prints_its_results(tmp_path: Path) -> None:
    script = str(EXAMPLES / "standalone_verify.py")
    result = run(script, here=tmp_path, command=[sys.executable])
    assert result == Result(
        0,
        "delivery.id == event.id=True, delivery.secret_index=1\n"
        "Lovely bread!\n"
        "refused: no_matching_signature True\n",
        "",
    )
    assert list(tmp_path.iterdir()) == [], "it needs no store"


WITH_SECRETS = [
    "django_app",
    "fastapi_app",
    "flask_app",
    "flask_receiver",
    "inbox_app",
    "lambda_function",
    "litestar_app",
    "starlette_app",
    "wsgi_app",
]


@pytest.mark.sample(1)
@pytest.mark.parametrize("module", WITH_SECRETS)
def test_without_secrets_an_example_does_not_start(module: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"import examples.{module}"]
    result = run(here=tmp_path, command=command, environment={"PYTHONPATH": str(ROOT)})
    assert result.status == 1
    assert "set the environment variable HOOKONCE_SECRETS" in result.errors
    assert list(tmp_path.iterdir()) == []


def test_the_metrics_of_the_example_are_on_a_separate_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ("uvicorn", "examples.metrics_app:app", "--port", "0")
    with served(tmp_path, *command, METRICS_PORT=str(port)) as site:
        assert reason(site.deliver("comment.received", "evt_1")) == "handled"
        text = httpx2.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
        assert 'reason="handled",status="200"} 1.0' in text
        assert 'hookonce_store_up{endpoint="default"} 1.0' in text
        assert site.get("/metrics").status_code == 404


def test_the_events_missed_in_a_two_day_outage_are_backfilled(tmp_path: Path) -> None:
    arguments = ["emulate", "--port", "0", "--no-events", "--speed", "40000"]
    data = str(EXAMPLES / "publishing.yaml")
    with running(*arguments, "--data", data, here=tmp_path) as service:
        url, key = service.printed(r"API at (http://\S+), key (\S+)").groups()
        done = run(
            str(EXAMPLES / "publishing.py"),
            url,
            here=tmp_path,
            environment={"HOOKONCE_API_KEY": key},
            command=[sys.executable],
        )
    assert done.status == 0, done
    assert done.output.count("noted: ") == 4
    assert "published on instagram\n" in done.output
    assert "published on bluesky\n" in done.output
    assert "answered ines.walks: done" in done.output
    assert done.output.endswith("backfilled 2, 0 missing\n")
    assert key not in done.output + done.errors


ANOTHER_POST = """
import asyncio
from types import SimpleNamespace
from examples.publishing import publish
from hookonce import Receiver
from hookonce.events import PostTargetFailed, PostTargetPublished
from hookonce.resources import PostInput, PostTargetInput
from hookonce.testing import make_event
from hookonce.verification.secrets import new_secret

receiver = Receiver(secrets=new_secret(), store="memory://")


class Posts:
    status = "draft"

    async def create(self, post):
        return SimpleNamespace(id="post_own")

    async def get(self, post_id):
        if self.status == "publishing":
            await receiver.backfill(make_event(PostTargetPublished, data={"id": "own"}))
            self.status = "own"
        return SimpleNamespace(status=self.status, targets=[SimpleNamespace(id="own")])

    async def publish(self, post_id):
        self.status = "publishing"
        await receiver.backfill(make_event(PostTargetPublished, data={"id": "another"}))


async def main():
    posts = Posts()
    post = PostInput(caption="Fresh rye.", targets=[PostTargetInput(channel_id="ch_1")])
    async with receiver:
        await publish(SimpleNamespace(posts=posts), receiver, post)
    print("waited for:", posts.status)


asyncio.run(main())
"""


def test_publishing_does_not_end_with_the_event_of_another_post(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ANOTHER_POST]
    done = run(here=tmp_path, command=command, environment={"PYTHONPATH": str(ROOT)})
    assert done.status == 0, done
    assert done.output.endswith("waited for: own\n")


def test_a_failed_target_is_reported_as_failed(tmp_path: Path) -> None:
    own = 'data={"id": "own"}'
    failing = ANOTHER_POST.replace(f"PostTargetPublished, {own}", f"PostTargetFailed, {own}")
    command = [sys.executable, "-c", failing]
    done = run(here=tmp_path, command=command, environment={"PYTHONPATH": str(ROOT)})
    assert done.status == 0, done
    assert re.match(r"failed on \w+: \S+\nwaited for: own\n", done.output), done


SEVERAL_RUNS = """
import asyncio
import httpx2
from examples.publishing import registered
from hookonce.client import Client
from hookonce.emulator import EmulatedService


async def main():
    known = set()
    for service in (EmulatedService(), EmulatedService()):
        transport = httpx2.ASGITransport(service.api)
        async with Client("https://service.test", service.new_key(), transport=transport) as client:
            for port in range(3):
                url = f"http://127.0.0.1:{8000 + port}/webhooks"
                webhook_id, secret = await registered(client, url)
                assert [(one.id, one.url) for one in service.endpoints] == [(webhook_id, url)]
                assert service.secret(webhook_id) == secret
                known.add(secret)
    print("secrets:", len(known))


asyncio.run(main())
"""


def test_an_example_that_runs_again_registers_no_second_endpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SEVERAL_RUNS]
    done = run(here=tmp_path, command=command, environment={"PYTHONPATH": str(ROOT)})
    assert (done.status, done.output) == (0, "secrets: 2\n"), done
    (kept,) = tmp_path.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
