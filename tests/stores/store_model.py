"""A small model of the store contract, and a state machine that compares it with a real store."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hookonce.clock import Clock
from hookonce.errors import StoreError
from hookonce.stores.handled import HandledStore, Keeping
from hookonce.stores.protocols import InboxStore, Store
from hookonce.stores.replays import ReplayBatch, ReplayPlan
from hookonce.stores.values import (
    Claimed,
    ClaimResult,
    Dead,
    DeadReason,
    Delivery,
    DeliveryKey,
    Done,
    EnqueueResult,
    InFlight,
    Ownership,
    Stored,
    StoreStats,
    Token,
    Waiting,
)

__all__ = ["RETENTION", "StoreMachine"]

T = TypeVar("T")

RETENTION = timedelta(hours=26)
DELIVERIES = {
    delivery.key: delivery
    for delivery in (
        Delivery("first", "evt_1", "comment.received", 1.0, b"first evt_1"),
        Delivery("second", "evt_1", None, 1.0, b"second evt_1"),
    )
}
NONE: frozenset[str] = frozenset()

keys = st.sampled_from(sorted(DELIVERIES))
leases = st.sampled_from([10.0, 60.0])
names = st.sampled_from("ab")
handlers = st.frozensets(st.sampled_from("abc"), max_size=2)
# How long the sender may still deliver an event whose body is kept; None if it never will.
schedules = st.sampled_from([None, 0.0, 30.0, 6 * 3600.0])
# Use hours: a Redis server also expires deliveries by its own clock, which the test cannot move.
keepings = st.sampled_from([4 * 3600.0, 40 * 3600.0])
begun = st.sampled_from([True, True, False])
# The claim of a call: 1 is the latest claim, and a higher number is an older, stale claim.
ages = st.sampled_from([1, 1, 1, 2, 3])


def about(seconds: float) -> Any:
    """Return an object that equals this time, even if a store has rounded the time."""
    return pytest.approx(seconds, abs=0.002)


@dataclass
class DeadLetterRecord:
    """A dead letter, or a kept body: it becomes a dead letter unless an attempt succeeds."""

    reason: DeadReason
    error: str
    attempts: int
    finished: frozenset[str]
    outstanding: frozenset[str]
    body: bytes
    is_kept: bool = False
    dead_unix: float = -math.inf


@dataclass
class Place:
    """An event's place in the inbox, with the time at which a worker may fetch the event."""

    token: Token
    due: float
    delay: float

    def schedule(self, now: float, delay: float) -> None:
        self.due, self.delay = now + delay, delay


@dataclass
class Event:
    """What a store must know about one event."""

    done_until: float = -math.inf
    owner: Token | None = None
    until: float = -math.inf
    lease: float = 0.0
    attempts: int = 0
    finished: frozenset[str] = NONE
    outstanding: frozenset[str] = NONE
    forgettable_at: float = math.inf
    letter: DeadLetterRecord | None = None
    place: Place | None = None

    def forgotten(self) -> tuple[int, frozenset[str], frozenset[str]]:
        """Return the attempts and handlers of a forgotten event: only a dead letter keeps them."""
        if self.letter is None:
            return (0, NONE, NONE)
        return (self.attempts, self.finished, self.outstanding)

    def note(self, finished: frozenset[str], outstanding: frozenset[str] = NONE) -> None:
        """Add finished and outstanding handlers to the event and to its dead letter."""
        self.finished |= finished
        self.outstanding = (self.outstanding | outstanding) - self.finished
        if self.letter is not None:
            self.letter.finished, self.letter.outstanding = self.finished, self.outstanding

    def keep(self, body: bytes, now: float, dead_unix: float | None, *, renew: bool) -> None:
        """Keep a body, which becomes a dead letter unless an attempt succeeds."""
        if dead_unix is None or dead_unix <= now:
            dead_unix = -math.inf
        if self.place is None and self.letter is None:
            known = (self.attempts, self.finished, self.outstanding)
            self.letter = DeadLetterRecord(
                DeadReason.INTERRUPTED, "", *known, body, is_kept=True, dead_unix=dead_unix
            )
        elif self.letter is not None and self.may_come(now):
            choose = max if renew and dead_unix > now else min
            self.letter.dead_unix = choose(self.letter.dead_unix, dead_unix)

    def may_come(self, now: float) -> bool:
        """Return whether a body is kept and the sender may still deliver the event."""
        return self.letter is not None and self.letter.is_kept and now < self.letter.dead_unix

    def shown(self, now: float) -> DeadLetterRecord | None:
        """Return the dead letter; a kept body counts only after the event's claim has ended."""
        if self.letter is None or (self.letter.is_kept and now < self.until):
            return None
        return self.letter

    def dead_letter(self, now: float) -> DeadLetterRecord | None:
        """Return the dead letter; a kept body counts only after its claim and the last delivery."""
        return None if self.may_come(now) else self.shown(now)


