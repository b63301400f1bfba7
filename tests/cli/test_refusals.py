"""A system error in a command is printed as one line, without a traceback."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from .dead_letters import APP, COMMENT, HOSTILE, bury
from .running import COMMAND, SECRET, Result, invoke, run

# Import the modules before `setuid`: the user ``nobody`` may not read their files.
AS_NOBODY = """
import os
from hookonce.cli import dead, inbox
from hookonce.cli.commands import cli
import hookonce.stores.sqlite.store
if os.geteuid() == 0:
    os.setuid(65534)
cli()
"""

in_a_process = pytest.mark.sample(1, of="file")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a folder with a receiver's module."""
    (tmp_path / "hooks.py").write_text(APP)
    return tmp_path


def piped(command: str, here: Path) -> Result:
    """Run a pipeline with `hookonce`; its exit status is that of the last command that failed."""
    line = f"set -o pipefail; {command}"
    ended = subprocess.run(
        ["bash", "-c", line],
        cwd=here,
        env={**os.environ, "HOOKONCE_SECRETS": SECRET, "PATH": path_of_commands()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Result.of(ended.returncode, ended.stdout, ended.stderr)


def path_of_commands() -> str:
    return f"{Path(COMMAND[0]).parent}:{os.environ['PATH']}"


PRINTING = [
    "secret",
    "demo",
    "demo --json",
    "dead list {store}",
    "dead list {store} --json",
    "dead show {store} evt_comment",
    "dead show {store} evt_comment --raw",
    "inbox stats {store}",
    "chaos hooks:receiver --events 5",
    "doctor hooks:receiver",
]


@in_a_process
@pytest.mark.parametrize("command", PRINTING)
def test_a_full_disk_is_reported_in_one_line(command: str, here: Path) -> None:
    words = command.format(store=shlex.quote(bury(here, COMMENT)))
    piped(f"hookonce {words} > /dev/full", here).says("No space left on device")


@in_a_process
@pytest.mark.parametrize("command", PRINTING)
def test_a_closed_pipe_ends_a_command_without_a_message(command: str, here: Path) -> None:
    words = command.format(store=shlex.quote(bury(here, COMMENT)))
    assert piped(f"hookonce {words} | true", here) == Result(1, "", "")


@pytest.mark.parametrize("words", [["dead", "list"], ["inbox", "stats"]])
@in_a_process
def test_a_forbidden_folder_is_reported_in_one_line(words: list[str], here: Path) -> None:
    closed = here / "closed"
    closed.mkdir(mode=0o700 if os.geteuid() == 0 else 0o000)
    url = f"sqlite:///{closed / 'hookonce.db'}"
    result = run(*words, url, here=here, command=[sys.executable, "-c", AS_NOBODY])
    result.says("cannot look at", "closed/hookonce.db", "Permission denied")


def test_a_path_that_cannot_be_read_is_reported_in_one_line() -> None:
    invoke("dead", "list", f"sqlite:////{'a' * 300}").says("cannot look at", "File name too long")


@in_a_process
def test_a_file_that_a_module_cannot_open_is_named_with_a_command_for_the_traceback(
    here: Path,
) -> None:
    (here / "hooks.py").write_text("open('/no/such/log')")
    result = run("serve", "hooks:receiver", here=here, secrets=[SECRET])
    result.says(
        "hooks cannot start: No such file or directory: '/no/such/log'",
        "python -c 'import hooks' shows the full traceback",
    )


@in_a_process
def test_a_folder_that_was_removed_has_no_module(here: Path) -> None:
    line = "mkdir gone && cd gone && rmdir ../gone && hookonce serve hooks:receiver"
    piped(line, here).says("there is no module 'hooks' here")


def test_control_characters_in_errors_are_escaped(here: Path) -> None:
    hostile = "\x1b[2J\u202e\x9b"
    for words in (
        ["dead", "show", bury(here, HOSTILE), f"evt{hostile}"],
        ["dead", "list", f"sqlite:///{here}/{hostile}.db"],
        ["health", f"http://127.0.0.1:1/{hostile}"],
        ["serve", f"{hostile}:receiver"],
        ["inbox", "retry", f"{hostile}://", "evt_1"],
    ):
        result = invoke(*words)
        assert result.status in {1, 2}
        assert all(char.isprintable() or char == "\n" for char in result.errors), result
