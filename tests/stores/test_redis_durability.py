"""A write succeeds only if it is as durable as configured; the store names dangerous settings."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Iterator
from contextlib import aclosing

import pytest
from support.redis_servers import (
    RedisServer,
    redis_server,
)
from support.waiting import until_async

from hookonce.errors import StoreError
from hookonce.stores.redis import RedisStore
from hookonce.stores.values import (
    Acquired,
    Busy,
    Claimed,
    DeadReason,
    Delivery,
    Done,
    InFlight,
    KeyLock,
    Ownership,
    Stale,
    Stored,
    Waiting,
    Watermark,
    delivery_key,
    new_token,
)

pytestmark = pytest.mark.anyio

lasts_seconds = pytest.mark.sample(2, of="file")
"""For tests that wait until the time limit of a call has passed."""

LEASE = 30.0
KEY = delivery_key("default", "evt_1")
DELIVERY = Delivery("default", "evt_1", None, 1.0, b"body")


@pytest.fixture(scope="module")
def appending() -> Iterator[RedisServer]:
    with redis_server("--appendfsync", "always", append_only=True) as server:
        yield server


@pytest.fixture(scope="module")
def replica(appending: RedisServer) -> Iterator[RedisServer]:
    with redis_server(
        *("--replicaof", "127.0.0.1", str(appending.port)), append_only=True
    ) as server:
        yield server


@pytest.fixture
async def replicated(appending: RedisServer, replica: RedisServer) -> RedisServer:
    """Return a server whose replica has caught up."""
    appending.flush()

    async def is_linked() -> bool:
        with replica.client() as client:
            return str(client.info("replication")["master_link_status"]) == "up"

    await until_async(is_linked)
    return appending


async def test_fsync_waits_for_the_append_only_file_once_for_a_batch(
    appending: RedisServer,
) -> None:
    appending.flush()
    async with aclosing(RedisStore(appending.url, durability="fsync")) as store:
        await store.open()
        with appending.client() as client:
            client.config_resetstat()
        keys = [delivery_key("default", f"evt_{n}") for n in range(100)]
        results = await asyncio.gather(*(store.claim(key, new_token(), LEASE) for key in keys))
        assert {type(result) for result in results} == {Claimed}
        assert appending.calls_of("waitaof") == 1


async def test_a_server_that_answers_before_its_disk_has_the_write_causes_a_warning() -> None:
    with redis_server("--appendfsync", "everysec", append_only=True) as server:
        async with aclosing(RedisStore(server.url, durability="fsync")) as store:
            [warning] = await store.warnings()
            assert "set appendfsync always" in warning
        async with aclosing(RedisStore(server.url)) as store:
            assert await store.warnings() == ()  # its URL asks for no durability


async def test_a_store_opens_while_its_server_starts() -> None:
    with redis_server(append_only=True) as server:
        server.kill()
        async with aclosing(RedisStore(server.url)) as store:
            opening = asyncio.create_task(store.open())
            await asyncio.to_thread(server.start)
            await opening


async def test_an_event_stored_with_fsync_survives_a_killed_server() -> None:
    with redis_server("--appendfsync", "always", append_only=True) as server:
        async with aclosing(RedisStore(server.url, durability="fsync")) as store:
            assert await store.enqueue(DELIVERY, new_token()) == Stored()
            server.kill()
            server.start()
            batch = await store.fetch(1, LEASE, endpoint="default", worker="w", token=new_token())
            assert [taken.delivery for taken in batch.fetched] == [DELIVERY]


async def test_a_watermark_written_with_fsync_survives_a_killed_server() -> None:
    with redis_server("--appendfsync", "always", append_only=True) as server:
        async with aclosing(RedisStore(server.url, durability="fsync")) as store:
            key_lock, watermark = KeyLock("default", "shop.sync", "chan_1"), Watermark(1, "evt_1")
            await store.release_key_lock(key_lock, new_token(), watermark=watermark)
            server.kill()
            server.start()
            assert await store.acquire_key_lock(
                key_lock, new_token(), LEASE, watermark=watermark
            ) == Stale(watermark)


async def test_fsync_needs_an_append_only_file(valkey: RedisServer) -> None:
    async with aclosing(RedisStore(valkey.url, durability="fsync")) as store:
        with pytest.raises(StoreError, match="appendonly yes"):
            await store.open()
        with pytest.raises(StoreError, match="appendonly yes"):
            await store.claim(KEY, new_token(), LEASE)


async def test_fsync_needs_a_server_that_can_wait_for_it() -> None:
    # Behave like a Redis before 7.2, which has no WAITAOF.
    with redis_server("--rename-command", "WAITAOF", "", append_only=True) as server:
        async with aclosing(RedisStore(server.url, durability="fsync")) as store:
            with pytest.raises(StoreError, match="WAITAOF"):
                await store.open()


@lasts_seconds
@pytest.mark.parametrize("durability", ["memory", "fsync"])
async def test_a_write_counts_only_when_a_replica_has_it(
    replicated: RedisServer, replica: RedisServer, durability: str
) -> None:
    url = f"{replicated.url}?durability={durability}&replicas=1"
    async with aclosing(RedisStore(url)) as store:
        await store.open()
        assert await store.enqueue(DELIVERY, new_token()) == Stored()
        with replica.client() as client:
            assert client.exists("{hookonce:0}:i:default:evt_1") == 1


@lasts_seconds
async def test_with_too_few_replicas_no_write_counts_and_a_repeated_call_is_harmless(
    replicated: RedisServer,
) -> None:
    token = new_token()
    async with aclosing(RedisStore(replicated.url, replicas=2)) as store:
        assert any("1 replicas, fewer than replicas=2" in text for text in await store.warnings())

        async def claiming() -> bool:
            # A server that stands still makes the claim fail for another reason.
            return await _is_refused(store.claim(KEY, token, LEASE), "1 of 2 Redis replicas")

        await until_async(claiming, what="the claim needs a second replica")
        await until_async(claiming, what="so does the same claim, when it is repeated")
    async with aclosing(RedisStore(replicated.url, replicas=1)) as store:
        again = await store.claim(KEY, token, LEASE)
        assert isinstance(again, Claimed)
        assert again.attempt == 1


@lasts_seconds
async def test_a_repeated_call_is_answered_only_when_the_replica_has_the_first_write(
    replicated: RedisServer, replica: RedisServer
) -> None:
    """A call that is repeated over a new connection must not get a success too early."""
    async with aclosing(RedisStore(replicated.url)) as store:
        await store.claim(KEY, new_token(), LEASE)
    async with aclosing(RedisStore(replicated.url, replicas=1)) as store:
        assert isinstance(await store.claim(KEY, new_token(), LEASE), InFlight)
        assert replica.process is not None
        os.kill(replica.process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreError):
                await store.claim(KEY, new_token(), LEASE)
        finally:
            os.kill(replica.process.pid, signal.SIGCONT)


@lasts_seconds
async def test_a_replica_is_refused_as_a_store(
    replicated: RedisServer, replica: RedisServer
) -> None:
    assert replicated.port != replica.port
    async with aclosing(RedisStore(replica.url)) as store:

        async def opening() -> bool:
            return await _is_refused(store.open(), "is a replica")

        async def claiming() -> bool:
            return await _is_refused(store.claim(KEY, new_token(), LEASE), "is a replica")

        await until_async(opening, what="the store is not opened")
        await until_async(claiming, what="no event is claimed")


async def _is_refused(call: Awaitable[object], reason: str) -> bool:
    """Return whether the call, which must fail, failed for this reason."""
    with pytest.raises(StoreError) as raised:
        await call
    return reason in str(raised.value)


class TestWarnings:
    async def test_a_server_without_persistence_is_warned_of_once(
        self, valkey: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with aclosing(RedisStore(valkey.url)) as store:
            await store.open()
            await store.open()
            assert ["keeps nothing on disk" in text for text in await store.warnings()] == [True]
        logged = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert len(logged) == 1

    @pytest.mark.parametrize(
        ("memory", "text"), [("0", "as soon as a maxmemory is set"), ("100mb", "maxmemory 1048576")]
    )
    async def test_an_eviction_policy_that_removes_records_causes_a_warning(
        self, appending: RedisServer, memory: str, text: str
    ) -> None:
        with appending.client() as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
            client.config_set("maxmemory", memory)
            async with aclosing(RedisStore(appending.url)) as store:
                [warning] = await store.warnings()
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", "0")
        assert "allkeys-lru" in warning
        assert text in warning

    async def test_a_safe_server_causes_no_warning(self, appending: RedisServer) -> None:
        async with aclosing(RedisStore(appending.url)) as store:
            assert await store.warnings() == ()

    async def test_a_server_that_hides_its_configuration_is_usable(
        self, valkey: RedisServer
    ) -> None:
        with valkey.client() as client:
            client.acl_setuser(
                "app",
                enabled=True,
                passwords=["+secret"],
                keys=["{hookonce:*"],
                channels=["hookonce:*"],
                categories=["+@all", "-@admin", "-@dangerous"],
                commands=["+info"],
            )
        url = f"redis://app:secret@127.0.0.1:{valkey.port}"
        async with aclosing(RedisStore(url)) as store:
            assert await store.warnings() == ()
            assert isinstance(await store.claim(KEY, new_token(), LEASE), Claimed)


async def test_with_a_full_memory_only_new_events_are_refused() -> None:
    with redis_server("--maxmemory-policy", "noeviction") as server:
        async with aclosing(RedisStore(server.url)) as store:
            owned = await store.claim(KEY, new_token(), LEASE)
            assert isinstance(owned, Claimed)
            for n in (3, 4, 5):
                waiting = Delivery("default", f"evt_{n}", None, 1.0, b"body")
                assert await store.enqueue(waiting, new_token()) == Stored()
            with server.client() as client:
                client.config_set("maxmemory", "1mb")
            with pytest.raises(StoreError, match="memory is full"):
                await store.enqueue(DELIVERY, new_token())
            with pytest.raises(StoreError, match="memory is full"):
                await store.claim(delivery_key("default", "evt_2"), new_token(), LEASE)
            assert isinstance(await store.claim(KEY, new_token(), LEASE), InFlight)
            assert await store.enqueue(waiting, new_token()) == Waiting()
            assert await store.extend(owned) is Ownership.HELD
            await store.complete(owned)
            assert await store.claim(KEY, new_token(), LEASE) == Done()
            batch = await store.fetch(3, LEASE, endpoint="default", worker="w", token=new_token())
            first, second, third = (taken.claim for taken in batch.fetched)
            await store.complete(first)
            assert await store.retry(second, 60.0, frozenset({"a"}), "no") is Ownership.HELD
            assert await store.bury(third, DeadReason.REJECTED, error="no") is Ownership.HELD
            assert (await store.stats()).depth == 1
            key_lock, token, watermark = (
                KeyLock("default", "shop.sync", "chan_1"),
                new_token(),
                Watermark(1, "evt_1"),
            )
            assert (
                await store.acquire_key_lock(key_lock, token, LEASE, watermark=watermark)
                == Acquired()
            )
            other = await store.acquire_key_lock(key_lock, new_token(), LEASE, waiting=second.key)
            assert isinstance(other, Busy)
            assert await store.release_key_lock(key_lock, token, watermark=watermark) == second.key
            assert await store.acquire_key_lock(
                key_lock, token, LEASE, watermark=watermark
            ) == Stale(watermark)


async def test_with_a_full_memory_duplicates_are_answered_though_writes_must_be_safe() -> None:
    with redis_server("--appendfsync", "always", append_only=True) as server:
        async with aclosing(RedisStore(server.url, durability="fsync")) as store:
            done = await store.claim(KEY, new_token(), LEASE)
            assert isinstance(done, Claimed)
            await store.complete(done)
            waiting = Delivery("default", "evt_2", None, 1.0, b"body")
            await store.enqueue(waiting, new_token())
            with server.client() as client:
                client.config_set("maxmemory", "1mb")
            assert await store.claim(KEY, new_token(), LEASE) == Done()
            assert await store.enqueue(waiting, new_token()) == Waiting()
            assert (await store.stats()).depth == 1
            with pytest.raises(StoreError, match="memory is full"):
                await store.enqueue(Delivery("default", "evt_3", None, 1.0, b""), new_token())


@pytest.mark.parametrize("password", ["wrong", "p%40ss%3Aword"])
async def test_a_wrong_password_is_named_and_never_shown(
    valkey: RedisServer, password: str
) -> None:
    async with aclosing(RedisStore(f"redis://app2:{password}@127.0.0.1:{valkey.port}")) as store:
        with pytest.raises(StoreError, match="password is wrong") as caught:
            await store.claim(KEY, new_token(), LEASE)
        assert "wrong@" not in str(caught.value)
        assert "p@ss" not in str(caught.value)
