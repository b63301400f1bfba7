"""Build the package, check it, and use it as a new user would: ``python -m tests.release``.

It needs a clone, Python and a package index. If uv is installed, environments are made faster.
Each step prints a line. The first step that fails ends the command with status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
SDIST = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]
EXTRAS: dict[str, list[str]] = PYPROJECT["project"]["optional-dependencies"]

ALSO_PROMISED = {"cli": ["hookonce.cli.commands"], "emulator": ["httpx2", "yaml"]}
"""Modules that an extra must make importable, apart from public modules of hookonce."""

FRAMEWORKS = {"fastapi", "flask", "litestar", "pytest"}
"""Packages that an application brings itself, so that no extra installs them."""

SMALL_SELECTION = [
    "tests/documents/test_links.py",
    "tests/documents/test_package_page.py",
    "tests/events",
    "tests/routing",
    "tests/test_exports.py",
    "tests/test_extras.py",
    "tests/test_layers.py",
    "tests/verification",
]
PATIENCE_SECONDS = 60
TOKEN = "a token for the inspector of this run"

JOBS = """\
from hookonce import EnvironmentSecrets, Inbox, Receiver
from hookonce.events import CommentReceived

receiver = Receiver(
    secrets=EnvironmentSecrets(), store="sqlite:///jobs.db", inbox=Inbox(embedded=False)
)


@receiver.on(CommentReceived)
async def greet(event: CommentReceived) -> None:
    print("the worker greets", event.data.author_username, flush=True)
"""

IMPORTS = """\
import importlib, json, sys
from hookonce.guide.reference import MODULES
failed = {}
for name in [*MODULES, *sys.argv[1:]]:
    try: importlib.import_module(name)
    except ImportError as error: failed[name] = str(error)
print(json.dumps(failed))
"""


class FailedError(Exception):
    """A step has failed; the message says what went wrong."""


@dataclass(frozen=True)
class Built:
    """The files to publish."""

    wheel: Path
    sdist: Path


@dataclass(frozen=True)
class Environment:
    """A new virtual environment."""

    folder: Path

    @classmethod
    def create(cls, folder: Path, python: str = sys.executable) -> Environment:
        if shutil.which("uv"):
            run("uv", "venv", "-q", "--seed", "--python", python, folder)
        else:
            run(python, "-m", "venv", folder, "--upgrade-deps")
        return cls(folder)

    def command(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    def install(self, *requirements: str) -> None:
        if shutil.which("uv"):
            python = self.command("python")
            run("uv", "pip", "install", "-q", "--python", python, *requirements)
        else:
            run(self.command("pip"), "install", "-q", *requirements)

    def install_checkout(self, folder: Path) -> None:
        """Install a checkout, or an unpacked sdist, with all that its tests need."""
        self.install("-e", str(folder), "--group", f"{folder / 'pyproject.toml'}:dev")

    def failed_imports(self, *more: str) -> dict[str, str]:
        """Return the public modules that cannot be imported here, each with its error."""
        printed = run(self.command("python"), "-c", IMPORTS, *more, cwd=self.folder)
        failed: dict[str, str] = json.loads(printed)
        return failed


def run(*command: str | Path, cwd: Path = ROOT, variables: Mapping[str, str] | None = None) -> str:
    """Run a command and return what it prints; raise FailedError if the command fails."""
    ended = subprocess.run(
        command, cwd=cwd, env=environment(variables), capture_output=True, text=True, check=False
    )
    if ended.returncode:
        last = "\n".join((ended.stdout + ended.stderr).splitlines()[-30:])
        words = " ".join(map(str, command))
        raise FailedError(f"{words} ended with status {ended.returncode}\n{last}")
    return ended.stdout


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for child processes, without paths to this checkout's modules."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **(variables or {})}


def expect(right: object, wrong: str) -> None:
    if not right:
        raise FailedError(wrong)


# Build and check


def build(folder: Path, tools: Environment, **variables: str) -> Built:
    """Build the sdist, and the wheel from it."""
    tools.install("build", *PYPROJECT["build-system"]["requires"])
    run(tools.command("python"), "-m", "build", "-n", "-o", folder, variables=variables)
    wheels, sdists = [*folder.glob("*.whl")], [*folder.glob("*.tar.gz")]
    expect(len(wheels) == len(sdists) == 1, "expected one wheel and one sdist")
    return Built(wheels[0], sdists[0])


def build_twice(folder: Path, again: Path, tools: Environment) -> Built:
    """Build with the commit's time in two time zones; the files must be equal."""
    commit_unix = git("log", "-1", "--pretty=%ct").strip()
    built = build(folder, tools, SOURCE_DATE_EPOCH=commit_unix, TZ="UTC")
    second = build(again, tools, SOURCE_DATE_EPOCH=commit_unix, TZ="Asia/Kathmandu")
    for one, other in [(built.wheel, second.wheel), (built.sdist, second.sdist)]:
        same = one.read_bytes() == other.read_bytes()
        expect(same, f"{one.name} differs when it is built again")
    return built


