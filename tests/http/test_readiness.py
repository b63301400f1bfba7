"""/readyz asks the store rarely, and shows details only to callers with the token."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.types import ASGIApp
from support.redis_servers import RedisServer
from support.stores import FaultyStore
from support.waiting import until_async

from hookonce import Inbox, Receiver
from hookonce.stores.sqlite import SQLiteStore
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

SECRET = new_secret()
TOKEN = "a token for those who may know"
CALLERS = 200


@asynccontextmanager
async def asking(
    receiver: Receiver, *, client: tuple[str, int] = ("127.0.0.1", 5), token: str | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    """Yield a client with this address that calls the health routes of an open receiver."""
    app: ASGIApp = Starlette(routes=receiver.health_routes(token=token))
    transport = httpx2.ASGITransport(app=app, client=client)
    async with receiver, httpx2.AsyncClient(transport=transport, base_url="http://here") as asker:
        yield asker


async def test_concurrent_callers_share_one_check(tmp_path: Path) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    async with asking(Receiver(secrets=SECRET, store=store)) as asker:
        gate = store.hang("warnings")
        asked = [asyncio.create_task(asker.get("/readyz")) for _ in range(CALLERS)]
        await until_async(_calls(store), what="somebody looks")
        gate.set()
        assert {(await answer).status_code for answer in asked} == {200}
        assert store.calls["warnings"] == 1


def _calls(store: FaultyStore) -> Any:
    async def any_call() -> bool:
        return store.calls["warnings"] > 0

    return any_call


async def test_a_caller_that_gives_up_does_not_cancel_the_check_of_others(tmp_path: Path) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    async with asking(Receiver(secrets=SECRET, store=store)) as asker:
        gate = store.hang("warnings")
        first = asyncio.create_task(asker.get("/readyz"))
        await until_async(_calls(store), what="somebody looks")
        second = asyncio.create_task(asker.get("/readyz"))
        first.cancel()
        await asyncio.wait({first})
        gate.set()
        assert (await second).status_code == 200


async def test_a_change_of_readiness_shows_within_seconds(tmp_path: Path) -> None:
    store = FaultyStore(SQLiteStore(tmp_path / "hooks.db"))
    async with asking(Receiver(secrets=SECRET, store=store)) as asker:
        assert (await asker.get("/readyz")).status_code == 200
        store.failures["warnings"] = -1

        async def unready() -> bool:
            return (await asker.get("/readyz")).status_code == 503

        await until_async(unready, seconds=5)


async def test_a_shutdown_makes_the_receiver_unready_at_once(tmp_path: Path) -> None:
    receiver = Receiver(secrets=SECRET, store=f"sqlite:///{tmp_path}/hooks.db")
    async with asking(receiver) as asker:
        assert (await asker.get("/readyz")).status_code == 200
        await receiver.__aexit__(None, None, None)
        answer = await asker.get("/readyz")
        assert (answer.status_code, answer.json()["ready"]) == (503, False)
        await receiver.__aenter__()


async def test_many_callers_share_the_commands_to_redis(valkey: RedisServer) -> None:
    receiver = Receiver(secrets=SECRET, store=valkey.url, inbox=Inbox(embedded=False))
    async with asking(receiver) as asker:
        before = await asyncio.to_thread(_commands, valkey)
        for _ in range(CALLERS):
            assert (await asker.get("/readyz?workers=required")).status_code == 503
        assert await asyncio.to_thread(_commands, valkey) - before < CALLERS


def _commands(server: RedisServer) -> int:
    with server.client() as client:
        info: Any = client.info("stats")
    return int(info["total_commands_processed"])


FAR = ("203.0.113.9", 5)
CLIENTS = [FAR, ("127.0.0.1", 5), ("::1", 5), ("::ffff:127.0.0.1", 5), ("testclient", 5), ("", 0)]


async def details(
    client: tuple[str, int], headers: Mapping[str, str], token: str | None = None
) -> bool:
    """Return whether an unready receiver shows its problems to a caller with these headers."""
    receiver = Receiver(secrets=SECRET, store="memory://")
    async with asking(receiver, client=client, token=token) as asker:
        await receiver.__aexit__(None, None, None)
        answer = await asker.get("/readyz", headers=headers)
        await receiver.__aenter__()
    assert answer.status_code == 503
    assert answer.json()["ready"] is False
    return "shutting down" in answer.text


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("token", [None, TOKEN])
async def test_without_the_token_callers_learn_only_that_it_is_unready(
    client: tuple[str, int], token: str | None
) -> None:
    """A local address proves nothing: behind a proxy without headers, every client seems local."""
    assert not await details(client, {}, token)


@pytest.mark.parametrize(
    ("shown", "is_told"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer {TOKEN} ", True),
        (f"Basic {TOKEN}", False),
        (f"Bearer {TOKEN}x", False),
        (f"Bearer {TOKEN[:-1]}", False),
        ("Bearer", False),
        ("Bearer \xff", False),
        (TOKEN, False),
        ("", False),
    ],
)
async def test_callers_with_the_token_see_the_problems(shown: str, is_told: bool) -> None:
    headers = {"authorization": shown.encode("latin-1")}
    assert await details(FAR, headers, TOKEN) is is_told  # type: ignore[arg-type]  # a raw header in bytes
    assert not await details(FAR, headers, None)  # type: ignore[arg-type]  # a raw header in bytes


@pytest.mark.parametrize("token", ["", "short", "fünfzehn und mehr Zeichen"])
def test_a_token_that_is_too_short_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match=r"at least 16 characters of ASCII; make one with"):
        Receiver(secrets=SECRET, store="memory://").health_routes(token=token)
