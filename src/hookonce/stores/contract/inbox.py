"""Rules for the inbox: enqueueing, its limits, and how a worker settles a fetched event."""

from __future__ import annotations

import asyncio

from ..values import (
    Batch,
    Claimed,
    Dead,
    DeadReason,
    DeliveryKey,
    Done,
    Full,
    InFlight,
    KeyLock,
    Ownership,
    Stored,
    StoreStats,
    Waiting,
    new_token,
)
from .bench import (
    DELIVERY,
    KEY,
    LEASE,
    NONE,
    Bench,
    about,
    dead_letter_of,
    delivery,
    enqueue,
    enqueue_all,
    entry_of,
    fetch,
    fetch_one,
    only,
    with_inbox,
)


@with_inbox
async def a_delivery_is_fetched_as_it_was_enqueued(bench: Bench) -> None:
    inbox = bench.inbox
    unreadable = delivery("evt_2", event_type=None, body=b"")
    assert await enqueue(inbox) == Stored()
    assert await enqueue(inbox, unreadable) == Stored()
    first, second = (await fetch(inbox)).fetched
    assert first.delivery == DELIVERY
    assert second.delivery == unreadable
    assert (first.claim.key, first.claim.attempt, first.claim.finished) == (KEY, 1, NONE)


@with_inbox
async def a_further_delivery_of_a_waiting_event_is_not_stored(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    assert await enqueue(inbox) == Waiting()
    fetched = await fetch_one(inbox)
    assert await enqueue(inbox) == Waiting()
    await inbox.retry(fetched.claim, 60.0)
    assert await enqueue(inbox) == Waiting()
    assert (await inbox.stats()).depth == 1


@with_inbox
async def an_enqueue_repeated_with_its_token_is_answered_stored(bench: Bench) -> None:
    inbox = bench.inbox
    token = new_token()
    assert await inbox.enqueue(DELIVERY, token) == Stored()
    assert await inbox.enqueue(DELIVERY, token) == Stored()
    assert (await inbox.stats()).depth == 1


@with_inbox
async def events_of_one_key_are_all_fetched_in_turn(bench: Bench) -> None:
    inbox, fetched = bench.inbox, list[DeliveryKey]()
    key_lock = KeyLock("default", "handler", "thread 1")
    for event_id in ("evt_1", "evt_2", "evt_3"):
        await inbox.enqueue(delivery(event_id), new_token(), key_lock=key_lock)
    for _ in range(3):
        for one in (await fetch(inbox)).fetched:
            fetched.append(one.claim.key)
            await inbox.complete(one.claim)
    assert fetched == [delivery(event_id).key for event_id in ("evt_1", "evt_2", "evt_3")]


@with_inbox
async def concurrent_enqueues_store_an_event_once(bench: Bench) -> None:
    inbox = bench.inbox
    results = await asyncio.gather(*(enqueue(inbox) for _ in range(100)))
    assert results.count(Stored()) == 1
    assert results.count(Waiting()) == 99


@with_inbox
async def a_handled_event_is_not_stored_again(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    await inbox.complete((await fetch_one(inbox)).claim)
    assert await enqueue(inbox) == Done()
    assert await inbox.stats() == StoreStats(in_flight=0, dead=0, workers=1)


@with_inbox
async def a_dead_letter_is_not_stored_again(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    await inbox.bury((await fetch_one(inbox)).claim, DeadReason.REJECTED, error="no")
    assert await enqueue(inbox) == Dead()


@with_inbox
async def two_endpoints_may_store_the_same_event(bench: Bench) -> None:
    inbox = bench.inbox
    other = delivery(endpoint="other", body=b"other")
    assert await enqueue(inbox) == Stored()
    assert await enqueue(inbox, other) == Stored()
    fetched = only((await fetch(inbox, endpoint="other")).fetched)
    assert fetched.delivery == other


@with_inbox
async def an_event_of_the_inbox_cannot_be_claimed(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    result = await inbox.claim(KEY, new_token(), LEASE)
    assert isinstance(result, InFlight)
    assert result.until_unix >= bench.clock()
    fetched = await fetch_one(inbox)
    assert isinstance(await inbox.claim(KEY, new_token(), LEASE), InFlight)
    await inbox.retry(fetched.claim, 3600.0)
    result = await inbox.claim(KEY, new_token(), LEASE)
    assert isinstance(result, InFlight)
    assert result.until_unix == about(bench.clock() + 3600)
    bench.clock.advance(4000)
    assert isinstance(await inbox.claim(KEY, new_token(), LEASE), InFlight)


@with_inbox
async def an_event_that_a_request_handles_is_stored_in_case_the_attempt_fails(bench: Bench) -> None:
    inbox = bench.inbox
    claim = await inbox.claim(KEY, new_token(), LEASE)
    assert isinstance(claim, Claimed)
    bench.clock.advance(10)
    assert await enqueue(inbox) == Stored()
    batch = await fetch(inbox)
    assert batch.fetched == ()
    assert batch.next_due_seconds == about(20)
    await inbox.release(claim, frozenset({"a"}), "b failed")
    fetched = await fetch_one(inbox)
    assert (fetched.claim.attempt, fetched.claim.finished) == (2, frozenset({"a"}))


@with_inbox
async def an_event_that_a_request_has_handled_leaves_the_inbox(bench: Bench) -> None:
    inbox = bench.inbox
    claim = await inbox.claim(KEY, new_token(), LEASE)
    assert isinstance(claim, Claimed)
    await enqueue(inbox)
    await inbox.complete(claim)
    assert await inbox.stats() == StoreStats(in_flight=0, dead=0)
    assert await enqueue(inbox) == Done()


@with_inbox
async def an_event_is_not_fetched_while_a_request_extends_its_claim(bench: Bench) -> None:
    inbox = bench.inbox
    claim = await inbox.claim(KEY, new_token(), LEASE)
    assert isinstance(claim, Claimed)
    await enqueue(inbox)
    for _ in range(3):
        bench.clock.advance(20)
        assert await inbox.extend(claim) is Ownership.HELD
        assert (await fetch(inbox)).fetched == ()
    bench.clock.advance(31)
    assert (await fetch_one(inbox)).claim.attempt == 2


@with_inbox
async def a_kept_delivery_is_not_stored_in_the_inbox(bench: Bench) -> None:
    inbox = bench.inbox
    claim = await inbox.claim(KEY, new_token(), LEASE)
    assert isinstance(claim, Claimed)
    await inbox.keep(claim, DELIVERY)
    assert await enqueue(inbox) == Waiting()
    bench.clock.advance(31)
    assert await enqueue(inbox) == Dead()


@with_inbox
async def keeping_changes_no_event_of_the_inbox(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    fetched = await fetch_one(inbox)
    assert await inbox.keep(fetched.claim, DELIVERY) is Ownership.HELD
    await inbox.keep_in_flight(DELIVERY)
    await inbox.release(fetched.claim, NONE, "failed")
    assert await inbox.dead_letters() == []
    assert (await fetch_one(inbox)).claim.attempt == 2


@with_inbox
async def an_inbox_holds_at_most_max_depth_events(bench: Bench) -> None:
    inbox = bench.inbox
    results = [await inbox.enqueue(delivery(f"evt_{n}"), new_token(), max_depth=3) for n in "12345"]
    assert results == [Stored(), Stored(), Stored(), Full(), Full()]
    assert (await inbox.stats()).depth == 3


@with_inbox
async def an_inbox_holds_at_most_max_bytes(bench: Bench) -> None:
    inbox = bench.inbox
    hundred = delivery("evt_1", body=b"x" * 100)
    fifty = delivery("evt_2", body=b"x" * 50)
    one = delivery("evt_3", body=b"x")
    assert await inbox.enqueue(hundred, new_token(), max_bytes=150) == Stored()
    assert await inbox.enqueue(fifty, new_token(), max_bytes=150) == Stored()
    assert await inbox.enqueue(one, new_token(), max_bytes=150) == Full()
    assert (await inbox.stats()).bytes == 150


@with_inbox
async def a_full_inbox_still_knows_its_events(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue_all(inbox, "evt_1", "evt_2")
    await inbox.complete((await fetch(inbox, 1)).fetched[0].claim)
    assert await inbox.enqueue(delivery("evt_2"), new_token(), max_depth=1) == Waiting()
    assert await inbox.enqueue(delivery("evt_1"), new_token(), max_depth=1) == Done()


@with_inbox
async def completion_and_burial_free_the_space_of_an_event(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue_all(inbox, "evt_1", "evt_2")
    first, second = (await fetch(inbox)).fetched
    await inbox.complete(first.claim)
    await inbox.bury(second.claim, DeadReason.EXHAUSTED, error="no")
    stats = await inbox.stats()
    assert (stats.depth, stats.bytes, stats.oldest_age_seconds) == (0, 0, None)
    assert await inbox.enqueue(delivery("evt_3"), new_token(), max_depth=1) == Stored()


@with_inbox
async def the_limits_hold_for_each_endpoint(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox, delivery(endpoint="other"))
    assert await inbox.enqueue(DELIVERY, new_token(), max_depth=1) == Stored()


@with_inbox
async def a_deferred_event_is_due_after_its_delay(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    fetched = await fetch_one(inbox)
    result = await inbox.retry(fetched.claim, 60, frozenset({"a"}), "b: ValueError")
    assert result is Ownership.HELD
    failed_at = bench.clock()
    batch = await fetch(inbox)
    assert batch.fetched == ()
    assert batch.next_due_seconds == about(60)
    bench.clock.advance(60.1)
    again = await fetch_one(inbox)
    assert (again.claim.attempt, again.claim.finished) == (2, frozenset({"a"}))
    entry = await entry_of(inbox)
    failure = only(entry.history)
    assert (failure.number, failure.error) == (1, "b: ValueError")
    assert failure.ended_unix == about(failed_at)


@with_inbox.each(step=["extend", "retry", "release", "bury"])
async def only_the_owner_settles_a_fetched_event(bench: Bench, step: str) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    stale = (await fetch_one(inbox)).claim
    bench.clock.advance(LEASE + 1)
    owner = (await fetch_one(inbox)).claim
    outstanding = frozenset({"late"})
    calls = {
        "extend": lambda: inbox.extend(stale, NONE, outstanding),
        "retry": lambda: inbox.retry(stale, 0, NONE, "late", outstanding=outstanding, began=False),
        "release": lambda: inbox.release(stale, NONE, "late", outstanding=outstanding, began=False),
        "bury": lambda: inbox.bury(
            stale, DeadReason.EXHAUSTED, error="late", outstanding=outstanding
        ),
    }
    assert await calls[step]() is Ownership.LOST
    assert (await fetch(inbox)).fetched == ()
    assert await inbox.retry(owner, 0) is Ownership.HELD
    later = (await fetch_one(inbox)).claim
    assert (later.attempt, later.outstanding) == (3, NONE)


@with_inbox
async def a_late_completion_of_a_fetched_event_counts(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    stale = (await fetch_one(inbox)).claim
    bench.clock.advance(LEASE + 1)
    owner = (await fetch_one(inbox)).claim
    await inbox.complete(stale)
    assert await inbox.retry(owner, 0) is Ownership.LOST
    assert (await fetch(inbox)).fetched == ()
    assert await enqueue(inbox) == Done()


@with_inbox
async def a_fetched_event_is_buried_with_its_own_delivery_and_history(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    await inbox.retry((await fetch_one(inbox)).claim, 0, frozenset({"a"}), "first")
    last = (await fetch_one(inbox)).claim
    result = await inbox.bury(last, DeadReason.EXHAUSTED, error="second", finished=frozenset({"b"}))
    assert result is Ownership.HELD
    dead = await dead_letter_of(inbox)
    assert dead.delivery == DELIVERY
    assert (dead.reason, dead.error, dead.attempts) == ("exhausted", "second", 2)
    assert dead.finished == frozenset({"a", "b"})
    assert [(f.number, f.error) for f in dead.history] == [(1, "first"), (2, "second")]
    assert (await fetch(inbox)) == Batch((), None)


@with_inbox
async def a_dead_letter_from_the_inbox_is_replayed(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    await inbox.bury((await fetch_one(inbox)).claim, DeadReason.REJECTED, error="no")
    claim = await inbox.replay(KEY, new_token(), LEASE)
    assert isinstance(claim, Claimed)
    assert claim.attempt == 2
    await inbox.complete(claim)
    assert await enqueue(inbox) == Done()
    assert await inbox.dead_letters() == []


@with_inbox
async def a_discarded_event_of_the_inbox_is_done(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    await inbox.bury((await fetch_one(inbox)).claim, DeadReason.REJECTED, error="no")
    assert await inbox.discard(KEY)
    assert await enqueue(inbox) == Done()


@with_inbox
async def the_history_of_an_event_is_bounded(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    for number in range(30):
        await inbox.retry((await fetch_one(inbox)).claim, 0, NONE, f"{number} " + "x" * 9_000)
    entry = await entry_of(inbox)
    assert [failure.number for failure in entry.history] == list(range(11, 31))
    assert all(len(failure.error) <= 1_000 for failure in entry.history)
