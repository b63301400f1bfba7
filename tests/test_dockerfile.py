"""The Dockerfile's command serves deliveries, reports health, and ends at the stop signal.

The tests use no container engine: they read the last stage, and run its command with the installed
package in a folder that takes the place of ``/data``.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from support.redis_servers import free_port
from support.waiting import PATIENCE_SECONDS, until

from hookonce.events import CommentReceived
from hookonce.testing import make_event, signed_request

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Image:
    """The instructions of the Dockerfile's last stage."""

    command: list[str]
    health_check: list[str]
    stop_signal: str
    environment: dict[str, str]
    copied: dict[str, str]


def read_dockerfile() -> Image:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    last_stage = text[text.rindex("\nFROM ") :]
    instructions: dict[str, list[str]] = {}
    for line in last_stage.splitlines():
        name, _, rest = line.partition(" ")
        if name.isupper():
            instructions.setdefault(name, []).append(rest.strip())
    (entrypoint,), (command,) = instructions["ENTRYPOINT"], instructions["CMD"]
    (check,), (stop,) = instructions["HEALTHCHECK"], instructions["STOPSIGNAL"]
    copies = [copy.split() for copy in instructions["COPY"] if not copy.startswith("--from")]
    variables = [one for line in instructions["ENV"] for one in line.split()]
    return Image(
        command=json.loads(entrypoint) + json.loads(command),
        health_check=json.loads(check.partition("CMD ")[2]),
        stop_signal=stop,
        environment=dict(one.split("=", 1) for one in variables),
        copied={target: source for source, target in copies},
    )


@dataclass
class Container:
    """The image's command, while it runs."""

    image: Image
    process: subprocess.Popen[bytes]
    environment: dict[str, str]
    here: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.environment['PORT']}"

    def is_healthy(self) -> bool:
        return not subprocess.run(
            self.image.health_check,
            env=self.environment,
            cwd=self.here,
            capture_output=True,
            check=False,
        ).returncode


@pytest.fixture
def container(tmp_path: Path, webhook_secret: str) -> Iterator[Container]:
    image = read_dockerfile()
    app, data = tmp_path / "app", tmp_path / "data"
    app.mkdir()
    data.mkdir()
    # The data folder has files with the names of modules that the command imports, at once or
    # later. The command must not import these files.
    for name in ("receiver_app.py", "redis.py", "uvloop.py"):
        (data / name).write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    for target, source in image.copied.items():
        shutil.copy(ROOT / source, app / target.removeprefix("/app/"))
    environment = {
        **image.environment,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(app),
        "PORT": str(free_port()),
        "HOOKONCE_SECRETS": webhook_secret,
    }
    with subprocess.Popen(image.command, env=environment, cwd=data) as process:
        try:
            yield Container(image, process, environment, data)
        finally:
            process.kill()


async def test_the_image_serves_is_healthy_and_ends_in_order(
    container: Container, webhook_secret: str
) -> None:
    await until(container.is_healthy, what="a healthy container")
    request = signed_request(make_event(CommentReceived), webhook_secret)
    async with httpx2.AsyncClient(base_url=container.url) as client:
        for reason in ("handled", "duplicate"):
            response = await client.post(
                "/webhooks", content=request.body, headers=dict(request.headers)
            )
            assert (response.status_code, response.json()["reason"]) == (200, reason)
    stop = signal.Signals[container.image.stop_signal]
    container.process.send_signal(stop)
    # After an orderly end, uvicorn sends itself the signal again. In a container, the first process
    # ignores this signal by default, so its status is 0.
    assert container.process.wait(PATIENCE_SECONDS) in {0, -stop}
    assert not container.is_healthy()
    assert list(container.here.glob("*.db")), "the store lies on the volume"
    assert not (container.here.parent / "imported").exists(), "the volume holds data, not modules"
