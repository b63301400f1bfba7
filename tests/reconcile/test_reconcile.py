"""Reconcile finds exactly the missed events.

The service is the emulator, the client calls its API, and time is virtual. A test knows which
events are gaps, because it has seen which events were handled, and what the sender has done.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest
from starlette.responses import Response
from support.deliveries import SECRET

from hookonce import Inbox, Receiver
from hookonce.client import Client
from hookonce.emulator import EmulatedService, VirtualClock
from hookonce.events import ChannelUnhealthy, CommentReceived, MessageReceived, PostTargetFailed
from hookonce.http.app import ASGIApp, Receive, Scope, Send
from hookonce.receiver import Gap, Reconciliation, Verdict, Why
from hookonce.stores.memory import MemoryStore
from hookonce.stores.protocols import Store
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Claimed, delivery_key, new_token
from hookonce.testing import make_event
from hookonce.verification.secrets import new_key_pair

pytestmark = pytest.mark.anyio

DAYS, HOURS = 86_400.0, 3_600.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Bench:
    """The receiver and the service, in virtual time.

    Attributes:
        handled: the events that the handlers have handled, in the order of handling.
        answers_with: the answer while the receiver is down.

    """

    clock: VirtualClock
    store: Store
    receiver: Receiver
    service: EmulatedService
    client: Client
    webhook_id: str
    handled: list[str] = field(default_factory=list)
    answers_with: int | None = None
    answers_by: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.answers_with is not None and scope["type"] == "http":
            await Response(status_code=self.answers_with)(scope, receive, send)
        elif self.answers_by is not None and scope["type"] == "http":
            await self.answers_by(scope, receive, send)
        else:
            await self.receiver(scope, receive, send)

    async def reconcile(self, **arguments: Any) -> Reconciliation:
        return await self.receiver.reconcile(self.client, self.webhook_id, **arguments)

    async def gaps(self) -> dict[str, Why]:
        return {gap.event_id: gap.why for gap in (await self.reconcile()).gaps}


def receiver_with(store: Store, clock: VirtualClock, handled: list[str]) -> Receiver:
    receiver = Receiver(secrets=SECRET, store=store, clock=clock)

    @receiver.on(CommentReceived, MessageReceived, name="note")
    async def note(event: CommentReceived | MessageReceived) -> None:
        handled.append(event.id)

    return receiver


@asynccontextmanager
async def bench(
    *, seed: int = 1, file: Path | None = None, retention: timedelta = timedelta(days=15)
) -> AsyncIterator[Bench]:
    clock = VirtualClock()
    store: Store = MemoryStore(clock=clock, retention=retention)
    if file is not None:
        store = SQLiteStore(file, clock=clock)
    handled: list[str] = []
    receiver = receiver_with(store, clock, handled)
    it: Bench

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await it(scope, receive, send)

    async with EmulatedService(app, secret=SECRET, clock=clock, seed=seed) as service:
        transport = httpx2.ASGITransport(service.api)
        async with Client(
            "https://service.test", service.new_key(), transport=transport, patience=0
        ) as client:
            it = Bench(
                clock, store, receiver, service, client, service.endpoint().id, handled=handled
            )
            yield it
            await it.store.aclose()


async def test_a_handled_event_is_no_gap_and_the_check_takes_two_requests() -> None:
    async with bench() as it:
        for _ in range(3):
            await it.service.emit(CommentReceived)
        found = await it.reconcile()
        assert found.is_whole
        assert found.counts == {Verdict.HANDLED: 3}
        assert found.requests == 2
        assert found.endpoint is not None
        assert found.endpoint.status == "active"


async def test_a_failure_that_is_retried_is_no_gap_until_the_sender_gives_up() -> None:
    async with bench() as it:
        it.answers_with = 503
        event = await it.service.emit(CommentReceived)
        assert (await it.reconcile()).counts == {Verdict.RETRYING: 1}
        await it.service.advance(hours=20)
        assert (await it.reconcile()).counts == {Verdict.RETRYING: 1}
        await it.service.advance(hours=8)
        [gap] = (await it.reconcile()).gaps
        assert (gap.event_id, gap.event_type) == (event.id, "comment.received")
        assert gap.why is Why.FAILED_AT_SENDER
        assert abs(gap.created_at.timestamp() - event.created_at.timestamp()) < 1


async def test_a_running_attempt_is_no_gap() -> None:
    """The sender's log shows no next attempt, and the store does not know the event yet."""
    async with bench() as it:
        found: list[Reconciliation] = []

        async def ask(scope: Scope, receive: Receive, send: Send) -> None:
            found.append(await it.reconcile())
            await it.receiver(scope, receive, send)

        it.answers_by = ask
        await it.service.emit(CommentReceived)
        assert [one.counts for one in found] == [{Verdict.RETRYING: 1}]
        assert await it.gaps() == {}


