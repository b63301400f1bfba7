"""Rules for dead letters: burial, listings, discarding."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from ...errors import StoreError
from ..protocols import Store
from ..values import (
    Claimed,
    Dead,
    DeadLetter,
    DeadReason,
    DeliveryKey,
    Done,
    FailedAttempt,
    InFlight,
    Ownership,
    StoreStats,
    new_token,
)
from .bench import (
    DELIVERY,
    KEY,
    LEASE,
    NONE,
    RETENTION,
    Bench,
    bury,
    claim,
    claimed_by_another,
    dead_letter_of,
    delivery,
    every_store,
    raises,
    with_bodies,
)

# Invalid `after` cursors: texts that no store returns, and a value that is not a text.
INVALID_PLACES = ["", "evt_1", "-1", " 1", "1" * 30, "nan 1:a:b", "1.5 x", "1.5 ", DELIVERY]


async def _listed(
    store: Store, *, endpoint: str | None = None, event_type: str | None = None, limit: int = 100
) -> list[str]:
    """Return the ids of the events that are listed."""
    listed = await store.dead_letters(endpoint=endpoint, event_type=event_type, limit=limit)
    return [dead.delivery.event_id for dead in listed]


@every_store.each(reason=list(DeadReason))
async def a_dead_letter_has_the_history_and_handlers_of_its_event(
    bench: Bench, reason: DeadReason
) -> None:
    store = bench.store
    first = await claim(store)
    await store.release(first, frozenset({"a"}), "c: KeyError: 'a'")
    second = await claim(store)
    await store.extend(second, frozenset({"b"}))
    bench.clock.advance(7)
    ownership = await store.bury(
        second, reason, error="c: ValueError: é", finished=frozenset({"d"}), delivery=DELIVERY
    )
    assert ownership is Ownership.HELD
    buried_unix = bench.clock()
    bench.clock.advance(100)
    assert await store.dead_letter(KEY) == DeadLetter(
        delivery=DELIVERY if store.keeps_bodies else DELIVERY._replace(body=b""),
        reason=reason,
        error="c: ValueError: é",
        attempts=2,
        finished=frozenset({"a", "b", "d"}),
        buried_unix=buried_unix,
        history=(
            FailedAttempt(1, buried_unix - 7, "c: KeyError: 'a'"),
            FailedAttempt(2, buried_unix, "c: ValueError: é"),
        ),
    )


@every_store
async def a_dead_letter_may_have_no_event_type_and_no_error(bench: Bench) -> None:
    store = bench.store
    unreadable = delivery(event_type=None)
    await store.bury(await claim(store), DeadReason.UNREADABLE, delivery=unreadable)
    dead = await dead_letter_of(store)
    assert dead.delivery.event_type is None
    assert (dead.error, dead.finished) == ("", NONE)


@every_store
async def a_dead_letter_has_no_retention_and_cannot_be_claimed(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    await store.bury(owned, DeadReason.REJECTED, delivery=DELIVERY)
    assert await store.claim(KEY, owned.token, LEASE) == Dead()
    for seconds in (0.0, LEASE, RETENTION, 10 * RETENTION, -11 * RETENTION):
        bench.clock.advance(seconds)
        await store.prune()
        assert await store.claim(KEY, new_token(), LEASE) == Dead()
    assert await store.stats() == StoreStats(in_flight=0, dead=1)


@every_store
async def a_burial_changes_no_other_event(bench: Bench) -> None:
    store = bench.store
    other, free = delivery("evt_2"), delivery("evt_1", endpoint="other")
    held = await claim(store, other.key)
    await bury(store)
    assert await store.extend(held) is Ownership.HELD
    assert await claimed_by_another(store, free.key) is Claimed


@every_store
async def only_a_store_without_bodies_buries_without_a_delivery(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    if store.keeps_bodies:
        with raises(StoreError):
            await store.bury(owned, DeadReason.REJECTED)
        assert await store.extend(owned) is Ownership.HELD
        assert await store.dead_letter(KEY) is None
    else:
        assert await store.bury(owned, DeadReason.REJECTED) is Ownership.HELD
        dead = await dead_letter_of(store)
        assert (dead.delivery.endpoint, dead.delivery.event_id) == ("default", "evt_1")


@every_store
async def an_event_that_is_not_dead_has_no_dead_letter(bench: Bench) -> None:
    store = bench.store
    assert await store.dead_letter(KEY) is None
    owned = await claim(store)
    assert await store.dead_letter(KEY) is None
    await store.complete(owned)
    assert await store.dead_letter(KEY) is None
    assert await store.dead_letters() == []


@every_store
async def dead_letters_are_listed_oldest_first_with_empty_bodies(bench: Bench) -> None:
    store = bench.store
    names = ["evt_5", "evt_1", "evt_4", "evt_2", "evt_3"]
    for name in names:
        await bury(store, delivery(name), finished=frozenset({name}))
        bench.clock.advance(1)
    listed = await store.dead_letters()
    assert [dead.delivery.event_id for dead in listed] == names
    assert {dead.delivery.body for dead in listed} == {b""}
    for dead in listed:
        whole = await store.dead_letter(dead.delivery.key)
        assert whole is not None
        assert replace(whole, delivery=whole.delivery._replace(body=b"")) == dead


@every_store
async def a_limit_lists_the_oldest_dead_letters(bench: Bench) -> None:
    store = bench.store
    for n in range(5):
        await bury(store, delivery(f"evt_{n}"))
    assert await _listed(store, limit=2) == ["evt_0", "evt_1"]
    assert await _listed(store, limit=5) == await _listed(store, limit=500) == await _listed(store)
    assert await _listed(store, limit=0) == []


@every_store
async def a_listed_dead_letter_matches_all_filters(bench: Bench) -> None:
    store = bench.store
    await bury(store, delivery("evt_1", event_type="comment.received"))
    await bury(store, delivery("evt_1", endpoint="other", event_type="comment.received"))
    await bury(store, delivery("evt_2", event_type="message.received"))
    await bury(store, delivery("evt_3", endpoint="other", event_type="message.received"))
    await bury(store, delivery("evt_4", event_type="comment.received"))
    assert await _listed(store, endpoint="default") == ["evt_1", "evt_2", "evt_4"]
    assert await _listed(store, endpoint="other") == ["evt_1", "evt_3"]
    assert await _listed(store, event_type="comment.received") == ["evt_1", "evt_1", "evt_4"]
    both = await _listed(store, endpoint="default", event_type="comment.received")
    assert both == ["evt_1", "evt_4"]
    assert await _listed(store, event_type="comment.received", limit=2) == ["evt_1", "evt_1"]
    assert await _listed(store, endpoint="nobody") == []
    assert await _listed(store, event_type="comment") == []


@every_store
async def dead_letters_are_filtered_by_event_reason_handler_and_time(bench: Bench) -> None:
    store = bench.store
    owing = {"evt_1": {"alert"}, "evt_2": {'al"ert', "sync"}, "evt_3": set[str]()}
    for event_id, names in owing.items():
        owned = await claim(store, delivery(event_id).key)
        reason = DeadReason.REJECTED if event_id == "evt_2" else DeadReason.EXHAUSTED
        await store.bury(owned, reason, outstanding=frozenset(names), delivery=delivery(event_id))
        bench.clock.advance(10)
    await bury(store, delivery("evt_2", endpoint="other"))

    async def found(**wanted: Any) -> list[DeliveryKey]:
        return [dead.delivery.key for dead in await store.dead_letters(**wanted)]

    one, two, three = (delivery(event_id).key for event_id in owing)
    other = delivery("evt_2", endpoint="other").key
    assert await found(event_id="evt_2") == [two, other]
    assert await found(event_id="evt_2", endpoint="default") == [two]
    assert await found(event_id="vt_2") == await found(event_id="evt_9") == []
    assert await found(reason=DeadReason.REJECTED) == [two]
    assert await found(reason=DeadReason.EXHAUSTED) == [one, three, other]
    assert await found(handler="alert") == [one]
    assert await found(handler="sync") == await found(handler='al"ert') == [two]
    assert await found(handler="") == await found(handler="aler") == []
    assert await found(since_unix=bench.clock() - 20) == [two, three, other]
    assert await found(since_unix=bench.clock() - 15, reason=DeadReason.EXHAUSTED) == [three, other]
    assert await found(since_unix=bench.clock() + 1) == []


@with_bodies
async def the_handler_filter_follows_a_running_replay(bench: Bench) -> None:
    store = bench.store
    owned = await claim(store)
    names = frozenset({"alert", "sync"})
    await store.bury(owned, DeadReason.EXHAUSTED, outstanding=names, delivery=DELIVERY)
    replayed = await store.replay(KEY, new_token(), LEASE)
    assert isinstance(replayed, Claimed)
    await store.extend(replayed, finished=frozenset({"alert"}))
    assert len(await store.dead_letters(handler="sync")) == 1
    assert await store.dead_letters(handler="alert") == []


@every_store.each(seconds=[0, 1])
async def a_listing_goes_on_after_a_place_although_its_dead_letter_is_gone(
    bench: Bench, seconds: int
) -> None:
    """A deleted dead letter's cursor stays valid, even if other dead letters have its time."""
    store = bench.store
    names = [f"evt_{number}" for number in range(9)]
    for name in names:
        await bury(store, delivery(name, endpoint="ab"[int(name[-1]) % 2]))
        bench.clock.advance(seconds)
    places = {one.delivery.event_id: one.place for one in await store.dead_letters()}
    for number, name in enumerate(names):
        behind = await store.dead_letters(after=places[name], limit=3)
        assert [one.delivery.event_id for one in behind] == names[number + 1 : number + 4]
    await store.discard(delivery("evt_4", endpoint="a").key)
    behind = await store.dead_letters(after=places["evt_4"], endpoint="b")
    assert [one.delivery.event_id for one in behind] == ["evt_5", "evt_7"]
    behind = await store.dead_letters(after=places["evt_4"])
    assert [one.delivery.event_id for one in behind] == names[5:]
    assert await store.dead_letters(after=places["evt_8"]) == []


