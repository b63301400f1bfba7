"""Each row of the table of an event's life, on every backend: the answer and the state after it.

An event is brought into a state by the store's own calls, the step is taken, and the state is read
from what the store shows to anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from hookonce.clock import Clock
from hookonce.stores.life import LIFE, Answer, State, Step
from hookonce.stores.protocols import InboxStore, Store
from hookonce.stores.values import (
    Claimed,
    Dead,
    DeadReason,
    Delivery,
    Done,
    InFlight,
    Ownership,
    Stored,
    Waiting,
    new_token,
)

pytestmark = pytest.mark.anyio

LEASE = 30.0
LATER = 3_600.0  # when the sender's schedule is over
DELIVERY = Delivery("default", "evt_1", "post.target.failed", 1_700_000_000.0, b'{"id": "evt_1"}')
KEY = DELIVERY.key
FINISHED = frozenset({"a"})
NOBODY = Claimed(KEY, new_token(), 1, frozenset(), LEASE)
OWNERS = {Step.EXTEND, Step.RELEASE, Step.KEEP, Step.SAVE, Step.BURY}
NEED_INBOX: set[State | Step] = {State.WAITING, State.FETCHED, Step.ENQUEUE, Step.FETCH}
NEED_BODIES: set[State | Step] = {State.KEPT, State.INTERRUPTED, State.REPLAYED}
NEED_BODIES |= {State.SAVED, State.SAVED_CLAIMED, Step.KEEP, Step.KEEP_IN_FLIGHT, Step.REPLAY}
NEED_BODIES |= {Step.SAVE, Step.SAVE_IN_FLIGHT, Step.END}
ROWS = [(state, step) for state in State for step in Step]

PassTime = Callable[[float], None]


@dataclass
class Case:
    """An event in a store, and how it is brought into a state."""

    store: Store
    pass_time: PassTime
    clock: Clock
    owner: Claimed = NOBODY
    dead_unix: float = 0.0

    @property
    def inbox(self) -> InboxStore:
        assert isinstance(self.store, InboxStore)
        return self.store

    async def claim(self) -> None:
        result = await self.store.claim(KEY, new_token(), LEASE)
        assert isinstance(result, Claimed)
        self.owner = result

    async def fetch(self) -> list[Claimed]:
        batch = await self.inbox.fetch(
            1, LEASE, endpoint="default", worker="worker", token=new_token()
        )
        return [taken.claim for taken in batch.fetched]

    async def bring(self, state: State) -> None:
        """Bring a new event into a state; where no attempt runs, the last one's lease is over."""
        self.dead_unix = self.clock() + LATER
        match state:
            case State.FREE | State.CLAIMED:
                await self.claim()
            case State.WAITING | State.FETCHED:
                await self.inbox.enqueue(DELIVERY, new_token())
                [self.owner] = await self.fetch()
            case State.SAVED | State.SAVED_CLAIMED:
                await self.claim()
                await self.store.keep(self.owner, DELIVERY, dead_unix=self.dead_unix)
            case State.KEPT | State.INTERRUPTED:
                await self.claim()
                await self.store.keep(self.owner, DELIVERY)
            case State.DEAD | State.REPLAYED:
                await self.claim()
                await self.store.bury(self.owner, DeadReason.REJECTED, delivery=DELIVERY)
                if self.store.keeps_bodies:
                    result = await self.store.replay(KEY, new_token(), LEASE)
                    assert isinstance(result, Claimed)
                    self.owner = result
            case State.DONE:
                await self.claim()
                await self.store.complete(self.owner)
        if state in {State.FREE, State.WAITING, State.SAVED, State.INTERRUPTED, State.DEAD}:
            self.pass_time(LEASE)

    async def end(self) -> None:
        """Let the sender's schedule end, while whoever has the event extends its lease."""
        is_live = (await self.store.stats()).in_flight
        self.pass_time(LATER)
        if is_live:
            await self.store.extend(self.owner)

    async def state(self) -> State:
        """Return the state that the store shows; it may end what it looks at."""
        stats = await self.store.stats()
        in_flight = stats.in_flight == 1
        if isinstance(self.store, InboxStore) and (entry := await self.store.entry(KEY)):
            assert entry.in_flight is in_flight
            return State.FETCHED if in_flight else State.WAITING
        if letter := await self.store.dead_letter(KEY):
            assert stats.dead == (not letter.is_kept)
            if in_flight:
                return State.REPLAYED
            if letter.is_kept:
                assert letter.buried_unix == pytest.approx(self.dead_unix, abs=0.002)
                return State.SAVED
            return State.INTERRUPTED if letter.reason is DeadReason.INTERRUPTED else State.DEAD
        assert stats.dead == 0
        if in_flight:
            self.pass_time(LEASE)
            if letter := await self.store.dead_letter(KEY):
                return State.SAVED_CLAIMED if letter.is_kept else State.KEPT
            return State.CLAIMED
        is_done = await self.store.claim(KEY, new_token(), LEASE) == Done()
        return State.DONE if is_done else State.FREE

    async def answer(self, step: Step, claim: Claimed) -> Answer | Ownership | None:
        """Take a step, and return what it answers; None if it found nothing to do."""
        match step:
            case Step.CLAIM:
                return _ANSWERS[type(await self.store.claim(KEY, new_token(), LEASE))]
            case Step.ENQUEUE:
                return _ANSWERS[type(await self.inbox.enqueue(DELIVERY, new_token()))]
            case Step.FETCH:
                return Answer.GRANTED if await self.fetch() else None
            case Step.REPLAY:
                result = await self.store.replay(KEY, new_token(), LEASE)
                return None if result is None else _ANSWERS[type(result)]
            case Step.DISCARD:
                return Answer.APPLIED if await self.store.discard(KEY) else None
            case Step.KEEP_IN_FLIGHT:
                await self.store.keep_in_flight(DELIVERY)
                return Answer.APPLIED
            case Step.SAVE_IN_FLIGHT:
                await self.store.keep_in_flight(DELIVERY, dead_unix=self.dead_unix)
                return Answer.APPLIED
            case Step.COMPLETE:
                await self.store.complete(claim)
                return Answer.APPLIED
            case Step.EXPIRE:
                self.pass_time(LEASE)
                return Answer.APPLIED
            case Step.END:
                await self.end()
                return Answer.APPLIED
            case _:
                return await self.owners_answer(step, claim)

    async def owners_answer(self, step: Step, claim: Claimed) -> Ownership | None:
        match step:
            case Step.EXTEND:
                return await self.store.extend(claim, FINISHED)
            case Step.RELEASE:
                return await self.store.release(claim, FINISHED, "it failed")
            case Step.KEEP:
                return await self.store.keep(claim, DELIVERY)
            case Step.SAVE:
                return await self.store.keep(claim, DELIVERY, dead_unix=self.dead_unix)
            case Step.BURY:
                reason = DeadReason.REJECTED
                return await self.store.bury(claim, reason, finished=FINISHED, delivery=DELIVERY)
        return None


