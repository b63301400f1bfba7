"""Reconcile reports lost events as gaps, but not events that were ignored for lack of a handler.

Reconcile excuses an event only if a record in the store shows that it was ignored. The tests know
what happened to each event, and compare this with the report.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest
from support.deliveries import SECRET

from hookonce import Inbox, Limits, Receiver
from hookonce.client import Client
from hookonce.delivery.ignored import IgnoredTypes
from hookonce.emulator import EmulatedService, VirtualClock
from hookonce.events import (
    CommentReceived,
    Event,
    MessageReceived,
    PostTargetFailed,
    UnknownPublishingEvent,
)
from hookonce.http.app import Receive, Scope, Send
from hookonce.receiver import Gap, Reconciliation, Verdict, Why
from hookonce.stores.memory import MemoryStore
from hookonce.stores.protocols import Store
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Claimed, delivery_key, new_token
from hookonce.stores.wrapped import Wrapped
from hookonce.testing import make_event

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Bench:
    """The service and the receiver that is deployed now, in virtual time.

    Attributes:
        receiver: the application that gets the deliveries.
        handled: the events that handlers have handled.

    """

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.handled: list[str] = []
        self.receiver: Receiver
        self.service: EmulatedService
        self.client: Client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.receiver(scope, receive, send)

    def make(self, store: Store, *types: type[Event[Any]], **settings: Any) -> Receiver:
        """Return a receiver with a handler for these types."""
        receiver = Receiver(secrets=SECRET, store=store, clock=self.clock, **settings)

        async def note(event: Event[Any]) -> None:
            self.handled.append(event.id)

        for kind in types:
            receiver.on(kind, name=f"note-{kind.__name__}")(note)
        return receiver

    @asynccontextmanager
    async def deployed(self, receiver: Receiver) -> AsyncIterator[None]:
        """Deliver to this receiver, from its start to its shutdown."""
        self.receiver = receiver
        async with receiver:
            yield

    async def emit(self, *types: type[Event[Any]]) -> list[str]:
        return [(await self.service.emit(kind)).id for kind in types]

    async def reconcile(self, receiver: Receiver) -> Reconciliation:
        return await receiver.reconcile(self.client, self.service.endpoint().id)

    async def gaps(self, receiver: Receiver) -> dict[str, Why]:
        return {gap.event_id: gap.why for gap in (await self.reconcile(receiver)).gaps}


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    clock = VirtualClock()
    it = Bench(clock)
    async with EmulatedService(it, secret=SECRET, clock=clock, seed=5) as service:
        transport = httpx2.ASGITransport(service.api)
        async with Client(
            "https://service.test", service.new_key(), transport=transport, patience=0
        ) as client:
            it.service, it.client = service, client
            yield it


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, bench: Bench) -> Callable[..., Store]:
    """Return a function that opens the store that all deployments share."""
    in_memory = MemoryStore(clock=bench.clock)

    def make() -> Store:
        if request.param == "memory":
            return in_memory
        return SQLiteStore(tmp_path / "hooks.db", clock=bench.clock)

    return make


async def test_an_event_ignored_before_a_handler_was_added_is_no_gap(
    bench: Bench, store: Callable[[], Store]
) -> None:
    async with bench.deployed(bench.make(store(), MessageReceived)):
        for _ in range(3):
            await bench.emit(CommentReceived, CommentReceived)
            await bench.service.advance(hours=5)
    async with bench.deployed(bench.make(store(), MessageReceived, CommentReceived)):
        [handled] = await bench.emit(CommentReceived)
        found = await bench.reconcile(bench.receiver)
        assert found.counts == {Verdict.IGNORED: 6, Verdict.HANDLED: 1}
        assert found.is_whole
    assert bench.handled == [handled]


async def test_ignored_events_are_no_gaps_with_an_inbox_and_for_unknown_types(
    bench: Bench, tmp_path: Path
) -> None:
    def make(*types: type[Event[Any]]) -> Receiver:
        store = SQLiteStore(tmp_path / "hooks.db", clock=bench.clock)
        return bench.make(store, *types, inbox=Inbox())

    async with bench.deployed(make(MessageReceived)):
        await bench.emit(CommentReceived)
        at = datetime.fromtimestamp(bench.clock(), UTC)
        unknown = UnknownPublishingEvent(
            id="evt_new", type="channel.renamed", created_at=at, workspace_id="ws_1", data={}
        )
        [row] = bench.service.workspace.endpoints.values()
        row.events = (*row.events, unknown.type)
        await bench.service.emit(unknown)
    receiver = make(CommentReceived)
    receiver.on_unknown(_nothing)
    async with bench.deployed(receiver):
        assert (await bench.reconcile(receiver)).counts == {Verdict.IGNORED: 2}


async def _nothing(_: Event[Any]) -> None: ...


async def test_a_retry_without_a_handler_counts_as_ignored(
    bench: Bench, store: Callable[[], Store]
) -> None:
    """The receiver claims the retry, as another process may have left a handler outstanding."""
    receiver = bench.make(store(), MessageReceived)

    async def fails_once(_: Scope, __: Receive, send: Send) -> None:
        bench.receiver = receiver
        await send({"type": "http.response.start", "status": 503, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with receiver:
        bench.receiver = fails_once  # type: ignore[assignment] # replaces the receiver for one request
        await bench.emit(CommentReceived)
        await bench.service.advance(minutes=5)
    async with bench.deployed(bench.make(store(), CommentReceived)):
        assert (await bench.reconcile(bench.receiver)).counts == {Verdict.IGNORED: 1}


async def test_a_rolling_deployment_makes_no_gaps(bench: Bench, store: Callable[[], Store]) -> None:
    """Old processes, which ignore a type, run beside new processes that handle this type."""
    async with (
        bench.make(store(), MessageReceived) as old,
        bench.make(store(), MessageReceived, CommentReceived) as new,
    ):
        for receiver in (old, old, new, old, new, new):
            bench.receiver = receiver
            await bench.emit(CommentReceived, MessageReceived)
            await bench.service.advance(seconds=20)
        counts = {Verdict.IGNORED: 3, Verdict.HANDLED: 9}
        assert (await bench.reconcile(new)).counts == counts
    async with bench.make(store(), CommentReceived) as later:
        assert (await bench.reconcile(later)).counts == counts


async def test_an_empty_store_reports_every_event(bench: Bench) -> None:
    """The records of ignored events are lost together with those of handled events."""
    async with bench.deployed(bench.make(MemoryStore(clock=bench.clock), MessageReceived)):
        events = await bench.emit(CommentReceived, MessageReceived, CommentReceived)
    replaced = bench.make(MemoryStore(clock=bench.clock), MessageReceived, CommentReceived)
    assert await bench.gaps(replaced) == dict.fromkeys(events, Why.UNKNOWN_HERE)


async def test_a_lost_event_from_a_handlers_lifetime_stays_a_gap(
    bench: Bench, store: Callable[[], Store]
) -> None:
    """A handler is removed and later added again; events sent while it was registered stay gaps."""
    elsewhere = MemoryStore(clock=bench.clock)
    async with bench.deployed(bench.make(elsewhere, CommentReceived)):
        lost = await bench.emit(CommentReceived)
    await bench.service.advance(hours=1)
    async with bench.deployed(bench.make(store(), MessageReceived)):
        await bench.emit(CommentReceived)
    await bench.service.advance(hours=1)
    async with bench.deployed(bench.make(elsewhere, CommentReceived)):
        lost += await bench.emit(CommentReceived)
    await bench.service.advance(hours=1)
    async with bench.deployed(bench.make(store(), MessageReceived)):
        await bench.emit(CommentReceived)
    await bench.service.advance(minutes=1)
    async with bench.deployed(bench.make(elsewhere, CommentReceived)):
        lost += await bench.emit(CommentReceived)
    found = await bench.reconcile(bench.make(store(), CommentReceived))
    assert [gap.event_id for gap in found.gaps] == lost
    assert found.counts[Verdict.IGNORED] == 2


async def test_after_a_restore_events_handled_since_the_backup_are_gaps(
    bench: Bench, tmp_path: Path
) -> None:
    """After the restore, the old version, which has no handler, may run before the new version."""
    file, backup = tmp_path / "hooks.db", tmp_path / "backup.db"

    def make(*types: type[Event[Any]]) -> Receiver:
        return bench.make(SQLiteStore(file, clock=bench.clock), *types)

    async with bench.deployed(make(MessageReceived)):
        await bench.emit(CommentReceived)
    shutil.copy(file, backup)
    await bench.service.advance(minutes=20)
    async with bench.deployed(make(CommentReceived)):
        lost = await bench.emit(CommentReceived, CommentReceived)
    shutil.copy(backup, file)
    await bench.service.advance(minutes=20)
    async with bench.deployed(make(MessageReceived)):
        await bench.emit(CommentReceived)
    async with bench.deployed(make(CommentReceived)):
        found = await bench.reconcile(bench.receiver)
    assert {gap.event_id for gap in found.gaps} == set(lost)
    assert found.counts[Verdict.IGNORED] == 2


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(40))
async def test_in_any_history_exactly_the_events_that_the_store_has_forgotten_are_gaps(
    bench: Bench, tmp_path: Path, seed: int
) -> None:
    """The test's model of the file is the set of all handled and ignored events."""
    random, file, backup = Random(seed), tmp_path / "hooks.db", tmp_path / "backup.db"

    def make(*types: type[Event[Any]]) -> Receiver:
        return bench.make(SQLiteStore(file, clock=bench.clock), *types)

    sent: set[str] = set()
    told: set[str] = set()
    saved: set[str] | None = None
    for _ in range(25):
        match random.choice(["new", "new", "old", "old", "backup", "restore", "lose"]):
            case "backup" if file.exists():
                shutil.copy(file, backup)
                saved = set(told)
            case "restore" if saved is not None:
                shutil.copy(backup, file)
                told = set(saved)
            case "lose":
                file.unlink(missing_ok=True)
                told = set()
            case version:
                wanted = (MessageReceived, CommentReceived)[: 1 + (version == "new")]
                async with bench.deployed(make(*wanted)):
                    for _ in range(random.randint(1, 3)):
                        await bench.service.advance(minutes=random.uniform(11, 200))
                        events = set(await bench.emit(CommentReceived))
                        sent |= events
                        told |= events
    assert await bench.gaps(make(CommentReceived)) == dict.fromkeys(sent - told, Why.UNKNOWN_HERE)