def git(*arguments: str) -> str:
    # In a container the checkout may belong to another user, which git refuses by default.
    return run("git", "-c", "safe.directory=*", *arguments)


def check_contents(built: Built) -> None:
    """Check the names of the wheel and the sdist, and that they contain the tracked files."""
    found = re.search(r'__version__ = "(.+)"', (ROOT / "src/hookonce/__init__.py").read_text())
    version = found[1] if found else ""
    name = f"hookonce-{version}"
    expect(built.wheel.name == f"{name}-py3-none-any.whl", f"wrong name: {built.wheel.name}")
    expect(built.sdist.name == f"{name}.tar.gz", f"wrong name: {built.sdist.name}")

    tracked = git("ls-files").splitlines()
    package = {file.removeprefix("src/") for file in tracked if file.startswith("src/")}
    for kind in ("guide/first.md", "py.typed", "lua/main.lua", "templates/base.html"):
        expect(any(file.endswith(kind) for file in package), f"git tracks no {kind}")
    about = f"{name}.dist-info"
    package |= {
        f"{about}/{file}"
        for file in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    }
    with zipfile.ZipFile(built.wheel) as wheel:
        compare(built.wheel.name, set(wheel.namelist()), package)

    source = {
        file
        for file in tracked
        if within(file, SDIST["include"]) and not within(file, SDIST["exclude"])
    }
    with tarfile.open(built.sdist) as sdist:
        files = {member.name.removeprefix(f"{name}/") for member in sdist if member.isfile()}
    compare(built.sdist.name, files, source | {".gitignore", "PKG-INFO", "pyproject.toml"})


def within(file: str, places: list[str]) -> bool:
    return any(file == place or file.startswith(f"{place}/") for place in places)


def compare(archive: str, there: set[str], expected: set[str]) -> None:
    expect(not expected - there, f"{archive} lacks {sorted(expected - there)}")
    expect(not there - expected, f"{archive} has {sorted(there - expected)} too")


# Install the package


def check_extra(extra: str, wheel: Path, folder: Path, without: Mapping[str, str]) -> None:
    """Install one extra alone, and import the modules that need no other extra.

    Args:
        without: the imports that fail without any extra.
    """
    fresh = Environment.create(folder)
    fresh.install(f"hookonce[{extra}] @ {wheel.as_uri()}")
    others = re.findall(r"hookonce\[([\w,-]+)\]", " ".join(EXTRAS[extra]))
    installed = {extra, *",".join(others).split(",")}
    failed = fresh.failed_imports(*ALSO_PROMISED.get(extra, []))
    for module, message in failed.items():
        needed = extra_named_in(message)
        expect(needed not in installed, f"hookonce[{extra}]: {message}")
        expect(module in without, f"hookonce[{extra}]: {module}: {message}")
    gained = without.keys() - failed.keys()
    promised = {module for module, error in without.items() if extra_named_in(error) in installed}
    lacking = {module: failed[module] for module in promised - gained}
    expect(not lacking, f"hookonce[{extra}] does not give {lacking}")


def check_no_extra(wheel: Path, folder: Path) -> dict[str, str]:
    """Install the package alone, and return the imports that fail because an extra is missing."""
    fresh = Environment.create(folder)
    fresh.install(wheel.as_uri())
    failed = fresh.failed_imports()
    for module, message in failed.items():
        is_framework = any(f"'{name}'" in message for name in FRAMEWORKS)
        named = extra_named_in(message) in EXTRAS or is_framework
        expect(named, f"{module} names no extra: {message}")
    return failed


def extra_named_in(message: str) -> str | None:
    found = re.search(r"pip install 'hookonce\[(\w+)\]'", message)
    return found[1] if found else None


