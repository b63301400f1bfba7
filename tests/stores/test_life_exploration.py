"""Explores every order of steps for one event, and checks that no promise is ever broken.

A world is a state of everything that takes part: one event with its handlers, two deliveries of the
event, three workers, an operator, and a clock. From each world the test takes every possible next
step: a request, a handler that succeeds, the record of an attempt's end, a crash, a lost reply, the
end of a lease, a clock that is set back, a replay, a discard. The functions of
``hookonce.stores.life`` make the steps. The checks do not use these functions: they compare what
the sender, the handlers and the operator learn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, NamedTuple

import pytest

from hookonce.stores import life
from hookonce.stores.life import (
    LIFE,
    NEW,
    Answer,
    InboxEntry,
    Moment,
    Record,
    State,
    Step,
    Then,
)
from hookonce.stores.values import (
    INTERRUPTED,
    Claimed,
    Dead,
    DeadReason,
    Delivery,
    DeliveryKey,
    Done,
    InFlight,
    Ownership,
    Stored,
    Token,
    Waiting,
)

KEY = DeliveryKey("default:evt_1")
DELIVERY = Delivery("default", "evt_1", None, 1.0, b"")
NOW, LEASE = 100.0, 1.0
LATER = 200.0  # the end of the sender's schedule
MOMENT = Moment(NOW, NOW, 1_000.0)
NONE: frozenset[str] = frozenset()
GONE = Token("a worker that is no more")

DELIVERIES = 2
TOKENS = tuple(Token(f"worker {n}") for n in range(3))

# The states of an event whose delivery was answered 2xx: the sender will not send it again.
SAFE = {
    State.WAITING,
    State.FETCHED,
    State.LAST_CHANCE,
    State.INTERRUPTED,
    State.DEAD,
    State.REPLAYED,
}
SAFE |= {State.DONE}
# The states of an event that is given up, or will be if the running attempt fails.
DEAD = {State.LAST_CHANCE, State.INTERRUPTED, State.DEAD, State.REPLAYED}


class Worker(NamedTuple):
    """A process that has asked for the event, or handles it.

    Attributes:
        asked: the request whose answer has not arrived yet; empty while the process works.
        finished: the handlers that had finished at the claim, or have finished in this process.
        untold: the finished handlers that the store does not know yet.
        lease: whether the process has a lease by its own clock.

    """

    asked: str
    finished: frozenset[str] = NONE
    untold: frozenset[str] = NONE
    lease: bool = False


class World(NamedTuple):
    """The state of the event's record, of the sender and of every worker.

    Attributes:
        record: the store's record of the event.
        workers: the workers by their tokens; None for an idle worker.
        unanswered: deliveries that the sender still repeats.
        attempts: how many attempts the store has granted, except those that began no handler.
        told: the handlers that a call to the store has named as finished.
        outstanding: the handlers that a call to the store has named as outstanding.
        is_done: a worker or the sender has learned that the event is handled, or an operator has
            discarded it.
        may_be_dead: a worker has given the event up, the sender has proved that it does not deliver
            it again, or its schedule is over.
        faults_left: how many lost replies and set-back clocks may still happen.

    """

    record: Record
    workers: tuple[Worker | None, ...]
    unanswered: int
    attempts: int
    told: frozenset[str]
    outstanding: frozenset[str]
    is_done: bool
    may_be_dead: bool
    faults_left: int


class Broken(Exception):  # noqa: N818 - a finding, not an error of the program
    """A promise was not kept."""


class Size(NamedTuple):
    """Limits without which the exploration would never end."""

    workers: int
    handlers: str
    attempts: int
    faults: int


THREE_ATTEMPTS = Size(workers=3, handlers="a", attempts=3, faults=1)
TWO_HANDLERS = Size(workers=2, handlers="ab", attempts=2, faults=0)
THREE_WORKERS = Size(workers=3, handlers="ab", attempts=2, faults=0)
TWO_HANDLERS_AND_A_FAULT = Size(workers=2, handlers="ab", attempts=2, faults=1)


@dataclass(frozen=True)
class Life:
    """The steps that the exploration uses; a test plants a mistake by replacing one of them."""

    claim: Callable[..., Any] = life.claim
    replay: Callable[..., Any] = life.replay
    fetch: Callable[..., Any] = life.fetch
    fetch_again: Callable[..., Any] = life.fetch_again
    enqueue: Callable[..., Any] = life.enqueue
    extend: Callable[..., Any] = life.extend
    release: Callable[..., Any] = life.release
    keep: Callable[..., Any] = life.keep
    keep_in_flight: Callable[..., Any] = life.keep_in_flight
    bury: Callable[..., Any] = life.bury
    discard: Callable[..., Any] = life.discard
    complete: Callable[..., Any] = lambda record, moment, claim: life.complete(moment)  # noqa: ARG005


@dataclass
class Walk:
    """Visits every state that can be reached."""

    size: Size
    steps: Life = field(default_factory=Life)
    rows: set[tuple[State, Step, State]] = field(default_factory=set)

    def first_world(self) -> World:
        workers = (None,) * self.size.workers
        return World(NEW, workers, DELIVERIES, 0, NONE, NONE, False, False, self.size.faults)

    def next_worlds(self, world: World) -> Iterator[tuple[World, bool]]:
        """Yield each next state, and whether the walk omits it because of too many attempts."""
        record = world.record
        may_grant = record.attempt < self.size.attempts
        idle = next((n for n, worker in enumerate(world.workers) if worker is None), None)
        if idle is not None:
            yield from self.requests(world, idle, may_grant=may_grant)
        for n, worker in enumerate(world.workers):
            if worker is None:
                continue
            yield self.with_worker(world, n, None), False  # the worker crashes
            if worker.asked:
                grants = worker.asked in {"claim", "fetch", "replay"}
                if may_grant or record.token == TOKENS[n] or not grants:
                    for after in self.answers(world, n, worker.asked):
                        yield after, False
            else:
                for after in self.works(world, n, worker):
                    yield after, False
        yield self.with_person(world), False
        yield self.with_time(world), False
        yield self.with_end(world), False
        if world.faults_left and record.token:  # the clock is set back, by as much as a lease
            longer = record._replace(until=record.until + LEASE)
            yield world._replace(record=longer, faults_left=world.faults_left - 1), False

    def requests(self, world: World, idle: int, *, may_grant: bool) -> Iterator[tuple[World, bool]]:
        """Yield the outcomes of each request that an idle worker can make."""
        asked = ["enqueue", "claim"] if world.unanswered else []
        if world.record.queued is not None and world.record.queued.due <= NOW:
            asked.append("fetch")
        if life.dead_letter(world.record, MOMENT, DELIVERY) is not None:
            asked.append("replay")
        for name in asked:
            state = self.state(world)
            grants = state in {State.FREE, State.KEPT_FREE} or name in {"fetch", "replay"}
            if grants and not may_grant and name != "enqueue":
                yield world, True
                continue
            sent = self.with_worker(world, idle, Worker(name))
            for after in self.answers(sent, idle, name):
                yield after, False

    def answers(self, world: World, n: int, asked: str) -> Iterator[World]:
        """Yield the state after a request and its answer, and the state after a lost answer."""
        record, token, is_answered = world.record, TOKENS[n], False
        result: Any = None
        was_live = record.until > NOW
        match asked:
            case "keep in flight":
                after = self.steps.keep_in_flight(record, MOMENT)
                self.saw(record, Step.KEEP_IN_FLIGHT, after)
                world, is_answered = world._replace(may_be_dead=True), True
            case "save in flight":
                after = self.steps.keep_in_flight(record, MOMENT, LATER)
                self.saw(record, Step.KEEP_IN_FLIGHT_UNTIL, after)
            case "enqueue":
                result, after = self.steps.enqueue(record, MOMENT, token)
                self.saw(record, Step.ENQUEUE, after, is_own=isinstance(result, Stored))
                is_answered = isinstance(result, Stored | Waiting | Done | Dead)
            case "fetch":
                is_again = record.token == token
                fetch = self.steps.fetch_again if is_again else self.steps.fetch
                result, after = fetch(record, MOMENT, KEY, token, LEASE)
                if not is_again:
                    self.saw(record, Step.FETCH, after)
            case "replay":
                result, after = self.steps.replay(record, MOMENT, KEY, token, LEASE)
                self.saw(record, Step.REPLAY, after)
            case _:
                result, after = self.steps.claim(record, MOMENT, KEY, token, LEASE)
                self.saw(record, Step.CLAIM, after)
                is_answered = isinstance(result, Done | Dead)
        reached = world._replace(record=after)
        is_granted = isinstance(result, Claimed)
        if is_granted and not (was_live and record.token == token):
            reached = self.granted(world, reached, result)
        if world.faults_left:  # the reply is lost, and the worker may ask again
            yield reached._replace(faults_left=world.faults_left - 1)
        if asked == "claim" and isinstance(result, InFlight):
            # This may be the sender's last delivery: keep it while another attempt runs.
            yield self.with_worker(reached, n, Worker("keep in flight"))
            yield self.with_worker(reached, n, Worker("save in flight"))
        if is_answered and world.unanswered:
            reached = reached._replace(unanswered=world.unanswered - 1)
        if isinstance(result, Done):
            reached = reached._replace(is_done=True)
        worker = Worker("", result.finished, NONE, lease=True) if is_granted else None
        yield self.with_worker(reached, n, worker)

    def granted(self, before: World, after: World, claim: Claimed) -> World:
        """Check a new attempt, and count it."""
        if not before.told <= claim.finished:
            raise Broken("a success was forgotten, and runs again")
        if not before.outstanding <= claim.outstanding:
            raise Broken("it is forgotten what the event owes")
        is_over = before.record.token is not None
        if is_over and INTERRUPTED not in {one.error for one in after.record.history}:
            raise Broken("the history does not show an attempt whose lease ran out")
        return after._replace(attempts=before.attempts + 1)

    def works(self, world: World, n: int, worker: Worker) -> Iterator[World]:
        """Yield the states after each step that a worker with a claim can take."""
        for name in self.size.handlers:
            if name in worker.finished:
                continue
            done = worker._replace(finished=worker.finished | {name}, untold=worker.untold | {name})
            yield self.with_worker(world, n, done)
        claim = Claimed(KEY, TOKENS[n], 1, NONE, LEASE)
        record, rest = world.record, frozenset(self.size.handlers) - worker.finished
        if not rest:
            after = self.steps.complete(record, MOMENT, claim)
            self.saw(record, Step.COMPLETE, after)
            done_world = world._replace(record=after, is_done=True)
            yield self.with_worker(
                done_world, n, None
            )  # the store does the step, and the reply is lost
            if world.unanswered:
                yield self.with_worker(
                    done_world._replace(unanswered=world.unanswered - 1), n, None
                )
        is_owner = record.token == TOKENS[n]
        yield self.kept(world, n)
        yield self.saved(world, n)
        for step, call in self.settlings(worker, rest):
            ownership, after = call(record, MOMENT, claim)
            if is_owner:
                self.saw(record, step, after)
            reached = world._replace(record=after, told=world.told | worker.untold)
            if ownership is Ownership.HELD:
                given = rest if step is Step.RELEASE or step is Step.BURY else NONE
                reached = reached._replace(outstanding=world.outstanding | given)
            reached = reached._replace(outstanding=reached.outstanding - reached.told)
            if step is Step.EXTEND:
                is_held = ownership is Ownership.HELD
                yield self.with_worker(reached, n, worker._replace(untold=NONE, lease=is_held))
                continue
            if step is Step.RELEASE and not worker.finished and ownership is Ownership.HELD:
                # An attempt that has begun no handler does not count.
                began_none = call(record, MOMENT, claim, began=False)[1]
                fewer = world._replace(record=began_none, outstanding=reached.outstanding)
                yield self.with_worker(fewer._replace(attempts=world.attempts - 1), n, None)
            if step is Step.BURY and ownership is Ownership.HELD:
                reached = reached._replace(may_be_dead=True)
            if step is Step.BURY and ownership is Ownership.HELD and world.unanswered:
                told_sender = reached._replace(unanswered=world.unanswered - 1)
                yield self.with_worker(told_sender, n, None)
            yield self.with_worker(reached, n, None)

    def settlings(
        self, worker: Worker, rest: frozenset[str]
    ) -> Iterator[tuple[Step, Callable[..., Any]]]:
        told, outstanding = worker.untold, rest
        yield Step.EXTEND, partial(self.steps.extend, finished=told)
        yield (
            Step.RELEASE,
            partial(self.steps.release, finished=told, error="e", outstanding=outstanding),
        )
        bury = partial(
            self.steps.bury, reason=DeadReason.REJECTED, finished=told, outstanding=outstanding
        )
        yield Step.BURY, bury

    def kept(self, world: World, n: int) -> World:
        """Return the state after a worker has kept the delivery and answered the sender."""
        claim = Claimed(KEY, TOKENS[n], 1, NONE, LEASE)
        ownership, after = self.steps.keep(world.record, MOMENT, claim)
        if ownership is Ownership.HELD:
            self.saw(world.record, Step.KEEP, after)
        answered = min(world.unanswered, 1) if ownership is Ownership.HELD else 0
        return world._replace(
            record=after,
            unanswered=world.unanswered - answered,
            may_be_dead=world.may_be_dead or ownership is Ownership.HELD,
        )

    def saved(self, world: World, n: int) -> World:
        """Return the state after a worker has kept a delivery that the sender may repeat."""
        claim = Claimed(KEY, TOKENS[n], 1, NONE, LEASE)
        ownership, after = self.steps.keep(world.record, MOMENT, claim, LATER)
        if ownership is Ownership.HELD:
            self.saw(world.record, Step.KEEP_UNTIL, after)
        return world._replace(record=after)

    def with_person(self, world: World) -> World:
        """Return the state after an operator has discarded the dead letter."""
        is_discarded, after = self.steps.discard(world.record, MOMENT)
        if not is_discarded:
            return world
        shown = world.record
        # No lease lasts so long: the clock was set back, so the listing shows the attempt as over.
        if shown.until > NOW + shown.lease:
            shown = shown._replace(until=NOW)
        self.saw(shown, Step.DISCARD, after)
        return world._replace(record=after, is_done=True)

    def with_time(self, world: World) -> World:
        """Return the state after the time of one lease."""
        record = world.record
        before = record
        record = record._replace(until=max(NOW, record.until - LEASE) if record.token else 0.0)
        if record.queued is not None:
            due = max(NOW, record.queued.due - LEASE)
            record = record._replace(queued=record.queued._replace(due=due))
        if before.until > NOW and record.until <= NOW:
            self.saw(before, Step.EXPIRE, record)
        workers = tuple(worker and worker._replace(lease=False) for worker in world.workers)
        return world._replace(record=record, workers=workers)

    def with_end(self, world: World) -> World:
        """Return the state after the end of the sender's schedule."""
        before = world.record
        if before.dead_letter is None or before.dead_letter.buried_unix <= NOW:
            return world
        record = before._replace(dead_letter=before.dead_letter._replace(buried_unix=NOW))
        self.saw(before, Step.END, record)
        return world._replace(record=record, may_be_dead=True)

    def with_worker(self, world: World, n: int, worker: Worker | None) -> World:
        return world._replace(workers=(*world.workers[:n], worker, *world.workers[n + 1 :]))

    def state(self, world: World) -> State:
        return life.state_of(world.record, MOMENT)

    def saw(self, before: Record, step: Step, after: Record, *, is_own: bool = False) -> None:
        """Note a step and the states before and after it, as a row of the table of states."""
        if not (is_own and before.queued is not None):
            self.rows.add((life.state_of(before, MOMENT), step, life.state_of(after, MOMENT)))

    def check(self, world: World) -> None:
        """Raise Broken if a promise is broken."""
        state, record = self.state(world), world.record
        if sum(worker is not None and worker.lease for worker in world.workers) > 1:
            raise Broken("two live owners")
        if world.is_done and state is not State.DONE:
            raise Broken("what was done is not done any more")
        if world.unanswered < DELIVERIES and state not in SAFE:
            raise Broken("what was acknowledged is lost")
        if not world.may_be_dead and state in DEAD:
            raise Broken("it was given up though the sender may bring it again")
        if record.dead_letter is not None and record.queued is not None:
            raise Broken("a dead letter waits in the inbox")
        if state is State.DONE:
            return
        if not world.told <= record.finished:
            raise Broken("a success was forgotten")
        if not world.outstanding <= record.outstanding or record.outstanding & record.finished:
            raise Broken("what the event owes is not what it owes")
        if world.attempts != record.attempt:
            raise Broken("an attempt was not counted")