async def test_a_gap_shows_which_events_of_its_type_are_still_on_their_way() -> None:
    async with bench() as it:
        it.answers_with = 410
        await it.service.emit(CommentReceived)
        it.answers_with = 503
        it.service.enable()
        await it.service.advance(minutes=1)
        retried = [await it.service.emit(kind) for kind in (CommentReceived, MessageReceived)]
        it.answers_with = None
        await it.service.emit(CommentReceived)
        [gap] = (await it.reconcile()).gaps
        [at] = gap.unsettled
        assert abs(at - retried[0].created_at) < timedelta(seconds=1)


async def test_an_answer_that_was_lost_leaves_no_gap() -> None:
    async with bench() as it:
        event = await it.service.emit(CommentReceived)
        for row in it.service._deliveries.rows():
            row.delivered_at, row.status = None, type(row.status).FAILED
        assert (await it.reconcile()).counts == {Verdict.HANDLED: 1}
        assert it.handled == [event.id]


async def test_a_store_that_was_lost_is_a_gap_of_everything_delivered() -> None:
    async with bench() as it:
        event = await it.service.emit(CommentReceived)
        it.receiver = receiver_with(MemoryStore(clock=it.clock), it.clock, it.handled)
        assert await it.gaps() == {event.id: Why.UNKNOWN_HERE}


async def test_an_attempt_that_was_not_completed_is_a_gap_whatever_the_answer() -> None:
    async with bench() as it:
        event = await it.service.emit(CommentReceived)
        store = MemoryStore(clock=it.clock)
        claim = await store.claim(delivery_key("default", event.id), new_token(), 30.0)
        assert isinstance(claim, Claimed)
        await store.release(claim, frozenset(), "it broke")
        it.receiver = receiver_with(store, it.clock, it.handled)
        assert await it.gaps() == {event.id: Why.UNKNOWN_HERE}


async def test_events_without_a_handler_and_test_events_are_no_gaps() -> None:
    async with bench() as it:
        await it.service.emit(PostTargetFailed)
        await it.service.test()
        assert (await it.reconcile()).counts == {Verdict.IGNORED: 1}


async def test_a_dead_letter_is_no_gap_because_an_operator_decides_about_it(tmp_path: Path) -> None:
    async with bench(file=tmp_path / "hooks.db") as it:
        it.receiver.on(ChannelUnhealthy, name="reject")(_reject)
        await it.service.emit(ChannelUnhealthy)
        assert (await it.reconcile()).counts == {Verdict.DEAD: 1}


async def _reject(_: ChannelUnhealthy) -> None:
    from hookonce import Reject

    raise Reject


async def test_an_event_that_waits_in_the_inbox_is_no_gap(tmp_path: Path) -> None:
    async with bench(file=tmp_path / "hooks.db") as it:
        it.receiver = it.receiver.copy(inbox=Inbox(embedded=False))
        await it.service.emit(CommentReceived)
        assert (await it.reconcile()).counts == {Verdict.WAITING: 1}


async def test_a_disabled_endpoint_is_reported_with_its_reason() -> None:
    async with bench() as it:
        it.answers_with = 410
        event = await it.service.emit(CommentReceived)
        found = await it.reconcile()
        assert [gap.event_id for gap in found.gaps] == [event.id]
        assert found.endpoint is not None
        assert found.endpoint.status == "disabled"
        assert found.endpoint.disabled_reason


async def test_only_deliveries_since_the_given_time_are_compared() -> None:
    async with bench() as it:
        it.answers_with = 410
        await it.service.emit(CommentReceived)
        it.service.enable()
        await it.service.advance(hours=2)
        event = await it.service.emit(CommentReceived)
        found = await it.reconcile(since=timedelta(hours=1))
        assert [gap.event_id for gap in found.gaps] == [event.id]
        since = datetime.fromtimestamp(it.clock(), UTC) - timedelta(hours=3)
        assert len((await it.reconcile(since=since)).gaps) == 2
        with pytest.raises(ValueError, match="with an offset"):
            await it.reconcile(since=since.replace(tzinfo=None))
        for ahead in (timedelta(0), timedelta(hours=-1), since + timedelta(hours=4)):
            with pytest.raises(ValueError, match="in the past"):
                await it.reconcile(since=ahead)


async def test_an_event_older_than_the_stores_retention_is_not_judged() -> None:
    async with bench(retention=timedelta(hours=26)) as it:
        await it.service.emit(CommentReceived)
        await it.service.advance(hours=30)
        assert (await it.reconcile()).counts == {Verdict.UNJUDGED: 1}


async def test_a_long_log_costs_one_request_for_each_hundred() -> None:
    async with bench() as it:
        for _ in range(201):
            await it.service.emit(CommentReceived)
        it.receiver = receiver_with(MemoryStore(clock=it.clock), it.clock, it.handled)
        found = await it.reconcile()
        assert (len(found.gaps), found.requests) == (201, 4)


