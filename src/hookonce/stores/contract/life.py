"""A rule for each row of ``hookonce.stores.life.LIFE``: checks the answer, and the state after it.

A rule brings an event into a state by the store's own calls, does the step, and reads the state
from what the store shows to every caller. If the table has no row for a state and a step, the step
must change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ..life import LIFE, Answer, State, Step
from ..protocols import InboxStore, Store
from ..values import (
    Claimed,
    Dead,
    DeadReason,
    Done,
    InFlight,
    Ownership,
    Stored,
    Waiting,
    new_token,
)
from .bench import (
    DELIVERY,
    HOUR,
    KEY,
    LEASE,
    NONE,
    Bench,
    Group,
    about,
    claim,
    every_store,
    fetch,
    fetch_one,
    replay,
    with_bodies,
    with_inbox,
)

_FINISHED = frozenset({"a"})
_STRANGER = Claimed(KEY, new_token(), 1, NONE, LEASE)
_OWNERS = {Step.EXTEND, Step.RELEASE, Step.KEEP, Step.KEEP_UNTIL, Step.BURY}
_NEED_INBOX: set[State | Step] = {State.WAITING, State.FETCHED, Step.ENQUEUE, Step.FETCH}
_NEED_BODIES: set[State | Step] = {
    State.KEPT_FREE,
    State.KEPT_CLAIMED,
    State.LAST_CHANCE,
    State.INTERRUPTED,
}
_NEED_BODIES |= {State.REPLAYED, Step.REPLAY, Step.KEEP, Step.KEEP_IN_FLIGHT}
_NEED_BODIES |= {Step.KEEP_UNTIL, Step.KEEP_IN_FLIGHT_UNTIL, Step.END}

_ANSWERS: dict[type[object], Answer] = {
    Claimed: Answer.GRANTED,
    InFlight: Answer.IN_FLIGHT,
    Stored: Answer.STORED,
    Waiting: Answer.WAITING,
    Dead: Answer.DEAD,
    Done: Answer.DONE,
}


@dataclass
class _Event:
    """The event that a rule tests, and the claim on this event."""

    bench: Bench
    owner: Claimed = _STRANGER
    dead_unix: float = 0.0

    @property
    def store(self) -> Store:
        return self.bench.store

    async def bring(self, state: State) -> None:
        """Bring a new event into a state; let the lease end if no attempt runs in this state."""
        self.dead_unix = self.bench.clock() + HOUR
        match state:
            case State.FREE | State.CLAIMED:
                self.owner = await claim(self.store)
            case State.WAITING | State.FETCHED:
                await self.bench.inbox.enqueue(DELIVERY, new_token())
                self.owner = (await fetch_one(self.bench.inbox)).claim
            case State.KEPT_FREE | State.KEPT_CLAIMED:
                self.owner = await claim(self.store)
                await self.store.keep(self.owner, DELIVERY, dead_unix=self.dead_unix)
            case State.LAST_CHANCE | State.INTERRUPTED:
                self.owner = await claim(self.store)
                await self.store.keep(self.owner, DELIVERY)
            case State.DEAD | State.REPLAYED:
                self.owner = await claim(self.store)
                await self.store.bury(self.owner, DeadReason.REJECTED, delivery=DELIVERY)
                if self.store.keeps_bodies:
                    self.owner = await replay(self.store)
            case State.DONE:
                self.owner = await claim(self.store)
                await self.store.complete(self.owner)
        if state in {State.FREE, State.WAITING, State.KEPT_FREE, State.INTERRUPTED, State.DEAD}:
            self.bench.clock.advance(LEASE)

    async def state(self) -> State:
        """Return the state of the event; call this last, since some checks change the state."""
        stats = await self.store.stats()
        in_flight = stats.in_flight == 1
        if isinstance(self.store, InboxStore) and (entry := await self.store.entry(KEY)):
            assert entry.in_flight is in_flight
            return State.FETCHED if in_flight else State.WAITING
        if dead := await self.store.dead_letter(KEY):
            assert stats.dead == (not dead.is_kept)
            if in_flight:
                return State.REPLAYED
            if dead.is_kept:
                assert dead.buried_unix == about(self.dead_unix)
                return State.KEPT_FREE
            return State.INTERRUPTED if dead.reason is DeadReason.INTERRUPTED else State.DEAD
        assert stats.dead == 0
        if in_flight:
            self.bench.clock.advance(LEASE)
            if dead := await self.store.dead_letter(KEY):
                return State.KEPT_CLAIMED if dead.is_kept else State.LAST_CHANCE
            return State.CLAIMED
        is_done = await self.store.claim(KEY, new_token(), LEASE) == Done()
        return State.DONE if is_done else State.FREE

    async def do(self, step: Step, claim: Claimed) -> Answer | Ownership | None:
        """Do a step and return its answer; None if the store had nothing to do."""
        store = self.store
        match step:
            case Step.CLAIM:
                return _ANSWERS[type(await store.claim(KEY, new_token(), LEASE))]
            case Step.ENQUEUE:
                return _ANSWERS[type(await self.bench.inbox.enqueue(DELIVERY, new_token()))]
            case Step.FETCH:
                return Answer.GRANTED if (await fetch(self.bench.inbox)).fetched else None
            case Step.REPLAY:
                result = await store.replay(KEY, new_token(), LEASE)
                return None if result is None else _ANSWERS[type(result)]
            case Step.DISCARD:
                return Answer.APPLIED if await store.discard(KEY) else None
            case Step.KEEP_IN_FLIGHT:
                await store.keep_in_flight(DELIVERY)
            case Step.KEEP_IN_FLIGHT_UNTIL:
                await store.keep_in_flight(DELIVERY, dead_unix=self.dead_unix)
            case Step.COMPLETE:
                await store.complete(claim)
            case Step.EXPIRE:
                self.bench.clock.advance(LEASE)
            case Step.END:
                await self._end()
            case _:
                return await self._do_as_owner(step, claim)
        return Answer.APPLIED

    async def _end(self) -> None:
        """Move the clock past the sender's last attempt, and extend a claim to keep it live."""
        is_live = (await self.store.stats()).in_flight
        self.bench.clock.advance(HOUR)
        if is_live:
            await self.store.extend(self.owner)

    async def _do_as_owner(self, step: Step, claim: Claimed) -> Ownership | None:
        store = self.store
        match step:
            case Step.EXTEND:
                return await store.extend(claim, _FINISHED)
            case Step.RELEASE:
                return await store.release(claim, _FINISHED, "it failed")
            case Step.KEEP:
                return await store.keep(claim, DELIVERY)
            case Step.KEEP_UNTIL:
                return await store.keep(claim, DELIVERY, dead_unix=self.dead_unix)
            case Step.BURY:
                reason = DeadReason.REJECTED
                return await store.bury(claim, reason, finished=_FINISHED, delivery=DELIVERY)
        return None


