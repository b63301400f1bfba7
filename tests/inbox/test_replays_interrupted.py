"""Several operators replay one batch at the same time, and their processes end at any call.

The tests run in virtual time, so nobody waits for the end of a lease. The moments of the calls, of
the kills and of the handlers' failures are random.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.deliveries import SECRET, comment

from hookonce import Receiver, Retry
from hookonce.events import CommentReceived
from hookonce.simulation.virtual_loop import VirtualLoop, run_virtually
from hookonce.stores.handled import Keeping
from hookonce.stores.memory import MemoryStore
from hookonce.stores.values import Claimed, Delivery, Known, new_token
from hookonce.stores.wrapped import WrappedHandled

T = TypeVar("T")

DAYS = timedelta(days=3)
EVENTS = 6


class KeepingStore(MemoryStore):
    """A memory store that accepts dead letters, because it claims to keep bodies."""

    keeps_bodies = True


class Process(WrappedHandled):
    """One process's view of the store; the process ends before or after one of its calls."""

    inner: MemoryStore

    def __init__(
        self, inner: MemoryStore, random: Random, over: asyncio.Event, *, calls: float
    ) -> None:
        super().__init__(inner)
        self.random = random
        self.over = over
        self.left = calls
        self.ended = asyncio.Event()

    async def step(self) -> None:
        """Let some time pass; if the process has ended, wait until the test is over."""
        self.left -= 0.5
        if self.left <= 0:
            self.ended.set()
        if self.ended.is_set():
            await self.over.wait()
        await asyncio.sleep(self.random.choice([0.0, 0.0, 0.01, 0.5]))

    async def call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:  # noqa: ARG002 - the base class has this parameter
        await self.step()
        result = await call()
        await self.step()
        return result


class Scene:
    """A store with handled events, and the work of all processes that replay these events.

    Attributes:
        successes: how often the handler has succeeded for each event.
        kills: how many processes were ended.
        broken: which promises were broken.
        over: set at the end of the test, so that the tasks of ended processes can end.
    """

    def __init__(self, loop: VirtualLoop, seed: int, *, late: bool) -> None:
        self.random = Random(seed)
        self.late = late
        self.clock = loop.unix_clock
        self.store = KeepingStore(clock=self.clock)
        self.ids = [f"evt_{number}" for number in range(EVENTS)]
        self.failing = {event_id for event_id in self.ids if self.random.random() < 0.2}
        self.running: Counter[str] = Counter()
        self.successes: Counter[str] = Counter()
        self.kills = 0
        self.broken: list[str] = []
        self.over = asyncio.Event()

    async def handle_all(self) -> None:
        """Handle all events in random order, not in the order of their creation."""
        now = datetime.fromtimestamp(self.clock(), UTC)
        numbers = list(range(EVENTS))
        self.random.shuffle(numbers)
        for number in numbers:
            event = comment(f"evt_{number}", created_at=now + timedelta(seconds=number))
            body = event.model_dump_json(by_alias=True).encode()
            delivery = Delivery("default", event.id, event.type, self.clock(), body)
            claim = await self.store.claim(delivery.key, new_token(), 30.0)
            assert isinstance(claim, Claimed)
            await self.store.complete_and_keep(claim, delivery, {"book"}, Keeping(1e6))
        await asyncio.sleep(1)

    async def states(self) -> list[Known | None]:
        """Return the state of each event's replay, in the order of creation."""
        ids = [f"{event_id}.1{'l' * self.late}.book" for event_id in self.ids]
        known = await self.store.known("default", ids)
        return [known.get(one) for one in ids]

    async def operate(self, calls: float = float("inf")) -> None:
        """Open the batch and replay it in a new process, which ends after this many calls."""
        process = Process(self.store, self.random, self.over, calls=calls)
        receiver = Receiver(secrets=SECRET, store=process, keep_handled=DAYS, clock=self.clock)

        async def book(event: CommentReceived) -> None:
            await self.book(event.id, process)

        if self.late:
            receiver.on(CommentReceived, name="book", latest_by=lambda _: "one key")(book)
        else:
            receiver.on(CommentReceived, name="book")(book)

        async def replay() -> None:
            async with receiver.opened():
                batch = await receiver.handled.open_batch(handler="book", late=self.late)
                async for _ in receiver.handled.replay_all(batch):
                    pass

        work = asyncio.ensure_future(replay())
        end = asyncio.ensure_future(process.ended.wait())
        await asyncio.wait({work, end}, return_when=asyncio.FIRST_COMPLETED)
        self.kills += process.ended.is_set()
        if not process.ended.is_set():
            end.cancel()
            await work

    async def book(self, event_id: str, process: Process) -> None:
        if self.late:
            before = (await self.states())[: self.ids.index(event_id)]
            if set(before) - {Known.DONE, Known.DEAD}:
                self.broken.append(f"{event_id} runs before an older event")
        self.running[event_id] += 1
        if self.running[event_id] > 1:
            self.broken.append(f"two processes run the handler for {event_id}")
        waiting = {
            asyncio.ensure_future(asyncio.sleep(self.random.choice([0.0, 0.2, 12.0, 40.0]))),
            asyncio.ensure_future(process.ended.wait()),
        }
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        self.running[event_id] -= 1
        if process.ended.is_set():
            await self.over.wait()
        if event_id in self.failing or self.random.random() < 0.1:
            raise RuntimeError("the shop is closed")
        self.successes[event_id] += 1


