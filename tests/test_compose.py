"""The commands of the compose file work; the tests need no Docker.

Its commands and health checks run as processes here, with a Redis server of this machine. Only host
names and ports differ.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import httpx2
import pytest
import yaml
from cli.running import COMMAND, PATIENCE_SECONDS, SECRET, Process, eventually, run, running
from documents.reading import IN_SDIST
from support.needs import needed
from support.redis_servers import REDIS_SERVER, free_port
from test_dockerfile import read_dockerfile

from hookonce import Limits
from hookonce.cli.commands import cli
from hookonce.cli.ending import end_seconds_of

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
COMPOSE: dict[str, Any] = yaml.safe_load((EXAMPLES / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("receiver", "worker")


def check_of(name: str) -> list[str]:
    """Return the command of a service's health check, by default the image's health check."""
    if "healthcheck" not in SERVICES[name]:
        return read_dockerfile().health_check
    kind, *words = SERVICES[name]["healthcheck"]["test"]
    return ["sh", "-c", *words] if kind == "CMD-SHELL" else words


def test_every_command_and_option_of_hookonce_in_it_is_there() -> None:
    shown = re.findall(
        r"exec worker (hookonce .+)$", (EXAMPLES / "compose.yaml").read_text(), re.MULTILINE
    )
    written = [*SERVICES["receiver"]["command"]], [*SERVICES["worker"]["command"]]
    checks = [check_of(name)[1:] for name in OURS]
    for words in [*written, *checks, *(shlex.split(line)[1:] for line in shown)]:
        command: click.Command = cli
        rest = [*words]
        while isinstance(command, click.Group):
            found = command.get_command(click.Context(command), rest.pop(0))
            assert found is not None, words
            command = found
        command.make_parser(click.Context(command)).parse_args(rest)


def test_its_files_are_there_and_its_secrets_stay_out_of_git_and_of_the_image() -> None:
    for service in SERVICES.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (EXAMPLES / source).is_file(), source
            else:
                assert source in COMPOSE["volumes"]
    assert {SERVICES[name]["env_file"] for name in OURS} == {"secrets.env"}
    for name in () if IN_SDIST else (".gitignore", ".dockerignore"):
        assert re.search(r"^(\*\*/)?secrets\.env$", (ROOT / name).read_text(), re.MULTILINE), name


def test_containers_get_the_time_that_an_orderly_end_takes() -> None:
    for name in OURS:
        period = SERVICES[name]["stop_grace_period"]
        assert int(period.removesuffix("s")) >= end_seconds_of(Limits())


def test_the_image_has_what_its_commands_import() -> None:
    [extras] = re.findall(r"pip install .*'\.\[(.*)\]'", (ROOT / "Dockerfile").read_text())
    assert {"cli", "redis", "postgres", "prometheus"} == set(extras.split(","))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_prometheus_can_read_its_configuration(tmp_path: Path) -> None:
    for volume in SERVICES["prometheus"]["volumes"]:
        source, target, *_ = volume.split(":")
        if target.startswith("/etc/prometheus/"):
            shutil.copy(EXAMPLES / source, tmp_path / Path(target).name)
    checked = subprocess.run(
        [needed("promtool", package="prometheus"), "check", "config", tmp_path / "prometheus.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "rules found" in checked.stdout


@dataclass
class Composed:
    """The services, run as processes of this machine."""

    environment: Mapping[str, str]
    ports: Mapping[str, str]
    processes: Mapping[str, Process]

    def local(self, words: Sequence[str]) -> list[str]:
        """Return a command with the ports of this machine instead of the containers' ports."""
        words = [re.sub("|".join(self.ports), lambda found: self.ports[found[0]], w) for w in words]
        return [re.sub(r"redis-cli", f"redis-cli -p {self.ports['6379']}", word) for word in words]

    def is_healthy(self, name: str) -> bool:
        checked = subprocess.run(
            self.local(check_of(name)), env=self.environment, capture_output=True, check=False
        )
        return checked.returncode == 0


@pytest.fixture
def composed(tmp_path: Path) -> Iterator[Composed]:
    redis = REDIS_SERVER or needed("redis-server", package="redis-server")
    ports = {one: str(free_port()) for one in ("6379", "8000", "9100")}
    [volume] = SERVICES["receiver"]["volumes"]
    source, target, _ = volume.split(":")
    app, data = tmp_path / "app", tmp_path / "data"
    app.mkdir()
    data.mkdir()
    shutil.copy(EXAMPLES / source, app / Path(target).name)
    url = SERVICES["receiver"]["environment"]["STORE_URL"]
    environment = {
        **read_dockerfile().environment,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(app),
        "PORT": ports["8000"],
        "STORE_URL": url.replace("redis:6379", f"127.0.0.1:{ports['6379']}"),
    }
    composed = Composed(environment, ports, {})
    with ExitStack() as stack:
        _, *options = SERVICES["redis"]["command"]
        server = [*options, "--port", ports["6379"], "--dir", str(data)]
        stack.enter_context(running(*server, here=tmp_path, command=[redis]))
        eventually(lambda: composed.is_healthy("redis"), what="a healthy Redis")
        composed.processes = {
            name: stack.enter_context(
                running(
                    *composed.local(SERVICES[name]["command"]),
                    here=data,
                    secrets=[SECRET],
                    environment=environment,
                )
            )
            for name in OURS
        }
        yield composed


@pytest.mark.full("3 s")
def test_an_event_goes_from_the_receiver_to_the_worker_and_into_the_metrics(
    composed: Composed, tmp_path: Path
) -> None:
    for name in OURS:
        eventually(partial(composed.is_healthy, name), what=f"a healthy {name}")
    url = f"http://127.0.0.1:{composed.ports['8000']}/webhooks"
    sent = run("send", "post.target.failed", "--url", url, here=tmp_path, secrets=[SECRET])
    assert '"stored"' in sent.output, sent
    composed.processes["worker"].printed(r"instagram: media\.rejected")
    config = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text("utf-8"))
    [job] = config["scrape_configs"]
    wanted = {"receiver": "hookonce_deliveries_total{", "worker": "hookonce_handler_duration"}
    for target in job["dns_sd_configs"]:
        [name] = target["names"]
        address = f"http://127.0.0.1:{composed.ports[str(target['port'])]}/metrics"
        scraped = httpx2.get(address, timeout=PATIENCE_SECONDS, trust_env=False)
        assert wanted.pop(name) in scraped.text, name
    assert wanted == {}


def test_hookonce_is_the_command_of_the_image() -> None:
    """`command` in the compose file begins with a subcommand, because the image runs hookonce."""
    assert read_dockerfile().command[0] == Path(COMMAND[0]).name