@cache
def rank(worker: Worker | None) -> tuple[bool, str]:
    """Return the sort key of a worker."""
    return worker is not None, repr(worker and [*map(sorted, worker[1:3]), *worker])


def told_apart(world: World) -> World:
    """Return the state without differences that do not matter, so that equal states compare equal.

    The order of the workers and of the handlers does not matter. If something is over, the time
    since its end does not matter.
    """
    record = world.record
    if life.state_of(record, MOMENT) is State.DONE:
        record, told, outstanding, attempts, may_be_dead = (
            life.complete(MOMENT),
            NONE,
            NONE,
            0,
            True,
        )
    else:
        told, outstanding, attempts = world.told, world.outstanding, world.attempts
        may_be_dead = world.may_be_dead
    enqueue = record.queued.token if record.queued is not None else None
    workers = sorted(
        (*rank(worker), token == record.token, token == enqueue, n)
        for n, (worker, token) in enumerate(zip(world.workers, TOKENS, strict=False))
    )
    token, placed = record.token and GONE, enqueue and GONE
    for n, (is_there, *_, owns, has_put, _) in enumerate(workers):
        if is_there and owns:
            token = TOKENS[n]
        if is_there and has_put:
            placed = TOKENS[n]
    queued, letter = record.queued, record.dead_letter
    return World(
        record._replace(
            token=token,
            until=max(NOW, record.until) if token else 0.0,
            history=(),
            queued=queued and InboxEntry(placed or GONE, max(NOW, queued.due), 0.0),
            dead_letter=letter and letter._replace(error="", reason=DeadReason.REJECTED),
        ),
        tuple(world.workers[n] for *_, n in workers),
        world.unanswered,
        attempts,
        told,
        outstanding,
        world.is_done,
        may_be_dead,
        world.faults_left,
    )


