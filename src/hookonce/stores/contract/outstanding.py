"""Rules for finished and outstanding handlers, and for the counting of attempts."""

from __future__ import annotations

from ..protocols import InboxStore, Store
from ..values import (
    INTERRUPTED,
    Claimed,
    DeadReason,
    Done,
    Ownership,
    Stored,
    Token,
    new_token,
)
from .bench import (
    DELIVERY,
    HOUR,
    KEY,
    LEASE,
    NONE,
    Bench,
    claim,
    dead_letter_of,
    enqueue,
    entry_of,
    every_store,
    fetch,
    fetch_one,
    only,
    replay,
    with_bodies,
    with_inbox,
)

A, B, C = (frozenset({name}) for name in ("a", "b", "c"))


async def _bury(store: Store, claim: Claimed, outstanding: frozenset[str] = NONE) -> None:
    ownership = await store.bury(
        claim, DeadReason.EXHAUSTED, outstanding=outstanding, delivery=DELIVERY
    )
    assert ownership is Ownership.HELD


async def _with_event(bench: Bench) -> InboxStore:
    """Return a store with the event in its inbox."""
    assert await enqueue(bench.inbox) == Stored()
    return bench.inbox


@every_store
async def a_new_event_has_no_outstanding_handlers(bench: Bench) -> None:
    store = bench.store
    assert (await claim(store)).outstanding == NONE


@every_store
async def outstanding_handlers_are_those_recorded_without_the_finished(bench: Bench) -> None:
    store = bench.store
    first = await claim(store)
    await store.extend(first, A, A | B)
    assert await claim(store, token=first.token) == Claimed(KEY, first.token, 1, A, LEASE, B)
    await store.release(first, NONE, "it failed", outstanding=C)
    second = await claim(store)
    assert (second.finished, second.outstanding) == (A, B | C)
    await store.extend(second, B)
    await store.release(second, C, outstanding=B | C)
    third = await claim(store)
    assert (third.finished, third.outstanding) == (A | B | C, NONE)


@every_store
async def a_repeated_claim_shows_the_outstanding_handlers(bench: Bench) -> None:
    store = bench.store
    first = await claim(store)
    await store.extend(first, NONE, A)
    assert (await claim(store, token=first.token)).outstanding == A


@every_store
async def a_finished_handler_is_never_outstanding_again(bench: Bench) -> None:
    store = bench.store
    first = await claim(store)
    await store.release(first, A)
    await store.release(await claim(store), NONE, outstanding=A | B)
    assert (await claim(store)).outstanding == B


@every_store
async def an_expired_claim_keeps_the_outstanding_handlers(bench: Bench) -> None:
    store = bench.store
    await store.extend(await claim(store), NONE, A)
    bench.clock.advance(LEASE)
    assert (await claim(store)).outstanding == A


@with_bodies
async def a_dead_letter_and_its_replays_keep_the_outstanding_handlers(bench: Bench) -> None:
    store = bench.store
    await store.release(await claim(store), NONE, outstanding=A | C)
    await _bury(store, await claim(store), B)
    dead = await dead_letter_of(store)
    assert dead.outstanding == A | B | C
    replayed = await replay(store)
    assert replayed.outstanding == A | B | C
    await store.extend(replayed, A)
    assert [dead.outstanding for dead in await store.dead_letters()] == [B | C]
    await store.release(replayed, B)
    dead = only(await store.dead_letters())
    assert (dead.finished, dead.outstanding) == (A | B, C)
    assert (await replay(store)).outstanding == C


