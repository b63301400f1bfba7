"""`hookonce listen` creates one endpoint at the emulated service, and deletes it when it ends."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.redis_servers import free_port
from support.servers import serving
from support.service_api import calling, create
from support.waiting import until

from hookonce.emulator import EmulatedService, EndpointStatus
from hookonce.http.app import ASGIApp, Message, Receive, Scope, Send
from hookonce.resources import WebhookEndpoint
from hookonce.verification.secrets import secret_lines

from .running import PATIENCE_SECONDS, SECRET, Process, Result, run, running

pytestmark = [pytest.mark.anyio, pytest.mark.sample(1, of="file")]

T = TypeVar("T")

APP = """
from hookonce import EnvironmentSecrets, Receiver
from hookonce.events import ChannelDisconnected, ChannelUnhealthy, CommentReceived
from hookonce.senders import openai

receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")
several = [receiver, Receiver(secrets=EnvironmentSecrets(), store="memory://", endpoint="other")]
without = Receiver(secrets=EnvironmentSecrets(), store="memory://")
foreign = Receiver(secrets=EnvironmentSecrets(), store="memory://", sender=openai)


@receiver.on(CommentReceived)
async def greet(event: CommentReceived) -> None:
    print(f"handled {event.id}", flush=True)


@receiver.on("channel.*", name="channels")
async def sync(event: ChannelUnhealthy | ChannelDisconnected) -> None: ...
"""

MOUNTED = """
from app import receiver
from starlette.applications import Starlette
from starlette.routing import Mount

app = Starlette(
    routes=[Mount("/in", routes=receiver.routes("/hooks"))], lifespan=receiver.lifespan
)
"""

BROKEN = """
from contextlib import asynccontextmanager

from app import receiver
from starlette.applications import Starlette


@asynccontextmanager
async def lifespan(app):
    raise LookupError("the model is missing")
    yield


app = Starlette(routes=receiver.routes("/hooks"), lifespan=lifespan)
"""

TYPES = ["comment.received", "channel.unhealthy", "channel.disconnected"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Bench:
    """The emulated service, and a developer's folder."""

    service: EmulatedService
    environment: dict[str, str]
    here: Path

    @property
    def file(self) -> Path:
        return self.here / "hookonce-listen.secrets"

    @property
    def endpoint(self) -> WebhookEndpoint:
        [endpoint] = self.service.endpoints
        return endpoint

    @property
    def is_enabled(self) -> bool:
        return self.endpoint.status == EndpointStatus.ACTIVE

    def arguments(self, *options: str, name: str = "app:receiver", port: int = 0) -> list[str]:
        port = port or free_port()
        tunnel = f"http://127.0.0.1:{port}"
        return ["listen", name, "--tunnel", tunnel, "--port", str(port), *options]

    @asynccontextmanager
    async def listening(self, *options: str, **named: Any) -> AsyncIterator[Process]:
        """Run the command, which listens when the block begins."""
        arguments = self.arguments(*options, **named)
        with running(*arguments, here=self.here, environment=self.environment) as process:
            await beside(lambda: process.printed(r"Ctrl-C disables the endpoint"))
            yield process

    async def run(
        self, *options: str, environment: Mapping[str, str] | None = None, **named: Any
    ) -> Result:
        """Run the command to its end, and return how it ended."""
        settings = {**self.environment, **(environment or {})}
        arguments = self.arguments(*options, **named)
        return await beside(lambda: run(*arguments, here=self.here, environment=settings))

    async def end(self, process: Process, number: int = signal.SIGINT) -> Result:
        process.signal(number)
        result = await beside(process.ended)
        if self.file.exists():
            for secret in secret_lines(self.file.read_text()):
                assert secret[6:] not in result.output + result.errors
        return result

    async def deliver(self) -> int | None:
        """Emit an event, and return the answer to it."""
        await self.service.emit("comment.received")
        return self.service.attempts()[-1].status


async def beside(call: Callable[[], T]) -> T:
    """Call a blocking function in a thread, while the service keeps running."""
    return await asyncio.to_thread(call)


@asynccontextmanager
async def bench_in(
    here: Path,
    *,
    plan: str | None = None,
    role: str = "admin",
    around: Callable[[ASGIApp], ASGIApp] = lambda app: app,
) -> AsyncIterator[Bench]:
    (here / "app.py").write_text(APP)
    (here / "mounted.py").write_text(MOUNTED)
    (here / "broken.py").write_text(BROKEN)
    async with EmulatedService(plan=plan) as service, serving(around(service.api)) as site:
        key = service.new_key(role=role)
        yield Bench(service, {"HOOKONCE_API_URL": site.url, "HOOKONCE_API_KEY": key}, here)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench_in(tmp_path) as bench:
        yield bench


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_first_start_creates_an_endpoint_and_the_end_disables_it(
    bench: Bench, number: int
) -> None:
    port = free_port()
    async with bench.listening(port=port) as process:
        assert bench.is_enabled
        assert bench.endpoint.url == f"http://127.0.0.1:{port}/webhooks"
        assert sorted(bench.endpoint.events) == sorted(TYPES)
        assert await bench.deliver() == 200
        await beside(lambda: process.printed("handled evt_"))
        ended = await bench.end(process, number)
    assert ended.status == 0, ended
    assert "to delete it, use the service's app and remove hookonce-listen.secrets" in ended.output
    assert not bench.is_enabled
    assert bench.file.stat().st_mode & 0o777 == 0o600
    note, secret = bench.file.read_text().splitlines()
    assert (note, secret[:6]) == (f"# hookonce listen: endpoint {bench.endpoint.id}", "whsec_")


