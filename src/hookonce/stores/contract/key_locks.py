"""Rules for key locks: one holder at a time, watermarks that only rise, and the waiting queue."""

from __future__ import annotations

import asyncio

from ..protocols import Store
from ..values import (
    Acquired,
    AcquireResult,
    Busy,
    Claimed,
    DeliveryKey,
    KeyLock,
    Stale,
    Token,
    Watermark,
    new_token,
)
from .bench import (
    HOUR,
    LEASE,
    RETENTION,
    Bench,
    every_store,
    key_of,
)

KEY_LOCK = KeyLock("default", "app.handlers.sync", "chan_1")


ME, OTHER = Token("0xme"), Token("0xother")


FIRST, SECOND, THIRD = (key_of(f"evt_{n}") for n in "123")


OLDER, SAME, NEWER = Watermark(1_000, "evt_b"), Watermark(2_000, "evt_b"), Watermark(3_000, "evt_a")


async def _try(store: Store, key_lock: KeyLock = KEY_LOCK) -> AcquireResult:
    """Acquire the key lock as another caller, release it, and return the answer."""
    token = new_token()
    result = await store.acquire_key_lock(key_lock, token, LEASE)
    if isinstance(result, Acquired):
        await store.release_key_lock(key_lock, token)
    return result


async def _try_event(
    store: Store, watermark: Watermark, *, drop_ties: bool = False
) -> AcquireResult:
    """Acquire the key lock for an event, release it without a success, and return the answer."""
    token = new_token()
    result = await store.acquire_key_lock(
        KEY_LOCK, token, LEASE, watermark=watermark, drop_ties=drop_ties
    )
    await store.release_key_lock(KEY_LOCK, token)
    return result


async def _succeed(store: Store, watermark: Watermark, key_lock: KeyLock = KEY_LOCK) -> None:
    """Acquire the key lock for an event and release it with a success; both must be granted."""
    token = new_token()
    result = await store.acquire_key_lock(key_lock, token, LEASE, watermark=watermark)
    assert result == Acquired()
    await store.release_key_lock(key_lock, token, watermark=watermark)


@every_store
async def one_of_200_concurrent_callers_acquires_a_key_lock(bench: Bench) -> None:
    store = bench.store
    results = await asyncio.gather(
        *(store.acquire_key_lock(KEY_LOCK, new_token(), LEASE) for _ in range(200))
    )
    assert results.count(Acquired()) == 1
    assert results.count(Busy(bench.clock() + LEASE)) == 199


@every_store
async def a_released_key_lock_is_free(bench: Bench) -> None:
    store = bench.store
    assert await store.acquire_key_lock(KEY_LOCK, ME, LEASE) == Acquired()
    assert isinstance(await _try(store), Busy)
    assert await store.release_key_lock(KEY_LOCK, ME) is None
    assert await _try(store) == Acquired()


@every_store.each(
    other=[
        KeyLock("other", "app.handlers.sync", "chan_1"),
        KeyLock("default", "app.handlers.other", "chan_1"),
        KeyLock("default", "app.handlers.sync", "chan_2"),
        KeyLock("default", "app.handlers.sync", "chan_1 "),
        KeyLock("default", "app.handlers", "sync:chan_1"),
        KeyLock("default:app", "handlers.sync", "chan_1"),
    ]
)
async def key_locks_differ_by_endpoint_handler_and_key(bench: Bench, other: KeyLock) -> None:
    store = bench.store
    await store.acquire_key_lock(KEY_LOCK, ME, LEASE)
    await _succeed(store, NEWER, other)
    await _succeed(store, OLDER, KeyLock("default", "app.handlers.third", "chan_1"))
    await store.release_key_lock(KEY_LOCK, ME)
    assert await _try_event(store, OLDER) == Acquired()


