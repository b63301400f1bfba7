"""Two applications may not share an endpoint: one process refuses them, two processes warn."""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path

import pytest
from support.redis_servers import RedisServer

from hookonce import Inbox, Receiver
from hookonce.routing.registration import application_of
from hookonce.stores.memory import MemoryStore
from hookonce.stores.protocols import Store
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

SHOP, CLUB = new_secret(), new_secret()

OTHER_PROCESS = """
import asyncio, sys
from hookonce import Receiver

async def main(url, secret, handler):
    receiver = Receiver(secrets=secret, store=url)
    receiver.on("*", name=handler)(lambda event: None)
    async with receiver:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(params=["memory", "sqlite", "valkey"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store | str]:
    """Return a function that always returns the same store, or the URL of the same store."""
    if request.param == "memory":
        store = MemoryStore()
        return lambda: store
    if request.param == "sqlite":
        return lambda: f"sqlite:///{tmp_path}/hooks.db"
    server: RedisServer = request.getfixturevalue("lasting_valkey")
    return lambda: server.url


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/hooks.db"


def receiving(
    store: Store | str,
    handlers: str,
    *secrets: str,
    endpoint: str = "default",
    inbox: Inbox | None = None,
) -> Receiver:
    receiver = Receiver(secrets=secrets, store=store, endpoint=endpoint, inbox=inbox)
    for name in handlers.split():
        receiver.on("*", name=name)(_handle)
    return receiver


async def _handle(event: object) -> None: ...


class TestInOneProcess:
    async def test_a_second_application_is_refused_and_the_first_goes_on(
        self, place: Callable[[], Store | str]
    ) -> None:
        shop, club = receiving(place(), "shop.greet", SHOP), receiving(place(), "club.note", CLUB)
        async with shop:
            for _ in range(2):
                with pytest.raises(ValueError, match="two applications") as refused:
                    await club.__aenter__()
            message = str(refused.value)
            for words in ("'default'", "shop.greet", "club.note", "give one of them", "endpoint="):
                assert words in message
            assert not club.is_open
            assert (await shop.check()).ready
            assert not (await shop.check()).warnings
        async with club:
            assert club.is_open

    async def test_a_second_application_that_only_works_on_an_inbox_is_refused(
        self, url: str
    ) -> None:
        inbox = Inbox(embedded=False)
        club = receiving(url, "club.note", CLUB, inbox=inbox)
        async with receiving(url, "shop.greet", SHOP, inbox=inbox).working():
            with pytest.raises(ValueError, match="two applications"):
                await club.working().__aenter__()

    @pytest.mark.parametrize(
        ("handlers", "secrets", "endpoint"),
        [
            pytest.param("shop.greet shop.thank", [SHOP], "default", id="the same again"),
            pytest.param("shop.greet club.note", [CLUB], "default", id="a handler in common"),
            pytest.param("club.note", [CLUB, SHOP], "default", id="a secret in common"),
            pytest.param("club.note", [CLUB], "club", id="another endpoint"),
            pytest.param("", [CLUB], "default", id="no handlers"),
        ],
    )
    async def test_forms_of_one_application_and_other_endpoints_are_accepted(
        self, handlers: str, secrets: list[str], endpoint: str, place: Callable[[], Store | str]
    ) -> None:
        async with receiving(place(), "shop.greet shop.thank", SHOP) as shop:
            second = receiving(place(), handlers, *secrets, endpoint=endpoint)
            async with second, shop.copy(), shop.copy(secrets=new_secret()):
                assert not (await second.check()).warnings
                assert not (await shop.check()).warnings

    async def test_an_application_on_another_store_is_accepted(self, url: str) -> None:
        async with (
            receiving(url, "shop.greet", SHOP),
            receiving(f"{url}2", "club.note", CLUB),
            receiving(MemoryStore(), "club.note", CLUB),
            receiving(MemoryStore(), "shop.greet", SHOP),
        ):
            pass

    async def test_an_operators_use_of_another_application_is_accepted(self, url: str) -> None:
        club = receiving(url, "club.note", CLUB)
        async with receiving(url, "shop.greet", SHOP) as shop, club.opened():
            assert not (await shop.check()).warnings


class TestAcrossProcesses:
    async def test_two_applications_in_two_processes_are_warned_in_log_and_readiness(
        self, url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("hookonce.routing.registration._PAUSE_SECONDS", 0.0)
        shop = receiving(url, "shop.greet", SHOP)
        async with shop:
            assert (await shop.check()).warnings == ()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", OTHER_PROCESS, url, CLUB, "club.note"),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
            )
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
            for _ in range(2):
                readiness = await shop.check()
                [warning] = readiness.warnings
                assert readiness.ready
            _, log = await process.communicate(b"\n")
            assert process.returncode == 0
        assert "club.note" in warning
        assert "give one of them Receiver(endpoint=" in warning
        assert b"shop.greet" in log
        assert [(r.levelno, r.getMessage()) for r in caplog.records] == [(logging.WARNING, warning)]

    async def test_a_deployment_that_changes_handlers_and_then_secrets_is_one_application(
        self, place: Callable[[], Store | str]
    ) -> None:
        forms = [("shop.a", SHOP), ("shop.a shop.b", CLUB), ("shop.b", CLUB), ("shop.b", "new")]
        for handlers, secret in [*forms, *reversed(forms)]:
            given = new_secret() if secret == "new" else secret
            async with receiving(place(), handlers, given) as receiver:
                assert not (await receiver.check()).warnings

    async def test_frequent_readiness_probes_seldom_write_to_the_store(self, url: str) -> None:
        shop = receiving(url, "shop.greet", SHOP)
        calls: list[object] = []
        register = shop.store.register  # type: ignore[attr-defined]  # a SQLite store has this method

        async def counted(*arguments: object) -> object:
            calls.append(arguments)
            return await register(*arguments)

        shop.store.register = counted  # type: ignore[attr-defined]  # a SQLite store has this method
        async with shop:
            for _ in range(10):
                await shop.check()
        assert len(calls) == 1


async def test_the_store_learns_no_secret(tmp_path: Path, url: str) -> None:
    receiver = receiving(url, "shop.greet", SHOP)
    async with receiver:
        pass
    files: list[Path] = await asyncio.to_thread(lambda: list(tmp_path.iterdir()))
    content = b"".join([await asyncio.to_thread(file.read_bytes) for file in files])
    assert b"shop.greet" in content
    key = SHOP.removeprefix("whsec_")
    assert key.encode() not in content
    assert b64decode(key) not in content
    assert b64decode(key).hex().encode() not in content


def test_one_secret_has_different_fingerprints_at_different_endpoints() -> None:
    receiver = receiving("memory://", "shop.greet", SHOP)
    one, same, other = (
        application_of(receiver.handlers, [SHOP], name) for name in ("one", "one", "other")
    )
    assert one == same
    assert one is not None
    assert other is not None
    assert one.marks.isdisjoint(other.marks)


async def test_secrets_that_cannot_be_read_keep_nobody_from_opening(url: str) -> None:
    class Failing:
        fails = False

        def current(self) -> list[str]:
            if self.fails:
                raise OSError("the vault is sealed")
            return [SHOP]

    secrets = Failing()
    receiver = Receiver(secrets=secrets, store=url)
    receiver.on("*", name="shop.greet")(_handle)
    secrets.fails = True
    async with receiver:
        assert receiver.is_open