def explore(walk: Walk) -> dict[World, int]:
    """Return all states with their numbers, or raise Broken with the steps to a broken promise."""
    numbers = {walk.first_world(): 0}
    before: list[set[int]] = [set()]
    ways_out: deque[int] = deque()
    waiting = deque(numbers)
    while waiting:
        world = waiting.popleft()
        number = numbers[world]
        if life.state_of(world.record, MOMENT) is State.DONE:
            ways_out.append(number)
        for after, is_left_out in walk.next_worlds(world):
            if is_left_out:
                ways_out.append(number)
            if after == world:
                continue
            try:
                walk.check(after)
            except Broken as error:
                error.add_note(repr(world))
                error.add_note(repr(after))
                raise
            told = told_apart(after)
            if told not in numbers:
                numbers[told] = len(numbers)
                before.append(set())
                waiting.append(told)
            before[numbers[told]].add(number)
    seen = set(ways_out)
    while ways_out:
        for number in before[ways_out.popleft()] - seen:
            seen.add(number)
            ways_out.append(number)
    if len(seen) < len(numbers):
        stuck = next(world for world, number in numbers.items() if number not in seen)
        raise Broken(f"there is no way out of {stuck}")
    return numbers


def of_function(**steps: Callable[..., Any]) -> Life:
    return replace(Life(), **steps)


