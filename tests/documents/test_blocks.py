"""The code blocks of the documents do what the documents say."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from support.postgres import postgres_server

from documents.reading import DOCUMENTS, GUIDE, ROOT, blocks, commands, name_of
from documents.running import matches
from hookonce import Limits
from hookonce.cli.commands import cli
from hookonce.cli.ending import end_seconds_of
from hookonce.guide.pages import topics
from hookonce.verification.secrets import new_secret

RUN = {"python", "console"}
READ = {"sh", "yaml", "json", "toml", "ini", "nginx", "dockerfile", "sql", "js", "go", "text", ""}

LONG = {
    "chaos.md": "8 s",
    "client.md": "6 s",
    "dead-letters.md": "6 s",
    "deployment.md": "3 s",
    "effects.md": "12 s",
    "emulator.md": "8 s",
    "first.md": "3 s",
    "handled.md": "5 s",
    "inbox.md": "3 s",
    "interface.md": "3 s",
    "senders.md": "6 s",
    "stores.md": "8 s",
    "testing.md": "4 s",
    "troubleshooting.md": "3 s",
}
"""The pages that show many commands, and what that costs."""

WITH_STORIES = [
    pytest.param(
        path,
        id=name_of(path),
        marks=pytest.mark.full(LONG[path.name]) if path.name in LONG else (),
    )
    for path in DOCUMENTS
    if any(block.language in RUN for block in blocks(path))
]


@pytest.mark.sample(2)
@pytest.mark.parametrize("path", WITH_STORIES)
def test_every_block_of_a_page_does_what_it_shows(path: Path) -> None:
    done = run_alone(path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def busy_cores() -> Iterator[None]:
    """Keep each core busy for half of its time."""
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in os.sched_getaffinity(0)
    ]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.full("35 s of processor time")
@pytest.mark.parametrize(
    "machine",
    ["idle", pytest.param("busy", marks=pytest.mark.undrawn("busy processors for 3 min"))],
)
def test_all_pages_can_be_followed_one_after_the_other_in_one_folder(
    machine: str, request: pytest.FixtureRequest
) -> None:
    pages = [ROOT / "README.md", *(GUIDE / f"{topic}.md" for topic in topics())]
    if machine == "busy":
        request.getfixturevalue("busy_cores")
    done = run_alone(*pages)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_block_that_is_not_run_has_a_valid_syntax(path: Path) -> None:
    for block in blocks(path):
        where = f"{name_of(path)}:{block.line}"
        assert block.language in RUN | READ, f"{where}: no test knows {block.language!r}"
        if block.language == "yaml":
            assert list(yaml.safe_load_all(block.text)), where
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "ini":
            parser = ConfigParser(strict=False, interpolation=None)
            parser.read_string(block.text, where)
        elif block.language == "nginx":
            assert block.text.count("{") == block.text.count("}"), where
        elif block.language in {"sh", "console"}:
            script = "\n".join(commands(block))
            read = subprocess.run(
                ["bash", "-n"], input=script, text=True, capture_output=True, check=False
            )
            assert read.returncode == 0, f"{where}: {read.stderr}"


@pytest.mark.parametrize(
    ("shown", "printed", "rules", "same"),
    [
        ("a\n", "a\n", (), True),
        ("a\n", "b\n", (), False),
        ("a\n", "a\nb\n", (), False),
        ("a\n…\n", "a\nb\nc\n", (), True),
        ("a …\n", "a b\n", (), True),
        ("in 12.5 ms\n", "in 7.0 ms\n", (), True),
        ("in 12.5 ms\n", "in ages\n", (), False),
        ("at 17:13:21.692\n", "at 01:02:03.000\n", (), True),
        ("5 of 6\n", "7 of 8\n", (), False),
        ("5 of 6\n", "7 of 8\n", ("figures vary",), True),
        ("5 of 6\n", "7 or 8\n", ("figures vary",), False),
        ("a\nb\n", "b\na\n", (), False),
        ("a\nb\n", "b\na\n", ("any order",), True),
        ("a\nb\n", "b\na\na\n", ("any order",), False),
        ("", "a\n", (), False),
    ],
)
def test_output_is_compared_line_by_line(
    shown: str, printed: str, rules: tuple[str, ...], *, same: bool
) -> None:
    assert matches(shown, printed, frozenset(rules)) is same


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "wrong",
    [
        "```python\n1 / 0\n```\n",
        "```console\n$ echo one\ntwo\n```\n",
        "```console\n$ hookonce no-such-command\n…\n```\n",
        "```python\ndef test_it() -> None:\n    assert False\n```\n",
    ],
    ids=["python", "output", "status", "test"],
)
def test_a_page_with_wrong_output_fails(wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(wrong)
    done = run_alone(path)
    assert done.returncode == 1
    assert ":2: " in done.stderr


def run_alone(*paths: Path) -> subprocess.CompletedProcess[str]:
    """Run pages one after the other, in a new folder."""
    environment = os.environ | {
        "HOOKONCE_SECRETS": new_secret(),
        "HOOKONCE_INSPECTOR_TOKEN": "a token for the inspector of these pages",
        "PYTHONPATH": f"{ROOT / 'tests'}{os.pathsep}{ROOT}",
    }
    with ExitStack() as at_end:
        if any("DATABASE_URL" in path.read_text("utf-8") for path in paths):
            server = at_end.enter_context(postgres_server())
            environment["DATABASE_URL"] = server.sqlalchemy_url("asyncpg")
        return subprocess.run(
            [sys.executable, "-m", "documents.running", *map(str, paths)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


def test_the_readme_has_one_command_for_the_demo_and_one_for_the_tests() -> None:
    """``.ci/run`` finds the two commands on the first page, and runs both."""
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    demo, test = [line for line in lines if line.startswith("python3 -m venv .venv ")]
    assert demo.endswith("&& .venv/bin/hookonce demo")
    assert re.search(r"&& \.venv/bin/pytest( |$)", test)


def test_every_manifest_has_a_grace_period_of_fifty_seconds() -> None:
    """Fifty seconds in every manifest: for Kubernetes, Docker and systemd."""
    [page] = [path for path in DOCUMENTS if path.name == "deployment.md"]
    seconds = int(re.findall(r"docker stop -t (\d+)", page.read_text("utf-8"))[0])
    assert seconds >= end_seconds_of(Limits())
    manifests = [
        manifest
        for block in blocks(page)
        if block.language == "yaml"
        for manifest in yaml.safe_load_all(block.text)
    ]
    assert {"Deployment", "StatefulSet", "Service", "Secret"} == {one["kind"] for one in manifests}
    for manifest in manifests:
        if manifest["kind"] in {"Deployment", "StatefulSet"}:
            check_workload(manifest, seconds)
    [unit] = [block.text for block in blocks(page) if block.language == "ini"]
    assert f"TimeoutStopSec={seconds}\n" in unit


def check_workload(manifest: dict[str, Any], seconds: int) -> None:
    spec = manifest["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == seconds
    labels = manifest["spec"]["template"]["metadata"]["labels"]
    assert manifest["spec"]["selector"]["matchLabels"] == labels
    volumes = {one["name"] for one in spec.get("volumes", [])}
    volumes |= {one["metadata"]["name"] for one in manifest["spec"].get("volumeClaimTemplates", [])}
    for container in spec["containers"]:
        assert {one["name"] for one in container["volumeMounts"]} <= volumes
        ports = {one["name"] for one in container["ports"]}
        for name, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
            probe = container[name]
            assert (probe["httpGet"]["path"], probe["timeoutSeconds"]) == (path, 5)
            assert probe["httpGet"]["port"] in ports
        command = cli.get_command(click.Context(cli), container["args"][0])
        assert command is not None
        command.make_parser(click.Context(command)).parse_args(list(container["args"][1:]))
