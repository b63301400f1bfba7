"""Features of the Redis store alone: the server's time, expiry, and wake-ups over the network."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
from freezegun import freeze_time
from redis.asyncio import Redis
from support.redis_servers import RedisServer, leaked_keys
from support.waiting import PATIENCE_SECONDS, until, until_async

from hookonce.stores.protocols import InboxStore
from hookonce.stores.redis import RedisStore
from hookonce.stores.values import (
    Claimed,
    Dead,
    DeadReason,
    Delivery,
    Done,
    FailedAttempt,
    Fetched,
    InFlight,
    KeyLock,
    Ownership,
    Stored,
    Waiting,
    delivery_key,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 30.0
HOUR = 3600.0
NONE: frozenset[str] = frozenset()
DELIVERY = Delivery("default", "evt_1", "comment.received", 1.0, b"bytes\0\xff\r\n")
KEY = DELIVERY.key
# A program that fetches under the same worker name as `take` below.
TAKE = f"""
import asyncio, sys
from hookonce.stores.redis import RedisStore

async def take():
    store = RedisStore(sys.argv[1])
    batch = await store.fetch(10, {LEASE}, endpoint="default", worker="w", token="t")
    await store.aclose()
    return len(batch.fetched)

print(asyncio.run(take()))
"""


@pytest.fixture
async def store(valkey: RedisServer) -> AsyncIterator[RedisStore]:
    store = RedisStore(valkey.url)
    yield store
    await store.aclose()


async def claim(store: RedisStore, event_id: str = "evt_1", *, lease: float = LEASE) -> Claimed:
    result = await store.claim(delivery_key("default", event_id), new_token(), lease)
    assert isinstance(result, Claimed)
    return result


async def take(store: RedisStore, *, lease: float = LEASE) -> list[Claimed]:
    batch = await store.fetch(10, lease, endpoint="default", worker="w", token=new_token())
    return [taken.claim for taken in batch.fetched]


def keys(server: RedisServer) -> dict[str, int]:
    """Return each kind of key that exists, with the longest time to live of its keys."""
    with server.client() as client:
        found: dict[str, int] = {}
        for name in client.scan_iter("*"):
            kind = name.decode().split(":")[2]
            found[kind] = max(found.get(kind, -2), client.pttl(name))
    return found


async def test_the_redis_store_has_an_inbox(store: RedisStore) -> None:
    assert isinstance(store, InboxStore)


class TestTime:
    async def test_a_lease_ends_by_the_servers_clock_whatever_this_machines_says(
        self, store: RedisStore
    ) -> None:
        with freeze_time("2001-01-01", real_asyncio=True) as frozen:
            await claim(store)
            frozen.tick(timedelta(days=400))
            assert isinstance(await store.claim(KEY, new_token(), LEASE), InFlight)

    async def test_times_are_shown_by_this_machines_clock(self, store: RedisStore) -> None:
        await store.enqueue(DELIVERY, new_token())
        with freeze_time("2001-01-01", real_asyncio=True):
            [owned] = await take(store)
            await store.retry(owned, 100.0)
            now = time.time()
            result = await store.claim(KEY, new_token(), LEASE)
            assert isinstance(result, InFlight)
            assert result.until_unix == pytest.approx(now + 100, abs=5)
            entry = await store.entry(KEY)
            assert entry is not None
            assert entry.due_unix == pytest.approx(now + 100, abs=5)
            [listed] = await store.entries()
            assert listed.due_unix == pytest.approx(now + 100, abs=5)

    async def test_an_event_of_a_crashed_worker_comes_back_by_itself(
        self, store: RedisStore
    ) -> None:
        await store.enqueue(DELIVERY, new_token())
        assert [owned.attempt for owned in await take(store, lease=0.2)] == [1]
        again: list[Claimed] = []

        async def is_back() -> bool:
            again.extend(await take(store))
            return bool(again)

        await until_async(is_back)
        assert [owned.attempt for owned in again] == [2]
        entry = await store.entry(KEY)
        assert entry is not None
        [failure] = entry.history
        assert failure.number == 1
        assert "the process ended" in failure.error


class TestClocksAndLeases:
    async def test_a_repeated_fetch_returns_and_renews_the_claims_that_still_hold(
        self, valkey: RedisServer
    ) -> None:
        now = 1_700_000_000.0
        async with aclosing(RedisStore(valkey.url, clock=lambda: now)) as store:
            await store.enqueue(DELIVERY, new_token())
            token = new_token()

            async def repeat(lease: float) -> tuple[Fetched, ...]:
                batch = await store.fetch(10, lease, endpoint="default", worker="w", token=token)
                return batch.fetched

            [first] = await repeat(LEASE)
            now += LEASE - 1
            assert await repeat(LEASE) == (first,)
            now += LEASE - 1
            assert await take(store) == []  # another call finds nothing: the lease was renewed
            entry = await store.entry(KEY)
            assert entry is not None
            assert entry.in_flight
            assert entry.due_unix == pytest.approx(now + 1)

    async def test_a_repeated_fetch_leaves_out_claims_that_the_worker_has_lost(
        self, valkey: RedisServer
    ) -> None:
        now = 1_700_000_000.0
        async with aclosing(RedisStore(valkey.url, clock=lambda: now)) as store:
            await store.enqueue(DELIVERY, new_token())
            token = new_token()
            for is_over in (False, True):
                batch = await store.fetch(10, LEASE, endpoint="default", worker="w", token=token)
                assert len(batch.fetched) == (0 if is_over else 1)
                now += LEASE
            assert batch.next_due_seconds == 0
            assert [owned.attempt for owned in await take(store)] == [2]

    @pytest.mark.parametrize("seconds_between_puts", [0.0, 7200.0])
    async def test_a_clock_set_back_before_the_first_fetch_delays_no_event(
        self, valkey: RedisServer, seconds_between_puts: float
    ) -> None:
        now = 1_700_000_000.0
        async with aclosing(RedisStore(valkey.url, clock=lambda: now)) as store:
            await store.enqueue(DELIVERY, new_token())
            now += seconds_between_puts
            await store.enqueue(Delivery("default", "evt_2", None, 1.0, b""), new_token())
            now -= 3600.0
            assert len(await take(store)) == 2

    async def test_a_worker_with_an_earlier_workers_name_fetches_as_well(
        self, store: RedisStore, valkey: RedisServer
    ) -> None:
        for _ in range(2):
            await take(store)
        await store.enqueue(DELIVERY, new_token())
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", TAKE, valkey.url, stdout=asyncio.subprocess.PIPE
        )
        taken, _ = await process.communicate()
        assert taken == b"1\n"

    @pytest.mark.parametrize("shards", [1, 3])
    async def test_two_fetches_at_once_never_get_the_same_event(
        self, valkey: RedisServer, shards: int
    ) -> None:
        async with aclosing(RedisStore(valkey.url, shards=shards)) as store:
            for n in range(40):
                await store.enqueue(Delivery("default", f"evt_{n}", None, 1.0, b""), new_token())
            found = await asyncio.gather(take(store), take(store))
            keys = [claim.key for claims in found for claim in claims]
            assert len(set(keys)) == len(keys) == 20

    async def test_a_worker_goes_on_where_a_store_is_opened_again_and_the_clock_was_set_back(
        self, store: RedisStore
    ) -> None:
        await take(store)
        await store.aclose()
        with freeze_time("2020-01-01", real_asyncio=True):
            await store.enqueue(DELIVERY, new_token())
            assert len(await take(store)) == 1

    async def test_a_fetch_has_a_size_limit_except_for_its_first_event(
        self, store: RedisStore
    ) -> None:
        sizes = [1_500_000, 400_000, 400_000, 400_000]
        for n, size in enumerate(sizes):
            await store.enqueue(
                Delivery("default", f"evt_{n}", None, 1.0, b"x" * size), new_token()
            )
        assert [len(await take(store)) for _ in range(4)] == [1, 2, 1, 0]


class TestKeys:
    async def test_a_handled_event_leaves_a_record_that_expires(
        self, store: RedisStore, valkey: RedisServer
    ) -> None:
        await store.enqueue(DELIVERY, new_token())
        [owned] = await take(store)
        await store.extend(owned, frozenset({"a"}))
        await store.retry(owned, 0.0, NONE, "no")
        [owned] = await take(store)
        await store.complete(owned)
        await store.retire("w")
        left = keys(valkey)
        assert "a" in left
        assert left.keys() <= {"a", "m", "r", "s"}
        assert left["a"] == pytest.approx(15 * 86_400_000, rel=0.01)

    async def test_no_life_of_an_event_leaves_a_key_behind(
        self, store: RedisStore, valkey: RedisServer
    ) -> None:
        for n, ending in enumerate(["complete", "bury", "release", "retry", "keep", "nothing"]):
            one = Delivery("default", f"evt_{n}", None, 1.0, b"x")
            for is_put in (False, True):
                if is_put:
                    one = Delivery("inbox", f"evt_{n}", None, 1.0, b"x")
                    await store.enqueue(one, new_token())
                    batch = await store.fetch(
                        1, LEASE, endpoint="inbox", worker="w", token=new_token()
                    )
                    owned = batch.fetched[0].claim
                else:
                    owned = await claim(store, f"evt_{n}")
                match ending:
                    case "complete":
                        await store.complete(owned)
                    case "bury":
                        await store.bury(owned, DeadReason.REJECTED, delivery=one)
                    case "release":
                        await store.release(owned, NONE, "no")
                    case "retry":
                        await store.retry(owned, 60.0)
                    case "keep":
                        await store.keep(owned, one)
                with valkey.client() as client:
                    assert leaked_keys(client) == set()
        key_lock, token = KeyLock("inbox", "shop.sync", "chan_1"), new_token()
        await store.acquire_key_lock(key_lock, token, LEASE)
        await store.acquire_key_lock(key_lock, new_token(), LEASE, waiting=one.key)
        with valkey.client() as client:
            assert leaked_keys(client) == set()
        assert await store.release_key_lock(key_lock, token) == one.key
        await store.acquire_key_lock(key_lock, token, LEASE)
        assert await store.release_key_lock(key_lock, token) is None
        for entry in await store.entries():
            owner = Claimed(entry.delivery.key, new_token(), 1, NONE, LEASE)
            await store.complete(owner)
        for letter in await store.dead_letters():
            await store.discard(letter.delivery.key)
        await store.complete(Claimed(delivery_key("default", "evt_4"), new_token(), 1, NONE, LEASE))
        assert keys(valkey).keys() <= {"a", "k", "m", "r", "s", "v", "w", "y"}

    async def test_attempts_of_a_waiting_event_are_never_forgotten(
        self, store: RedisStore, valkey: RedisServer
    ) -> None:
        await claim(store)
        assert await store.enqueue(DELIVERY, new_token()) == Stored()
        assert keys(valkey)["a"] == -1

    async def test_prefixes_keep_stores_apart(self, store: RedisStore, valkey: RedisServer) -> None:
        owned = await claim(store)
        await store.complete(owned)
        async with aclosing(RedisStore(valkey.url, prefix="other")) as other:
            assert (await claim(other)).attempt == 1
            assert (await other.stats()).in_flight == 1
        assert (await store.stats()).in_flight == 0
        with valkey.client() as client:
            assert leaked_keys(client, "other") == set()

    async def test_a_history_is_bounded(self, store: RedisStore) -> None:
        for _ in range(25):
            await store.release(await claim(store), NONE, "x" * 10_000)
        await store.bury(
            await claim(store), DeadReason.REJECTED, error="y" * 10_000, delivery=DELIVERY
        )
        letter = await store.dead_letter(KEY)
        assert letter is not None
        assert [failure.number for failure in letter.history] == list(range(7, 27))
        assert {len(failure.error) for failure in letter.history} == {1000}
        assert letter.error == "y" * 4000

    async def test_texts_with_lone_surrogates_are_kept(self, store: RedisStore) -> None:
        odd = Delivery("default", "evt_1", "type\ud800", 1.0, b"")
        await store.enqueue(odd, new_token())
        [owned] = await take(store)
        await store.bury(
            owned, DeadReason.REJECTED, error="bad \ud800\n", finished=frozenset({"a\n\ud800"})
        )
        letter = await store.dead_letter(KEY)
        assert letter is not None
        assert letter.delivery == odd
        assert letter.finished == {"a\n\ud800"}
        assert letter.history == (FailedAttempt(1, letter.history[0].ended_unix, "bad \\ud800\n"),)


class TestInlineAndInbox:
    """An event reaches a process that handles it in the request, and a process with an inbox."""

    async def test_an_event_claimed_inside_a_request_is_due_when_that_lease_ends(
        self, store: RedisStore
    ) -> None:
        owned = await claim(store)
        assert await store.enqueue(DELIVERY, new_token()) == Stored()
        batch = await store.fetch(1, LEASE, endpoint="default", worker="w", token=new_token())
        assert batch.fetched == ()
        assert batch.next_due_seconds == pytest.approx(LEASE, abs=5)
        await store.release(owned, NONE, "no")
        assert [one.attempt for one in await take(store)] == [2]

    async def test_an_enqueue_of_a_kept_delivery_is_answered_waiting_and_after_the_failure_dead(
        self, store: RedisStore
    ) -> None:
        owned = await claim(store)
        await store.keep(owned, DELIVERY)
        assert await store.enqueue(DELIVERY, new_token()) == Waiting()
        await store.release(owned, NONE, "no")
        assert await store.enqueue(DELIVERY, new_token()) == Dead()

    async def test_keeping_adds_nothing_to_the_inbox(self, store: RedisStore) -> None:
        await store.enqueue(DELIVERY, new_token())
        [owned] = await take(store)
        assert await store.keep(owned, DELIVERY) is Ownership.HELD
        await store.keep_in_flight(DELIVERY)
        await store.release(owned, NONE, "no")
        assert await store.dead_letters() == []
        assert len(await take(store)) == 1


async def listening(store: RedisStore) -> None:
    """Return once a store has subscribed to notifications; from then on it does not poll."""
    await store.wait("default", 0)
    await until(lambda: store._session.listener._is_hearing)


class TestWaking:
    async def test_an_enqueue_by_another_process_ends_a_wait_at_once(
        self, store: RedisStore, valkey: RedisServer
    ) -> None:
        await listening(store)
        async with aclosing(RedisStore(valkey.url)) as other:
            await other.open()
            for n in range(5):
                await take(store)
                waiting = asyncio.create_task(store.wait("default", HOUR))
                await asyncio.sleep(0.05)
                assert not waiting.done()
                await other.enqueue(Delivery("default", f"evt_{n}", None, 1.0, b""), new_token())
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await waiting

    async def test_another_endpoints_enqueue_wakes_nobody(
        self, store: RedisStore, valkey: RedisServer
    ) -> None:
        await listening(store)
        await take(store)
        async with aclosing(RedisStore(valkey.url)) as other:
            await other.enqueue(Delivery("other", "evt_1", None, 1.0, b""), new_token())
            started = time.monotonic()
            await store.wait("default", 0.3)
            assert time.monotonic() - started >= 0.29

    async def test_events_that_one_worker_leaves_wake_the_next_worker(
        self, store: RedisStore
    ) -> None:
        await listening(store)
        for n in range(3):
            await store.enqueue(Delivery("default", f"evt_{n}", None, 1.0, b""), new_token())
        batch = await store.fetch(1, LEASE, endpoint="default", worker="w1", token=new_token())
        assert batch.next_due_seconds == 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            await store.wait("default", HOUR)

    async def test_a_broken_subscription_is_made_again(
        self, store: RedisStore, valkey: RedisServer
    ) -> None:
        await listening(store)
        await take(store)
        waiting = asyncio.create_task(store.wait("default", HOUR))
        await asyncio.sleep(0)
        with valkey.client() as client:
            assert client.execute_command("CLIENT", "KILL", "TYPE", "pubsub") == 1
        async with aclosing(RedisStore(valkey.url)) as other:
            await other.enqueue(DELIVERY, new_token())  # the waiting store gets no notification
        async with asyncio.timeout(PATIENCE_SECONDS):
            await waiting

    async def test_without_the_right_to_subscribe_workers_look_by_themselves(
        self, valkey: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        with valkey.client() as client:
            client.acl_setuser(
                "quiet",
                enabled=True,
                nopass=True,
                keys=["{hookonce:*"],
                categories=["+@all"],
                reset_channels=True,
            )
        async with aclosing(RedisStore(f"redis://quiet:x@127.0.0.1:{valkey.port}")) as store:
            assert await store.enqueue(DELIVERY, new_token()) == Stored()
            assert len(await take(store)) == 1
            async with asyncio.timeout(PATIENCE_SECONDS):
                await store.wait("default", HOUR)
        assert [r.levelno for r in caplog.records if "subscribe" in r.message] == [logging.WARNING]


class TestClients:
    @pytest.mark.parametrize(
        "make",
        [
            lambda port: Redis(port=port),
            lambda port: Redis(port=port, decode_responses=True, protocol=3),
            lambda port: Redis.from_url(f"redis://localhost:{port}/3", max_connections=1),
        ],
    )
    async def test_a_given_client_shows_where_the_server_is(
        self, valkey: RedisServer, make: Callable[[int], Any]
    ) -> None:
        client = make(valkey.port)
        async with aclosing(RedisStore(client)) as store:
            await store.enqueue(DELIVERY, new_token())
            batch = await store.fetch(1, LEASE, endpoint="default", worker="w", token=new_token())
            assert batch.fetched[0].delivery == DELIVERY
            await store.complete(batch.fetched[0].claim)
            assert await store.claim(KEY, new_token(), LEASE) == Done()
        assert await client.ping()
        await client.aclose()

    def test_an_argument_that_is_neither_url_nor_client_is_refused(self) -> None:
        wrong: Any = 6379
        with pytest.raises(TypeError, match="takes a URL"):
            RedisStore(wrong)

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"prefix": "a{b}"}, "prefix takes"),
            ({"prefix": ""}, "prefix takes"),
            ({"shards": 0}, "shards takes"),
            ({"shards": True}, "shards takes"),
            ({"shards": 2000}, "shards takes"),
            ({"durability": "disk"}, "durability takes"),
            ({"replicas": -1}, "replicas takes"),
            ({"retention": timedelta(0)}, "retention"),
        ],
    )
    def test_arguments_that_make_no_sense_are_refused(
        self, arguments: dict[str, Any], text: str
    ) -> None:
        with pytest.raises(ValueError, match=text):
            RedisStore("redis://localhost", **arguments)


class TestEntriesThatSomebodyHasDamaged:
    """An operator may delete a key by hand, or the server may evict it."""

    @pytest.mark.parametrize("kind", ["a", "i"])
    async def test_after_a_deleted_key_other_events_are_fetched_and_the_event_counts_as_new(
        self, store: RedisStore, valkey: RedisServer, kind: str
    ) -> None:
        deliveries = [
            Delivery("default", f"evt_{number}", "comment.received", 1.0, b"bytes")
            for number in range(3)
        ]
        for delivery in deliveries:
            assert await store.enqueue(delivery, new_token()) == Stored()
        damaged = deliveries[0]
        with valkey.client() as client:
            (name,) = [
                name
                for name in client.scan_iter(f"*:{kind}:*")
                if name.endswith(damaged.key.encode())
            ]
            client.delete(name)
        taken = await take(store)
        assert {claimed.key for claimed in taken} == {one.key for one in deliveries[1:]}
        assert (await store.stats(endpoint="default")).depth == 2
        assert await store.enqueue(damaged, new_token()) == Stored()
        assert [claimed.key for claimed in await take(store)] == [damaged.key]


async def test_lists_of_several_shards_are_read_in_pages_and_nothing_twice(
    valkey: RedisServer,
) -> None:
    """All entries have the same time, so the sort keys of different shards are equal, too."""
    async with aclosing(RedisStore(valkey.url, shards=5, clock=lambda: 1e9)) as store:
        for number in range(40):
            one = Delivery("ab"[number % 2], f"evt_{number}", "x", 1e9, b"{}")
            if number < 20:
                await store.enqueue(one, new_token())
            else:
                held = await store.claim(one.key, new_token(), LEASE)
                assert isinstance(held, Claimed)
                await store.bury(held, DeadReason.REJECTED, delivery=one)
        for listing in (store.dead_letters, store.entries):
            found: list[str] = []
            after = None
            while page := await listing(after=after, limit=6):
                found += [event.delivery.event_id for event in page]
                after = page[-1].place
            whole = [event.delivery.event_id for event in await listing()]
            assert found == whole
            assert len(set(whole)) == 20


async def test_a_listing_for_a_handler_reads_only_dead_letters_with_its_name_outstanding(
    store: RedisStore, valkey: RedisServer
) -> None:
    """The store filters the records first: reading each dead letter takes five times as long."""
    for number in range(10):
        one = Delivery("default", f"evt_{number}", "x", 1e9, b"{}")
        owned = await store.claim(one.key, new_token(), LEASE)
        assert isinstance(owned, Claimed)
        outstanding = frozenset({"alert", "a\ud800"} if number % 2 else {"sync"})
        await store.bury(owned, DeadReason.EXHAUSTED, outstanding=outstanding, delivery=one)
    with valkey.client() as client:
        client.config_resetstat()
    assert await store.dead_letters(handler="ale") == []

    def letters_read() -> int:
        # Each script also reads the format with HMGET, so leave these reads out.
        return valkey.calls_of("hmget") - valkey.calls_of("evalsha")

    assert letters_read() == 0
    assert len(await store.dead_letters(handler="a\ud800")) == 5
    assert letters_read() == 5
