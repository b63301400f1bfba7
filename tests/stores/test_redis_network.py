"""Faults of the network or the server in the middle of a call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from itertools import count, pairwise

import pytest
from support.redis_proxy import Proxy, proxy_to
from support.redis_servers import RedisServer, free_port, redis_server
from support.waiting import until, until_async

from hookonce.errors import StoreError
from hookonce.stores.redis import RedisStore
from hookonce.stores.values import (
    Acquired,
    Batch,
    Busy,
    Claimed,
    DeadReason,
    Delivery,
    InFlight,
    KeyLock,
    Ownership,
    Stale,
    Stored,
    Token,
    Waiting,
    Watermark,
    delivery_key,
    new_token,
)

pytestmark = pytest.mark.anyio

lasts_seconds = pytest.mark.sample(3, of="file")
"""For tests that wait until the time limit of a call has passed."""

# The time limit of a call is 3 s, and the machine may stand still for 2 s. A call that waits for an
# earlier call's limit, and then for its own, takes longer.
MOST_SECONDS = 5.4
LEASE = 30.0
NONE: frozenset[str] = frozenset()
DELIVERY = Delivery("default", "evt_1", "comment.received", 1.0, b"bytes\0\xff")
KEY = DELIVERY.key
KEY_LOCK = KeyLock("default", "shop.sync", "chan_1")


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
    batch = await store.fetch(10, LEASE, endpoint="default", worker="w", token=new_token())
    return [taken.claim for taken in batch.fetched]


async def take_at_least(least: int, store: RedisStore) -> list[Claimed]:
    """Fetch like a worker until a fetch succeeds and ``least`` events are claimed.

    A machine that stands still makes a fetch fail, or leave out a shard. A fetch that failed is
    repeated with its token.
    """
    claims: list[Claimed] = []
    token = new_token()

    async def has_enough() -> bool:
        nonlocal token
        try:
            batch = await store.fetch(10, LEASE, endpoint="default", worker="w", token=token)
        except StoreError:
            return False
        token = new_token()
        claims.extend(taken.claim for taken in batch.fetched)
        return len(claims) >= least

    await until_async(has_enough)
    return claims


class TestLostReplies:
    """The server did the work, but its reply was lost; the repeated call gets the same reply."""

    async def test_a_claim_repeated_after_a_lost_reply_counts_once(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        proxy.lose_the_reply_to(b"claim")
        before = proxy.connections
        assert (await claim(store)).attempt == 1
        assert proxy.connections > before

    async def test_an_enqueue_repeated_after_a_lost_reply_is_stored_once(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        proxy.lose_the_reply_to(b"enqueue")
        assert await store.enqueue(DELIVERY, new_token()) == Stored()
        assert await store.enqueue(DELIVERY, new_token()) == Waiting()
        assert (await store.stats()).depth == 1

    async def test_a_fetch_repeated_after_a_lost_reply_costs_no_attempt(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        await store.enqueue(DELIVERY, new_token())
        proxy.lose_the_reply_to(b"fetch")
        [taken] = await take(store)
        assert taken.attempt == 1

    async def test_a_release_repeated_after_a_lost_reply_is_answered_held(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        owned = await claim(store)
        proxy.lose_the_reply_to(b"give_back")
        assert await store.release(owned, frozenset({"a"}), "b failed") is Ownership.HELD
        assert await store.release(owned, NONE) is Ownership.LOST

    async def test_a_retry_repeated_after_a_lost_reply_is_answered_held(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        await store.enqueue(DELIVERY, new_token())
        [owned] = await take(store)
        proxy.lose_the_reply_to(b"give_back")
        assert await store.retry(owned, 60.0, NONE, "no") is Ownership.HELD
        entry = await store.entry(KEY)
        assert entry is not None
        assert len(entry.history) == 1

    async def test_a_burial_repeated_after_a_lost_reply_is_answered_held(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        owned = await claim(store)
        proxy.lose_the_reply_to(b"bury")
        ownership = await store.bury(owned, DeadReason.REJECTED, error="no", delivery=DELIVERY)
        assert ownership is Ownership.HELD
        again = await store.bury(owned, DeadReason.REJECTED, error="no", delivery=DELIVERY)
        assert again is Ownership.LOST

    async def test_a_discard_repeated_after_a_lost_reply_reports_the_dead_letter(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        await store.bury(await claim(store), DeadReason.REJECTED, delivery=DELIVERY)
        proxy.lose_the_reply_to(b"discard")
        assert await store.discard(KEY) is True
        assert await store.discard(KEY) is False

    async def test_a_replay_repeated_after_a_lost_reply_gets_the_claim(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        await store.bury(await claim(store), DeadReason.REJECTED, delivery=DELIVERY)
        proxy.lose_the_reply_to(b"replay")
        again = await store.replay(KEY, new_token(), LEASE)
        assert isinstance(again, Claimed)
        assert again.attempt == 2

    async def test_a_key_lock_is_acquired_by_a_call_repeated_after_a_lost_reply(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        proxy.lose_the_reply_to(b"acquire_key_lock")
        assert await store.acquire_key_lock(KEY_LOCK, new_token(), LEASE) == Acquired()
        assert isinstance(await store.acquire_key_lock(KEY_LOCK, new_token(), LEASE), Busy)

    async def test_releasing_a_key_lock_wakes_one_waiting_event_and_no_other(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        token, other = new_token(), delivery_key("default", "evt_2")
        await store.acquire_key_lock(KEY_LOCK, token, LEASE)
        for event in (KEY, other):
            await store.acquire_key_lock(KEY_LOCK, new_token(), LEASE, waiting=event)
        proxy.lose_the_reply_to(b"release_key_lock")
        assert await store.release_key_lock(KEY_LOCK, token) == KEY
        assert await store.release_key_lock(KEY_LOCK, token) == other

    async def test_a_success_raises_the_watermark_once(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        token, watermark = new_token(), Watermark(1, "evt_1")
        await store.acquire_key_lock(KEY_LOCK, token, LEASE, watermark=watermark)
        proxy.lose_the_reply_to(b"release_key_lock")
        assert await store.release_key_lock(KEY_LOCK, token, watermark=watermark) is None
        assert await store.acquire_key_lock(
            KEY_LOCK, new_token(), LEASE, watermark=watermark
        ) == Stale(watermark)
        assert await store.acquire_key_lock(KEY_LOCK, new_token(), LEASE) == Acquired()

    async def test_every_call_of_a_batch_is_answered(self, store: RedisStore, proxy: Proxy) -> None:
        proxy.lose_the_reply_to(b"claim")
        keys = [delivery_key("default", f"evt_{n}") for n in range(50)]
        results = await asyncio.gather(*(store.claim(key, new_token(), LEASE) for key in keys))
        assert [type(result) for result in results] == [Claimed] * 50


class TestLateRequests:
    """A request arrives late: the client has already repeated it over another connection."""

    async def test_a_late_fetch_claims_nothing(
        self, store: RedisStore, proxy: Proxy, valkey: RedisServer
    ) -> None:
        proxy.delay(b"fetch")
        assert await take_at_least(0, store) == []  # the store repeated the call
        await store.enqueue(DELIVERY, new_token())
        await self.arrive(proxy, valkey)
        assert (await store.stats()).in_flight == 0
        [taken] = await take(store)
        assert taken.attempt == 1

    @pytest.mark.sample(2)
    @pytest.mark.parametrize("shards", [1, 3])
    @pytest.mark.parametrize("meanwhile", ["takes", "looks", "retires"])
    async def test_a_late_fetch_of_a_worker_that_has_fetched_again_or_ended_claims_nothing(
        self, proxy: Proxy, valkey: RedisServer, shards: int, meanwhile: str
    ) -> None:
        async with aclosing(RedisStore(proxy.url, shards=shards)) as store:
            first = Delivery("default", "evt_0", None, 1.0, b"")
            await store.enqueue(first, new_token())
            proxy.delay(b"fetch")
            [taken] = await take_at_least(1, store)
            await store.complete(taken)
            match meanwhile:
                case "takes":
                    await store.enqueue(Delivery("default", "evt_10", None, 1.0, b""), new_token())
                    for claimed in await take_at_least(1, store):
                        await store.complete(claimed)
                case "looks":
                    await store.fetch(0, LEASE, endpoint="default", worker="w", token=new_token())
                case "retires":
                    await store.retire("w")
            for n in range(9):
                await store.enqueue(Delivery("default", f"evt_{n}", None, 1.0, b""), new_token())
            await self.arrive(proxy, valkey)
            stats = await store.stats()
            assert (stats.depth, stats.in_flight) == (8, 0)

    @lasts_seconds
    async def test_a_late_fetch_that_failed_before_a_later_fetch_claims_nothing(
        self, proxy: Proxy, valkey: RedisServer
    ) -> None:
        async with aclosing(RedisStore(proxy.url, shards=2)) as store:
            await store.enqueue(DELIVERY, new_token())
            proxy.delay(b"fetch")
            proxy.hide(b"fetch")
            token = new_token()
            with pytest.raises(StoreError):
                await store.fetch(10, LEASE, endpoint="default", worker="w", token=token)
            proxy.hide(b"no command")
            await store.fetch(0, LEASE, endpoint="default", worker="w", token=token)
            await self.arrive(proxy, valkey)
            assert (await store.stats()).in_flight == 0
            [taken] = await take(store)
            assert taken.attempt == 1

    async def test_a_late_look_does_not_forget_events_fetched_since(
        self, proxy: Proxy, valkey: RedisServer
    ) -> None:
        first, second = (Delivery("default", f"evt_{n}", None, 1.0, b"") for n in (0, 1))
        async with (
            aclosing(RedisStore(proxy.url, shards=2)) as store,
            aclosing(RedisStore(valkey.url, shards=2)) as direct,
        ):
            earlier = new_token()
            await store.enqueue(first, new_token())
            await self.fetch_in_vain(store, proxy, direct, earlier, in_flight=1)
            proxy.recover()
            await store.stats()  # the server answers this call after the repeated fetch
            with valkey.client() as client:  # as if the fetch was long ago, and its record expired
                client.delete("{hookonce:0}:r:w", "{hookonce:1}:r:w")
            await store.enqueue(second, new_token())
            proxy.delay(earlier.encode())
            await self.fetch_in_vain(store, proxy, direct, new_token(), in_flight=2)
            await self.arrive(proxy, valkey)
            proxy.recover()
            [taken] = await take(store)
            assert (taken.key, taken.attempt) == (second.key, 1)

    async def fetch_in_vain(
        self, store: RedisStore, proxy: Proxy, direct: RedisStore, token: Token, in_flight: int
    ) -> None:
        """Fetch until the server has claimed an event, then cancel the fetch before its reply."""
        proxy.mute(b"fetch")

        async def fetch() -> None:
            # A fetch leaves out a shard that answers late. Like a worker, fetch again after an
            # empty batch or an error.
            while True:
                with suppress(StoreError):
                    await store.fetch(10, LEASE, endpoint="default", worker="w", token=token)

        async def has_taken() -> bool:
            return (await direct.stats()).in_flight == in_flight

        taking = asyncio.create_task(fetch())
        await until_async(has_taken)
        taking.cancel()
        await asyncio.wait([taking])

    async def arrive(self, proxy: Proxy, valkey: RedisServer) -> None:
        before = valkey.calls_of("evalsha")
        proxy.release()
        await until(lambda: valkey.calls_of("evalsha") > before)


class TestSlowLinks:
    async def test_a_slow_reply_may_take_the_whole_time_limit(
        self, store: RedisStore, proxy: Proxy, valkey: RedisServer
    ) -> None:
        numbers = count(1)
        proxy.slow_down(1_000_000)

        async def is_taken_in_one_call() -> bool:
            """Return False also if the machine stood still: try with another event then."""
            big = Delivery("default", f"evt_{next(numbers)}", None, 1.0, b"x" * 1_500_000)
            await store.enqueue(big, new_token())
            valkey_calls = valkey.calls_of("evalsha")
            with suppress(StoreError):
                [taken] = await take(store)
                await store.complete(taken)
                assert taken.attempt == 1
                return valkey.calls_of("evalsha") == valkey_calls + 2
            return False

        await until_async(is_taken_in_one_call)

    @lasts_seconds
    async def test_a_slow_reply_ends_at_the_time_limit(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        big = Delivery("default", "evt_1", None, 1.0, b"x" * 1_500_000)
        await store.enqueue(big, new_token())
        proxy.slow_down(100_000)
        started = time.monotonic()
        with pytest.raises(StoreError, match="did not answer in time"):
            await take(store)
        assert time.monotonic() - started < MOST_SECONDS


async def test_a_server_that_has_become_a_replica_is_looked_up_again(
    valkey: RedisServer, store: RedisStore
) -> None:
    """The master behind a name or a load balancer's address may change."""
    with redis_server() as demoted:
        async with proxy_to(demoted.port) as address, aclosing(RedisStore(address.url)) as moving:
            keys = [delivery_key("default", f"evt_{n}") for n in range(3)]
            await moving.claim(keys[0], new_token(), LEASE)
            with demoted.client() as client:
                client.replicaof("127.0.0.1", str(valkey.port))
            address.lead_to(valkey.port)
            assert isinstance(await moving.claim(keys[1], new_token(), LEASE), Claimed)
            assert isinstance(await store.claim(keys[1], new_token(), LEASE), InFlight)


