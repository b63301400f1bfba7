"""`hookonce chaos` simulates a receiver, and reports its findings to people and programs."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.redis_servers import RedisServer

from .running import SECRET, eventually, invoke, run, running

pytestmark = pytest.mark.sample(2, of="file")

APP = """
from hookonce import EnvironmentSecrets, Event, Inbox, Outcome, Receiver, Reject
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.events import CommentReceived

receiver = Receiver(secrets=EnvironmentSecrets())
without_table = Receiver(secrets=EnvironmentSecrets())
swallowing = type("Swallowing", (Receiver,), {})(secrets=EnvironmentSecrets())
boxed = Receiver(secrets=EnvironmentSecrets(), inbox=Inbox())
strict = Receiver(secrets=EnvironmentSecrets())
deaf = Receiver(secrets=EnvironmentSecrets())

async def swallow(self, body, headers, *, started=None):
    outcome = await Receiver.handle(self, body, headers, started=started)
    return Outcome(200, outcome.reason) if outcome.status == 500 else outcome

type(swallowing).handle = swallow

@boxed.on(CommentReceived)
@swallowing.on(CommentReceived)
@receiver.on(CommentReceived)
async def greet(event: CommentReceived) -> None:
    print("a handler that prints")

@strict.on(CommentReceived)
async def refuse(event: CommentReceived) -> None:
    raise Reject("no")

@without_table.on(CommentReceived, within=SQLiteLedger("app.db"))
def book(event: CommentReceived, connection: object) -> None: ...

both = [receiver, strict]
paid = []

def make():
    made, done = Receiver(secrets=EnvironmentSecrets(), store="memory://"), set()

    @made.on(CommentReceived, name="pay")
    async def pay(event: CommentReceived) -> None:
        if event.id not in done:  # a restart forgets it
            done.add(event.id)
            paid.append(event.id)

    return made

def check(events):
    assert not [event.id for event in events if paid.count(event.id) > 1], "paid twice"

@deaf.on_unknown
async def other(event: Event[object]) -> None: ...
"""


@pytest.fixture(autouse=True)
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)


def test_a_correct_receiver_passes_without_other_output_or_files(
    tmp_path: Path,
) -> None:
    result = run("chaos", "app:receiver", "--events", "60", "--seed", "5", here=tmp_path)
    assert (result.status, result.errors) == (0, "")
    first, second, third = result.output.splitlines()
    assert first.startswith("60 events: ")
    assert "requests" in second
    assert third.startswith("0 lost, 0 given up, 0 handled twice, 0 handled after a newer event")
    assert third.endswith("--seed 5")
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"app.py"}


def test_a_receiver_that_loses_events_fails_with_the_story_of_each_event(tmp_path: Path) -> None:
    words = ["chaos", "app:swallowing", "--events", "60", "--seed", "5", "--reduce-for", "0s"]
    result = run(*words, here=tmp_path)
    assert (result.status, result.errors) == (1, "")
    lines = result.output.splitlines()
    assert lines[0].startswith("lost: comment.received evt_")
    assert "app.greet call 1: failed" in result.output
    assert not lines[-1].startswith("0 lost")
    assert "BROKEN" not in result.output


def test_a_failing_run_is_reduced_to_a_timeline(tmp_path: Path) -> None:
    result = run("chaos", "app:swallowing", "--events", "60", "--seed", "5", here=tmp_path)
    assert (result.status, result.errors) == (1, "")
    assert "the smallest run that still fails: 1 event and 1 fault\n" in result.output
    assert re.search(r"app\.greet call 1 fails .*\(injected\)\n", result.output)
    assert "  BROKEN    app.greet has not succeeded, and nobody will try again\n" in result.output
    arguments = ["chaos", "app:swallowing", "--events", "60", "--seed", "5", "--json"]
    report = json.loads(run(*arguments, here=tmp_path).output.splitlines()[-1])
    assert (report["smallest"]["events"], report["smallest"]["faults"]) == (1, 1)
    assert report["smallest"]["timeline"][0].startswith("lost: comment.received evt_")


def test_a_written_test_passes_once_the_bug_is_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test needs no secrets, whether the command had some or not."""
    monkeypatch.setenv("HOOKONCE_SECRETS", SECRET)
    words = ["chaos", "app:swallowing", "--events", "60", "--write-test", "test_found.py"]
    result = run(*words, "--seed", "5", here=tmp_path)
    assert result.output.endswith("wrote test_found.py, which passes once the bug is fixed\n")
    monkeypatch.delenv("HOOKONCE_SECRETS")
    assert run_pytest(tmp_path) == 1
    fixed = (tmp_path / "app.py").read_text().replace("outcome.status == 500", "False")
    (tmp_path / "app.py").write_text(fixed)
    assert run_pytest(tmp_path) == 0
    run(*words, here=tmp_path).says("exists already")


