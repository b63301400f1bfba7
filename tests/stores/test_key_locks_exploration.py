"""Explores every way in which two events can use one key lock, and checks each state.

A key lock lets one call of a handler at a time run for a key. Its watermark is the newest event
that has succeeded: an older event comes too late.

A world is a state of the store, of all processes and of all events. From each world, the test takes
every step that can come next. A worker fetches an event and finds the key lock free or busy, or
finds that the event comes too late. An attempt succeeds, fails, or extends its lease. A worker
gives an event back, notes it as waiting, or makes the next event due. A process crashes, a reply is
lost, a lease ends, a clock is set back. One process or all processes cannot reach the store, also
for longer than a lease. Attempts then go on, and their watermarks wait. The functions of
``hookonce.stores.key_locks`` make the steps of the key lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import pytest

from hookonce.stores import key_locks
from hookonce.stores.key_locks import FREE, KeyLockRecord
from hookonce.stores.life import Moment
from hookonce.stores.values import (
    Acquired,
    Busy,
    DeliveryKey,
    Stale,
    Token,
    Watermark,
    delivery_key,
)

NOW, LEASE = 100.0, 1.0
pytestmark = pytest.mark.sample(2, of="file")

MOMENT = Moment(NOW, NOW, 1_000.0)

KEYS = tuple(delivery_key("default", f"evt_{n}") for n in range(3))
MARKS = tuple(Watermark(n, f"evt_{n}") for n in range(3))
GENERATIONS = tuple(Watermark(0, "evt_0", n) for n in range(3))
"""The watermarks of an event and of its replays: a replay's number makes it newer."""

Stage: TypeAlias = Literal["due", "held", "waits", "inside", "ended", "done"]


class Event(NamedTuple):
    """One event; a later place in the list means a newer event.

    Attributes:
        stage: due; held by a worker that found the key lock busy; waiting in the inbox; inside an
            attempt; ended with a success that the key lock does not know yet; or done.
        token: the token of its attempt.
        lease: whether the attempt has a lease by its own clock.

    """

    stage: Stage = "due"
    token: Token | None = None
    lease: bool = False


class Hand(NamedTuple):
    """A worker's next step: note an event as waiting, release the lock, or make an event due."""

    does: Literal["note", "release", "call"]
    event: int
    token: Token | None = None


class World(NamedTuple):
    """The state of the store, of all processes and of all events.

    Attributes:
        passage: the store's record of the key lock.
        events: the oldest first.
        hands: the next steps of the workers.
        value: the event whose handler has written last.
        told: the newest event whose success the key lock knows.
        faults_left: how many crashes, lost replies and set-back clocks may still happen.
        is_calm: whether no fault has happened and no lease has ended so far.
        is_fair: whether each handler had its lease when it wrote, and until the key lock knew of
            the success. In one process, the first condition is enough.
        away: for each process, whether it cannot reach the store.
        unsent: for each process, the newest event whose watermark it has not sent; -1 for none.
        outages_left: how often the store may still go away.

    """

    passage: KeyLockRecord
    events: tuple[Event, ...]
    hands: frozenset[Hand]
    value: int
    told: int
    faults_left: int
    is_calm: bool
    is_fair: bool
    away: tuple[bool, ...] = (False,)
    unsent: tuple[int, ...] = (-1,)
    outages_left: int = 0


class Broken(Exception):  # noqa: N818 - a finding, not an error of the program
    """A promise was not kept."""


