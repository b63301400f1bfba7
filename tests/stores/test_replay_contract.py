"""Deliveries kept for the case of a crash, and dead letters that are tried again.

The stores come from conftest; what a backend may leave out is asked of ``Store.keeps_bodies``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from hookonce.clock import Clock
from hookonce.stores.protocols import DEFAULT_RETENTION, Store
from hookonce.stores.values import (
    Claimed,
    Dead,
    DeadLetter,
    DeadReason,
    Delivery,
    Done,
    FailedAttempt,
    InFlight,
    Ownership,
    StoreStats,
    Token,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 30.0
RETENTION = DEFAULT_RETENTION.total_seconds()

DELIVERY = Delivery("default", "evt_1", "post.target.failed", 1_699_999_999.25, b"bytes\0\xff")
KEY = DELIVERY.key

PassTime = Callable[[float], None]


async def claim(store: Store) -> Claimed:
    """Claim what must be free."""
    result = await store.claim(KEY, new_token(), LEASE)
    assert isinstance(result, Claimed)
    return result


async def replay(store: Store) -> Claimed:
    """Claim a dead letter that nobody else replays."""
    result = await store.replay(KEY, new_token(), LEASE)
    assert isinstance(result, Claimed)
    return result


async def look(store: Store) -> type[object]:
    """Return how a claim by somebody else ends; it takes the event if it is free."""
    return type(await store.claim(KEY, new_token(), LEASE))


async def listed(store: Store) -> list[str]:
    """Return the ids of the events that are listed."""
    return [letter.delivery.event_id for letter in await store.dead_letters()]


class TestKeeping:
    """A delivery kept beside its claim is a dead letter only if the claim ends unsettled."""

    async def test_a_kept_delivery_is_no_dead_letter_while_its_claim_lives(
        self, keeping_store: Store, pass_time: PassTime
    ) -> None:
        store = keeping_store
        owned = await claim(store)
        assert await store.keep(owned, DELIVERY) is Ownership.HELD
        for _ in range(3):
            assert await store.dead_letter(KEY) is None
            assert await listed(store) == []
            assert await store.stats() == StoreStats(in_flight=1, dead=0)
            assert await store.discard(KEY) is False
            assert await store.replay(KEY, new_token(), LEASE) is None
            assert await look(store) is InFlight
            pass_time(LEASE - 1)
            assert await store.extend(owned) is Ownership.HELD

    async def test_when_the_lease_runs_out_it_is_an_interrupted_letter(
        self, keeping_store: Store, pass_time: PassTime
    ) -> None:
        store = keeping_store
        await store.release(await claim(store), frozenset({"a"}))
        await store.keep(await claim(store), DELIVERY)
        pass_time(LEASE)
        assert await look(store) is Dead
        letter = await store.dead_letter(KEY)
        assert letter is not None
        assert letter.delivery == DELIVERY
        assert letter.reason is DeadReason.INTERRUPTED
        assert (letter.attempts, letter.finished) == (2, frozenset({"a"}))
        assert await listed(store) == ["evt_1"]
        assert await store.stats() == StoreStats(in_flight=0, dead=1)

    async def test_when_the_claim_is_released_it_is_an_exhausted_letter(
        self, keeping_store: Store, clock: Clock, pass_time: PassTime
    ) -> None:
        store = keeping_store
        await store.release(await claim(store), frozenset({"a"}))
        owned = await claim(store)
        await store.keep(owned, DELIVERY)
        pass_time(1)
        await store.extend(owned, frozenset({"b"}))
        assert await store.release(owned, frozenset({"c"}), "d failed") is Ownership.HELD
        assert await store.dead_letter(KEY) == DeadLetter(
            DELIVERY,
            DeadReason.EXHAUSTED,
            "d failed",
            2,
            frozenset({"a", "b", "c"}),
            clock(),
            (FailedAttempt(2, clock(), "d failed"),),
        )
        assert await look(store) is Dead
        assert await store.stats() == StoreStats(in_flight=0, dead=1)
        again = await replay(store)
        assert (again.attempt, again.finished) == (3, frozenset({"a", "b", "c"}))

    async def test_an_interrupted_letter_names_what_finished_after_it_was_kept(
        self, keeping_store: Store, pass_time: PassTime
    ) -> None:
        store = keeping_store
        owned = await claim(store)
        await store.keep(owned, DELIVERY)
        await store.extend(owned, frozenset({"late"}))
        pass_time(LEASE)
        letter = await store.dead_letter(KEY)
        assert letter is not None
        assert letter.finished == {"late"}
        assert (await replay(store)).finished == {"late"}

    async def test_an_interrupted_letter_outlives_the_record_of_its_attempts(
        self, keeping_store: Store, pass_time: PassTime
    ) -> None:
        store = keeping_store
        owned = await claim(store)
        await store.extend(owned, frozenset({"a"}))
        await store.keep(owned, DELIVERY)
        await store.extend(owned, frozenset({"b"}))
        pass_time(2 * RETENTION)
        await store.prune()
        assert await look(store) is Dead
        again = await replay(store)
        assert (again.attempt, again.finished) == (2, frozenset({"a", "b"}))

    async def test_a_completion_leaves_nothing_of_it(
        self, keeping_store: Store, pass_time: PassTime
    ) -> None:
        store = keeping_store
        owned = await claim(store)
        await store.keep(owned, DELIVERY)
        await store.complete(owned)
        pass_time(LEASE)
        assert await store.dead_letter(KEY) is None
        assert await store.stats() == StoreStats(in_flight=0, dead=0)
        assert await look(store) is Done

    async def test_a_late_completion_removes_the_interrupted_letter(
        self, keeping_store: Store, pass_time: PassTime
    ) -> None:
        store = keeping_store
        owned = await claim(store)
        await store.keep(owned, DELIVERY)
        pass_time(LEASE)
        assert await look(store) is Dead
        await store.complete(owned)
        assert await store.dead_letter(KEY) is None
        assert await look(store) is Done

    async def test_an_owner_who_comes_late_takes_the_event_back_from_the_dead(
        self, keeping_store: Store, pass_time: PassTime
    ) -> None:
        store = keeping_store
        owned = await claim(store)
        await store.keep(owned, DELIVERY)
        pass_time(LEASE)
        assert await listed(store) == ["evt_1"]
        assert await store.extend(owned) is Ownership.HELD
        assert await listed(store) == []
        assert await look(store) is InFlight

    async def test_a_burial_uses_the_kept_delivery(
        self, keeping_store: Store, pass_time: PassTime
    ) -> None:
        store = keeping_store
        owned = await claim(store)
        await store.keep(owned, DELIVERY)
        pass_time(1)
        ownership = await store.bury(
            owned, DeadReason.EXHAUSTED, error="it failed", finished=frozenset({"a"})
        )
        assert ownership is Ownership.HELD
        letter = await store.dead_letter(KEY)
        assert letter is not None
        assert (letter.delivery, letter.reason) == (DELIVERY, DeadReason.EXHAUSTED)
        assert (letter.error, letter.finished) == ("it failed", frozenset({"a"}))
        assert await look(store) is Dead

    async def test_a_burial_may_bring_the_kept_delivery_again(self, keeping_store: Store) -> None:
        store = keeping_store
        owned = await claim(store)
        await store.keep(owned, DELIVERY)
        await store.keep(owned, DELIVERY)
        await store.bury(owned, DeadReason.REJECTED, error="no", delivery=DELIVERY)
        assert await listed(store) == ["evt_1"]
        letter = await store.dead_letter(KEY)
        assert letter is not None
        assert (letter.reason, letter.error) == (DeadReason.REJECTED, "no")

    async def test_who_lost_the_claim_cannot_keep(
        self, keeping_store: Store, pass_time: PassTime
    ) -> None:
        store = keeping_store
        stale = await claim(store)
        pass_time(LEASE)
        await claim(store)
        assert await store.keep(stale, DELIVERY) is Ownership.LOST
        pass_time(LEASE)
        assert await store.dead_letter(KEY) is None
        assert await look(store) is Claimed


class TestKeepingInFlight:
    """The sender's last delivery arrives while an earlier one is still being handled."""

    @pytest.mark.parametrize(
        ("ending", "reason"),
        [
            ("expired", DeadReason.INTERRUPTED),
            ("released", DeadReason.EXHAUSTED),
            ("buried", DeadReason.REJECTED),
        ],
    )
    async def test_it_is_a_dead_letter_when_that_claim_fails(
        self, keeping_store: Store, pass_time: PassTime, ending: str, reason: DeadReason
    ) -> None:
        store = keeping_store
        owned = await claim(store)
        await store.extend(owned, frozenset({"a"}))
        await store.keep_in_flight(DELIVERY)
        match ending:
            case "expired":
                pass_time(LEASE)
            case "released":
                await store.release(owned, frozenset(), "b failed")
            case _:
                await store.bury(owned, DeadReason.REJECTED)
        assert await look(store) is Dead
        letter = await store.dead_letter(KEY)
        assert letter is not None
        assert (letter.delivery, letter.reason) == (DELIVERY, reason)
        assert (letter.attempts, letter.finished) == (1, frozenset({"a"}))
        again = await replay(store)
        assert (again.attempt, again.finished) == (2, frozenset({"a"}))

    async def test_it_changes_nothing_of_a_dead_letter(
        self, keeping_store: Store, pass_time: PassTime
    ) -> None:
        store = keeping_store
        await store.bury(await claim(store), DeadReason.REJECTED, error="first", delivery=DELIVERY)
        before = await store.dead_letter(KEY)
        pass_time(1)
        await store.keep_in_flight(DELIVERY)
        assert await store.dead_letter(KEY) == before
        await replay(store)
        await store.keep_in_flight(DELIVERY)
        assert await store.dead_letter(KEY) == before