@every_store.each(key=["", "ünïcode 名", "a:b{c}", "line\nbreak\0", "\ud800", "x" * 200])
async def a_key_may_be_any_text(bench: Bench, key: str) -> None:
    store = bench.store
    key_lock = KeyLock("default", "app.handlers.sync", key)
    assert await store.acquire_key_lock(key_lock, ME, LEASE) == Acquired()
    assert isinstance(await _try(store, key_lock), Busy)
    assert await store.release_key_lock(key_lock, ME, watermark=OLDER) is None
    assert await _try(store, key_lock) == Acquired()


@every_store
async def only_the_holder_releases_a_key_lock(bench: Bench) -> None:
    store = bench.store
    await store.acquire_key_lock(KEY_LOCK, ME, LEASE)
    assert await store.release_key_lock(KEY_LOCK, OTHER) is None
    assert isinstance(await _try(store), Busy)


@every_store
async def a_second_release_does_nothing(bench: Bench) -> None:
    store = bench.store
    await store.acquire_key_lock(KEY_LOCK, ME, LEASE)
    await store.release_key_lock(KEY_LOCK, ME)
    await store.acquire_key_lock(KEY_LOCK, OTHER, LEASE)
    assert await store.release_key_lock(KEY_LOCK, ME) is None
    assert isinstance(await _try(store), Busy)


@every_store
async def a_key_lock_is_busy_until_its_lease_ends_and_then_free(bench: Bench) -> None:
    store = bench.store
    await store.acquire_key_lock(KEY_LOCK, ME, LEASE)
    until = bench.clock() + LEASE
    bench.clock.advance(LEASE - 0.5)
    assert await _try(store) == Busy(until)
    bench.clock.advance(0.5)
    assert await _try(store) == Acquired()


@every_store
async def acquiring_again_restarts_the_lease_of_a_key_lock(bench: Bench) -> None:
    store = bench.store
    for _ in range(4):
        assert await store.acquire_key_lock(KEY_LOCK, ME, LEASE) == Acquired()
        bench.clock.advance(LEASE - 1)
    assert await _try(store) == Busy(bench.clock() + 1)


@every_store
async def the_holder_acquires_again_although_its_event_is_stale_by_now(bench: Bench) -> None:
    store = bench.store
    await store.acquire_key_lock(KEY_LOCK, ME, LEASE, watermark=OLDER)
    await store.release_key_lock(KEY_LOCK, OTHER, watermark=NEWER)
    assert await store.acquire_key_lock(KEY_LOCK, ME, LEASE, watermark=OLDER) == Acquired()


@every_store
async def a_late_holder_acquires_again_if_the_key_lock_is_free(bench: Bench) -> None:
    store = bench.store
    await store.acquire_key_lock(KEY_LOCK, ME, LEASE)
    bench.clock.advance(LEASE + 5)
    assert await store.acquire_key_lock(KEY_LOCK, ME, LEASE) == Acquired()
    bench.clock.advance(LEASE + 5)
    assert await store.acquire_key_lock(KEY_LOCK, OTHER, LEASE) == Acquired()
    assert isinstance(await store.acquire_key_lock(KEY_LOCK, ME, LEASE), Busy)


@every_store
async def a_clock_that_is_set_back_holds_no_key_lock_longer(bench: Bench) -> None:
    store = bench.store
    await store.acquire_key_lock(KEY_LOCK, ME, LEASE)
    bench.clock.advance(-5 * HOUR)
    assert await _try(store) == Busy(bench.clock() + LEASE)
    assert await store.acquire_key_lock(KEY_LOCK, ME, LEASE) == Acquired()
    bench.clock.advance(LEASE)
    assert await _try(store) == Acquired()


@every_store
async def an_older_event_is_stale_and_a_newer_one_is_not(bench: Bench) -> None:
    store = bench.store
    await _succeed(store, SAME)
    assert await _try_event(store, OLDER) == Stale(SAME)
    assert await _try_event(store, NEWER) == Acquired()


@every_store
async def the_event_itself_is_stale_once_it_has_succeeded(bench: Bench) -> None:
    store = bench.store
    await _succeed(store, SAME)
    assert await _try_event(store, SAME) == Stale(SAME)


