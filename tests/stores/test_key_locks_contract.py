"""Every backend's key_locks: one run at a time for a handler and a key, and marks that only rise.

The stores come from conftest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from hookonce.clock import Clock
from hookonce.stores.protocols import DEFAULT_RETENTION, KeyLocks, Store
from hookonce.stores.values import (
    Acquired,
    AcquireResult,
    Busy,
    Claimed,
    DeliveryKey,
    KeyLock,
    Stale,
    Token,
    Watermark,
    delivery_key,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 30.0
HOURS = 3600.0
RETENTION = DEFAULT_RETENTION.total_seconds()
KEY_LOCK = KeyLock("default", "app.handlers.sync", "chan_1")
ME, OTHER = Token("0xme"), Token("0xother")
FIRST, SECOND, THIRD = (delivery_key("default", f"evt_{n}") for n in "123")
OLDER, SAME, NEWER = Watermark(1_000, "evt_b"), Watermark(2_000, "evt_b"), Watermark(3_000, "evt_a")

PassTime = Callable[[float], None]


@pytest.fixture
def key_locks(store: Store) -> KeyLocks:
    return store


async def look(key_locks: KeyLocks, key_lock: KeyLock = KEY_LOCK) -> AcquireResult:
    """Return how somebody else fares at the gate, who leaves it again."""
    token = new_token()
    result = await key_locks.acquire_key_lock(key_lock, token, LEASE)
    if isinstance(result, Acquired):
        await key_locks.release_key_lock(key_lock, token)
    return result


async def succeed(key_locks: KeyLocks, watermark: Watermark, key_lock: KeyLock = KEY_LOCK) -> None:
    """Pass the gate with an event that is not late, and succeed."""
    token = new_token()
    assert (
        await key_locks.acquire_key_lock(key_lock, token, LEASE, watermark=watermark) == Acquired()
    )
    await key_locks.release_key_lock(key_lock, token, watermark=watermark)


async def lateness(
    key_locks: KeyLocks, watermark: Watermark, *, drop_ties: bool = False
) -> AcquireResult:
    """Return how an event of this mark fares, which leaves the gate without success."""
    token = new_token()
    result = await key_locks.acquire_key_lock(
        KEY_LOCK, token, LEASE, watermark=watermark, drop_ties=drop_ties
    )
    await key_locks.release_key_lock(KEY_LOCK, token)
    return result


class TestOneAtATime:
    async def test_200_racing_tokens_have_exactly_one_that_enters(
        self, key_locks: KeyLocks, clock: Clock
    ) -> None:
        results = await asyncio.gather(
            *(key_locks.acquire_key_lock(KEY_LOCK, new_token(), LEASE) for _ in range(200))
        )
        assert results.count(Acquired()) == 1
        assert results.count(Busy(clock() + LEASE)) == 199

    async def test_a_gate_that_was_left_is_free(self, key_locks: KeyLocks) -> None:
        assert await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE) == Acquired()
        assert isinstance(await look(key_locks), Busy)
        assert await key_locks.release_key_lock(KEY_LOCK, ME) is None
        assert await look(key_locks) == Acquired()

    @pytest.mark.parametrize(
        "other",
        [
            KeyLock("other", "app.handlers.sync", "chan_1"),
            KeyLock("default", "app.handlers.other", "chan_1"),
            KeyLock("default", "app.handlers.sync", "chan_2"),
            KeyLock("default", "app.handlers.sync", "chan_1 "),
            KeyLock("default", "app.handlers", "sync:chan_1"),
            KeyLock("default:app", "handlers.sync", "chan_1"),
        ],
    )
    async def test_gates_of_other_names_are_other_gates(
        self, key_locks: KeyLocks, other: KeyLock
    ) -> None:
        await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE)
        await succeed(key_locks, NEWER, other)
        await succeed(key_locks, OLDER, KeyLock("default", "app.handlers.third", "chan_1"))
        await key_locks.release_key_lock(KEY_LOCK, ME)
        assert await lateness(key_locks, OLDER) == Acquired()

    @pytest.mark.parametrize(
        "key", ["", "ünïcode 名", "a:b{c}", "line\nbreak\0", "\ud800", "x" * 200]
    )
    async def test_a_key_may_be_any_text(self, key_locks: KeyLocks, key: str) -> None:
        key_lock = KeyLock("default", "app.handlers.sync", key)
        assert await key_locks.acquire_key_lock(key_lock, ME, LEASE) == Acquired()
        assert isinstance(await look(key_locks, key_lock), Busy)
        assert await key_locks.release_key_lock(key_lock, ME, watermark=OLDER) is None
        assert await look(key_locks, key_lock) == Acquired()

    async def test_only_the_token_that_has_it_leaves_it(self, key_locks: KeyLocks) -> None:
        await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE)
        assert await key_locks.release_key_lock(KEY_LOCK, OTHER) is None
        assert isinstance(await look(key_locks), Busy)

    async def test_leaving_twice_is_leaving_once(self, key_locks: KeyLocks) -> None:
        await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE)
        await key_locks.release_key_lock(KEY_LOCK, ME)
        await key_locks.acquire_key_lock(KEY_LOCK, OTHER, LEASE)
        assert await key_locks.release_key_lock(KEY_LOCK, ME) is None
        assert isinstance(await look(key_locks), Busy)


class TestLeases:
    async def test_it_is_busy_until_the_lease_ends_and_free_from_then_on(
        self, key_locks: KeyLocks, clock: Clock, pass_time: PassTime
    ) -> None:
        await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE)
        until = clock() + LEASE
        pass_time(LEASE - 0.5)
        assert await look(key_locks) == Busy(until)
        pass_time(0.5)
        assert await look(key_locks) == Acquired()

    async def test_entering_again_begins_the_lease_anew(
        self, key_locks: KeyLocks, clock: Clock, pass_time: PassTime
    ) -> None:
        for _ in range(4):
            assert await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE) == Acquired()
            pass_time(LEASE - 1)
        assert await look(key_locks) == Busy(clock() + 1)

    async def test_who_is_inside_enters_again_though_its_event_is_late_by_now(
        self, key_locks: KeyLocks
    ) -> None:
        await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE, watermark=OLDER)
        await key_locks.release_key_lock(KEY_LOCK, OTHER, watermark=NEWER)
        assert await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE, watermark=OLDER) == Acquired()

    async def test_a_late_extension_holds_as_long_as_nobody_has_taken_over(
        self, key_locks: KeyLocks, pass_time: PassTime
    ) -> None:
        await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE)
        pass_time(LEASE + 5)
        assert await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE) == Acquired()
        pass_time(LEASE + 5)
        assert await key_locks.acquire_key_lock(KEY_LOCK, OTHER, LEASE) == Acquired()
        assert isinstance(await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE), Busy)

    async def test_a_clock_set_back_keeps_no_gate_longer_than_its_lease(
        self, key_locks: KeyLocks, clock: Clock, pass_time: PassTime
    ) -> None:
        await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE)
        pass_time(-5 * HOURS)
        assert await look(key_locks) == Busy(clock() + LEASE)
        assert await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE) == Acquired()
        pass_time(LEASE)
        assert await look(key_locks) == Acquired()


class TestWatermarks:
    async def test_an_older_event_is_stale_and_a_newer_one_is_not(
        self, key_locks: KeyLocks
    ) -> None:
        await succeed(key_locks, SAME)
        assert await lateness(key_locks, OLDER) == Stale(SAME)
        assert await lateness(key_locks, NEWER) == Acquired()

    async def test_the_event_itself_is_stale_once_it_has_succeeded(
        self, key_locks: KeyLocks
    ) -> None:
        await succeed(key_locks, SAME)
        assert await lateness(key_locks, SAME) == Stale(SAME)

    @pytest.mark.parametrize("event_id", ["evt_a", "evt_c"])
    async def test_of_two_events_of_one_time_both_pass_or_the_first_does(
        self, key_locks: KeyLocks, event_id: str
    ) -> None:
        await succeed(key_locks, SAME)
        tied = SAME._replace(event_id=event_id)
        assert await lateness(key_locks, tied) == Acquired()
        assert await lateness(key_locks, tied, drop_ties=True) == Stale(SAME)

    async def test_only_a_success_moves_the_mark(
        self, key_locks: KeyLocks, pass_time: PassTime
    ) -> None:
        await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE, watermark=NEWER)
        await key_locks.release_key_lock(KEY_LOCK, ME)
        assert await lateness(key_locks, OLDER) == Acquired()
        await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE, watermark=NEWER)
        pass_time(LEASE)
        assert await lateness(key_locks, OLDER) == Acquired()

    async def test_the_mark_never_goes_back(self, key_locks: KeyLocks) -> None:
        tied = SAME._replace(event_id="evt_a")
        await succeed(key_locks, SAME)
        await key_locks.release_key_lock(KEY_LOCK, ME, watermark=OLDER)
        assert await lateness(key_locks, SAME) == Stale(SAME)
        await succeed(key_locks, tied)
        assert await lateness(key_locks, SAME) == Stale(SAME)
        await succeed(key_locks, tied._replace(event_id="evt_c"))
        assert await lateness(key_locks, OLDER) == Stale(Watermark(2_000, "evt_c"))

    async def test_a_success_is_a_fact_also_of_who_has_lost_the_gate(
        self, key_locks: KeyLocks, pass_time: PassTime
    ) -> None:
        await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE, watermark=SAME)
        pass_time(LEASE)
        await key_locks.acquire_key_lock(KEY_LOCK, OTHER, LEASE, watermark=OLDER)
        assert await key_locks.release_key_lock(KEY_LOCK, ME, watermark=SAME) is None
        assert isinstance(await look(key_locks), Busy)
        assert await lateness(key_locks, OLDER) == Stale(SAME)

    async def test_a_late_event_need_not_wait(self, key_locks: KeyLocks) -> None:
        await succeed(key_locks, SAME)
        await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE)
        result = await key_locks.acquire_key_lock(
            KEY_LOCK, OTHER, LEASE, watermark=OLDER, waiting=FIRST
        )
        assert result == Stale(SAME)
        assert await key_locks.release_key_lock(KEY_LOCK, ME) is None

    async def test_an_event_without_a_mark_is_never_late(self, key_locks: KeyLocks) -> None:
        await succeed(key_locks, NEWER)
        assert await look(key_locks) == Acquired()

    async def test_times_are_told_apart_to_the_microsecond_in_any_year(
        self, key_locks: KeyLocks
    ) -> None:
        far = Watermark(253_402_300_799_999_999, "evt_1")
        await succeed(key_locks, far)
        assert await lateness(key_locks, Watermark(far.created_unix_us - 1, "evt_2")) == Stale(far)
        await succeed(key_locks, Watermark(far.created_unix_us + 1, "evt_0"))
        assert await lateness(key_locks, far) == Stale(Watermark(far.created_unix_us + 1, "evt_0"))

    async def test_a_time_before_1970_is_one_like_any_other(self, key_locks: KeyLocks) -> None:
        await succeed(key_locks, Watermark(-5_000_000, "evt_1"))
        assert await lateness(key_locks, Watermark(-5_000_001, "evt_2")) == Stale(
            Watermark(-5_000_000, "evt_1")
        )
        assert await lateness(key_locks, Watermark(0, "evt_0")) == Acquired()

    async def test_a_mark_is_forgotten_a_retention_after_it_last_rose(
        self, key_locks: KeyLocks, pass_time: PassTime
    ) -> None:
        await succeed(key_locks, OLDER)
        pass_time(RETENTION - 10)
        await succeed(key_locks, SAME)
        pass_time(RETENTION - 10)
        assert await lateness(key_locks, OLDER) == Stale(SAME)
        pass_time(10)
        assert await lateness(key_locks, OLDER) == Acquired()


class TestWaiting:
    async def test_who_leaves_calls_who_has_waited_longest(self, key_locks: KeyLocks) -> None:
        await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE)
        for event in (FIRST, SECOND, FIRST, THIRD):
            result = await key_locks.acquire_key_lock(KEY_LOCK, new_token(), LEASE, waiting=event)
            assert isinstance(result, Busy)
        called: list[DeliveryKey | None] = [await key_locks.release_key_lock(KEY_LOCK, ME)]
        for _ in range(3):
            token = new_token()
            assert await key_locks.acquire_key_lock(KEY_LOCK, token, LEASE) == Acquired()
            called.append(await key_locks.release_key_lock(KEY_LOCK, token))
        assert called == [FIRST, SECOND, THIRD, None]

    async def test_nobody_is_called_while_somebody_has_the_gate(self, key_locks: KeyLocks) -> None:
        await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE)
        await key_locks.acquire_key_lock(KEY_LOCK, OTHER, LEASE, waiting=FIRST)
        assert await key_locks.release_key_lock(KEY_LOCK, OTHER) is None
        assert await key_locks.release_key_lock(KEY_LOCK, ME) == FIRST

    async def test_who_leaves_no_gate_calls_where_nobody_has_it(self, key_locks: KeyLocks) -> None:
        """So the event that waits is called if the gate was left before it was given back."""
        await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE)
        for event in (FIRST, SECOND):
            await key_locks.acquire_key_lock(KEY_LOCK, OTHER, LEASE, waiting=event)
        assert await key_locks.release_key_lock(KEY_LOCK, ME) == FIRST
        assert await key_locks.release_key_lock(KEY_LOCK, OTHER) == SECOND
        assert await key_locks.release_key_lock(KEY_LOCK, OTHER) is None

    @pytest.mark.parametrize("place", [0, 1, 2])
    async def test_an_event_that_has_had_its_turn_waits_no_more(
        self, key_locks: KeyLocks, place: int
    ) -> None:
        events = [FIRST, SECOND, THIRD]
        await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE)
        for event in events:
            await key_locks.acquire_key_lock(KEY_LOCK, OTHER, LEASE, waiting=event)
        gone = events.pop(place)
        assert await key_locks.release_key_lock(KEY_LOCK, OTHER, event=gone) is None
        called = [await key_locks.release_key_lock(KEY_LOCK, ME, event=gone)]
        called += [await key_locks.release_key_lock(KEY_LOCK, ME) for _ in range(2)]
        assert called == [*events, None]

    async def test_who_was_noted_last_and_has_had_its_turn_is_not_called(
        self, key_locks: KeyLocks
    ) -> None:
        await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE)
        await key_locks.acquire_key_lock(KEY_LOCK, OTHER, LEASE, waiting=FIRST)
        assert await key_locks.release_key_lock(KEY_LOCK, ME, event=FIRST) is None
        assert await look(key_locks) == Acquired()

    async def test_notes_are_forgotten_when_the_lease_they_wait_for_ends(
        self, key_locks: KeyLocks, pass_time: PassTime
    ) -> None:
        await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE)
        await key_locks.acquire_key_lock(KEY_LOCK, OTHER, LEASE, waiting=FIRST)
        pass_time(LEASE)
        assert await key_locks.release_key_lock(KEY_LOCK, ME, watermark=NEWER) is None

    async def test_notes_last_while_the_lease_is_begun_anew(
        self, key_locks: KeyLocks, pass_time: PassTime
    ) -> None:
        await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE)
        await key_locks.acquire_key_lock(KEY_LOCK, OTHER, LEASE, waiting=FIRST)
        for _ in range(3):
            pass_time(LEASE - 1)
            await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE)
        assert await key_locks.release_key_lock(KEY_LOCK, ME) == FIRST

    async def test_many_are_called_in_the_order_they_came(self, key_locks: KeyLocks) -> None:
        await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE)
        events = [delivery_key("default", f"evt_{n}") for n in range(200)]
        for event in events:
            await key_locks.acquire_key_lock(KEY_LOCK, OTHER, LEASE, waiting=event)
        called = [await key_locks.release_key_lock(KEY_LOCK, ME)]
        called += [await key_locks.release_key_lock(KEY_LOCK, ME) for _ in range(200)]
        assert called == [*events, None]


class TestUpkeep:
    async def test_pruning_removes_marks_whose_retention_is_over(
        self, store: Store, key_locks: KeyLocks, pass_time: PassTime
    ) -> None:
        for n in range(20):
            await succeed(key_locks, OLDER, KeyLock("default", "app.handlers.sync", f"chan_{n}"))
        pass_time(RETENTION - 1)
        assert await store.prune() == 0
        await succeed(key_locks, NEWER, KeyLock("default", "app.handlers.sync", "chan_0"))
        pass_time(1)
        await store.prune()
        assert await lateness(key_locks, OLDER) == Acquired()
        result = await key_locks.acquire_key_lock(
            KeyLock("default", "app.handlers.sync", "chan_0"), ME, LEASE, watermark=SAME
        )
        assert result == Stale(NEWER)

    async def test_gates_and_the_records_of_events_are_apart(
        self, store: Store, key_locks: KeyLocks
    ) -> None:
        key = delivery_key("default", "evt_1")
        await succeed(key_locks, Watermark(1, "evt_1"))
        await key_locks.acquire_key_lock(KEY_LOCK, ME, LEASE, waiting=key)
        claim = await store.claim(key, ME, LEASE)
        assert isinstance(claim, Claimed)
        await store.complete(claim)
        assert isinstance(await look(key_locks), Busy)
        assert (await store.stats()).in_flight == 0
