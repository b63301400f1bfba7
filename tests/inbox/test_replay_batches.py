"""Batches of replays: the selected events, the processes that join, and the end of a batch.

A batch runs one handler again for the handled events that it selects. Its number is called its
generation.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.deliveries import SECRET, answer_of, comment, deliver, sqlite_url

from hookonce import Context, Reason, Receiver
from hookonce.clock import ManualClock, system_clock
from hookonce.effects.sqlite import SQLiteLedger
from hookonce.errors import ReplayError
from hookonce.events import ChannelUnhealthy, CommentReceived, Event
from hookonce.stores import DEFAULT_RETENTION
from hookonce.stores.replays import ReplayBatch
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Claimed, delivery_key, new_token
from hookonce.testing import make_event, signed_request

pytestmark = pytest.mark.anyio

DAYS = timedelta(days=3)


class Shop:
    """A receiver with the handler ``book``, which notes each run."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: ManualClock | None = None,
        retention: timedelta | None = None,
        **keyed: Any,
    ) -> None:
        self.clock = clock or ManualClock(system_clock() + 10)
        self.store = SQLiteStore(
            folder / "hooks.db", clock=self.clock, retention=retention or DEFAULT_RETENTION
        )
        self.receiver = Receiver(
            secrets=SECRET, store=self.store, keep_handled=DAYS, clock=self.clock
        )
        self.runs: list[tuple[str, int]] = []
        self.keys: list[str] = []
        self.failing: set[str] = set()
        self.failures = 100
        self.inside = self.most = 0

        @self.receiver.on(CommentReceived, ChannelUnhealthy, name="book", **keyed)
        async def book(event: Event[Any], context: Context) -> None:
            self.inside += 1
            self.most = max(self.most, self.inside)
            await asyncio.sleep(0)
            self.inside -= 1
            self.runs.append((event.id, context.generation))
            self.keys.append(context.idempotency_key)
            if context.generation and event.id in self.failing and self.failures > 0:
                self.failures -= 1
                raise RuntimeError("the shop is closed")

    async def handle(self, *event_ids: str, cls: type[Event[Any]] = CommentReceived) -> None:
        """Create events one second apart, and handle each."""
        for event_id in event_ids:
            self.clock.advance(1)
            created_at = datetime.fromtimestamp(self.clock(), UTC)
            event = make_event(cls, event_id=event_id, created_at=created_at)
            await self.deliver(event)
        self.clock.advance(1)

    async def deliver(self, event: Event[Any]) -> None:
        request = signed_request(event, SECRET, skew=system_clock() - self.clock())
        outcome = await self.receiver.handle(request.body, request.headers)
        assert outcome.reason == Reason.HANDLED

    async def open(self, **plan: Any) -> ReplayBatch:
        return await self.receiver.handled.open_batch(handler="book", **plan)

    async def run(self, batch: ReplayBatch, **options: Any) -> dict[str, str]:
        replays = self.receiver.handled.replay_all(batch, **options)
        return {one.event_id: one.reason async for one in replays}

    async def remaining(self, batch: ReplayBatch) -> list[str]:
        return [*await self.receiver.handled.remaining(batch)]

    def replayed(self, generation: int = 1) -> list[str]:
        """Return the events that a batch has replayed, in the order of the runs."""
        return [event_id for event_id, number in self.runs if number == generation]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookonce.inbox.handled._PAUSES_SECONDS", (0.0, 0.0))


async def test_a_batch_replays_what_was_handled_before_its_start(shop: Shop) -> None:
    async with shop.receiver:
        await shop.handle("evt_1", "evt_2")
        batch = await shop.open()
        await shop.handle("evt_3")
        assert await shop.remaining(batch) == ["evt_1", "evt_2"]
        assert await shop.run(batch) == {"evt_1": "handled", "evt_2": "handled"}
        assert await shop.remaining(batch) == []
        assert sorted(shop.replayed()) == ["evt_1", "evt_2"]


async def test_a_named_event_is_replayed_although_the_clock_was_set_back(shop: Shop) -> None:
    async with shop.receiver:
        await shop.handle("evt_1", "evt_2")
        shop.clock.advance(-60)
        batch = await shop.open(event_ids="evt_1")
        assert await shop.run(batch) == {"evt_1": "handled"}


async def test_an_event_that_is_handled_after_a_clock_was_set_back_is_not_replayed(
    shop: Shop,
) -> None:
    async with shop.receiver:
        await shop.handle("evt_1")
        batch = await shop.open()
        shop.clock.advance(-60)
        await shop.handle("evt_2")
        assert await shop.run(batch) == {"evt_1": "handled"}
        assert shop.replayed() == ["evt_1"]