async def test_only_the_types_that_were_ignored_are_excused(
    bench: Bench, store: Callable[[], Store]
) -> None:
    elsewhere = bench.make(MemoryStore(clock=bench.clock), MessageReceived)
    async with bench.deployed(bench.make(store(), PostTargetFailed)):
        await bench.emit(CommentReceived)
        async with bench.deployed(elsewhere):
            lost = await bench.emit(MessageReceived)
    found = await bench.gaps(bench.make(store(), MessageReceived, CommentReceived))
    assert found == dict.fromkeys(lost, Why.UNKNOWN_HERE)


async def test_an_event_that_the_sender_gave_up_is_a_gap_even_if_others_were_ignored(
    bench: Bench, store: Callable[[], Store]
) -> None:
    async def gone(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 410, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    receiver = bench.make(store(), MessageReceived)
    async with bench.deployed(receiver):
        await bench.emit(CommentReceived)
        bench.receiver = gone  # type: ignore[assignment] # stands in for the receiver
        [lost] = await bench.emit(CommentReceived)
        bench.service.enable()
        bench.receiver = receiver
        await bench.emit(CommentReceived)
    replaced = bench.make(store(), CommentReceived)
    assert await bench.gaps(replaced) == {lost: Why.FAILED_AT_SENDER}


async def test_an_event_that_was_tried_and_released_is_a_gap_whatever_was_ignored(
    bench: Bench,
) -> None:
    """The store has a record of the attempt, which shows that the event had a handler."""
    store = MemoryStore(clock=bench.clock)
    async with bench.deployed(bench.make(store, MessageReceived)):
        [event_id] = await bench.emit(CommentReceived)
    claim = await store.claim(delivery_key("default", event_id), new_token(), 30.0)
    assert isinstance(claim, Claimed)
    await store.release(claim, frozenset(), "it broke")
    replaced = bench.make(store, CommentReceived)
    assert await bench.gaps(replaced) == {event_id: Why.UNKNOWN_HERE}


async def test_a_backfilled_event_does_not_count_as_ignored(bench: Bench) -> None:
    store = MemoryStore(clock=bench.clock)
    async with bench.deployed(bench.make(store, MessageReceived)):
        outcome = await bench.receiver.backfill(make_event(CommentReceived))
        assert outcome.reason == "no_handler"
    assert await store.ignored("default", ["comment.received"]) == {}


async def test_a_gap_shows_ignored_events_of_its_type(
    bench: Bench, store: Callable[[], Store]
) -> None:
    """A resource may belong to an ignored event, so pairing by time must consider these events."""
    async with bench.deployed(bench.make(store(), MessageReceived)):
        await bench.emit(CommentReceived)
    await bench.service.advance(hours=1)
    async with bench.deployed(bench.make(MemoryStore(clock=bench.clock), CommentReceived)):
        await bench.emit(CommentReceived)
    [gap] = (await bench.reconcile(bench.make(store(), CommentReceived))).gaps
    [at] = gap.unsettled
    assert gap.created_at - at > timedelta(minutes=59)


async def test_ignored_events_do_not_go_to_on_gap_functions(
    bench: Bench, store: Callable[[], Store]
) -> None:
    async with bench.deployed(bench.make(store(), MessageReceived)):
        await bench.emit(CommentReceived)
    receiver = bench.make(store(), CommentReceived)

    @receiver.on_gap
    async def fail(_: Sequence[Gap], __: Client) -> None:
        raise AssertionError

    assert (await bench.reconcile(receiver)).failures == ()


async def test_with_a_store_that_keeps_no_ignored_types_ignored_events_are_gaps(
    bench: Bench,
) -> None:
    store = Wrapped(MemoryStore(clock=bench.clock))
    async with bench.deployed(bench.make(store, MessageReceived)):
        [event_id] = await bench.emit(CommentReceived)
    replaced = bench.make(store, CommentReceived)
    assert await bench.gaps(replaced) == {event_id: Why.UNKNOWN_HERE}
    with pytest.raises(TypeError, match="Wrapped cannot remember accepted gaps"):
        await replaced.accept_gaps(await bench.reconcile(replaced))


def files_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


class Counting(MemoryStore):
    """A store that counts writes about ignored types, and fails on demand."""

    writes = 0
    fails = False

    async def note_ignored(self, *arguments: Any) -> None:
        self.writes += 1
        if self.fails:
            raise ConnectionError
        await super().note_ignored(*arguments)


async def test_a_flood_of_ignored_deliveries_is_one_write_a_type_and_one_more_at_the_end(
    bench: Bench,
) -> None:
    store = Counting(clock=bench.clock)
    async with bench.deployed(bench.make(store, MessageReceived)):
        for _ in range(100):
            await bench.emit(CommentReceived, PostTargetFailed)
        assert store.writes == 2
    assert store.writes == 3
    found = await bench.reconcile(bench.make(store, CommentReceived, PostTargetFailed))
    assert found.counts == {Verdict.IGNORED: 200}


async def test_events_whose_record_a_kill_has_lost_are_excused(bench: Bench) -> None:
    """The receiver writes about a type at intervals; each write covers the next interval."""
    store = Counting(clock=bench.clock)
    bench.receiver = bench.make(store, MessageReceived)  # the receiver is never shut down
    for _ in range(3):
        await bench.emit(CommentReceived)
        for _ in range(12):
            await bench.service.advance(seconds=1)
            await bench.emit(CommentReceived)
        await bench.service.advance(hours=1)
    assert store.writes == 9  # three writes in each period of 12 s: at 0, 5 and 10 s
    await asyncio.sleep(0)
    found = await bench.reconcile(bench.make(store, CommentReceived))
    assert found.counts == {Verdict.IGNORED: 39}


async def test_a_store_that_was_closed_is_not_opened_again(bench: Bench, tmp_path: Path) -> None:
    """An operator may copy or replace the file of a closed store."""
    file = tmp_path / "hooks.db"
    store = SQLiteStore(file, clock=bench.clock)
    bench.receiver = bench.make(store, MessageReceived)
    for _ in range(20):
        await bench.emit(CommentReceived, PostTargetFailed)
        await bench.service.advance(seconds=3)
    await store.aclose()
    for _ in range(100):
        await asyncio.sleep(0)
    assert files_in(tmp_path) == [file.name]


async def test_a_failing_store_delays_no_answer_and_gets_the_ignored_types_later(
    bench: Bench,
) -> None:
    store = Counting(clock=bench.clock)
    store.fails = True
    async with bench.deployed(bench.make(store, MessageReceived)):
        for _ in range(3):
            await bench.emit(CommentReceived)
            await bench.service.advance(hours=2)
        assert store.writes >= 2
        assert {delivery.status for delivery in bench.service.deliveries()} == {"delivered"}
        store.fails = False
    found = await bench.reconcile(bench.make(store, CommentReceived))
    assert found.counts == {Verdict.IGNORED: 3}


async def test_a_store_that_hangs_delays_the_shutdown_by_its_time_limit_alone(
    bench: Bench,
) -> None:
    class Hanging(MemoryStore):
        async def note_ignored(self, *_: Any) -> None:
            await asyncio.Event().wait()

    limits = Limits(store_seconds=0.05)
    async with asyncio.timeout(10):
        store = Hanging(clock=bench.clock)
        async with bench.deployed(bench.make(store, MessageReceived, limits=limits)):
            await bench.emit(CommentReceived)


async def test_reconciling_in_the_process_itself_needs_no_shutdown(bench: Bench) -> None:
    receiver = bench.make(MemoryStore(clock=bench.clock), MessageReceived)
    async with bench.deployed(receiver):
        for _ in range(5):
            await bench.emit(CommentReceived)
        receiver.on(CommentReceived)(_nothing)
        assert (await bench.reconcile(receiver)).counts == {Verdict.IGNORED: 5}


@pytest.mark.parametrize("event_type", ["x" * 129, "a\nb", "\ud800"])
async def test_a_type_that_is_too_long_or_unprintable_is_not_written(
    bench: Bench, event_type: str
) -> None:
    store = Counting(clock=bench.clock)
    ignored = IgnoredTypes(store, "default", 1.0)
    ignored.note(event_type, bench.clock(), bench.clock())
    await ignored.stop()
    assert store.writes == 0