@dataclass(frozen=True)
class Walk:
    """The steps from one world to the next; a test plants a mistake by replacing a step.

    Attributes:
        processes: the number of processes; they get the events in turn.
        marks: the watermarks of the events, oldest first.
        late: the events that an operator lets pass although a newer event has succeeded.

    """

    events: int = 2
    faults: int = 0
    outages: int = 0
    processes: int = 1
    acquire: Callable[..., Any] = key_locks.acquire
    release: Callable[..., Any] = key_locks.release
    leaves_when_late: bool = True
    notes: bool = True
    falls_back: bool = True
    sends_before_acquiring: bool = True
    sends_before_recording: bool = True
    marks: tuple[Watermark, ...] = MARKS
    late: frozenset[int] = frozenset()

    def asked(self, n: int) -> Watermark | None:
        """Return the watermark in a request for the lock; None if the event may be late."""
        return None if n in self.late else self.marks[n]

    def first_world(self) -> World:
        events, one = (Event(),) * self.events, self.processes
        world = World(FREE, events, frozenset(), -1, -1, self.faults, True, True)
        return world._replace(away=(False,) * one, unsent=(-1,) * one, outages_left=self.outages)

    def process(self, n: int) -> int:
        """Return the process that handles an event."""
        return n % self.processes

    def next_worlds(self, world: World) -> Iterator[World]:
        yield from self.outages_of(world)
        for n, event in enumerate(world.events):
            if world.away[self.process(n)]:
                yield from self.cut_off(world, n, event)
                continue
            match event.stage:
                case "due":
                    yield from self.fetch(world, n)
                case "held" if not any(hand.event == n for hand in world.hands):
                    given = _with(world, n, Event("waits"))
                    token = _new_token(given, n)
                    yield _doing(given, Hand("note", n, token)) if self.notes else given
                case "inside":
                    yield from self.runs(world, n, event)
                case "ended":
                    for left in self.left(world, n, event.token):
                        yield _with(left, n, Event("done"))
                case _:
                    pass
        for process in range(self.processes if world.faults_left else 0):
            yield from self.ends(world, process)
        for hand in world.hands:
            rest = world._replace(hands=world.hands - {hand})
            if world.away[self.process(hand.event)]:
                yield rest  # the step is lost; the event still becomes due when a lease ends
                continue
            yield from self.does(rest, hand)
            if world.faults_left:
                yield _unlucky(rest)
        yield self.later(world)
        if world.faults_left and world.passage.until > NOW:
            longer = world.passage._replace(until=world.passage.until + LEASE)
            yield _unlucky(world._replace(passage=longer))

    def outages_of(self, world: World) -> Iterator[World]:
        """Yield the states in which some processes lose the store, or reach it again."""
        if any(world.away):
            yield world._replace(away=(False,) * self.processes)
        elif world.outages_left:
            every = range(self.processes)
            ways = {(True,) * self.processes, *(tuple(p == one for p in every) for one in every)}
            for away in ways:
                left = world.outages_left - 1
                yield world._replace(away=away, outages_left=left, is_calm=False)

    def cut_off(self, world: World, n: int, event: Event) -> Iterator[World]:
        """Yield the next states of an event whose process cannot reach the store."""
        if event.stage == "inside":
            yield self.succeeds(world, n, event)
            yield _with(world, n, Event("waits"))  # the handler fails, and the lease ends
        elif event.stage == "held":
            yield _with(world, n, Event("waits"))
        elif event.stage == "ended" and not self.sends_before_recording:
            yield _with(
                world, n, Event("done")
            )  # a planted mistake: the event is done before its watermark is sent

    def ends(self, world: World, process: int) -> Iterator[World]:
        """Yield the states in which a process has crashed, or was closed and opened again."""
        ended = world
        for n in range(process, len(world.events), self.processes):
            if world.events[n].stage in {"held", "inside", "ended"}:
                ended = _with(ended, n, Event("waits"))
        if ended is not world:
            yield self.forgets(_unlucky(ended), process)
            # A process that opens its store again still knows its unsent watermarks.
            if world.unsent[process] >= 0:
                is_fair = world.is_fair and self.processes == 1
                yield _unlucky(ended)._replace(is_fair=is_fair)

    def forgets(self, world: World, process: int) -> World:
        """Return the state in which a process has no unsent watermark."""
        unsent = tuple(-1 if p == process else one for p, one in enumerate(world.unsent))
        return world._replace(unsent=unsent)

    def succeeds(self, world: World, n: int, event: Event) -> World:
        """Return the state after a success; the process keeps the watermark until it sends it."""
        process = self.process(n)
        unsent = tuple(max(n, one) if p == process else one for p, one in enumerate(world.unsent))
        is_fair = world.is_fair and event.lease
        written = world._replace(value=n, is_fair=is_fair, unsent=unsent)
        return _with(written, n, event._replace(stage="ended"))

    def sent(self, world: World, n: int) -> World:
        """Return the state after the event's process has sent its unsent watermark."""
        if world.unsent[self.process(n)] < 0 or not self.sends_before_acquiring:
            return world
        return self.reached(world, n, _new_token(world, n), None)

    def fetch(self, world: World, n: int) -> Iterator[World]:
        known = world.unsent[self.process(n)]
        world = self.sent(world, n)
        token = _new_token(world, n)
        result, passage = self.acquire(world.passage, MOMENT, token, LEASE, watermark=self.asked(n))
        asked = world._replace(passage=passage)
        if world.faults_left:  # the reply is lost, and the process ends before it repeats the call
            yield _unlucky(_with(asked, n, Event("waits")))
        match result:
            case Acquired() if n in self.late:
                yield _with(asked, n, Event("inside", token, lease=True))
            case Acquired():
                if n < known:
                    raise Broken("an event passed where its process knew a newer success")
                newest = self.marks[world.told] if world.told >= 0 else Watermark(-1, "")
                if self.marks[n] <= newest:
                    raise Broken("an event passed that had come too late")
                yield _with(asked, n, Event("inside", token, lease=True))
            case Stale():
                if n > world.told:
                    raise Broken("an event was kept out that was the newest")
                done = _with(asked, n, Event("done"))
                yield _doing(done, Hand("release", n)) if self.leaves_when_late else done
            case Busy():
                yield _with(asked, n, Event("held", token))

    def runs(self, world: World, n: int, event: Event) -> Iterator[World]:
        yield self.succeeds(world, n, event)
        yield from self.left(_with(world, n, Event("due")), n, event.token)  # the handler fails
        world = self.sent(world, n)
        again, passage = self.acquire(
            world.passage, MOMENT, event.token, LEASE, watermark=self.asked(n)
        )
        extended = event._replace(lease=again == Acquired())
        yield _with(world._replace(passage=passage), n, extended)

    def left(self, world: World, n: int, token: Token | None) -> Iterator[World]:
        """Yield the states after the release of a lock; in one of them, the reply is lost."""
        reached = self.reached(world, n, token, KEYS[n])
        if world.faults_left:
            lost = reached._replace(hands=world.hands, unsent=world.unsent)
            yield _doing(_unlucky(lost), Hand("release", n, token))
        yield reached

    def reached(
        self, world: World, n: int, token: Token | None, event: DeliveryKey | None
    ) -> World:
        """Return the state after a release that sends the unsent watermark of its process."""
        newest = world.unsent[self.process(n)]
        watermark = self.marks[newest] if newest >= 0 else None
        called, passage = self.release(
            world.passage, MOMENT, token, watermark=watermark, event=event
        )
        in_time = newest <= world.told or world.events[newest].lease or self.processes == 1
        is_fair = world.is_fair and in_time
        reached = world._replace(passage=passage, told=max(world.told, newest), is_fair=is_fair)
        if called is not None:
            reached = _doing(reached, Hand("call", KEYS.index(called)))
        return self.forgets(reached, self.process(n))

    def does(self, world: World, hand: Hand) -> Iterator[World]:
        match hand.does:
            case "release":
                yield from self.left(world, hand.event, hand.token)
            case "call":
                waits = world.events[hand.event].stage == "waits"
                if waits:
                    yield _with(world, hand.event, Event("due"))
                else:
                    yield _doing(world, Hand("release", hand.event))
            case "note":
                key, watermark = KEYS[hand.event], self.asked(hand.event)
                world = self.sent(world, hand.event)
                result, passage = self.acquire(
                    world.passage, MOMENT, hand.token, LEASE, watermark=watermark, waiting=key
                )
                reached = world._replace(passage=passage)
                if not isinstance(result, Busy):  # the lock was released in the meantime
                    reached = _doing(reached, Hand("release", hand.event, hand.token))
                    reached = _doing(reached, Hand("call", hand.event))
                yield reached

    def later(self, world: World) -> World:
        """Return the state one lease later, when every waiting event has become due."""
        passage = world.passage._replace(until=max(NOW, world.passage.until - LEASE))
        if passage.until <= NOW and passage.token is None and passage.watermark is None:
            passage = FREE
        events = tuple(
            Event("due")
            if event.stage == "waits" and self.falls_back
            else event._replace(lease=False)
            for event in world.events
        )
        return world._replace(passage=passage, events=events, is_calm=False)

    def check(self, before: World, world: World) -> None:
        """Raise if a promise is broken."""
        if sum(event.lease for event in world.events) > 1:
            raise Broken("two are inside")
        marks = [one.passage.watermark or Watermark(-1, "") for one in (before, world)]
        if marks[1] < marks[0]:
            raise Broken("the watermark went back")
        done = (n for n, event in enumerate(world.events) if event.stage == "done")
        if max(done, default=-1) > world.told:
            raise Broken("a success was recorded before its watermark")
        if world.hands:
            return
        stages = {event.stage for event in world.events}
        is_orderly = world.is_fair and not self.late
        if stages == {"done"} and is_orderly and world.value < world.told:
            raise Broken("the newest was overwritten by an older one")
        if world.is_calm and "waits" in stages and stages <= {"waits", "done"}:
            raise Broken("nobody has woken a waiting event")


