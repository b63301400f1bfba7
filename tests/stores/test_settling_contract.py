"""How every backend settles claims, whom it lets settle them, and how long it remembers.

The stores come from conftest; what a backend may leave out is asked of ``Store.keeps_bodies``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from datetime import timedelta

import pytest

from hookonce.errors import StoreError
from hookonce.stores.protocols import DEFAULT_RETENTION, Store
from hookonce.stores.values import (
    Claimed,
    Dead,
    DeadReason,
    Delivery,
    DeliveryKey,
    Done,
    InFlight,
    Ownership,
    StoreStats,
    Token,
    delivery_key,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 30.0
HOURS = 3600.0
RETENTION = DEFAULT_RETENTION.total_seconds()
DELIVERY = Delivery("default", "evt_1", "post.target.failed", 1_700_000_000.0, b'{"id": "evt_1"}')
KEY = DELIVERY.key

NONE: frozenset[str] = frozenset()

PassTime = Callable[[float], None]


async def claim(store: Store, key: DeliveryKey = KEY, *, lease: float = LEASE) -> Claimed:
    """Claim what must be free."""
    result = await store.claim(key, new_token(), lease)
    assert isinstance(result, Claimed)
    return result


async def look(store: Store, key: DeliveryKey = KEY) -> type[object]:
    """Return how a claim by somebody else ends; it takes the event if it is free."""
    return type(await store.claim(key, new_token(), LEASE))


class TestFencing:
    @pytest.mark.parametrize("step", ["extend", "release", "keep", "bury"])
    @pytest.mark.parametrize("after", ["takeover", "release", "completion", "burial", "nothing"])
    async def test_only_the_owner_extends_releases_keeps_and_buries(
        self, store: Store, pass_time: PassTime, step: str, after: str
    ) -> None:
        if step == "keep" and not store.keeps_bodies:
            pytest.skip("this store refuses to keep")
        stale = await claim(store)
        match after:
            case "takeover":
                pass_time(LEASE)
                owner = await claim(store)
            case "release":
                await store.release(stale, frozenset({"mine"}))
            case "completion":
                await store.complete(stale)
            case "burial":
                await store.bury(stale, DeadReason.REJECTED, delivery=DELIVERY)
            case _:
                stale = Claimed(KEY, Token("nobody's"), 1, frozenset(), LEASE)
        before = await store.stats(), await store.dead_letter(KEY)
        outstanding = frozenset({"stale"})

        match step:
            case "extend":
                ownership = await store.extend(stale, NONE, outstanding)
            case "release":
                ownership = await store.release(
                    stale, NONE, "stale", outstanding=outstanding, began=False
                )
            case "keep":
                ownership = await store.keep(stale, DELIVERY)
            case _:
                ownership = await store.bury(
                    stale,
                    DeadReason.EXHAUSTED,
                    error="stale",
                    outstanding=outstanding,
                    delivery=DELIVERY,
                )

        assert ownership is Ownership.LOST
        assert (await store.stats(), await store.dead_letter(KEY)) == before
        if after == "takeover":
            assert await store.claim(KEY, owner.token, LEASE) == owner
            pass_time(LEASE)
        if after in {"takeover", "release"}:
            later = await claim(store)
            assert (later.attempt, later.outstanding) == (3 if after == "takeover" else 2, NONE)

    async def test_the_owner_who_took_over_holds_every_step(
        self, store: Store, pass_time: PassTime
    ) -> None:
        stale = await claim(store)
        pass_time(LEASE)
        owner = await claim(store)
        assert await store.release(stale, frozenset()) is Ownership.LOST
        assert await store.extend(owner) is Ownership.HELD
        assert await store.release(owner, frozenset()) is Ownership.HELD


class TestCompletion:
    async def test_a_completed_event_is_done_for_everybody(self, store: Store) -> None:
        owned = await claim(store)
        await store.complete(owned)
        assert await store.claim(KEY, new_token(), LEASE) == Done()
        assert await store.claim(KEY, owned.token, LEASE) == Done()

    async def test_a_completion_may_be_repeated(self, store: Store) -> None:
        owned = await claim(store)
        await store.complete(owned)
        await store.complete(owned)
        assert await look(store) is Done
        assert await store.stats() == StoreStats(in_flight=0, dead=0)

    async def test_a_completion_after_the_lease_counts(
        self, store: Store, pass_time: PassTime
    ) -> None:
        owned = await claim(store)
        pass_time(LEASE + 5)
        await store.complete(owned)
        assert await look(store) is Done

    async def test_a_stale_owners_completion_wins_over_the_present_owner(
        self, store: Store, pass_time: PassTime
    ) -> None:
        stale = await claim(store)
        pass_time(LEASE)
        owner = await claim(store)
        await store.complete(stale)
        assert await store.extend(owner) is Ownership.LOST
        assert await store.release(owner, frozenset(), "failed") is Ownership.LOST
        assert await look(store) is Done

    async def test_a_completion_after_the_release_counts(self, store: Store) -> None:
        owned = await claim(store)
        await store.release(owned, frozenset())
        await store.complete(owned)
        assert await look(store) is Done

    async def test_a_stale_owners_completion_wins_over_a_burial(
        self, store: Store, pass_time: PassTime
    ) -> None:
        stale = await claim(store)
        pass_time(LEASE)
        await store.bury(await claim(store), DeadReason.EXHAUSTED, delivery=DELIVERY)
        await store.complete(stale)
        assert await look(store) is Done
        assert await store.dead_letter(KEY) is None
        assert await store.dead_letters() == []

    async def test_endpoints_handle_the_same_event_each_for_itself(self, store: Store) -> None:
        first = await claim(store, delivery_key("first", "evt_1"))
        second = await claim(store, delivery_key("second", "evt_1"))
        await store.complete(first)
        assert await look(store, first.key) is Done
        assert await look(store, second.key) is InFlight
        await store.release(second, frozenset({"alert"}))
        assert (await claim(store, second.key)).finished == {"alert"}


class TestCheckpoints:
    async def test_a_release_frees_the_event_at_once(self, store: Store) -> None:
        assert await store.release(await claim(store), frozenset()) is Ownership.HELD
        assert (await store.stats()).in_flight == 0
        assert await look(store) is Claimed

    async def test_finished_handlers_of_all_attempts_are_remembered_together(
        self, store: Store, pass_time: PassTime
    ) -> None:
        first = await claim(store)
        assert first.finished == frozenset()
        await store.extend(first, frozenset({"a"}))
        await store.release(first, frozenset({"b"}), "c failed")
        second = await claim(store)
        assert second.finished == {"a", "b"}
        await store.extend(second, frozenset({"c"}))
        await store.extend(second)
        pass_time(LEASE)
        third = await claim(store)
        assert third.finished == {"a", "b", "c"}
        await store.release(third, frozenset())
        fourth = await claim(store)
        assert (fourth.attempt, fourth.finished) == (4, frozenset({"a", "b", "c"}))

    async def test_names_of_handlers_come_back_as_they_were(self, store: Store) -> None:
        names = frozenset({"module:f", "ünïcode 名", 'quo"te', "with,comma", "line\nbreak"})
        await store.release(await claim(store), names)
        assert (await claim(store)).finished == names

    async def test_a_completed_event_s_attempts_are_forgotten_with_its_retention(
        self, store: Store, pass_time: PassTime
    ) -> None:
        await store.complete(await claim(store))
        pass_time(RETENTION)
        again = await claim(store)
        assert (again.attempt, again.finished) == (1, frozenset())


class TestRetention:
    async def test_a_done_event_is_remembered_for_its_retention_from_its_completion(
        self, make_store: Callable[..., Store], pass_time: PassTime
    ) -> None:
        async with aclosing(make_store(retention=timedelta(hours=26))) as store:
            owned = await claim(store)
            pass_time(LEASE - 1)
            await store.complete(owned)
            pass_time(26 * HOURS - 1)
            assert await store.prune() == 0
            assert await look(store) is Done
            pass_time(1)
            assert await look(store) is Claimed
            assert await look(store) is InFlight

    async def test_prune_removes_exactly_what_is_over(
        self, store: Store, pass_time: PassTime
    ) -> None:
        def keys(kind: str) -> list[DeliveryKey]:
            return [delivery_key("default", f"{kind}_{n}") for n in range(10)]

        for kind in ("old done", "old given back", "old dead", "old live"):
            for key in keys(kind):
                owned = await claim(store, key, lease=3 * RETENTION if "live" in kind else LEASE)
                match kind:
                    case "old done":
                        await store.complete(owned)
                    case "old given back":
                        await store.release(owned, frozenset({"a"}))
                    case "old dead":
                        delivery = Delivery("default", key.partition(":")[2], None, 1.0, b"")
                        await store.bury(owned, DeadReason.REJECTED, delivery=delivery)
        pass_time(RETENTION / 2)
        for key in keys("new done"):
            await store.complete(await claim(store, key))
        for key in keys("new given back"):
            await store.release(await claim(store, key), frozenset({"a"}))
        assert await store.prune() == 0
        pass_time(RETENTION / 2)

        assert await store.prune() == 20
        assert await store.prune() == 0
        assert {await look(store, key) for key in keys("new done")} == {Done}
        assert {await look(store, key) for key in keys("old dead")} == {Dead}
        assert {await look(store, key) for key in keys("old live")} == {InFlight}
        assert [(await claim(store, key)).attempt for key in keys("new given back")] == [2] * 10
        for kind in ("old done", "old given back"):
            claims = [await claim(store, key) for key in keys(kind)]
            assert {(c.attempt, c.finished) for c in claims} == {(1, frozenset())}

    async def test_prune_leaves_the_claim_of_an_owner_who_keeps_extending(
        self, store: Store, pass_time: PassTime
    ) -> None:
        owned = await claim(store, lease=RETENTION / 2)
        for _ in range(4):
            pass_time(RETENTION / 2 - 1)
            assert await store.extend(owned) is Ownership.HELD
            assert await store.prune() == 0
        assert await look(store) is InFlight

    async def test_a_retention_shorter_than_the_senders_retries_is_refused(
        self, make_store: Callable[..., Store]
    ) -> None:
        with pytest.raises(ValueError, match="26 hours"):
            make_store(retention=timedelta(hours=26) - timedelta(seconds=1))
        await make_store(retention=timedelta(hours=26)).aclose()

    def test_a_retention_that_is_no_span_is_refused(self, make_store: Callable[..., Store]) -> None:
        with pytest.raises(TypeError, match="takes seconds or a timedelta"):
            make_store(retention="15 days")
        with pytest.raises(ValueError, match="26 hours"):
            make_store(retention=15)  # seconds, where days were meant


class TestStats:
    async def test_stats_count_live_claims_and_dead_letters(
        self, store: Store, pass_time: PassTime
    ) -> None:
        assert await store.stats() == StoreStats(in_flight=0, dead=0)
        claims = [await claim(store, delivery_key("default", f"evt_{n}")) for n in range(5)]
        assert await store.stats() == StoreStats(in_flight=5, dead=0)
        await store.complete(claims[0])
        await store.release(claims[1], frozenset())
        for owned in claims[2:4]:
            delivery = Delivery("default", owned.key.partition(":")[2], None, 1.0, b"")
            await store.bury(owned, DeadReason.REJECTED, delivery=delivery)
        assert await store.stats() == StoreStats(in_flight=1, dead=2)
        pass_time(LEASE)
        assert await store.stats() == StoreStats(in_flight=0, dead=2)


class TestLifetime:
    async def test_a_store_opens_itself_and_opens_twice(self, store: Store) -> None:
        await claim(store)
        await store.open()
        await store.open()
        assert await look(store) is InFlight

    async def test_a_closed_store_opens_again_and_has_forgotten_nothing(self, store: Store) -> None:
        done, held = delivery_key("default", "done"), delivery_key("default", "held")
        await store.complete(await claim(store, done))
        owned = await claim(store, held)
        await store.aclose()
        await store.aclose()
        assert await look(store, done) is Done
        assert await store.claim(held, owned.token, LEASE) == owned
        assert await store.extend(owned) is Ownership.HELD

    async def test_a_store_that_was_never_used_closes(self, store: Store) -> None:
        await store.aclose()


async def test_a_store_without_bodies_refuses_what_needs_them(store: Store) -> None:
    if store.keeps_bodies:
        pytest.skip("this store keeps bodies")
    owned = await claim(store)
    with pytest.raises(StoreError, match="no bodies"):
        await store.keep(owned, DELIVERY)
    with pytest.raises(StoreError, match="no bodies"):
        await store.keep_in_flight(DELIVERY)
    assert await store.replay(KEY, new_token(), LEASE) is None
    await store.bury(owned, DeadReason.REJECTED, delivery=DELIVERY)
    with pytest.raises(StoreError, match="no bodies"):
        await store.replay(KEY, new_token(), LEASE)
    assert await look(store) is Dead