async def test_a_later_start_continues_with_the_endpoint_at_the_new_tunnel(bench: Bench) -> None:
    async with bench.listening() as process:
        await bench.end(process)
    before = bench.endpoint, bench.file.read_text()
    port = free_port()
    async with bench.listening("--event", "comment.received", port=port) as process:
        assert bench.endpoint.id == before[0].id
        assert bench.endpoint.url == f"http://127.0.0.1:{port}/webhooks"
        assert (bench.is_enabled, bench.endpoint.events) == (True, ["comment.received"])
        assert await bench.deliver() == 200
        await bench.end(process)
    assert (bench.is_enabled, bench.file.read_text()) == (False, before[1])


async def test_after_a_kill_the_next_start_continues_with_the_endpoint(bench: Bench) -> None:
    async with bench.listening() as process:
        process.signal(signal.SIGKILL)
        await beside(process.ended)
    killed = bench.endpoint
    assert bench.is_enabled
    async with bench.listening() as process:
        assert (bench.endpoint.id, bench.is_enabled) == (killed.id, True)
        assert bench.endpoint.url != killed.url
        assert await bench.deliver() == 200
        await bench.end(process)
    assert not bench.is_enabled


@dataclass
class Holding:
    """Creates an endpoint, but holds back the answer."""

    api: ASGIApp
    has_created: asyncio.Event
    may_answer: asyncio.Event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_creation = scope["type"] == "http" and scope["path"] == "/v1/webhooks"

        async def answer(message: Message) -> None:
            if is_creation and message["type"] == "http.response.start":
                self.has_created.set()
                await self.may_answer.wait()
            await send(message)

        await self.api(scope, receive, answer)


async def test_a_signal_during_the_creation_leaves_the_endpoint_recorded_and_disabled(
    tmp_path: Path,
) -> None:
    has_created, may_answer = asyncio.Event(), asyncio.Event()
    async with bench_in(
        tmp_path, around=lambda app: Holding(app, has_created, may_answer)
    ) as bench:
        with running(*bench.arguments(), here=tmp_path, environment=bench.environment) as process:
            await until(
                has_created.is_set,
                seconds=PATIENCE_SECONDS,
                what="the service has created an endpoint",
            )
            process.signal(signal.SIGTERM)
            await beside(lambda: process.printed("ending after this"))
            may_answer.set()
            ended = await beside(process.ended)
        assert ended.status == 0, ended
        assert bench.endpoint.id in bench.file.read_text()
        assert not bench.is_enabled


async def test_an_application_that_does_not_start_leaves_the_endpoint_disabled(
    bench: Bench,
) -> None:
    ended = await bench.run(name="broken:app")
    assert ended.status == 2
    assert "the model is missing" in ended.errors
    assert ended.errors.endswith("Error: the application did not start; the log says why\n")
    assert not bench.is_enabled


async def test_a_mounted_receiver_gets_deliveries_at_its_own_path(bench: Bench) -> None:
    async with bench.listening(name="mounted:app") as process:
        assert bench.endpoint.url.endswith("/in/hooks")
        assert await bench.deliver() == 200
        await bench.end(process)


async def test_the_url_of_a_tunnel_may_have_a_path_and_json_prints_records(
    bench: Bench,
) -> None:
    port = free_port()
    tunnel = f"http://127.0.0.1:{port}/webhooks/"
    options = ("--tunnel", tunnel, "--json")
    arguments = bench.arguments(*options, port=port)
    with running(*arguments, here=bench.here, environment=bench.environment) as process:
        await beside(lambda: process.printed('"step": "listening"'))
        assert bench.endpoint.url == tunnel.rstrip("/")
        assert await bench.deliver() == 200
        ended = await bench.end(process)
    assert [line[:11] for line in ended.output.splitlines()] == ['{"webhook":'] * 3


async def test_a_rotated_secret_is_used_from_the_next_delivery_on(bench: Bench) -> None:
    async with bench.listening() as process:
        note, _ = bench.file.read_text().splitlines()
        secret = bench.service.rotate_secret(bench.endpoint.id)
        bench.file.write_text(f"# rotating\n{secret}\n{note}\n")
        assert await bench.deliver() == 200
        await bench.end(process)
    async with bench.listening() as process:
        assert await bench.deliver() == 200
        await bench.end(process)