def unfenced_release(record: Record, moment: Moment, claim: Claimed, **given: Any) -> Any:
    owner = claim._replace(token=record.token or claim.token)
    return life.release(record, moment, owner, **given)


def fenced_completion(record: Record, moment: Moment, claim: Claimed) -> Record:
    return life.complete(moment) if record.token == claim.token else record


def uncounted_expiry(record: Record, moment: Moment, *given: Any) -> Any:
    result, after = life.claim(record, moment, *given)
    is_over = isinstance(result, Claimed) and record.token not in {None, after.token}
    return result, after._replace(attempt=record.attempt) if is_over else after


def unseen_expiry(record: Record, moment: Moment, *given: Any) -> Any:
    result, after = life.claim(record, moment, *given)
    return result, after._replace(history=record.history)


def forgetful_replay(record: Record, moment: Moment, *given: Any) -> Any:
    return life.replay(record._replace(finished=NONE), moment, *given)


def release_without_outstanding(*given: Any, **named: Any) -> Any:
    return life.release(*given, **{**named, "outstanding": NONE})


def release_that_always_counts(*given: Any, **named: Any) -> Any:
    return life.release(*given, **{**named, "began": True})


def release_of_what_was_kept(record: Record, *given: Any, **named: Any) -> Any:
    ownership, after = life.release(record, *given, **named)
    was_kept = record.dead_letter is not None and record.dead_letter.is_kept
    return ownership, after._replace(dead_letter=None) if was_kept else after


