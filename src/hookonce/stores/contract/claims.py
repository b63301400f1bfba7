"""Rules for claims: one caller gets the claim, a repeated call gets it again, leases end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from ..values import (
    Claimed,
    Done,
    InFlight,
    Ownership,
    new_token,
)
from .bench import (
    HOUR,
    KEY,
    LEASE,
    NONE,
    Bench,
    claim,
    claimed_by_another,
    every_store,
    key_of,
    only,
)


@every_store
async def one_of_200_concurrent_claims_of_an_event_is_granted(bench: Bench) -> None:
    store = bench.store
    tokens = [new_token() for _ in range(200)]
    results = await asyncio.gather(*(store.claim(KEY, token, LEASE) for token in tokens))
    winners = [
        (token, result)
        for token, result in zip(tokens, results, strict=True)
        if isinstance(result, Claimed)
    ]
    token, won = only(winners)
    assert won == Claimed(KEY, token, 1, NONE, LEASE)
    assert results.count(InFlight(bench.clock() + LEASE)) == 199


@every_store
async def one_of_the_concurrent_claims_of_each_event_is_granted(bench: Bench) -> None:
    store = bench.store
    keys = [key_of(f"evt_{n}") for n in range(40)] * 20
    random.Random(7).shuffle(keys)  # noqa: S311 - not used for secrets
    results = await asyncio.gather(*(store.claim(key, new_token(), LEASE) for key in keys))
    winners = Counter(result.key for result in results if isinstance(result, Claimed))
    assert winners == Counter(set(keys))


@every_store.each(ending=["released", "expired"])
async def one_of_200_concurrent_claims_gets_the_next_attempt(bench: Bench, ending: str) -> None:
    store = bench.store
    first = await claim(store)
    if ending == "released":
        await store.release(first, NONE)
    else:
        bench.clock.advance(LEASE)
    results = await asyncio.gather(*(store.claim(KEY, new_token(), LEASE) for _ in range(200)))
    won = only(result for result in results if isinstance(result, Claimed))
    assert won.attempt == 2


@every_store
async def concurrent_claims_of_a_done_event_are_all_answered_done(bench: Bench) -> None:
    store = bench.store
    await store.complete(await claim(store))
    results = await asyncio.gather(*(store.claim(KEY, new_token(), LEASE) for _ in range(200)))
    assert results == [Done()] * 200


@every_store
async def a_claim_repeated_with_its_token_is_the_same_claim(bench: Bench) -> None:
    store = bench.store
    first = await claim(store)
    bench.clock.advance(LEASE - 1)
    assert await store.claim(KEY, first.token, LEASE) == first


@every_store
async def concurrent_repeats_are_the_same_first_attempt(bench: Bench) -> None:
    store = bench.store
    token = new_token()
    results = await asyncio.gather(*(store.claim(KEY, token, LEASE) for _ in range(200)))
    assert results == [Claimed(KEY, token, 1, NONE, LEASE)] * 200


@every_store
async def a_repeated_claim_shows_the_finished_handlers(bench: Bench) -> None:
    store = bench.store
    first = await claim(store)
    await store.extend(first, frozenset({"alert"}))
    again = await store.claim(KEY, first.token, LEASE)
    assert isinstance(again, Claimed)
    assert (again.attempt, again.finished) == (1, frozenset({"alert"}))


@every_store
async def a_repeated_claim_does_not_lengthen_the_lease(bench: Bench) -> None:
    store = bench.store
    first = await claim(store)
    bench.clock.advance(LEASE / 2)
    await store.claim(KEY, first.token, LEASE)
    bench.clock.advance(LEASE / 2)
    assert await claimed_by_another(store) is Claimed


@every_store
async def after_the_lease_the_same_token_starts_a_new_attempt(bench: Bench) -> None:
    store = bench.store
    first = await claim(store)
    bench.clock.advance(LEASE)
    again = await store.claim(KEY, first.token, LEASE)
    assert isinstance(again, Claimed)
    assert again.attempt == 2


@every_store
async def a_released_token_owns_nothing(bench: Bench) -> None:
    store = bench.store
    first = await claim(store)
    await store.release(first, NONE)
    assert await store.extend(first) is Ownership.LOST
    again = await store.claim(KEY, first.token, LEASE)
    assert isinstance(again, Claimed)
    assert again.attempt == 2


@every_store
async def an_event_is_in_flight_until_its_lease_ends_and_then_free(bench: Bench) -> None:
    store = bench.store
    await claim(store)
    until = bench.clock() + LEASE
    bench.clock.advance(LEASE - 0.5)
    assert await store.claim(KEY, new_token(), LEASE) == InFlight(until)
    bench.clock.advance(0.5)
    assert (await claim(store)).attempt == 2


@every_store
async def each_claim_has_the_lease_it_asked_for(bench: Bench) -> None:
    store = bench.store
    short, long = key_of("short"), key_of("long")
    assert (await claim(store, short, lease=5.0)).lease_seconds == 5.0
    assert (await claim(store, long, lease=500.0)).lease_seconds == 500.0
    bench.clock.advance(5)
    assert await claimed_by_another(store, short) is Claimed
    bench.clock.advance(494)
    assert await claimed_by_another(store, long) is InFlight
    bench.clock.advance(1)
    assert await claimed_by_another(store, long) is Claimed


@every_store
async def expired_and_released_claims_count_as_attempts(bench: Bench) -> None:
    store = bench.store
    assert (await claim(store)).attempt == 1
    bench.clock.advance(LEASE)
    second = await claim(store)
    assert second.attempt == 2
    await store.release(second, NONE, "it failed")
    assert (await claim(store)).attempt == 3
    bench.clock.advance(LEASE)
    assert (await claim(store)).attempt == 4


@every_store
async def an_extension_restarts_the_lease(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    for _ in range(5):
        bench.clock.advance(LEASE - 1)
        assert await store.extend(owned) is Ownership.HELD
    assert await store.claim(KEY, new_token(), LEASE) == InFlight(bench.clock() + LEASE)
    bench.clock.advance(LEASE)
    assert await claimed_by_another(store) is Claimed


@every_store
async def a_late_extension_holds_if_no_other_caller_has_claimed(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    bench.clock.advance(LEASE + 5)
    assert await store.extend(owned) is Ownership.HELD
    assert await claimed_by_another(store) is InFlight


@every_store
async def a_clock_that_is_set_back_makes_no_lease_longer(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    bench.clock.advance(-5 * HOUR)
    assert await store.claim(KEY, new_token(), LEASE) == InFlight(bench.clock() + LEASE)
    bench.clock.advance(LEASE - 1)
    assert await claimed_by_another(store) is InFlight
    bench.clock.advance(1)
    assert (await claim(store)).attempt == 2
    assert await store.extend(owned) is Ownership.LOST


@every_store
async def a_clock_that_is_set_back_leaves_the_claim_to_its_owner(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    bench.clock.advance(-5 * HOUR)
    assert await store.claim(KEY, owned.token, LEASE) == owned
    assert await store.extend(owned) is Ownership.HELD
    bench.clock.advance(LEASE - 1)
    assert await claimed_by_another(store) is InFlight
    await store.complete(owned)
    assert await claimed_by_another(store) is Done


@every_store
async def a_clock_that_is_set_back_keeps_done_events_done(bench: Bench) -> None:
    store = bench.store
    await store.complete(await claim(store))
    bench.clock.advance(-5 * HOUR)
    assert await claimed_by_another(store) is Done


@every_store
async def a_clock_that_is_set_forward_ends_leases_and_fences_the_old_owner(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    bench.clock.advance(5 * HOUR)
    assert (await claim(store)).attempt == 2
    assert await store.release(owned, NONE) is Ownership.LOST
    bench.clock.advance(-5 * HOUR)
    assert await claimed_by_another(store) is InFlight
    bench.clock.advance(LEASE)
    assert (await claim(store)).attempt == 3