@every_store.each(after=INVALID_PLACES)
async def a_listing_of_dead_letters_refuses_an_invalid_place(bench: Bench, after: Any) -> None:
    """An invalid ``after`` cursor raises ValueError, not StoreError; nothing is listed."""
    store = bench.store
    await bury(store)
    with raises(ValueError):
        await store.dead_letters(after=after)


@every_store
async def many_dead_letters_are_read_in_pages(bench: Bench) -> None:
    """A listing finds all matches, even if the store needs several calls to read them."""
    store = bench.store
    names = [f"evt_{number:03}" for number in range(450)]
    for name in names:
        kind = "comment.received" if int(name[-1]) % 2 else "message.received"
        await bury(store, delivery(name, event_type=kind))
    for event_type, expected in (None, names), ("comment.received", names[1::2]):
        found: list[str] = []
        after = None
        while page := await store.dead_letters(event_type=event_type, after=after, limit=70):
            found += [dead.delivery.event_id for dead in page]
            after = page[-1].place
        assert found == expected


@every_store
async def no_filter_by_event_type_finds_an_unreadable_delivery(bench: Bench) -> None:
    store = bench.store
    await bury(store, delivery(event_type=None))
    assert await _listed(store, event_type="comment.received") == []
    assert await _listed(store, endpoint="default") == await _listed(store) == ["evt_1"]


@every_store
async def a_discarded_dead_letter_is_gone_and_its_event_done(bench: Bench) -> None:
    store = bench.store
    await bury(store)
    bench.clock.advance(2 * RETENTION)
    assert await store.discard(KEY) is True
    assert await store.dead_letter(KEY) is None
    assert await _listed(store) == []
    assert await store.stats() == StoreStats(in_flight=0, dead=0)
    bench.clock.advance(RETENTION - 1)
    assert await claimed_by_another(store) is Done
    bench.clock.advance(1)
    assert await claimed_by_another(store) is Claimed


@every_store
async def only_a_dead_letter_can_be_discarded(bench: Bench) -> None:
    store = bench.store
    assert await store.discard(KEY) is False
    owned = await claim(store)
    assert await store.discard(KEY) is False
    assert await claimed_by_another(store) is InFlight
    await store.complete(owned)
    assert await store.discard(KEY) is False


@every_store
async def one_of_20_concurrent_discards_returns_true(bench: Bench) -> None:
    store = bench.store
    await bury(store)
    answers = await asyncio.gather(*(store.discard(KEY) for _ in range(20)))
    assert sorted(answers) == [False] * 19 + [True]