async def test_each_result_says_how_many_events_are_left(shop: Shop) -> None:
    async with shop.receiver:
        await shop.handle("evt_1", "evt_2", "evt_3")
        replays = shop.receiver.handled.replay_all(await shop.open())
        assert [one.left async for one in replays] == [2, 1, 0]


@pytest.mark.parametrize(
    ("plan", "found"),
    [
        ({"event_type": "channel.unhealthy"}, ["evt_2"]),
        ({"where": "type=comment.received"}, ["evt_1", "evt_3"]),
        ({"where": ["type=comment.received", "id=evt_3"]}, ["evt_3"]),
        ({"event_ids": "evt_2"}, ["evt_2"]),
        ({"event_ids": ["evt_3", "evt_1"]}, ["evt_1", "evt_3"]),
        ({"event_ids": ["evt_1", "evt_2"], "event_type": "channel.unhealthy"}, ["evt_2"]),
        ({"since": timedelta(seconds=1.5)}, ["evt_3"]),
    ],
)
async def test_a_batch_has_the_filters_of_the_lists(
    shop: Shop, plan: dict[str, Any], found: list[str]
) -> None:
    async with shop.receiver:
        await shop.handle("evt_1")
        await shop.handle("evt_2", cls=ChannelUnhealthy)
        await shop.handle("evt_3")
        batch = await shop.open(**plan)
        assert await shop.remaining(batch) == found
        await shop.run(batch)
        assert sorted(shop.replayed()) == found


async def test_a_time_since_which_events_were_handled_is_a_filter(shop: Shop) -> None:
    async with shop.receiver:
        await shop.handle("evt_1")
        between = datetime.fromtimestamp(shop.clock() - 0.5, UTC)
        await shop.handle("evt_2")
        batch = await shop.open(since=between)
        assert await shop.remaining(batch) == ["evt_2"]
        assert await shop.open(since=between.timestamp()) == batch


async def test_the_time_at_which_an_event_was_handled_selects_the_event(shop: Shop) -> None:
    """A batch since ``handled_at`` selects the event, even if ``handled_at`` was rounded up."""
    shop.clock.advance(1 - shop.clock() % 1 + 0.0000007)
    async with shop.receiver:
        await shop.handle("evt_1")
        [kept] = await shop.receiver.handled.list()
        assert kept.handled_at.timestamp() > kept.handled_unix
        assert await shop.receiver.handled.list(since=kept.handled_at)
        assert await shop.remaining(await shop.open(since=kept.handled_at)) == ["evt_1"]


async def test_a_span_counts_from_the_start_of_the_batch_and_joins_it_later(shop: Shop) -> None:
    async with shop.receiver:
        await shop.handle("evt_1", "evt_2")
        batch = await shop.open(since=timedelta(hours=1))
        shop.clock.advance(7200)
        assert await shop.open(since=timedelta(hours=1)) == batch
        assert await shop.remaining(batch) == ["evt_1", "evt_2"]


async def test_the_same_call_joins_an_open_batch(shop: Shop, tmp_path: Path) -> None:
    other = Shop(tmp_path, clock=shop.clock)
    async with shop.receiver, other.receiver:
        await shop.handle(*(f"evt_{number}" for number in range(40)))
        first = await shop.open(where=["id=evt_1", "type=comment.received"])
        same = await other.open(where=["type=comment.received", "id=evt_1", "id=evt_1"])
        assert same == first
        batch = await shop.open(where=(), new=True)
        await asyncio.gather(shop.run(batch), other.run(batch))
        both = shop.replayed(2) + other.replayed(2)
        assert sorted(both) == sorted(f"evt_{number}" for number in range(40))


async def test_a_batch_with_other_arguments_is_refused_while_one_is_open(shop: Shop) -> None:
    async with shop.receiver:
        await shop.handle("evt_1", "evt_2")
        await shop.open(event_type="comment.received", late=True)
        for other in ({}, {"event_type": "comment.received"}, {"event_ids": "evt_1"}):
            with pytest.raises(ReplayError) as raised:
                await shop.open(**other)
            assert "generation 1 of book is open" in str(raised.value)
            assert "event_type=comment.received, late" in str(raised.value)


