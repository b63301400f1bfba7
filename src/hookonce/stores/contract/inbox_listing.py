"""Rules for the inbox as an operator sees it."""

from __future__ import annotations

import asyncio
from typing import Any

from ..values import (
    Claimed,
    DeadReason,
    DeliveryKey,
    FailedAttempt,
    StoreStats,
    new_token,
)
from .bench import (
    DELIVERY,
    HOUR,
    KEY,
    LEASE,
    NONE,
    PATIENCE_SECONDS,
    START,
    Bench,
    about,
    delivery,
    enqueue,
    enqueue_all,
    entry_of,
    fetch,
    fetch_one,
    ids,
    key_of,
    raises,
    with_inbox,
)


@with_inbox
async def an_entry_has_the_state_and_history_of_its_event(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    entry = await entry_of(inbox)
    assert entry.delivery == DELIVERY
    assert (entry.in_flight, entry.attempts, entry.finished, entry.history) == (
        False,
        0,
        NONE,
        (),
    )
    assert entry.due_unix == about(bench.clock())
    fetched = await fetch_one(inbox)
    entry = await entry_of(inbox)
    assert (entry.in_flight, entry.attempts) == (True, 1)
    await inbox.retry(fetched.claim, 60, frozenset({"a"}), "b failed")
    entry = await entry_of(inbox)
    assert (entry.in_flight, entry.attempts, entry.finished) == (False, 1, frozenset({"a"}))
    assert entry.history == (FailedAttempt(1, about(bench.clock()), "b failed"),)
    assert entry.due_unix == about(bench.clock() + 60)
    bench.clock.advance(100)
    entry = await entry_of(inbox)
    assert entry.due_unix == about(bench.clock() - 40)


@with_inbox
async def an_event_outside_the_inbox_has_no_entry(bench: Bench) -> None:
    inbox = bench.inbox
    assert await inbox.entry(KEY) is None
    await enqueue(inbox)
    await inbox.complete((await fetch_one(inbox)).claim)
    assert await inbox.entry(KEY) is None


@with_inbox
async def a_listing_of_the_inbox_has_a_limit_filters_and_empty_bodies(bench: Bench) -> None:
    inbox = bench.inbox
    for number, (endpoint, event_type) in enumerate(
        [("a", "x"), ("a", "y"), ("b", "x"), ("a", "x")]
    ):
        arrived = delivery(
            f"evt_{number}",
            endpoint=endpoint,
            event_type=event_type,
            received_unix=START + number,
        )
        await enqueue(inbox, arrived)
        bench.clock.advance(1)

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


@with_inbox
async def entries_are_filtered_by_event_handler_time_and_place(bench: Bench) -> None:
    inbox = bench.inbox
    for number, endpoint in enumerate("aabab"):
        arrived = delivery(f"evt_{number}", endpoint=endpoint, received_unix=START + number)
        await enqueue(inbox, arrived)
        bench.clock.advance(number % 2)
    for one in (await fetch(inbox, 2, endpoint="a")).fetched:
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
    assert await found(since_unix=START + 2) == every[2:]
    places = {entry.delivery.event_id: entry.place for entry in await inbox.entries()}
    for number, name in enumerate(every):
        assert await found(after=places[name], limit=2) == every[number + 1 : number + 3]
    assert await found(after=places["evt_1"], endpoint="b") == ["evt_2", "evt_4"]


@with_inbox.each(after=["", "evt_1", "-1", "1" * 30, "nan 1:a:b", "1.5 ", DELIVERY])
async def a_listing_of_the_inbox_refuses_an_invalid_place(bench: Bench, after: Any) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    with raises(ValueError):
        await inbox.entries(after=after)


@with_inbox
async def stats_count_the_inbox_of_one_endpoint_or_of_all(bench: Bench) -> None:
    inbox = bench.inbox
    for number, endpoint in enumerate("aab"):
        arrived = delivery(f"evt_{number}", endpoint=endpoint, body=b"x" * 10, received_unix=START)
        await enqueue(inbox, arrived)
    bench.clock.advance(50)
    fetched = (await fetch(inbox, 1, endpoint="a")).fetched[0]
    await inbox.bury(fetched.claim, DeadReason.REJECTED, error="no")
    await fetch(inbox, endpoint="b")
    assert await inbox.stats(endpoint="a") == StoreStats(
        in_flight=0, dead=1, depth=1, bytes=10, oldest_age_seconds=about(50), workers=0
    )
    assert await inbox.stats(endpoint="b") == StoreStats(
        in_flight=1, dead=0, depth=1, bytes=10, oldest_age_seconds=about(50), workers=1
    )
    assert await inbox.stats() == StoreStats(
        in_flight=1, dead=1, depth=2, bytes=20, oldest_age_seconds=about(50), workers=1
    )


@with_inbox
async def a_waiting_event_is_made_due(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    await inbox.retry((await fetch_one(inbox)).claim, 3600)
    assert (await fetch(inbox)).fetched == ()
    assert await inbox.make_due(KEY)
    assert (await fetch_one(inbox)).claim.attempt == 2


@with_inbox
async def an_event_that_is_due_already_keeps_its_place(bench: Bench) -> None:
    inbox = bench.inbox
    for name in ("evt_1", "evt_2"):
        await enqueue_all(inbox, name)
        bench.clock.advance(1)
    assert await inbox.make_due(key_of("evt_1"))
    assert ids(await fetch(inbox)) == ["evt_1", "evt_2"]


@with_inbox
async def an_event_that_a_worker_handles_is_not_made_due(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    await fetch_one(inbox)
    assert not await inbox.make_due(KEY)
    assert (await fetch(inbox)).fetched == ()


@with_inbox
async def an_event_outside_the_inbox_is_not_made_due(bench: Bench) -> None:
    inbox = bench.inbox
    assert not await inbox.make_due(key_of("evt_other"))


@with_inbox
async def making_an_event_due_ends_a_wait(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox)
    await inbox.retry((await fetch_one(inbox)).claim, 3600)
    await fetch(inbox)
    waiting = asyncio.create_task(inbox.wait("default", HOUR))
    await asyncio.sleep(0)
    await inbox.make_due(KEY)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await waiting


@with_inbox
async def the_keys_of_different_endpoints_and_ids_are_different(bench: Bench) -> None:
    inbox = bench.inbox
    await enqueue(inbox, delivery("b:c", endpoint="a"))
    assert isinstance(await inbox.claim(DeliveryKey("a:b"), new_token(), LEASE), Claimed)
