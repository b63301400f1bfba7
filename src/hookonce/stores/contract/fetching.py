"""Rules for workers: fetching, leases, waiting for work."""

from __future__ import annotations

import asyncio

from ..protocols import WORKER_SECONDS, InboxStore
from ..values import (
    INTERRUPTED,
    Batch,
    Ownership,
    new_token,
)
from .bench import (
    HOUR,
    LEASE,
    PATIENCE_SECONDS,
    Bench,
    about,
    delivery,
    enqueue,
    enqueue_all,
    entry_of,
    fetch,
    fetch_one,
    ids,
    only,
    with_inbox,
)


@with_inbox
async def events_are_fetched_in_the_order_of_their_arrival(bench: Bench) -> None:
    inbox = bench.inbox
    names = [f"evt_{n}" for n in (3, 1, 2)]
    for name in names:
        await enqueue(inbox, delivery(name))
        bench.clock.advance(1)
    assert ids(await fetch(inbox)) == names


@with_inbox
async def a_fetch_returns_at_most_its_limit_and_no_event_twice(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue_all(inbox, "evt_1", "evt_2", "evt_3")
    first = await fetch(inbox, 2)
    second = await fetch(inbox, 2)
    assert len(first.fetched) == 2
    assert sorted(ids(first) + ids(second)) == ["evt_1", "evt_2", "evt_3"]
    assert first.next_due_seconds == 0
    assert second.next_due_seconds == about(LEASE)
    assert (await fetch(inbox)).fetched == ()


@with_inbox
async def an_empty_inbox_returns_no_event_and_no_time(bench: Bench) -> None:
    inbox = bench.inbox
    assert await fetch(inbox) == Batch((), None)


@with_inbox
async def ten_concurrent_workers_share_the_events(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue_all(inbox, *(f"evt_{n}" for n in range(40)))
    batches = await asyncio.gather(*(fetch(inbox, 7, worker=f"w{n}") for n in range(10)))
    fetched = [name for batch in batches for name in ids(batch)]
    assert sorted(fetched) == sorted(f"evt_{n}" for n in range(40))


@with_inbox
async def a_fetch_repeated_with_its_token_returns_the_same_claims(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue_all(inbox, "evt_1", "evt_2", "evt_3")
    token = new_token()
    first = await fetch(inbox, 2, token=token)
    bench.clock.advance(1)
    again = await fetch(inbox, 2, token=token)
    assert {t.claim for t in again.fetched} == {t.claim for t in first.fetched}
    assert {t.delivery.body for t in again.fetched} == {t.delivery.body for t in first.fetched}
    await inbox.complete(first.fetched[0].claim)
    again = await fetch(inbox, 2, token=token)
    assert [t.claim for t in again.fetched] == [first.fetched[1].claim]


@with_inbox
async def a_repeated_fetch_restarts_the_lease(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue_all(inbox, "evt_1")
    token = new_token()
    first = await fetch(inbox, token=token)
    bench.clock.advance(LEASE - 1)
    assert (await fetch(inbox, token=token)).fetched == first.fetched
    bench.clock.advance(LEASE - 1)
    assert (await fetch(inbox, worker="other")).fetched == ()
    bench.clock.advance(2)
    assert len((await fetch(inbox, worker="other")).fetched) == 1


@with_inbox
async def a_fetch_repeated_after_its_lease_returns_nothing(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue_all(inbox, "evt_1")
    token = new_token()
    await fetch(inbox, token=token)
    bench.clock.advance(LEASE + 1)
    assert (await fetch(inbox, token=token)).fetched == ()
    assert len((await fetch(inbox, worker="other")).fetched) == 1


@with_inbox
async def large_events_are_fetched_in_several_batches(bench: Bench) -> None:
    inbox = bench.inbox
    for number in range(6):
        await enqueue(inbox, delivery(f"evt_{number}", body=bytes(2 * 1024 * 1024)))
    batch = await fetch(inbox)
    assert 1 <= len(batch.fetched) < 6
    assert batch.next_due_seconds == 0
    names = ids(batch)
    while len(names) < 6:
        names += ids(await fetch(inbox))
    assert sorted(names) == [f"evt_{number}" for number in range(6)]


@with_inbox
async def an_event_is_due_again_when_its_lease_ends(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    await fetch_one(inbox)
    ended_at = bench.clock() + LEASE
    bench.clock.advance(LEASE - 1)
    batch = await fetch(inbox)
    assert batch.fetched == ()
    assert batch.next_due_seconds == about(1)
    bench.clock.advance(2)
    again = await fetch_one(inbox)
    assert again.claim.attempt == 2
    entry = await entry_of(inbox)
    failure = only(entry.history)
    assert (failure.number, failure.error) == (1, INTERRUPTED)
    assert failure.ended_unix == about(ended_at)


@with_inbox
async def an_extension_delays_the_next_fetch_and_records_finished_handlers(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    fetched = await fetch_one(inbox)
    for _ in range(4):
        bench.clock.advance(20)
        assert await inbox.extend(fetched.claim, frozenset({"a"})) is Ownership.HELD
        assert (await fetch(inbox)).fetched == ()
    bench.clock.advance(31)
    again = await fetch_one(inbox)
    assert (again.claim.attempt, again.claim.finished) == (2, frozenset({"a"}))


@with_inbox
async def a_clock_that_is_set_back_ends_no_lease_of_a_worker(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    await fetch_one(inbox)
    bench.clock.advance(-7200)
    assert (await fetch(inbox)).fetched == ()
    bench.clock.advance(LEASE + 1)
    assert (await fetch_one(inbox)).claim.attempt == 2


@with_inbox
async def a_clock_that_is_set_back_makes_no_backoff_longer(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    await inbox.retry((await fetch_one(inbox)).claim, 60)
    bench.clock.advance(-7200)
    assert (await fetch(inbox)).fetched == ()
    bench.clock.advance(61)
    assert (await fetch_one(inbox)).claim.attempt == 2


@with_inbox
async def an_enqueue_ends_a_wait(bench: Bench) -> None:
    inbox = bench.inbox
    await fetch(inbox)
    waiting = asyncio.create_task(inbox.wait("default", HOUR))
    await asyncio.sleep(0)
    await enqueue(inbox)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await waiting
    assert len((await fetch(inbox)).fetched) == 1


@with_inbox
async def an_enqueue_between_fetch_and_wait_ends_the_wait(bench: Bench) -> None:
    inbox = bench.inbox
    await fetch(inbox)
    await enqueue(inbox)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await inbox.wait("default", HOUR)


@with_inbox
async def an_enqueue_by_another_store_ends_a_wait(bench: Bench) -> None:
    inbox = bench.inbox
    other = bench.open()
    assert isinstance(other, InboxStore)
    await fetch(inbox)
    waiting = asyncio.create_task(inbox.wait("default", HOUR))
    await enqueue(other)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await waiting


@with_inbox
async def a_wait_ends_after_its_seconds(bench: Bench) -> None:
    inbox = bench.inbox
    await fetch(inbox)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await inbox.wait("default", 0.05)


@with_inbox
async def a_cancelled_wait_does_no_harm(bench: Bench) -> None:
    inbox = bench.inbox
    for _ in range(3):
        waiting = asyncio.create_task(inbox.wait("default", 20.0))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait({waiting})
        # `wait` may have ended before `cancel`.
        assert waiting.cancelled() or not waiting.exception()
    await enqueue(inbox)
    assert len((await fetch(inbox)).fetched) == 1


@with_inbox
async def a_worker_counts_from_its_first_fetch_until_it_retires(bench: Bench) -> None:
    inbox = bench.inbox
    await fetch(inbox, worker="w1")
    await fetch(inbox, 0, worker="w2")
    assert (await inbox.stats()).workers == 2
    await inbox.retire("w1")
    assert (await inbox.stats()).workers == 1


@with_inbox
async def a_silent_worker_is_forgotten(bench: Bench) -> None:
    inbox = bench.inbox
    await fetch(inbox)
    bench.clock.advance(WORKER_SECONDS - 1)
    assert (await inbox.stats()).workers == 1
    bench.clock.advance(2)
    assert (await inbox.stats()).workers == 0
    await fetch(inbox)
    assert (await inbox.stats()).workers == 1


@with_inbox
async def a_fetch_with_limit_0_returns_no_event(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    assert (await fetch(inbox, 0)).fetched == ()
    assert (await fetch_one(inbox)).claim.attempt == 1


@with_inbox
async def workers_are_counted_for_their_endpoint(bench: Bench) -> None:
    inbox = bench.inbox
    await fetch(inbox, endpoint="other")
    assert (await inbox.stats(endpoint="default")).workers == 0
    assert (await inbox.stats(endpoint="other")).workers == 1
