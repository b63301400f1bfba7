"""The receiver recognises the last attempt by signed values, never by an unsigned header.

A copy of a genuine delivery can have any attempt number in its header. The copy must not bury an
event that the sender will deliver again. An event that the sender no longer delivers must become a
dead letter in the end.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial

import pytest
from support.deliveries import SECRET, answer_of
from support.handlers import Handler
from support.redis_servers import RedisServer
from support.stores import FaultyStore
from support.waiting import until, until_async

from hookonce import Inbox, Limits, Receiver, sign
from hookonce.events import CommentReceived
from hookonce.stores.memory import MemoryStore
from hookonce.stores.protocols import Store
from hookonce.stores.redis import RedisStore
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import DeadReason, InFlight, Known, delivery_key, new_token
from hookonce.testing import make_event

pytestmark = pytest.mark.anyio

HOUR = 3_600.0
START = 1_800_000_000.0


class Clock:
    """Unix time for the receiver, its store and the sender."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store" in metafunc.fixturenames:
        others = [] if "keeping" in metafunc.fixturenames else ["memory"]
        metafunc.parametrize("store", ["sqlite", "valkey", *others], indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest, clock: Clock) -> Store:
    if request.param == "sqlite":
        return SQLiteStore(request.getfixturevalue("tmp_path") / "hooks.db", clock=clock)
    if request.param == "valkey":
        server: RedisServer = request.getfixturevalue("valkey")
        return RedisStore(server.url, clock=clock)
    return MemoryStore(clock=clock)


@pytest.fixture
def keeping(store: Store) -> Store:
    """Return a store that keeps bodies."""
    return store


class Sender:
    """Delivers one event, signed at the clock's time, with a given attempt number."""

    def __init__(self, clock: Clock, created_at: float = START) -> None:
        self.clock = clock
        self.event = make_event(
            CommentReceived, event_id="evt_1", created_at=datetime.fromtimestamp(created_at, UTC)
        )
        self.body = self.event.model_dump_json(exclude_unset=True).encode()

    async def brings(self, receiver: Receiver, attempt: int) -> tuple[int, str]:
        headers = sign(SECRET, "evt_1", self.body, timestamp=int(self.clock()))
        headers |= {"example-delivery-attempt": str(attempt)}
        return answer_of(await receiver.handle(self.body, headers))


@pytest.fixture
def sender(clock: Clock) -> Sender:
    return Sender(clock)


def receiver_at(store: Store, clock: Clock, **limits: float) -> tuple[Receiver, Handler]:
    receiver = Receiver(
        secrets=SECRET,
        store=store,
        clock=clock,
        limits=Limits(**{"drain_seconds": 0.2, **limits}),  # type: ignore[arg-type]
    )
    return receiver, Handler(receiver)


async def fail_after(gate: asyncio.Event) -> None:
    await gate.wait()
    raise ValueError("down")


async def is_released(store: Store) -> bool:
    return (await store.stats()).in_flight == 0


async def dead_count(receiver: Receiver) -> int:
    return (await receiver.store.stats()).dead


# Three ways in which an unsigned count could bury an event


async def test_a_copy_with_attempt_9_in_its_header_during_a_failure_buries_nothing(
    store: Store, clock: Clock, sender: Sender
) -> None:
    receiver, handler = receiver_at(store, clock)
    async with receiver:
        handler.raises(ValueError("down"))
        assert await sender.brings(receiver, 1) == (500, "handler_failed")
        assert await sender.brings(receiver, 9) == (500, "handler_failed")
        assert await dead_count(receiver) == 0
        assert await store.known("default", ["evt_1"]) == {"evt_1": Known.FAILED}
        handler.succeeds()
        clock.now += 30
        assert await sender.brings(receiver, 2) == (200, "handled")
        assert await receiver.dead.list() == []
        clock.now += 30 * HOUR
        assert await sender.brings(receiver, 3) == (200, "duplicate")
        assert await dead_count(receiver) == 0
    assert [context.last_chance for context in handler.contexts] == [False] * 3


async def test_a_copy_with_attempt_9_in_its_header_during_an_attempt_buries_nothing(
    store: Store, clock: Clock, sender: Sender
) -> None:
    receiver, handler = receiver_at(store, clock, answer_seconds=0.05)
    other, _ = receiver_at(store, clock, answer_seconds=0.05)  # acts as another process
    async with receiver, other:
        gate = asyncio.Event()
        handler.does = partial(fail_after, gate)
        assert await sender.brings(receiver, 1) == (503, "still_running")
        assert await sender.brings(receiver, 9) == (503, "in_flight")
        assert await sender.brings(other, 9) == (503, "in_flight")
        assert await receiver.dead.list() == []
        gate.set()
        await until_async(lambda: is_released(store))
        assert await dead_count(receiver) == 0
        handler.succeeds()
        clock.now += 30
        assert await sender.brings(other, 2) == (200, "handled")
        assert await receiver.dead.list() == []


