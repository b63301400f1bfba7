"""/livez reports whether the process lives, and /readyz whether it can accept deliveries."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.applications import Starlette
from support.deliveries import SECRET, receiver_on, shuts_down, sqlite_url
from support.handlers import Waiting
from support.servers import HttpSender, delivering
from support.sqlite_files import sqlite_connection
from support.stores import FaultyStore
from support.waiting import PATIENCE_SECONDS, until, until_async

from hookonce import Limits, Receiver
from hookonce.events import CommentReceived
from hookonce.stores.sqlite import SQLiteStore
from hookonce.testing import make_event
from hookonce.verification.secrets import fingerprint
from hookonce.watching.process import process_name

pytestmark = pytest.mark.anyio

TOKEN = "a token for those who may know"


@asynccontextmanager
async def with_health(receiver: Receiver) -> AsyncIterator[HttpSender]:
    routes = [*receiver.routes("/webhooks"), *receiver.health_routes(token=TOKEN)]
    async with delivering(Starlette(routes=routes, lifespan=receiver.lifespan), SECRET) as sender:
        sender.client.headers["authorization"] = f"Bearer {TOKEN}"
        yield sender


async def is_ready(sender: HttpSender) -> None:
    """Wait until /readyz, which caches its check for a moment, reports ready."""

    async def ready() -> bool:
        return (await sender.client.get("/readyz")).status_code == 200

    await until_async(ready, what="it is ready again")


async def test_a_working_receiver_is_alive_and_ready(tmp_path: Path) -> None:
    async with with_health(receiver_on(sqlite_url(tmp_path))) as sender:
        live = await sender.client.get("/livez")
        assert (live.status_code, live.json()) == (200, {"alive": True})
        ready = await sender.client.get("/readyz")
        assert (ready.status_code, ready.json()) == (
            200,
            {
                "ready": True,
                "process": process_name(),
                "problems": [],
                "warnings": [],
                "secrets": [fingerprint(SECRET)],
            },
        )
        assert (await sender.client.post("/readyz")).status_code == 405


async def test_a_locked_store_is_unready_and_alive(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = receiver_on(sqlite_url(tmp_path), store_seconds=PATIENCE_SECONDS)
    async with with_health(receiver) as sender:
        blocker = sqlite_connection(tmp_path / "hooks.db")
        blocker.execute("BEGIN IMMEDIATE")
        try:
            ready = await sender.client.get("/readyz")
            assert ready.status_code == 503
            assert ready.json()["ready"] is False
            [problem] = ready.json()["problems"]
            assert problem.startswith("the store does not work: ")
            assert "another process keeps it locked" in problem
            assert "another process keeps it locked" in caplog.text
            assert (await sender.client.get("/livez")).status_code == 200
        finally:
            blocker.execute("ROLLBACK")
            blocker.close()
        await is_ready(sender)


async def test_a_store_that_hangs_is_unready(tmp_path: Path) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    receiver = Receiver(secrets=SECRET, store=store, limits=Limits(store_seconds=0.1))
    async with with_health(receiver) as sender:
        gate = store.hang("warnings")
        ready = await sender.client.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["problems"] == [
            "the store does not work: the store did not answer within 0.1 s"
        ]
        gate.set()
        await is_ready(sender)


async def test_a_receiver_that_shuts_down_is_unready_and_alive(tmp_path: Path) -> None:
    receiver = receiver_on(sqlite_url(tmp_path))
    waiting = Waiting(receiver)
    async with with_health(receiver) as sender:
        first = asyncio.create_task(sender.send(make_event(CommentReceived)))
        await until(lambda: waiting.began)
        closing = asyncio.create_task(receiver.__aexit__(None, None, None))
        await shuts_down(receiver)
        ready = await sender.client.get("/readyz")
        assert (ready.status_code, ready.json()["ready"]) == (503, False)
        assert (await sender.client.get("/livez")).status_code == 200
        waiting.gate.set()
        (await first).expect(200, "handled")
        await closing
