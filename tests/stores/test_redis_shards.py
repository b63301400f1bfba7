"""Calls about events of several shards, and keys that the server removes."""

from __future__ import annotations

import pytest
from support.redis_servers import RedisServer

from hookonce.stores.protocols import DEFAULT_RETENTION
from hookonce.stores.reconciling import Span
from hookonce.stores.redis import RedisStore
from hookonce.stores.values import Claimed, Known, delivery_key, new_token

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
    """Without a clock of the caller's, each key ends with the retention."""
    store = RedisStore(valkey.url, prefix="own", shards=1)
    await store.accept("default", ["evt_1"])
    await store.note_ignored("default", {"comment.received": [Span(2 * NOW, 2 * NOW)]})
    with valkey.client() as client:
        names = list(client.scan_iter("{own:*}:[cf]:*"))
        assert len(names) == 2
        for name in names:
            assert RETENTION - 60 < client.ttl(name) <= RETENTION
    await store.aclose()