async def test_a_crash_after_a_copy_with_attempt_9_in_its_header_buries_nothing(
    store: Store, clock: Clock, sender: Sender
) -> None:
    """The claim is never released: its lease runs out, as after a crash."""
    cut_off = FaultyStore(store)
    crashing, handler = receiver_at(cut_off, clock)
    after_it, healthy = receiver_at(store, clock)
    handler.raises(ValueError("down"))
    cut_off.failures["release"] = -1
    async with after_it:
        await crashing.__aenter__()
        assert await sender.brings(crashing, 9) == (503, "store_unavailable")
        clock.now += 31
        assert await dead_count(after_it) == 0
        assert await sender.brings(after_it, 2) == (200, "handled")
        assert await after_it.dead.list() == []
    assert healthy.attempts == [2]


# The real last attempt


@pytest.mark.parametrize("hint", [9, 1], ids=["by the hint", "by its own count"])
async def test_the_last_attempt_by_the_signed_times_becomes_a_dead_letter_with_its_bytes(
    keeping: Store, clock: Clock, sender: Sender, hint: int
) -> None:
    receiver, handler = receiver_at(keeping, clock)
    handler.raises(ValueError("down"))
    async with receiver:
        for number in range(1, 8):
            assert await sender.brings(receiver, number) == (500, "handler_failed")
        clock.now += 20.4 * HOUR
        assert await sender.brings(receiver, hint) == (202, "exhausted")
        letter = await receiver.dead.show("evt_1")
        assert letter is not None
        assert (letter.reason, letter.is_kept) == (DeadReason.EXHAUSTED, False)
        assert letter.delivery.body == sender.body
        assert await dead_count(receiver) == 1
        assert await sender.brings(receiver, 9) == (202, "already_dead")
    assert [context.last_chance for context in handler.contexts] == [*[False] * 7, True]


@pytest.mark.parametrize("created_at", [0.0, -60 * 365 * 24 * HOUR], ids=["1970", "1910"])
async def test_an_absurdly_old_event_is_buried_at_the_last_count_only(
    keeping: Store, clock: Clock, created_at: float
) -> None:
    receiver, handler = receiver_at(keeping, clock)
    handler.raises(ValueError("down"))
    sender = Sender(clock, created_at)
    async with receiver:
        assert await sender.brings(receiver, 8) == (500, "handler_failed")
        assert await receiver.dead.list() == []
        assert await sender.brings(receiver, 9) == (202, "exhausted")


async def test_an_event_from_the_future_is_kept_for_26_hours_and_no_longer(
    keeping: Store, clock: Clock
) -> None:
    receiver, handler = receiver_at(keeping, clock)
    handler.raises(ValueError("down"))
    sender = Sender(clock, START + 365 * 24 * HOUR)
    async with receiver:
        assert await sender.brings(receiver, 9) == (500, "handler_failed")
        clock.now += 26 * HOUR - 1
        assert await sender.brings(receiver, 9) == (500, "handler_failed")
        clock.now += 1
        assert await sender.brings(receiver, 9) == (202, "already_dead")


# Events that the sender never delivers again


async def test_an_event_that_is_not_delivered_again_is_a_dead_letter_26_hours_after_its_creation(
    keeping: Store, clock: Clock, sender: Sender
) -> None:
    """The kept delivery becomes a dead letter without a call to the store."""
    receiver, handler = receiver_at(keeping, clock)
    handler.raises(ValueError("down"))
    async with receiver:
        clock.now += HOUR
        assert await sender.brings(receiver, 9) == (500, "handler_failed")
        [kept] = await receiver.dead.list()
        assert kept.is_kept
        assert kept.buried_unix == pytest.approx(START + 26 * HOUR, abs=0.01)
        assert "down" in kept.error
        clock.now = START + 26 * HOUR - 1
        assert await dead_count(receiver) == 0
        assert await keeping.known("default", ["evt_1"]) == {"evt_1": Known.FAILED}
        clock.now += 1
        assert await dead_count(receiver) == 1
        assert await keeping.known("default", ["evt_1"]) == {"evt_1": Known.DEAD}
        [letter] = await receiver.dead.list()
        assert (letter.is_kept, letter.reason) == (False, DeadReason.EXHAUSTED)
        shown = await receiver.dead.show("evt_1")
        assert shown is not None
        assert (shown.delivery.body, shown.history[-1].number) == (sender.body, 1)
        assert await sender.brings(receiver, 9) == (202, "already_dead")
        handler.succeeds()
        assert (await receiver.dead.replay("evt_1")).reason == "handled"
        assert await receiver.dead.list() == []
        assert await dead_count(receiver) == 0