def _with(world: World, n: int, event: Event) -> World:
    return world._replace(events=(*world.events[:n], event, *world.events[n + 1 :]))


def _doing(world: World, hand: Hand) -> World:
    return world._replace(hands=world.hands | {hand})


def _unlucky(world: World) -> World:
    return world._replace(faults_left=world.faults_left - 1, is_calm=False)


def _new_token(world: World, n: int) -> Token:
    """Return the first token that is not in use; a small set of tokens makes few states."""
    used = {world.passage.token, *(event.token for event in world.events)}
    used |= {hand.token for hand in world.hands}
    return next(token for count in range(99) if (token := Token(f"{n}.{count}")) not in used)


def told_apart(world: World) -> World:
    """Return the state without parts that no longer matter, so that equal states compare equal."""
    passage = world.passage
    if passage.until <= NOW:
        passage = passage._replace(token=None, until=0.0, lease=0.0, waiting=())
    hands = {
        hand._replace(token=None) if hand.does != "note" and hand.token != passage.token else hand
        for hand in world.hands
    }
    events = [
        event._replace(token=None) if event.stage == "held" else event for event in world.events
    ]
    return world._replace(passage=passage, events=tuple(events), hands=frozenset(hands))


def explore(walk: Walk, most: int | None = None) -> int:
    """Return the number of states, or raise Broken with the steps that lead to a broken promise.

    Args:
        walk: the steps.
        most: stop after about this many worlds, those with the fewest steps from the first world.
            Then the walk cannot find an event that waits for ever.

    """
    first = walk.first_world()
    numbers, before = {first: 0}, [set[int]()]
    ways_out: deque[int] = deque()
    waiting = deque(numbers)
    while waiting:
        world = waiting.popleft()
        number = numbers[world]
        if {event.stage for event in world.events} == {"done"}:
            ways_out.append(number)
        for after in walk.next_worlds(world):
            try:
                walk.check(world, after)
            except Broken as error:
                error.add_note(f"{world}\n{after}")
                raise
            told = told_apart(after)
            if told not in numbers:
                numbers[told] = len(numbers)
                before.append(set())
                waiting.append(told)
            before[numbers[told]].add(number)
        if most is not None and len(numbers) >= most:
            return len(numbers)
    seen = set(ways_out)
    while ways_out:
        for number in before[ways_out.popleft()] - seen:
            seen.add(number)
            ways_out.append(number)
    if len(seen) < len(numbers):
        stuck = next(world for world, number in numbers.items() if number not in seen)
        raise Broken(f"somebody waits for ever in {stuck}")
    return len(numbers)


