"""Calls about events of several shards, and keys that the server removes."""

from __future__ import annotations

import pytest
from support.redis_servers import RedisServer
from support.waiting import until_async

from hookonce.clock import ManualClock
from hookonce.stores.handled import HandledStats, Keeping
from hookonce.stores.protocols import DEFAULT_RETENTION
from hookonce.stores.reconciling import Span
from hookonce.stores.redis import RedisStore
from hookonce.stores.replays import ReplayPlan
from hookonce.stores.values import Claimed, Delivery, Known, delivery_key, new_token

pytestmark = pytest.mark.anyio

NOW = 1_700_000_000
RETENTION = int(DEFAULT_RETENTION.total_seconds())


async def test_one_call_asks_for_events_of_several_shards(valkey: RedisServer) -> None:
    store = RedisStore(valkey.url, shards=7)
    ids = [f"evt_{number}" for number in range(50)]
    for event_id in ids[::2]:
        claim = await store.claim(delivery_key("default", event_id), new_token(), 30.0)
        assert isinstance(claim, Claimed)
        await store.complete(claim)
    assert await store.known("default", ids) == dict.fromkeys(ids[::2], Known.DONE)
    await store.aclose()


async def test_accepted_gaps_of_several_shards_are_known(valkey: RedisServer) -> None:
    store = RedisStore(valkey.url, shards=7)
    ids = [f"evt_{number}" for number in range(50)]
    await store.accept("default", ids[::2])
    await store.note_ignored("default", {"comment.received": [Span(NOW, NOW)]})
    assert await store.accepted("default", ids) == frozenset(ids[::2])
    await store.aclose()


async def test_the_server_removes_keys_when_the_retention_is_over(valkey: RedisServer) -> None:
    """Without a clock argument, each key expires with the retention."""
    store = RedisStore(valkey.url, prefix="own", shards=1)
    await store.accept("default", ["evt_1"])
    await store.note_ignored("default", {"comment.received": [Span(2 * NOW, 2 * NOW)]})
    with valkey.client() as client:
        names = list(client.scan_iter("{own:*}:[cf]:*"))
        assert len(names) == 2
        for name in names:
            assert RETENTION - 60 < client.ttl(name) <= RETENTION
    await store.aclose()


async def handle(store: RedisStore, event_id: str, size: int, keeping: Keeping) -> None:
    key = delivery_key("default", event_id)
    claim = await store.claim(key, new_token(), 30.0)
    assert isinstance(claim, Claimed)
    delivery = Delivery("default", event_id, "comment.received", NOW, b"x" * size)
    await store.complete_and_keep(claim, delivery, ["shop.book"], keeping)


async def test_handled_events_of_several_shards_are_one_list(valkey: RedisServer) -> None:
    store = RedisStore(valkey.url, shards=7)
    ids = [f"evt_{number}" for number in range(50)]
    for event_id in ids:
        await handle(store, event_id, 10, Keeping(3600.0))
    assert await store.handled_stats("default") == HandledStats(50, 500)
    for endpoint in (None, "default"):
        seen: list[str] = []
        after = None
        while page := await store.handled_events(after=after, limit=7, endpoint=endpoint):
            seen += [event.delivery.event_id for event in page]
            after = page[-1].place
        assert seen == ids
    await store.aclose()


async def test_the_shards_share_the_bytes_of_handled_events(valkey: RedisServer) -> None:
    store = RedisStore(valkey.url, shards=4)
    for number in range(200):
        await handle(store, f"evt_{number}", 10, Keeping(3600.0, max_bytes=400))
    kept = await store.handled_events(limit=500)
    assert await store.handled_stats("default") == HandledStats(40, 400)
    assert len(kept) == 40
    await handle(store, "evt_large", 400, Keeping(3600.0, max_bytes=400))
    large = await store.handled_event(delivery_key("default", "evt_large"))
    assert large is not None  # a body as large as the limit is kept, also with several shards
    await store.aclose()


async def test_the_server_removes_kept_deliveries_at_their_end(valkey: RedisServer) -> None:
    """Without a clock argument, each key expires, and the lists drop expired entries."""
    store = RedisStore(valkey.url, prefix="own", shards=1)
    await handle(store, "evt_1", 10, Keeping(3600.0))
    with valkey.client() as client:
        names = sorted(client.scan_iter("{own:*}:h[bien]*"))
        assert [name.partition(b"}:")[2] for name in names] == [
            b"hb:default:evt_1",
            b"he",
            b"hi:default",
            b"hn:default",
        ]
        assert all(3500 < client.ttl(name) <= 3600 for name in names)
        client.pexpire(names[0], 1)

        async def is_gone() -> bool:
            return await store.handled_event(delivery_key("default", "evt_1")) is None

        await until_async(is_gone)
    assert await store.handled_events() == []
    await store.aclose()


async def test_a_stray_member_of_the_list_of_handled_events_stops_nothing(
    valkey: RedisServer,
) -> None:
    store = RedisStore(valkey.url, prefix="own", shards=1)
    await handle(store, "evt_1", 10, Keeping(3600.0))
    with valkey.client() as client:
        [index] = client.scan_iter("{own:*}:hi:*")
        client.zadd(index, {"stray": 5.0, "0000:1": 6.0})
    [kept] = await store.handled_events()
    assert kept.delivery.event_id == "evt_1"
    await handle(store, "evt_2", 10, Keeping(3600.0))
    assert len(await store.handled_events()) == 2
    assert await store.handled_stats("default") == HandledStats(2, 20)
    await store.aclose()


async def test_the_old_entry_of_a_delivery_that_is_kept_again_counts_for_nothing(
    valkey: RedisServer,
) -> None:
    """The server removes a delivery at its end, but not its entry in the list."""
    store, key = RedisStore(valkey.url, prefix="own", shards=1), delivery_key("default", "evt_1")
    claim = await store.claim(key, new_token(), 30.0)
    assert isinstance(claim, Claimed)
    delivery = Delivery("default", "evt_1", "comment.received", NOW, b"x" * 10)
    with valkey.client() as client:
        for _ in range(2):
            client.delete("{own:0}:hb:default:evt_1")
            await store.complete_and_keep(claim, delivery, ["shop.book"], Keeping(3600.0))
        assert client.zcard("{own:0}:hi:default") == 2
    assert [event.delivery for event in await store.handled_events()] == [
        delivery._replace(body=b"")
    ]
    await handle(store, "evt_2", 10, Keeping(3600.0, max_bytes=25))  # the oldest entry gives way
    kept = await store.handled_events()
    assert [event.delivery.event_id for event in kept] == ["evt_1", "evt_2"]
    await store.aclose()


async def test_a_batch_selects_what_each_shard_has_handled_before_its_start(
    valkey: RedisServer,
) -> None:
    """Also if the clock of a shard is behind that of the first shard, which keeps the batch."""
    clock, ids = ManualClock(NOW), [f"evt_{number}" for number in range(40)]
    store = RedisStore(valkey.url, shards=7, clock=clock)
    for event_id in ids[:20]:
        await handle(store, event_id, 1, Keeping(3600.0))
    clock.advance(1)
    batch = await store.begin_replay_batch("default", "shop.book", 1, ReplayPlan())
    clock.advance(-60)
    for event_id in ids[20:]:
        await handle(store, event_id, 1, Keeping(3600.0))
    selected = await store.handled_events(before_unix=batch.started_unix)
    assert {event.delivery.event_id for event in selected} == set(ids[:20])
    await store.aclose()
