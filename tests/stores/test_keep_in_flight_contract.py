"""The sender's last delivery of an event that somebody else is working on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hookonce.errors import StoreError
from hookonce.stores.protocols import Store
from hookonce.stores.values import Claimed, Dead, DeadReason, Delivery, Done, InFlight, new_token

pytestmark = pytest.mark.anyio

LEASE = 30.0
DELIVERY = Delivery("default", "evt_1", "comment.received", 1_700_000_000.0, b"bytes\0\xff")
KEY = DELIVERY.key


async def claim(store: Store) -> Claimed:
    result = await store.claim(KEY, new_token(), LEASE)
    assert isinstance(result, Claimed)
    return result


async def look(store: Store) -> type[object]:
    return type(await store.claim(KEY, new_token(), LEASE))


async def test_it_is_no_dead_letter_while_the_claim_lives_and_gone_when_it_succeeds(
    keeping_store: Store,
) -> None:
    owned = await claim(keeping_store)
    await keeping_store.keep_in_flight(DELIVERY)
    assert await keeping_store.dead_letters() == []
    assert await look(keeping_store) is InFlight
    await keeping_store.complete(owned)
    assert await keeping_store.dead_letters() == []
    assert await look(keeping_store) is Done


async def test_when_the_attempt_fails_it_is_an_exhausted_letter_with_the_error(
    keeping_store: Store,
) -> None:
    owned = await claim(keeping_store)
    await keeping_store.keep_in_flight(DELIVERY)
    await keeping_store.release(owned, frozenset({"a"}), "it failed")
    assert await look(keeping_store) is Dead
    letter = await keeping_store.dead_letter(KEY)
    assert letter is not None
    assert letter.delivery == DELIVERY
    assert (letter.reason, letter.error) == (DeadReason.EXHAUSTED, "it failed")
    assert (letter.attempts, letter.finished) == (1, frozenset({"a"}))


async def test_when_the_owner_crashes_it_is_an_interrupted_letter(
    keeping_store: Store, pass_time: Callable[[float], None]
) -> None:
    await claim(keeping_store)
    await keeping_store.keep_in_flight(DELIVERY)
    pass_time(LEASE)
    letter = await keeping_store.dead_letter(KEY)
    assert letter is not None
    assert letter.reason is DeadReason.INTERRUPTED
    assert await look(keeping_store) is Dead


async def test_when_the_attempt_failed_a_moment_before_it_is_a_letter_at_once(
    keeping_store: Store,
) -> None:
    await keeping_store.release(await claim(keeping_store), frozenset(), "it failed")
    await keeping_store.keep_in_flight(DELIVERY)
    assert await look(keeping_store) is Dead


async def test_an_event_that_is_done_by_then_leaves_nothing(keeping_store: Store) -> None:
    await keeping_store.complete(await claim(keeping_store))
    await keeping_store.keep_in_flight(DELIVERY)
    assert await keeping_store.dead_letters() == []
    assert await look(keeping_store) is Done


async def test_a_letter_that_stands_already_stays_as_it_is(keeping_store: Store) -> None:
    owned = await claim(keeping_store)
    await keeping_store.bury(owned, DeadReason.REJECTED, error="no", delivery=DELIVERY)
    await keeping_store.keep_in_flight(DELIVERY)
    letter = await keeping_store.dead_letter(KEY)
    assert letter is not None
    assert (letter.reason, letter.error) == (DeadReason.REJECTED, "no")


async def test_a_store_without_bodies_says_so(store: Store) -> None:
    if store.keeps_bodies:
        pytest.skip("this store keeps bodies")
    with pytest.raises(StoreError, match="keeps no bodies"):
        await store.keep_in_flight(DELIVERY)
