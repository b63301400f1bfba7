"""A watched store passes calls on in real time, and answers idle polls from its cache."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from inspect import Parameter
from pathlib import Path
from typing import Any, cast

import pytest
from support.stores import FaultyInboxStore, FaultyStore

from hookonce import Backoff, Context, Inbox, Receiver
from hookonce.events import CommentReceived
from hookonce.simulation.virtual_loop import VirtualLoop, run_virtually
from hookonce.simulation.watched_store import WatchedInboxStore, watched
from hookonce.stores import open_store
from hookonce.stores.handled import HandledStore
from hookonce.stores.memory import MemoryStore
from hookonce.stores.protocols import InboxStore, Store
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Batch, Delivery, Fetched, Stored, Token, new_token

from .delivering import SECRET, comment, delivering

pytestmark = pytest.mark.sample(12, of="file")

HOUR = 3600.0
LEASE = 30.0
SOON_SECONDS = 60.0
CALLS = {
    name: protocol
    for protocol in (HandledStore, InboxStore)
    for name in sorted(dir(protocol))
    if not name.startswith("_") and name != "keeps_bodies"
}


def on_sqlite(path: Path, loop: VirtualLoop) -> FaultyInboxStore:
    return FaultyInboxStore(SQLiteStore(path / "hooks.db", clock=loop.unix_clock))


def delivery(loop: VirtualLoop, event_id: str = "evt_1") -> Delivery:
    return Delivery("default", event_id, "comment.received", loop.unix_clock(), b"{}")


async def fetch(store: WatchedInboxStore, limit: int = 9, endpoint: str = "default") -> Batch:
    return await store.fetch(limit, LEASE, endpoint=endpoint, worker="w", token=new_token())


async def fetch_one(store: WatchedInboxStore) -> Fetched:
    [only] = (await fetch(store)).fetched
    return only


def test_a_watched_store_has_an_inbox_only_if_its_store_has_one(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        assert not isinstance(watched(MemoryStore(), loop), InboxStore)
        assert isinstance(watched(SQLiteStore(tmp_path / "hooks.db"), loop), InboxStore)
        assert not watched(MemoryStore(), loop).keeps_bodies
        assert watched(SQLiteStore(tmp_path / "hooks.db"), loop).keeps_bodies

    run_virtually(main)


@pytest.mark.parametrize("call", [call for call in CALLS if call != "wait"])
def test_every_call_is_passed_on_unchanged_and_stops_virtual_time(call: str) -> None:
    passed_on: list[tuple[str, dict[str, Any]]] = []
    answer = Batch((), 0) if call == "fetch" else object()

    class Asked:
        keeps_bodies = True

        def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
            async def asked(*arguments: object, **named: object) -> Any:
                bound = inspect.signature(getattr(CALLS[name], name)).bind(
                    self, *arguments, **named
                )
                del bound.arguments["self"]
                passed_on.append((name, bound.arguments))
                # Without the wrapper, the loop would skip these three seconds.
                async with asyncio.timeout(3):
                    await asyncio.to_thread(threading.Event().wait, 0.02)
                return answer

            return asked

    async def main(loop: VirtualLoop) -> None:
        method = getattr(WatchedInboxStore(cast("InboxStore", Asked()), loop), call)
        parameters = inspect.signature(method).parameters.values()
        given: dict[str, Any] = {
            p.name: {"endpoint": object()} if p.kind is p.VAR_KEYWORD else object()
            for p in parameters
        }
        if "limit" in given:
            given["limit"] = 5
        by_name = (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)
        positional = [given[p.name] for p in parameters if p.kind not in by_name]
        named = {p.name: given[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}
        for p in parameters:
            if p.kind is p.VAR_KEYWORD:
                named |= given[p.name]
        result = await method(*positional, **named)
        assert passed_on == [(call, given)]
        if inspect.signature(getattr(CALLS[call], call)).return_annotation != "None":
            assert result is answer

    run_virtually(main)


def test_a_slow_store_does_not_count_as_unreachable() -> None:
    async def main(loop: VirtualLoop) -> None:
        store = FaultyStore(MemoryStore(clock=loop.unix_clock))
        receiver = Receiver(secrets=SECRET, store=watched(store, loop), clock=loop.unix_clock)

        @receiver.on(CommentReceived, name="handler")
        async def handler(_: CommentReceived) -> None: ...

        reached = store.hang("claim")
        timer = threading.Timer(0.2, loop.call_soon_threadsafe, (reached.set,))
        async with delivering(receiver, loop) as sender:
            timer.start()
            (await sender.send(comment())).expect(200, "handled")
        timer.join()

    run_virtually(main)


@pytest.mark.full("1 s")
def test_a_failing_event_is_retried_through_hours_of_back_off_in_seconds(durable_url: str) -> None:
    called_at: list[float] = []

    async def main(loop: VirtualLoop) -> None:
        receiver = Receiver(
            secrets=SECRET,
            store=watched(open_store(durable_url, clock=loop.unix_clock), loop),
            inbox=Inbox(backoff=Backoff(first_seconds=HOUR, factor=2, jitter=0)),
            clock=loop.unix_clock,
        )

        @receiver.on(CommentReceived, name="handler")
        async def handler(_: CommentReceived, context: Context) -> None:
            called_at.append(loop.time())
            if context.attempt < 3:
                raise ValueError("not yet")

        async with delivering(receiver, loop) as sender:
            (await sender.send(comment())).expect(202, "stored")
            await asyncio.sleep(6 * HOUR)
            assert (await receiver.waiting.stats()).depth == 0

    begun = time.monotonic()
    run_virtually(main)
    assert time.monotonic() - begun < SOON_SECONDS
    first, second, third = called_at
    assert second - first == pytest.approx(HOUR, abs=3)
    assert third - second == pytest.approx(2 * HOUR, abs=3)


@pytest.mark.sample(1)
def test_an_event_is_handled_at_once_after_idle_hours(durable_url: str) -> None:
    called_at: list[float] = []

    async def main(loop: VirtualLoop) -> None:
        receiver = Receiver(
            secrets=SECRET,
            store=watched(open_store(durable_url, clock=loop.unix_clock), loop),
            inbox=Inbox(),
            clock=loop.unix_clock,
        )

        @receiver.on(CommentReceived, name="handler")
        async def handler(_: CommentReceived) -> None:
            called_at.append(loop.time())

        async with delivering(receiver, loop) as sender:
            await asyncio.sleep(3 * HOUR)
            (await sender.send(comment())).expect(202, "stored")
            stored_at = loop.time()
            await asyncio.sleep(60)
        assert called_at[0] - stored_at < 1

    run_virtually(main)


@pytest.mark.sample(1)
def test_an_event_whose_worker_is_gone_is_handled_when_its_lease_runs_out(durable_url: str) -> None:
    attempts: list[tuple[int, float]] = []

    async def main(loop: VirtualLoop) -> None:
        store = watched(open_store(durable_url, clock=loop.unix_clock), loop)
        assert isinstance(store, WatchedInboxStore)
        receiver = Receiver(secrets=SECRET, store=store, inbox=Inbox(), clock=loop.unix_clock)

        @receiver.on(CommentReceived, name="handler")
        async def handler(_: CommentReceived, context: Context) -> None:
            attempts.append((context.attempt, loop.time()))

        event = comment()
        body = event.model_dump_json(exclude_unset=True).encode()
        await store.enqueue(
            Delivery("default", event.id, event.type, loop.unix_clock(), body), new_token()
        )
        fetched_at = loop.time()
        await fetch_one(store)  # this worker never settles the event
        async with receiver:
            await asyncio.sleep(600)
        [(attempt, run_at)] = attempts
        assert attempt == 2
        assert LEASE <= run_at - fetched_at < LEASE + 3

    run_virtually(main)


def test_an_idle_worker_polls_the_store_about_once_a_minute(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        store = on_sqlite(tmp_path, loop)
        receiver = Receiver(
            secrets=SECRET, store=watched(store, loop), inbox=Inbox(), clock=loop.unix_clock
        )
        async with receiver:
            await asyncio.sleep(3 * HOUR)
            assert store.calls["wait"] == 0
            assert 3 * 50 <= store.calls["fetch"] <= 3 * 70

    run_virtually(main)


def test_the_cache_lasts_until_an_event_is_due(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        inner = on_sqlite(tmp_path, loop)
        store = WatchedInboxStore(inner, loop)
        await store.enqueue(delivery(loop), new_token())
        first = await fetch_one(store)
        assert (await fetch(store)).next_due_seconds == pytest.approx(LEASE, abs=1)
        asked = inner.calls["fetch"]
        await asyncio.sleep(LEASE - 10)
        assert (await fetch(store)).next_due_seconds == pytest.approx(10, abs=1)
        assert inner.calls["fetch"] == asked
        await asyncio.sleep(11)
        second = await fetch_one(store)
        assert (first.claim.attempt, second.claim.attempt) == (1, 2)
        await store.aclose()

    run_virtually(main)


@pytest.mark.parametrize("change", ["enqueue", "retry", "release", "make_due"])
def test_an_event_that_becomes_due_earlier_is_fetched_at_once(tmp_path: Path, change: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        store = WatchedInboxStore(on_sqlite(tmp_path, loop), loop)
        await store.enqueue(delivery(loop), new_token())
        claim = (await fetch_one(store)).claim
        if change == "make_due":
            await store.retry(claim, HOUR)
        assert not (await fetch(store)).fetched
        match change:
            case "enqueue":
                await store.enqueue(delivery(loop, "evt_2"), new_token())
            case "retry":
                await store.retry(claim, 0)
            case "release":
                await store.release(claim, frozenset())
            case "make_due":
                assert await store.make_due(claim.key)
        event_id = (await fetch_one(store)).delivery.event_id
        assert event_id == ("evt_2" if change == "enqueue" else "evt_1")
        await store.aclose()

    run_virtually(main)


def test_an_event_enqueued_during_an_empty_fetch_is_fetched(tmp_path: Path) -> None:
    class LateAnswer(FaultyInboxStore):
        has_fetched = asyncio.Event()
        may_return = asyncio.Event()

        async def fetch(
            self, limit: int, lease: float, *, endpoint: str, worker: str, token: Token
        ) -> Batch:
            batch = await super().fetch(limit, lease, endpoint=endpoint, worker=worker, token=token)
            self.has_fetched.set()
            await self.may_return.wait()
            return batch

    async def main(loop: VirtualLoop) -> None:
        inner = LateAnswer(on_sqlite(tmp_path, loop))
        store = WatchedInboxStore(inner, loop)
        empty = asyncio.ensure_future(fetch(store))
        await inner.has_fetched.wait()
        assert await store.enqueue(delivery(loop), new_token()) == Stored()
        inner.may_return.set()
        assert (await empty).fetched == ()
        assert (await fetch_one(store)).delivery.event_id == "evt_1"
        await store.aclose()

    run_virtually(main)


def test_a_fetch_with_limit_0_does_not_fill_the_cache(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        store = WatchedInboxStore(on_sqlite(tmp_path, loop), loop)
        await store.enqueue(delivery(loop), new_token())
        assert (await fetch(store, limit=0)).fetched == ()
        assert (await fetch_one(store)).delivery.event_id == "evt_1"
        await store.aclose()

    run_virtually(main)


def test_a_fetch_with_limit_0_still_registers_the_worker(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        store = WatchedInboxStore(on_sqlite(tmp_path, loop), loop)
        assert (await fetch(store)).next_due_seconds is None
        await asyncio.sleep(60)
        assert (await store.stats()).workers == 0
        await fetch(store, limit=0)
        assert (await store.stats()).workers == 1
        await store.aclose()

    run_virtually(main)


def test_the_cache_belongs_to_one_endpoint(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        store = WatchedInboxStore(on_sqlite(tmp_path, loop), loop)
        await store.enqueue(delivery(loop), new_token())
        assert (await fetch(store, endpoint="other")).fetched == ()
        assert (await fetch_one(store)).delivery.event_id == "evt_1"
        await store.aclose()

    run_virtually(main)


def test_a_wait_passes_in_virtual_time_without_a_call_to_the_store(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        inner = on_sqlite(tmp_path, loop)
        begun = loop.time()
        await WatchedInboxStore(inner, loop).wait("default", 120)
        assert 120 <= loop.time() - begun < 121
        assert not inner.calls

    run_virtually(main)


def test_the_repr_of_a_watched_store_names_its_kind_but_no_address() -> None:
    async def main(loop: VirtualLoop) -> None:
        store: Store = open_store("redis://user:hunter2@nowhere/0", clock=loop.unix_clock)
        assert repr(watched(store, loop)) == "WatchedInboxStore(RedisStore)"

    run_virtually(main)