def run_pytest(folder: Path) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_found.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode


def test_a_check_of_the_effects_and_a_function_that_makes_the_receiver(tmp_path: Path) -> None:
    words = ["chaos", "app:make", "--factory", "--events", "300", "--seed", "5"]
    result = run(*words, "--check", "app:check", "--write-test", "test_found.py", here=tmp_path)
    assert result.status == 1, result
    assert result.output.startswith("wrong_effect: paid twice\n")
    assert "has restarted\n" in result.output
    assert "BROKEN    the effects are wrong\n" in result.output
    assert "replay(make, SCENARIO, check=check)" in (tmp_path / "test_found.py").read_text()
    assert run_pytest(tmp_path) == 1


def test_with_json_each_finding_is_a_record_and_the_last_is_the_report(tmp_path: Path) -> None:
    arguments = ["chaos", "app:swallowing", "--events", "60", "--seed", "5", "--json"]
    result = run(*arguments, here=tmp_path)
    *findings, report = [json.loads(line) for line in result.output.splitlines()]
    assert report["seed"] == 5
    assert report["events"] == 60
    assert report["passed"] is False
    assert len(findings) == report["lost"] > 0
    assert all(finding["breach"] == "lost" and finding["story"] for finding in findings)


def findings_and_report(*arguments: str, here: Path) -> tuple[list[object], dict[str, Any]]:
    """Return the findings and the report of a simulation."""
    words = ["chaos", "app:swallowing", "--events", "60", "--seed", "5", "--json", *arguments]
    words += ["--reduce-for", "0s"]  # no reduction, which would give random ids to events
    *findings, report = [json.loads(line) for line in run(*words, here=here).output.splitlines()]
    return [(one["breach"], one["type"], one["id"], one["handler"]) for one in findings], report


def test_simulations_in_memory_with_the_same_seed_are_identical(tmp_path: Path) -> None:
    first, again = (findings_and_report("--store", "memory://", here=tmp_path) for _ in range(2))
    assert first == again
    assert first[0]


@pytest.mark.costs("3 s")
def test_a_seed_repeats_the_events_and_faults_with_a_file_or_a_server(
    tmp_path: Path, lasting_valkey: RedisServer
) -> None:
    """Only the number of requests may differ: it depends on the speed of the store."""
    in_memory, expected = findings_and_report("--store", "memory://", here=tmp_path)
    for store in ([], ["--store", lasting_valkey.url]):
        found, report = findings_and_report(*store, here=tmp_path)
        assert sorted(map(str, found)) == sorted(map(str, in_memory))
        same = ("events", "ignored", "lost", "passed")
        assert [report[name] for name in same] == [expected[name] for name in same]


FAILING = """
from hookonce import EnvironmentSecrets, Receiver
from hookonce.events import CommentReceived

receiver = Receiver(secrets=EnvironmentSecrets(), store="memory://")


@receiver.on(CommentReceived, name="price")
async def price(event):
    print("what a handler prints")
    {}["walnut bread"]
"""