class TestUnreachableShards:
    """One of several shards cannot be reached."""

    SHARDS = 4

    @pytest.fixture
    async def store(self, proxy: Proxy) -> AsyncIterator[RedisStore]:
        store = RedisStore(proxy.url, shards=self.SHARDS)
        for n in range(40):
            await store.enqueue(Delivery("default", f"evt_{n}", None, 1.0, b""), new_token())
        yield store
        await store.aclose()

    async def test_workers_fetch_from_the_other_shards_and_the_failure_is_logged_once(
        self, store: RedisStore, proxy: Proxy, caplog: pytest.LogCaptureFixture
    ) -> None:
        proxy.hide(b"{hookonce:3}")
        claims = await take_at_least(10, store)
        started = time.monotonic()
        for _ in range(8):
            claims += await take(store)
        # To wait a second for the silent shard in each fetch would take 8 seconds. A machine that
        # stands still takes less.
        assert time.monotonic() - started < 6.0
        assert 20 <= len(claims) < 40
        # While the machine stands still, the other shards are silent too, and are logged.
        warned = [
            r.message for r in caplog.records if "do not fetch from these shards" in r.message
        ]
        named = [message.partition(" (")[0] for message in warned]
        assert any(text.endswith(" 3") for text in named)
        assert all(text != later for text, later in pairwise(named))
        proxy.recover()

        async def has_all() -> bool:
            claims.extend(await take(store))
            return len(claims) == 40

        await until_async(has_all)

    async def test_a_slow_shard_is_fetched_from_again(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        proxy.hide(b"{hookonce:3}")
        claims = await take(store)
        proxy.recover()
        proxy.lag(b"{hookonce:3}", 0.2)

        async def has_all() -> bool:
            claims.extend(await take(store))
            return len(claims) == 40

        await until_async(has_all)

    async def test_every_shard_that_failed_after_the_fetch_was_cancelled_is_asked_again(
        self, store: RedisStore, proxy: Proxy, valkey: RedisServer
    ) -> None:
        takes = [f"{{hookonce:{n}}}:r:w" for n in range(self.SHARDS)]
        with valkey.client() as client:
            for name in takes:
                client.set(name, "no list")
            proxy.lag(b"peek", 0.2)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await take(store)
            await store.stats()  # after this call, all shards have answered the fetch
            client.delete(*takes)
        assert len(await take(store)) == 10

    @lasts_seconds
    async def test_a_fetch_returns_what_other_shards_gave_before_one_failed(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        found = await store.fetch(0, LEASE, endpoint="default", worker="w", token=new_token())
        assert found.next_due_seconds == 0
        proxy.hide(b"fetch", after=1)
        started = time.monotonic()
        batch = await store.fetch(40, LEASE, endpoint="default", worker="w", token=new_token())
        assert 0 < len(batch.fetched) < 40
        assert time.monotonic() - started < MOST_SECONDS

    @lasts_seconds
    async def test_a_fetch_whose_reply_was_lost_costs_no_attempt(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        await store.fetch(0, LEASE, endpoint="default", worker="w", token=new_token())
        proxy.mute(b"fetch", after=1)
        batch = await store.fetch(40, LEASE, endpoint="default", worker="w", token=new_token())
        claims = [taken.claim for taken in batch.fetched]
        assert 0 < len(claims) < 40
        proxy.recover()

        async def has_all() -> bool:
            claims.extend(await take(store))
            return len(claims) >= 40

        await until_async(has_all)
        assert len({claim.key for claim in claims}) == len(claims) == 40
        assert {claim.attempt for claim in claims} == {1}
        held = [await store.extend(claim) for claim in claims]
        assert set(held) == {Ownership.HELD}

    async def test_events_answered_to_a_cancelled_fetch_lose_no_attempt(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        await store.fetch(0, LEASE, endpoint="default", worker="w", token=new_token())
        proxy.mute(b"fetch", after=2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await store.fetch(40, LEASE, endpoint="default", worker="w", token=new_token())
        proxy.recover()
        claims: list[Claimed] = []

        async def has_all() -> bool:
            claims.extend(await take(store))
            return len(claims) >= 40

        await until_async(has_all)
        assert len({claim.key for claim in claims}) == len(claims) == 40
        assert {claim.attempt for claim in claims} == {1}

    async def test_a_fetch_without_room_claims_no_new_event_where_an_earlier_fetch_was_forgotten(
        self, store: RedisStore, proxy: Proxy, valkey: RedisServer
    ) -> None:
        token = new_token()
        batch = Batch((), None)

        async def has_fetched_from_all_shards() -> bool:
            """Return False also if the machine stood still: try with another token then."""
            nonlocal token, batch
            for taken in batch.fetched:
                await store.release(taken.claim, NONE)
            token = new_token()
            batch = await store.fetch(40, LEASE, endpoint="default", worker="w", token=token)
            return len(batch.fetched) == 40

        await until_async(has_fetched_from_all_shards)
        for n in range(40, 80):
            await store.enqueue(Delivery("default", f"evt_{n}", None, 1.0, b""), new_token())
        proxy.hide(b"{hookonce:0}")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):  # enough time for the other shards to answer
                await store.fetch(0, LEASE, endpoint="default", worker="w", token=token)
        with valkey.client() as client:
            client.delete("{hookonce:1}:r:w")
        proxy.recover()
        again = await store.fetch(0, LEASE, endpoint="default", worker="w", token=token)
        assert 0 < len(again.fetched) < 40
        assert {taken.claim.key for taken in again.fetched} < {t.claim.key for t in batch.fetched}

    @lasts_seconds
    async def test_a_fetch_fails_if_no_shard_answers(self, store: RedisStore, proxy: Proxy) -> None:
        proxy.swallow_everything()
        started = time.monotonic()
        with pytest.raises(StoreError):
            await take(store)
        assert time.monotonic() - started < MOST_SECONDS


class TestUnreachable:
    @lasts_seconds
    async def test_a_silent_server_is_an_error_within_the_time_limit(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        await claim(store)
        proxy.swallow_everything()
        started = time.monotonic()
        results = await asyncio.gather(
            *(store.claim(KEY, new_token(), LEASE) for _ in range(20)), return_exceptions=True
        )
        assert 2.5 < time.monotonic() - started < MOST_SECONDS
        assert {type(result) for result in results} == {StoreError}
        assert "did not answer in time" in str(results[0])
        proxy.recover()
        assert (await store.stats()).in_flight == 1

    @lasts_seconds
    async def test_a_call_during_an_outage_waits_no_longer_than_an_earlier_call(
        self, store: RedisStore, proxy: Proxy
    ) -> None:
        proxy.swallow_everything()

        async def ask(after: float) -> float:
            await asyncio.sleep(after)
            started = time.monotonic()
            with pytest.raises(StoreError):
                await store.claim(KEY, new_token(), LEASE)
            return time.monotonic() - started

        assert max(await asyncio.gather(ask(0.0), ask(0.5), ask(2.5))) < MOST_SECONDS

    @lasts_seconds
    async def test_a_missing_server_is_an_error_that_says_so(self) -> None:
        store = RedisStore(f"redis://:hidden@127.0.0.1:{free_port()}")
        with pytest.raises(StoreError, match="connect") as caught:
            await store.open()
        assert "hidden" not in str(caught.value)

        async def says_so() -> bool:
            """Return False if the machine stood still, and the time limit ended a connect."""
            started = time.monotonic()
            with pytest.raises(StoreError) as failed:
                await claim(store)
            assert time.monotonic() - started < MOST_SECONDS
            return "connect" in str(failed.value)

        await until_async(says_so)
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