def release_that_buries_what_was_saved(record: Record, *given: Any, **named: Any) -> Any:
    if record.dead_letter is not None and record.dead_letter.is_kept:
        record = record._replace(dead_letter=record.dead_letter._replace(buried_unix=NOW))
    return life.release(record, *given, **named)


def keep_without_proof(record: Record, moment: Moment, claim: Claimed, _: Any = None) -> Any:
    return life.keep(record, moment, claim)


def keep_that_puts_off_the_end(
    record: Record, moment: Moment, claim: Claimed, dead_unix: float | None = None
) -> Any:
    ownership, after = life.keep(record, moment, claim, dead_unix)
    if ownership is Ownership.HELD and after.dead_letter is not None and after.dead_letter.is_kept:
        letter = after.dead_letter._replace(
            buried_unix=dead_unix or NOW, sender_retries=dead_unix is not None
        )
        after = after._replace(dead_letter=letter)
    return ownership, after


def put_that_leaves_the_letter(record: Record, moment: Moment, token: Token) -> Any:
    result, after = life.enqueue(record, moment, token)
    return result, after._replace(dead_letter=record.dead_letter)


def extend_that_drops_facts(record: Record, *given: Any, **named: Any) -> Any:
    ownership, after = life.extend(record, *given, **named)
    return ownership, after if ownership is Ownership.HELD else record