@every_store.each(event_id=["evt_a", "evt_c"])
async def a_tie_is_stale_only_if_ties_are_dropped(bench: Bench, event_id: str) -> None:
    store = bench.store
    await _succeed(store, SAME)
    tied = SAME._replace(event_id=event_id)
    assert await _try_event(store, tied) == Acquired()
    assert await _try_event(store, tied, drop_ties=True) == Stale(SAME)


@every_store
async def only_a_success_raises_the_watermark(bench: Bench) -> None:
    store = bench.store
    await store.acquire_key_lock(KEY_LOCK, ME, LEASE, watermark=NEWER)
    await store.release_key_lock(KEY_LOCK, ME)
    assert await _try_event(store, OLDER) == Acquired()
    await store.acquire_key_lock(KEY_LOCK, ME, LEASE, watermark=NEWER)
    bench.clock.advance(LEASE)
    assert await _try_event(store, OLDER) == Acquired()


@every_store
async def a_watermark_never_falls(bench: Bench) -> None:
    store = bench.store
    tied = SAME._replace(event_id="evt_a")
    await _succeed(store, SAME)
    await store.release_key_lock(KEY_LOCK, ME, watermark=OLDER)
    assert await _try_event(store, SAME) == Stale(SAME)
    await _succeed(store, tied)
    assert await _try_event(store, SAME) == Stale(SAME)
    await _succeed(store, tied._replace(event_id="evt_c"))
    assert await _try_event(store, OLDER) == Stale(Watermark(2_000, "evt_c"))


@every_store
async def a_later_generation_of_the_newest_event_is_not_stale(bench: Bench) -> None:
    """An operator may replay the event that set the watermark, with a higher generation."""
    store = bench.store
    again, third = SAME._replace(generation=1), SAME._replace(generation=3)
    await _succeed(store, SAME)
    assert await _try_event(store, SAME) == Stale(SAME)
    for drop_ties in (False, True):
        acquired = await store.acquire_key_lock(
            KEY_LOCK, ME, LEASE, watermark=again, drop_ties=drop_ties
        )
        assert acquired == Acquired()
    await store.release_key_lock(KEY_LOCK, ME)
    assert await _try_event(store, SAME) == Stale(SAME)
    await _succeed(store, again)
    assert await _try_event(store, SAME) == Stale(again)
    assert await _try_event(store, again) == Stale(again)
    await _succeed(store, third)
    assert await _try_event(store, SAME._replace(generation=2)) == Stale(third)
    await store.release_key_lock(KEY_LOCK, ME, watermark=again)
    assert await _try_event(store, third) == Stale(third)


@every_store
async def a_later_generation_of_an_older_event_is_stale(bench: Bench) -> None:
    store = bench.store
    await _succeed(store, OLDER)
    await _succeed(store, SAME)
    assert await _try_event(store, OLDER._replace(generation=9)) == Stale(SAME)
    tied = SAME._replace(event_id="evt_a", generation=9)
    result = await store.acquire_key_lock(KEY_LOCK, ME, LEASE, watermark=tied, drop_ties=True)
    assert result == Stale(SAME)
    await store.release_key_lock(KEY_LOCK, ME, watermark=OLDER._replace(generation=9))
    assert await _try_event(store, OLDER) == Stale(SAME)


@every_store
async def a_success_counts_although_the_key_lock_was_lost(bench: Bench) -> None:
    store = bench.store
    await store.acquire_key_lock(KEY_LOCK, ME, LEASE, watermark=SAME)
    bench.clock.advance(LEASE)
    await store.acquire_key_lock(KEY_LOCK, OTHER, LEASE, watermark=OLDER)
    assert await store.release_key_lock(KEY_LOCK, ME, watermark=SAME) is None
    assert isinstance(await _try(store), Busy)
    assert await _try_event(store, OLDER) == Stale(SAME)