def test_a_story_has_the_exception_of_a_handler_and_its_line(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    result = run("chaos", "failing:receiver", "--events", "5", "--json", here=tmp_path)
    *findings, report = [json.loads(line) for line in result.output.splitlines()]
    assert (result.status, report["endpoint"]) == (1, "default")
    expected = "KeyError: 'walnut bread' (failing.py, line 11: {}[\"walnut bread\"])"
    assert all(any(expected in line for line in finding["story"]) for finding in findings)


def test_an_interrupted_simulation_prints_its_progress_and_its_seed(tmp_path: Path) -> None:
    slow = FAILING.replace('{}["walnut bread"]', "import time; time.sleep(0.2)")
    slow = slow.replace('    print("what', '    open("begun", "w").close()\n    print("what')
    (tmp_path / "slow.py").write_text(slow.replace("async def", "def"))
    with running("chaos", "slow:receiver", "--events", "5000", here=tmp_path) as chaos:
        eventually((tmp_path / "begun").exists, what="a handler has begun")
        chaos.process.send_signal(signal.SIGINT)
        ended = chaos.ended()
    assert ended.status == 130
    assert re.search(r"stopped after \d+ of 5000 events.*--seed \d+", ended.output), ended


@pytest.mark.parametrize("mode", [(), ("--inline",), ("--inbox",)])
@pytest.mark.parametrize("name", ["receiver", "boxed"])
def test_it_runs_in_either_mode(name: str, mode: tuple[str, ...], tmp_path: Path) -> None:
    result = run("chaos", f"app:{name}", "--events", "30", *mode, here=tmp_path)
    assert (result.status, result.errors) == (0, "")


def test_a_given_store_has_no_dead_letters_afterwards(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'mine.db'}"
    result = run("chaos", "app:strict", "--events", "30", "--store", url, here=tmp_path)
    assert result.status == 0
    assert " rejected)" in result.output
    assert run("dead", "list", url, here=tmp_path).output == "no dead letters\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("app:deaf",), "no handler for any documented event type"),
        (("app:receiver", "--store", "memory://", "--inbox"), "has no inbox"),
        (("app:receiver", "--store", "ftp://there"), "no store has the scheme"),
        (("app:without_table",), "SQLiteLedger cannot record effects"),
        (("app:nothing",), "there is no 'nothing'"),
        (("app:receiver", "--check", "app:nothing"), "there is no 'nothing'"),
        (("app:receiver", "--check", "app:paid"), "is not a function"),
        (("app:both", "--write-test", "test_both.py"), "one receiver that a test can import"),
        (("nowhere:receiver",), "there is no module"),
    ],
)
def test_a_receiver_or_store_that_cannot_be_simulated_gives_a_one_line_error(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    run("chaos", *arguments, here=tmp_path).says(words)


@pytest.mark.parametrize("option", [("--chaos", "2"), ("--events", "0"), ("--seed", "x")])
def test_an_argument_that_cannot_be_used_is_named(option: tuple[str, str]) -> None:
    invoke("chaos", "app:receiver", *option, secrets=[SECRET]).says(option[0], status=2)


SEVERAL_SENDERS = """
from typing import Literal
from pydantic import BaseModel
from hookonce import EnvironmentSecrets, Event, Receiver
from hookonce.senders import openai, svix

class User(BaseModel):
    userId: str

class UserCreated(Event[User]):
    type: Literal["user.created"]

users = Receiver(secrets=EnvironmentSecrets(), store="memory://", sender=svix)
users.on(UserCreated, name="keep")(lambda event: None)
answers = Receiver(secrets=EnvironmentSecrets(), store="memory://", sender=openai)
answers.on("response.*", name="note")(lambda event: None)
"""


def test_the_events_and_rules_are_those_of_the_receivers_sender(tmp_path: Path) -> None:
    Path(tmp_path, "several.py").write_text(SEVERAL_SENDERS)
    Path(tmp_path, "data.json").write_text('{"user.created": {"userId": "u_1"}}')
    Path(tmp_path, "list.json").write_text("[]")
    options = ["--events", "20", "--seed", "3", "--json"]
    for receiver, *data in (("several:answers",), ("several:users", "--data", "data.json")):
        result = run("chaos", receiver, *options, *data, here=tmp_path)
        report = json.loads(result.output.splitlines()[-1])
        assert (result.status, report["passed"]) == (0, True), result
        assert report["handled"] > 10
    for data, text in (([], "userId"), (["--data", "list.json"], "list.json is not of the form")):
        run("chaos", "several:users", *options, *data, here=tmp_path).says(text, status=2)