def discard_that_forgets(record: Record, moment: Moment) -> Any:
    return life.discard(record, moment)[0], NEW


def put_that_overwrites(_: Record, moment: Moment, token: Token) -> Any:
    return Stored(), NEW._replace(queued=InboxEntry(token, moment.now, 0.0))


def greedy_take(record: Record, moment: Moment, *given: Any) -> Any:
    return life.fetch(record._replace(until=0.0), moment, *given)


def bury_beside_the_entry(record: Record, *given: Any, **named: Any) -> Any:
    ownership, after = life.bury(record, *given, **named)
    return ownership, after._replace(queued=record.queued)


def no_replay(record: Record, *_: Any) -> Any:
    return None, record


def no_discard(record: Record, *_: Any) -> Any:
    return False, record


FOUND_LATE = {"a dead letter that nobody can do anything about"}

MISTAKES = {
    "an unfenced release": (of_function(release=unfenced_release), "two live owners"),
    "a completion that is fenced": (of_function(complete=fenced_completion), "not done any more"),
    "an expiry that does not count": (of_function(claim=uncounted_expiry), "not counted"),
    "an expiry that nobody sees": (of_function(claim=unseen_expiry), "history"),
    "a replay that forgets what had finished": (
        of_function(replay=forgetful_replay),
        "a success was forgotten",
    ),
    "a release that forgets what is outstanding": (
        of_function(release=release_without_outstanding),
        "owes",
    ),
    "a release that counts what began nothing": (
        of_function(release=release_that_always_counts),
        "not counted",
    ),
    "a release that frees what was kept": (
        of_function(release=release_of_what_was_kept),
        "acknowledged is lost",
    ),
    "a release that buries what the sender may bring again": (
        of_function(release=release_that_buries_what_was_saved),
        "the sender may bring it again",
    ),
    "a keep that asks for no proof": (
        of_function(keep=keep_without_proof),
        "the sender may bring it again",
    ),
    "a keep that puts off the end": (
        of_function(keep=keep_that_puts_off_the_end),
        "acknowledged is lost",
    ),
    "a put that leaves the letter": (
        of_function(enqueue=put_that_leaves_the_letter),
        "waits in the inbox",
    ),
    "a lost claim whose successes are dropped": (
        of_function(extend=extend_that_drops_facts),
        "a success was forgotten",
    ),
    "a discard that leaves the event claimable": (
        of_function(discard=discard_that_forgets),
        "not done any more",
    ),
    "a put that overwrites": (of_function(enqueue=put_that_overwrites), "not counted|forgotten"),
    "a take that ignores a live lease": (of_function(fetch=greedy_take), "two live owners"),
    "a burial that leaves the entry": (
        of_function(bury=bury_beside_the_entry),
        "waits in the inbox",
    ),
    "a dead letter that nobody can do anything about": (
        of_function(replay=no_replay, discard=no_discard),
        "no way out",
    ),
}