@dataclass
class Kept:
    """The delivery of a handled event.

    Attributes:
        has_expired: whether ``expires`` has passed, so the store may have deleted the delivery.
    """

    finished: frozenset[str]
    handled: float
    expires: float
    has_expired: bool = False


class StoreMachine(RuleBasedStateMachine):
    """Drives a store and the model; a subclass makes the store."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_700_000_000.0
        self.events = {key: Event() for key in DELIVERIES}
        self.claims: dict[DeliveryKey, list[Claimed]] = {key: [] for key in DELIVERIES}
        self.kept: dict[DeliveryKey, Kept] = {}
        self.batches: dict[str, ReplayBatch] = {}
        self.starts: dict[str, float] = {}  # exact, unlike the starts in `batches`
        self.replays: set[Token] = set()
        self.tokens = 0
        self.is_aged = False
        self.folder = TemporaryDirectory(prefix="hookonce-")
        self.runner = asyncio.Runner()
        self.store = self.make_store(Path(self.folder.name), lambda: self.now)
        # Open the store before the first fetch: a fetch does not wait for a shard that is slow.
        self.run(self.store.open())

    def make_store(self, folder: Path, clock: Clock) -> Store:
        raise NotImplementedError

    def teardown(self) -> None:
        self.run(self.store.aclose())
        self.runner.close()
        self.folder.cleanup()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def new_token(self) -> Token:
        self.tokens += 1
        return Token(f"token {self.tokens}")

    def past_claim(self, key: DeliveryKey, age: int) -> Claimed:
        """Return a claim that was granted earlier, or a claim that was never granted."""
        granted = self.claims[key]
        if age <= len(granted):
            return granted[-age]
        return Claimed(key, Token("nobody's"), 1, NONE, 10.0)

    @rule(key=keys, lease=leases)
    def claim(self, key: DeliveryKey, lease: float) -> None:
        token = self.new_token()
        self.claimed(key, token, lease, self.run(self.store.claim(key, token, lease)))

    @rule(key=keys, age=ages)
    def claim_again(self, key: DeliveryKey, age: int) -> None:
        claim = self.past_claim(key, age)
        if claim.token in self.replays:
            result = self.run(self.store.replay(key, claim.token, claim.lease_seconds))
            self.replayed(key, claim.token, claim.lease_seconds, result)
        else:
            result = self.run(self.store.claim(key, claim.token, claim.lease_seconds))
            self.claimed(key, claim.token, claim.lease_seconds, result)

    @rule(key=keys, lease=leases)
    def replay(self, key: DeliveryKey, lease: float) -> None:
        token = self.new_token()
        try:
            result = self.run(self.store.replay(key, token, lease))
        except StoreError:
            assert not self.store.keeps_bodies
            assert self.events[key].letter is not None
            return
        self.replays.add(token)
        self.replayed(key, token, lease, result)

    def replayed(
        self, key: DeliveryKey, token: Token, lease: float, result: ClaimResult | None
    ) -> None:
        event = self.events[key]
        letter = event.letter if event.may_come(self.now) else event.shown(self.now)
        if letter is None:
            assert result is None
        else:
            assert result is not None
            assert self.store.keeps_bodies
            letter.is_kept = event.may_come(self.now)
            self.claimed(key, token, lease, result, is_replay=True)

    def claimed(
        self,
        key: DeliveryKey,
        token: Token,
        lease: float,
        result: ClaimResult,
        *,
        is_replay: bool = False,
    ) -> None:
        """Check the result of a claim against the model, and note a granted claim."""
        event = self.events[key]
        if self.now < event.done_until:
            assert result == Done()
        elif self.now < event.until:
            event.until = min(event.until, self.now + event.lease)
            if event.owner == token:
                known = (event.attempts, event.finished, event.lease, event.outstanding)
                assert result == Claimed(key, token, *known)
            else:
                assert result == InFlight(event.until)
        elif event.dead_letter(self.now) is not None and not is_replay:
            assert result == Dead()
        elif event.place is not None:
            assert isinstance(result, InFlight)
            assert result.until_unix == about(max(event.place.due, self.now))
        else:
            assert isinstance(result, Claimed)
            self.granted(key, token, lease, result)

    def granted(self, key: DeliveryKey, token: Token, lease: float, result: Claimed) -> None:
        """Check a new claim, and note it."""
        event = self.events[key]
        known = [(event.attempts, event.finished, event.outstanding)]
        if event.forgettable_at <= self.now:
            known.append(event.forgotten())
        assert (result.attempt - 1, result.finished, result.outstanding) in known
        assert (result.key, result.token, result.lease_seconds) == (key, token, lease)
        event.owner, event.until, event.lease = token, self.now + lease, lease
        event.attempts, event.finished, event.outstanding = (
            result.attempt,
            result.finished,
            result.outstanding,
        )
        event.forgettable_at = self.now + RETENTION.total_seconds()
        older = [claim for claim in self.claims[key] if claim.token != token]
        self.claims[key] = [*older, result]

    def holds(self, claim: Claimed, ownership: Ownership, finished: frozenset[str] = NONE) -> bool:
        """Check the answer to a call with a claim; return whether the store has made the change."""
        event = self.events[claim.key]
        if event.owner != claim.token:
            assert ownership is Ownership.LOST
            if event.attempts:  # the success counts, although a later claim has the event
                event.note(finished)
        elif ownership is Ownership.LOST:
            # Only a store that has forgotten the attempts may answer LOST to the latest claim.
            assert event.forgettable_at <= self.now
            assert event.until <= self.now
            event.owner = None
            event.attempts, event.finished, event.outstanding = event.forgotten()
            if event.attempts:
                event.note(finished)
        return ownership is Ownership.HELD

    @rule(key=keys, age=ages, finished=handlers, outstanding=handlers)
    def extend(
        self, key: DeliveryKey, age: int, finished: frozenset[str], outstanding: frozenset[str]
    ) -> None:
        claim = self.past_claim(key, age)
        if self.holds(claim, self.run(self.store.extend(claim, finished, outstanding)), finished):
            event = self.events[key]
            event.until = self.now + claim.lease_seconds
            event.note(finished, outstanding)
            if event.place is not None:
                event.place.schedule(self.now, claim.lease_seconds)

    @rule(key=keys, age=ages, finished=handlers, outstanding=handlers, began=begun)
    def release(
        self,
        key: DeliveryKey,
        age: int,
        finished: frozenset[str],
        outstanding: frozenset[str],
        *,
        began: bool,
    ) -> None:
        claim = self.past_claim(key, age)
        step = self.store.release(
            claim, finished, "it failed", outstanding=outstanding, began=began
        )
        if self.holds(claim, self.run(step), finished):
            self.given_back(key, finished, outstanding, 0.0, began=began)

    def given_back(
        self,
        key: DeliveryKey,
        finished: frozenset[str],
        outstanding: frozenset[str],
        after: float,
        *,
        began: bool,
    ) -> None:
        """Note that a call with the latest claim has released the event."""
        event = self.events[key]
        event.note(finished, outstanding)
        event.attempts -= not began
        event.owner, event.until = None, -math.inf
        if event.place is not None:
            event.place.schedule(self.now, after)
        if event.letter is not None and event.letter.is_kept:
            event.letter.reason, event.letter.error = DeadReason.EXHAUSTED, "it failed"
            event.letter.attempts = event.attempts
            event.letter.is_kept = event.may_come(self.now)

    @rule(key=keys, age=ages)
    def complete(self, key: DeliveryKey, age: int) -> None:
        claim = self.past_claim(key, age)
        self.run(self.store.complete(claim))
        self.events[key] = Event(done_until=self.now + RETENTION.total_seconds())

    @rule(key=keys, age=ages, finished=handlers, seconds=keepings)
    def complete_and_keep(
        self, key: DeliveryKey, age: int, finished: frozenset[str], seconds: float
    ) -> None:
        assert isinstance(self.store, HandledStore)
        claim, given = self.past_claim(key, age), DELIVERIES[key]
        self.run(self.store.complete_and_keep(claim, given, finished, Keeping(seconds)))
        self.events[key] = Event(done_until=self.now + RETENTION.total_seconds())
        before = self.kept.get(key)
        open_ = [one for one in self.batches.values() if one.finished_unix is None]
        starts = [self.starts[one.handler] for one in open_ if one.endpoint == given.endpoint]
        after = Kept(finished, max([self.now, *starts]), self.now + seconds)
        if before is None or before.expires <= self.now:
            self.kept[key] = after
        elif before.has_expired:  # the clock was set back: the store may have deleted the record
            found = self.run(self.store.handled_event(key))
            assert found is not None
            is_new = found.handled_unix == about(after.handled)
            assert is_new or found.handled_unix == about(before.handled)
            if is_new:
                self.kept[key] = after

    @rule(handler=names, generation=st.integers(1, 4), late=st.booleans())
    def begin_replay_batch(self, handler: str, generation: int, *, late: bool) -> None:
        assert isinstance(self.store, HandledStore)
        plan, last = ReplayPlan(late=late), self.batches.get(handler)
        if last is None or last.generation < generation:
            last = ReplayBatch("first", handler, generation, plan, about(self.now))
            self.batches[handler], self.starts[handler] = last, self.now
        begun = self.store.begin_replay_batch("first", handler, generation, plan)
        assert self.run(begun) == last

    @rule(handler=names, generation=st.integers(1, 4))
    def end_replay_batch(self, handler: str, generation: int) -> None:
        assert isinstance(self.store, HandledStore)
        batch = ReplayBatch("first", handler, generation, ReplayPlan(), self.now)
        self.run(self.store.end_replay_batch(batch))
        last = self.batches.get(handler)
        if last and last.generation == generation and last.finished_unix is None:
            self.batches[handler] = replace(last, finished_unix=about(self.now))

    @precondition(lambda self: self.store.keeps_bodies)
    @rule(key=keys, age=ages, within=schedules, renew=st.booleans())
    def keep(self, key: DeliveryKey, age: int, within: float | None, *, renew: bool) -> None:
        claim = self.past_claim(key, age)
        delivery, dead_unix = DELIVERIES[key], None if within is None else self.now + within
        kept = self.store.keep(claim, delivery, dead_unix=dead_unix, renew=renew)
        if self.holds(claim, self.run(kept)):
            self.events[key].keep(delivery.body, self.now, dead_unix, renew=renew)

    @precondition(lambda self: self.store.keeps_bodies)
    @rule(key=keys, within=schedules, renew=st.booleans())
    def keep_in_flight(self, key: DeliveryKey, within: float | None, *, renew: bool) -> None:
        event, delivery = self.events[key], DELIVERIES[key]
        if event.forgettable_at <= self.now:
            return  # the store may have forgotten the event's attempts
        dead_unix = None if within is None else self.now + within
        self.run(self.store.keep_in_flight(delivery, dead_unix=dead_unix, renew=renew))
        if event.done_until <= self.now:
            event.keep(delivery.body, self.now, dead_unix, renew=renew)

    @rule(
        key=keys,
        age=ages,
        reason=st.sampled_from([one for one in DeadReason if one is not DeadReason.DAMAGED]),
        finished=handlers,
        outstanding=handlers,
        delivery=st.booleans(),
    )
    def bury(
        self,
        key: DeliveryKey,
        age: int,
        reason: DeadReason,
        finished: frozenset[str],
        outstanding: frozenset[str],
        *,
        delivery: bool,
    ) -> None:
        claim, event = self.past_claim(key, age), self.events[key]
        given = DELIVERIES[key] if delivery else None
        error = f"{reason} in attempt {claim.attempt}"
        try:
            ownership = self.run(
                self.store.bury(
                    claim,
                    reason,
                    error=error,
                    finished=finished,
                    outstanding=outstanding,
                    delivery=given,
                )
            )
        except StoreError:
            assert self.store.keeps_bodies
            assert given is None
            assert event.letter is None
            assert event.place is None
            assert event.owner == claim.token
            return
        if self.holds(claim, ownership, finished):
            assert given or event.letter or event.place or not self.store.keeps_bodies
            event.place = None
            event.owner, event.until = None, -math.inf
            event.note(finished, outstanding)
            body = DELIVERIES[key].body if self.store.keeps_bodies else b""
            event.letter = DeadLetterRecord(
                reason, error, event.attempts, event.finished, event.outstanding, body
            )

    @rule(key=keys)
    def discard(self, key: DeliveryKey) -> None:
        is_shown = self.events[key].shown(self.now) is not None
        assert self.run(self.store.discard(key)) is is_shown
        if is_shown:
            self.events[key] = Event(done_until=self.now + RETENTION.total_seconds())

    @property
    def inbox(self) -> InboxStore | None:
        return self.store if isinstance(self.store, InboxStore) else None

    @precondition(lambda self: self.inbox)
    @rule(key=keys)
    def enqueue(self, key: DeliveryKey) -> None:
        assert self.inbox is not None
        token = self.new_token()
        result = self.run(self.inbox.enqueue(DELIVERIES[key], token))
        event = self.events[key]
        assert result == self.expected_of_put(event)
        if result == Stored():
            delay = max(0.0, event.until - self.now)
            event.place, event.letter = Place(token, self.now + delay, delay), None

    def expected_of_put(self, event: Event) -> EnqueueResult:
        if self.now < event.done_until:
            return Done()
        if self.now < event.until:  # after the clock was set back, a call shortens the lease
            event.until = min(event.until, self.now + event.lease)
        if event.letter is not None and not event.may_come(self.now):
            return Dead() if event.dead_letter(self.now) else Waiting()
        return Stored() if event.place is None else Waiting()

    @precondition(lambda self: self.inbox)
    @rule(key=keys)
    def put_again(self, key: DeliveryKey) -> None:
        assert self.inbox is not None
        place = self.events[key].place
        if place is not None:
            assert self.run(self.inbox.enqueue(DELIVERIES[key], place.token)) == Stored()

    @precondition(lambda self: self.inbox)
    @rule(key=keys, lease=leases)
    def fetch(self, key: DeliveryKey, lease: float) -> None:
        assert self.inbox is not None
        token, event, delivery = self.new_token(), self.events[key], DELIVERIES[key]
        batch = self.run(
            self.inbox.fetch(5, lease, endpoint=delivery.endpoint, worker="worker", token=token)
        )
        place = event.place
        if place is None:
            assert batch.fetched == ()
            assert batch.next_due_seconds is None
        elif self.now < place.due or self.now < event.until:
            # After the clock was set back, a lease that had ended is valid again.
            if place.due <= self.now:
                place.schedule(self.now, event.until - self.now)
            assert batch.fetched == ()
            assert batch.next_due_seconds == about(place.due - self.now)
        else:
            [taken] = batch.fetched
            assert taken.delivery == delivery
            assert batch.next_due_seconds == about(lease)
            self.granted(key, token, lease, taken.claim)
            place.schedule(self.now, lease)

    @precondition(lambda self: self.inbox)
    @rule(
        key=keys,
        age=ages,
        finished=handlers,
        outstanding=handlers,
        after=st.sampled_from([0.0, 15.0, 3600.0]),
        began=begun,
    )
    def retry(
        self,
        key: DeliveryKey,
        age: int,
        finished: frozenset[str],
        outstanding: frozenset[str],
        after: float,
        *,
        began: bool,
    ) -> None:
        assert self.inbox is not None
        claim = self.past_claim(key, age)
        step = self.inbox.retry(
            claim, after, finished, "it failed", outstanding=outstanding, began=began
        )
        if self.holds(claim, self.run(step), finished):
            self.given_back(key, finished, outstanding, after, began=began)

    @precondition(lambda self: self.inbox)
    @rule(key=keys)
    def make_due(self, key: DeliveryKey) -> None:
        assert self.inbox is not None
        event = self.events[key]
        waits = event.place is not None and event.until <= self.now
        assert self.run(self.inbox.make_due(key)) is waits
        if waits and event.place is not None:
            event.place.due, event.place.delay = min(event.place.due, self.now), 0.0

    @rule(seconds=st.sampled_from([1.0, 10.0, 60.0, 5 * 3600.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def age(self) -> None:
        self.is_aged = True
        self.now += RETENTION.total_seconds()

    @precondition(lambda self: not self.is_aged)  # `age` let the store delete records
    @rule(seconds=st.sampled_from([5.0, 5 * 3600.0]))
    def set_the_clock_back(self, seconds: float) -> None:
        # A store shortens leases and pauses only at its next call, so make a call now.
        self.look_at_the_inbox()
        self.now -= seconds
        self.look_at_the_inbox()
        for key, event in self.events.items():
            if self.now < event.until:  # the call has cut the lease to its full length
                token = self.new_token()
                self.claimed(key, token, 1.0, self.run(self.store.claim(key, token, 1.0)))

    def look_at_the_inbox(self) -> None:
        if self.inbox is None:
            return
        for key, event in self.events.items():
            endpoint, token = DELIVERIES[key].endpoint, self.new_token()
            self.run(self.inbox.fetch(0, 1.0, endpoint=endpoint, worker="worker", token=token))
            event.until = min(event.until, self.now + event.lease)
            if event.place is not None:
                event.place.due = min(event.place.due, self.now + event.place.delay)

    @rule(reopen=st.booleans())
    def prune(self, *, reopen: bool) -> None:
        self.run(self.store.prune())
        if reopen:
            self.run(self.store.aclose())
            self.run(self.store.open())

    @invariant()
    def shows_the_last_batches(self) -> None:
        assert isinstance(self.store, HandledStore)
        found = self.run(self.store.replay_batches("first"))
        assert {batch.handler: batch for batch in found} == self.batches
        assert self.run(self.store.replay_batches("second")) == []

    @invariant()
    def shows_what_is_kept(self) -> None:
        assert isinstance(self.store, HandledStore)
        for kept in self.kept.values():
            kept.has_expired |= kept.expires <= self.now
        listed = {event.delivery.key: event for event in self.run(self.store.handled_events())}
        live = {key: kept for key, kept in self.kept.items() if kept.expires > self.now}
        assert listed.keys() <= live.keys()
        assert {key for key, kept in live.items() if not kept.has_expired} <= listed.keys()
        for key, event in listed.items():
            assert event.finished == live[key].finished
            assert event.handled_unix == about(live[key].handled)
            found = self.run(self.store.handled_event(key))
            assert found is not None
            assert found.delivery == DELIVERIES[key]
        for key in self.kept.keys() - live.keys():
            assert self.run(self.store.handled_event(key)) is None

    @invariant()
    def shows_what_is_dead_and_in_flight(self) -> None:
        expected = {
            key: letter
            for key, event in self.events.items()
            if (letter := event.shown(self.now)) is not None
        }
        dead = [key for key in expected if not self.events[key].may_come(self.now)]
        in_flight = sum(self.now < event.until for event in self.events.values())
        waiting = {key: event for key, event in self.events.items() if event.place}
        stats = self.run(self.store.stats())
        ages = [self.now - DELIVERIES[key].received_unix for key in waiting]
        assert replace(stats, workers=0) == StoreStats(
            in_flight,
            len(dead),
            depth=len(waiting),
            bytes=sum(len(DELIVERIES[key].body) for key in waiting),
            oldest_age_seconds=about(max(ages)) if ages else None,
            kept=len(expected) - len(dead),
        )
        if self.inbox is not None:
            entries = self.run(self.inbox.entries())
            assert sorted(entry.delivery.key for entry in entries) == sorted(waiting)
            for entry in entries:
                event = waiting[entry.delivery.key]
                assert event.place is not None
                assert entry.due_unix == about(event.place.due)
                assert entry.in_flight is (self.now < event.until)
        listed = self.run(self.store.dead_letters())
        assert sorted(letter.delivery.key for letter in listed) == sorted(expected)
        for key, letter in expected.items():
            found = self.run(self.store.dead_letter(key))
            assert found is not None
            assert (found.reason, found.error) == (letter.reason, letter.error)
            assert found.delivery.body == letter.body
            assert found.is_kept is (key not in dead)
            # A store may count a running replay at once, or only when the replay is settled.
            event = self.events[key]
            assert letter.attempts <= found.attempts <= max(letter.attempts, event.attempts)
            assert (found.finished, found.outstanding) == (letter.finished, letter.outstanding)