def check_old_pip(wheel: Path, fresh: Environment) -> None:
    """Resolve every extra with the last pip that reads `extra == "v1a"` as a version."""
    fresh.install("pip==25.3")
    everything = f"hookonce[{','.join(sorted(EXTRAS))}] @ {wheel.as_uri()}"
    run(fresh.command("pip"), "install", "-q", "--dry-run", everything)


def install_as_readme_says(wheel: Path, fresh: Environment) -> None:
    """Run the README's ``pip install`` command, with the wheel in place of the name on PyPI."""
    readme = (ROOT / "README.md").read_text("utf-8")
    found = re.findall(r"^pip install 'hookonce\[(\w+)\]'$", readme, re.MULTILINE)
    expect(len(found) == 1, "README.md must have one line: pip install 'hookonce[…]'")
    run(fresh.command("pip"), "install", "-q", f"hookonce[{found[0]}] @ {wheel.as_uri()}")


# Use the package outside the checkout


class Stranger:
    """A user who has the installed package and a folder, but no clone.

    Args:
        installed: the environment of the package.
        folder: the folder to work in.
    """

    def __init__(self, installed: Environment, folder: Path) -> None:
        folder.mkdir()
        readme = (ROOT / "README.md").read_text("utf-8")
        app = re.search(r"```python\n(# app\.py\n.*?)```", readme, re.DOTALL)
        expect(app, "README.md has no app.py")
        (folder / "app.py").write_text(app[1] if app else "", "utf-8")
        (folder / "jobs.py").write_text(JOBS, "utf-8")
        self._hookonce = installed.command("hookonce")
        self._folder = folder
        self._variables = {"HOME": str(folder), "HOOKONCE_INSPECTOR_TOKEN": TOKEN}
        self._variables["HOOKONCE_SECRETS"] = self.hookonce("secret").strip()

    def hookonce(self, *arguments: str) -> str:
        return run(self._hookonce, *arguments, cwd=self._folder, variables=self._variables)

    @contextmanager
    def running(self, *arguments: str) -> Iterator[Path]:
        """Run a command until the block ends; yield the file that gets its output."""
        output = self._folder / f"{arguments[0]}-{arguments[1].partition(':')[0]}.log"
        with output.open("w") as file:
            process = subprocess.Popen(
                [self._hookonce, *arguments],
                cwd=self._folder,
                env=environment(self._variables),
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            try:
                yield output
                process.terminate()
                process.wait(PATIENCE_SECONDS)
            except (FailedError, subprocess.TimeoutExpired) as error:
                raise FailedError(f"{error}\n{output.read_text()}") from None
            finally:
                process.kill()
                process.wait()
        status = process.returncode
        expect(status == 0, f"{arguments[0]} ended with status {status}\n{output.read_text()}")

    def demo(self) -> None:
        self.hookonce("demo")
        self.hookonce("demo", "--inbox")

    def serve(self, base: str) -> None:
        get(f"{base}/readyz")

    def send(self, base: str) -> None:
        printed = self.hookonce(
            "send", "comment.received", "--url", f"{base}/webhooks", "--times=2"
        )
        expect('"handled"' in printed and '"duplicate"' in printed, printed)

    def doctor(self, base: str) -> None:
        self.hookonce("doctor", "app:receiver", "--url", f"{base}/webhooks")

    def emulate(self, base: str) -> None:
        arguments = ["--events=5", "--rate=100", "--speed=1000"]
        self.hookonce("emulate", "--to", f"{base}/webhooks", *arguments)

    def inspector(self, base: str) -> None:
        page = get(f"{base}/inspector/", TOKEN).decode()
        expect("comment.received" in page, "the inspector does not show the delivery")
        assets = re.findall(r'(?:src|href)="([^"]*static/[^"]*)"', page)
        expect(assets, "the inspector's page names no script or style sheet")
        for asset in assets:
            get(urllib.parse.urljoin(f"{base}/inspector/", asset), TOKEN)

    def worker(self) -> None:
        port = free_port()
        with self.running("serve", "jobs:receiver", "--port", str(port)):
            url = f"http://127.0.0.1:{port}/webhooks"
            printed = self.hookonce("send", "comment.received", "--url", url, "--wait=60s")
            expect(": 202 " in printed, printed)
            with self.running("worker", "jobs:receiver") as output:
                until(lambda: "the worker greets" in output.read_text(), "the worker to greet")

    def guide(self) -> None:
        expect("five minutes" in self.hookonce("guide", "first"), "the guide lacks a page")
        expect("Receiver" in self.hookonce("guide", "api"), "the guide lacks the list of names")
        expect("rotate" in self.hookonce("guide", "--search", "rotate"), "the guide finds nothing")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def get(url: str, token: str = "") -> bytes:
    """Return the body at a URL; wait for a server that has not opened its port yet."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    answers: list[bytes] = []

    def answered() -> bool:
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                answers.append(answer.read())
        except urllib.error.HTTPError as error:
            raise FailedError(f"{url} answers {error.code}") from None
        except urllib.error.URLError:
            return False
        return True

    until(answered, url)
    return answers[0]


def until(condition: Callable[[], bool], awaited: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        expect(time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s for {awaited}")
        time.sleep(0.1)


# The command


@contextmanager
def step(name: str) -> Iterator[None]:
    began = time.monotonic()
    try:
        yield
    except FailedError as error:
        print(f"FAILED: {name}: {error}", file=sys.stderr)
        sys.exit(1)
    print(f"{time.monotonic() - began:6.1f} s  {name}", flush=True)


def quick(scratch: Path) -> None:
    """Build the wheel, install it as the README says, and run the demo outside the checkout."""
    with step("build"):
        built = build(scratch / "dist", Environment.create(scratch / "tools"))
    with step("install the wheel by the README's pip command"):
        fresh = Environment.create(scratch / "fresh")
        install_as_readme_says(built.wheel, fresh)
    with step("demo, outside the checkout"):
        Stranger(fresh, scratch / "elsewhere").demo()


def everything(scratch: Path, dist: Path, *, full: bool) -> None:
    tools = Environment.create(scratch / "tools")
    with step("build twice, byte for byte the same"):
        built = build_twice(dist, scratch / "again", tools)
    with step("twine check --strict"):
        tools.install("twine")
        run(tools.command("twine"), "check", "--strict", built.wheel, built.sdist)
    with step("names and contents"):
        check_contents(built)

    with step("install without an extra"):
        without = check_no_extra(built.wheel, scratch / "alone")
    for extra in sorted(EXTRAS):
        with step(f"install hookonce[{extra}]"):
            check_extra(extra, built.wheel, scratch / extra, without)

    with step("resolve all extras with pip 25.3"):
        check_old_pip(built.wheel, Environment.create(scratch / "old-pip"))
    with step("install hookonce by the README's pip command"):
        install_as_readme_says(built.wheel, Environment.create(scratch / "readme"))
    stranger = Stranger(Environment(scratch / "all"), scratch / "elsewhere")
    with step("demo"):
        stranger.demo()
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    with stranger.running("serve", "app:receiver", "--inspector", "--port", str(port)):
        for use in (
            stranger.serve, stranger.send, stranger.doctor, stranger.emulate, stranger.inspector
        ):  # fmt: skip
            with step(use.__name__):
                use(base)
    for alone in (stranger.worker, stranger.guide):
        with step(alone.__name__):
            alone()

    with step("the sdist's own tests" + (", all" if full else ", a selection")):
        check_sdist(built.sdist, scratch, full=full)


def check_sdist(sdist: Path, scratch: Path, *, full: bool) -> None:
    """Unpack the sdist, install it, and run its tests."""
    with tarfile.open(sdist) as archive:
        archive.extractall(scratch / "sdist", filter="data")
    (source,) = (scratch / "sdist").iterdir()
    fresh = Environment.create(source / ".venv")
    fresh.install_checkout(source)
    chosen = ["-n", "auto", "--dist", "worksteal"] if full else ["-n", "2", *SMALL_SELECTION]
    run(fresh.command("python"), "-m", "pytest", "-q", *chosen, cwd=source)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only build, install, and demo")
    parser.add_argument("--full", action="store_true", help="run all tests of the sdist")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="put the wheel and sdist here")
    asked = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hookonce-release-") as folder:
        scratch = Path(folder)
        if asked.quick:
            quick(scratch)
        else:
            everything(scratch, scratch / "dist", full=asked.full)
            if asked.keep:
                shutil.copytree(scratch / "dist", asked.keep, dirs_exist_ok=True)
    print(f"passed in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
