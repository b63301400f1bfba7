"""Rules for the deliveries of handled events."""

from __future__ import annotations

import asyncio

from ..handled import HandledEvent, HandledStats, HandledStore, Keeping
from ..protocols import InboxStore
from ..values import Delivery, Done, Known, Stored
from .bench import (
    DELIVERY,
    HOUR,
    KEY,
    LEASE,
    RETENTION,
    START,
    Bench,
    about,
    bury,
    claim,
    claimed_by_another,
    delivery,
    enqueue,
    fetch_one,
    key_of,
    only,
    raises,
    replay,
    with_handled,
)

_DAYS = Keeping(3 * 24 * HOUR)
_FINISHED = frozenset({"shop.book", "shop.mail"})


async def _handle(
    bench: Bench,
    one: Delivery = DELIVERY,
    keeping: Keeping = _DAYS,
    finished: frozenset[str] = _FINISHED,
) -> None:
    """Claim an event, and complete it with its delivery."""
    owned = await claim(bench.store, one.key)
    await bench.handled.complete_and_keep(owned, one, finished, keeping)


async def _kept(bench: Bench, **wanted: object) -> list[str]:
    """Return the ids of the handled events that a listing returns."""
    events = await bench.handled.handled_events(**wanted)  # type: ignore[arg-type] # the rules pass only filters of the listing
    return [event.delivery.event_id for event in events]


def _sized(event_id: str, size: int, endpoint: str = "default") -> Delivery:
    return delivery(event_id, endpoint=endpoint, body=b"x" * size)


@with_handled
async def an_empty_store_has_no_handled_events(bench: Bench) -> None:
    handled = bench.handled
    assert await handled.handled_events() == []
    assert await handled.handled_event(KEY) is None
    assert await handled.handled_stats("default") == HandledStats(0, 0)


@with_handled
async def a_handled_event_is_done_and_its_delivery_is_kept(bench: Bench) -> None:
    handled = bench.handled
    bench.clock.advance(5)
    await _handle(bench)
    assert await claimed_by_another(bench.store) is Done
    expected = HandledEvent(DELIVERY, _FINISHED, about(START + 5), about(START + 5 + _DAYS.seconds))
    assert await handled.handled_event(KEY) == expected
    listed = only(await handled.handled_events())
    assert listed.delivery == DELIVERY._replace(body=b"")
    assert listed.finished == _FINISHED
    assert listed.place
    assert await handled.handled_stats("default") == HandledStats(1, len(DELIVERY.body))


@with_handled
async def an_event_that_is_completed_as_usual_is_not_kept(bench: Bench) -> None:
    store = bench.store
    await store.complete(await claim(store))
    assert await bench.handled.handled_event(KEY) is None
    assert await _kept(bench) == []


@with_handled
async def a_delivery_is_kept_although_the_claim_was_lost(bench: Bench) -> None:
    store, handled = bench.store, bench.handled
    lost = await claim(store)
    bench.clock.advance(LEASE + 1)
    owned = await claim(store)
    await handled.complete_and_keep(lost, DELIVERY, _FINISHED, _DAYS)
    assert await claimed_by_another(store) is Done
    assert await _kept(bench) == ["evt_1"]
    await store.complete(owned)
    assert await _kept(bench) == ["evt_1"]


@with_handled
async def the_delivery_that_is_kept_first_stays(bench: Bench) -> None:
    """A repeated call, or a second success of the same event, changes nothing."""
    handled = bench.handled
    owned = await claim(bench.store)
    for _ in range(2):
        await handled.complete_and_keep(owned, DELIVERY, _FINISHED, _DAYS)
        bench.clock.advance(1)
    other = DELIVERY._replace(body=b"of another attempt")
    await handled.complete_and_keep(owned, other, frozenset({"other"}), _DAYS)
    kept = await handled.handled_event(KEY)
    assert kept is not None
    assert (kept.delivery, kept.finished, kept.handled_unix) == (DELIVERY, _FINISHED, about(START))
    assert await handled.handled_stats("default") == HandledStats(1, len(DELIVERY.body))


@with_handled
async def a_delivery_that_has_expired_is_replaced(bench: Bench) -> None:
    handled = bench.handled
    owned, other = await claim(bench.store), DELIVERY._replace(body=b"later")
    await handled.complete_and_keep(owned, DELIVERY, _FINISHED, Keeping(HOUR))
    bench.clock.advance(HOUR + 1)
    await handled.complete_and_keep(owned, other, _FINISHED, Keeping(HOUR))
    kept = await handled.handled_event(KEY)
    assert kept is not None
    assert (kept.delivery, kept.handled_unix) == (other, about(START + HOUR + 1))
    assert await handled.handled_stats("default") == HandledStats(1, len(other.body))


