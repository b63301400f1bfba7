"""Every backend's dead letters: buried, listed, discarded.

The stores come from conftest; what a backend may leave out is asked of ``Store.keeps_bodies``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hookonce.clock import Clock
from hookonce.errors import StoreError
from hookonce.stores.protocols import DEFAULT_RETENTION, Store
from hookonce.stores.values import (
    Claimed,
    Dead,
    DeadLetter,
    DeadReason,
    Delivery,
    DeliveryKey,
    Done,
    FailedAttempt,
    InFlight,
    Ownership,
    StoreStats,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 30.0
RETENTION = DEFAULT_RETENTION.total_seconds()
NONE: frozenset[str] = frozenset()

PassTime = Callable[[float], None]


def delivery(
    event_id: str = "evt_1",
    *,
    endpoint: str = "default",
    event_type: str | None = "post.target.failed",
) -> Delivery:
    body = f"the bytes of {event_id}\0\xff".encode("latin-1")
    return Delivery(endpoint, event_id, event_type, 1_699_999_999.25, body)


DELIVERY = delivery()
KEY = DELIVERY.key

# Nothing, an event's id, a number that is none, one beyond all rows, parts of a Redis store's
# place, and a listed event itself.
NO_PLACES = ["", "evt_1", "-1", " 1", "1" * 30, "nan 1:a:b", "1.5 x", "1.5 ", DELIVERY]


async def claim(store: Store, key: DeliveryKey = KEY) -> Claimed:
    """Claim what must be free."""
    result = await store.claim(key, new_token(), LEASE)
    assert isinstance(result, Claimed)
    return result


async def bury(
    store: Store, buried: Delivery = DELIVERY, *, finished: frozenset[str] = NONE
) -> None:
    owned = await claim(store, buried.key)
    ownership = await store.bury(
        owned, DeadReason.EXHAUSTED, error="it failed", finished=finished, delivery=buried
    )
    assert ownership is Ownership.HELD


async def look(store: Store, key: DeliveryKey = KEY) -> type[object]:
    """Return how a claim by somebody else ends; it takes the event if it is free."""
    return type(await store.claim(key, new_token(), LEASE))


async def listed(
    store: Store, *, endpoint: str | None = None, event_type: str | None = None, limit: int = 100
) -> list[str]:
    """Return the ids of the events that are listed."""
    letters = await store.dead_letters(endpoint=endpoint, event_type=event_type, limit=limit)
    return [letter.delivery.event_id for letter in letters]


class TestBurial:
    @pytest.mark.parametrize("reason", list(DeadReason))
    async def test_a_letter_holds_all_that_is_known_of_the_event(
        self, store: Store, clock: Clock, pass_time: PassTime, reason: DeadReason
    ) -> None:
        first = await claim(store)
        await store.release(first, frozenset({"a"}), "c: KeyError: 'a'")
        second = await claim(store)
        await store.extend(second, frozenset({"b"}))
        pass_time(7)
        ownership = await store.bury(
            second, reason, error="c: ValueError: é", finished=frozenset({"d"}), delivery=DELIVERY
        )
        assert ownership is Ownership.HELD
        buried_unix = clock()
        pass_time(100)
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

    async def test_a_letter_without_a_readable_type_or_an_error_is_kept_as_it_is(
        self, store: Store
    ) -> None:
        unreadable = delivery(event_type=None)
        await store.bury(await claim(store), DeadReason.UNREADABLE, delivery=unreadable)
        letter = await store.dead_letter(KEY)
        assert letter is not None
        assert letter.delivery.event_type is None
        assert (letter.error, letter.finished) == ("", NONE)

    async def test_a_dead_event_is_dead_for_everybody_and_for_ever(
        self, store: Store, pass_time: PassTime
    ) -> None:
        owned = await claim(store)
        await store.bury(owned, DeadReason.REJECTED, delivery=DELIVERY)
        assert await store.claim(KEY, owned.token, LEASE) == Dead()
        for seconds in (0.0, LEASE, RETENTION, 10 * RETENTION, -11 * RETENTION):
            pass_time(seconds)
            await store.prune()
            assert await store.claim(KEY, new_token(), LEASE) == Dead()
        assert await store.stats() == StoreStats(in_flight=0, dead=1)

    async def test_a_burial_leaves_other_events_alone(self, store: Store) -> None:
        other, free = delivery("evt_2"), delivery("evt_1", endpoint="other")
        held = await claim(store, other.key)
        await bury(store)
        assert await store.extend(held) is Ownership.HELD
        assert await look(store, free.key) is Claimed

    async def test_without_a_delivery_only_a_store_without_bodies_buries(
        self, store: Store
    ) -> None:
        owned = await claim(store)
        if store.keeps_bodies:
            with pytest.raises(StoreError, match="no delivery"):
                await store.bury(owned, DeadReason.REJECTED)
            assert await store.extend(owned) is Ownership.HELD
            assert await store.dead_letter(KEY) is None
        else:
            assert await store.bury(owned, DeadReason.REJECTED) is Ownership.HELD
            letter = await store.dead_letter(KEY)
            assert letter is not None
            assert (letter.delivery.endpoint, letter.delivery.event_id) == ("default", "evt_1")

    async def test_an_event_that_is_not_dead_has_no_letter(self, store: Store) -> None:
        assert await store.dead_letter(KEY) is None
        owned = await claim(store)
        assert await store.dead_letter(KEY) is None
        await store.complete(owned)
        assert await store.dead_letter(KEY) is None
        assert await store.dead_letters() == []


class TestListing:
    async def test_letters_are_listed_oldest_first_with_empty_bodies(
        self, store: Store, pass_time: PassTime
    ) -> None:
        names = ["evt_5", "evt_1", "evt_4", "evt_2", "evt_3"]
        for name in names:
            await bury(store, delivery(name), finished=frozenset({name}))
            pass_time(1)
        letters = await store.dead_letters()
        assert [letter.delivery.event_id for letter in letters] == names
        assert {letter.delivery.body for letter in letters} == {b""}
        for letter in letters:
            whole = await store.dead_letter(letter.delivery.key)
            assert whole is not None
            assert replace(whole, delivery=whole.delivery._replace(body=b"")) == letter

    async def test_a_limit_lists_the_oldest(self, store: Store) -> None:
        for n in range(5):
            await bury(store, delivery(f"evt_{n}"))
        assert await listed(store, limit=2) == ["evt_0", "evt_1"]
        assert await listed(store, limit=5) == await listed(store, limit=500) == await listed(store)
        assert await listed(store, limit=0) == []

    async def test_filters_list_what_matches_all_of_them(self, store: Store) -> None:
        await bury(store, delivery("evt_1", event_type="comment.received"))
        await bury(store, delivery("evt_1", endpoint="other", event_type="comment.received"))
        await bury(store, delivery("evt_2", event_type="message.received"))
        await bury(store, delivery("evt_3", endpoint="other", event_type="message.received"))
        await bury(store, delivery("evt_4", event_type="comment.received"))
        assert await listed(store, endpoint="default") == ["evt_1", "evt_2", "evt_4"]
        assert await listed(store, endpoint="other") == ["evt_1", "evt_3"]
        assert await listed(store, event_type="comment.received") == ["evt_1", "evt_1", "evt_4"]
        both = await listed(store, endpoint="default", event_type="comment.received")
        assert both == ["evt_1", "evt_4"]
        assert await listed(store, event_type="comment.received", limit=2) == ["evt_1", "evt_1"]
        assert await listed(store, endpoint="nobody") == []
        assert await listed(store, event_type="comment") == []

    async def test_letters_are_found_by_event_reason_handler_and_time(
        self, store: Store, clock: Clock, pass_time: PassTime
    ) -> None:
        owing = {"evt_1": {"alert"}, "evt_2": {'al"ert', "sync"}, "evt_3": set[str]()}
        for event_id, names in owing.items():
            owned = await claim(store, delivery(event_id).key)
            reason = DeadReason.REJECTED if event_id == "evt_2" else DeadReason.EXHAUSTED
            await store.bury(
                owned, reason, outstanding=frozenset(names), delivery=delivery(event_id)
            )
            pass_time(10)
        await bury(store, delivery("evt_2", endpoint="other"))

        async def found(**wanted: Any) -> list[DeliveryKey]:
            return [letter.delivery.key for letter in await store.dead_letters(**wanted)]

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
        assert await found(since_unix=clock() - 20) == [two, three, other]
        assert await found(since_unix=clock() - 15, reason=DeadReason.EXHAUSTED) == [three, other]
        assert await found(since_unix=clock() + 1) == []

    async def test_what_a_handler_owes_is_known_while_a_replay_runs(self, store: Store) -> None:
        if not store.keeps_bodies:
            pytest.skip("without bodies nothing is replayed")
        owned = await claim(store)
        names = frozenset({"alert", "sync"})
        await store.bury(owned, DeadReason.EXHAUSTED, outstanding=names, delivery=DELIVERY)
        replayed = await store.replay(KEY, new_token(), LEASE)
        assert isinstance(replayed, Claimed)
        await store.extend(replayed, finished=frozenset({"alert"}))
        assert len(await store.dead_letters(handler="sync")) == 1
        assert await store.dead_letters(handler="alert") == []

    @pytest.mark.parametrize("seconds", [0, 1])
    async def test_a_listing_goes_on_behind_a_place_though_its_letter_has_gone(
        self, store: Store, pass_time: PassTime, seconds: int
    ) -> None:
        """Those of one moment too: they have an order as well."""
        names = [f"evt_{number}" for number in range(9)]
        for name in names:
            await bury(store, delivery(name, endpoint="ab"[int(name[-1]) % 2]))
            pass_time(seconds)
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

    @pytest.mark.parametrize("after", NO_PLACES)
    async def test_a_listing_goes_on_behind_nothing_but_a_place(
        self, store: Store, after: Any
    ) -> None:
        """A caller's mistake is told from a store that failed, and lists nothing."""
        await bury(store)
        with pytest.raises(ValueError, match="after must be the `place` of an event"):
            await store.dead_letters(after=after)

    async def test_a_listing_of_many_is_read_in_pages(self, store: Store) -> None:
        """More than a store looks at in one call, and of several that match every second one."""
        names = [f"evt_{number:03}" for number in range(450)]
        for name in names:
            kind = "comment.received" if int(name[-1]) % 2 else "message.received"
            await bury(store, delivery(name, event_type=kind))
        for event_type, expected in (None, names), ("comment.received", names[1::2]):
            found: list[str] = []
            after = None
            while page := await store.dead_letters(event_type=event_type, after=after, limit=70):
                found += [letter.delivery.event_id for letter in page]
                after = page[-1].place
            assert found == expected

    async def test_a_letter_whose_type_could_not_be_read_is_of_no_type(self, store: Store) -> None:
        await bury(store, delivery(event_type=None))
        assert await listed(store, event_type="comment.received") == []
        assert await listed(store, endpoint="default") == await listed(store) == ["evt_1"]


class TestDiscarding:
    async def test_a_discarded_letter_is_gone_and_its_event_done(
        self, store: Store, pass_time: PassTime
    ) -> None:
        await bury(store)
        pass_time(2 * RETENTION)
        assert await store.discard(KEY) is True
        assert await store.dead_letter(KEY) is None
        assert await listed(store) == []
        assert await store.stats() == StoreStats(in_flight=0, dead=0)
        pass_time(RETENTION - 1)
        assert await look(store) is Done
        pass_time(1)
        assert await look(store) is Claimed

    async def test_only_a_dead_letter_can_be_discarded(self, store: Store) -> None:
        assert await store.discard(KEY) is False
        owned = await claim(store)
        assert await store.discard(KEY) is False
        assert await look(store) is InFlight
        await store.complete(owned)
        assert await store.discard(KEY) is False

    async def test_of_many_who_discard_a_letter_one_is_told_so(self, store: Store) -> None:
        await bury(store)
        answers = await asyncio.gather(*(store.discard(KEY) for _ in range(20)))
        assert sorted(answers) == [False] * 19 + [True]
