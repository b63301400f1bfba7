"""A worker prefetches events, so that no handler has to wait for a fetch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from support.deliveries import SECRET, empty_inbox
from support.handlers import Handler
from support.waiting import until, until_async

from hookonce import Inbox, Limits, Receiver
from hookonce.inbox import prefetch
from hookonce.stores.protocols import InboxStore
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Delivery, Entry, new_token
from hookonce.stores.wrapped import WrappedInbox
from hookonce.testing import event_body

pytestmark = pytest.mark.anyio

PLACES = 2


class SlowFetches(WrappedInbox):
    """A store with slow fetches; counts the handler runs that begin during a fetch."""

    def __init__(self, inner: InboxStore, handler_runs: Callable[[], int] = lambda: 0) -> None:
        super().__init__(inner)
        self.handler_runs = handler_runs
        self.begun_in_fetches: list[int] = []

    async def call(self, name: str, call: Any) -> Any:
        if name != "fetch":
            return await call()
        before = self.handler_runs()
        await asyncio.sleep(0.02)
        result = await call()
        self.begun_in_fetches.append(self.handler_runs() - before)
        return result


async def fill(store: InboxStore, number: int) -> list[str]:
    ids = [f"evt_{n:04}" for n in range(number)]
    for n, event_id in enumerate(ids):
        body = event_body("comment.received", event_id=event_id)
        delivery = Delivery("default", event_id, "comment.received", float(n + 1), body)
        await store.enqueue(delivery, new_token())
    return ids


def receiver_on(store: InboxStore, **limits: Any) -> Receiver:
    inbox = Inbox(concurrency=PLACES, embedded=False)
    return Receiver(secrets=SECRET, store=store, inbox=inbox, limits=Limits(**limits))


async def in_flight(store: InboxStore) -> list[Entry]:
    return [entry for entry in await store.entries(limit=1000) if entry.in_flight]


async def busy_with_prefetched_events(store: InboxStore, handler: Handler) -> None:
    """Wait until all running handlers are blocked, and the worker has prefetched more events."""

    blocked = 0

    async def slow_at_last() -> None:
        nonlocal blocked
        if handler.runs <= 40:
            await asyncio.sleep(0.001)
        else:
            blocked += 1
            await asyncio.Event().wait()

    handler.does = slow_at_last

    async def has_prefetched() -> bool:
        return blocked == PLACES and len(await in_flight(store)) > PLACES

    await until_async(has_prefetched, what="prefetched events")


async def test_handlers_begin_while_the_worker_fetches(tmp_path: Path) -> None:
    runs: list[str] = []
    store = SlowFetches(SQLiteStore(tmp_path / "hooks.db"), lambda: len(runs))
    receiver = receiver_on(store)

    @receiver.on("comment.received", name="handler")
    async def handle(event: Any) -> None:
        runs.append(event.id)
        await asyncio.sleep(0.002)

    async with receiver.opened():
        ids = await fill(store.inner, 60)
        async with receiver.working():
            await until(lambda: len(runs) >= len(ids), what="all runs")
            await empty_inbox(receiver)
    assert sorted(runs) == ids
    assert max(store.begun_in_fetches) > 0


async def test_at_most_as_many_events_run_at_once_as_there_are_places(tmp_path: Path) -> None:
    store = SlowFetches(SQLiteStore(tmp_path / "hooks.db"))
    receiver = receiver_on(store)
    handler = Handler(receiver)
    handler.does = lambda: asyncio.sleep(0.001)
    async with receiver.opened():
        ids = await fill(store.inner, 60)
        async with receiver.working():
            await until(lambda: handler.runs >= len(ids), what="all runs")
            await empty_inbox(receiver)
    assert handler.most_at_once == PLACES
    assert handler.attempts == [1] * len(ids)


async def test_a_stop_returns_prefetched_events_in_order_and_their_attempts_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "_LONGEST_WAIT_SECONDS", 3600.0)
    inner = SQLiteStore(tmp_path / "hooks.db")
    store = SlowFetches(inner)
    receiver = receiver_on(store, drain_seconds=0.1)
    handler = Handler(receiver)
    async with receiver.opened():
        ids = await fill(inner, 200)
        async with receiver.working():
            await busy_with_prefetched_events(inner, handler)
            taken = [entry.delivery.event_id for entry in await in_flight(inner)]
            begun = set(handler.ids)
        prefetched = [event_id for event_id in taken if event_id not in begun]
        assert set(handler.ids) == begun
        entries = {entry.delivery.event_id: entry for entry in await inner.entries(limit=1000)}
    assert not any(entry.in_flight for entry in entries.values())
    assert [entries[event_id].attempts for event_id in prefetched] == [0] * len(prefetched)
    assert not any(entries[event_id].history for event_id in prefetched)
    returned = sorted(prefetched, key=lambda event_id: entries[event_id].due_unix)
    assert returned == [event_id for event_id in ids if event_id in set(prefetched)]


async def test_events_that_wait_too_long_for_a_place_go_back_to_the_inbox(tmp_path: Path) -> None:
    inner = SQLiteStore(tmp_path / "hooks.db")
    receiver = receiver_on(SlowFetches(inner), drain_seconds=0.1)
    handler = Handler(receiver)
    async with receiver.opened():
        await fill(inner, 200)
        async with receiver.working():
            await busy_with_prefetched_events(inner, handler)

            async def only_begun_events_are_in_flight() -> bool:
                return len(await in_flight(inner)) == PLACES

            await until_async(only_begun_events_are_in_flight, what="the return of the others")
            begun = set(handler.ids)
            entries = await inner.entries(limit=1000)
    waiting = [entry for entry in entries if entry.delivery.event_id not in begun]
    assert [entry.attempts for entry in waiting] == [0] * len(waiting)


async def test_a_handler_sees_no_context_variable_of_the_handler_before_it(tmp_path: Path) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="")
    inner = SQLiteStore(tmp_path / "hooks.db")
    receiver = receiver_on(SlowFetches(inner))
    handler = Handler(receiver)
    seen: list[str] = []

    def set_variable() -> Any:
        seen.append(variable.get())
        variable.set("of another event")
        return asyncio.sleep(0.001)

    handler.does = set_variable
    async with receiver.opened():
        ids = await fill(inner, 60)
        async with receiver.working():
            await until(lambda: len(seen) >= len(ids), what="all runs")
            await empty_inbox(receiver)
    assert set(seen) == {""}


def test_a_worker_whose_handlers_take_long_prefetches_nothing() -> None:
    events = prefetch.Prefetch(64, 30.0)
    events.learn(left=64, seconds=10.0, fetch_seconds=0.01)
    assert events.wanted(free=0) == 0
    assert events.wanted(free=3) == 3


def test_a_worker_prefetches_for_four_fetches_but_at_most_four_times_its_places() -> None:
    events = prefetch.Prefetch(64, 30.0)
    events.learn(left=20, seconds=0.02, fetch_seconds=0.01)
    assert events.wanted(free=0) == 40
    events.learn(left=50, seconds=0.01, fetch_seconds=0.01)
    assert events.wanted(free=4) == 200 + 4
    events.learn(left=200, seconds=0.01, fetch_seconds=0.01)
    assert events.wanted(free=4) == 256 + 4
    for _ in range(10):
        events.learn(left=0, seconds=0.02, fetch_seconds=0.01)
    assert events.wanted(free=0) == 0
