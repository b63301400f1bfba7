"""Rotating secrets, metrics and an open inspector: nothing genuine is refused under load."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2
import pytest
from support.servers import serving
from support.waiting import PATIENCE_SECONDS, until

from hookonce import FileSecrets, Receiver
from hookonce.events import CommentReceived
from hookonce.http.app import application, elsewhere
from hookonce.operations.inspector import Inspector
from hookonce.operations.prometheus import PrometheusObserver, metrics_routes
from hookonce.testing import make_event, signed_request
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

TOKEN = "a token for the inspector of these tests"
BEARER = {"authorization": f"Bearer {TOKEN}"}
AT_ONCE = 16
ROTATIONS = 3
ANSWERS_A_STEP = 40


class Sender:
    """Delivers events without a pause, signed with the current secrets of the service."""

    def __init__(self, client: httpx2.AsyncClient, secret: str) -> None:
        self._client = client
        self.signing = [secret]
        self.answers: list[tuple[int, str]] = []

    async def deliver(self) -> None:
        while True:
            request = signed_request(make_event(CommentReceived), self.signing)
            answer = await self._client.post(
                "/webhooks", content=request.body, headers=dict(request.headers)
            )
            self.answers.append((answer.status_code, answer.json()["reason"]))

    async def goes_on(self) -> None:
        enough = len(self.answers) + ANSWERS_A_STEP
        await until(lambda: len(self.answers) >= enough, what=f"{enough} answers")


def put(file: Path, *secrets: str) -> None:
    """Replace the secrets in one step, as a deployment does."""
    new = file.with_suffix(".new")
    new.write_text("\n".join(secrets))
    new.replace(file)


@pytest.mark.full("2.5 s")
async def test_a_hot_rotation_refuses_nothing_while_everything_is_watched(tmp_path: Path) -> None:
    old = new_secret()
    file = tmp_path / "secrets"
    put(file, old)
    metrics = PrometheusObserver()
    receiver = Receiver(
        secrets=FileSecrets(file), store=f"sqlite:///{tmp_path}/hooks.db", observers=[metrics]
    )
    receiver.on(CommentReceived, name="greet")(lambda _: None)
    routes = [*receiver.routes("/webhooks"), *metrics_routes(receiver, metrics)]
    inspector = Inspector(receiver, token=TOKEN)
    app = application(routes, receiver.lifespan, inspector.below("/inspector", elsewhere))
    async with AsyncExitStack() as stack:
        site = await stack.enter_async_context(serving(app))
        client = await stack.enter_async_context(
            httpx2.AsyncClient(base_url=site.url, timeout=PATIENCE_SECONDS)
        )
        stack.callback(inspector.end)
        stream = await stack.enter_async_context(
            client.stream("GET", "/inspector/stream", headers=BEARER)
        )
        assert stream.status_code == 200
        sender = Sender(client, old)
        senders = [asyncio.create_task(sender.deliver()) for _ in range(AT_ONCE)]
        for _ in range(ROTATIONS):
            new = new_secret()
            sender.signing = [new, old]
            await sender.goes_on()  # the receiver knows only the old secret
            put(file, new, old)
            await sender.goes_on()
            sender.signing = [new]
            await sender.goes_on()
            put(file, new)
            await sender.goes_on()
            old = new
        lines = stream.aiter_lines()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (await anext(lines)).startswith("data:"):
                pass
        for task in senders:
            task.cancel()
        await asyncio.wait(senders)
        shown = (await client.get("/metrics")).text
    assert set(sender.answers) == {(200, "handled")}
    assert len(sender.answers) >= ROTATIONS * 4 * ANSWERS_A_STEP
    assert 'hookonce_secrets{endpoint="default"} 1.0' in shown
    assert 'status="401"' not in shown