@with_bodies
async def a_kept_delivery_that_is_released_has_the_outstanding_handlers(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    await store.extend(owned, NONE, A)
    await store.keep(owned, DELIVERY)
    await store.release(owned, B, outstanding=B | C)
    dead = await dead_letter_of(store)
    assert (dead.finished, dead.outstanding) == (B, A | C)


@with_inbox
async def the_inbox_keeps_the_outstanding_handlers(bench: Bench) -> None:
    inbox = await _with_event(bench)
    first = (await fetch_one(inbox)).claim
    assert first.outstanding == NONE
    await inbox.retry(first, 0.0, A, outstanding=A | B)
    second = (await fetch_one(inbox)).claim
    assert (second.finished, second.outstanding) == (A, B)
    entry = await entry_of(inbox)
    assert (entry.finished, entry.outstanding) == (A, B)
    assert [entry.outstanding for entry in await inbox.entries()] == [B]
    assert await inbox.bury(second, DeadReason.EXHAUSTED, outstanding=C) is Ownership.HELD
    dead = await dead_letter_of(inbox)
    assert dead.outstanding == B | C


@every_store
async def names_of_outstanding_handlers_are_returned_unchanged(bench: Bench) -> None:
    store = bench.store
    names = frozenset({"module:f", "ünïcode 名", 'quo"te', "with,comma", "line\nbreak"})
    await store.release(await claim(store), NONE, outstanding=names)
    assert (await claim(store)).outstanding == names


@every_store
async def a_forgotten_done_event_has_no_outstanding_handlers(bench: Bench) -> None:
    store = bench.store
    first = await claim(store)
    await store.extend(first, NONE, A)
    await store.complete(first)
    bench.clock.advance(100 * 24 * HOUR)
    assert (await claim(store)).outstanding == NONE


@every_store
async def an_attempt_that_began_no_handler_does_not_count(bench: Bench) -> None:
    store = bench.store
    for _ in range(3):
        owned = await claim(store)
        assert owned.attempt == 1
        assert await store.release(owned, NONE, began=False) is Ownership.HELD
    await store.release(await claim(store), NONE, "it failed")
    for _ in range(3):
        owned = await claim(store)
        assert owned.attempt == 2
        await store.release(owned, NONE, began=False)
    await _bury(store, await claim(store))
    dead = await dead_letter_of(store)
    assert dead.attempts == 2
    assert [(one.number, one.error) for one in dead.history] == [(1, "it failed")]


@every_store
async def an_error_before_any_handler_began_goes_into_the_history(bench: Bench) -> None:
    store = bench.store
    await store.release(await claim(store), NONE, "no secrets", began=False)
    await _bury(store, await claim(store))
    dead = await dead_letter_of(store)
    assert [(one.number, one.error) for one in dead.history] == [(1, "no secrets")]


@every_store
async def an_expired_claim_counts_as_an_attempt(bench: Bench) -> None:
    store = bench.store
    await claim(store)
    bench.clock.advance(LEASE)
    owned = await claim(store)
    await store.release(owned, NONE, began=False)
    await _bury(store, await claim(store))
    dead = await dead_letter_of(store)
    assert dead.attempts == 2
    assert [(one.number, one.error) for one in dead.history] == [(1, INTERRUPTED)]


@with_bodies
async def a_kept_delivery_released_before_any_handler_counts_no_attempt(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    await store.keep(owned, DELIVERY)
    await store.release(owned, NONE, began=False)
    dead = await dead_letter_of(store)
    assert (dead.reason, dead.attempts) == (DeadReason.EXHAUSTED, 0)


@with_inbox
async def a_fetched_event_that_began_no_handler_counts_no_attempt(bench: Bench) -> None:
    inbox = await _with_event(bench)
    for _ in range(3):
        owned = (await fetch_one(inbox)).claim
        assert owned.attempt == 1
        await inbox.retry(owned, 0.0, began=False)
    entry = await entry_of(inbox)
    assert (entry.attempts, entry.history) == (0, ())
    await inbox.retry((await fetch_one(inbox)).claim, 0.0)
    assert ((await fetch_one(inbox)).claim).attempt == 2


@every_store.each(step=["extend", "release", "bury"])
async def a_lost_claim_records_its_finished_handlers_and_nothing_else(
    bench: Bench, step: str
) -> None:
    store = bench.store
    stale = await claim(store)
    await store.extend(stale, NONE, A | B)
    bench.clock.advance(LEASE)
    owner = await claim(store)
    match step:
        case "extend":
            ownership = await store.extend(stale, A, C)
        case "release":
            ownership = await store.release(stale, A, "it failed", outstanding=C, began=False)
        case _:
            ownership = await store.bury(
                stale, DeadReason.REJECTED, finished=A, outstanding=C, delivery=DELIVERY
            )
    assert ownership is Ownership.LOST
    again = await claim(store, token=owner.token)
    assert (again.attempt, again.finished, again.outstanding) == (2, A, B)
    assert (await store.stats()).in_flight == 1
    assert await store.release(owner, NONE) is Ownership.HELD
    assert (await claim(store)).finished == A


@with_bodies
async def a_lost_claim_records_its_finished_handlers_in_the_dead_letter(bench: Bench) -> None:
    store = bench.store
    stale = await claim(store)
    bench.clock.advance(LEASE)
    await _bury(store, await claim(store), A | B)
    assert await store.release(stale, A, "it failed") is Ownership.LOST
    dead = await dead_letter_of(store)
    assert (dead.finished, dead.outstanding, dead.attempts) == (A, B, 2)
    assert dead.error == ""
    if store.keeps_bodies:
        replayed = await replay(store)
        assert (replayed.finished, replayed.outstanding) == (A, B)


@every_store
async def a_lost_claim_records_its_finished_handlers_of_a_free_event(bench: Bench) -> None:
    store = bench.store
    stale = await claim(store)
    await store.release(stale, NONE, outstanding=A)
    assert await store.extend(stale, A) is Ownership.LOST
    later = await claim(store)
    assert (later.attempt, later.finished, later.outstanding) == (2, A, NONE)


@every_store
async def a_lost_claim_changes_no_done_event(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    await store.complete(owned)
    assert await store.extend(owned, A) is Ownership.LOST
    assert await store.release(owned, A, "it failed") is Ownership.LOST
    assert await store.bury(owned, DeadReason.REJECTED, finished=A, delivery=DELIVERY) is (
        Ownership.LOST
    )
    assert await store.claim(KEY, new_token(), LEASE) == Done()
    assert await store.dead_letter(KEY) is None
    bench.clock.advance(100 * 24 * HOUR)
    assert (await claim(store)).finished == NONE


@every_store
async def a_lost_claim_makes_no_unknown_event_known(bench: Bench) -> None:
    store = bench.store
    stranger = Claimed(KEY, Token("nobody's"), 1, NONE, LEASE)
    assert await store.extend(stranger, A) is Ownership.LOST
    first = await claim(store)
    assert (first.attempt, first.finished) == (1, NONE)


@with_inbox
async def a_lost_claim_records_its_finished_handlers_in_the_inbox(bench: Bench) -> None:
    inbox = await _with_event(bench)
    stale = (await fetch_one(inbox)).claim
    bench.clock.advance(LEASE)
    owner = (await fetch_one(inbox)).claim
    assert await inbox.retry(stale, 0.0, A, "it failed") is Ownership.LOST
    assert (await fetch(inbox)).fetched == ()
    await inbox.retry(owner, 0.0)
    later = (await fetch_one(inbox)).claim
    assert (later.attempt, later.finished) == (3, A)