async def test_a_backfilled_gap_goes_to_the_same_handlers_once() -> None:
    async with bench() as it:
        it.answers_with = 410
        event = await it.service.emit(CommentReceived)
        it.answers_with = None
        it.service.enable()
        told: list[str] = []

        @it.receiver.on_gap
        async def sweep(gaps: Sequence[Gap], client: Client) -> None:
            assert client is it.client
            for gap in gaps:
                told.append(gap.event_id)
                missed = make_event(CommentReceived, event_id=gap.event_id)
                assert (await it.receiver.backfill(missed)).status == 200
                assert (await it.receiver.backfill(missed)).reason == "duplicate"

        found = await it.reconcile()
        assert found.is_whole
        assert [gap.event_id for gap in found.backfilled] == told == [event.id]
        assert found.counts == {Verdict.HANDLED: 1, Verdict.GAP: 0}
        assert it.handled == [event.id]
        assert (await it.reconcile()).backfilled == ()
        assert told == [event.id]  # a backfilled event is no gap the next time


async def test_a_gap_whose_event_the_handler_rejects_is_not_backfilled(tmp_path: Path) -> None:
    async with bench(file=tmp_path / "hooks.db") as it:
        it.receiver.on(ChannelUnhealthy, name="reject")(_reject)
        it.answers_with = 410
        event = await it.service.emit(ChannelUnhealthy)

        @it.receiver.on_gap
        async def sweep(gaps: Sequence[Gap], _: Client) -> None:
            for gap in gaps:
                await it.receiver.backfill(make_event(ChannelUnhealthy, event_id=gap.event_id))

        found = await it.reconcile()
        assert [gap.event_id for gap in found.gaps] == [event.id]
        assert found.backfilled == ()
        assert (await it.reconcile()).counts == {Verdict.DEAD: 1}


async def test_accepted_gaps_are_listed_apart_and_the_others_stay_open() -> None:
    async with bench() as it:
        events = [await it.service.emit(CommentReceived) for _ in range(3)]
        it.receiver = receiver_with(MemoryStore(clock=it.clock), it.clock, it.handled)
        found = await it.reconcile()
        some = await it.receiver.accept_gaps(found, [events[0].id, events[0].id])
        for one in (some, await it.reconcile()):
            assert [gap.event_id for gap in one.accepted] == [events[0].id]
            assert {gap.event_id for gap in one.gaps} == {event.id for event in events[1:]}
            assert one.counts == {Verdict.ACCEPTED: 1, Verdict.GAP: 2}
            assert all(len(gap.unsettled) == 1 for gap in (await it.reconcile()).gaps)
            assert not one.is_whole
        every = await it.receiver.accept_gaps(some)
        for one in (every, await it.reconcile()):
            assert len(one.accepted) == 3
            assert one.gaps == ()
            assert one.is_whole


async def test_an_accepted_gap_is_handled_if_it_is_delivered_after_all() -> None:
    async with bench() as it:
        event = await it.service.emit(CommentReceived)
        it.receiver = receiver_with(MemoryStore(clock=it.clock), it.clock, it.handled)
        await it.receiver.accept_gaps(await it.reconcile())
        assert (await it.receiver.backfill(event)).reason == "handled"
        # The receiver of the lost store handled the event, and this receiver handled it again.
        assert it.handled == [event.id, event.id]
        assert (await it.reconcile()).counts == {Verdict.HANDLED: 1}


async def test_an_event_that_is_no_gap_cannot_be_accepted() -> None:
    """If an operator could accept an event that is not lost yet, a later loss would stay hidden."""
    async with bench() as it:
        lost = await it.service.emit(CommentReceived)
        it.receiver = receiver_with(MemoryStore(clock=it.clock), it.clock, it.handled)
        handled = await it.service.emit(CommentReceived)
        found = await it.reconcile()
        with pytest.raises(ValueError, match=f"no gap here, so nothing was accepted: {handled.id}"):
            await it.receiver.accept_gaps(found, [lost.id, handled.id])
        with pytest.raises(TypeError, match="takes a list of ids"):
            await it.receiver.accept_gaps(found, lost.id)
        assert (await it.reconcile()).accepted == ()


async def test_accepted_gaps_do_not_go_to_on_gap_functions() -> None:
    async with bench() as it:
        await it.service.emit(CommentReceived)
        it.receiver = receiver_with(MemoryStore(clock=it.clock), it.clock, it.handled)
        await it.receiver.accept_gaps(await it.reconcile())

        @it.receiver.on_gap
        async def fail(_: Sequence[Gap], __: Client) -> None:
            raise AssertionError

        assert (await it.reconcile()).is_whole