async def test_a_finished_batch_is_returned_until_a_new_one_is_asked_for(shop: Shop) -> None:
    async with shop.receiver:
        await shop.handle("evt_1")
        batch = await shop.open()
        await shop.run(batch)
        await shop.handle("evt_2")
        again = await shop.open()
        assert again.generation == 1
        assert again.finished_at is not None
        assert await shop.run(again) == {}
        new = await shop.open(new=True)
        assert (new.generation, new.finished_at) == (2, None)
        assert sorted(await shop.run(new)) == ["evt_1", "evt_2"]
        assert shop.replayed(1) == ["evt_1"]
        assert (await shop.receiver.handled.batches())[0].generation == 2


async def test_other_arguments_begin_another_batch_once_one_is_finished(shop: Shop) -> None:
    async with shop.receiver:
        await shop.handle("evt_1")
        await shop.run(await shop.open())
        assert (await shop.open(late=True)).generation == 2


async def test_new_never_begins_the_same_batch_twice(shop: Shop) -> None:
    """Two operators who give the same command with `new` cause one replay of each event."""
    async with shop.receiver:
        await shop.handle("evt_1")
        await shop.run(await shop.open())
        assert (await shop.open(new=True)).generation == 2
        with pytest.raises(ReplayError, match="generation 2 of book is open, with the same arg"):
            await shop.open(new=True)


async def test_calls_at_the_same_time_begin_one_batch(shop: Shop, tmp_path: Path) -> None:
    other = Shop(tmp_path, clock=shop.clock)
    async with shop.receiver, other.receiver:
        await shop.handle("evt_1")
        assert len({(await one.open()).generation for one in (shop, other)}) == 1
        batches = await asyncio.gather(*(one.open() for one in (shop, other) * 5))
        assert len(set(batches)) == 1


async def test_of_two_batches_that_are_begun_at_the_same_time_one_is_refused(
    shop: Shop, tmp_path: Path
) -> None:
    async with shop.receiver, Shop(tmp_path, clock=shop.clock).receiver as other:
        await shop.handle("evt_1")
        begun = await asyncio.gather(
            shop.open(),
            other.handled.open_batch(handler="book", late=True),
            return_exceptions=True,
        )
        [refused] = [one for one in begun if isinstance(one, ReplayError)]
        assert "is open with other arguments" in str(refused)
        assert len(await shop.receiver.handled.batches()) == 1


async def test_a_new_batch_ends_an_open_one_with_other_arguments(shop: Shop) -> None:
    async with shop.receiver:
        await shop.handle("evt_1", "evt_2")
        first = await shop.open(event_ids="evt_1")
        assert (await shop.open(new=True)).generation == 2
        with pytest.raises(ReplayError, match=r"generation 2 of book .* has ended generation 1"):
            await shop.run(first)
        with pytest.raises(ReplayError, match="generation 2 of book"):
            await shop.remaining(first)
    assert shop.replayed() == []


