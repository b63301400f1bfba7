"""How every backend with an inbox stores events, hands them to workers, and takes them back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from stores.conftest import BACKENDS
from support.waiting import PATIENCE_SECONDS

from hookonce.clock import Clock
from hookonce.stores.protocols import DEFAULT_RETENTION, WORKER_SECONDS, InboxStore, Store
from hookonce.stores.values import (
    INTERRUPTED,
    Batch,
    Claimed,
    Dead,
    DeadReason,
    Delivery,
    DeliveryKey,
    Done,
    EnqueueResult,
    FailedAttempt,
    Fetched,
    Full,
    InFlight,
    Ownership,
    Stored,
    StoreStats,
    Token,
    Waiting,
    delivery_key,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 30.0
HOUR = 3600.0
NONE: frozenset[str] = frozenset()
RECEIVED_AT = 1_700_000_000.0

PassTime = Callable[[float], None]


def delivery(
    event_id: str = "evt_1",
    *,
    endpoint: str = "default",
    event_type: str | None = "comment.received",
    body: bytes | None = None,
    received_at: float = RECEIVED_AT,
) -> Delivery:
    content = event_id.encode() + bytes(range(256)) if body is None else body
    return Delivery(endpoint, event_id, event_type, received_at, content)


DELIVERY = delivery()
KEY = DELIVERY.key


def about(seconds: float) -> Any:
    """Equal to a time that went through a store which counts milliseconds."""
    return pytest.approx(seconds, abs=0.01)


@pytest.fixture(params=[name for name in BACKENDS if name != "memory"])  # which has no inbox
def make_store(request: pytest.FixtureRequest, clock: Clock) -> Callable[[], Store]:
    """Return a function that makes stores on the same file or server, whose time is ``clock``."""
    return lambda: BACKENDS[request.param](request, DEFAULT_RETENTION, clock)


@pytest.fixture
async def inbox(make_store: Callable[[], Store]) -> AsyncIterator[InboxStore]:
    """Return an empty store with an inbox."""
    store = make_store()
    assert isinstance(store, InboxStore)
    yield store
    await store.aclose()


async def put(inbox: InboxStore, put: Delivery = DELIVERY) -> EnqueueResult:
    return await inbox.enqueue(put, new_token())


async def enqueue_all(inbox: InboxStore, *event_ids: str) -> None:
    for event_id in event_ids:
        assert await put(inbox, delivery(event_id)) == Stored()


async def take(
    inbox: InboxStore,
    limit: int = 10,
    *,
    lease: float = LEASE,
    endpoint: str = "default",
    worker: str = "worker",
    token: Token | None = None,
) -> Batch:
    return await inbox.fetch(
        limit, lease, endpoint=endpoint, worker=worker, token=token or new_token()
    )


async def fetch_one(inbox: InboxStore) -> Fetched:
    """Take what must be the only event that is due."""
    [taken] = (await take(inbox)).fetched
    return taken


def ids(batch: Batch) -> list[str]:
    return [taken.delivery.event_id for taken in batch.fetched]


class TestEnqueueing:
    async def test_what_was_put_is_taken_as_it_was(self, inbox: InboxStore) -> None:
        unreadable = delivery("evt_2", event_type=None, body=b"")
        assert await put(inbox) == Stored()
        assert await put(inbox, unreadable) == Stored()
        first, second = (await take(inbox)).fetched
        assert first.delivery == DELIVERY
        assert second.delivery == unreadable
        assert (first.claim.key, first.claim.attempt, first.claim.finished) == (KEY, 1, NONE)

    async def test_a_further_delivery_of_it_is_known(self, inbox: InboxStore) -> None:
        await put(inbox)
        assert await put(inbox) == Waiting()
        taken = await fetch_one(inbox)
        assert await put(inbox) == Waiting()
        await inbox.retry(taken.claim, 60.0)
        assert await put(inbox) == Waiting()
        assert (await inbox.stats()).depth == 1

    async def test_a_put_repeated_with_its_own_token_was_stored(self, inbox: InboxStore) -> None:
        token = new_token()
        assert await inbox.enqueue(DELIVERY, token) == Stored()
        assert await inbox.enqueue(DELIVERY, token) == Stored()
        assert (await inbox.stats()).depth == 1

    async def test_100_puts_of_one_event_at_once_store_it_once(self, inbox: InboxStore) -> None:
        results = await asyncio.gather(*(put(inbox) for _ in range(100)))
        assert results.count(Stored()) == 1
        assert results.count(Waiting()) == 99

    async def test_what_is_handled_is_done(self, inbox: InboxStore) -> None:
        await put(inbox)
        await inbox.complete((await fetch_one(inbox)).claim)
        assert await put(inbox) == Done()
        assert await inbox.stats() == StoreStats(in_flight=0, dead=0, workers=1)

    async def test_what_is_dead_stays_dead(self, inbox: InboxStore) -> None:
        await put(inbox)
        await inbox.bury((await fetch_one(inbox)).claim, DeadReason.REJECTED, error="no")
        assert await put(inbox) == Dead()

    async def test_two_endpoints_have_the_same_event(self, inbox: InboxStore) -> None:
        other = delivery(endpoint="other", body=b"other")
        assert await put(inbox) == Stored()
        assert await put(inbox, other) == Stored()
        [taken] = (await take(inbox, endpoint="other")).fetched
        assert taken.delivery == other

    async def test_an_event_in_the_inbox_cannot_be_claimed_from_outside(
        self, inbox: InboxStore, clock: Clock, pass_time: PassTime
    ) -> None:
        await put(inbox)
        result = await inbox.claim(KEY, new_token(), LEASE)
        assert isinstance(result, InFlight)
        assert result.until_unix >= clock()
        taken = await fetch_one(inbox)
        assert isinstance(await inbox.claim(KEY, new_token(), LEASE), InFlight)
        await inbox.retry(taken.claim, 3600.0)
        result = await inbox.claim(KEY, new_token(), LEASE)
        assert isinstance(result, InFlight)
        assert result.until_unix == about(clock() + 3600)
        pass_time(4000)
        assert isinstance(await inbox.claim(KEY, new_token(), LEASE), InFlight)

    async def test_an_event_that_runs_inside_a_request_is_stored_for_the_case_that_it_fails(
        self, inbox: InboxStore, pass_time: PassTime
    ) -> None:
        claim = await inbox.claim(KEY, new_token(), LEASE)
        assert isinstance(claim, Claimed)
        pass_time(10)
        assert await put(inbox) == Stored()
        batch = await take(inbox)
        assert batch.fetched == ()
        assert batch.next_due == about(20)
        await inbox.release(claim, frozenset({"a"}), "b failed")
        taken = await fetch_one(inbox)
        assert (taken.claim.attempt, taken.claim.finished) == (2, frozenset({"a"}))

    async def test_an_event_that_runs_inside_a_request_and_succeeds_leaves_nothing(
        self, inbox: InboxStore
    ) -> None:
        claim = await inbox.claim(KEY, new_token(), LEASE)
        assert isinstance(claim, Claimed)
        await put(inbox)
        await inbox.complete(claim)
        assert await inbox.stats() == StoreStats(in_flight=0, dead=0)
        assert await put(inbox) == Done()

    async def test_a_request_s_attempt_that_is_extended_is_not_taken_beside_it(
        self, inbox: InboxStore, pass_time: PassTime
    ) -> None:
        claim = await inbox.claim(KEY, new_token(), LEASE)
        assert isinstance(claim, Claimed)
        await put(inbox)
        for _ in range(3):
            pass_time(20)
            assert await inbox.extend(claim) is Ownership.HELD
            assert (await take(inbox)).fetched == ()
        pass_time(31)
        assert (await fetch_one(inbox)).claim.attempt == 2

    async def test_a_kept_delivery_is_stored_already(
        self, inbox: InboxStore, pass_time: PassTime
    ) -> None:
        claim = await inbox.claim(KEY, new_token(), LEASE)
        assert isinstance(claim, Claimed)
        await inbox.keep(claim, DELIVERY)
        assert await put(inbox) == Waiting()
        pass_time(31)
        assert await put(inbox) == Dead()

    async def test_keeping_adds_nothing_to_what_is_in_the_inbox(self, inbox: InboxStore) -> None:
        await put(inbox)
        taken = await fetch_one(inbox)
        assert await inbox.keep(taken.claim, DELIVERY) is Ownership.HELD
        await inbox.keep_in_flight(DELIVERY)
        await inbox.release(taken.claim, NONE, "failed")
        assert await inbox.dead_letters() == []
        assert (await fetch_one(inbox)).claim.attempt == 2


class TestRoom:
    async def test_an_inbox_holds_so_many_events_and_no_more(self, inbox: InboxStore) -> None:
        results = [
            await inbox.enqueue(delivery(f"evt_{n}"), new_token(), max_depth=3) for n in "12345"
        ]
        assert results == [Stored(), Stored(), Stored(), Full(), Full()]
        assert (await inbox.stats()).depth == 3

    async def test_an_inbox_holds_so_many_bytes_and_no_more(self, inbox: InboxStore) -> None:
        hundred = delivery("evt_1", body=b"x" * 100)
        fifty = delivery("evt_2", body=b"x" * 50)
        one = delivery("evt_3", body=b"x")
        assert await inbox.enqueue(hundred, new_token(), max_bytes=150) == Stored()
        assert await inbox.enqueue(fifty, new_token(), max_bytes=150) == Stored()
        assert await inbox.enqueue(one, new_token(), max_bytes=150) == Full()
        assert (await inbox.stats()).bytes == 150

    async def test_what_is_known_needs_no_room(self, inbox: InboxStore) -> None:
        await enqueue_all(inbox, "evt_1", "evt_2")
        await inbox.complete((await take(inbox, 1)).fetched[0].claim)
        assert await inbox.enqueue(delivery("evt_2"), new_token(), max_depth=1) == Waiting()
        assert await inbox.enqueue(delivery("evt_1"), new_token(), max_depth=1) == Done()

    async def test_room_is_made_by_whatever_takes_an_event_out(self, inbox: InboxStore) -> None:
        await enqueue_all(inbox, "evt_1", "evt_2")
        first, second = (await take(inbox)).fetched
        await inbox.complete(first.claim)
        await inbox.bury(second.claim, DeadReason.EXHAUSTED, error="no")
        stats = await inbox.stats()
        assert (stats.depth, stats.bytes, stats.oldest_age) == (0, 0, None)
        assert await inbox.enqueue(delivery("evt_3"), new_token(), max_depth=1) == Stored()

    async def test_another_endpoint_s_events_take_no_room(self, inbox: InboxStore) -> None:
        await put(inbox, delivery(endpoint="other"))
        assert await inbox.enqueue(DELIVERY, new_token(), max_depth=1) == Stored()


class TestTaking:
    async def test_events_come_in_the_order_of_their_arrival(
        self, inbox: InboxStore, pass_time: PassTime
    ) -> None:
        names = [f"evt_{n}" for n in (3, 1, 2)]
        for name in names:
            await put(inbox, delivery(name))
            pass_time(1)
        assert ids(await take(inbox)) == names

    async def test_no_more_than_asked_for_and_none_twice(self, inbox: InboxStore) -> None:
        await enqueue_all(inbox, "evt_1", "evt_2", "evt_3")
        first = await take(inbox, 2)
        second = await take(inbox, 2)
        assert len(first.fetched) == 2
        assert sorted(ids(first) + ids(second)) == ["evt_1", "evt_2", "evt_3"]
        assert first.next_due == 0
        assert second.next_due == about(LEASE)
        assert (await take(inbox)).fetched == ()

    async def test_an_empty_inbox_gives_nothing_and_no_time(self, inbox: InboxStore) -> None:
        assert await take(inbox) == Batch((), None)

    async def test_ten_workers_at_once_share_what_is_there(self, inbox: InboxStore) -> None:
        await enqueue_all(inbox, *(f"evt_{n}" for n in range(40)))
        batches = await asyncio.gather(*(take(inbox, 7, worker=f"w{n}") for n in range(10)))
        taken = [name for batch in batches for name in ids(batch)]
        assert sorted(taken) == sorted(f"evt_{n}" for n in range(40))

    async def test_a_take_repeated_with_its_token_gives_the_same(
        self, inbox: InboxStore, pass_time: PassTime
    ) -> None:
        await enqueue_all(inbox, "evt_1", "evt_2", "evt_3")
        token = new_token()
        first = await take(inbox, 2, token=token)
        pass_time(1)
        again = await take(inbox, 2, token=token)
        assert {t.claim for t in again.fetched} == {t.claim for t in first.fetched}
        assert {t.delivery.body for t in again.fetched} == {t.delivery.body for t in first.fetched}
        await inbox.complete(first.fetched[0].claim)
        again = await take(inbox, 2, token=token)
        assert [t.claim for t in again.fetched] == [first.fetched[1].claim]

    async def test_a_take_that_is_repeated_begins_the_lease_anew(
        self, inbox: InboxStore, pass_time: PassTime
    ) -> None:
        await enqueue_all(inbox, "evt_1")
        token = new_token()
        first = await take(inbox, token=token)
        pass_time(LEASE - 1)
        assert (await take(inbox, token=token)).fetched == first.fetched
        pass_time(LEASE - 1)
        assert (await take(inbox, worker="other")).fetched == ()
        pass_time(2)
        assert len((await take(inbox, worker="other")).fetched) == 1

    async def test_a_take_that_is_repeated_too_late_gives_nothing_that_others_may_have(
        self, inbox: InboxStore, pass_time: PassTime
    ) -> None:
        await enqueue_all(inbox, "evt_1")
        token = new_token()
        await take(inbox, token=token)
        pass_time(LEASE + 1)
        assert (await take(inbox, token=token)).fetched == ()
        assert len((await take(inbox, worker="other")).fetched) == 1

    async def test_large_events_come_in_several_batches(self, inbox: InboxStore) -> None:
        for number in range(6):
            await put(inbox, delivery(f"evt_{number}", body=bytes(2 * 1024 * 1024)))
        batch = await take(inbox)
        assert 1 <= len(batch.fetched) < 6
        assert batch.next_due == 0
        names = ids(batch)
        while len(names) < 6:
            names += ids(await take(inbox))
        assert sorted(names) == [f"evt_{number}" for number in range(6)]

    async def test_a_lease_that_runs_out_makes_the_event_due(
        self, inbox: InboxStore, pass_time: PassTime, clock: Clock
    ) -> None:
        await put(inbox)
        await fetch_one(inbox)
        ended_at = clock() + LEASE
        pass_time(LEASE - 1)
        batch = await take(inbox)
        assert batch.fetched == ()
        assert batch.next_due == about(1)
        pass_time(2)
        again = await fetch_one(inbox)
        assert again.claim.attempt == 2
        entry = await inbox.entry(KEY)
        assert entry is not None
        [failure] = entry.history
        assert (failure.number, failure.error) == (1, INTERRUPTED)
        assert failure.ended_unix == about(ended_at)

    async def test_a_heartbeat_keeps_it_from_others_and_remembers_what_has_finished(
        self, inbox: InboxStore, pass_time: PassTime
    ) -> None:
        await put(inbox)
        taken = await fetch_one(inbox)
        for _ in range(4):
            pass_time(20)
            assert await inbox.extend(taken.claim, frozenset({"a"})) is Ownership.HELD
            assert (await take(inbox)).fetched == ()
        pass_time(31)
        again = await fetch_one(inbox)
        assert (again.claim.attempt, again.claim.finished) == (2, frozenset({"a"}))

    async def test_a_lease_outlasts_a_clock_that_is_set_back(
        self, inbox: InboxStore, pass_time: PassTime
    ) -> None:
        await put(inbox)
        await fetch_one(inbox)
        pass_time(-7200)
        assert (await take(inbox)).fetched == ()
        pass_time(LEASE + 1)
        assert (await fetch_one(inbox)).claim.attempt == 2

    async def test_a_back_off_is_no_longer_for_a_clock_that_is_set_back(
        self, inbox: InboxStore, pass_time: PassTime
    ) -> None:
        await put(inbox)
        await inbox.retry((await fetch_one(inbox)).claim, 60)
        pass_time(-7200)
        assert (await take(inbox)).fetched == ()
        pass_time(61)
        assert (await fetch_one(inbox)).claim.attempt == 2


class TestSettling:
    async def test_a_retry_comes_after_its_time_with_what_has_finished(
        self, inbox: InboxStore, pass_time: PassTime, clock: Clock
    ) -> None:
        await put(inbox)
        taken = await fetch_one(inbox)
        result = await inbox.retry(taken.claim, 60, frozenset({"a"}), "b: ValueError")
        assert result is Ownership.HELD
        failed_at = clock()
        batch = await take(inbox)
        assert batch.fetched == ()
        assert batch.next_due == about(60)
        pass_time(60.1)
        again = await fetch_one(inbox)
        assert (again.claim.attempt, again.claim.finished) == (2, frozenset({"a"}))
        entry = await inbox.entry(KEY)
        assert entry is not None
        [failure] = entry.history
        assert (failure.number, failure.error) == (1, "b: ValueError")
        assert failure.ended_unix == about(failed_at)

    @pytest.mark.parametrize("step", ["extend", "retry", "release", "bury"])
    async def test_only_the_owner_settles(
        self, inbox: InboxStore, pass_time: PassTime, step: str
    ) -> None:
        await put(inbox)
        stale = (await fetch_one(inbox)).claim
        pass_time(LEASE + 1)
        owner = (await fetch_one(inbox)).claim
        outstanding = frozenset({"late"})
        calls = {
            "extend": lambda: inbox.extend(stale, NONE, outstanding),
            "retry": lambda: inbox.retry(
                stale, 0, NONE, "late", outstanding=outstanding, began=False
            ),
            "release": lambda: inbox.release(
                stale, NONE, "late", outstanding=outstanding, began=False
            ),
            "bury": lambda: inbox.bury(
                stale, DeadReason.EXHAUSTED, error="late", outstanding=outstanding
            ),
        }
        assert await calls[step]() is Ownership.LOST
        assert (await take(inbox)).fetched == ()
        assert await inbox.retry(owner, 0) is Ownership.HELD
        later = (await fetch_one(inbox)).claim
        assert (later.attempt, later.outstanding) == (3, NONE)

    async def test_a_late_completion_is_a_fact(
        self, inbox: InboxStore, pass_time: PassTime
    ) -> None:
        await put(inbox)
        stale = (await fetch_one(inbox)).claim
        pass_time(LEASE + 1)
        owner = (await fetch_one(inbox)).claim
        await inbox.complete(stale)
        assert await inbox.retry(owner, 0) is Ownership.LOST
        assert (await take(inbox)).fetched == ()
        assert await put(inbox) == Done()

    async def test_a_burial_needs_no_delivery_and_has_the_history(self, inbox: InboxStore) -> None:
        await put(inbox)
        await inbox.retry((await fetch_one(inbox)).claim, 0, frozenset({"a"}), "first")
        last = (await fetch_one(inbox)).claim
        result = await inbox.bury(
            last, DeadReason.EXHAUSTED, error="second", finished=frozenset({"b"})
        )
        assert result is Ownership.HELD
        letter = await inbox.dead_letter(KEY)
        assert letter is not None
        assert letter.delivery == DELIVERY
        assert (letter.reason, letter.error, letter.attempts) == ("exhausted", "second", 2)
        assert letter.finished == frozenset({"a", "b"})
        assert [(f.number, f.error) for f in letter.history] == [(1, "first"), (2, "second")]
        assert (await take(inbox)) == Batch((), None)

    async def test_a_dead_letter_from_the_inbox_is_replayed(self, inbox: InboxStore) -> None:
        await put(inbox)
        await inbox.bury((await fetch_one(inbox)).claim, DeadReason.REJECTED, error="no")
        claim = await inbox.replay(KEY, new_token(), LEASE)
        assert isinstance(claim, Claimed)
        assert claim.attempt == 2
        await inbox.complete(claim)
        assert await put(inbox) == Done()
        assert await inbox.dead_letters() == []

    async def test_a_discarded_letter_s_event_is_done(self, inbox: InboxStore) -> None:
        await put(inbox)
        await inbox.bury((await fetch_one(inbox)).claim, DeadReason.REJECTED, error="no")
        assert await inbox.discard(KEY)
        assert await put(inbox) == Done()

    async def test_a_history_is_bounded(self, inbox: InboxStore) -> None:
        await put(inbox)
        for number in range(30):
            await inbox.retry((await fetch_one(inbox)).claim, 0, NONE, f"{number} " + "x" * 9_000)
        entry = await inbox.entry(KEY)
        assert entry is not None
        assert [failure.number for failure in entry.history] == list(range(11, 31))
        assert all(len(failure.error) <= 1_000 for failure in entry.history)


class TestWaking:
    async def test_a_put_ends_the_wait(self, inbox: InboxStore) -> None:
        await take(inbox)
        waiting = asyncio.create_task(inbox.wait("default", HOUR))
        await asyncio.sleep(0)
        await put(inbox)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await waiting
        assert len((await take(inbox)).fetched) == 1

    async def test_a_put_between_the_look_and_the_wait_ends_it(self, inbox: InboxStore) -> None:
        await take(inbox)
        await put(inbox)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await inbox.wait("default", HOUR)

    async def test_a_put_from_another_store_object_ends_it(
        self, inbox: InboxStore, make_store: Callable[[], Store]
    ) -> None:
        other = make_store()
        assert isinstance(other, InboxStore)
        await take(inbox)
        waiting = asyncio.create_task(inbox.wait("default", HOUR))
        await put(other)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await waiting
        await other.aclose()

    async def test_it_ends_by_itself(self, inbox: InboxStore) -> None:
        await take(inbox)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await inbox.wait("default", 0.05)

    async def test_a_wait_that_is_cancelled_does_no_harm(self, inbox: InboxStore) -> None:
        for _ in range(3):
            waiting = asyncio.create_task(inbox.wait("default", 20.0))
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.wait({waiting})
            assert waiting.cancelled() or not waiting.exception()  # a wait may end by itself
        await put(inbox)
        assert len((await take(inbox)).fetched) == 1


class TestWorkers:
    async def test_a_worker_is_seen_from_its_first_look_until_it_retires(
        self, inbox: InboxStore
    ) -> None:
        await take(inbox, worker="w1")
        await take(inbox, 0, worker="w2")
        assert (await inbox.stats()).workers == 2
        await inbox.retire("w1")
        assert (await inbox.stats()).workers == 1

    async def test_a_worker_that_says_no_more_is_forgotten(
        self, inbox: InboxStore, pass_time: PassTime
    ) -> None:
        await take(inbox)
        pass_time(WORKER_SECONDS - 1)
        assert (await inbox.stats()).workers == 1
        pass_time(2)
        assert (await inbox.stats()).workers == 0
        await take(inbox)
        assert (await inbox.stats()).workers == 1

    async def test_with_limit_0_nothing_is_taken(self, inbox: InboxStore) -> None:
        await put(inbox)
        assert (await take(inbox, 0)).fetched == ()
        assert (await fetch_one(inbox)).claim.attempt == 1

    async def test_workers_count_for_their_endpoint(self, inbox: InboxStore) -> None:
        await take(inbox, endpoint="other")
        assert (await inbox.stats(endpoint="default")).workers == 0
        assert (await inbox.stats(endpoint="other")).workers == 1


class TestLooking:
    async def test_an_entry_says_what_is_known(
        self, inbox: InboxStore, clock: Clock, pass_time: PassTime
    ) -> None:
        await put(inbox)
        entry = await inbox.entry(KEY)
        assert entry is not None
        assert entry.delivery == DELIVERY
        assert (entry.in_flight, entry.attempts, entry.finished, entry.history) == (
            False,
            0,
            NONE,
            (),
        )
        assert entry.due_unix == about(clock())
        taken = await fetch_one(inbox)
        entry = await inbox.entry(KEY)
        assert entry is not None
        assert (entry.in_flight, entry.attempts) == (True, 1)
        await inbox.retry(taken.claim, 60, frozenset({"a"}), "b failed")
        entry = await inbox.entry(KEY)
        assert entry is not None
        assert (entry.in_flight, entry.attempts, entry.finished) == (False, 1, frozenset({"a"}))
        assert entry.history == (FailedAttempt(1, about(clock()), "b failed"),)
        assert entry.due_unix == about(clock() + 60)
        pass_time(100)
        entry = await inbox.entry(KEY)
        assert entry is not None
        assert entry.due_unix == about(clock() - 40)

    async def test_what_is_not_there_is_none(self, inbox: InboxStore) -> None:
        assert await inbox.entry(KEY) is None
        await put(inbox)
        await inbox.complete((await fetch_one(inbox)).claim)
        assert await inbox.entry(KEY) is None

    async def test_a_listing_is_bounded_chosen_and_without_bodies(
        self, inbox: InboxStore, pass_time: PassTime
    ) -> None:
        for number, (endpoint, event_type) in enumerate(
            [("a", "x"), ("a", "y"), ("b", "x"), ("a", "x")]
        ):
            arrived = delivery(
                f"evt_{number}",
                endpoint=endpoint,
                event_type=event_type,
                received_at=RECEIVED_AT + number,
            )
            await put(inbox, arrived)
            pass_time(1)

        async def listed(
            endpoint: str | None = None, event_type: str | None = None, limit: int = 100
        ) -> list[str]:
            entries = await inbox.entries(endpoint=endpoint, event_type=event_type, limit=limit)
            assert all(entry.delivery.body == b"" for entry in entries)
            return [entry.delivery.event_id for entry in entries]

        assert await listed() == ["evt_0", "evt_1", "evt_2", "evt_3"]
        assert await listed("a") == ["evt_0", "evt_1", "evt_3"]
        assert await listed("a", "x") == ["evt_0", "evt_3"]
        assert await listed(event_type="x", limit=2) == ["evt_0", "evt_2"]

    async def test_entries_are_found_by_event_handler_time_and_place(
        self, inbox: InboxStore, pass_time: PassTime
    ) -> None:
        for number, endpoint in enumerate("aabab"):
            arrived = delivery(f"evt_{number}", endpoint=endpoint, received_at=RECEIVED_AT + number)
            await put(inbox, arrived)
            pass_time(number % 2)
        for one in (await take(inbox, 2, endpoint="a")).fetched:
            outstanding = frozenset({"alert" if one.delivery.event_id == "evt_0" else "sync"})
            await inbox.retry(one.claim, 60, outstanding=outstanding)

        async def found(**wanted: Any) -> list[str]:
            return [entry.delivery.event_id for entry in await inbox.entries(**wanted)]

        every = [f"evt_{number}" for number in range(5)]
        assert await found() == every
        assert await found(event_id="evt_3") == ["evt_3"]
        assert await found(event_id="evt_3", endpoint="b") == []
        assert await found(handler="sync") == ["evt_1"]
        assert await found(handler="syn") == []
        assert await found(since_unix=RECEIVED_AT + 2) == every[2:]
        places = {entry.delivery.event_id: entry.place for entry in await inbox.entries()}
        for number, name in enumerate(every):
            assert await found(after=places[name], limit=2) == every[number + 1 : number + 3]
        assert await found(after=places["evt_1"], endpoint="b") == ["evt_2", "evt_4"]

    @pytest.mark.parametrize("after", ["", "evt_1", "-1", "1" * 30, "nan 1:a:b", "1.5 ", DELIVERY])
    async def test_entries_go_on_behind_nothing_but_a_place(
        self, inbox: InboxStore, after: Any
    ) -> None:
        await put(inbox)
        with pytest.raises(ValueError, match="after must be the `place` of an event"):
            await inbox.entries(after=after)

    async def test_stats_are_of_one_endpoint_or_of_all(
        self, inbox: InboxStore, pass_time: PassTime
    ) -> None:
        for number, endpoint in enumerate("aab"):
            arrived = delivery(f"evt_{number}", endpoint=endpoint, body=b"x" * 10)
            await put(inbox, arrived)
        pass_time(50)
        taken = (await take(inbox, 1, endpoint="a")).fetched[0]
        await inbox.bury(taken.claim, DeadReason.REJECTED, error="no")
        await take(inbox, endpoint="b")
        assert await inbox.stats(endpoint="a") == StoreStats(
            in_flight=0, dead=1, depth=1, bytes=10, oldest_age=about(50), workers=0
        )
        assert await inbox.stats(endpoint="b") == StoreStats(
            in_flight=1, dead=0, depth=1, bytes=10, oldest_age=about(50), workers=1
        )
        assert await inbox.stats() == StoreStats(
            in_flight=1, dead=1, depth=2, bytes=20, oldest_age=about(50), workers=1
        )


class TestHastening:
    async def test_a_waiting_event_is_due_at_once(self, inbox: InboxStore) -> None:
        await put(inbox)
        await inbox.retry((await fetch_one(inbox)).claim, 3600)
        assert (await take(inbox)).fetched == ()
        assert await inbox.make_due(KEY)
        assert (await fetch_one(inbox)).claim.attempt == 2

    async def test_an_event_that_is_due_keeps_its_place(
        self, inbox: InboxStore, pass_time: PassTime
    ) -> None:
        for name in ("evt_1", "evt_2"):
            await enqueue_all(inbox, name)
            pass_time(1)
        assert await inbox.make_due(delivery_key("default", "evt_1"))
        assert ids(await take(inbox)) == ["evt_1", "evt_2"]

    async def test_an_event_in_work_is_left_alone(self, inbox: InboxStore) -> None:
        await put(inbox)
        await fetch_one(inbox)
        assert not await inbox.make_due(KEY)
        assert (await take(inbox)).fetched == ()

    async def test_what_is_not_there_cannot_be_hastened(self, inbox: InboxStore) -> None:
        assert not await inbox.make_due(delivery_key("default", "evt_other"))

    async def test_a_worker_that_waits_hears_of_it(self, inbox: InboxStore) -> None:
        await put(inbox)
        await inbox.retry((await fetch_one(inbox)).claim, 3600)
        await take(inbox)
        waiting = asyncio.create_task(inbox.wait("default", HOUR))
        await asyncio.sleep(0)
        await inbox.make_due(KEY)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await waiting


async def test_keys_of_an_endpoint_and_an_id_do_not_collide(inbox: InboxStore) -> None:
    await put(inbox, delivery("b:c", endpoint="a"))
    assert isinstance(await inbox.claim(DeliveryKey("a:b"), new_token(), LEASE), Claimed)
