"""Rules for settling: who may end a claim, and how long the store remembers the event."""

from __future__ import annotations

from datetime import timedelta

from ...errors import StoreError
from ..values import (
    Claimed,
    Dead,
    DeadReason,
    DeliveryKey,
    Done,
    InFlight,
    Ownership,
    StoreStats,
    Token,
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
    bury,
    claim,
    claimed_by_another,
    delivery,
    every_store,
    key_of,
    raises,
    with_bodies,
)

_STALE_AFTER = ["takeover", "release", "completion", "burial", "nothing"]


@with_bodies.each(step=["keep"], after=_STALE_AFTER)
@every_store.each(step=["extend", "release", "bury"], after=_STALE_AFTER)
async def only_the_owner_extends_releases_keeps_and_buries(
    bench: Bench, step: str, after: str
) -> None:
    store = bench.store
    stale = await claim(store)
    match after:
        case "takeover":
            bench.clock.advance(LEASE)
            owner = await claim(store)
        case "release":
            await store.release(stale, frozenset({"mine"}))
        case "completion":
            await store.complete(stale)
        case "burial":
            await store.bury(stale, DeadReason.REJECTED, delivery=DELIVERY)
        case _:
            stale = Claimed(KEY, Token("nobody's"), 1, NONE, LEASE)
    before = await store.stats(), await store.dead_letter(KEY)
    outstanding = frozenset({"stale"})

    match step:
        case "extend":
            ownership = await store.extend(stale, NONE, outstanding)
        case "release":
            ownership = await store.release(
                stale, NONE, "stale", outstanding=outstanding, began=False
            )
        case "keep":
            ownership = await store.keep(stale, DELIVERY)
        case _:
            ownership = await store.bury(
                stale,
                DeadReason.EXHAUSTED,
                error="stale",
                outstanding=outstanding,
                delivery=DELIVERY,
            )

    assert ownership is Ownership.LOST
    assert (await store.stats(), await store.dead_letter(KEY)) == before
    if after == "takeover":
        assert await store.claim(KEY, owner.token, LEASE) == owner
        bench.clock.advance(LEASE)
    if after in {"takeover", "release"}:
        later = await claim(store)
        assert (later.attempt, later.outstanding) == (3 if after == "takeover" else 2, NONE)


@every_store
async def the_next_owner_extends_and_releases(bench: Bench) -> None:
    store = bench.store
    stale = await claim(store)
    bench.clock.advance(LEASE)
    owner = await claim(store)
    assert await store.release(stale, NONE) is Ownership.LOST
    assert await store.extend(owner) is Ownership.HELD
    assert await store.release(owner, NONE) is Ownership.HELD