async def test_a_long_replay_stops_when_another_batch_is_begun(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookonce.inbox.handled._LOOK_EVERY", 2)
    async with shop.receiver:
        await shop.handle(*(f"evt_{number}" for number in range(6)))
        batch = await shop.open()
        async with aclosing(shop.receiver.handled.replay_all(batch)) as replays:
            await anext(replays)
            await shop.open(event_ids="evt_5", new=True)
            with pytest.raises(ReplayError):
                async for _ in replays:
                    pass
    assert len(shop.replayed()) == 2


async def test_a_batch_is_not_continued_when_the_store_may_have_forgotten_its_replays(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path, retention=timedelta(hours=26))
    async with shop.receiver:
        await shop.handle("evt_1", "evt_2")
        batch = await shop.open()
        await shop.receiver.handled.replay("evt_1", batch)
        shop.clock.advance(26 * 3600)
        with pytest.raises(ReplayError, match="longer ago than the store remembers"):
            await shop.open()
        assert (await shop.open(new=True)).generation == 2


async def test_a_dry_run_stores_nothing(shop: Shop) -> None:
    async with shop.receiver:
        await shop.handle("evt_1")
        planned = await shop.open(dry_run=True)
        assert await shop.remaining(planned) == ["evt_1"]
        assert await shop.receiver.handled.batches() == []
        batch = await shop.open()
        await shop.receiver.handled.replay("evt_1", batch)
        assert await shop.open(dry_run=True) == batch
    assert planned.generation == 1


@pytest.mark.usefixtures("no_pauses")
async def test_a_handler_that_fails_once_is_tried_again(shop: Shop) -> None:
    async with shop.receiver:
        await shop.handle("evt_1")
        shop.failing, shop.failures = {"evt_1"}, 1
        results = await shop.run(await shop.open())
    assert results == {"evt_1": "handled"}
    assert shop.replayed() == ["evt_1", "evt_1"]


@pytest.mark.usefixtures("no_pauses")
async def test_events_that_fail_for_good_are_dead_letters_and_the_batch_is_finished(
    shop: Shop,
) -> None:
    async with shop.receiver:
        await shop.handle("evt_1", "evt_2")
        shop.failing = {"evt_1"}
        batch = await shop.open(new_key=True)
        assert await shop.run(batch) == {"evt_1": "exhausted", "evt_2": "handled"}
        assert shop.replayed().count("evt_1") == 3
        [last] = await shop.receiver.handled.batches()
        assert last.finished_at is not None
        [dead] = await shop.receiver.dead.list()
        assert dead.delivery.event_id == "evt_1.1k.book"
        assert dead.outstanding == {"book"}
        shop.failing = set()
        outcome = await shop.receiver.dead.replay("evt_1.1k.book")
        assert outcome.reason == Reason.HANDLED
    assert shop.keys[-1] == "default:evt_1.1:book"


@pytest.mark.usefixtures("no_pauses")
async def test_attempts_count_over_all_calls(shop: Shop) -> None:
    """An event gets no more attempts if its batch is interrupted and continued."""
    async with shop.receiver:
        await shop.handle("evt_1")
        shop.failing = {"evt_1"}
        batch = await shop.open()
        for _ in range(2):  # as if two processes had died during an attempt
            owned = await shop.store.claim(
                delivery_key("default", "evt_1.1.book"), new_token(), 0.0
            )
            assert isinstance(owned, Claimed)
        assert await shop.run(batch) == {"evt_1": "exhausted"}
    assert shop.replayed() == ["evt_1"]


async def test_an_interrupted_replay_is_continued(shop: Shop) -> None:
    async with shop.receiver:
        await shop.handle(*(f"evt_{number}" for number in range(50)))
        batch = await shop.open()
        async with aclosing(shop.receiver.handled.replay_all(batch)) as replays:
            for _ in range(20):
                await anext(replays)
        some = len(shop.replayed())
        assert 20 <= some < 50
        assert len(await shop.remaining(await shop.open())) == 50 - some
        await shop.run(batch)
    assert sorted(shop.replayed()) == sorted(f"evt_{number}" for number in range(50))


async def test_events_that_this_process_cannot_replay_remain(shop: Shop, tmp_path: Path) -> None:
    async with shop.receiver:
        await shop.handle("evt_1")
        await shop.handle("evt_2", cls=ChannelUnhealthy)
    fewer = Receiver(secrets=SECRET, store=SQLiteStore(tmp_path / "hooks.db"), keep_handled=DAYS)

    @fewer.on(CommentReceived, name="book")
    async def book(_: CommentReceived) -> None: ...

    await asyncio.sleep(0)
    async with fewer:
        batch = await shop.open()
        results = {one.event_id: one.reason async for one in fewer.handled.replay_all(batch)}
        assert results == {
            "evt_1": "handled",
            "evt_2": "this process has no handler book for channel.unhealthy",
        }
        assert list(await fewer.handled.remaining(batch)) == ["evt_2"]
        assert (await fewer.handled.batches())[0].finished_at is None


@pytest.mark.parametrize("within", [False, True])
async def test_late_also_replays_older_events_in_the_order_of_their_creation(
    within: bool,
    tmp_path: Path,
) -> None:
    ledger = SQLiteLedger(tmp_path / "shop.db")
    ledger.create_table()
    receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path), keep_handled=DAYS)
    runs: list[tuple[str, int]] = []
    if within:

        @receiver.on(CommentReceived, name="book", within=ledger, latest_by=lambda _: "one key")
        def _(event: CommentReceived, _: Any, context: Context) -> None:
            runs.append((event.id, context.generation))

    else:

        @receiver.on(CommentReceived, name="book", latest_by=lambda _: "one key")
        async def _(event: CommentReceived, context: Context) -> None:
            runs.append((event.id, context.generation))

    now = datetime.now(UTC)
    async with receiver:
        for number in (2, 1, 3):  # evt_1 is older than evt_2, so its handler does not run
            event = comment(f"evt_{number}", created_at=now + timedelta(seconds=number))
            await deliver(receiver, event)
        assert runs == [("evt_2", 0), ("evt_3", 0)]
        batch = await receiver.handled.open_batch(handler="book", late=True)
        results = [one async for one in receiver.handled.replay_all(batch)]
        assert [one.reason for one in results] == ["handled"] * 3
        assert runs[2:] == [("evt_1", 1), ("evt_2", 1), ("evt_3", 1)]
        # The newest event that has succeeded is still evt_3, so an older event is skipped.
        event = comment("evt_between", created_at=now + timedelta(seconds=2.5))
        assert answer_of(await deliver(receiver, event)) == (200, "stale")
    assert len(runs) == 5
    ledger.close()