class TestReplaying:
    """A replay claims a dead letter, which stays one until that attempt is completed."""

    @pytest.fixture(params=["buried", "interrupted"])
    async def dead_letter_store(
        self, request: pytest.FixtureRequest, keeping_store: Store, pass_time: PassTime
    ) -> Store:
        """Return a store with one letter, of an event that was tried once and finished "a"."""
        if request.param == "buried":
            owned = await claim(keeping_store)
            await keeping_store.bury(
                owned, DeadReason.EXHAUSTED, finished=frozenset({"a"}), delivery=DELIVERY
            )
        else:
            owned = await claim(keeping_store)
            await keeping_store.extend(owned, frozenset({"a"}))
            await keeping_store.keep(owned, DELIVERY)
            pass_time(LEASE)
        return keeping_store

    async def test_there_is_nothing_to_replay_without_a_letter(self, keeping_store: Store) -> None:
        store = keeping_store
        assert await store.replay(KEY, new_token(), LEASE) is None
        owned = await claim(store)
        assert await store.replay(KEY, new_token(), LEASE) is None
        await store.complete(owned)
        assert await store.replay(KEY, new_token(), LEASE) is None

    async def test_a_replay_is_a_further_attempt_without_the_finished_handlers(
        self, dead_letter_store: Store
    ) -> None:
        token = Token("replayer")
        assert await dead_letter_store.replay(KEY, token, LEASE) == Claimed(
            KEY, token, 2, frozenset({"a"}), LEASE
        )

    async def test_200_racing_replays_have_exactly_one_winner(
        self, dead_letter_store: Store
    ) -> None:
        results = await asyncio.gather(
            *(dead_letter_store.replay(KEY, new_token(), LEASE) for _ in range(200))
        )
        assert sorted(type(result).__name__ for result in results) == (
            ["Claimed"] + ["InFlight"] * 199
        )

    async def test_a_replay_repeated_with_its_own_token_is_the_same_claim(
        self, dead_letter_store: Store
    ) -> None:
        owned = await replay(dead_letter_store)
        assert await dead_letter_store.replay(KEY, owned.token, LEASE) == owned

    async def test_the_letter_stays_while_it_is_replayed(
        self, dead_letter_store: Store, clock: Clock
    ) -> None:
        await replay(dead_letter_store)
        assert await dead_letter_store.dead_letter(KEY) is not None
        assert await listed(dead_letter_store) == ["evt_1"]
        assert await dead_letter_store.stats() == StoreStats(in_flight=1, dead=1)
        in_flight = InFlight(clock() + LEASE)
        assert await dead_letter_store.claim(KEY, new_token(), LEASE) == in_flight
        assert await dead_letter_store.replay(KEY, new_token(), LEASE) == in_flight

    async def test_a_completed_replay_removes_the_letter(self, dead_letter_store: Store) -> None:
        await dead_letter_store.complete(await replay(dead_letter_store))
        assert await dead_letter_store.dead_letter(KEY) is None
        assert await dead_letter_store.stats() == StoreStats(in_flight=0, dead=0)
        assert await look(dead_letter_store) is Done
        assert await dead_letter_store.replay(KEY, new_token(), LEASE) is None

    @pytest.mark.parametrize("ending", ["crashed", "released"])
    async def test_a_replay_that_ends_unsettled_leaves_the_event_dead(
        self, dead_letter_store: Store, pass_time: PassTime, ending: str
    ) -> None:
        store = dead_letter_store
        before = await store.dead_letter(KEY)
        assert before is not None
        owned = await replay(store)
        await store.extend(owned, frozenset({"b"}))
        if ending == "crashed":
            pass_time(LEASE)
        else:
            assert await store.release(owned, frozenset(), "cancelled") is Ownership.HELD
        assert await look(store) is Dead
        letter = await store.dead_letter(KEY)
        assert letter is not None
        assert letter.delivery == before.delivery
        assert await store.stats() == StoreStats(in_flight=0, dead=1)
        again = await replay(store)
        assert (again.attempt, again.finished) == (3, frozenset({"a", "b"}))

    async def test_a_replay_that_fails_is_buried_again_with_what_is_now_known(
        self, dead_letter_store: Store, clock: Clock, pass_time: PassTime
    ) -> None:
        store = dead_letter_store
        owned = await replay(store)
        pass_time(5)
        ownership = await store.bury(
            owned,
            DeadReason.REJECTED,
            error="still no",
            finished=frozenset({"b"}),
            delivery=DELIVERY,
        )
        assert ownership is Ownership.HELD
        letter = await store.dead_letter(KEY)
        assert letter is not None
        assert letter.history[-1] == FailedAttempt(2, clock(), "still no")
        assert replace(letter, history=()) == DeadLetter(
            DELIVERY, DeadReason.REJECTED, "still no", 2, frozenset({"a", "b"}), clock()
        )
        assert await listed(store) == ["evt_1"]
        assert await look(store) is Dead
        again = await replay(store)
        assert (again.attempt, again.finished) == (3, frozenset({"a", "b"}))

    async def test_a_replay_is_fenced_like_every_claim(
        self, dead_letter_store: Store, pass_time: PassTime
    ) -> None:
        store = dead_letter_store
        stale = await replay(store)
        pass_time(LEASE)
        owner = await replay(store)
        for lost in (
            await store.extend(stale),
            await store.release(stale, frozenset({"stale"})),
            await store.bury(stale, DeadReason.EXHAUSTED, error="stale", delivery=DELIVERY),
        ):
            assert lost is Ownership.LOST
        letter = await store.dead_letter(KEY)
        assert letter is not None
        assert letter.error != "stale"
        assert await store.extend(owner) is Ownership.HELD

    async def test_the_attempt_before_the_letter_may_still_complete_it(
        self, keeping_store: Store, pass_time: PassTime
    ) -> None:
        store = keeping_store
        stale = await claim(store)
        await store.keep(stale, DELIVERY)
        pass_time(LEASE)
        owner = await replay(store)
        await store.complete(stale)
        assert await store.dead_letter(KEY) is None
        assert await store.extend(owner) is Ownership.LOST
        assert await look(store) is Done

    async def test_a_letter_discarded_while_it_is_replayed_is_done(
        self, dead_letter_store: Store
    ) -> None:
        owned = await replay(dead_letter_store)
        assert await dead_letter_store.discard(KEY) is True
        assert await dead_letter_store.extend(owned) is Ownership.LOST
        assert await look(dead_letter_store) is Done