async def test_after_a_crash_without_a_further_delivery_the_event_is_an_interrupted_dead_letter(
    keeping: Store, clock: Clock, sender: Sender
) -> None:
    cut_off = FaultyStore(keeping)
    crashing, handler = receiver_at(cut_off, clock)
    after_it, _ = receiver_at(keeping, clock)
    handler.raises(ValueError("down"))
    cut_off.failures["release"] = -1
    async with after_it:
        await crashing.__aenter__()
        assert await sender.brings(crashing, 9) == (503, "store_unavailable")
        clock.now = START + 26 * HOUR
        [letter] = await after_it.dead.list()
        assert (letter.is_kept, letter.reason) == (False, DeadReason.INTERRUPTED)
        assert await after_it.dead.discard("evt_1")
        assert await sender.brings(after_it, 9) == (200, "duplicate")


async def test_a_kept_event_that_fails_at_many_deliveries_is_handled_when_one_succeeds(
    keeping: Store, clock: Clock, sender: Sender
) -> None:
    receiver, handler = receiver_at(keeping, clock)
    handler.raises(ValueError("down"))
    async with receiver:
        for number in range(1, 12):  # more deliveries than the sender makes: some are copies
            clock.now += HOUR
            assert await sender.brings(receiver, number) == (500, "handler_failed")
        assert [letter.is_kept for letter in await receiver.dead.list()] == [True]
        clock.now += HOUR
        handler.succeeds()
        assert await sender.brings(receiver, 9) == (200, "handled")
        assert await receiver.dead.list() == []


# what an operator can do before the 26 hours have passed


async def test_a_failed_replay_of_a_kept_event_does_not_bury_it(
    keeping: Store, clock: Clock, sender: Sender
) -> None:
    receiver, handler = receiver_at(keeping, clock)
    handler.raises(ValueError("down"))
    async with receiver:
        await sender.brings(receiver, 9)
        assert (await receiver.dead.replay("evt_1")).reason == "handler_failed"
        assert [letter.is_kept for letter in await receiver.dead.list()] == [True]
        assert handler.contexts[-1].last_chance is False
        assert await sender.brings(receiver, 2) == (500, "handler_failed")
        handler.succeeds()
        assert (await receiver.dead.replay("evt_1")).reason == "handled"
        assert await sender.brings(receiver, 3) == (200, "duplicate")


async def test_a_replay_of_a_kept_event_during_an_attempt_reports_it_in_flight(
    keeping: Store, clock: Clock, sender: Sender
) -> None:
    receiver, handler = receiver_at(keeping, clock, answer_seconds=0.05)
    other, _ = receiver_at(keeping, clock)
    handler.raises(ValueError("down"))
    async with receiver, other:
        await sender.brings(receiver, 9)
        assert await other.dead.show("evt_1") is not None
        gate = handler.waits()
        assert await sender.brings(receiver, 2) == (503, "still_running")
        assert await other.dead.show("evt_1") is None
        key, token = delivery_key("default", "evt_1"), new_token()
        assert isinstance(await keeping.replay(key, token, 30.0), InFlight)
        gate.set()
        await until_async(lambda: is_released(keeping))
        assert await keeping.replay(key, token, 30.0) is None


async def test_a_kept_event_can_be_discarded_without_another_attempt(
    keeping: Store, clock: Clock, sender: Sender
) -> None:
    receiver, handler = receiver_at(keeping, clock)
    handler.raises(ValueError("down"))
    async with receiver:
        await sender.brings(receiver, 9)
        assert await receiver.dead.discard("evt_1")
        assert await sender.brings(receiver, 2) == (200, "duplicate")
    assert handler.runs == 1


# A receiver that gets an inbox later


async def test_an_inbox_takes_over_a_kept_event_with_its_finished_handlers(
    keeping: Store, clock: Clock, sender: Sender
) -> None:
    inline, handler = receiver_at(keeping, clock)
    finishing = Handler(inline, "finishing")
    handler.raises(ValueError("down"))
    stored = Receiver(secrets=SECRET, store=keeping, clock=clock, inbox=Inbox(embedded=False))
    later, again = Handler(stored), Handler(stored, "finishing")
    async with inline, stored:
        await sender.brings(inline, 9)
        assert await sender.brings(stored, 2) == (202, "stored")
        assert await stored.dead.list() == []
        async with stored.working():
            await until(lambda: later.runs)
        clock.now += 30 * HOUR
        assert await dead_count(stored) == 0
        assert await sender.brings(stored, 3) == (200, "duplicate")
    assert (finishing.runs, again.runs, later.attempts) == (1, 0, [2])
