"""If `serve` or `worker` cannot start, each process prints one line and ends with status 2."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from .running import SECRET, run

pytestmark = pytest.mark.sample(1, of="file", full=10)

APP = """
import os

from hookonce import EnvironmentSecrets, Inbox, Receiver
from hookonce.events import CommentReceived

receiver = Receiver(
    secrets=EnvironmentSecrets(),
    store=os.environ.get("STORE", "sqlite:///hookonce.db"),
    inbox=Inbox(embedded=False),
)
number = 3


@receiver.on(CommentReceived)
async def handle(event: CommentReceived) -> None: ...
"""
WITH_LEDGER = f"""{APP}

from hookonce.effects.sqlite import SQLiteLedger


@receiver.on(CommentReceived, within=SQLiteLedger("app.db"))
def write(event: CommentReceived, transaction: object) -> None: ...
"""
MODULES = {
    "app": APP,
    "with_ledger": WITH_LEDGER,
    "unclosed": "receiver = (\n",
    "needy": "import no_such_dependency\n",
    "unset": "import os\nos.environ['NO_SUCH_SETTING']\n",
    "raising": "raise RuntimeError('first line\\nsecond line')\n",
    "wrong_handler": APP.replace("handle(event: CommentReceived)", "handle()"),
    "bakery/__init__": "",
    "bakery/hooks": APP,
}
COMMANDS = [
    ["serve", "--port", "0"],
    ["serve", "--port", "0", "--processes", "2"],
    ["worker"],
    ["worker", "--processes", "2"],
]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "bakery").mkdir()
    for name, code in MODULES.items():
        (tmp_path / f"{name}.py").write_text(code)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("ap:receiver", "there is no module 'ap' here; did you mean 'app'?"),
        ("app.py:receiver", "there is no module 'app.py' here; did you mean 'app:receiver'?"),
        ("bakery.hoks:receiver", "there is no module 'bakery.hoks' here; did you mean 'hooks'?"),
        ("zzz:receiver", "there is no module 'zzz' here\n"),
        ("app:reciever", "there is no 'reciever' in app; did you mean 'receiver'?"),
        ("app:zzz", "there is no 'zzz' in app; it has receiver\n"),
        ("app:number", "'number' in app is of type int, not a Receiver, and contains none; it has"),
        ("unclosed:receiver", "SyntaxError: '(' was never closed (unclosed.py, line 1)"),
        ("needy:receiver", "No module named 'no_such_dependency' (needy.py, line 1: "),
        ("raising:receiver", "RuntimeError: first line (raising.py, line 1: "),
        ("unset:receiver", "KeyError: 'NO_SUCH_SETTING' (unset.py, line 2: os.environ["),
        (
            "wrong_handler:receiver",
            "TypeError: handle must be callable as (event) or (event, context) (wrong_handler.py,",
        ),
        (
            "with_ledger:receiver",
            "no such table: hookonce_effects); do its tables exist, as `hookonce ledger sql`",
        ),
    ],
)
def test_a_missing_module_or_receiver_is_one_line_and_status_2(
    target: str, words: str, command: list[str], here: Path
) -> None:
    name, *options = command
    result = run(name, target, *options, here=here, secrets=[SECRET])
    result.says(status=2)
    assert words in result.errors


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("store", "words"),
    [
        ("sqlite:////no/such/folder/hookonce.db", "does its folder exist, and is it writable?"),
        ("sqlite:///app.py", "the file is not an SQLite database"),
        ("redis://127.0.0.1:1/0", "the Redis store cannot be opened: no connection"),
        ("nonsense://", "nonsense"),
    ],
)
def test_a_store_that_cannot_be_opened_is_one_line_and_status_2(
    store: str, words: str, command: list[str], here: Path
) -> None:
    name, *options = command
    result = run(
        name, "app:receiver", *options, here=here, secrets=[SECRET], environment={"STORE": store}
    )
    result.says(words, status=2)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_missing_secrets_are_one_line_and_status_2(command: list[str], here: Path) -> None:
    name, *options = command
    result = run(name, "app:receiver", *options, here=here)
    result.says("app cannot start: set the environment variable HOOKONCE_SECRETS", status=2)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_port_in_use_is_one_line_and_status_2(count: str, taken_port: int, here: Path) -> None:
    result = run(
        *("serve", "app:receiver", "--processes", count, "--port", str(taken_port)),
        here=here,
        secrets=[SECRET],
    )
    result.says(f"cannot listen on '127.0.0.1', port {taken_port}: ", "in use", status=2)
    assert not (here / "hookonce.db").exists(), "the store was opened before"


LIFESPANS = """
from contextlib import asynccontextmanager

from starlette.applications import Starlette

from app import receiver


@asynccontextmanager
async def lifespan(_):
    raise RuntimeError("the database is away")
    yield


failing = Starlette(routes=receiver.routes("/webhooks"), lifespan=lifespan)
"""


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_failing_lifespan_is_one_line_and_status_2(count: str, here: Path) -> None:
    (here / "lifespans.py").write_text(LIFESPANS)
    arguments = ["serve", "lifespans:failing", "--port", "0", "--processes", count]
    result = run(*arguments, here=here, secrets=[SECRET])
    result.says(
        "the application cannot start: RuntimeError: the database is away (lifespans.py, line 11: ",
        "--log-level debug shows the traceback",
        status=2,
    )
    shown = run(*arguments, "--log-level", "debug", here=here, secrets=[SECRET])
    assert shown.status == 2
    assert 'lifespans.py", line 11, in lifespan' in shown.errors


@pytest.mark.parametrize("command", ["dead replay --all", "doctor", "inbox stats"])
def test_other_commands_suggest_the_right_name_of_a_misspelt_receiver(
    command: str, here: Path
) -> None:
    name, *options = command.split()
    arguments = [name, *options[:1], "app:reciever", *options[1:]]
    result = run(*arguments, here=here, secrets=[SECRET])
    result.says("did you mean 'receiver'?", status=2)
