"""All commands follow one table of exit statuses."""

import asyncio
import inspect
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from support.waiting import PATIENCE_SECONDS

from hookonce.cli import statuses
from hookonce.cli.commands import cli
from hookonce.cli.ending import terminated_as_interrupted
from hookonce.cli.statuses import CannotBegin, Nothing, Status

from .dead_letters import APP, COMMENT, bury
from .recorder import closed_port_url, recording
from .running import SECRET, invoke, run, running

pytestmark = pytest.mark.sample(20, of="file")

NOWHERE = "http://127.0.0.1:1/"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a folder with a receiver's module."""
    (tmp_path / "hooks.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


CANNOT_BEGIN = {
    "chaos": ["chaos", "nothing_here:receiver"],
    "dead": ["dead", "list", "sqlite:///missing.db"],
    "demo": ["demo", "--store", "mysql://"],
    "doctor": ["doctor", "nothing_here:receiver"],
    "emulate": ["emulate", "--to", NOWHERE],  # without a secret
    "endpoints": ["endpoints", "test", "wh_1"],  # without a key
    "guide": ["guide", "no-such-page"],
    "handlers": ["handlers", "nothing_here:receiver"],
    "health": ["health", "--nothing"],
    "handled": ["handled", "list", "sqlite:///missing.db"],
    "inbox": ["inbox", "stats", "sqlite:///missing.db"],
    "ledger": ["ledger", "--nothing"],
    "listen": ["listen", "nothing_here:receiver", "--tunnel", "https://name.example"],
    "reconcile": ["reconcile", "--nothing"],
    "secret": ["secret", "too many"],
    "send": ["send", "webhook.test", "--url", NOWHERE],  # without a secret
    "serve": ["serve", "nothing_here:receiver"],
    "store": ["store", "backup", "sqlite:///missing.db", "copy.db"],
    "try": ["try", "nothing_here:receiver", "--handler", "greet"],
    "verify": ["verify"],
    "worker": ["worker", "nothing_here:receiver"],
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("command", cli.list_commands(click.Context(cli)))
def test_a_command_that_cannot_begin_exits_with_2(command: str) -> None:
    result = invoke(*CANNOT_BEGIN[command])
    assert result.status == Status.CANNOT_BEGIN, result
    assert "Error: " in result.errors


def leaves(
    group: click.Group = cli, before: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command that is not a group, with the words that call it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, (*before, name))
        else:
            yield (*before, name), command


LEAVES = dict(leaves())


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_an_option_that_no_command_has_exits_with_2(words: tuple[str, ...]) -> None:
    assert invoke(*words, "--nothing").status == Status.CANNOT_BEGIN


@pytest.mark.parametrize("words", [words for words in LEAVES if words[0] == "endpoints"])
def test_a_command_that_asks_the_service_needs_a_key_and_an_answer(
    words: tuple[str, ...], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key the command cannot start; a service that does not answer is a finding."""
    monkeypatch.setattr("hookonce.client.connection._backoff", lambda _: 0.0)
    has_file = any(one.name == "secrets_file" for one in LEAVES[words].params)
    more = {
        "create": ["--event", "comment.received"],
        "rotate": ["--ready-url", NOWHERE],
        "update": ["--url", NOWHERE],
    }.get(words[-1], [])
    (here / "secrets").write_text(f"{SECRET}\n")
    arguments = [*words, "https://hooks.example/in" if words[-1] == "create" else "wh_1", *more]
    file = "new" if words[-1] == "create" else "secrets"
    arguments += ["--secrets-file", file] * has_file
    api = {"HOOKONCE_API_URL": closed_port_url()}
    assert invoke(*arguments, environment=api).status == Status.CANNOT_BEGIN
    key = {
        **api,
        "HOOKONCE_API_KEY": "sk_test_of_these_tests",
        "HOOKONCE_HEALTH_TOKEN": "a token that nobody guesses",
    }
    assert invoke(*arguments, environment=key).status == Status.FOUND


def test_no_command_ends_with_a_status_that_the_table_lacks() -> None:
    """An unhandled error of click would end with status 1."""
    folder = Path(inspect.getfile(statuses)).parent
    beside = [
        file.name
        for file in folder.rglob("*.py")
        if "raise click.ClickException" in file.read_text()
    ]
    assert beside == []


def test_a_command_that_finds_something_exits_with_1(here: Path) -> None:
    store = bury(here, COMMENT)
    (here / "body").write_text("{}")
    (here / "headers").write_text("webhook-id: evt_1\n")
    saved = ["--body", "body", "--headers", "headers"]
    found = [
        ["dead", "show", store, "evt_missing"],
        ["dead", "discard", store, "evt_missing"],
        ["handled", "show", store, "evt_missing"],
        ["inbox", "show", store, "evt_missing"],
        ["inbox", "retry", store, "evt_missing"],
        ["health", closed_port_url()],
        ["verify", *saved],
        ["guide", "--search", "no such words at all"],
        ["send", "webhook.test", "--url", closed_port_url(), "--wait", "0"],
    ]
    for arguments in found:
        assert invoke(*arguments, secrets=[SECRET]).status == Status.FOUND, arguments


def test_a_command_that_does_what_was_asked_for_exits_with_0(here: Path) -> None:
    store = bury(here, COMMENT)
    with recording() as server:
        done = [
            ["secret"],
            ["dead", "list", store],
            ["dead", "discard", store, "evt_comment"],
            ["handled", "list", store],
            ["inbox", "stats", store],
            ["health", server.url],
            ["send", "webhook.test", "--url", server.url],
        ]
        for arguments in done:
            assert invoke(*arguments, secrets=[SECRET]).status == Status.WELL, arguments


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, Status.INTERRUPTED), (signal.SIGTERM, Status.TERMINATED)],
)
def test_a_command_that_a_signal_interrupts_exits_with_the_signals_status(
    number: signal.Signals, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: click.Context) -> None:
        with terminated_as_interrupted():
            os.kill(os.getpid(), number)
            signal.pause()

    monkeypatch.setattr(cli.get_command(click.Context(cli), "secret"), "invoke", interrupted)
    assert invoke("secret").status == status


def test_a_signal_cancels_the_tasks_of_a_command_in_the_background_of_a_script() -> None:
    reached = []

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        reached.append("the next await")
        await asyncio.sleep(PATIENCE_SECONDS)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts it
    try:
        with pytest.raises(SystemExit), terminated_as_interrupted():
            asyncio.run(work())
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert reached == ["the next await"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", ["serve", "worker"])
def test_a_command_that_runs_until_a_signal_succeeds_when_a_signal_ends_it(
    command: str, number: signal.Signals, here: Path
) -> None:
    (here / "hooks.py").write_text(APP.replace("Receiver(", "Receiver(inbox=Inbox(), ", 1))
    text = (here / "hooks.py").read_text()
    (here / "hooks.py").write_text(f"from hookonce import Inbox\n{text}")
    port = ["--port", "0"] if command == "serve" else []
    with running(command, "hooks:receiver", *port, here=here, secrets=[SECRET]) as process:
        process.printed(r"running on|at endpoint")
        process.signal(number)
        assert process.ended().status == Status.WELL


def test_a_port_in_use_exits_with_2(here: Path) -> None:
    with recording() as server:
        port = server.url.split(":")[2].split("/")[0]
        result = run("serve", "hooks:receiver", "--port", port, here=here, secrets=[SECRET])
    assert result.status == Status.CANNOT_BEGIN


def test_the_table_names_every_status() -> None:
    table = inspect.getdoc(statuses) or ""
    for status in Status:
        assert f"\n{status:<6} " in table
    kinds: dict[type[click.ClickException], Status] = {
        CannotBegin: Status.CANNOT_BEGIN,
        Nothing: Status.FOUND,
        click.UsageError: Status.CANNOT_BEGIN,
    }
    for kind, status in kinds.items():
        assert kind.exit_code == status
