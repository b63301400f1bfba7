"""`hookonce doctor` finds each planted mistake by name, with its fix, and nothing else."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.redis_servers import RedisServer, redis_server

from .inboxes import url_of
from .running import COMMAND, OLD_SECRET, SECRET, Result, invoke, run, running

pytestmark = pytest.mark.sample(2, of="file")

APP = '''
"""Receivers and applications with one mistake each, and some without."""
import json
import os
import time
from datetime import timedelta

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import RedirectResponse
from starlette.routing import Mount

from hookonce import EnvironmentSecrets, Inbox, Receiver
from hookonce.events import CommentReceived, WebhookTest

STORE = os.environ.get("STORE", "sqlite:///hookonce.db")


def new_receiver(*wanted, **settings):
    settings = {"secrets": EnvironmentSecrets(), "store": STORE, **settings}
    receiver = Receiver(**settings)
    for one in wanted or (CommentReceived,):
        receiver.on(one, name=str(one))(handle)
    return receiver


async def handle(event):
    print("a handler that prints")


def application(receiver, *middleware, **settings):
    settings = {"lifespan": receiver.lifespan, **settings}
    routes = settings.pop("routes", receiver.routes("/webhooks"))
    return Starlette(routes=routes, middleware=[Middleware(m) for m in middleware], **settings)


class Recoding(BaseHTTPMiddleware):
    async def dispatch(self, request, call_next):
        request._body = json.dumps(json.loads(await request.body())).encode()
        return await call_next(request)


class Login(BaseHTTPMiddleware):
    async def dispatch(self, request, call_next):
        return RedirectResponse("/login", 302)


print("a module that prints")
sound_receiver = new_receiver("*")
sound = application(sound_receiver)
in_memory = new_receiver(store="memory://")
forgetful = new_receiver(retention=timedelta(days=2))
workerless = new_receiver(inbox=Inbox(embedded=False))
deaf = Receiver(secrets=EnvironmentSecrets(), store=STORE)
misspelt = new_receiver("comment.recieved", CommentReceived)
fast = new_receiver(clock=lambda: time.time() + 4000)
unwired = application(new_receiver(inbox=Inbox()), lifespan=None)
recoding = application(new_receiver(), Recoding)
login = application(new_receiver(), Login)
mounted_receiver = new_receiver()
mounted = application(mounted_receiver, routes=[Mount("/webhooks", mounted_receiver)])
slow_receiver = new_receiver()
slow = application(slow_receiver)


@slow_receiver.on(WebhookTest, name="slow")
def slow_handler(event):
    time.sleep(2.05)


first, second = new_receiver(endpoint="first"), new_receiver(endpoint="second")
several = application(first, routes=[*first.routes("/one"), *second.routes("/two")])


def create_app():
    return sound
'''
FILE_APP = """
from hookonce import FileSecrets, Receiver

receiver = Receiver(secrets=FileSecrets("missing-secrets"))
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a folder with the applications' module."""
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "files.py").write_text(FILE_APP)
    return tmp_path


@pytest.fixture
def redis_url(lasting_valkey: RedisServer) -> str:
    """Return the URL of a server that persists everything: the doctor finds no fault in it."""
    return lasting_valkey.url


def doctor(
    name: str, *arguments: str, here: Path, store: str | None = None, secret: str = SECRET
) -> Result:
    environment = {"STORE": store} if store else {}
    return run("doctor", name, *arguments, here=here, secrets=[secret], environment=environment)


def records(result: Result) -> list[dict[str, Any]]:
    """Return the findings; the last line, the verdict, must agree with them."""
    *findings, verdict = [json.loads(line) for line in result.output.splitlines()]
    for level in ("fault", "warning", "note"):
        assert verdict[f"{level}s"] == sum(finding["level"] == level for finding in findings)
    assert (result.status == 1) is (verdict["faults"] > 0)
    assert "Traceback" not in result.errors
    return findings