@pytest.mark.parametrize(
    ("events", "faults", "outages", "processes", "most"),
    [
        pytest.param(2, 0, 0, 2, None, marks=pytest.mark.costs("3 s")),
        pytest.param(2, 0, 1, 1, 15_000, marks=pytest.mark.costs("2 s")),
        pytest.param(2, 0, 1, 1, None, marks=pytest.mark.full("10 s", draw=1)),
        pytest.param(2, 0, 1, 2, None, marks=pytest.mark.full("17 s", draw=1)),
        pytest.param(2, 1, 0, 2, None, marks=pytest.mark.full("20 s", draw=1)),
        pytest.param(2, 1, 0, 1, None, marks=pytest.mark.full("20 s", draw=1)),
    ],
)
def test_no_promise_is_broken_in_any_reachable_state(
    events: int, faults: int, outages: int, processes: int, most: int | None
) -> None:
    worlds = explore(Walk(events, faults, outages, processes), most)
    print(f"{worlds} worlds of {events} events, {faults} faults, {outages} outages")  # noqa: T201 - prints what was proved
    assert worlds > 1_000


@pytest.mark.costs("3 s")
def test_nothing_promised_is_broken_when_an_event_is_repeated_on_purpose() -> None:
    """A replay has a higher generation than the event, so it counts as a newer event."""
    assert explore(Walk(events=2, processes=2, marks=GENERATIONS)) > 1_000


