"""The recipes of the guide keep their promises on real servers with killed processes."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio.to_thread
import httpx2
import pytest
from cli.running import COMMAND, PATIENCE_SECONDS, SECRET, Process, running
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from support.redis_servers import free_port
from support.servers import serving
from support.service_api import calling, create
from support.waiting import until_async

from documents.reading import GUIDE, blocks
from hookonce.emulator import EmulatedService
from hookonce.testing import signed_request
from hookonce.verification.providers import EnvironmentSecrets
from hookonce.verification.secrets import new_secret, secret_lines

pytestmark = pytest.mark.anyio


def block(page: str, text: str) -> str:
    """Return the block of a page that contains a text."""
    [found] = [one.text for one in blocks(GUIDE / f"{page}.md") if text in one.text]
    return found


@dataclass
class Replies:
    """Counts the replies that a service stores, and may kill the client before its answer."""

    api: ASGIApp
    victims: list[Process] = field(default_factory=list)
    count: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_reply = scope["type"] == "http" and scope["path"].endswith("/reply")

        async def answer(message: Message) -> None:
            if is_reply and message["type"] == "http.response.start":
                self.count += message["status"] == 200
                while self.victims:
                    self.victims.pop().signal(signal.SIGKILL)
            await send(message)

        await self.api(scope, receive, answer)


@pytest.mark.full("3 s")
async def test_a_bot_that_is_killed_after_its_reply_does_not_reply_again(tmp_path: Path) -> None:
    bot = block("client", "# bot.py\n").replace(
        "store=", "limits=Limits(lease_seconds=2.0), store="
    )
    (tmp_path / "bot.py").write_text(bot.replace("import Context,", "import Context, Limits,"))
    async with EmulatedService() as service, serving(replies := Replies(service.api)) as site:
        environment = {"HOOKONCE_API_URL": site.url, "HOOKONCE_API_KEY": service.new_key()}
        event = await service.emit("comment.received")
        body = event.model_dump_json().encode()

        @asynccontextmanager
        async def served() -> AsyncIterator[tuple[Process, str]]:
            arguments = ["serve", "bot:receiver", "--port", "0"]
            with running(
                *arguments, here=tmp_path, secrets=[SECRET], environment=environment
            ) as process:
                found = await anyio.to_thread.run_sync(
                    process.printed, r"running on (http://127\.0\.0\.1:\d+) "
                )
                yield process, f"{found[1]}/webhooks"

        async def deliver(url: str, attempt: int) -> int:
            request = signed_request(body, SECRET, attempt=attempt)
            async with httpx2.AsyncClient(timeout=PATIENCE_SECONDS, trust_env=False) as client:
                answer = await client.post(url, content=request.body, headers=dict(request.headers))
            return answer.status_code

        async with served() as (process, url):
            replies.victims = [process]
            with pytest.raises(httpx2.TransportError):
                await deliver(url, 1)
        assert replies.count == 1
        async with served() as (_, url):

            async def is_handled() -> bool:
                return await deliver(url, 2) == 200

            await until_async(is_handled, seconds=PATIENCE_SECONDS, what="the event is handled")
        assert replies.count == 1


def test_docker_reads_the_file_of_variables_as_it_is_shown() -> None:
    """``docker run --env-file`` splits a line at its first equals sign, and removes no quotes."""
    variables = dict(
        line.split("=", 1) for line in block("deployment", "HOOKONCE_SECRETS=whsec_").splitlines()
    )
    assert set(variables) == {"HOOKONCE_SECRETS", "HOOKONCE_HEALTH_TOKEN"}
    assert not re.search(r"[\"' ]", "".join(variables.values()))
    new, old = new_secret(), new_secret()
    with pytest.MonkeyPatch.context() as patch:
        # The page describes these steps in its section on rotation.
        patch.setenv("HOOKONCE_SECRETS", f"{new},{old}")
        assert EnvironmentSecrets().current() == (new, old)


KUBECTL = '''#!{python}
"""The part of kubectl that the recipe needs, over a folder that stands for the cluster."""
import base64, json, os, shutil, socket, sys, threading

cluster = {cluster!r}
pods = {pods!r}
words = sys.argv[1:]


def mount(data):
    """Replace the mounted files as the kubelet does: by exchanging a link to a folder."""
    folder = f"{{cluster}}/..{{os.getpid()}}"
    os.mkdir(folder)
    with open(f"{{folder}}/webhooks", "wb") as file:
        file.write(base64.b64decode(data["webhooks"]))
    os.symlink(folder, f"{{cluster}}/..new")
    os.replace(f"{{cluster}}/..new", f"{{cluster}}/..data")


def copy(source, target):
    while piece := source.recv(65536):
        target.sendall(piece)
    target.shutdown(socket.SHUT_WR)


if words[:3] == ["get", "secret", "hooks"]:
    key = words[4].removeprefix("jsonpath={{.data.").removesuffix("}}")
    print(json.load(open(f"{{cluster}}/secret.json"))[key], end="")
elif words == ["get", "pods", "-l", "app=hooks", "-o", "name"]:
    print(*(f"pod/{{name}}" for name in pods), sep="\\n")
elif words[:3] == ["patch", "secret", "hooks"] and words[3] == "--patch-file":
    data = json.load(open(f"{{cluster}}/secret.json")) | json.load(open(words[4]))["data"]
    json.dump(data, open(f"{{cluster}}/secret.json", "w"))
    mount(data)
elif words[0] == "port-forward":
    own, _, theirs = words[2].partition(":")
    assert theirs == "8000"
    with socket.create_server(("127.0.0.1", int(own))) as listener:
        while True:
            one, _ = listener.accept()
            other = socket.create_connection(("127.0.0.1", pods[words[1].removeprefix("pod/")]))
            threading.Thread(target=copy, args=(one, other), daemon=True).start()
            threading.Thread(target=copy, args=(other, one), daemon=True).start()
else:
    sys.exit(f"unknown: {{words}}")
'''

TOKEN = "a token for those who may know"


@pytest.mark.full("8 s: ten processes, one after the other")
async def test_the_rotation_on_kubernetes_leaves_every_pod_with_the_new_secret(
    tmp_path: Path,
) -> None:
    steps = [one.text for one in blocks(GUIDE / "secrets.md") if "kubectl" in one.text]
    assert len(steps) == 3
    cluster, here = tmp_path / "cluster", tmp_path / "here"
    cluster.mkdir()
    here.mkdir()
    old = new_secret()
    data = {"webhooks": old, "health-token": TOKEN}
    encoded = {name: base64.b64encode(text.encode()).decode() for name, text in data.items()}
    (cluster / "secret.json").write_text(json.dumps(encoded))
    (cluster / "..data").symlink_to(cluster / "..first")
    (cluster / "..first").mkdir()
    (cluster / "..first" / "webhooks").write_text(old)
    (cluster / "webhooks").symlink_to("..data/webhooks")
    (here / "app.py").write_text(block("deployment", "# app.py\nimport os\n"))
    environment = {
        "HOOKONCE_SECRETS_FILE": str(cluster / "webhooks"),
        "STORE_URL": "memory://",
        "HOOKONCE_HEALTH_TOKEN": TOKEN,
    }
    async with EmulatedService() as service, serving(service.api) as site:
        key = service.new_key()
        async with calling(service, key) as api:
            webhook = (await create(api))["id"]
        with ExitStack() as stack:
            ports: dict[str, int] = {}
            for name in ("hooks-1", "hooks-2"):
                process = stack.enter_context(
                    running(
                        "serve", "app:receiver", "--port", "0", here=here, environment=environment
                    )
                )
                found = await anyio.to_thread.run_sync(process.printed, r"running on \S+:(\d+) ")
                ports[name] = int(found[1])
            script = "\n".join(
                [
                    *steps[:2],
                    "sed -i 's/since [^,]*,/since 2026-01-01T00:00:00Z,/' webhooks",
                    steps[2],
                ]
            )
            for shown, real in {
                "https://api.example.com": site.url,
                "HOOKONCE_API_KEY=…": f"HOOKONCE_API_KEY={key}",
                "wh_1": webhook,
                "port=9001": f"port={free_port()}",
            }.items():
                assert shown in script
                script = script.replace(shown, real)
            kubectl = tmp_path / "bin" / "kubectl"
            kubectl.parent.mkdir()
            kubectl.write_text(
                KUBECTL.format(python=sys.executable, cluster=str(cluster), pods=ports)
            )
            kubectl.chmod(0o755)
            path = f"{kubectl.parent}:{Path(COMMAND[0]).parent}:{os.environ['PATH']}"
            done = await anyio.to_thread.run_sync(
                lambda: subprocess.run(
                    ["bash", "-c", script],
                    cwd=here,
                    env={**os.environ, "PATH": path},
                    capture_output=True,
                    text=True,
                    timeout=PATIENCE_SECONDS * 2,
                    check=False,
                )
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert done.stdout.count("the receiver knows the new secret") == 4, done.stdout
            text = base64.b64decode(
                json.loads((cluster / "secret.json").read_text())["webhooks"]
            ).decode()
            [secret] = secret_lines(text)
            assert secret not in {old, ""}
            assert secret[6:] not in done.stdout + done.stderr
            assert (cluster / "webhooks").read_text() == text
            assert not (here / "rotation").exists()