async def test_a_backfilled_gap_may_be_named_to_be_accepted() -> None:
    async with bench() as it:
        event = await it.service.emit(CommentReceived)
        it.receiver = receiver_with(MemoryStore(clock=it.clock), it.clock, it.handled)

        @it.receiver.on_gap
        async def sweep(_: Sequence[Gap], __: Client) -> None:
            await it.receiver.backfill(event)

        found = await it.reconcile()
        assert await it.receiver.accept_gaps(found, [event.id]) == found
        assert (await it.reconcile()).counts == {Verdict.HANDLED: 1}


async def test_on_gap_accepts_only_async_functions_and_a_copy_keeps_them() -> None:
    async with bench() as it:
        with pytest.raises(TypeError, match="async function"):
            it.receiver.on_gap(print)  # type: ignore[type-var]  # the test passes a wrong function
        seen: list[int] = []

        @it.receiver.on_gap
        async def sweep(gaps: Sequence[Gap], _: Client) -> None:
            seen.append(len(gaps))

        it.answers_with = 410
        await it.service.emit(CommentReceived)
        await it.receiver.copy().reconcile(it.client, it.webhook_id)
        assert seen == [1]


_UNHANDLED = "channel.unhealthy"


class Misfortunes:
    """Causes faults in order, and remembers which events with a handler were sent in between."""

    def __init__(self, it: Bench, file: Path, random: Random) -> None:
        self._it = it
        self._file = file
        self._random = random
        self.emitted: list[str] = []

    async def live(self, days: float) -> None:
        """Emit events for this many days, some of them of a type without a handler."""
        end = self._it.clock() + days * DAYS
        while self._it.clock() < end:
            await self._it.service.advance(seconds=self._random.uniform(1, 9) * HOURS)
            kind = self._random.choice(
                ["comment.received", "message.received", "channel.unhealthy"]
            )
            event = await self._it.service.emit(kind)
            if kind != "channel.unhealthy":
                self.emitted.append(event.id)

    async def be_down_for_two_days(self) -> None:
        self._it.answers_with = self._random.choice([500, 503, 404, 302])
        await self.live(2)
        self._it.answers_with = None

    async def be_disabled(self) -> None:
        self._it.answers_with = 410
        await self.live(0.3)
        self._it.answers_with = None
        # The 410 has disabled the endpoint: the service sends nothing until it is enabled again.
        await self.live(self._random.uniform(0, 1))
        self._it.service.enable()

    async def be_restored_from_a_backup_of_yesterday(self) -> None:
        handled, backup = [*self._it.handled], self._file.with_name("backup")
        await self._it.store.open()
        await self._it.store.aclose()  # after closing, one file has all data
        shutil.copy(self._file, backup)
        await self.live(1)
        await self._it.store.aclose()
        shutil.copy(backup, self._file)
        self._it.handled[:] = handled


@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", range(200))
async def test_exactly_the_planted_gaps_are_found_and_backfilled_once(
    seed: int, tmp_path: Path
) -> None:
    random, file = Random(seed), tmp_path / "hooks.db"
    async with bench(seed=seed, file=file) as it:
        world = Misfortunes(it, file, random)
        planned = [
            world.be_down_for_two_days,
            world.be_disabled,
            world.be_restored_from_a_backup_of_yesterday,
        ]
        await world.live(random.uniform(0.2, 1))
        for misfortune in random.sample(planned, random.randint(1, 3)):
            await misfortune()
            await world.live(random.uniform(0, 1.5))
        sent = {delivery.event_id: delivery for delivery in it.service.deliveries()}
        expected = {
            event_id: Why.UNKNOWN_HERE
            if sent[event_id].status == "delivered"
            else Why.FAILED_AT_SENDER
            for event_id in world.emitted
            if event_id in sent  # a disabled endpoint receives nothing
            and event_id not in it.handled
            and sent[event_id].status != "pending"
        }
        assert await it.gaps() == expected

        @it.receiver.on_gap
        async def backfill(gaps: Sequence[Gap], _: Client) -> None:
            for gap in gaps:
                await it.receiver.backfill(make_event(gap.event_type, event_id=gap.event_id))

        assert (await it.reconcile()).is_whole
        assert set(expected) <= set(it.handled)
        assert len(it.handled) == len(set(it.handled))


async def test_a_receiver_with_a_public_key_alone_can_backfill() -> None:
    """The receiver cannot sign as the sender does, so it signs its backfills itself."""
    receiver, handled = Receiver(secrets=new_key_pair().public, store="memory://"), []

    @receiver.on(CommentReceived, name="note")
    async def note(event: CommentReceived) -> None:
        handled.append(event.id)

    missed = make_event(CommentReceived)
    assert (await receiver.backfill(missed)).status == 200
    assert (await receiver.backfill(missed)).reason == "duplicate"
    assert handled == [missed.id]
