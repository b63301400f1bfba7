"""Small commands, the help, and commands without the extra installed."""

import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import click
import httpx2
import pytest
from support.processes import run_python

import hookonce
from hookonce import sign, verify
from hookonce.cli.commands import cli

from .recorder import Recorder, closed_port_url, recording
from .running import COMMAND, SECRET, Result, invoke, run

pytestmark = pytest.mark.sample(10, of="file")


def test_secret_writes_a_private_key_for_its_owner_alone_and_prints_the_public_key(
    tmp_path: Path,
) -> None:
    file = tmp_path / "private-key"
    public = invoke("secret", "--private-key", str(file)).output.strip()
    private = file.read_text().strip()
    assert file.stat().st_mode & 0o777 == 0o600
    assert verify(b"{}", sign(private, "evt_1", b"{}"), public).id == "evt_1"
    again = invoke("secret", "--private-key", str(file))
    assert again.output.strip() == public
    assert private[5:] not in again.output + again.errors
    assert file.read_text().strip() == private


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold one private key"),
        ("whsk_AAAA", "has 3 bytes"),
        (f"whpk_{'A' * 43}=", "only verifies"),
        (SECRET, "is a whsec_ secret, and not a private key"),
    ],
)
def test_secret_leaves_a_file_without_a_private_key_as_it_is(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "private-key"
    file.write_text(text)
    result = invoke("secret", "--private-key", str(file))
    assert result.status == 2
    result.says(message, str(file))
    assert file.read_text() == text


def test_secret_prints_a_new_secret_of_32_bytes_each_time() -> None:
    printed = [invoke("secret").output for _ in range(3)]
    assert len(set(printed)) == 3
    for line in printed:
        assert line.endswith("\n")
        secret = line.removesuffix("\n")
        assert secret.startswith("whsec_")
        assert len(b64decode(secret.removeprefix("whsec_"), validate=True)) == 32
        assert verify(b"{}", sign(secret, "evt_1", b"{}"), secret).id == "evt_1"


def test_python_runs_the_package_as_the_command(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "hookonce", "--version"]
    shown = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stdout) == (0, f"hookonce, version {hookonce.__version__}\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_characters_that_the_encoding_of_the_output_lacks_are_escaped(
    encoding: str, tmp_path: Path
) -> None:
    shown = run("secret", "--help", here=tmp_path, environment={"PYTHONIOENCODING": encoding})
    assert shown.status == 0, shown
    assert "whsec_\N{HORIZONTAL ELLIPSIS}" in shown.output.replace(r"\u2026", "\u2026")


@pytest.fixture
def server() -> Iterator[Recorder]:
    """Serve on a free port."""
    with recording() as recorder:
        yield recorder


@pytest.mark.parametrize(("answer", "status"), [(200, 0), (503, 1), (404, 1), (302, 1)])
def test_health_succeeds_only_if_the_server_is_well(
    answer: int, status: int, server: Recorder
) -> None:
    server.statuses, server.answer = [answer], b'{"ready": true}'
    assert invoke("health", server.url) == Result(status, '{"ready": true}\n', "")


def test_health_asks_no_proxy(server: Recorder) -> None:
    proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY"), closed_port_url())
    assert invoke("health", server.url, environment=proxies).status == 0


@pytest.mark.parametrize("port", ["8123", "", None])
def test_health_asks_where_serve_listens(port: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """click treats an empty PORT as unset in `serve`, so `health` must do the same."""
    asked: list[str] = []

    def get(url: str, **_: object) -> httpx2.Response:
        asked.append(url)
        return httpx2.Response(200, text="well")

    monkeypatch.setattr(httpx2, "get", get)
    environment = {} if port is None else {"PORT": port}
    assert invoke("health", environment=environment).status == 0
    assert asked == [f"http://127.0.0.1:{port or 8000}/livez"]


@pytest.mark.parametrize("url", ["", "not a URL", "http://127.0.0.1:port/"])
def test_health_reports_an_invalid_url_in_one_line(url: str) -> None:
    environment = {"PORT": "port"}
    invoke("health", *([url] if url else []), environment=environment).says(
        "does not answer", status=1
    )


def test_health_reports_a_missing_server_in_one_line() -> None:
    url = closed_port_url()
    invoke("health", url).says(f"{url} does not answer: ", "refused", status=1)


def test_health_escapes_control_characters_of_the_answer(server: Recorder) -> None:
    server.answer = b"\x1b[2Jwell"
    assert invoke("health", server.url).output == "\\x1b[2Jwell\n"


def test_the_console_script_runs_and_says_its_version(tmp_path: Path) -> None:
    assert os.access(COMMAND[0], os.X_OK), "pip installs the script next to the interpreter"
    result = run("--version", here=tmp_path)
    assert result == Result(0, f"hookonce, version {hookonce.__version__}\n", "")


COMMANDS = cli.list_commands(click.Context(cli))


def test_the_help_names_every_command_and_where_secrets_come_from() -> None:
    result = invoke("-h")
    assert result.status == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.output
    assert {"secret", "serve", "worker"} < set(COMMANDS)
    assert "HOOKONCE_SECRETS" in result.output
    assert "HOOKONCE_STORE" in result.output


@pytest.mark.parametrize("command", [*COMMANDS, "dead list", "dead replay"])
def test_no_command_takes_a_secret_as_an_argument(command: str) -> None:
    """Every user of the machine could see such an argument."""
    shown = invoke(*command.split(), "--help").output
    assert "--secret " not in shown
    assert "whsec_" not in shown.replace("(whsec_…)", "")


def test_a_small_command_does_not_import_the_modules_of_others() -> None:
    """A container checks its health every few seconds, so unused modules must not be imported."""
    loaded = run_python(
        """
        import sys
        from hookonce.cli import main
        sys.argv = ["hookonce", "secret"]
        try:
            main()
        finally:
            print(*sys.modules)
        """
    ).split()
    assert "click" in loaded
    assert not {"hookonce.receiver", "pydantic", "uvicorn"} & set(loaded)


@pytest.mark.sample(2)
@pytest.mark.parametrize("command", ["serve", "worker", "inbox", "dead", "health"])
def test_a_command_for_production_loads_neither_the_emulator_nor_the_client(command: str) -> None:
    """Importing the emulator and the client takes a third of the start of a process."""
    loaded = run_python(
        f"""
        import sys
        from hookonce.cli import commands
        commands.cli.get_command(None, {command!r})
        print(*sys.modules)
        """
    ).split()
    assert f"hookonce.cli.{command}" in loaded
    assert not {"hookonce.emulator", "hookonce.simulation", "hookonce.client"} & set(loaded)


WITHOUT = """
import sys
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: (
    None if name.partition(".")[0] in {missing!r} else find(name, *rest)
)
from hookonce.cli import main
main()
"""


@pytest.mark.parametrize("missing", [["rich"], ["click", "httpx2", "rich", "uvicorn"]])
@pytest.mark.parametrize("arguments", [[], ["demo"], ["--help"]])
def test_without_the_extra_the_command_says_what_to_install(
    missing: list[str], arguments: list[str], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", WITHOUT.format(missing=missing)]
    names = ", ".join(missing)
    assert run(*arguments, here=tmp_path, command=command) == Result(
        2, "", f"the command line needs {names}: pip install 'hookonce[cli]'\n"
    )
