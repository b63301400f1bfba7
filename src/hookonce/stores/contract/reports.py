"""Rules for the states of many events, and for unusual ids and numbers."""

from __future__ import annotations

import math
from contextlib import suppress

from ...errors import StoreError
from ..protocols import InboxStore, Store
from ..values import (
    Claimed,
    DeadReason,
    Done,
    Known,
    Ownership,
    Stored,
    new_token,
)
from .bench import (
    LEASE,
    NONE,
    RETENTION,
    Bench,
    claim,
    delivery,
    every_store,
    key_of,
    only,
    with_bodies,
    with_inbox,
)


async def _claim(store: Store, event_id: str) -> Claimed:
    return await claim(store, key_of(event_id))


@every_store
async def each_event_is_known_by_its_state(bench: Bench) -> None:
    store = bench.store
    await store.complete(await _claim(store, "evt_done"))
    await _claim(store, "evt_running")
    await store.release(await _claim(store, "evt_failed"), NONE, "it broke")
    buried = await _claim(store, "evt_dead")
    await store.bury(buried, DeadReason.REJECTED, delivery=delivery("evt_dead"))
    asked = ["evt_new", "evt_done", "evt_running", "evt_failed", "evt_dead", "evt_done"]
    assert await store.known("default", asked) == {
        "evt_done": Known.DONE,
        "evt_running": Known.IN_FLIGHT,
        "evt_failed": Known.FAILED,
        "evt_dead": Known.DEAD,
    }


@with_inbox
async def an_event_of_the_inbox_is_known_as_waiting_also_during_an_attempt(bench: Bench) -> None:
    store = bench.inbox
    for event_id in ("evt_1", "evt_2"):
        await store.enqueue(delivery(event_id), new_token())
    batch = await store.fetch(1, LEASE, endpoint="default", worker="w", token=new_token())
    assert len(batch.fetched) == 1
    waiting = dict.fromkeys(("evt_1", "evt_2"), Known.WAITING)
    assert await store.known("default", ["evt_1", "evt_2"]) == waiting


@with_bodies
async def a_kept_delivery_is_known_as_dead_when_its_lease_ends(bench: Bench) -> None:
    store = bench.store
    await store.keep(await _claim(store, "evt_1"), delivery("evt_1"))
    assert await store.known("default", ["evt_1"]) == {"evt_1": Known.IN_FLIGHT}
    bench.clock.advance(LEASE + 1)
    assert await store.known("default", ["evt_1"]) == {"evt_1": Known.DEAD}


@every_store
async def an_event_whose_lease_ran_out_is_known_as_failed(bench: Bench) -> None:
    store = bench.store
    await _claim(store, "evt_1")
    bench.clock.advance(LEASE + 1)
    assert await store.known("default", ["evt_1"]) == {"evt_1": Known.FAILED}


@every_store
async def a_done_event_is_unknown_after_its_retention(bench: Bench) -> None:
    store = bench.store
    await store.complete(await _claim(store, "evt_1"))
    bench.clock.advance(RETENTION + 86_400)
    assert await store.known("default", ["evt_1"]) == {}


@every_store
async def the_same_id_at_another_endpoint_is_another_event(bench: Bench) -> None:
    store = bench.store
    await store.complete(await _claim(store, "evt_1"))
    assert await store.known("other", ["evt_1"]) == {}


@every_store
async def one_call_asks_for_1200_events(bench: Bench) -> None:
    store = bench.store
    await store.complete(await _claim(store, "evt_1199"))
    found = await store.known("default", [f"evt_{number}" for number in range(1200)])
    assert found == {"evt_1199": Known.DONE}


LONG = delivery("msg_" + "é1" * 254)


NUMBERS = [1e300, -1e300, -1.0, math.inf, -math.inf, math.nan]


async def _look_at_all(store: Store) -> None:
    """Call every method that reads."""
    await store.stats()
    await store.stats(endpoint="default")
    for dead in await store.dead_letters():
        assert await store.dead_letter(dead.delivery.key) is not None
    if isinstance(store, InboxStore):
        for entry in await store.entries():
            assert await store.entry(entry.delivery.key) is not None


@every_store
async def an_id_of_512_characters_is_handled_once(bench: Bench) -> None:
    store = bench.store
    assert len(LONG.event_id) == 512
    other = LONG._replace(event_id=LONG.event_id[:-1] + "2")
    owned = await claim(store, LONG.key)
    await claim(store, other.key)
    assert await store.extend(owned, frozenset({"a"})) is Ownership.HELD
    await store.release(owned, NONE, "it failed")
    again = await claim(store, LONG.key)
    assert (again.attempt, again.finished) == (2, frozenset({"a"}))
    await store.complete(again)
    assert await store.claim(LONG.key, new_token(), LEASE) == Done()


@every_store
async def an_id_of_512_characters_is_listed_as_a_dead_letter(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store, LONG.key)
    await store.bury(owned, DeadReason.REJECTED, error="it failed", delivery=LONG)
    listed = only(await store.dead_letters())
    assert listed.delivery.event_id == LONG.event_id
    assert await store.discard(LONG.key)


@with_inbox
async def an_id_of_512_characters_waits_in_the_inbox(bench: Bench) -> None:
    store = bench.inbox
    assert await store.enqueue(LONG, new_token()) == Stored()
    batch = await store.fetch(1, LEASE, endpoint="default", worker="w", token=new_token())
    assert [fetched.delivery for fetched in batch.fetched] == [LONG]
    assert [entry.delivery.event_id for entry in await store.entries()] == [LONG.event_id]


@every_store.each(number=NUMBERS)
async def no_odd_number_that_is_stored_breaks_a_listing(bench: Bench, number: float) -> None:
    store = bench.store
    dead = delivery("evt_dead", received_unix=number)
    with suppress(StoreError):
        owned = await claim(store, dead.key)
        await store.bury(owned, DeadReason.REJECTED, error="it failed", delivery=dead)
    if isinstance(store, InboxStore):
        with suppress(StoreError):
            await store.enqueue(delivery("evt_odd", received_unix=number), new_token())
        await store.enqueue(delivery("evt_deferred"), new_token())
        batch = await store.fetch(9, LEASE, endpoint="default", worker="w", token=new_token())
        for fetched in batch.fetched:
            assert await store.retry(fetched.claim, number) is Ownership.HELD
    await _look_at_all(store)
    bench.clock.advance(LEASE)
    await _look_at_all(store)