@with_handled
async def a_delivery_is_gone_at_its_end_pruned_or_not(bench: Bench) -> None:
    store, handled = bench.store, bench.handled
    await _handle(bench, delivery("evt_short"), Keeping(HOUR))
    await _handle(bench, delivery("evt_long"), Keeping(2 * HOUR))
    bench.clock.advance(HOUR - 1)
    assert await _kept(bench) == ["evt_short", "evt_long"]
    bench.clock.advance(2)
    assert await _kept(bench) == ["evt_long"]
    assert await handled.handled_event(key_of("evt_short")) is None
    assert await store.prune() == 1
    assert await _kept(bench) == ["evt_long"]
    assert await handled.handled_stats("default") == HandledStats(1, len(delivery("evt_long").body))
    assert await claimed_by_another(store, key_of("evt_short")) is Done


@with_handled
async def a_delivery_may_be_kept_longer_than_its_event_is_remembered(bench: Bench) -> None:
    handled = bench.handled
    await _handle(bench, keeping=Keeping(RETENTION + 2 * HOUR))
    bench.clock.advance(RETENTION + HOUR)
    await bench.store.prune()
    kept = await handled.handled_event(KEY)
    assert kept is not None
    assert kept.delivery == DELIVERY
    # The store no longer remembers the event, so the event is new. The first delivery stays.
    await _handle(bench, DELIVERY._replace(body=b"later"), Keeping(HOUR))
    assert await handled.handled_event(KEY) == kept
    assert await handled.handled_stats("default") == HandledStats(1, len(DELIVERY.body))
    bench.clock.advance(HOUR + 1)
    await bench.store.prune()
    assert await handled.handled_event(KEY) is None
    assert await handled.handled_stats("default") == HandledStats(0, 0)


@with_handled
async def expired_deliveries_are_deleted_by_later_ones(bench: Bench) -> None:
    """Later calls delete expired deliveries, so that a store does not grow until ``prune``."""
    for number in range(6):
        await _handle(bench, delivery(f"evt_{number}"), Keeping(HOUR))
    bench.clock.advance(HOUR + 1)
    for number in range(3):
        await _handle(bench, delivery(f"evt_new_{number}"), Keeping(HOUR))
    assert (await bench.handled.handled_stats("default")).events == 3


@with_handled
async def the_oldest_deliveries_give_way_to_newer_ones(bench: Bench) -> None:
    """``max_bytes`` limits the bodies of an endpoint."""
    limited = Keeping(HOUR, max_bytes=100)
    for number in range(5):
        await _handle(bench, _sized(f"evt_{number}", 30), limited)
    await _handle(bench, _sized("evt_elsewhere", 90, "other"), limited)
    assert await _kept(bench, endpoint="default") == ["evt_2", "evt_3", "evt_4"]
    assert await bench.handled.handled_stats("default") == HandledStats(3, 90)
    await _handle(bench, _sized("evt_small", 10), limited)
    assert (await bench.handled.handled_stats("default")).events == 4
    await _handle(bench, _sized("evt_whole", 100), limited)
    assert await _kept(bench, endpoint="default") == ["evt_whole"]
    assert await _kept(bench, endpoint="other") == ["evt_elsewhere"]


@with_handled
async def a_body_that_is_too_large_is_not_kept(bench: Bench) -> None:
    """A body above ``max_bytes`` is not kept, because it would displace all other bodies."""
    limited = Keeping(HOUR, max_bytes=100)
    await _handle(bench, _sized("evt_1", 60), limited)
    await _handle(bench, _sized("evt_large", 101), limited)
    assert await claimed_by_another(bench.store, key_of("evt_large")) is Done
    assert await _kept(bench) == ["evt_1"]


@with_handled
async def a_lower_limit_takes_effect_with_the_next_deliveries(bench: Bench) -> None:
    for number in range(10):
        await _handle(bench, _sized(f"evt_{number}", 30))
    await _handle(bench, _sized("evt_10", 30), Keeping(HOUR, max_bytes=60))
    assert await _kept(bench) == ["evt_9", "evt_10"]


@with_handled
async def handled_events_are_listed_in_pages_in_the_order_of_success(bench: Bench) -> None:
    handled = bench.handled
    ids = [f"evt_{number}" for number in (3, 1, 2, 5, 4)]
    for event_id in ids:
        await _handle(bench, delivery(event_id))
        bench.clock.advance(1)
    assert await _kept(bench) == ids
    seen, after = [], None
    while page := await handled.handled_events(after=after, limit=2):
        assert len(page) <= 2
        seen += [event.delivery.event_id for event in page]
        after = page[-1].place
    assert seen == ids
    with raises(ValueError):
        await handled.handled_events(after="no place")


@with_handled
async def a_listing_goes_on_after_a_delivery_that_is_gone(bench: Bench) -> None:
    await _handle(bench, delivery("evt_1"), Keeping(HOUR))
    place = only(await bench.handled.handled_events()).place
    bench.clock.advance(HOUR + 1)
    await bench.store.prune()
    await _handle(bench, delivery("evt_2"))
    assert await _kept(bench, after=place) == ["evt_2"]