@every_store
async def a_completed_event_is_done_for_every_caller(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    await store.complete(owned)
    assert await store.claim(KEY, new_token(), LEASE) == Done()
    assert await store.claim(KEY, owned.token, LEASE) == Done()


@every_store
async def a_completion_may_be_repeated(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    await store.complete(owned)
    await store.complete(owned)
    assert await claimed_by_another(store) is Done
    assert await store.stats() == StoreStats(in_flight=0, dead=0)


@every_store
async def a_completion_after_the_lease_counts(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    bench.clock.advance(LEASE + 5)
    await store.complete(owned)
    assert await claimed_by_another(store) is Done


@every_store
async def the_completion_of_a_lost_claim_ends_the_claim_of_the_owner(bench: Bench) -> None:
    store = bench.store
    stale = await claim(store)
    bench.clock.advance(LEASE)
    owner = await claim(store)
    await store.complete(stale)
    assert await store.extend(owner) is Ownership.LOST
    assert await store.release(owner, NONE, "failed") is Ownership.LOST
    assert await claimed_by_another(store) is Done


@every_store
async def a_completion_after_the_release_counts(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    await store.release(owned, NONE)
    await store.complete(owned)
    assert await claimed_by_another(store) is Done


@every_store
async def the_completion_of_a_lost_claim_removes_the_dead_letter(bench: Bench) -> None:
    store = bench.store
    stale = await claim(store)
    bench.clock.advance(LEASE)
    await store.bury(await claim(store), DeadReason.EXHAUSTED, delivery=DELIVERY)
    await store.complete(stale)
    assert await claimed_by_another(store) is Done
    assert await store.dead_letter(KEY) is None
    assert await store.dead_letters() == []


@every_store
async def two_endpoints_handle_the_same_event_independently(bench: Bench) -> None:
    store = bench.store
    first = await claim(store, key_of("evt_1", "first"))
    second = await claim(store, key_of("evt_1", "second"))
    await store.complete(first)
    assert await claimed_by_another(store, first.key) is Done
    assert await claimed_by_another(store, second.key) is InFlight
    await store.release(second, frozenset({"alert"}))
    assert (await claim(store, second.key)).finished == {"alert"}


@every_store
async def a_release_frees_the_event_at_once(bench: Bench) -> None:
    store = bench.store
    assert await store.release(await claim(store), NONE) is Ownership.HELD
    assert (await store.stats()).in_flight == 0
    assert await claimed_by_another(store) is Claimed


@every_store
async def finished_handlers_of_all_attempts_are_remembered(bench: Bench) -> None:
    store = bench.store
    first = await claim(store)
    assert first.finished == NONE
    await store.extend(first, frozenset({"a"}))
    await store.release(first, frozenset({"b"}), "c failed")
    second = await claim(store)
    assert second.finished == {"a", "b"}
    await store.extend(second, frozenset({"c"}))
    await store.extend(second)
    bench.clock.advance(LEASE)
    third = await claim(store)
    assert third.finished == {"a", "b", "c"}
    await store.release(third, NONE)
    fourth = await claim(store)
    assert (fourth.attempt, fourth.finished) == (4, frozenset({"a", "b", "c"}))


@every_store
async def names_of_finished_handlers_are_returned_unchanged(bench: Bench) -> None:
    store = bench.store
    names = frozenset({"module:f", "ünïcode 名", 'quo"te', "with,comma", "line\nbreak"})
    await store.release(await claim(store), names)
    assert (await claim(store)).finished == names


@every_store
async def the_attempts_of_a_done_event_are_forgotten(bench: Bench) -> None:
    store = bench.store
    await store.complete(await claim(store))
    bench.clock.advance(RETENTION)
    again = await claim(store)
    assert (again.attempt, again.finished) == (1, NONE)


@every_store
async def a_done_event_is_remembered_for_its_retention_from_its_completion(bench: Bench) -> None:
    store = bench.open(retention=timedelta(hours=10))
    owned = await claim(store)
    bench.clock.advance(LEASE - 1)
    await store.complete(owned)
    bench.clock.advance(10 * HOUR - 1)
    assert await store.prune() == 0
    assert await claimed_by_another(store) is Done
    bench.clock.advance(1)
    assert await claimed_by_another(store) is Claimed
    assert await claimed_by_another(store) is InFlight


@every_store
async def pruning_removes_exactly_the_records_whose_retention_is_over(bench: Bench) -> None:
    def keys(kind: str) -> list[DeliveryKey]:
        return [key_of(f"{kind}_{n}") for n in range(10)]

    store = bench.store
    for kind in ("old done", "old released", "old dead", "old live"):
        for key in keys(kind):
            owned = await claim(store, key, lease=3 * RETENTION if "live" in kind else LEASE)
            match kind:
                case "old done":
                    await store.complete(owned)
                case "old released":
                    await store.release(owned, frozenset({"a"}))
                case "old dead":
                    buried = delivery(key.partition(":")[2])
                    await store.bury(owned, DeadReason.REJECTED, delivery=buried)
    bench.clock.advance(RETENTION / 2)
    for key in keys("new done"):
        await store.complete(await claim(store, key))
    for key in keys("new released"):
        await store.release(await claim(store, key), frozenset({"a"}))
    assert await store.prune() == 0
    bench.clock.advance(RETENTION / 2)

    assert await store.prune() == 20
    assert await store.prune() == 0
    assert {await claimed_by_another(store, key) for key in keys("new done")} == {Done}
    assert {await claimed_by_another(store, key) for key in keys("old dead")} == {Dead}
    assert {await claimed_by_another(store, key) for key in keys("old live")} == {InFlight}
    assert [(await claim(store, key)).attempt for key in keys("new released")] == [2] * 10
    for kind in ("old done", "old released"):
        claims = [await claim(store, key) for key in keys(kind)]
        assert {(c.attempt, c.finished) for c in claims} == {(1, NONE)}


@every_store
async def pruning_leaves_a_claim_that_is_extended(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store, lease=RETENTION / 2)
    for _ in range(4):
        bench.clock.advance(RETENTION / 2 - 1)
        assert await store.extend(owned) is Ownership.HELD
        assert await store.prune() == 0
    assert await claimed_by_another(store) is InFlight


@every_store
async def a_retention_of_no_time_is_refused(bench: Bench) -> None:
    with raises(ValueError):
        bench.open(retention=timedelta(0))
    bench.open(retention=timedelta(seconds=1))


@every_store
async def stats_count_live_claims_and_dead_letters(bench: Bench) -> None:
    store = bench.store
    assert await store.stats() == StoreStats(in_flight=0, dead=0)
    claims = [await claim(store, key_of(f"evt_{n}")) for n in range(5)]
    assert await store.stats() == StoreStats(in_flight=5, dead=0)
    await store.complete(claims[0])
    await store.release(claims[1], NONE)
    for owned in claims[2:4]:
        buried = delivery(owned.key.partition(":")[2])
        await store.bury(owned, DeadReason.REJECTED, delivery=buried)
    assert await store.stats() == StoreStats(in_flight=1, dead=2)
    bench.clock.advance(LEASE)
    assert await store.stats() == StoreStats(in_flight=0, dead=2)


@every_store
async def stats_count_the_events_of_one_endpoint_or_of_all(bench: Bench) -> None:
    store = bench.store
    for endpoint in ("a", "b", "b"):
        await claim(store, key_of(f"live_{endpoint}_{new_token()}", endpoint))
    await bury(store, delivery("evt_dead", endpoint="a"))
    assert await store.stats(endpoint="a") == StoreStats(in_flight=1, dead=1)
    assert await store.stats(endpoint="b") == StoreStats(in_flight=2, dead=0)
    assert await store.stats(endpoint="ab") == StoreStats(in_flight=0, dead=0)
    assert await store.stats() == StoreStats(in_flight=3, dead=1)


@every_store
async def a_store_opens_at_its_first_call_and_may_be_opened_again(bench: Bench) -> None:
    store = bench.store
    await claim(store)
    await store.open()
    await store.open()
    assert await claimed_by_another(store) is InFlight


@every_store
async def a_closed_store_opens_again_and_has_lost_nothing(bench: Bench) -> None:
    store = bench.store
    done, held = key_of("done"), key_of("held")
    await store.complete(await claim(store, done))
    owned = await claim(store, held)
    await store.aclose()
    await store.aclose()
    assert await claimed_by_another(store, done) is Done
    assert await store.claim(held, owned.token, LEASE) == owned
    assert await store.extend(owned) is Ownership.HELD


@every_store
async def a_store_that_was_never_used_closes(bench: Bench) -> None:
    await bench.store.aclose()


@every_store
async def a_store_without_bodies_refuses_to_keep_and_to_replay(bench: Bench) -> None:
    store = bench.store
    if store.keeps_bodies:
        return
    owned = await claim(store)
    with raises(StoreError):
        await store.keep(owned, DELIVERY)
    with raises(StoreError):
        await store.keep_in_flight(DELIVERY)
    assert await store.replay(KEY, new_token(), LEASE) is None
    await store.bury(owned, DeadReason.REJECTED, delivery=DELIVERY)
    with raises(StoreError):
        await store.replay(KEY, new_token(), LEASE)
    assert await claimed_by_another(store) is Dead
