"""Events spread over the nodes of a cluster, and a master that Sentinel replaces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from redis.asyncio import RedisCluster
from redis.asyncio.sentinel import Sentinel
from support.redis_servers import RedisServer, redis_server, sentinel, valkey_cluster
from support.waiting import until_async

from hookonce.stores.redis import RedisStore
from hookonce.stores.values import (
    Acquired,
    Claimed,
    DeadReason,
    Delivery,
    DeliveryKey,
    Done,
    EnqueueResult,
    Full,
    InFlight,
    KeyLock,
    Stored,
    StoreStats,
    Token,
    delivery_key,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 30.0


def delivery(number: int) -> Delivery:
    return Delivery("default", f"evt_{number}", "comment.received", 1.0, b"x" * 10)


@pytest.fixture
async def store(cluster: list[RedisServer]) -> AsyncIterator[RedisStore]:
    store = RedisStore(cluster[0].url.replace("redis:", "redis+cluster:"))
    await store.open()
    yield store
    await store.aclose()


async def claim(store: RedisStore, key: DeliveryKey) -> Claimed:
    result = await store.claim(key, new_token(), LEASE)
    assert isinstance(result, Claimed)
    return result


async def take(
    store: RedisStore, limit: int = 10, token: Token | None = None
) -> tuple[set[str], float | None]:
    batch = await store.fetch(
        limit, LEASE, endpoint="default", worker="w", token=token or new_token()
    )
    return {taken.delivery.event_id for taken in batch.fetched}, batch.next_due_seconds


class TestManyShards:
    async def test_every_node_holds_some_events(
        self, store: RedisStore, cluster: list[RedisServer]
    ) -> None:
        keys = [delivery_key("default", f"evt_{n}") for n in range(200)]
        await asyncio.gather(*(claim(store, key) for key in keys))
        assert (await store.stats()).in_flight == 200
        for node in cluster:
            with node.client() as client:
                assert client.dbsize() > 20

    async def test_key_locks_lie_in_all_shards_whatever_shard_their_events_are_in(
        self, store: RedisStore, cluster: list[RedisServer]
    ) -> None:
        gates = [KeyLock("default", "shop.sync", f"chan_{n}") for n in range(100)]
        token = new_token()
        assert {await store.acquire_key_lock(key_lock, token, LEASE) for key_lock in gates} == {
            Acquired()
        }
        for key_lock in gates:
            await store.acquire_key_lock(key_lock, new_token(), LEASE, waiting=delivery(1).key)
        for node in cluster:
            with node.client() as client:
                assert client.dbsize() > 20
        assert {await store.release_key_lock(key_lock, token) for key_lock in gates} == {
            delivery(1).key
        }

    async def test_a_fetch_returns_the_wanted_number_of_events_from_all_shards(
        self, store: RedisStore
    ) -> None:
        names = {f"evt_{n}" for n in range(50)}
        puts = (store.enqueue(delivery(n), new_token()) for n in range(50))
        assert set(await asyncio.gather(*puts)) == {Stored()}
        first, due = await take(store, 20)
        assert len(first) == 20
        assert due == 0
        second, due = await take(store, 100)
        assert first | second == names
        assert due is not None
        assert LEASE - 5 < due <= LEASE
        assert (await store.stats()).workers == 1

    async def test_a_repeated_fetch_returns_the_same_events(self, store: RedisStore) -> None:
        for n in range(30):
            await store.enqueue(delivery(n), new_token())
        token = new_token()
        first, _ = await take(store, 10, token)
        again, _ = await take(store, 10, token)
        assert first == again
        assert len(first) == 10
        with_less_room, _ = await take(store, 1, token)
        assert with_less_room == first

    async def test_each_shard_has_its_part_of_the_limits(self, store: RedisStore) -> None:
        results = [await store.enqueue(delivery(n), new_token(), max_depth=32) for n in range(200)]
        assert results.count(Full()) > 100
        assert (await store.stats()).depth == 32

    async def test_an_empty_shard_takes_a_body_larger_than_its_part(
        self, store: RedisStore
    ) -> None:
        async def put(number: int, *, max_bytes: int) -> EnqueueResult:
            return await store.enqueue(delivery(number), new_token(), max_bytes=max_bytes)

        assert await put(0, max_bytes=9) == Full()  # the whole limit is smaller than the body
        results = [await put(n, max_bytes=16) for n in range(200)]
        assert results.count(Stored()) == 16
        assert (await store.stats()).bytes == 160

    async def test_listings_and_counts_cover_all_shards(self, store: RedisStore) -> None:
        for n in range(20):
            await store.enqueue(delivery(n), new_token())
        listed = await store.entries(limit=15)
        assert [entry.delivery.event_id for entry in listed] == [f"evt_{n}" for n in range(15)]
        batch = await store.fetch(8, LEASE, endpoint="default", worker="w", token=new_token())
        for taken in batch.fetched:
            await store.bury(taken.claim, DeadReason.REJECTED, error="no")
        buried = [letter.delivery.event_id for letter in await store.dead_letters(limit=5)]
        assert buried == [taken.delivery.event_id for taken in batch.fetched][:5]
        stats = await store.stats(endpoint="default")
        assert stats == StoreStats(0, 8, 12, 120, stats.oldest_age_seconds, 1)

    async def test_an_enqueue_wakes_a_worker_at_another_node(
        self, store: RedisStore, cluster: list[RedisServer]
    ) -> None:
        other = RedisStore(cluster[1].url.replace("redis:", "redis+cluster:"))
        async with aclosing(other):
            for n in range(5):
                await take(store)
                waiting = asyncio.create_task(store.wait("default", 20.0))
                await other.enqueue(delivery(n), new_token())
                async with asyncio.timeout(5):
                    await waiting
                    while not (await take(store))[0]:
                        await store.wait("default", 5.0)


async def test_slots_that_move_are_found() -> None:
    # Use a cluster of its own: after its slots have moved, its nodes keep redirecting clients.
    with valkey_cluster(nodes=2) as (source, target):
        client = RedisCluster(host="127.0.0.1", port=source.port)
        async with aclosing(RedisStore(client)) as store:
            owned = [await claim(store, delivery_key("default", f"evt_{n}")) for n in range(40)]
            for one in owned:
                await store.complete(one)
            _move_all(source, target)
            for one in owned:
                assert await store.claim(one.key, new_token(), LEASE) == Done()
        await client.aclose()


def _move_all(source: RedisServer, target: RedisServer) -> None:
    """Move every slot that has keys from one node to another."""
    with source.client() as left, target.client() as right:
        ids = left.execute_command("CLUSTER", "MYID"), right.execute_command("CLUSTER", "MYID")
        keys = list(left.scan_iter("*"))
        assert keys
        for slot in {left.execute_command("CLUSTER", "KEYSLOT", key) for key in keys}:
            right.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
            left.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
            for key in left.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 10_000):
                left.execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
            for client in (right, left):
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])


async def test_a_master_that_dies_is_replaced_and_nothing_is_forgotten() -> None:
    with (
        redis_server() as master,
        redis_server("--replicaof", "127.0.0.1", str(master.port)) as replica,
        sentinel(master) as watch,
    ):
        url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{watch.port}/hooks?replicas=1"
        store = RedisStore(url)

        async def knows_the_replica() -> bool:
            with watch.client() as client:
                replicas = client.execute_command("SENTINEL", "REPLICAS", "hooks")
                return len(replicas) == 1

        await until_async(knows_the_replica)
        owned = await claim(store, delivery_key("default", "evt_1"))
        await store.aclose()

        store = RedisStore(url.partition("?")[0])
        assert isinstance(await store.claim(owned.key, new_token(), LEASE), InFlight)
        master.kill()

        async def answers() -> bool:
            try:
                await store.complete(owned)
            except Exception:  # noqa: BLE001 - the test retries until the failover is complete
                return False
            return True

        await until_async(answers, seconds=30)
        assert await store.claim(owned.key, new_token(), LEASE) == Done()
        await store.aclose()
        with replica.client() as client:
            assert client.exists("{hookonce:0}:a:default:evt_1") == 1

        manager = Sentinel([("127.0.0.1", watch.port)])  # type: ignore[no-untyped-call]  # redis-py has no annotation
        async with aclosing(RedisStore(manager.master_for("hooks"))) as given:
            assert await given.claim(owned.key, new_token(), LEASE) == Done()
