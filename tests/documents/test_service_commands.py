"""Commands run with the service's settings, as the deployment page shows.

There is neither systemd nor Docker nor Kubernetes here. systemd's own checker reads the units, and
the commands are compared with the unit, the image and the manifests.
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from .reading import GUIDE, ROOT, blocks

PAGE = GUIDE / "deployment.md"
TOOL = Path(sys.executable).with_name("hookonce")


def shown(language: str, words: str) -> str:
    [text] = [b.text for b in blocks(PAGE) if b.language == language and words in b.text]
    return text


def settings_of(unit: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in unit.splitlines() if re.match(r"\w+=", line))


def wrapper_words() -> list[str]:
    return shlex.split(shown("sh", "systemd-run").replace("\\\n", " "), comments=True)


def wrapper_settings() -> dict[str, str]:
    properties = [word for word in wrapper_words() if word.startswith("--property=")]
    return dict(word.removeprefix("--property=").split("=", 1) for word in properties)


def faults_of(unit: str, folder: Path) -> str:
    """Make the unit run a program that exists here; return the faults that systemd finds."""
    file = folder / "hookonce.service"
    file.write_text(unit.replace("/srv/hooks/.venv/bin/hookonce", str(TOOL)))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", file], capture_output=True, text=True, check=False
    )
    return "\n".join(line for line in checked.stderr.splitlines() if str(file) in line) or (
        checked.stderr if checked.returncode else ""
    )


needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze"
)


@needs_systemd
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = shown("ini", "[Service]")
    assert faults_of(unit, tmp_path) == ""
    assert "Unknown key" in faults_of(unit.replace("StateDirectory", "StateFolder"), tmp_path)


@needs_systemd
def test_systemd_accepts_the_settings_of_the_command(tmp_path: Path) -> None:
    lines = "\n".join(f"{name}={value}" for name, value in wrapper_settings().items())
    unit = f"[Service]\nType=oneshot\n{lines}\nExecStart=/srv/hooks/.venv/bin/hookonce dead list\n"
    assert faults_of(unit, tmp_path) == ""


def test_the_command_has_the_settings_of_the_unit() -> None:
    unit, command = settings_of(shown("ini", "[Service]")), wrapper_settings()
    assert command.keys() == {"User", "WorkingDirectory", "EnvironmentFile"}
    assert command.items() <= unit.items()
    assert unit["ExecStart"].split()[0] in wrapper_words()
    assert wrapper_words()[-1] == "$@"


def test_the_script_passes_all_arguments_on(tmp_path: Path) -> None:
    """A program that prints its arguments replaces ``systemd-run``."""
    (tmp_path / "systemd-run").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "systemd-run").chmod(0o755)
    script = tmp_path / "hooks"
    script.write_text(shown("sh", "systemd-run"))
    printed = subprocess.run(
        ["/bin/sh", script, "dead", "show", "an id"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert printed[-4:] == ["/srv/hooks/.venv/bin/hookonce", "dead", "show", "an id"]


def test_the_application_reads_the_variables_of_the_settings() -> None:
    lines = shown("text", "HOOKONCE_SECRETS_FILE=").splitlines()
    names = {line.split("=", 1)[0] for line in lines}
    app = shown("python", "# app.py")
    assert names - {"HOOKONCE_HEALTH_TOKEN"} == set(re.findall(r'environ.get\("(\w+)"', app))
    assert not [line for line in lines if re.search(r"[\"'\s]|^export", line)]


def commands(program: str) -> Iterator[list[str]]:
    for block in blocks(PAGE):
        if block.language == "sh" and not block.text.startswith("#!"):
            for line in block.text.splitlines():
                words = shlex.split(line)
                if words[:2] == program.split():
                    yield words


def test_commands_in_docker_name_the_container_that_runs() -> None:
    [started] = [words for words in commands("docker run") if "--rm" not in words]
    name = started[started.index("--name") + 1]
    for words in (*commands("docker exec"), *commands("docker stop")):
        assert name in words
    [alone] = [words for words in commands("docker run") if "--rm" in words]
    for option in ("-v", "--env-file"):
        assert alone[alone.index(option) + 1] == started[started.index(option) + 1]
    assert "hookonce" not in alone, "it is the image's entry point"
    assert 'ENTRYPOINT ["hookonce"]' in (ROOT / "Dockerfile").read_text("utf-8")


def test_commands_in_kubernetes_name_a_workload_and_its_container() -> None:
    manifests = [
        manifest
        for block in blocks(PAGE)
        if block.language == "yaml"
        for manifest in yaml.safe_load_all(block.text)
    ]
    containers = {
        f"{one['kind'].lower()}/{one['metadata']['name']}": {
            container["name"] for container in one["spec"]["template"]["spec"]["containers"]
        }
        for one in manifests
        if one["kind"] in {"Deployment", "StatefulSet"}
    }
    found = [*commands("kubectl exec")]
    assert {words[2] for words in found} == containers.keys()
    for words in found:
        assert words[3] == "-c"
        assert words[4] in containers[words[2]]
        assert words[5:7] == ["--", "hookonce"]
