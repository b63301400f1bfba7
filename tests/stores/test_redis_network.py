"""What happens when the network or the server fails in the middle of a call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from support.redis_proxy import Proxy, proxy_to
from support.redis_servers import RedisServer, free_port, redis_server

from hookonce.errors import StoreError
from hookonce.stores.base import (
    Claimed,
    DeadReason,
    Delivery,
    Ownership,
    delivery_key,
)
from hookonce.stores.inbox import Stored, Waiting
from hookonce.stores.redis import RedisStore
from hookonce.types import new_token

pytestmark = pytest.mark.anyio

LEASE = 30.0
NONE: frozenset[str] = frozenset()
DELIVERY = Delivery("default", "evt_1", "comment.received", 1.0, b"bytes\0\xff")
KEY = DELIVERY.key


@pytest.fixture
async def proxy(valkey: RedisServer) -> AsyncIterator[Proxy]:
    async with proxy_to(valkey.port) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: Proxy) -> AsyncIterator[RedisStore]:
    store = RedisStore(proxy.url)
    await store.open()
    yield store
    await store.aclose()


async def claim(store: RedisStore) -> Claimed:
    result = await store.claim(KEY, new_token(), LEASE)
    assert isinstance(result, Claimed)
    return result


async def take(store: RedisStore) -> list[Claimed]:
    batch = await store.take(10, LEASE, endpoint="default", worker="w", token=new_token())
    return [taken.claim for taken in batch.taken]


class TestLostReplies:
    """The server did it, and nobody heard; the repeated call is told what the first one did."""

    async def test_a_claim_is_the_callers_and_counts_once(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        proxy.lose_the_reply_to(b"claim")
        before = proxy.connections
        assert (await claim(store)).attempt == 1
        assert proxy.connections > before

    async def test_a_put_is_stored_once(self, store: RedisStore, proxy: Proxy) -> None:
        proxy.lose_the_reply_to(b"put")
        assert await store.put(DELIVERY, new_token()) == Stored()
        assert await store.put(DELIVERY, new_token()) == Waiting()
        assert (await store.stats()).depth == 1

    async def test_a_take_costs_no_attempt(self, store: RedisStore, proxy: Proxy) -> None:
        await store.put(DELIVERY, new_token())
        proxy.lose_the_reply_to(b"take")
        [taken] = await take(store)
        assert taken.attempt == 1

    async def test_a_release_was_the_owners(self, store: RedisStore, proxy: Proxy) -> None:
        owned = await claim(store)
        proxy.lose_the_reply_to(b"give_back")
        assert await store.release(owned, frozenset({"a"}), "b failed") is Ownership.HELD
        assert await store.release(owned, NONE) is Ownership.LOST

    async def test_a_retry_was_the_owners(self, store: RedisStore, proxy: Proxy) -> None:
        await store.put(DELIVERY, new_token())
        [owned] = await take(store)
        proxy.lose_the_reply_to(b"give_back")
        assert await store.retry(owned, 60.0, NONE, "no") is Ownership.HELD
        entry = await store.entry(KEY)
        assert entry is not None
        assert len(entry.history) == 1

    async def test_a_burial_was_the_owners(self, store: RedisStore, proxy: Proxy) -> None:
        owned = await claim(store)
        proxy.lose_the_reply_to(b"bury")
        ownership = await store.bury(owned, DeadReason.REJECTED, error="no", delivery=DELIVERY)
        assert ownership is Ownership.HELD
        again = await store.bury(owned, DeadReason.REJECTED, error="no", delivery=DELIVERY)
        assert again is Ownership.LOST

    async def test_a_discarded_letter_was_there(self, store: RedisStore, proxy: Proxy) -> None:
        await store.bury(await claim(store), DeadReason.REJECTED, delivery=DELIVERY)
        proxy.lose_the_reply_to(b"discard")
        assert await store.discard(KEY) is True
        assert await store.discard(KEY) is False

    async def test_a_replay_is_the_callers(self, store: RedisStore, proxy: Proxy) -> None:
        await store.bury(await claim(store), DeadReason.REJECTED, delivery=DELIVERY)
        proxy.lose_the_reply_to(b"replay")
        again = await store.replay(KEY, new_token(), LEASE)
        assert isinstance(again, Claimed)
        assert again.attempt == 2

    async def test_all_of_a_batch_are_told(self, store: RedisStore, proxy: Proxy) -> None:
        proxy.lose_the_reply_to(b"claim")
        keys = [delivery_key("default", f"evt_{n}") for n in range(50)]
        results = await asyncio.gather(*(store.claim(key, new_token(), LEASE) for key in keys))
        assert [type(result) for result in results] == [Claimed] * 50


class TestUnreachable:
    async def test_a_server_that_answers_nothing_is_an_error_within_the_time_there_is(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        await claim(store)
        proxy.swallow_everything()
        started = time.monotonic()
        results = await asyncio.gather(
            *(store.claim(KEY, new_token(), LEASE) for _ in range(20)), return_exceptions=True
        )
        assert 2.5 < time.monotonic() - started < 4.0
        assert {type(result) for result in results} == {StoreError}
        assert "did not answer in time" in str(results[0])
        proxy.recover()
        assert (await store.stats()).in_flight == 1

    async def test_one_who_asks_during_an_outage_waits_no_longer_than_one_before(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        proxy.swallow_everything()

        async def ask(after: float) -> float:
            await asyncio.sleep(after)
            started = time.monotonic()
            with pytest.raises(StoreError):
                await store.claim(KEY, new_token(), LEASE)
            return time.monotonic() - started

        assert max(await asyncio.gather(ask(0.0), ask(0.5), ask(2.5))) < 4.0

    async def test_no_server_is_an_error_that_says_so(self) -> None:
        store = RedisStore(f"redis://:hidden@127.0.0.1:{free_port()}")
        with pytest.raises(StoreError, match="connect") as caught:
            await store.open()
        assert "hidden" not in str(caught.value)
        started = time.monotonic()
        with pytest.raises(StoreError, match="connect"):
            await claim(store)
        assert time.monotonic() - started < 4.0
        await store.aclose()

    async def test_a_server_that_restarts_meanwhile_is_no_error(self) -> None:
        with redis_server(append_only=True) as server:
            store = RedisStore(server.url)
            owned = await claim(store)
            server.kill()
            extension = asyncio.create_task(store.extend(owned))
            await asyncio.sleep(0.1)
            await asyncio.to_thread(server.start)
            assert await extension is Ownership.HELD
            await store.aclose()

    async def test_connections_that_break_while_idle_are_no_error(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        owned = await claim(store)
        for _ in range(3):
            proxy.break_connections()
            assert await store.extend(owned) is Ownership.HELD