async def test_late_events_run_one_at_a_time(tmp_path: Path) -> None:
    shop = Shop(tmp_path, latest_by=lambda event: event.id)
    event_ids = [f"evt_{number}" for number in range(30)]
    async with shop.receiver:
        await shop.handle(*event_ids)
        await shop.run(await shop.open(late=True))
        assert shop.most == 1
        assert shop.replayed() == event_ids
        await shop.run(await shop.open())
        assert 1 < shop.most <= 16


async def test_an_idempotency_key_changes_only_if_it_is_asked_for(shop: Shop) -> None:
    async with shop.receiver:
        await shop.handle("evt_1")
        for plan in ({}, {"new_key": True}, {}):
            await shop.run(await shop.open(**plan))
    old = "default:evt_1:book"
    assert shop.keys == [old, old, "default:evt_1.2:book", old]


async def test_a_rate_limits_the_attempts(shop: Shop) -> None:
    loop = asyncio.get_running_loop()
    async with shop.receiver:
        await shop.handle(*(f"evt_{number}" for number in range(5)))
        began = loop.time()
        await shop.run(await shop.open(), rate=20)
    assert loop.time() - began >= 4 / 20


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
async def test_a_rate_is_positive(shop: Shop, rate: float) -> None:
    async with shop.receiver:
        with pytest.raises(ValueError, match="rate must be a positive number"):
            await shop.run(await shop.open(), rate=rate)


async def test_what_no_batch_can_be_is_refused(shop: Shop) -> None:
    async with shop.receiver:
        await shop.handle("evt_1")
        handled = shop.receiver.handled
        with pytest.raises(LookupError, match="no handler 'post'; it has book"):
            await handled.open_batch(handler="post")
        with pytest.raises(LookupError, match="no delivery of 'evt_9' at 'default' is kept"):
            await shop.open(event_ids=["evt_1", "evt_9"])
        with pytest.raises(ValueError, match="a condition is FIELD=VALUE"):
            await shop.open(where="platform")
        with pytest.raises(ValueError, match="since"):
            await shop.open(since=timedelta(0))
        with pytest.raises(ValueError, match="surrogates not allowed"):
            await shop.open(event_type="comment.\udcff")
        assert await handled.batches() == []


async def test_a_deleted_delivery_does_not_keep_a_batch_open(shop: Shop) -> None:
    async with shop.receiver:
        await shop.handle("evt_1", "evt_2")
        batch = await shop.open()
        await shop.receiver.handled.replay("evt_1", batch)
        shop.clock.advance(DAYS.total_seconds())
        assert await shop.run(batch) == {}
        assert (await shop.receiver.handled.batches())[0].finished_at is not None


async def test_a_store_in_memory_can_replay_too() -> None:
    receiver, runs = Receiver(secrets=SECRET, store="memory://", keep_handled=DAYS), []

    @receiver.on(CommentReceived, name="book")
    async def book(event: CommentReceived, context: Context) -> None:
        runs.append((event.id, context.generation))

    async with receiver:
        await deliver(receiver, comment("evt_1"))
        await asyncio.sleep(0.001)
        batch = await receiver.handled.open_batch(handler="book")
        assert [one.reason async for one in receiver.handled.replay_all(batch)] == ["handled"]
    assert runs == [("evt_1", 0), ("evt_1", 1)]


async def test_a_generation_that_the_ledger_has_already_is_not_reported_as_handled(
    tmp_path: Path,
) -> None:
    ledger, runs = SQLiteLedger(tmp_path / "shop.db"), list[int]()
    ledger.create_table()
    for folder in ("store", "store that has lost its batches"):
        (tmp_path / folder).mkdir()
        receiver = Receiver(secrets=SECRET, store=sqlite_url(tmp_path / folder), keep_handled=DAYS)

        @receiver.on(CommentReceived, name="book", within=ledger)
        def book(_: CommentReceived, __: Any, context: Context) -> None:
            runs.append(context.generation)

        async with receiver:
            await deliver(receiver, comment("evt_1"))
            reasons = []
            for new in (False, True):
                batch = await receiver.handled.open_batch(handler="book", new=new)
                reasons += [one.reason async for one in receiver.handled.replay_all(batch)]
    assert runs == [0, 1, 2]
    assert reasons == ["duplicate", "duplicate"]
    ledger.close()
