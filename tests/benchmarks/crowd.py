"""Bursts of calls, to compare a store that holds many events with an almost empty store.

A burst does not change the depth of the inbox, and adds a few hundred handled events.
"""

from __future__ import annotations

import asyncio
import gc
import time
from itertools import islice, pairwise
from typing import NamedTuple

from hookonce.stores.protocols import InboxStore, Store
from hookonce.stores.values import Claimed, Fetched, Stored, delivery_key, new_token

from .filling import ENDPOINT, deliveries

__all__ = ["InboxBurst", "RememberingBurst", "inbox_burst", "remembering_burst"]

_BURST = 512
_AT_ONCE = 64
_LEASE_SECONDS = 30.0
# Limits that the inbox does not reach; as by default, every enqueue checks them.
_MOST_EVENTS, _MOST_BYTES = 10_000_000, 64 * 1024**3


class RememberingBurst(NamedTuple):
    """The microseconds to claim an event, and the microseconds to complete an event."""

    claim: float
    complete: float


async def remembering_burst(store: Store) -> RememberingBurst:
    """Claim events, then complete them."""
    claims: list[Claimed] = []

    async def claim(number: int) -> None:
        for _ in range(number):
            key = delivery_key(ENDPOINT, f"evt_{new_token()}")
            claimed = await store.claim(key, new_token(), _LEASE_SECONDS)
            assert isinstance(claimed, Claimed)
            claims.append(claimed)

    gc.collect()
    started = time.perf_counter()
    await asyncio.gather(*(claim(_BURST // _AT_ONCE) for _ in range(_AT_ONCE)))
    claimed_at = time.perf_counter()
    for first in range(0, _BURST, _AT_ONCE):
        await asyncio.gather(*map(store.complete, claims[first : first + _AT_ONCE]))
    an_event = 1e6 / _BURST
    return RememberingBurst(
        (claimed_at - started) * an_event, (time.perf_counter() - claimed_at) * an_event
    )


class InboxBurst(NamedTuple):
    """The microseconds to store, fetch and complete an event, and to read the statistics."""

    put: float
    take: float
    complete: float
    stats: float


async def inbox_burst(store: InboxStore) -> InboxBurst:
    """Store events, then fetch and complete the same number."""
    given = deliveries(_BURST)

    async def put(number: int) -> None:
        for delivery in islice(given, number):
            result = await store.enqueue(
                delivery, new_token(), max_depth=_MOST_EVENTS, max_bytes=_MOST_BYTES
            )
            assert isinstance(result, Stored)

    gc.collect()
    times = [time.perf_counter()]
    await asyncio.gather(*(put(_BURST // _AT_ONCE) for _ in range(_AT_ONCE)))
    times.append(time.perf_counter())
    taken: list[Fetched] = []
    for _ in range(_BURST // _AT_ONCE):
        batch = await store.fetch(
            _AT_ONCE, _LEASE_SECONDS, endpoint=ENDPOINT, worker="burst", token=new_token()
        )
        taken += batch.fetched
    times.append(time.perf_counter())
    for first in range(0, _BURST, _AT_ONCE):
        some = taken[first : first + _AT_ONCE]
        await asyncio.gather(*(store.complete(one.claim) for one in some))
    times.append(time.perf_counter())
    await store.stats(endpoint=ENDPOINT)
    times.append(time.perf_counter())
    if len(taken) != _BURST:
        raise RuntimeError("not as many were taken as were put")
    put_, take, complete, look = (later - earlier for earlier, later in pairwise(times))
    an_event = 1e6 / _BURST
    return InboxBurst(put_ * an_event, take * an_event, complete * an_event, look * 1e6)