def in_virtual_time(play: Callable[[Scene], Awaitable[None]], seed: int, *, late: bool) -> None:
    """Run ``play`` in virtual time on a store with handled events, then end all tasks."""

    async def run(loop: VirtualLoop) -> None:
        scene = Scene(loop, seed, late=late)
        await scene.handle_all()
        try:
            await play(scene)
        finally:
            scene.over.set()

    run_virtually(run)


@pytest.mark.sample(1)
@pytest.mark.parametrize("late", [False, True])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=12, deadline=None)
def test_operators_who_are_killed_lose_no_event_and_repeat_only_what_was_cut_off(
    late: bool,
    seed: int,
) -> None:
    async def play(scene: Scene) -> None:
        for _ in range(3):
            lives = [scene.random.choice([*range(1, 80, 3), float("inf")]) for _ in range(2)]
            await asyncio.gather(*(scene.operate(calls) for calls in lives))
        await scene.operate()
        states = await scene.states()
        assert scene.broken == []
        assert set(states) <= {Known.DONE, Known.DEAD}
        for event_id, state in zip(scene.ids, states, strict=True):
            most = 1 + scene.kills
            assert (state is Known.DONE) <= scene.successes[event_id] <= most
        [batch] = await scene.store.replay_batches("default")
        assert (batch.generation, batch.finished_unix is not None) == (1, True)

    in_virtual_time(play, seed, late=late)


@pytest.mark.parametrize("late", [False, True])
@given(seed=st.integers(0, 2**32), operators=st.integers(1, 4))
@settings(max_examples=8, deadline=None)
def test_operators_at_the_same_time_cause_one_replay_of_each_event(
    late: bool,
    seed: int,
    operators: int,
) -> None:
    async def play(scene: Scene) -> None:
        await asyncio.gather(*(scene.operate() for _ in range(operators)))
        states = dict(zip(scene.ids, await scene.states(), strict=True))
        assert scene.broken == []
        assert set(states.values()) <= {Known.DONE, Known.DEAD}
        done = [event_id for event_id, state in states.items() if state is Known.DONE]
        assert scene.successes == Counter(done)

    in_virtual_time(play, seed, late=late)


def test_a_replay_is_tried_again_when_its_handler_asks_for_it() -> None:
    """A service that limits calls gets no second call before the time that it names."""
    calls: list[float] = []

    async def run(loop: VirtualLoop) -> None:
        scene = Scene(loop, 1, late=False)
        await scene.handle_all()
        receiver = Receiver(
            secrets=SECRET, store=scene.store, keep_handled=DAYS, clock=loop.unix_clock
        )

        @receiver.on(CommentReceived, name="book")
        async def book(_: CommentReceived) -> None:
            calls.append(loop.time())
            if len(calls) < 3:
                raise Retry(after=90)

        async with receiver.opened():
            batch = await receiver.handled.open_batch(handler="book", event_ids="evt_1")
            replays = receiver.handled.replay_all(batch)
            assert [one.reason async for one in replays] == ["handled"]

    run_virtually(run)
    first, second, third = calls
    assert [second - first, third - second] == pytest.approx([90, 90], abs=1)
