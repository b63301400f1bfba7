"""Rules for two stores on the same data, and for calls that are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ..protocols import InboxStore
from ..values import (
    Acquired,
    Busy,
    Claimed,
    DeadReason,
    Done,
    InFlight,
    KeyLock,
    Ownership,
    Stored,
    Token,
    Waiting,
    new_token,
)
from .bench import (
    DELIVERY,
    KEY,
    LEASE,
    NONE,
    Bench,
    bury,
    claim,
    dead_letter_of,
    delivery,
    enqueue,
    every_store,
    fetch,
    fetch_one,
    key_of,
    with_bodies,
    with_inbox,
)

_KEY_LOCK = KeyLock("default", "app.handlers.sync", "chan_1")


@every_store
async def a_claim_holds_for_all_stores_on_the_data(bench: Bench) -> None:
    if not bench.shares_data:
        return
    one, other = bench.store, bench.open()
    owned = await claim(one)
    assert await other.claim(KEY, new_token(), LEASE) == InFlight(bench.clock() + LEASE)
    assert await other.claim(KEY, owned.token, LEASE) == owned
    assert await other.extend(owned, frozenset({"a"})) is Ownership.HELD
    assert await one.release(owned, NONE, "it failed") is Ownership.HELD
    again = await claim(other)
    assert (again.attempt, again.finished) == (2, frozenset({"a"}))
    await other.complete(again)
    assert await one.claim(KEY, new_token(), LEASE) == Done()


@every_store
async def one_of_many_claims_by_two_stores_is_granted(bench: Bench) -> None:
    if not bench.shares_data:
        return
    stores = bench.store, bench.open()
    results = await asyncio.gather(
        *(stores[number % 2].claim(KEY, new_token(), LEASE) for number in range(100))
    )
    assert sum(isinstance(result, Claimed) for result in results) == 1


@every_store
async def a_key_lock_holds_for_all_stores_on_the_data(bench: Bench) -> None:
    if not bench.shares_data:
        return
    one, other, token = bench.store, bench.open(), new_token()
    assert await one.acquire_key_lock(_KEY_LOCK, token, LEASE) == Acquired()
    busy = await other.acquire_key_lock(_KEY_LOCK, new_token(), LEASE, waiting=KEY)
    assert busy == Busy(bench.clock() + LEASE)
    assert await other.release_key_lock(_KEY_LOCK, token) == KEY
    assert await one.acquire_key_lock(_KEY_LOCK, new_token(), LEASE) == Acquired()


@every_store
async def the_data_outlives_the_store(bench: Bench) -> None:
    if not bench.shares_data:
        return
    await bench.store.complete(await claim(bench.store, key_of("evt_done")))
    owned = await claim(bench.store, key_of("evt_live"))
    await bury(bench.store, delivery("evt_dead"), error="it failed")
    await bench.aclose()
    store = bench.store  # the bench opens a new store
    states = await store.known("default", ["evt_done", "evt_live", "evt_dead"])
    assert states == {"evt_done": "done", "evt_live": "in_flight", "evt_dead": "dead"}
    assert await store.extend(owned) is Ownership.HELD
    dead = await dead_letter_of(store, key_of("evt_dead"))
    assert (dead.reason, dead.error) == (DeadReason.EXHAUSTED, "it failed")
    if store.keeps_bodies:
        assert dead.delivery == delivery("evt_dead")


@with_inbox
async def the_inbox_outlives_the_store(bench: Bench) -> None:
    if not bench.shares_data:
        return
    await enqueue(bench.inbox)
    await bench.inbox.retry((await fetch_one(bench.inbox)).claim, 60.0, frozenset({"a"}))
    await bench.aclose()
    assert await enqueue(bench.inbox) == Waiting()
    bench.clock.advance(61)
    fetched = await fetch_one(bench.inbox)
    assert fetched.delivery == DELIVERY
    assert (fetched.claim.attempt, fetched.claim.finished) == (2, frozenset({"a"}))


@with_inbox
async def an_event_of_one_store_is_fetched_by_another(bench: Bench) -> None:
    if not bench.shares_data:
        return
    one, other = bench.inbox, bench.open()
    assert isinstance(other, InboxStore)
    await enqueue(one)
    fetched = await fetch_one(other)
    assert fetched.delivery == DELIVERY
    assert (await fetch(one)).fetched == ()
    await one.complete(fetched.claim)
    assert await enqueue(other) == Done()


async def _cancel(call: Coroutine[Any, Any, object], turns: int) -> None:
    """Cancel a call after ``turns`` turns of the event loop, and wait until it has ended."""
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})


@every_store.each(turns=[0, 1, 2, 5])
async def a_cancelled_claim_was_granted_or_not(bench: Bench, turns: int) -> None:
    """A repeated call with the same token gets attempt 1, whether or not the first was granted."""
    token = new_token()
    await _cancel(bench.store.claim(KEY, token, LEASE), turns)
    assert (await claim(bench.store, token=token)).attempt == 1


@every_store.each(turns=[0, 1, 2, 5])
async def a_cancelled_completion_may_be_repeated(bench: Bench, turns: int) -> None:
    owned = await claim(bench.store)
    await _cancel(bench.store.complete(owned), turns)
    await bench.store.complete(owned)
    assert await bench.store.claim(KEY, new_token(), LEASE) == Done()


@every_store.each(turns=[0, 1, 2, 5])
async def a_cancelled_acquire_was_granted_or_not(bench: Bench, turns: int) -> None:
    token = new_token()
    await _cancel(bench.store.acquire_key_lock(_KEY_LOCK, token, LEASE), turns)
    assert await bench.store.acquire_key_lock(_KEY_LOCK, token, LEASE) == Acquired()
    assert await bench.store.release_key_lock(_KEY_LOCK, token) is None
    assert await bench.store.acquire_key_lock(_KEY_LOCK, new_token(), LEASE) == Acquired()


@with_bodies.each(turns=[0, 1, 2, 5])
async def a_cancelled_burial_was_done_or_not(bench: Bench, turns: int) -> None:
    owned = await claim(bench.store)
    call = bench.store.bury(owned, DeadReason.REJECTED, error="no", delivery=DELIVERY)
    await _cancel(call, turns)
    await bench.store.bury(owned, DeadReason.REJECTED, error="no", delivery=DELIVERY)
    dead = await dead_letter_of(bench.store)
    assert (dead.delivery, dead.attempts, len(dead.history)) == (DELIVERY, 1, 1)


@with_inbox.each(turns=[0, 1, 2, 5])
async def a_cancelled_enqueue_was_done_or_not(bench: Bench, turns: int) -> None:
    token = Token("0xsender")
    await _cancel(bench.inbox.enqueue(DELIVERY, token), turns)
    assert await bench.inbox.enqueue(DELIVERY, token) == Stored()
    assert (await bench.inbox.stats()).depth == 1


@with_inbox.each(turns=[0, 1, 2, 5])
async def a_cancelled_fetch_loses_no_event(bench: Bench, turns: int) -> None:
    """A worker repeats a cancelled fetch with the same token, and gets the event.

    The store may have claimed the event before the cancellation.
    """
    await enqueue(bench.inbox)
    token = new_token()
    call = bench.inbox.fetch(1, LEASE, endpoint="default", worker="worker", token=token)
    await _cancel(call, turns)
    batch = await fetch(bench.inbox, 1, token=token)
    assert [(one.delivery, one.claim.attempt) for one in batch.fetched] == [(DELIVERY, 1)]
