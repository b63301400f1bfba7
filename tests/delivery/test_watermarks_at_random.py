"""In any order of outages, failures and shutdowns, each watermark is sent in time.

Two processes share a store and handle events of a few keys. Each process loses the store for a
while, or only the store's replies, or only the call that ends a key lock. Handlers fail, and
receivers are closed and opened again.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from support.deliveries import deliver, empty_inbox, receiver_on, sqlite_url
from support.watermarks import WatchingInboxStore, WatchingStore

from hookonce import Inbox, Receiver
from hookonce.errors import StoreError
from hookonce.events import ChannelUnhealthy
from hookonce.stores import open_store
from hookonce.stores.memory import MemoryStore
from hookonce.testing import make_event

pytestmark = pytest.mark.anyio

NOON = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
EVENTS, KEYS = 40, 3


class Process:
    """A receiver that is closed and opened again, and the outages of its store."""

    def __init__(self, store: WatchingStore, chance: random.Random, *, inbox: bool) -> None:
        self.store = store
        self.receiver = receiver_on(
            store,
            inbox=Inbox(backoff=0.05, max_attempts=1_000) if inbox else None,
            lease_seconds=0.25,
            store_seconds=0.2,
            answer_seconds=0.3,
            drain_seconds=0.1,
        )
        self._chance = chance
        _register(self.receiver, store, chance)

    async def live(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            with suppress(StoreError):  # the store may have an outage now
                async with self.receiver:
                    await asyncio.sleep(self._chance.uniform(0.3, 2.0))
            await asyncio.sleep(self._chance.uniform(0.0, 0.2))

    async def lose_the_store(self, stop: asyncio.Event) -> None:
        store, chance = self.store, self._chance
        while not stop.is_set():
            await asyncio.sleep(chance.uniform(0.05, 0.6))
            match chance.randrange(3):
                case 0:
                    store.is_away = True
                case 1:
                    store.loses_replies = True
                case _:
                    store.failures["release_key_lock"] = -1
            await asyncio.sleep(chance.uniform(0.1, 0.8))
            store.is_away = store.loses_replies = False
            store.failures.clear()


def _register(receiver: Receiver, store: WatchingStore, chance: random.Random) -> None:
    @receiver.on(ChannelUnhealthy, name="latest", latest_by=lambda event: event.data.id)
    async def latest(event: ChannelUnhealthy) -> None:
        await asyncio.sleep(chance.choice([0, 0.01, 0.05, 0.3]))
        if chance.random() < 0.15:
            raise ConnectionError("busy")
        store.success(event, "latest", event.data.id)

    @receiver.on(ChannelUnhealthy, name="other")
    async def other(_: ChannelUnhealthy) -> None:
        await asyncio.sleep(chance.choice([0, 0.1]))
        if chance.random() < 0.2:
            raise ConnectionError("busy")


async def send(processes: list[Process], event: ChannelUnhealthy, chance: random.Random) -> None:
    """Deliver an event until it is accepted."""
    for attempt in count(1):
        process = chance.choice(processes)
        if (await deliver(process.receiver, event, min(attempt, 3))).status < 300:
            return
        await asyncio.sleep(chance.uniform(0.02, 0.3))


@pytest.mark.costs("4 s")
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.full("4 s")) for seed in range(2, 6))]
)
@pytest.mark.parametrize("inbox", [False, True])
async def test_no_schedule_of_outages_and_shutdowns_sends_a_watermark_too_late(
    tmp_path: Path, inbox: bool, seed: int
) -> None:
    chance, shared, stop = random.Random(seed), MemoryStore(), asyncio.Event()
    stores: list[WatchingStore] = []
    for _ in range(2):
        beside = stores[0] if stores else None
        stores.append(
            WatchingInboxStore(open_store(sqlite_url(tmp_path), clock=time.time), beside)
            if inbox
            else WatchingStore(shared, beside)
        )
    processes = [Process(store, chance, inbox=inbox) for store in stores]
    events = [
        make_event(
            ChannelUnhealthy,
            created_at=NOON + timedelta(seconds=number),
            data={"id": f"chan_{chance.randrange(KEYS)}"},
        )
        for number in range(EVENTS)
    ]
    events.sort(key=lambda event: event.created_at + timedelta(seconds=chance.uniform(0, 15)))
    around = [asyncio.create_task(process.live(stop)) for process in processes]
    around += [asyncio.create_task(process.lose_the_store(stop)) for process in processes]
    async with asyncio.timeout(90), asyncio.TaskGroup() as senders:
        for event in events:
            senders.create_task(send(processes, event, chance))
            await asyncio.sleep(0.06)
    stop.set()
    await asyncio.gather(*around)
    async with processes[0].receiver as receiver:
        if inbox:
            await empty_inbox(receiver)
    assert [violation for store in stores for violation in store.violations] == []
    assert sum(len(store._succeeded) for store in stores) > EVENTS / 4