@every_store
async def a_stale_event_does_not_join_the_queue(bench: Bench) -> None:
    store = bench.store
    await _succeed(store, SAME)
    await store.acquire_key_lock(KEY_LOCK, ME, LEASE)
    result = await store.acquire_key_lock(KEY_LOCK, OTHER, LEASE, watermark=OLDER, waiting=FIRST)
    assert result == Stale(SAME)
    assert await store.release_key_lock(KEY_LOCK, ME) is None


@every_store
async def an_event_without_a_watermark_is_never_stale(bench: Bench) -> None:
    store = bench.store
    await _succeed(store, NEWER)
    assert await _try(store) == Acquired()


@every_store
async def watermarks_differ_by_the_microsecond_in_any_year(bench: Bench) -> None:
    store = bench.store
    far = Watermark(253_402_300_799_999_999, "evt_1")
    await _succeed(store, far)
    assert await _try_event(store, Watermark(far.created_unix_us - 1, "evt_2")) == Stale(far)
    await _succeed(store, Watermark(far.created_unix_us + 1, "evt_0"))
    assert await _try_event(store, far) == Stale(Watermark(far.created_unix_us + 1, "evt_0"))


@every_store
async def a_watermark_may_be_before_1970(bench: Bench) -> None:
    store = bench.store
    await _succeed(store, Watermark(-5_000_000, "evt_1"))
    assert await _try_event(store, Watermark(-5_000_001, "evt_2")) == Stale(
        Watermark(-5_000_000, "evt_1")
    )
    assert await _try_event(store, Watermark(0, "evt_0")) == Acquired()


@every_store
async def a_watermark_is_forgotten_when_its_retention_is_over(bench: Bench) -> None:
    store = bench.store
    await _succeed(store, OLDER)
    bench.clock.advance(RETENTION - 10)
    await _succeed(store, SAME)
    bench.clock.advance(RETENTION - 10)
    assert await _try_event(store, OLDER) == Stale(SAME)
    bench.clock.advance(10)
    assert await _try_event(store, OLDER) == Acquired()


@every_store
async def a_release_returns_the_event_that_has_waited_longest(bench: Bench) -> None:
    store = bench.store
    await store.acquire_key_lock(KEY_LOCK, ME, LEASE)
    for event in (FIRST, SECOND, FIRST, THIRD):
        result = await store.acquire_key_lock(KEY_LOCK, new_token(), LEASE, waiting=event)
        assert isinstance(result, Busy)
    returned: list[DeliveryKey | None] = [await store.release_key_lock(KEY_LOCK, ME)]
    for _ in range(3):
        token = new_token()
        assert await store.acquire_key_lock(KEY_LOCK, token, LEASE) == Acquired()
        returned.append(await store.release_key_lock(KEY_LOCK, token))
    assert returned == [FIRST, SECOND, THIRD, None]


@every_store
async def a_release_by_another_caller_returns_no_event(bench: Bench) -> None:
    store = bench.store
    await store.acquire_key_lock(KEY_LOCK, ME, LEASE)
    await store.acquire_key_lock(KEY_LOCK, OTHER, LEASE, waiting=FIRST)
    assert await store.release_key_lock(KEY_LOCK, OTHER) is None
    assert await store.release_key_lock(KEY_LOCK, ME) == FIRST


@every_store
async def a_release_of_a_free_key_lock_returns_the_next_event(bench: Bench) -> None:
    """The store keeps an event that joined the queue before the holder released the lock."""
    store = bench.store
    await store.acquire_key_lock(KEY_LOCK, ME, LEASE)
    for event in (FIRST, SECOND):
        await store.acquire_key_lock(KEY_LOCK, OTHER, LEASE, waiting=event)
    assert await store.release_key_lock(KEY_LOCK, ME) == FIRST
    assert await store.release_key_lock(KEY_LOCK, OTHER) == SECOND
    assert await store.release_key_lock(KEY_LOCK, OTHER) is None


