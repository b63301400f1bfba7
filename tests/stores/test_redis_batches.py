"""The store sends concurrent calls in one batch; a fault of one call affects no other call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.redis_servers import RedisServer
from support.waiting import PATIENCE_SECONDS, until

from hookonce.errors import StoreError
from hookonce.stores.redis import RedisStore
from hookonce.stores.values import (
    Claimed,
    DeadReason,
    Delivery,
    Done,
    Full,
    InFlight,
    Ownership,
    Stored,
    delivery_key,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 30.0
KEY = delivery_key("default", "evt_1")


@pytest.fixture
async def store(valkey: RedisServer) -> AsyncIterator[RedisStore]:
    store = RedisStore(valkey.url)
    await store.open()
    yield store
    await store.aclose()


async def claim(store: RedisStore, event_id: str = "evt_1") -> Claimed:
    result = await store.claim(delivery_key("default", event_id), new_token(), LEASE)
    assert isinstance(result, Claimed)
    return result


def reset(server: RedisServer) -> None:
    with server.client() as client:
        client.config_resetstat()


async def test_claims_made_in_one_turn_of_the_loop_are_one_script_call(
    store: RedisStore, valkey: RedisServer
) -> None:
    reset(valkey)
    claims = await asyncio.gather(*(claim(store, f"evt_{n}") for n in range(200)))
    assert len({owned.key for owned in claims}) == 200
    assert valkey.calls_of("evalsha") == 1


async def test_steps_of_all_kinds_share_a_call_and_run_in_order(
    store: RedisStore, valkey: RedisServer
) -> None:
    first, second = await claim(store, "evt_1"), await claim(store, "evt_2")
    reset(valkey)
    delivery = Delivery("default", "evt_3", None, 1.0, b"\0\xff")
    results: Any = await asyncio.gather(
        store.complete(first),
        store.claim(first.key, new_token(), LEASE),
        store.release(second, frozenset()),
        store.enqueue(delivery, new_token()),
        store.fetch(1, LEASE, endpoint="default", worker="w", token=new_token()),
    )
    assert results[1:4] == [Done(), Ownership.HELD, Stored()]
    assert [taken.delivery for taken in results[4].fetched] == [delivery]
    assert valkey.calls_of("evalsha") == 1


async def test_a_step_sees_the_changes_of_earlier_steps_in_its_call(
    store: RedisStore, valkey: RedisServer
) -> None:
    reset(valkey)
    first, second = (Delivery("default", f"evt_{n}", None, 1.0, b"body") for n in (1, 2))
    results: Any = await asyncio.gather(
        store.enqueue(first, new_token(), max_depth=2),
        store.enqueue(second, new_token(), max_depth=2),
        store.enqueue(Delivery("default", "evt_3", None, 1.0, b""), new_token(), max_depth=2),
        store.stats(),
        store.claim(delivery_key("default", "evt_4"), new_token(), LEASE),
        store.complete(Claimed(first.key, new_token(), 1, frozenset(), LEASE)),
        store.enqueue(first, new_token(), max_depth=2),
        store.stats(endpoint="default"),
        store.complete(Claimed(second.key, new_token(), 1, frozenset(), LEASE)),
        store.stats(),
        store.enqueue(Delivery("default", "evt_5", None, 1.0, b"body"), new_token()),
    )
    assert results[:3] == [Stored(), Stored(), Full()]
    assert results[6] == Done()
    counted = [(one.depth, one.bytes, one.in_flight) for one in (results[3], *results[7:10:2])]
    assert counted == [(2, 8, 0), (1, 4, 1), (0, 0, 1)]
    assert valkey.calls_of("evalsha") == 1
    assert [entry.delivery.event_id for entry in await store.entries()] == ["evt_5"]


async def test_calls_made_during_a_batch_form_the_next_batch(
    store: RedisStore, valkey: RedisServer
) -> None:
    reset(valkey)

    async def worker(number: int) -> None:
        for step in range(5):
            await claim(store, f"evt_{number}_{step}")

    await asyncio.gather(*(worker(number) for number in range(50)))
    assert valkey.calls_of("evalsha") <= 15


async def test_a_batch_has_a_largest_size(store: RedisStore, valkey: RedisServer) -> None:
    reset(valkey)
    bodies = [Delivery("default", f"evt_{n}", None, 1.0, b"x" * 400_000) for n in range(8)]
    assert (
        await asyncio.gather(*(store.enqueue(one, new_token()) for one in bodies)) == [Stored()] * 8
    )
    assert valkey.calls_of("evalsha") == 4


async def test_an_error_of_one_step_fails_no_other_step(
    store: RedisStore, valkey: RedisServer
) -> None:
    held, unburied = await claim(store, "evt_1"), await claim(store, "evt_2")
    with valkey.client() as client:
        client.hset("{hookonce:0}:a:default:broken", "not", "a string")
    results = await asyncio.gather(
        store.claim(delivery_key("default", "broken"), new_token(), LEASE),
        store.extend(held),
        store.bury(unburied, DeadReason.REJECTED),
        store.claim(delivery_key("default", "evt_3"), new_token(), LEASE),
        return_exceptions=True,
    )
    assert isinstance(results[0], StoreError)
    assert "WRONGTYPE" in str(results[0])
    assert results[1] is Ownership.HELD
    assert isinstance(results[2], StoreError)
    assert isinstance(results[3], Claimed)
    assert await store.extend(unburied) is Ownership.HELD
    with valkey.client() as client:
        client.delete("{hookonce:0}:a:default:broken")


async def test_a_failing_listener_to_batches_delays_no_answer(
    store: RedisStore,
) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))

    def fail(_: int, __: float) -> None:
        raise ZeroDivisionError

    store.flushes.add(fail)
    # Many more calls than fit into one batch; the calls beyond it must not wait for ever.
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*(claim(store, f"evt_{n}") for n in range(600)))
    assert {type(fault["exception"]) for fault in faults} == {ZeroDivisionError}


async def test_the_script_may_be_forgotten_by_the_server_at_any_time(
    store: RedisStore, valkey: RedisServer
) -> None:
    owned = await claim(store)
    for _ in range(2):
        with valkey.client() as client:
            client.script_flush()
        assert await store.extend(owned) is Ownership.HELD


async def test_a_claim_that_is_cancelled_before_its_turn_is_not_made(
    store: RedisStore, valkey: RedisServer
) -> None:
    with valkey.client() as client:
        client.client_pause(200)
        first = asyncio.create_task(claim(store, "evt_0"))
        await asyncio.sleep(0.02)  # the first batch is in flight
        others = [asyncio.create_task(claim(store, f"evt_{n}")) for n in (1, 2)]
        await asyncio.sleep(0.02)
        others[0].cancel()
        await asyncio.wait([*others, first])
    assert others[0].cancelled()
    assert isinstance(others[1].result(), Claimed)
    assert (await claim(store, "evt_1")).attempt == 1


async def test_a_completion_is_made_although_its_caller_is_cancelled(
    store: RedisStore, valkey: RedisServer
) -> None:
    owned = await claim(store)
    with valkey.client() as client:
        client.client_pause(200)
        first = asyncio.create_task(claim(store, "evt_0"))
        await asyncio.sleep(0.02)
        completion = asyncio.create_task(store.complete(owned))
        await asyncio.sleep(0.02)
        completion.cancel()
        await asyncio.wait([completion, first])
    assert completion.cancelled()
    assert await store.claim(KEY, new_token(), LEASE) == Done()


async def test_a_cancelled_call_cancels_no_other_call(
    store: RedisStore, valkey: RedisServer
) -> None:
    with valkey.client() as client:
        client.client_pause(300)

        async def impatient() -> None:
            async with asyncio.timeout(0.05):
                await claim(store, "evt_1")

        results = await asyncio.gather(impatient(), claim(store, "evt_2"), return_exceptions=True)
    assert isinstance(results[0], TimeoutError)
    assert isinstance(results[1], Claimed)
    assert isinstance(await store.claim(KEY, new_token(), LEASE), InFlight)


async def test_closing_finishes_running_calls(store: RedisStore) -> None:
    claims = [asyncio.create_task(claim(store, f"evt_{n}")) for n in range(5)]
    await asyncio.sleep(0)
    await store.aclose()
    assert [type(one) for one in await asyncio.gather(*claims)] == [Claimed] * 5


async def test_nothing_is_left_running_or_open_after_closing(valkey: RedisServer) -> None:
    before = asyncio.all_tasks()
    store = RedisStore(valkey.url)
    await claim(store)
    await store.wait("default", 0.05)
    await store.aclose()
    assert asyncio.all_tasks() == before

    def only_the_tests_own() -> bool:
        with valkey.client() as client:
            return len(client.client_list()) == 1

    await until(only_the_tests_own)


async def test_a_connection_is_kept_for_the_next_call_and_replaced_when_it_is_cut(
    store: RedisStore, valkey: RedisServer
) -> None:
    def connections() -> set[str]:
        with valkey.client() as client:
            own = str(client.client_id())
            return {one["id"] for one in client.client_list()} - {own}

    await claim(store, "first")
    kept = connections()
    await claim(store, "second")
    assert connections() == kept
    with valkey.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    await claim(store, "third")
    assert connections().isdisjoint(kept)


def test_a_store_may_be_used_in_one_loop_after_another(valkey: RedisServer) -> None:
    store = RedisStore(valkey.url)

    async def use(*, close: bool) -> type[object]:
        result = await store.claim(KEY, new_token(), LEASE)
        if close:
            await store.aclose()
        return type(result)

    assert asyncio.run(use(close=True)) is Claimed
    assert asyncio.run(use(close=True)) is InFlight