WRONG_ROWS = [
    (State.CLAIMED, Step.CLAIM, Answer.GRANTED, "two live owners|not counted"),
    (State.LAST_CHANCE, Step.CLAIM, Answer.GRANTED, "two live owners|not counted"),
    (State.KEPT_CLAIMED, Step.CLAIM, Answer.GRANTED, "two live owners|not counted"),
    (State.KEPT_FREE, Step.CLAIM, Answer.DEAD, "acknowledged is lost"),
    (State.KEPT_FREE, Step.ENQUEUE, Answer.WAITING, "acknowledged is lost"),
    (State.FETCHED, Step.FETCH, Answer.GRANTED, "two live owners|not counted"),
    (State.REPLAYED, Step.REPLAY, Answer.GRANTED, "two live owners|not counted"),
    (State.DONE, Step.CLAIM, Answer.GRANTED, "not done any more"),
    (State.FREE, Step.ENQUEUE, Answer.WAITING, "acknowledged is lost"),
    (State.FREE, Step.CLAIM, Answer.DEAD, "acknowledged is lost"),
]


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(THREE_ATTEMPTS, id="three attempts", marks=pytest.mark.full("15 s", draw=2)),
        pytest.param(TWO_HANDLERS, id="two handlers", marks=pytest.mark.full("3 s", draw=2)),
        pytest.param(THREE_WORKERS, id="three workers", marks=pytest.mark.full("8 s", draw=2)),
        pytest.param(
            TWO_HANDLERS_AND_A_FAULT,
            id="two handlers and a fault",
            marks=pytest.mark.full("15 s", draw=2),
        ),
    ],
)
def test_no_promise_is_broken_in_any_reachable_state(size: Size) -> None:
    walk = Walk(size)
    worlds = explore(walk)
    print(f"{len(worlds)} worlds of {size}")  # noqa: T201 - prints how much was proved
    assert len(worlds) > 5_000
    rows = {(state, step, then.state) for state in LIFE for step, then in LIFE[state].items()}
    nothing_to_do = {row for row in walk.rows if row[1] not in LIFE[row[0]]}
    assert walk.rows - nothing_to_do <= rows
    assert {(row[0], row[2]) for row in nothing_to_do} <= {(state, state) for state in State}
    if size.faults:
        assert walk.rows >= rows


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(name, marks=pytest.mark.full("4 s") if name in FOUND_LATE else ())
        for name in MISTAKES
    ],
)
def test_a_planted_mistake_is_found(mistake: str) -> None:
    steps, broken = MISTAKES[mistake]
    with pytest.raises(Broken, match=broken):
        explore(Walk(THREE_ATTEMPTS, steps))


@pytest.mark.parametrize(("state", "step", "answer", "broken"), WRONG_ROWS)
def test_a_wrong_row_of_the_table_is_found(
    monkeypatch: pytest.MonkeyPatch, state: State, step: Step, answer: Answer, broken: str
) -> None:
    monkeypatch.setitem(LIFE[state], step, Then(answer, state))
    with pytest.raises(Broken, match=broken):
        explore(Walk(THREE_ATTEMPTS))
