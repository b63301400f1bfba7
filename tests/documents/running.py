"""Runs a page's blocks in order in one folder, as a reader would.

``python -m documents.running PAGE…``. Python blocks share one namespace. If the first line of a
Python block names a file, the block is also written to that file; if a block contains tests, pytest
runs them. ``console`` blocks are typed into one shell, and must print the output that the page
shows: ``…`` stands for any text of a line, and a line with only ``…`` for any lines. Times need
only the same format. Variables that the shell exports are also set for Python blocks.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Self

from documents.reading import Block, blocks, name_of

PATIENCE_SECONDS = 30
PORT_SHOWN = "8000"
END = "\x1e"


class WrongError(Exception):
    """A block of a page fails, or its output differs from the page."""


def run_pages(pages: list[Path], folder: Path) -> None:
    """Run every block of some pages, page after page.

    Raises:
        WrongError: something fails, or prints something else; the message names the line.

    """
    (folder / ".venv").symlink_to(sys.prefix)
    module = ModuleType("snippet")
    sys.modules["snippet"] = module
    sys.path.insert(0, str(folder))
    os.chdir(folder)
    with Shell(folder) as shell:
        for page in pages:
            run_page(page, module, shell)


def run_page(page: Path, module: ModuleType, shell: "Shell") -> None:
    for number, block in enumerate(every := blocks(page)):
        try:
            if is_loaded_by_a_command(block, every[number + 1 :]):
                write(block)
            elif block.language == "python":
                run_python(block, page, module)
            elif block.language == "console":
                shell.run(block)
            elif block.file is not None:
                write(block)
        except WrongError as error:
            raise WrongError(f"{name_of(page)}:{block.line}: {error}") from None
    try:
        shell.await_jobs()
    except WrongError as error:
        raise WrongError(f"{name_of(page)}: {error}") from None


def is_loaded_by_a_command(block: Block, later: list[Block]) -> bool:
    """Return whether only commands load this module, so that `run_page` need not run it."""
    if block.language != "python" or block.file is None:
        return False
    name = f" {Path(block.file).stem}:"
    return any(one.language == "console" and name in one.text for one in later) and not any(
        one.language == "python" and one.file is None for one in later
    )


def write(block: Block) -> Path:
    path = Path(block.file or "test_snippet.py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text)
    return path


def run_python(block: Block, page: Path, module: ModuleType) -> None:
    if re.search(r"^(async )?def test_", block.text, re.MULTILINE):
        tests = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(write(block))],
            capture_output=True,
            text=True,
            check=False,
        )
        if tests.returncode:
            raise WrongError(tests.stdout + tests.stderr)
        return
    if block.file is not None:
        write(block)
    if block.file == "conftest.py":  # only pytest runs this file
        return
    module.__name__ = Path(block.file or "snippet").stem
    sys.modules[module.__name__] = module  # pydantic looks up the module of a generic class
    code = compile("\n" * (block.line - 1) + block.text, name_of(page), "exec")
    try:
        exec(code, vars(module))
    except Exception as error:
        raise WrongError(traceback.format_exc()) from error


class Shell:
    """A shell in the page's folder, into which a reader types."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = str(probe.getsockname()[1])
        environment = os.environ | {"PORT": self._port, "PYTHONUNBUFFERED": "1"}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.communicate()

    def run(self, block: Block) -> None:
        """Type the commands of a block, and compare the output of each with the page."""
        parts = re.split(r"^\$ (.*(?:\\\n.*)*)\n", block.text, flags=re.MULTILINE)
        if parts[0]:
            raise WrongError("the block begins with output; begin with a command: $ hookonce …")
        for command, shown in zip(parts[1::2], parts[2::2], strict=True):
            # Remove the line that names the store, because it has a path of this machine.
            printed = re.sub(r"^store: .*\n", "", self._typed(command), flags=re.MULTILINE)
            if not matches(shown, printed, block.rules):
                raise WrongError(f"$ {command}\nshown:\n{shown}\nprinted:\n{printed}")
            if exported := re.match(r"export (\w+)=", command):
                name = exported[1]
                os.environ[name] = self._typed(f'printf "%s\\n" "${name}"').rstrip("\n")

    def await_jobs(self) -> None:
        """Wait until the shell's background jobs have ended; the page has to end them."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while running := self._typed("jobs -r"):
            if time.monotonic() > deadline:
                raise WrongError(f"end what you start; there is still\n{running}")
            time.sleep(0.05)
        # Make the shell forget the ended jobs, so that the next job is %1 again.
        self._typed("wait; jobs >/dev/null")

    def _typed(self, command: str) -> str:
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        own = command.replace(PORT_SHOWN, self._port)
        self._bash.stdin.write(f"{{ {own}\n}} </dev/null\nprintf '{END}%d\\n' $?\n")
        self._bash.stdin.flush()
        printed = ""
        while END not in printed:
            line = self._bash.stdout.readline()
            if not line:
                raise WrongError(f"$ {command}\nended the shell:\n{printed}")
            printed += line
        if command.endswith("&") and "serve" in command:
            self._await_port()
        text, _, status = printed.rpartition(END)
        if int(status) not in {0, 1}:  # status 1 reports a finding, as many pages show
            raise WrongError(f"$ {command}\nexited with {status}: {text}")
        return text.replace(self._port, PORT_SHOWN)

    def _await_port(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        with socket.socket() as probe:
            while probe.connect_ex(("127.0.0.1", int(self._port))):
                if time.monotonic() > deadline:
                    raise WrongError("the server did not start")
                time.sleep(0.05)


FORMS = (
    r"\d{4}-\d\d-\d\d",
    r"\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?",
    r"[\d.]+ (?:ms|s|min|h)\b",
    r"\b\d+\.\d\b",
    r"evt_[0-9a-f]{6,}",
)
"""Times, measured figures and made-up ids, which are others every time."""


def matches(shown: str, printed: str, rules: frozenset[str]) -> bool:
    """Return whether printed text has the form that the page shows."""
    pattern = "".join(line_pattern(line, rules) for line in shown.splitlines())
    if "any order" in rules:
        wanted = [line_pattern(line, rules) for line in shown.splitlines()]
        left = [f"{line}\n" for line in printed.splitlines()]
        for one in wanted:
            found = next((line for line in left if re.fullmatch(one, line)), None)
            if found is None:
                return False
            left.remove(found)
        return not left
    return re.fullmatch(pattern, printed.rstrip("\n") + "\n" * bool(shown)) is not None


def line_pattern(line: str, rules: frozenset[str]) -> str:
    if line.strip() == "…":
        return r"(?:.*\n)*?"
    forms = [*FORMS, *([r"[\d.,]+"] if "figures vary" in rules else [])]
    text = re.sub(
        "|".join(f"({form})" for form in forms), lambda found: f"\0{found.lastindex}", line
    )
    pattern = re.escape(text).replace("…", ".*")
    pattern = re.sub(r"(?:\\ )+", r"[ \\t]+", pattern)
    return re.sub(r"\0(\d)", lambda found: forms[int(found[1]) - 1], pattern) + r"[ \t]*\n"


def main() -> None:
    pages = [Path(argument).resolve() for argument in sys.argv[1:]]
    with TemporaryDirectory() as folder:
        try:
            run_pages(pages, Path(folder))
        except WrongError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
