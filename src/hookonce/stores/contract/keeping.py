"""Rules for deliveries that are kept in case their attempt fails."""

from __future__ import annotations

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
    new_token,
)
from .bench import (
    DELIVERY,
    HOUR,
    KEY,
    LEASE,
    NONE,
    RETENTION,
    Bench,
    about,
    claim,
    claimed_by_another,
    dead_letter_of,
    only,
    replay,
    with_bodies,
)


async def _listed(store: Store) -> list[str]:
    """Return the ids of the events that are listed."""
    return [dead.delivery.event_id for dead in await store.dead_letters()]


@with_bodies
async def a_kept_delivery_is_no_dead_letter_while_its_claim_is_live(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    assert await store.keep(owned, DELIVERY) is Ownership.HELD
    for _ in range(3):
        assert await store.dead_letter(KEY) is None
        assert await _listed(store) == []
        assert await store.stats() == StoreStats(in_flight=1, dead=0)
        assert await store.discard(KEY) is False
        assert await store.replay(KEY, new_token(), LEASE) is None
        assert await claimed_by_another(store) is InFlight
        bench.clock.advance(LEASE - 1)
        assert await store.extend(owned) is Ownership.HELD


@with_bodies
async def a_kept_delivery_is_interrupted_when_the_lease_ends(bench: Bench) -> None:
    store = bench.store
    await store.release(await claim(store), frozenset({"a"}))
    await store.keep(await claim(store), DELIVERY)
    bench.clock.advance(LEASE)
    assert await claimed_by_another(store) is Dead
    dead = await dead_letter_of(store)
    assert dead.delivery == DELIVERY
    assert dead.reason is DeadReason.INTERRUPTED
    assert (dead.attempts, dead.finished) == (2, frozenset({"a"}))
    assert await _listed(store) == ["evt_1"]
    assert await store.stats() == StoreStats(in_flight=0, dead=1)


@with_bodies
async def a_kept_delivery_is_exhausted_when_the_claim_is_released(bench: Bench) -> None:
    store = bench.store
    await store.release(await claim(store), frozenset({"a"}))
    owned = await claim(store)
    await store.keep(owned, DELIVERY)
    bench.clock.advance(1)
    await store.extend(owned, frozenset({"b"}))
    assert await store.release(owned, frozenset({"c"}), "d failed") is Ownership.HELD
    assert await store.dead_letter(KEY) == DeadLetter(
        DELIVERY,
        DeadReason.EXHAUSTED,
        "d failed",
        2,
        frozenset({"a", "b", "c"}),
        bench.clock(),
        (FailedAttempt(2, bench.clock(), "d failed"),),
    )
    assert await claimed_by_another(store) is Dead
    assert await store.stats() == StoreStats(in_flight=0, dead=1)
    again = await replay(store)
    assert (again.attempt, again.finished) == (3, frozenset({"a", "b", "c"}))


@with_bodies
async def an_interrupted_dead_letter_has_the_handlers_that_finished_later(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    await store.keep(owned, DELIVERY)
    await store.extend(owned, frozenset({"late"}))
    bench.clock.advance(LEASE)
    dead = await dead_letter_of(store)
    assert dead.finished == {"late"}
    assert (await replay(store)).finished == {"late"}


@with_bodies
async def an_interrupted_dead_letter_has_no_retention(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    await store.extend(owned, frozenset({"a"}))
    await store.keep(owned, DELIVERY)
    await store.extend(owned, frozenset({"b"}))
    bench.clock.advance(2 * RETENTION)
    await store.prune()
    assert await claimed_by_another(store) is Dead
    again = await replay(store)
    assert (again.attempt, again.finished) == (2, frozenset({"a", "b"}))


@with_bodies
async def a_completion_removes_a_kept_delivery(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    await store.keep(owned, DELIVERY)
    await store.complete(owned)
    bench.clock.advance(LEASE)
    assert await store.dead_letter(KEY) is None
    assert await store.stats() == StoreStats(in_flight=0, dead=0)
    assert await claimed_by_another(store) is Done


@with_bodies
async def a_late_completion_removes_an_interrupted_dead_letter(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    await store.keep(owned, DELIVERY)
    bench.clock.advance(LEASE)
    assert await claimed_by_another(store) is Dead
    await store.complete(owned)
    assert await store.dead_letter(KEY) is None
    assert await claimed_by_another(store) is Done


@with_bodies
async def a_late_owner_continues_an_interrupted_event(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    await store.keep(owned, DELIVERY)
    bench.clock.advance(LEASE)
    assert await _listed(store) == ["evt_1"]
    assert await store.extend(owned) is Ownership.HELD
    assert await _listed(store) == []
    assert await claimed_by_another(store) is InFlight


@with_bodies
async def a_burial_uses_the_kept_delivery(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    await store.keep(owned, DELIVERY)
    bench.clock.advance(1)
    ownership = await store.bury(
        owned, DeadReason.EXHAUSTED, error="it failed", finished=frozenset({"a"})
    )
    assert ownership is Ownership.HELD
    dead = await dead_letter_of(store)
    assert (dead.delivery, dead.reason) == (DELIVERY, DeadReason.EXHAUSTED)
    assert (dead.error, dead.finished) == ("it failed", frozenset({"a"}))
    assert await claimed_by_another(store) is Dead


@with_bodies
async def a_burial_may_pass_the_kept_delivery_again(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    await store.keep(owned, DELIVERY)
    await store.keep(owned, DELIVERY)
    await store.bury(owned, DeadReason.REJECTED, error="no", delivery=DELIVERY)
    assert await _listed(store) == ["evt_1"]
    dead = await dead_letter_of(store)
    assert (dead.reason, dead.error) == (DeadReason.REJECTED, "no")


@with_bodies
async def a_lost_claim_keeps_nothing(bench: Bench) -> None:
    store = bench.store
    stale = await claim(store)
    bench.clock.advance(LEASE)
    await claim(store)
    assert await store.keep(stale, DELIVERY) is Ownership.LOST
    bench.clock.advance(LEASE)
    assert await store.dead_letter(KEY) is None
    assert await claimed_by_another(store) is Claimed


@with_bodies.each(ending=["expired", "released", "buried"])
async def a_delivery_kept_in_flight_is_a_dead_letter_when_the_claim_fails(
    bench: Bench, ending: str
) -> None:
    store = bench.store
    reasons = {
        "expired": DeadReason.INTERRUPTED,
        "released": DeadReason.EXHAUSTED,
        "buried": DeadReason.REJECTED,
    }
    owned = await claim(store)
    await store.extend(owned, frozenset({"a"}))
    await store.keep_in_flight(DELIVERY)
    match ending:
        case "expired":
            bench.clock.advance(LEASE)
        case "released":
            await store.release(owned, NONE, "b failed")
        case _:
            await store.bury(owned, DeadReason.REJECTED)
    assert await claimed_by_another(store) is Dead
    dead = await dead_letter_of(store)
    assert (dead.delivery, dead.reason) == (DELIVERY, reasons[ending])
    assert (dead.attempts, dead.finished) == (1, frozenset({"a"}))
    again = await replay(store)
    assert (again.attempt, again.finished) == (2, frozenset({"a"}))


@with_bodies
async def keep_in_flight_changes_no_dead_letter(bench: Bench) -> None:
    store = bench.store
    await store.bury(await claim(store), DeadReason.REJECTED, error="first", delivery=DELIVERY)
    before = await store.dead_letter(KEY)
    bench.clock.advance(1)
    await store.keep_in_flight(DELIVERY)
    assert await store.dead_letter(KEY) == before
    await replay(store)
    await store.keep_in_flight(DELIVERY)
    assert await store.dead_letter(KEY) == before


@with_bodies
async def a_delivery_kept_in_flight_is_gone_when_the_attempt_succeeds(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    await store.keep_in_flight(DELIVERY)
    assert await store.dead_letters() == []
    assert await claimed_by_another(store) is InFlight
    await store.complete(owned)
    assert await store.dead_letters() == []
    assert await claimed_by_another(store) is Done


@with_bodies
async def a_delivery_kept_in_flight_is_exhausted_when_the_attempt_fails(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    await store.keep_in_flight(DELIVERY)
    await store.release(owned, frozenset({"a"}), "it failed")
    assert await claimed_by_another(store) is Dead
    dead = await dead_letter_of(store)
    assert dead.delivery == DELIVERY
    assert (dead.reason, dead.error) == (DeadReason.EXHAUSTED, "it failed")
    assert (dead.attempts, dead.finished) == (1, frozenset({"a"}))


@with_bodies
async def a_delivery_kept_in_flight_is_interrupted_when_the_owner_crashes(bench: Bench) -> None:
    store = bench.store
    await claim(store)
    await store.keep_in_flight(DELIVERY)
    bench.clock.advance(LEASE)
    dead = await dead_letter_of(store)
    assert dead.reason is DeadReason.INTERRUPTED
    assert await claimed_by_another(store) is Dead


@with_bodies
async def a_delivery_kept_after_a_failed_attempt_is_a_dead_letter_at_once(bench: Bench) -> None:
    store = bench.store
    await store.release(await claim(store), NONE, "it failed")
    await store.keep_in_flight(DELIVERY)
    assert await claimed_by_another(store) is Dead


@with_bodies
async def a_delivery_of_a_done_event_is_not_kept(bench: Bench) -> None:
    store = bench.store
    await store.complete(await claim(store))
    await store.keep_in_flight(DELIVERY)
    assert await store.dead_letters() == []
    assert await claimed_by_another(store) is Done


@with_bodies
async def keep_in_flight_leaves_a_dead_letter_as_it_is(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    await store.bury(owned, DeadReason.REJECTED, error="no", delivery=DELIVERY)
    await store.keep_in_flight(DELIVERY)
    dead = await dead_letter_of(store)
    assert (dead.reason, dead.error) == (DeadReason.REJECTED, "no")


@with_bodies
async def a_kept_delivery_is_listed_as_kept_until_the_schedule_ends(bench: Bench) -> None:
    store, dead_unix = bench.store, bench.clock() + HOUR
    owned = await claim(store)
    await store.keep(owned, DELIVERY, dead_unix=dead_unix)
    assert await store.stats() == StoreStats(in_flight=1, dead=0)
    await store.release(owned, NONE, "it failed")
    assert await store.stats() == StoreStats(in_flight=0, dead=0, kept=1)
    kept = only(await store.dead_letters())
    assert (kept.is_kept, kept.buried_unix, kept.error) == (True, about(dead_unix), "it failed")
    bench.clock.advance(HOUR)
    assert await store.stats() == StoreStats(in_flight=0, dead=1)
    assert not only(await store.dead_letters()).is_kept
    assert await claimed_by_another(store) is Dead


@with_bodies
async def a_kept_delivery_is_dead_at_the_earliest_of_its_times(bench: Bench) -> None:
    store, now = bench.store, bench.clock()
    owned = await claim(store)
    await store.keep(owned, DELIVERY, dead_unix=now + 2 * HOUR)
    await store.keep_in_flight(DELIVERY, dead_unix=now + HOUR)
    await store.keep(owned, DELIVERY, dead_unix=now + 3 * HOUR)
    await store.release(owned, NONE)
    assert (await dead_letter_of(store)).buried_unix == about(now + HOUR)
    bench.clock.advance(HOUR)
    assert await claimed_by_another(store) is Dead


@with_bodies.each(call=["keep", "keep_in_flight"])
async def a_renewed_delivery_is_dead_at_the_latest_of_its_times(bench: Bench, call: str) -> None:
    store, now = bench.store, bench.clock()

    async def keep(claim: Claimed, dead_unix: float) -> None:
        if call == "keep_in_flight":
            await store.keep_in_flight(DELIVERY, dead_unix=dead_unix, renew=True)
        else:
            await store.keep(claim, DELIVERY, dead_unix=dead_unix, renew=True)

    owned = await claim(store)
    await keep(owned, now + 2 * HOUR)
    await keep(owned, now + 3 * HOUR)
    await keep(owned, now + HOUR)
    await store.release(owned, NONE, "it failed")
    assert (await dead_letter_of(store)).buried_unix == about(now + 3 * HOUR)
    bench.clock.advance(2 * HOUR)
    owned = await claim(store)
    await keep(owned, now + 4 * HOUR)
    await store.release(owned, NONE)
    bench.clock.advance(HOUR)
    kept = await dead_letter_of(store)
    assert (kept.is_kept, kept.buried_unix) == (True, about(now + 4 * HOUR))
    assert (kept.error, kept.attempts) == ("it failed", 2)
    bench.clock.advance(HOUR)
    assert await claimed_by_another(store) is Dead


@with_bodies
async def a_dead_letter_is_not_renewed(bench: Bench) -> None:
    store, dead_unix = bench.store, bench.clock() + HOUR
    owned = await claim(store)
    await store.keep(owned, DELIVERY, dead_unix=dead_unix)
    await store.release(owned, NONE)
    bench.clock.advance(HOUR)
    await store.keep_in_flight(DELIVERY, dead_unix=dead_unix + HOUR, renew=True)
    dead = await dead_letter_of(store)
    assert (dead.is_kept, dead.buried_unix) == (False, about(dead_unix))
    assert await claimed_by_another(store) is Dead
