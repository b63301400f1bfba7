"""Deliveries, and a way to fill an inbox with them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from itertools import count, islice

from hookonce.clock import system_clock
from hookonce.samples.events import event_body
from hookonce.stores import open_store
from hookonce.stores.protocols import InboxStore
from hookonce.stores.values import Delivery, Stored, new_token

__all__ = ["ENDPOINT", "deliveries", "fill", "inbox_store"]

ENDPOINT = "default"

_EVENT_TYPE = "comment.received"
# The most events that the Redis store sends in one call.
_AT_ONCE = 256
_numbers = count()


def inbox_store(url: str) -> InboxStore:
    """Return the store that a URL names."""
    store = open_store(url, clock=system_clock)
    assert isinstance(store, InboxStore)
    return store


def deliveries(number: int) -> Iterator[Delivery]:
    """Return this many deliveries, each of another event."""
    for _ in range(number):
        event_id = f"evt_{os.getpid():x}{next(_numbers):012x}"
        body = event_body(_EVENT_TYPE, event_id=event_id)
        yield Delivery(ENDPOINT, event_id, _EVENT_TYPE, time.time(), body)


async def fill(store: InboxStore, given: Iterator[Delivery]) -> None:
    """Store deliveries in the inbox, in their order."""
    while some := list(islice(given, _AT_ONCE)):
        results = await asyncio.gather(*(store.enqueue(each, new_token()) for each in some))
        if any(not isinstance(result, Stored) for result in results):
            raise RuntimeError("an event was known before it was put")