_ANSWERS: dict[type[object], Answer] = {
    Claimed: Answer.GRANTED,
    InFlight: Answer.IN_FLIGHT,
    Stored: Answer.STORED,
    Waiting: Answer.WAITING,
    Dead: Answer.DEAD,
    Done: Answer.DONE,
}


@pytest.fixture
def case(store: Store, pass_time: PassTime, clock: Clock, state: State, step: Step) -> Case:
    needs = {state, step}
    if needs & NEED_INBOX and not isinstance(store, InboxStore):
        pytest.skip("this store has no inbox")
    if needs & NEED_BODIES and not store.keeps_bodies:
        pytest.skip("this store keeps no bodies")
    if state is State.DEAD and step in OWNERS and not store.keeps_bodies:
        pytest.skip("this store replays nothing, so that a dead letter has no owner")
    return Case(store, pass_time, clock)


@pytest.mark.sample(150)
@pytest.mark.parametrize(("state", "step"), ROWS)
async def test_the_step_answers_and_leads_as_its_row_says(
    case: Case, state: State, step: Step
) -> None:
    await case.bring(state)
    then = LIFE[state].get(step)
    answer = await case.answer(step, case.owner)
    if step is Step.FETCH and state is State.FETCHED:
        assert answer is None  # somebody is at it
    elif step is Step.EXPIRE or step is Step.END:
        pass  # nobody asked
    elif step in OWNERS:
        assert answer is (Ownership.HELD if then else Ownership.LOST)
    else:
        assert answer is (then.answer if then else None)
    assert await case.state() is (then.state if then else state)


@pytest.mark.sample(60)
@pytest.mark.parametrize(
    ("state", "step"), [(state, step) for state, step in ROWS if step in OWNERS]
)
async def test_who_does_not_hold_the_claim_changes_nothing(
    case: Case, state: State, step: Step
) -> None:
    await case.bring(state)
    assert await case.answer(step, NOBODY) is Ownership.LOST
    assert await case.state() is state
