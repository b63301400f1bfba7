"""Every backend's claims: one winner, the same claim for its own token, leases that end.

The stores come from conftest.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest
from freezegun import freeze_time

from hookonce.clock import Clock
from hookonce.stores.memory import MemoryStore
from hookonce.stores.protocols import Store
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import (
    Claimed,
    DeliveryKey,
    Done,
    InFlight,
    Ownership,
    delivery_key,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 30.0
HOURS = 3600.0
KEY = delivery_key("default", "evt_1")

PassTime = Callable[[float], None]


async def claim(store: Store, key: DeliveryKey = KEY, *, lease: float = LEASE) -> Claimed:
    """Claim what must be free."""
    result = await store.claim(key, new_token(), lease)
    assert isinstance(result, Claimed)
    return result


async def look(store: Store, key: DeliveryKey = KEY) -> type[object]:
    """Return how a claim by somebody else ends; it takes the event if it is free."""
    return type(await store.claim(key, new_token(), LEASE))


class TestRaces:
    async def test_200_racing_claims_of_one_key_have_exactly_one_winner(
        self, store: Store, clock: Clock
    ) -> None:
        tokens = [new_token() for _ in range(200)]
        results = await asyncio.gather(*(store.claim(KEY, token, LEASE) for token in tokens))
        winners = [
            (token, result)
            for token, result in zip(tokens, results, strict=True)
            if isinstance(result, Claimed)
        ]
        [(token, won)] = winners
        assert won == Claimed(KEY, token, 1, frozenset(), LEASE)
        assert results.count(InFlight(clock() + LEASE)) == 199

    async def test_racing_claims_of_many_keys_have_one_winner_for_each_key(
        self, store: Store
    ) -> None:
        keys = [delivery_key("default", f"evt_{n}") for n in range(40)] * 20
        random.Random(7).shuffle(keys)
        results = await asyncio.gather(*(store.claim(key, new_token(), LEASE) for key in keys))
        winners = Counter(result.key for result in results if isinstance(result, Claimed))
        assert winners == Counter(set(keys))

    @pytest.mark.parametrize("ending", ["released", "expired"])
    async def test_the_race_for_the_next_attempt_has_one_winner_too(
        self, store: Store, pass_time: PassTime, ending: str
    ) -> None:
        first = await claim(store)
        if ending == "released":
            await store.release(first, frozenset())
        else:
            pass_time(LEASE)
        results = await asyncio.gather(*(store.claim(KEY, new_token(), LEASE) for _ in range(200)))
        [won] = [result for result in results if isinstance(result, Claimed)]
        assert won.attempt == 2

    async def test_nobody_wins_a_race_for_a_done_event(self, store: Store) -> None:
        await store.complete(await claim(store))
        results = await asyncio.gather(*(store.claim(KEY, new_token(), LEASE) for _ in range(200)))
        assert results == [Done()] * 200


class TestOwnToken:
    """A client may repeat a command whose reply was lost."""

    async def test_a_claim_repeated_with_its_own_token_is_the_same_claim(
        self, store: Store, pass_time: PassTime
    ) -> None:
        first = await claim(store)
        pass_time(LEASE - 1)
        assert await store.claim(KEY, first.token, LEASE) == first

    async def test_200_repeats_at_once_are_all_the_same_first_attempt(self, store: Store) -> None:
        token = new_token()
        results = await asyncio.gather(*(store.claim(KEY, token, LEASE) for _ in range(200)))
        assert results == [Claimed(KEY, token, 1, frozenset(), LEASE)] * 200

    async def test_a_repeated_claim_shows_the_checkpoints_of_the_live_one(
        self, store: Store
    ) -> None:
        first = await claim(store)
        await store.extend(first, frozenset({"alert"}))
        again = await store.claim(KEY, first.token, LEASE)
        assert isinstance(again, Claimed)
        assert (again.attempt, again.finished) == (1, frozenset({"alert"}))

    async def test_a_repeated_claim_does_not_lengthen_the_lease(
        self, store: Store, pass_time: PassTime
    ) -> None:
        first = await claim(store)
        pass_time(LEASE / 2)
        await store.claim(KEY, first.token, LEASE)
        pass_time(LEASE / 2)
        assert await look(store) is Claimed

    async def test_after_its_lease_the_own_token_starts_a_new_attempt(
        self, store: Store, pass_time: PassTime
    ) -> None:
        first = await claim(store)
        pass_time(LEASE)
        again = await store.claim(KEY, first.token, LEASE)
        assert isinstance(again, Claimed)
        assert again.attempt == 2

    async def test_a_released_token_is_nobody_s(self, store: Store) -> None:
        first = await claim(store)
        await store.release(first, frozenset())
        assert await store.extend(first) is Ownership.LOST
        again = await store.claim(KEY, first.token, LEASE)
        assert isinstance(again, Claimed)
        assert again.attempt == 2


class TestLeases:
    async def test_a_claim_is_in_flight_until_its_lease_ends_and_free_from_then_on(
        self, store: Store, clock: Clock, pass_time: PassTime
    ) -> None:
        await claim(store)
        until = clock() + LEASE
        pass_time(LEASE - 0.5)
        assert await store.claim(KEY, new_token(), LEASE) == InFlight(until)
        pass_time(0.5)
        assert (await claim(store)).attempt == 2

    @pytest.mark.parametrize("kind", [MemoryStore, SQLiteStore])  # a server has a clock of its own
    async def test_the_default_clock_is_the_machines_looked_up_at_the_call(
        self, kind: type[Store], tmp_path: Path
    ) -> None:
        with freeze_time("2026-01-01 12:00:00", real_asyncio=True) as frozen:
            made = MemoryStore() if kind is MemoryStore else SQLiteStore(tmp_path / "hooks.db")
            async with aclosing(made) as store:
                await claim(store)
                frozen.tick(LEASE - 1)
                assert await look(store) is InFlight
                frozen.tick(1)
                assert await look(store) is Claimed

    async def test_each_claim_has_the_lease_it_asked_for(
        self, store: Store, pass_time: PassTime
    ) -> None:
        short, long = delivery_key("default", "short"), delivery_key("default", "long")
        assert (await claim(store, short, lease=5.0)).lease == 5.0
        assert (await claim(store, long, lease=500.0)).lease == 500.0
        pass_time(5)
        assert await look(store, short) is Claimed
        pass_time(494)
        assert await look(store, long) is InFlight
        pass_time(1)
        assert await look(store, long) is Claimed

    async def test_expired_and_released_claims_count_as_attempts(
        self, store: Store, pass_time: PassTime
    ) -> None:
        assert (await claim(store)).attempt == 1
        pass_time(LEASE)
        second = await claim(store)
        assert second.attempt == 2
        await store.release(second, frozenset(), "it failed")
        assert (await claim(store)).attempt == 3
        pass_time(LEASE)
        assert (await claim(store)).attempt == 4

    async def test_an_extension_starts_the_lease_anew(
        self, store: Store, clock: Clock, pass_time: PassTime
    ) -> None:
        owned = await claim(store)
        for _ in range(5):
            pass_time(LEASE - 1)
            assert await store.extend(owned) is Ownership.HELD
        assert await store.claim(KEY, new_token(), LEASE) == InFlight(clock() + LEASE)
        pass_time(LEASE)
        assert await look(store) is Claimed

    async def test_a_late_extension_holds_as_long_as_nobody_has_taken_over(
        self, store: Store, pass_time: PassTime
    ) -> None:
        owned = await claim(store)
        pass_time(LEASE + 5)
        assert await store.extend(owned) is Ownership.HELD
        assert await look(store) is InFlight

    async def test_a_clock_set_back_keeps_no_lease_longer_than_it_lasts(
        self, store: Store, clock: Clock, pass_time: PassTime
    ) -> None:
        owned = await claim(store)
        pass_time(-5 * HOURS)
        assert await store.claim(KEY, new_token(), LEASE) == InFlight(clock() + LEASE)
        pass_time(LEASE - 1)
        assert await look(store) is InFlight
        pass_time(1)
        assert (await claim(store)).attempt == 2
        assert await store.extend(owned) is Ownership.LOST

    async def test_a_clock_set_back_leaves_the_claim_to_its_owner(
        self, store: Store, pass_time: PassTime
    ) -> None:
        owned = await claim(store)
        pass_time(-5 * HOURS)
        assert await store.claim(KEY, owned.token, LEASE) == owned
        assert await store.extend(owned) is Ownership.HELD
        pass_time(LEASE - 1)
        assert await look(store) is InFlight
        await store.complete(owned)
        assert await look(store) is Done

    async def test_a_clock_set_back_keeps_done_events_done(
        self, store: Store, pass_time: PassTime
    ) -> None:
        await store.complete(await claim(store))
        pass_time(-5 * HOURS)
        assert await look(store) is Done

    async def test_a_clock_set_forward_ends_leases_and_fences_the_old_owner(
        self, store: Store, pass_time: PassTime
    ) -> None:
        owned = await claim(store)
        pass_time(5 * HOURS)
        assert (await claim(store)).attempt == 2
        assert await store.release(owned, frozenset()) is Ownership.LOST
        pass_time(-5 * HOURS)
        assert await look(store) is InFlight
        pass_time(LEASE)
        assert (await claim(store)).attempt == 3