@with_handled
async def handled_events_are_filtered(bench: Bench) -> None:
    one = delivery("evt_1", event_type="comment.received")
    two = delivery("evt_2", event_type=None)
    three = delivery("evt_3", endpoint="other")
    await _handle(bench, one, finished=frozenset({"a"}))
    bench.clock.advance(10)
    await _handle(bench, two, finished=frozenset({"a", 'b"\N{SNOWMAN}'}))
    bench.clock.advance(10)
    await _handle(bench, three, finished=frozenset())
    assert await _kept(bench, endpoint="default") == ["evt_1", "evt_2"]
    assert await _kept(bench, endpoint="other") == ["evt_3"]
    assert await _kept(bench, event_type="comment.received") == ["evt_1"]
    assert await _kept(bench, event_id="evt_2") == ["evt_2"]
    assert await _kept(bench, handler="a") == ["evt_1", "evt_2"]
    assert await _kept(bench, handler='b"\N{SNOWMAN}') == ["evt_2"]
    assert await _kept(bench, handler="c") == []
    assert await _kept(bench, since_unix=START + 10) == ["evt_2", "evt_3"]
    assert await _kept(bench, before_unix=START + 10) == ["evt_1"]
    assert await _kept(bench, since_unix=START + 5, before_unix=START + 15, handler="a") == [
        "evt_2"
    ]
    assert await _kept(bench, endpoint=None, event_type=None, handler=None, limit=2) == [
        "evt_1",
        "evt_2",
    ]


@with_handled
async def deliveries_of_one_moment_are_all_kept(bench: Bench) -> None:
    """A store may commit many calls together, some of them about the same event."""
    claims = {f"evt_{n}": await claim(bench.store, key_of(f"evt_{n}")) for n in range(40)}
    calls = [*claims.items(), *list(claims.items())[::4]]
    await asyncio.gather(
        *(
            bench.handled.complete_and_keep(owned, delivery(event_id), _FINISHED, _DAYS)
            for event_id, owned in calls
        )
    )
    assert sorted(await _kept(bench)) == sorted(claims)
    held = sum(len(delivery(event_id).body) for event_id in claims)
    assert await bench.handled.handled_stats("default") == HandledStats(len(claims), held)


@with_handled
async def any_bytes_are_kept_as_they_are(bench: Bench) -> None:
    bodies = [b"", b"\0", b"\xff" * 3000, "\N{SNOWMAN}".encode(), b"}{\r\n" * 50_000]
    for number, body in enumerate(bodies):
        await _handle(bench, delivery(f"evt:{number} \N{SNOWMAN}", body=body))
    for number, body in enumerate(bodies):
        kept = await bench.handled.handled_event(key_of(f"evt:{number} \N{SNOWMAN}"))
        assert kept is not None
        assert kept.delivery.body == body


@with_handled
async def all_stores_on_the_data_find_a_handled_event(bench: Bench) -> None:
    if not bench.shares_data:
        return
    await _handle(bench)
    other = bench.open()
    assert isinstance(other, HandledStore)
    kept = await other.handled_event(KEY)
    assert kept is not None
    assert kept.delivery == DELIVERY


@with_handled
async def only_a_few_deliveries_are_deleted_at_once(bench: Bench) -> None:
    """After ``max_bytes`` is lowered, each call deletes a limited number of old deliveries."""
    for number in range(1200):
        await _handle(bench, _sized(f"evt_{number}", 1))
    limited = Keeping(HOUR, max_bytes=10)
    for number in range(4):
        await _handle(bench, _sized(f"evt_new_{number}", 5), limited)
    assert await _kept(bench) == ["evt_new_2", "evt_new_3"]


@with_handled
async def a_dead_letter_that_is_handled_at_last_is_kept(bench: Bench) -> None:
    if not bench.store.keeps_bodies:
        return
    await bury(bench.store)
    again = await replay(bench.store)
    await bench.handled.complete_and_keep(again, DELIVERY, _FINISHED, _DAYS)
    assert await bench.store.dead_letter(KEY) is None
    assert await bench.store.known("default", ["evt_1"]) == {"evt_1": Known.DONE}
    assert await _kept(bench) == ["evt_1"]


@with_handled
async def an_event_leaves_the_inbox_when_it_is_handled_and_kept(bench: Bench) -> None:
    if not isinstance(bench.store, InboxStore):
        return
    assert await enqueue(bench.inbox) == Stored()
    fetched = await fetch_one(bench.inbox)
    await bench.handled.complete_and_keep(fetched.claim, fetched.delivery, _FINISHED, _DAYS)
    assert await bench.inbox.entry(KEY) is None
    assert (await bench.store.stats()).depth == 0
    assert await enqueue(bench.inbox) == Done()
    kept = await bench.handled.handled_event(KEY)
    assert kept is not None
    assert kept.delivery.body == DELIVERY.body
