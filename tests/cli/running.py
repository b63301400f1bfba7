"""Runs commands: as processes, or inside the test if that makes no difference.

Every result is searched for secrets and signatures, because no command may show them.
"""

import os
import pty
import re
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, Self

from click.testing import CliRunner

from hookonce.cli.commands import cli

__all__ = [
    "COMMAND",
    "OLD_SECRET",
    "PATIENCE_SECONDS",
    "SECRET",
    "Process",
    "Result",
    "eventually",
    "invoke",
    "on_a_terminal",
    "run",
    "running",
]

SECRET = "whsec_" + b64encode(b"the secret of these tests, 32 by").decode()
OLD_SECRET = "whsec_" + b64encode(b"the one it was before a rotation").decode()

_APART: dict[str, Any] = (
    {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
)
"""Tells click 8.1 to keep both outputs apart, as later versions always do."""

COMMAND = [str(Path(sys.executable).with_name("hookonce"))]

PATIENCE_SECONDS = 60.0
"""Longer than anything takes on a slow machine; only a broken program waits as long."""

_USAGE = 2  # click's status for invalid arguments; click prints the usage before the error

_SIGNATURE = re.compile(r"v1,[A-Za-z0-9+/]{43}=|v1a,[A-Za-z0-9+/]{86}==")

# Variables of a developer's shell or a pipeline that change what commands do or print.
_NOISE = re.compile(
    "HOOKONCE_.*|PORT|COLUMNS|LINES|TERM|FORCE_COLOR|NO_COLOR|TTY_.*|PYTHONUNBUFFERED"
    "|(?:HTTP|HTTPS|ALL|NO)_PROXY",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended, and what it printed.

    Attributes:
        status: the exit code.
        output: the standard output.
        errors: the standard error, but for the lines that name stores.
        stores: the stores that the command says it uses.

    """

    status: int
    output: str
    errors: str
    stores: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        for shown in (self.output, self.errors):
            for secret in (SECRET, OLD_SECRET):
                assert secret.removeprefix("whsec_").rstrip("=") not in shown
            assert _SIGNATURE.search(shown) is None

    @classmethod
    def of(cls, status: int, output: str, errors: str) -> Self:
        """Return a result; the lines that name stores are removed from the errors."""
        lines = errors.splitlines(keepends=True)
        stores = tuple(line[7:-1] for line in lines if line.startswith("store: "))
        rest = "".join(line for line in lines if not line.startswith("store: "))
        return cls(status, output, rest, stores)

    def says(self, *parts: str, status: int | None = None) -> None:
        """Check that the command ended with one clear line, without a traceback or other output.

        Without ``status``, the exit status may be 1 or 2; `test_statuses.py` has the table.
        """
        assert self.status in ({1, 2} if status is None else {status}), self
        assert self.output == "", self
        *usage, line = self.errors.splitlines()
        assert usage == [] or self.status == _USAGE, self
        assert line.startswith("Error: "), self
        assert "Traceback" not in self.errors, self
        for part in parts:
            assert part in line, self


def invoke(
    *arguments: str,
    secrets: Sequence[str] = (),
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
) -> Result:
    """Run a command in this process, and return how it ended."""
    noise = dict.fromkeys(name for name in os.environ if _NOISE.fullmatch(name))
    settings = {"HOOKONCE_SECRETS": " ".join(secrets), **(environment or {})}
    runner = CliRunner(env={**noise, **settings}, **_APART)
    result = runner.invoke(cli, list(arguments), input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Result.of(result.exit_code, result.stdout, result.stderr)


def run(
    *arguments: str,
    here: Path,
    secrets: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    command: Sequence[str] = COMMAND,
) -> Result:
    """Run a command as a process in a folder, and return how it ended."""
    ended = subprocess.run(
        [*command, *arguments],
        cwd=here,
        env=_environment(secrets, environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return Result.of(ended.returncode, ended.stdout.decode(), ended.stderr.decode())


@dataclass(frozen=True, slots=True)
class Process:
    """A running command, and the files to which it prints."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text("utf-8", "replace")

    @property
    def errors(self) -> str:
        return (self.folder / "errors").read_text("utf-8", "replace")

    def printed(self, pattern: str) -> re.Match[str]:
        """Return the match of a pattern as soon as the command has printed it."""
        found: list[re.Match[str]] = []

        def holds() -> bool:
            match = re.search(pattern, f"{self.output}\n{self.errors}")
            found.extend([match] if match else [])
            return match is not None or self.process.poll() is not None

        eventually(holds, what=f"printed {pattern!r}: {self.output} {self.errors}")
        assert found, f"it ended without {pattern!r}: {self.output} {self.errors}"
        return found[0]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def ended(self) -> Result:
        """Wait for the end of the command, and return how it ended."""
        status = self.process.wait(PATIENCE_SECONDS)
        return Result.of(status, self.output, self.errors)


@contextmanager
def running(
    *arguments: str,
    here: Path,
    secrets: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    command: Sequence[str] = COMMAND,
) -> Iterator[Process]:
    """Run a command as a process in a folder until the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="printed-", dir=here))
    with (folder / "output").open("wb") as output, (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=here,
            env=_environment(secrets, environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
        )
    try:
        yield Process(process, folder)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def on_a_terminal(
    *arguments: str,
    here: Path,
    columns: int = 80,
    typed: bytes = b"",
    secrets: Sequence[str] = (),
    status: int = 0,
) -> str:
    """Return what a command prints on a terminal of this width, with this typed input."""
    ours, theirs = pty.openpty()
    environment = _environment(secrets, {"COLUMNS": str(columns), "TERM": "xterm-256color"})
    with subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=here,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    ) as process:
        os.close(theirs)
        os.write(ours, typed)
        printed = b"".join(_read_to_the_end(ours))
        os.close(ours)
        assert process.wait() == status, printed
    return printed.decode().replace("\r\n", "\n")


def _read_to_the_end(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # Linux reports this if the other end is closed
            return
        if not chunk:
            return
        yield chunk


def eventually(condition: Callable[[], object], *, what: str) -> None:
    """Return once the condition holds; fail after the deadline."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS:g} s: {what}"
        time.sleep(0.005)


def _environment(secrets: Sequence[str], more: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not _NOISE.fullmatch(name)}
    own = {"HOOKONCE_SECRETS": " ".join(secrets)} if secrets else {}
    return {**kept, **own, **(more or {})}