async def _the_step_answers_and_leads_as_its_row_says(
    bench: Bench, state: State, step: Step
) -> None:
    event = _Event(bench)
    await event.bring(state)
    then = LIFE[state].get(step)
    answer = await event.do(step, event.owner)
    if step is Step.FETCH and state is State.FETCHED:
        assert answer is None  # an attempt runs: a fetch returns no event
    elif step in {Step.EXPIRE, Step.END}:
        # Time alone causes these steps, so there is no call with an answer.
        pass
    elif step in _OWNERS:
        assert answer is (Ownership.HELD if then else Ownership.LOST)
    else:
        assert answer is (then.answer if then else None)
    assert await event.state() is (then.state if then else state)


async def _a_stranger_changes_nothing(bench: Bench, state: State, step: Step) -> None:
    event = _Event(bench)
    await event.bring(state)
    assert await event.do(step, _STRANGER) is Ownership.LOST
    assert await event.state() is state


def _group(state: State, step: Step) -> Group:
    if {state, step} & _NEED_INBOX:
        return with_inbox
    # A store without bodies replays no dead letter, so nobody can hold a claim on its dead letters.
    if {state, step} & _NEED_BODIES or (state is State.DEAD and step in _OWNERS):
        return with_bodies
    return every_store


for _state in State:
    for _step in Step:
        _row = f"{_state.name}.{_step.value}"
        _check = partial(_the_step_answers_and_leads_as_its_row_says, state=_state, step=_step)
        _group(_state, _step).add(_row, _check)
        if _step in _OWNERS:
            _check = partial(_a_stranger_changes_nothing, state=_state, step=_step)
            _group(_state, _step).add(f"{_row}-by-a-stranger", _check)