async def test_two_listen_commands_do_not_share_an_endpoint(bench: Bench) -> None:
    async with bench.listening() as process:
        url = bench.endpoint.url
        second = await bench.run()
        second.says("another hookonce listen uses 'hookonce-listen.secrets'", status=2)
        assert (bench.endpoint.url, bench.is_enabled) == (url, True)
        await bench.end(process)


async def test_if_the_endpoint_cannot_be_disabled_at_the_end_the_error_says_what_to_do(
    tmp_path: Path,
) -> None:
    async with bench_in(tmp_path) as bench, bench.listening() as process:
        bench.service.workspace.endpoints.clear()
        ended = await bench.end(process)
    assert ended.status == 1
    assert "could not disable it" in ended.output
    assert "Disable it with hookonce endpoints disable wh_" in ended.output


async def test_a_full_workspace_is_explained(tmp_path: Path) -> None:
    async with bench_in(tmp_path, plan="starter") as bench:
        async with calling(bench.service, bench.environment["HOOKONCE_API_KEY"]) as api:
            for _ in range(3):
                await create(api)
        (await bench.run()).says("delete one in the service's app", status=1)
        assert len(bench.service.endpoints) == 3
        assert not bench.file.exists()


@pytest.mark.parametrize("role", ["admin", "editor"])
async def test_a_key_that_the_service_refuses_creates_nothing(tmp_path: Path, role: str) -> None:
    async with bench_in(tmp_path, role=role) as bench:
        wrong = {"HOOKONCE_API_KEY": "example_sk_wrong"} if role == "admin" else None
        refused = await bench.run(environment=wrong)
        refused.says("401" if role == "admin" else "403", status=1)
        assert (bench.service.endpoints, bench.file.exists()) == ([], False)


async def test_an_endpoint_that_was_deleted_is_named_and_none_is_created(bench: Bench) -> None:
    async with bench.listening() as process:
        await bench.end(process)
    gone = bench.endpoint.id
    bench.service.workspace.endpoints.clear()
    ended = await bench.run()
    assert ended.status == 1
    assert f"has no endpoint {gone}. If it was deleted, remove" in ended.errors.splitlines()[-1]
    assert bench.service.endpoints == []
    assert bench.file.exists()


GOOD = f"# hookonce listen: endpoint wh_1\n{SECRET}\n"


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (GOOD.encode(), 0o644, "other users can read the secret"),
        (SECRET.encode(), 0o600, "does not hold the id and the secret of one endpoint"),
        (GOOD.splitlines()[0].encode(), 0o600, "does not hold the id and the secret"),
        (GOOD.replace("wh_1", "..").encode(), 0o600, "does not hold the id and the secret"),
        ((GOOD * 2).encode(), 0o600, "does not hold the id and the secret of one endpoint"),
        (GOOD.replace("whsec_", "whsec_?").encode(), 0o600, "Name another --secrets-file"),
        (b"\xff\xfe\x00", 0o600, "is not UTF-8 text"),
    ],
    ids=["readable", "no id", "no secret", "wrong id", "twice", "wrong secret", "bytes"],
)
async def test_a_file_that_cannot_be_used_is_refused_before_the_service_is_asked(
    bench: Bench, content: bytes, mode: int, message: str
) -> None:
    bench.file.write_bytes(content)
    bench.file.chmod(mode)
    (await bench.run()).says(message, "hookonce-listen.secrets", status=2)
    assert bench.service.endpoints == []
    assert bench.file.read_bytes() == content


async def test_a_health_token_that_can_be_guessed_creates_nothing(bench: Bench) -> None:
    refused = await bench.run(environment={"HOOKONCE_HEALTH_TOKEN": "short"})
    refused.says("HOOKONCE_HEALTH_TOKEN", "at least 16 characters", status=2)
    assert bench.service.endpoints == []


async def test_without_a_port_no_endpoint_is_created(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (await bench.run(port=port)).says(f"cannot serve on port {port}", status=2)
    assert bench.service.endpoints == []


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("app:several", (), "has 2 receivers, and an endpoint delivers to one"),
        ("app:without", (), "name one --event at least"),
        ("app:foreign", (), "app:foreign is for the sender 'openai', but this command registers"),
        ("app:missing", (), "there is no 'missing' in app"),
        ("app:receiver", ("--tunnel", "name.example"), "is not a URL such as https://"),
        ("app:receiver", ("--path", "hooks"), "a path starts with a slash"),
    ],
)
async def test_a_wrong_argument_creates_nothing(
    bench: Bench, name: str, options: tuple[str, ...], message: str
) -> None:
    (await bench.run(*options, name=name)).says(message, status=2)
    assert bench.service.endpoints == []


async def test_a_url_that_the_service_refuses_is_reported_with_its_message(bench: Bench) -> None:
    ended = await bench.run("--tunnel", "https://10.0.0.1")
    ended.says("webhook.url_private", status=1)
    assert bench.service.endpoints == []