@every_store.each(place=[0, 1, 2])
async def an_event_that_need_not_wait_leaves_the_queue(bench: Bench, place: int) -> None:
    store = bench.store
    events = [FIRST, SECOND, THIRD]
    await store.acquire_key_lock(KEY_LOCK, ME, LEASE)
    for event in events:
        await store.acquire_key_lock(KEY_LOCK, OTHER, LEASE, waiting=event)
    gone = events.pop(place)
    assert await store.release_key_lock(KEY_LOCK, OTHER, event=gone) is None
    returned = [await store.release_key_lock(KEY_LOCK, ME, event=gone)]
    returned += [await store.release_key_lock(KEY_LOCK, ME) for _ in range(2)]
    assert returned == [*events, None]


@every_store
async def the_only_event_of_the_queue_leaves_it(bench: Bench) -> None:
    store = bench.store
    await store.acquire_key_lock(KEY_LOCK, ME, LEASE)
    await store.acquire_key_lock(KEY_LOCK, OTHER, LEASE, waiting=FIRST)
    assert await store.release_key_lock(KEY_LOCK, ME, event=FIRST) is None
    assert await _try(store) == Acquired()


@every_store
async def the_queue_is_forgotten_when_the_lease_of_the_holder_ends(bench: Bench) -> None:
    store = bench.store
    await store.acquire_key_lock(KEY_LOCK, ME, LEASE)
    await store.acquire_key_lock(KEY_LOCK, OTHER, LEASE, waiting=FIRST)
    bench.clock.advance(LEASE)
    assert await store.release_key_lock(KEY_LOCK, ME, watermark=NEWER) is None


@every_store
async def the_queue_lasts_while_the_holder_acquires_again(bench: Bench) -> None:
    store = bench.store
    await store.acquire_key_lock(KEY_LOCK, ME, LEASE)
    await store.acquire_key_lock(KEY_LOCK, OTHER, LEASE, waiting=FIRST)
    for _ in range(3):
        bench.clock.advance(LEASE - 1)
        await store.acquire_key_lock(KEY_LOCK, ME, LEASE)
    assert await store.release_key_lock(KEY_LOCK, ME) == FIRST


@every_store
async def many_waiting_events_are_returned_in_their_order(bench: Bench) -> None:
    store = bench.store
    await store.acquire_key_lock(KEY_LOCK, ME, LEASE)
    events = [key_of(f"evt_{n}") for n in range(200)]
    for event in events:
        await store.acquire_key_lock(KEY_LOCK, OTHER, LEASE, waiting=event)
    returned = [await store.release_key_lock(KEY_LOCK, ME)]
    returned += [await store.release_key_lock(KEY_LOCK, ME) for _ in range(200)]
    assert returned == [*events, None]


@every_store
async def pruning_removes_watermarks_whose_retention_is_over(bench: Bench) -> None:
    store = bench.store
    for n in range(20):
        await _succeed(store, OLDER, KeyLock("default", "app.handlers.sync", f"chan_{n}"))
    bench.clock.advance(RETENTION - 1)
    assert await store.prune() == 0
    await _succeed(store, NEWER, KeyLock("default", "app.handlers.sync", "chan_0"))
    bench.clock.advance(1)
    await store.prune()
    assert await _try_event(store, OLDER) == Acquired()
    result = await store.acquire_key_lock(
        KeyLock("default", "app.handlers.sync", "chan_0"), ME, LEASE, watermark=SAME
    )
    assert result == Stale(NEWER)


@every_store
async def key_locks_and_the_records_of_events_are_independent(bench: Bench) -> None:
    store = bench.store
    key = key_of("evt_1")
    await _succeed(store, Watermark(1, "evt_1"))
    await store.acquire_key_lock(KEY_LOCK, ME, LEASE, waiting=key)
    claim = await store.claim(key, ME, LEASE)
    assert isinstance(claim, Claimed)
    await store.complete(claim)
    assert isinstance(await _try(store), Busy)
    assert (await store.stats()).in_flight == 0
