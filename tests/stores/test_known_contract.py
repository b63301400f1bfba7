"""Every backend answers for many events at once what it knows of them.

The stores come from conftest; what each state is known as is in ``life``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.redis_servers import RedisServer

from hookonce.stores.protocols import InboxStore, Store
from hookonce.stores.redis import RedisStore
from hookonce.stores.values import (
    Claimed,
    DeadReason,
    Delivery,
    Known,
    delivery_key,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 30.0


async def claim(store: Store, event_id: str) -> Claimed:
    result = await store.claim(delivery_key("default", event_id), new_token(), LEASE)
    assert isinstance(result, Claimed)
    return result


def delivery(event_id: str) -> Delivery:
    return Delivery("default", event_id, "comment.received", 1_700_000_000.0, b"{}")


async def test_each_event_is_known_as_what_became_of_it(store: Store) -> None:
    await store.complete(await claim(store, "evt_done"))
    await claim(store, "evt_running")
    await store.release(await claim(store, "evt_failed"), frozenset(), "it broke")
    buried = await claim(store, "evt_dead")
    await store.bury(buried, DeadReason.REJECTED, delivery=delivery("evt_dead"))
    asked = ["evt_new", "evt_done", "evt_running", "evt_failed", "evt_dead", "evt_done"]
    assert await store.known("default", asked) == {
        "evt_done": Known.DONE,
        "evt_running": Known.IN_FLIGHT,
        "evt_failed": Known.FAILED,
        "evt_dead": Known.DEAD,
    }


async def test_what_is_in_the_inbox_waits_also_while_an_attempt_runs(store: Store) -> None:
    if not isinstance(store, InboxStore):
        pytest.skip("this store has no inbox")
    for event_id in ("evt_1", "evt_2"):
        await store.enqueue(delivery(event_id), new_token())
    taken = await store.fetch(1, LEASE, endpoint="default", worker="w", token=new_token())
    assert len(taken.fetched) == 1
    waiting = dict.fromkeys(("evt_1", "evt_2"), Known.WAITING)
    assert await store.known("default", ["evt_1", "evt_2"]) == waiting


async def test_a_delivery_that_was_kept_is_dead_once_its_attempt_is_over(
    store: Store, pass_time: Callable[[float], None]
) -> None:
    if not store.keeps_bodies:
        pytest.skip("this store keeps no bodies")
    await store.keep(await claim(store, "evt_1"), delivery("evt_1"))
    assert await store.known("default", ["evt_1"]) == {"evt_1": Known.IN_FLIGHT}
    pass_time(LEASE + 1)
    assert await store.known("default", ["evt_1"]) == {"evt_1": Known.DEAD}


async def test_an_attempt_whose_lease_ran_out_has_failed(
    store: Store, pass_time: Callable[[float], None]
) -> None:
    await claim(store, "evt_1")
    pass_time(LEASE + 1)
    assert await store.known("default", ["evt_1"]) == {"evt_1": Known.FAILED}


async def test_what_was_done_longer_ago_than_the_retention_is_unknown(
    store: Store, pass_time: Callable[[float], None]
) -> None:
    await store.complete(await claim(store, "evt_1"))
    pass_time(16 * 86_400)
    assert await store.known("default", ["evt_1"]) == {}


async def test_the_same_id_at_another_endpoint_is_another_event(store: Store) -> None:
    await store.complete(await claim(store, "evt_1"))
    assert await store.known("other", ["evt_1"]) == {}


async def test_more_events_than_one_look_takes_are_all_answered_for(store: Store) -> None:
    await store.complete(await claim(store, "evt_1199"))
    found = await store.known("default", [f"evt_{number}" for number in range(1200)])
    assert found == {"evt_1199": Known.DONE}


async def test_events_of_several_shards_are_answered_for_in_one_call(valkey: RedisServer) -> None:
    store = RedisStore(valkey.url, shards=7)
    ids = [f"evt_{number}" for number in range(50)]
    for event_id in ids[::2]:
        await store.complete(await claim(store, event_id))
    assert await store.known("default", ids) == dict.fromkeys(ids[::2], Known.DONE)
    await store.aclose()
