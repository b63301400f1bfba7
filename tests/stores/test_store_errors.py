"""Every store's errors say what to do; the contract checks only their types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hookonce.errors import StoreError
from hookonce.stores.memory import MemoryStore
from hookonce.stores.protocols import InboxStore, Store
from hookonce.stores.values import Claimed, DeadReason, Delivery, new_token

pytestmark = pytest.mark.anyio

DELIVERY = Delivery("default", "evt_1", "comment.received", 1_700_000_000.0, b"bytes\0\xff")
INVALID_PLACES = ["", "evt_1", "-1", " 1", "1" * 30, "nan 1:a:b", "1.5 x", "1.5 ", DELIVERY]


async def claim(store: Store) -> Claimed:
    result = await store.claim(DELIVERY.key, new_token(), 30.0)
    assert isinstance(result, Claimed)
    return result


async def test_a_retention_that_is_no_time_span_is_refused(
    make_store: Callable[..., Store],
) -> None:
    with pytest.raises(ValueError, match="retention takes a finite number of seconds above 0"):
        make_store(retention=0)
    with pytest.raises(TypeError, match="takes seconds or a timedelta"):
        make_store(retention="15 days")


@pytest.mark.parametrize("after", INVALID_PLACES)
async def test_a_listing_refuses_an_invalid_place(store: Store, after: Any) -> None:
    refused = "after must be the `place` of an event"
    with pytest.raises(ValueError, match=refused):
        await store.dead_letters(after=after)
    if isinstance(store, InboxStore):
        with pytest.raises(ValueError, match=refused):
            await store.entries(after=after)


async def test_a_store_with_bodies_refuses_a_burial_without_a_delivery(
    keeping_store: Store,
) -> None:
    with pytest.raises(StoreError, match="no delivery"):
        await keeping_store.bury(await claim(keeping_store), DeadReason.REJECTED)


async def test_a_store_without_bodies_refuses_calls_that_need_them() -> None:
    store = MemoryStore()
    owned = await claim(store)
    with pytest.raises(StoreError, match="keeps no bodies"):
        await store.keep(owned, DELIVERY)
    with pytest.raises(StoreError, match="keeps no bodies"):
        await store.keep_in_flight(DELIVERY)
    await store.bury(owned, DeadReason.REJECTED, delivery=DELIVERY)
    with pytest.raises(StoreError, match="no bodies"):
        await store.replay(DELIVERY.key, new_token(), 30.0)
