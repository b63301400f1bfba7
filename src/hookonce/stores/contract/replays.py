"""Rules for replays: a caller claims a dead letter, which stays until the attempt succeeds."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ..protocols import Store
from ..values import (
    Claimed,
    Dead,
    DeadLetter,
    DeadReason,
    Done,
    FailedAttempt,
    InFlight,
    Ownership,
    StoreStats,
    Token,
    new_token,
)
from .bench import (
    DELIVERY,
    KEY,
    LEASE,
    NONE,
    Bench,
    claim,
    claimed_by_another,
    dead_letter_of,
    replay,
    with_bodies,
)

_ORIGINS = ["buried", "interrupted"]


async def _with_dead_letter(bench: Bench, origin: str) -> Store:
    """Return a store with a dead letter: it was tried once, and the handler "a" finished."""
    store = bench.store
    owned = await claim(store)
    if origin == "buried":
        await store.bury(owned, DeadReason.EXHAUSTED, finished=frozenset({"a"}), delivery=DELIVERY)
    else:
        await store.extend(owned, frozenset({"a"}))
        await store.keep(owned, DELIVERY)
        bench.clock.advance(LEASE)
    return store


async def _listed(store: Store) -> list[str]:
    """Return the ids of the events that are listed."""
    return [dead.delivery.event_id for dead in await store.dead_letters()]


@with_bodies
async def only_a_dead_letter_is_replayed(bench: Bench) -> None:
    store = bench.store
    assert await store.replay(KEY, new_token(), LEASE) is None
    owned = await claim(store)
    assert await store.replay(KEY, new_token(), LEASE) is None
    await store.complete(owned)
    assert await store.replay(KEY, new_token(), LEASE) is None


@with_bodies.each(origin=_ORIGINS)
async def a_replay_is_the_next_attempt_and_has_the_finished_handlers(
    bench: Bench, origin: str
) -> None:
    store = await _with_dead_letter(bench, origin)
    token = Token("replayer")
    assert await store.replay(KEY, token, LEASE) == Claimed(KEY, token, 2, frozenset({"a"}), LEASE)


@with_bodies.each(origin=_ORIGINS)
async def one_of_200_concurrent_replays_is_granted(bench: Bench, origin: str) -> None:
    store = await _with_dead_letter(bench, origin)
    results = await asyncio.gather(*(store.replay(KEY, new_token(), LEASE) for _ in range(200)))
    assert sorted(type(result).__name__ for result in results) == (["Claimed"] + ["InFlight"] * 199)


@with_bodies.each(origin=_ORIGINS)
async def a_replay_repeated_with_its_token_is_the_same_claim(bench: Bench, origin: str) -> None:
    store = await _with_dead_letter(bench, origin)
    owned = await replay(store)
    assert await store.replay(KEY, owned.token, LEASE) == owned


@with_bodies.each(origin=_ORIGINS)
async def a_dead_letter_stays_while_it_is_replayed(bench: Bench, origin: str) -> None:
    store = await _with_dead_letter(bench, origin)
    await replay(store)
    assert await store.dead_letter(KEY) is not None
    assert await _listed(store) == ["evt_1"]
    assert await store.stats() == StoreStats(in_flight=1, dead=1)
    in_flight = InFlight(bench.clock() + LEASE)
    assert await store.claim(KEY, new_token(), LEASE) == in_flight
    assert await store.replay(KEY, new_token(), LEASE) == in_flight


@with_bodies.each(origin=_ORIGINS)
async def a_completed_replay_removes_the_dead_letter(bench: Bench, origin: str) -> None:
    store = await _with_dead_letter(bench, origin)
    await store.complete(await replay(store))
    assert await store.dead_letter(KEY) is None
    assert await store.stats() == StoreStats(in_flight=0, dead=0)
    assert await claimed_by_another(store) is Done
    assert await store.replay(KEY, new_token(), LEASE) is None


@with_bodies.each(origin=_ORIGINS, ending=["crashed", "released"])
async def a_replay_that_does_not_succeed_leaves_the_dead_letter(
    bench: Bench, origin: str, ending: str
) -> None:
    store = await _with_dead_letter(bench, origin)
    before = await store.dead_letter(KEY)
    assert before is not None
    owned = await replay(store)
    await store.extend(owned, frozenset({"b"}))
    if ending == "crashed":
        bench.clock.advance(LEASE)
    else:
        assert await store.release(owned, NONE, "cancelled") is Ownership.HELD
    assert await claimed_by_another(store) is Dead
    dead = await dead_letter_of(store)
    assert dead.delivery == before.delivery
    assert await store.stats() == StoreStats(in_flight=0, dead=1)
    again = await replay(store)
    assert (again.attempt, again.finished) == (3, frozenset({"a", "b"}))


@with_bodies.each(origin=_ORIGINS)
async def a_replay_that_is_buried_changes_the_dead_letter(bench: Bench, origin: str) -> None:
    store = await _with_dead_letter(bench, origin)
    owned = await replay(store)
    bench.clock.advance(5)
    ownership = await store.bury(
        owned,
        DeadReason.REJECTED,
        error="still no",
        finished=frozenset({"b"}),
        delivery=DELIVERY,
    )
    assert ownership is Ownership.HELD
    dead = await dead_letter_of(store)
    assert dead.history[-1] == FailedAttempt(2, bench.clock(), "still no")
    assert replace(dead, history=()) == DeadLetter(
        DELIVERY, DeadReason.REJECTED, "still no", 2, frozenset({"a", "b"}), bench.clock()
    )
    assert await _listed(store) == ["evt_1"]
    assert await claimed_by_another(store) is Dead
    again = await replay(store)
    assert (again.attempt, again.finished) == (3, frozenset({"a", "b"}))


@with_bodies.each(origin=_ORIGINS)
async def a_replay_is_fenced_like_any_claim(bench: Bench, origin: str) -> None:
    store = await _with_dead_letter(bench, origin)
    stale = await replay(store)
    bench.clock.advance(LEASE)
    owner = await replay(store)
    for lost in (
        await store.extend(stale),
        await store.release(stale, frozenset({"stale"})),
        await store.bury(stale, DeadReason.EXHAUSTED, error="stale", delivery=DELIVERY),
    ):
        assert lost is Ownership.LOST
    dead = await dead_letter_of(store)
    assert dead.error != "stale"
    assert await store.extend(owner) is Ownership.HELD


@with_bodies
async def the_attempt_before_a_replay_may_still_complete_the_event(bench: Bench) -> None:
    store = bench.store
    stale = await claim(store)
    await store.keep(stale, DELIVERY)
    bench.clock.advance(LEASE)
    owner = await replay(store)
    await store.complete(stale)
    assert await store.dead_letter(KEY) is None
    assert await store.extend(owner) is Ownership.LOST
    assert await claimed_by_another(store) is Done


@with_bodies.each(origin=_ORIGINS)
async def a_dead_letter_discarded_during_its_replay_is_done(bench: Bench, origin: str) -> None:
    store = await _with_dead_letter(bench, origin)
    owned = await replay(store)
    assert await store.discard(KEY) is True
    assert await store.extend(owned) is Ownership.LOST
    assert await claimed_by_another(store) is Done
