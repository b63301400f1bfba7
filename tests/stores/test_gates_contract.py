"""Every backend's gates: one run at a time for a handler and a key, and marks that only rise.

The stores come from conftest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from hookonce.stores.contract import DEFAULT_RETENTION, Gates, Store
from hookonce.stores.values import (
    Busy,
    Claimed,
    DeliveryKey,
    Entered,
    EnterResult,
    Gate,
    Mark,
    Stale,
    Token,
    delivery_key,
    new_token,
)
from hookonce.verification.clock import Clock

pytestmark = pytest.mark.anyio

LEASE = 30.0
HOURS = 3600.0
RETENTION = DEFAULT_RETENTION.total_seconds()
GATE = Gate("default", "app.handlers.sync", "chan_1")
ME, OTHER = Token("0xme"), Token("0xother")
FIRST, SECOND, THIRD = (delivery_key("default", f"evt_{n}") for n in "123")
OLDER, SAME, NEWER = Mark(1_000, "evt_b"), Mark(2_000, "evt_b"), Mark(3_000, "evt_a")

PassTime = Callable[[float], None]


@pytest.fixture
def gates(store: Store) -> Gates:
    return store


async def look(gates: Gates, gate: Gate = GATE) -> EnterResult:
    """Return how somebody else fares at the gate, who leaves it again."""
    token = new_token()
    result = await gates.enter(gate, token, LEASE)
    if isinstance(result, Entered):
        await gates.leave(gate, token)
    return result


async def succeed(gates: Gates, mark: Mark, gate: Gate = GATE) -> None:
    """Pass the gate with an event that is not late, and succeed."""
    token = new_token()
    assert await gates.enter(gate, token, LEASE, mark=mark) == Entered()
    await gates.leave(gate, token, mark=mark)


async def lateness(gates: Gates, mark: Mark, *, drop_ties: bool = False) -> EnterResult:
    """Return how an event of this mark fares, which leaves the gate without success."""
    token = new_token()
    result = await gates.enter(GATE, token, LEASE, mark=mark, drop_ties=drop_ties)
    await gates.leave(GATE, token)
    return result


class TestOneAtATime:
    async def test_200_racing_tokens_have_exactly_one_that_enters(
        self, gates: Gates, clock: Clock
    ) -> None:
        results = await asyncio.gather(*(gates.enter(GATE, new_token(), LEASE) for _ in range(200)))
        assert results.count(Entered()) == 1
        assert results.count(Busy(clock() + LEASE)) == 199

    async def test_a_gate_that_was_left_is_free(self, gates: Gates) -> None:
        assert await gates.enter(GATE, ME, LEASE) == Entered()
        assert isinstance(await look(gates), Busy)
        assert await gates.leave(GATE, ME) is None
        assert await look(gates) == Entered()

    @pytest.mark.parametrize(
        "other",
        [
            Gate("other", "app.handlers.sync", "chan_1"),
            Gate("default", "app.handlers.other", "chan_1"),
            Gate("default", "app.handlers.sync", "chan_2"),
            Gate("default", "app.handlers.sync", "chan_1 "),
            Gate("default", "app.handlers", "sync:chan_1"),
            Gate("default:app", "handlers.sync", "chan_1"),
        ],
    )
    async def test_gates_of_other_names_are_other_gates(self, gates: Gates, other: Gate) -> None:
        await gates.enter(GATE, ME, LEASE)
        await succeed(gates, NEWER, other)
        await succeed(gates, OLDER, Gate("default", "app.handlers.third", "chan_1"))
        await gates.leave(GATE, ME)
        assert await lateness(gates, OLDER) == Entered()

    @pytest.mark.parametrize(
        "key", ["", "ünïcode 名", "a:b{c}", "line\nbreak\0", "\ud800", "x" * 200]
    )
    async def test_a_key_may_be_any_text(self, gates: Gates, key: str) -> None:
        gate = Gate("default", "app.handlers.sync", key)
        assert await gates.enter(gate, ME, LEASE) == Entered()
        assert isinstance(await look(gates, gate), Busy)
        assert await gates.leave(gate, ME, mark=OLDER) is None
        assert await look(gates, gate) == Entered()

    async def test_only_the_token_that_has_it_leaves_it(self, gates: Gates) -> None:
        await gates.enter(GATE, ME, LEASE)
        assert await gates.leave(GATE, OTHER) is None
        assert isinstance(await look(gates), Busy)

    async def test_leaving_twice_is_leaving_once(self, gates: Gates) -> None:
        await gates.enter(GATE, ME, LEASE)
        await gates.leave(GATE, ME)
        await gates.enter(GATE, OTHER, LEASE)
        assert await gates.leave(GATE, ME) is None
        assert isinstance(await look(gates), Busy)


class TestLeases:
    async def test_it_is_busy_until_the_lease_ends_and_free_from_then_on(
        self, gates: Gates, clock: Clock, pass_time: PassTime
    ) -> None:
        await gates.enter(GATE, ME, LEASE)
        until = clock() + LEASE
        pass_time(LEASE - 0.5)
        assert await look(gates) == Busy(until)
        pass_time(0.5)
        assert await look(gates) == Entered()

    async def test_entering_again_begins_the_lease_anew(
        self, gates: Gates, clock: Clock, pass_time: PassTime
    ) -> None:
        for _ in range(4):
            assert await gates.enter(GATE, ME, LEASE) == Entered()
            pass_time(LEASE - 1)
        assert await look(gates) == Busy(clock() + 1)

    async def test_who_is_inside_enters_again_though_its_event_is_late_by_now(
        self, gates: Gates
    ) -> None:
        await gates.enter(GATE, ME, LEASE, mark=OLDER)
        await gates.leave(GATE, OTHER, mark=NEWER)
        assert await gates.enter(GATE, ME, LEASE, mark=OLDER) == Entered()

    async def test_a_late_extension_holds_as_long_as_nobody_has_taken_over(
        self, gates: Gates, pass_time: PassTime
    ) -> None:
        await gates.enter(GATE, ME, LEASE)
        pass_time(LEASE + 5)
        assert await gates.enter(GATE, ME, LEASE) == Entered()
        pass_time(LEASE + 5)
        assert await gates.enter(GATE, OTHER, LEASE) == Entered()
        assert isinstance(await gates.enter(GATE, ME, LEASE), Busy)

    async def test_a_clock_set_back_keeps_no_gate_longer_than_its_lease(
        self, gates: Gates, clock: Clock, pass_time: PassTime
    ) -> None:
        await gates.enter(GATE, ME, LEASE)
        pass_time(-5 * HOURS)
        assert await look(gates) == Busy(clock() + LEASE)
        assert await gates.enter(GATE, ME, LEASE) == Entered()
        pass_time(LEASE)
        assert await look(gates) == Entered()


class TestMarks:
    async def test_an_older_event_is_stale_and_a_newer_one_is_not(self, gates: Gates) -> None:
        await succeed(gates, SAME)
        assert await lateness(gates, OLDER) == Stale(SAME)
        assert await lateness(gates, NEWER) == Entered()

    async def test_the_event_itself_is_stale_once_it_has_succeeded(self, gates: Gates) -> None:
        await succeed(gates, SAME)
        assert await lateness(gates, SAME) == Stale(SAME)

    @pytest.mark.parametrize("event_id", ["evt_a", "evt_c"])
    async def test_of_two_events_of_one_time_both_pass_or_the_first_does(
        self, gates: Gates, event_id: str
    ) -> None:
        await succeed(gates, SAME)
        tied = SAME._replace(event_id=event_id)
        assert await lateness(gates, tied) == Entered()
        assert await lateness(gates, tied, drop_ties=True) == Stale(SAME)

    async def test_only_a_success_moves_the_mark(self, gates: Gates, pass_time: PassTime) -> None:
        await gates.enter(GATE, ME, LEASE, mark=NEWER)
        await gates.leave(GATE, ME)
        assert await lateness(gates, OLDER) == Entered()
        await gates.enter(GATE, ME, LEASE, mark=NEWER)
        pass_time(LEASE)
        assert await lateness(gates, OLDER) == Entered()

    async def test_the_mark_never_goes_back(self, gates: Gates) -> None:
        tied = SAME._replace(event_id="evt_a")
        await succeed(gates, SAME)
        await gates.leave(GATE, ME, mark=OLDER)
        assert await lateness(gates, SAME) == Stale(SAME)
        await succeed(gates, tied)
        assert await lateness(gates, SAME) == Stale(SAME)
        await succeed(gates, tied._replace(event_id="evt_c"))
        assert await lateness(gates, OLDER) == Stale(Mark(2_000, "evt_c"))

    async def test_a_success_is_a_fact_also_of_who_has_lost_the_gate(
        self, gates: Gates, pass_time: PassTime
    ) -> None:
        await gates.enter(GATE, ME, LEASE, mark=SAME)
        pass_time(LEASE)
        await gates.enter(GATE, OTHER, LEASE, mark=OLDER)
        assert await gates.leave(GATE, ME, mark=SAME) is None
        assert isinstance(await look(gates), Busy)
        assert await lateness(gates, OLDER) == Stale(SAME)

    async def test_a_late_event_need_not_wait(self, gates: Gates) -> None:
        await succeed(gates, SAME)
        await gates.enter(GATE, ME, LEASE)
        result = await gates.enter(GATE, OTHER, LEASE, mark=OLDER, waiting=FIRST)
        assert result == Stale(SAME)
        assert await gates.leave(GATE, ME) is None

    async def test_an_event_without_a_mark_is_never_late(self, gates: Gates) -> None:
        await succeed(gates, NEWER)
        assert await look(gates) == Entered()

    async def test_times_are_told_apart_to_the_microsecond_in_any_year(self, gates: Gates) -> None:
        far = Mark(253_402_300_799_999_999, "evt_1")
        await succeed(gates, far)
        assert await lateness(gates, Mark(far.created_at - 1, "evt_2")) == Stale(far)
        await succeed(gates, Mark(far.created_at + 1, "evt_0"))
        assert await lateness(gates, far) == Stale(Mark(far.created_at + 1, "evt_0"))

    async def test_a_time_before_1970_is_one_like_any_other(self, gates: Gates) -> None:
        await succeed(gates, Mark(-5_000_000, "evt_1"))
        assert await lateness(gates, Mark(-5_000_001, "evt_2")) == Stale(Mark(-5_000_000, "evt_1"))
        assert await lateness(gates, Mark(0, "evt_0")) == Entered()

    async def test_a_mark_is_forgotten_a_retention_after_it_last_rose(
        self, gates: Gates, pass_time: PassTime
    ) -> None:
        await succeed(gates, OLDER)
        pass_time(RETENTION - 10)
        await succeed(gates, SAME)
        pass_time(RETENTION - 10)
        assert await lateness(gates, OLDER) == Stale(SAME)
        pass_time(10)
        assert await lateness(gates, OLDER) == Entered()


class TestWaiting:
    async def test_who_leaves_calls_who_has_waited_longest(self, gates: Gates) -> None:
        await gates.enter(GATE, ME, LEASE)
        for event in (FIRST, SECOND, FIRST, THIRD):
            result = await gates.enter(GATE, new_token(), LEASE, waiting=event)
            assert isinstance(result, Busy)
        called: list[DeliveryKey | None] = [await gates.leave(GATE, ME)]
        for _ in range(3):
            token = new_token()
            assert await gates.enter(GATE, token, LEASE) == Entered()
            called.append(await gates.leave(GATE, token))
        assert called == [FIRST, SECOND, THIRD, None]

    async def test_nobody_is_called_while_somebody_has_the_gate(self, gates: Gates) -> None:
        await gates.enter(GATE, ME, LEASE)
        await gates.enter(GATE, OTHER, LEASE, waiting=FIRST)
        assert await gates.leave(GATE, OTHER) is None
        assert await gates.leave(GATE, ME) == FIRST

    async def test_who_leaves_no_gate_calls_where_nobody_has_it(self, gates: Gates) -> None:
        """So the event that waits is called if the gate was left before it was given back."""
        await gates.enter(GATE, ME, LEASE)
        for event in (FIRST, SECOND):
            await gates.enter(GATE, OTHER, LEASE, waiting=event)
        assert await gates.leave(GATE, ME) == FIRST
        assert await gates.leave(GATE, OTHER) == SECOND
        assert await gates.leave(GATE, OTHER) is None

    @pytest.mark.parametrize("place", [0, 1, 2])
    async def test_an_event_that_has_had_its_turn_waits_no_more(
        self, gates: Gates, place: int
    ) -> None:
        events = [FIRST, SECOND, THIRD]
        await gates.enter(GATE, ME, LEASE)
        for event in events:
            await gates.enter(GATE, OTHER, LEASE, waiting=event)
        gone = events.pop(place)
        assert await gates.leave(GATE, OTHER, event=gone) is None
        called = [await gates.leave(GATE, ME, event=gone)]
        called += [await gates.leave(GATE, ME) for _ in range(2)]
        assert called == [*events, None]

    async def test_who_was_noted_last_and_has_had_its_turn_is_not_called(
        self, gates: Gates
    ) -> None:
        await gates.enter(GATE, ME, LEASE)
        await gates.enter(GATE, OTHER, LEASE, waiting=FIRST)
        assert await gates.leave(GATE, ME, event=FIRST) is None
        assert await look(gates) == Entered()

    async def test_notes_are_forgotten_when_the_lease_they_wait_for_ends(
        self, gates: Gates, pass_time: PassTime
    ) -> None:
        await gates.enter(GATE, ME, LEASE)
        await gates.enter(GATE, OTHER, LEASE, waiting=FIRST)
        pass_time(LEASE)
        assert await gates.leave(GATE, ME, mark=NEWER) is None

    async def test_notes_last_while_the_lease_is_begun_anew(
        self, gates: Gates, pass_time: PassTime
    ) -> None:
        await gates.enter(GATE, ME, LEASE)
        await gates.enter(GATE, OTHER, LEASE, waiting=FIRST)
        for _ in range(3):
            pass_time(LEASE - 1)
            await gates.enter(GATE, ME, LEASE)
        assert await gates.leave(GATE, ME) == FIRST

    async def test_many_are_called_in_the_order_they_came(self, gates: Gates) -> None:
        await gates.enter(GATE, ME, LEASE)
        events = [delivery_key("default", f"evt_{n}") for n in range(200)]
        for event in events:
            await gates.enter(GATE, OTHER, LEASE, waiting=event)
        called = [await gates.leave(GATE, ME)]
        called += [await gates.leave(GATE, ME) for _ in range(200)]
        assert called == [*events, None]


class TestUpkeep:
    async def test_pruning_removes_marks_whose_retention_is_over(
        self, store: Store, gates: Gates, pass_time: PassTime
    ) -> None:
        for n in range(20):
            await succeed(gates, OLDER, Gate("default", "app.handlers.sync", f"chan_{n}"))
        pass_time(RETENTION - 1)
        assert await store.prune() == 0
        await succeed(gates, NEWER, Gate("default", "app.handlers.sync", "chan_0"))
        pass_time(1)
        await store.prune()
        assert await lateness(gates, OLDER) == Entered()
        result = await gates.enter(
            Gate("default", "app.handlers.sync", "chan_0"), ME, LEASE, mark=SAME
        )
        assert result == Stale(NEWER)

    async def test_gates_and_the_records_of_events_are_apart(
        self, store: Store, gates: Gates
    ) -> None:
        key = delivery_key("default", "evt_1")
        await succeed(gates, Mark(1, "evt_1"))
        await gates.enter(GATE, ME, LEASE, waiting=key)
        claim = await store.claim(key, ME, LEASE)
        assert isinstance(claim, Claimed)
        await store.complete(claim)
        assert isinstance(await look(gates), Busy)
        assert (await store.stats()).in_flight == 0
