"""The memory store is bounded, reports what it forgets, and never forgets unfinished events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import pytest

from hookonce.clock import Clock
from hookonce.errors import StoreError
from hookonce.stores.memory import MemoryStore
from hookonce.stores.protocols import DEFAULT_RETENTION
from hookonce.stores.values import (
    Acquired,
    Claimed,
    Dead,
    DeadReason,
    DeliveryKey,
    Done,
    InFlight,
    KeyLock,
    Ownership,
    Stale,
    Watermark,
    delivery_key,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 30.0
RETENTION = DEFAULT_RETENTION.total_seconds()

PassTime = Callable[[float], None]


def keys(count: int, name: str = "evt") -> list[DeliveryKey]:
    return [delivery_key("default", f"{name}_{n}") for n in range(count)]


async def claim(store: MemoryStore, key: DeliveryKey) -> Claimed:
    """Claim an event that must be free."""
    result = await store.claim(key, new_token(), LEASE)
    assert isinstance(result, Claimed)
    return result


async def complete(store: MemoryStore, done: Iterable[DeliveryKey]) -> None:
    for key in done:
        await store.complete(await claim(store, key))


async def look(store: MemoryStore, key: DeliveryKey) -> type[object]:
    return type(await store.claim(key, new_token(), LEASE))


async def test_a_memory_store_holds_no_more_events_than_its_limit(
    clock: Clock, pass_time: PassTime
) -> None:
    store = MemoryStore(max_records=50, clock=clock)
    await complete(store, keys(1_000))
    pass_time(RETENTION)
    assert await store.prune() == 50


async def test_a_full_memory_store_forgets_the_oldest_done_event(clock: Clock) -> None:
    store = MemoryStore(max_records=5, clock=clock)
    oldest, *others = keys(5)
    await complete(store, [oldest, *others])
    new = await claim(store, delivery_key("default", "new"))
    assert {await look(store, key) for key in others} == {Done}
    assert await store.extend(new) is Ownership.HELD
    assert await look(store, oldest) is Claimed


async def test_the_oldest_event_is_the_event_completed_first(clock: Clock) -> None:
    store = MemoryStore(max_records=2, clock=clock)
    first, second, new = keys(3)
    claimed_first = await claim(store, first)
    await store.complete(await claim(store, second))
    await store.complete(claimed_first)
    await claim(store, new)
    assert await look(store, first) is Done


async def test_an_event_that_is_completed_again_is_the_newest(
    clock: Clock, pass_time: PassTime
) -> None:
    store = MemoryStore(max_records=3, clock=clock)
    first, second, third, new = keys(4)
    claimed_first = await claim(store, first)
    await store.complete(claimed_first)
    await complete(store, [second, third])
    pass_time(RETENTION / 2)
    await store.complete(claimed_first)
    await claim(store, new)
    assert await look(store, first) is Done
    pass_time(RETENTION / 2)
    assert await store.prune() == 1
    assert await look(store, first) is Done


async def test_a_warning_names_forgotten_events_but_not_each_time(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore(max_records=10, clock=clock)
    with caplog.at_level(logging.WARNING, logger="hookonce.store"):
        await complete(store, keys(10))
        assert caplog.messages == []
        await complete(store, keys(1, "new"))
        [message] = caplog.messages
        assert "full (10 records)" in message
        assert "forgotten 1 done event" in message
        await complete(store, keys(500, "more"))
    assert 3 <= len(caplog.messages) <= 10
    assert "forgotten 256 done events" in caplog.messages[-1]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


async def test_expired_events_are_forgotten_without_a_warning(
    clock: Clock, pass_time: PassTime, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore(max_records=10, clock=clock)
    with caplog.at_level(logging.WARNING, logger="hookonce.store"):
        await complete(store, keys(10))
        pass_time(RETENTION)
        await complete(store, keys(10, "new"))
    assert caplog.messages == []


async def test_a_full_store_refuses_a_claim_rather_than_forget_an_unfinished_event(
    clock: Clock, pass_time: PassTime
) -> None:
    store = MemoryStore(max_records=4, clock=clock)
    held, given_back, dead, expired = keys(4)
    await claim(store, expired)
    pass_time(LEASE)
    await claim(store, held)
    await store.release(await claim(store, given_back), frozenset({"a"}))
    await store.bury(await claim(store, dead), DeadReason.REJECTED)

    new = delivery_key("default", "new")
    with pytest.raises(StoreError, match="full"):
        await store.claim(new, new_token(), LEASE)

    assert await look(store, held) is InFlight
    assert await look(store, dead) is Dead
    again = await claim(store, given_back)
    assert (again.attempt, again.finished) == (2, frozenset({"a"}))
    assert (await claim(store, expired)).attempt == 2
    with pytest.raises(StoreError, match="full"):
        await store.claim(new, new_token(), LEASE)
    await store.complete(again)
    assert await look(store, new) is Claimed


async def test_a_full_store_still_settles_the_events_that_it_holds(clock: Clock) -> None:
    store = MemoryStore(max_records=3, clock=clock)
    first, second, third = [await claim(store, key) for key in keys(3)]
    with pytest.raises(StoreError):
        await store.claim(delivery_key("default", "new"), new_token(), LEASE)
    assert await store.extend(first) is Ownership.HELD
    assert await store.release(second, frozenset()) is Ownership.HELD
    assert await store.bury(third, DeadReason.REJECTED) is Ownership.HELD
    await store.complete(first)
    assert await look(store, first.key) is Done


async def test_each_new_claim_forgets_a_few_expired_events_so_that_no_claim_takes_long(
    clock: Clock, pass_time: PassTime
) -> None:
    store = MemoryStore(clock=clock)
    await complete(store, keys(1_000))
    pass_time(RETENTION)
    for key in keys(10, "new"):
        await claim(store, key)
    left = await store.prune()
    assert 900 <= left < 990

    await complete(store, keys(1_000))
    pass_time(RETENTION)
    for key in keys(1_000, "newer"):
        await claim(store, key)
    assert await store.prune() == 0


async def test_a_memory_store_forgets_released_events_after_their_retention(
    clock: Clock, pass_time: PassTime
) -> None:
    store = MemoryStore(max_records=5, clock=clock)
    for key in keys(5):
        await store.release(await claim(store, key), frozenset())
    pass_time(RETENTION)
    assert await look(store, delivery_key("default", "new")) is Claimed


async def test_memory_stores_share_nothing(clock: Clock) -> None:
    [key] = keys(1)
    await complete(MemoryStore(clock=clock), [key])
    assert await look(MemoryStore(clock=clock), key) is Claimed


@pytest.mark.parametrize("max_records", [0, -1])
def test_a_store_for_no_events_is_refused(max_records: int) -> None:
    with pytest.raises(ValueError, match="max_records"):
        MemoryStore(max_records=max_records)


async def succeed(store: MemoryStore, name: str, created_at: int) -> None:
    """Acquire and release this key lock; record the watermark of an event created at this time."""
    key_lock, token = KeyLock("default", "handler", name), new_token()
    assert await store.acquire_key_lock(key_lock, token, LEASE) == Acquired()
    await store.release_key_lock(key_lock, token, watermark=Watermark(created_at, "evt"))


async def test_watermarks_count_toward_the_limit_and_the_oldest_record_is_forgotten_first(
    clock: Clock, pass_time: PassTime
) -> None:
    store = MemoryStore(max_records=4, clock=clock)
    await succeed(store, "oldest", 5)
    pass_time(1)
    await succeed(store, "newer", 5)
    done = keys(2)
    await complete(store, done)
    await claim(store, delivery_key("default", "new"))
    assert {await look(store, key) for key in done} == {Done}
    late = Watermark(1, "evt_late")
    newer, oldest = KeyLock("default", "handler", "newer"), KeyLock("default", "handler", "oldest")
    assert await store.acquire_key_lock(newer, new_token(), LEASE, watermark=late) == Stale(
        Watermark(5, "evt")
    )
    assert await store.acquire_key_lock(oldest, new_token(), LEASE, watermark=late) == Acquired()


async def test_a_key_lock_that_was_released_without_success_is_not_remembered(clock: Clock) -> None:
    store = MemoryStore(max_records=2, clock=clock)
    for n in range(10):
        key_lock, token = KeyLock("default", "handler", str(n)), new_token()
        await store.acquire_key_lock(key_lock, token, LEASE)
        await store.release_key_lock(key_lock, token)
    for key in keys(2):
        await claim(store, key)


async def test_old_watermarks_are_pruned(clock: Clock, pass_time: PassTime) -> None:
    store = MemoryStore(clock=clock)
    for n in range(10):
        await succeed(store, str(n), n)
    pass_time(RETENTION)
    assert await store.prune() == 10