def above_note(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [finding for finding in findings if finding["level"] in {"warning", "fault"}]


@contextmanager
def serving(name: str, here: Path, store: str) -> Iterator[str]:
    """Serve an application with uvicorn in another process, and yield the receiver's URL."""
    command = [sys.executable, "-m", "uvicorn", f"app:{name}", "--port", "0"]
    environment = {"STORE": store}
    with running(here=here, secrets=[SECRET], environment=environment, command=command) as server:
        yield f"{url_of(server)}/webhooks"


@pytest.mark.parametrize(
    ("name", "level", "check", "found", "fix"),
    [
        ("in_memory", "fault", "store.durability", "the store is memory", "sqlite:///"),
        ("forgetful", "note", "retention", "remembered for 2 days", "15 days"),
        (
            "workerless",
            "fault",
            "inbox",
            "no worker is running for the inbox",
            "start hookonce worker",
        ),
        ("deaf", "fault", "handlers", "no handler is registered", "@receiver.on"),
        ("misspelt", "warning", "event_types", "comment.recieved", "write 'comment.received'"),
        ("fast", "fault", "clock", "4000 s ahead of", "NTP"),
        ("unwired", "fault", "application.lifespan", "never start", "receiver.lifespan"),
        ("recoding", "fault", "application.body", "rewrites the body", "pass the bytes on"),
        ("login", "fault", "application.answer", "302, a redirect to /login", "exempt this path"),
        ("mounted", "fault", "application.slash", "redirected (307)", "receiver.routes(path)"),
        (
            "slow",
            "warning",
            "application.time",
            "s to answer, and the sender waits",
            "inbox=Inbox()",
        ),
    ],
)
def test_a_planted_mistake_is_found_by_name_with_its_fix(
    name: str, level: str, check: str, found: str, fix: str, here: Path, redis_url: str
) -> None:
    result = doctor(f"app:{name}", "--json", here=here, store=redis_url)
    findings = records(result)
    [planted] = [finding for finding in findings if finding["check"] == check]
    assert planted["level"] == level
    assert found in planted["found"]
    assert fix in planted["fix"]
    assert above_note(findings) == ([planted] if level != "note" else [])
    assert result.status == (1 if level == "fault" else 0)


def test_a_secret_file_that_cannot_be_read_is_a_fault(here: Path) -> None:
    result = doctor("files:receiver", "--json", here=here)
    [found] = records(result)
    assert (found["check"], found["level"]) == ("secrets", "fault")
    assert "cannot read the secrets in missing-secrets" in found["found"]
    assert "correct the path" in found["fix"]


def test_a_server_that_forgets_and_evicts_is_named(here: Path) -> None:
    with redis_server("--maxmemory-policy", "allkeys-lru") as server:
        findings = records(doctor("app:sound", "--json", here=here, store=server.url))
    assert [(f["check"], f["level"]) for f in above_note(findings)] == [
        ("store.settings", "fault"),
        ("store.settings", "warning"),
    ]
    assert {f["fix"] for f in above_note(findings)} == {
        "set it to noeviction",
        "set appendonly yes",
    }


def test_events_stranded_in_an_inbox_are_found(here: Path, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/hooks.db"
    with running(
        "serve",
        "app:workerless",
        "--port",
        "0",
        here=here,
        secrets=[SECRET],
        environment={"STORE": store},
    ) as server:
        url = f"{url_of(server)}/webhooks"
        sent = run("send", "comment.received", "--url", url, here=here, secrets=[SECRET])
        assert sent.status == 0, sent
    findings = records(doctor("app:sound", "--json", here=here, store=store))
    [found] = [finding for finding in findings if finding["check"] == "inbox"]
    assert found["level"] == "fault"
    assert found["found"].startswith("the inbox of default has no worker (1 waiting)")
    assert "inbox=Inbox()" in found["fix"]


def test_a_sound_application_has_no_faults_in_process_or_served(here: Path, redis_url: str) -> None:
    with serving("sound", here, redis_url) as url:
        result = doctor("app:sound", "--url", url, "--json", here=here, store=redis_url)
        findings = records(result)
        assert above_note(findings) == []
        assert result.status == 0
        assert "a handler that prints" not in result.errors, "business code has run"
        [forgery] = [finding for finding in findings if finding["check"] == "url.forgery"]
        assert "refused with 401" in forgery["found"]

        other = doctor(
            "app:sound", "--url", url, "--json", here=here, store=redis_url, secret=OLD_SECRET
        )
    [answer] = above_note(records(other))
    assert (answer["check"], answer["level"]) == ("url.answer", "fault")
    assert "other secrets" in answer["found"]


def test_the_doctor_repeats_the_warnings_of_the_server(here: Path, redis_url: str) -> None:
    environment = {"STORE": redis_url, "HOOKONCE_HEALTH_TOKEN": "a token for those who may know"}
    serve = [*COMMAND, "serve", "app:sound_receiver", "--port", "0"]
    with running(here=here, secrets=[SECRET], environment=environment, command=serve) as server:
        url = f"{url_of(server)}/webhooks"
        for _ in range(4):
            send = ["send", "comment.received", "--url", url]
            run(*send, here=here, secrets=[OLD_SECRET])
        result = run(
            *("doctor", "app:sound_receiver", "--url", url, "--json"),
            here=here,
            secrets=[SECRET],
            environment=environment,
        )
        hidden = doctor("app:sound_receiver", "--url", url, here=here, store=redis_url)
    found = [one for one in records(result) if one["check"] == "url.readyz"]
    assert [(one["level"], one["fix"] != "") for one in found] == [("warning", True)]
    assert "no_matching_signature" in found[0]["found"]
    assert "set $HOOKONCE_HEALTH_TOKEN" in hidden.output


@pytest.mark.parametrize(
    ("name", "check"),
    [("recoding", "url.body"), ("login", "url.answer"), ("mounted", "url.slash")],
)
def test_a_mistake_of_the_served_application_is_found_if_only_the_receiver_is_named(
    name: str, check: str, here: Path, redis_url: str
) -> None:
    with serving(name, here, redis_url) as url:
        result = doctor("app:sound_receiver", "--url", url, "--json", here=here, store=redis_url)
    [found] = above_note(records(result))
    assert (found["check"], found["level"]) == (check, "fault")


def test_for_people_each_finding_is_a_line_with_its_fix_below_and_a_count_at_the_end(
    here: Path, redis_url: str
) -> None:
    result = doctor("app:recoding", here=here, store=redis_url)
    lines = result.output.splitlines()
    [fault] = [number for number, line in enumerate(lines) if line.startswith("fault ")]
    assert "application.body" in lines[fault]
    assert lines[fault + 1].strip().startswith("fix: exempt the receiver's path")
    assert lines[0].startswith("ok       secrets ")
    assert lines[-1].startswith("1 fault, 0 warnings, ")
    assert "a module that prints" in result.errors, "what is not the report goes elsewhere"


def test_each_receiver_of_an_application_is_looked_at(here: Path, redis_url: str) -> None:
    result = doctor("app:several", here=here, store=redis_url)
    assert "endpoint first\n" in result.output
    assert "endpoint second\n" in result.output
    assert result.output.count("/two answers 200") == 1


def test_a_module_that_raises_is_a_fault_with_its_line_but_without_its_message(here: Path) -> None:
    (here / "broken.py").write_text("\nraise RuntimeError('opensesame')\n")
    [found] = records(doctor("broken:receiver", "--json", here=here))
    assert (found["check"], found["level"]) == ("import", "fault")
    assert "RuntimeError in broken.py, line 2" in found["found"]
    assert "opensesame" not in found["found"]


@pytest.mark.parametrize(
    "lookup",
    [
        "os.environ['NO_SUCH_SETTING']",
        "{}['opensesame']",
        "os.environ['X'] = 'opensesame'; {}[os.environ['X']]",
    ],
)
def test_only_the_name_of_an_unset_variable_is_shown(lookup: str, here: Path) -> None:
    (here / "unset.py").write_text(f"import os\n{lookup}\n")
    result = run("doctor", "unset:receiver", here=here)
    found = (
        "the environment variable 'NO_SUCH_SETTING' is not set (unset.py, line 2)"
        if "NO_SUCH" in lookup
        else "unset cannot start: KeyError in unset.py, line 2"
    )
    assert found in result.output
    assert "opensesame" not in result.output
    assert result.status == 1


def test_settings_that_the_receiver_refuses_are_reported_with_its_message(here: Path) -> None:
    text = FILE_APP.replace('FileSecrets("missing-secrets")', f'"{SECRET}", store="ftp://there"')
    (here / "refused.py").write_text(text)
    [found] = records(doctor("refused:receiver", "--json", here=here))
    assert "no store has the scheme 'ftp'" in found["found"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("app",), "write MODULE:NAME"),
        (("nowhere:receiver",), "there is no module 'nowhere'"),
        (("app:nothing",), "there is no 'nothing' in app"),
        (("app:handle",), "is not a receiver and contains none"),
        (("app:create_app",), "is a function; call it with --factory"),
        (("app:sound", "--url", "hooks.example"), "--url takes an http or https URL"),
        (("app:several", "--url", "https://hooks.example/three"), "the path of no receiver"),
    ],
)
def test_arguments_that_cannot_be_used_end_with_the_usage(
    arguments: tuple[str, ...], words: str, here: Path
) -> None:
    result = doctor(*arguments, here=here)
    assert (result.status, result.output) == (2, "")
    assert words in result.errors.splitlines()[-1]


def test_the_help_says_that_tests_are_harmless() -> None:
    text = " ".join(invoke("doctor", "--help").output.split())
    assert "webhook.test, which reaches only handlers registered for it by name" in text
    assert "no business code runs" in text