@pytest.mark.parametrize(
    ("late", "faults", "outages", "most"),
    [
        pytest.param({0}, 0, 0, None, marks=pytest.mark.costs("3 s")),
        pytest.param({0, 1}, 0, 0, None, marks=pytest.mark.costs("3 s")),
        pytest.param({0}, 1, 0, 30_000, marks=pytest.mark.full("5 s")),
        pytest.param({0}, 0, 1, 30_000, marks=pytest.mark.full("5 s")),
    ],
)
def test_an_event_that_may_be_late_breaks_no_other_promise(
    late: set[int], faults: int, outages: int, most: int | None
) -> None:
    """A late event waits for its key lock, and never lowers the watermark."""
    walk = Walk(2, faults, outages, processes=2, late=frozenset(late))
    assert explore(walk, most) > 1_000


def acquire_a_busy_key_lock(passage: KeyLockRecord, *given: Any, **named: Any) -> Any:
    return key_locks.acquire(passage._replace(token=None), *given, **named)


def acquire_without_a_watermark(*given: Any, **named: Any) -> Any:
    return key_locks.acquire(*given, **(named | {"watermark": None}))


def acquire_that_raises_the_watermark(*given: Any, **named: Any) -> Any:
    result, passage = key_locks.acquire(*given, **named)
    watermark = named["watermark"]
    is_higher = result == Acquired() and (
        passage.watermark is None or passage.watermark < watermark
    )
    return result, passage._replace(
        watermark=watermark, watermark_until=1_000.0
    ) if is_higher else passage


def acquire_of_one_generation(passage: KeyLockRecord, *given: Any, **named: Any) -> Any:
    watermark = named["watermark"]._replace(generation=0)
    return key_locks.acquire(passage, *given, **(named | {"watermark": watermark}))


def release_by_anybody(passage: KeyLockRecord, *given: Any, **named: Any) -> Any:
    return key_locks.release(passage._replace(token=None), *given, **named)


def release_that_sets_the_last_watermark(passage: KeyLockRecord, *given: Any, **named: Any) -> Any:
    watermark = None if named["watermark"] else passage.watermark
    return key_locks.release(passage._replace(watermark=watermark), *given, **named)


def release_that_wakes_nobody(
    *given: Any, **named: Any
) -> tuple[DeliveryKey | None, KeyLockRecord]:
    return None, key_locks.release(*given, **named)[1]


USUAL = Walk(events=2, faults=0)
MISTAKES = {
    "a busy key lock that is acquired": (
        replace(USUAL, acquire=acquire_a_busy_key_lock),
        "two are inside",
    ),
    "an event that is too late and passes": (
        replace(USUAL, acquire=acquire_without_a_watermark),
        "had come too late",
    ),
    "an event that is never repeated on purpose": (
        replace(USUAL, acquire=acquire_of_one_generation, marks=GENERATIONS),
        "kept out that was the newest",
    ),
    "a watermark that is raised before the success": (
        replace(USUAL, acquire=acquire_that_raises_the_watermark),
        "kept out that was the newest|overwritten",
    ),
    "a watermark that a late event lowers": (
        replace(
            USUAL, release=release_that_sets_the_last_watermark, events=3, late=frozenset({0, 1})
        ),
        "the watermark went back",
    ),
    "an event that is not due by itself": (replace(USUAL, falls_back=False), "waits for ever"),
    "a key lock that anybody releases": (
        replace(USUAL, release=release_by_anybody),
        "two are inside",
    ),
    "a watermark that is lowered": (
        replace(USUAL, release=release_that_sets_the_last_watermark),
        "the watermark went back",
    ),
    "a release that wakes nobody": (
        replace(USUAL, release=release_that_wakes_nobody),
        "nobody has woken",
    ),
    "an event that is not noted": (replace(USUAL, notes=False), "nobody has woken"),
    "an event that is acquired before a watermark is sent": (
        replace(USUAL, outages=1, sends_before_acquiring=False),
        "its process knew a newer success",
    ),
    "a success that is recorded before its watermark": (
        replace(USUAL, outages=1, sends_before_recording=False),
        "recorded before its watermark",
    ),
    "a late event that wakes nobody": (
        replace(USUAL, events=3, leaves_when_late=False),
        "nobody has woken",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(mistake: str) -> None:
    walk, broken = MISTAKES[mistake]
    with pytest.raises(Broken, match=broken):
        explore(walk)
