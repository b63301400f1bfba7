"""What the README shows is what happens."""

import asyncio
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import httpx2
import pytest

from hookonce import Backoff, Inbox, Limits, Reason, Receiver, Refusal, Reject
from hookonce.events import EVENT_CLASSES, CommentReceived
from hookonce.testing import TestSender, event_body, make_event, signed_request
from hookonce.verification.secrets import new_secret

README = (Path(__file__).parents[1] / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
HOOKONCE = str(Path(sys.executable).with_name("hookonce"))
PATIENCE_SECONDS = 20


def console(first_words: str) -> tuple[list[str], str]:
    """Return the commands of the console block that has these words, and the output shown."""
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    [block] = [block for block in blocks if first_words in block]
    lines = block.splitlines(keepends=True)
    commands = [line[2:].strip() for line in lines if line.startswith("$ ")]
    return commands, "".join(line for line in lines if not line.startswith("$ "))


def run(command: str, folder: Path, secret: str) -> str:
    """Run a ``hookonce`` command as a shell would, and return what it printed."""
    program, *arguments = shlex.split(command)
    assert program == "hookonce"
    done = subprocess.run(
        [HOOKONCE, *arguments],
        cwd=folder,
        env=os.environ | {"HOOKONCE_SECRETS": secret},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture
def secret() -> str:
    return new_secret()


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_each_python_snippet_runs(number: int, tmp_path: Path, secret: str) -> None:
    snippet = SNIPPETS[number]
    (tmp_path / "snippet.py").write_text(snippet)
    (tmp_path / "conftest.py").write_text(
        'pytest_plugins = ["hookonce.integrations.pytest_plugin"]\n'
    )
    how = ["-m", "pytest", "-q"] if "\nasync def test_" in snippet else []
    environment = os.environ | {"HOOKONCE_SECRETS": secret}
    done = subprocess.run(
        [sys.executable, *how, "snippet.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not how or "1 passed" in done.stdout


@contextmanager
def served_app(folder: Path, secret: str) -> Iterator[int]:
    """Serve the README's first example; give its port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    (folder / "app.py").write_text(SNIPPETS[0])
    with (folder / "printed").open("w") as printed:
        server = subprocess.Popen(
            [HOOKONCE, "serve", "app:receiver", "--port", str(port)],
            cwd=folder,
            env=os.environ | {"HOOKONCE_SECRETS": secret},
            stdout=printed,
            stderr=subprocess.DEVNULL,
        )
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                httpx2.get(f"http://127.0.0.1:{port}/readyz").raise_for_status()
                break
            except httpx2.HTTPError:
                assert time.monotonic() < deadline, "the server did not start"
        yield port
    finally:
        server.terminate()
        server.wait(PATIENCE_SECONDS)


def test_the_ten_line_example_prints_what_is_shown(tmp_path: Path, secret: str) -> None:
    commands, shown = console("hookonce send comment.received")
    with served_app(tmp_path, secret) as port:
        [send] = [command for command in commands if command.startswith("hookonce send")]
        sent = run(send.replace(":8000", f":{port}"), tmp_path, secret)
    output = (tmp_path / "printed").read_text() + sent

    def without_times(text: str) -> str:
        return re.sub(r"\([\d.]+ ms\)", "(… ms)", text)

    assert without_times(output) == without_times(shown)


def test_explain_prints_what_is_shown(tmp_path: Path, secret: str) -> None:
    [command], shown = console("hookonce explain")
    request = signed_request(event_body("comment.received"), secret)
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    rewritten = request.body.replace(b'":', b'": ')
    saved = b"POST /webhooks HTTP/1.1\r\n" + head.encode() + b"\r\n" + rewritten
    (tmp_path / "saved.http").write_bytes(saved)
    assert run(command, tmp_path, secret) == shown


def test_the_commands_for_dead_letters_work_one_after_the_other(
    tmp_path: Path, secret: str
) -> None:
    commands, _ = console("hookonce dead list")
    store = f"sqlite:///{tmp_path / 'hookonce.db'}"
    receiver = Receiver(secrets=secret, store=store)

    @receiver.on(CommentReceived, name="app.greet")
    async def refuse(event: CommentReceived) -> None:  # noqa: ARG001 - the shape of a handler
        raise Reject

    async def bury() -> None:
        async with TestSender(receiver, secrets=secret) as sender:
            event = make_event(CommentReceived, event_id="evt_1")
            (await sender.send(event)).expect(202, "rejected")

    asyncio.run(bury())
    (tmp_path / "app.py").write_text(SNIPPETS[0])
    printed = {command.split()[2]: run(command, tmp_path, secret) for command in commands}
    assert "rejected" in printed["list"]
    assert "walnut bread" in printed["show"]
    assert printed["replay"].endswith("evt_1: handled\n")
    assert printed["discard"] == "evt_1: not found\n"


def test_the_commands_for_the_inbox_work_one_after_the_other(tmp_path: Path, secret: str) -> None:
    commands, shown = console("hookonce inbox stats")
    store = f"sqlite:///{tmp_path / 'hookonce.db'}"
    receiver = Receiver(secrets=secret, store=store, inbox=Inbox(embedded=False))

    @receiver.on(CommentReceived, name="app.greet")
    async def greet(event: CommentReceived) -> None: ...

    async def put() -> None:
        async with TestSender(receiver, secrets=secret) as sender:
            event = make_event(CommentReceived, event_id="evt_1")
            (await sender.send(event)).expect(202, "stored")

    asyncio.run(put())
    printed = {command.split()[2]: run(command, tmp_path, secret) for command in commands}
    assert "depth: 1\n" in printed["stats"]
    assert "evt_1" in printed["list"]
    assert "walnut bread" in printed["show"]
    assert printed["retry"] == shown


def test_the_emulated_service_does_what_is_shown(tmp_path: Path, secret: str) -> None:
    [command], shown = console("hookonce emulate")
    with served_app(tmp_path, secret) as port:
        printed = run(command.replace(":8000", f":{port}"), tmp_path, secret)

    def rows(text: str) -> Counter[tuple[str, ...]]:
        """Return type, number, outcome, status and chaos of each attempt; copies have no order."""
        row = r"^[\d:.]{12}  (\S+) +\S+ +(\d+)  (.{24})  +(\S+) +[\d.]+ *(.*)$"
        return Counter(re.findall(row, text, re.MULTILINE))

    assert rows(printed) == rows(shown) != Counter()
    report = printed.partition("\nsent ")[2].replace(f":{port}", ":8000")
    assert report == shown.partition("\nsent ")[2]


def test_a_rehearsal_reports_what_is_shown(tmp_path: Path, secret: str) -> None:
    [command], shown = console("hookonce chaos")
    (tmp_path / "app.py").write_text(SNIPPETS[0])
    printed = run(command, tmp_path, secret)

    def without_figures(text: str) -> str:  # how often handlers meet depends on the machine
        return re.sub(r"[\d.]+", "…", text)

    assert without_figures(printed) == without_figures(shown)
    assert printed.splitlines()[-1] == shown.splitlines()[-1]


def test_the_first_screen_has_one_command_to_see_it_work_and_one_to_test_it() -> None:
    commands = re.findall(r"^python3 -m venv .*$", README, re.MULTILINE)
    assert [command.rpartition("&& ")[2] for command in commands] == [
        ".venv/bin/hookonce demo",
        ".venv/bin/pytest -n auto --dist loadfile --cov",
    ]


@pytest.mark.parametrize("reason", [*Reason, *Refusal])
def test_every_reason_an_answer_can_have_is_in_the_table(reason: str) -> None:
    table = README.partition("## What is answered")[2].partition("\n## ")[0]
    assert f"`{reason}`" in table


def test_every_event_type_is_in_its_table_with_its_class() -> None:
    for event_type, event_class in EVENT_CLASSES.items():
        assert f"| `{event_type}` | `{event_class.__name__}` |" in README


def test_every_limit_is_named() -> None:
    settings = [*fields(Limits), *fields(Inbox), *fields(Backoff)]
    missing = [setting.name for setting in settings if setting.name not in README]
    assert missing == []
