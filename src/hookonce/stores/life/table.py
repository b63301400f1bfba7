"""The table of an event's life: the states, and the answer and next state of each step.

    FREE           new, or released: the next delivery claims it
    CLAIMED        an attempt runs
    WAITING        in the inbox
    FETCHED        in the inbox, and an attempt runs
    KEPT_FREE      like FREE; the delivery is kept in case the sender does not send it again
    KEPT_CLAIMED   like CLAIMED; the delivery is kept in case the sender does not send it again
    LAST_CHANCE    like KEPT_CLAIMED, but the sender will not send the event again
    INTERRUPTED    a dead letter: the last chance has ended without a result
    DEAD           a dead letter
    REPLAYED       a dead letter, and an attempt runs
    DONE           handled, or discarded by an operator

A delivery is kept with the time at which it becomes a dead letter. If the signature proves that the
sender will not send the event again, that time is now, and the state is LAST_CHANCE. Otherwise that
time is the end of the sender's retry schedule. Until then the event is KEPT_FREE or KEPT_CLAIMED,
and can be claimed as usual. At that time KEPT_FREE becomes INTERRUPTED, and KEPT_CLAIMED becomes
LAST_CHANCE. If a delivery is kept with several times, the earliest counts. If the sender does not
publish its number of attempts, the latest counts (``renew``), so that the schedule is counted from
the last attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple


class State(Enum):
    """The state of an event at one moment."""

    FREE = "free"
    CLAIMED = "claimed"
    WAITING = "waiting"
    FETCHED = "fetched"
    KEPT_FREE = "kept_free"
    KEPT_CLAIMED = "kept_claimed"
    LAST_CHANCE = "last_chance"
    INTERRUPTED = "interrupted"
    DEAD = "dead"
    REPLAYED = "replayed"
    DONE = "done"

    # Use the identity's hash for speed: Enum would hash the member's name at every look-up.
    __hash__: Callable[..., int] = object.__hash__


class Step(Enum):
    """A step in the life of an event. The last five steps need the event's claim."""

    CLAIM = "claim"
    ENQUEUE = "enqueue"
    FETCH = "fetch"
    REPLAY = "replay"
    DISCARD = "discard"
    KEEP_IN_FLIGHT = "keep_in_flight"
    """A call of ``keep_in_flight`` for an event that the sender will not send again."""
    KEEP_IN_FLIGHT_UNTIL = "keep_in_flight_until"
    """A call of ``keep_in_flight`` for an event that the sender may send again."""
    COMPLETE = "complete"
    EXPIRE = "expire"
    """The lease runs out."""
    END = "end"
    """The sender's retry schedule ends, and a kept delivery becomes a dead letter."""
    EXTEND = "extend"
    RELEASE = "release"
    """A call of ``release`` or, for an event of the inbox, of ``retry``."""
    KEEP = "keep"
    """A call of ``keep`` for an event that the sender will not send again."""
    KEEP_UNTIL = "keep_until"
    """A call of ``keep`` for an event that the sender may send again."""
    BURY = "bury"

    __hash__: Callable[..., int] = object.__hash__


class Answer(Enum):
    """The answer of a step."""

    GRANTED = "granted"
    IN_FLIGHT = "in flight"
    STORED = "stored"
    WAITING = "waiting"
    DEAD = "dead"
    DONE = "done"
    APPLIED = "applied"
    """The step was done. After one of the last five steps, the caller gets ``Ownership.HELD``."""


class Then(NamedTuple):
    """The answer of a step, and the next state."""

    answer: Answer
    state: State


# The functions in `steps` read the answer and the next state of a step from this table. A step that
# a state does not list changes nothing in that state: for example, a free event has no lease that
# could expire, and a done event has no claim. `complete` and `discard` always lead to DONE.
LIFE: dict[State, dict[Step, Then]] = {
    State.FREE: {
        Step.CLAIM: Then(Answer.GRANTED, State.CLAIMED),
        Step.ENQUEUE: Then(Answer.STORED, State.WAITING),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.INTERRUPTED),
        Step.KEEP_IN_FLIGHT_UNTIL: Then(Answer.APPLIED, State.KEPT_FREE),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
        Step.EXTEND: Then(Answer.APPLIED, State.CLAIMED),
        Step.RELEASE: Then(Answer.APPLIED, State.FREE),
        Step.KEEP: Then(Answer.APPLIED, State.INTERRUPTED),
        Step.KEEP_UNTIL: Then(Answer.APPLIED, State.KEPT_FREE),
        Step.BURY: Then(Answer.APPLIED, State.DEAD),
    },
    State.CLAIMED: {
        Step.CLAIM: Then(Answer.IN_FLIGHT, State.CLAIMED),
        # A process without an inbox runs the attempt; the stored event is due when the lease ends.
        Step.ENQUEUE: Then(Answer.STORED, State.FETCHED),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.LAST_CHANCE),
        Step.KEEP_IN_FLIGHT_UNTIL: Then(Answer.APPLIED, State.KEPT_CLAIMED),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
        Step.EXPIRE: Then(Answer.APPLIED, State.FREE),
        Step.EXTEND: Then(Answer.APPLIED, State.CLAIMED),
        Step.RELEASE: Then(Answer.APPLIED, State.FREE),
        Step.KEEP: Then(Answer.APPLIED, State.LAST_CHANCE),
        Step.KEEP_UNTIL: Then(Answer.APPLIED, State.KEPT_CLAIMED),
        Step.BURY: Then(Answer.APPLIED, State.DEAD),
    },
    State.WAITING: {
        Step.CLAIM: Then(Answer.IN_FLIGHT, State.WAITING),
        Step.ENQUEUE: Then(Answer.WAITING, State.WAITING),
        Step.FETCH: Then(Answer.GRANTED, State.FETCHED),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.WAITING),
        Step.KEEP_IN_FLIGHT_UNTIL: Then(Answer.APPLIED, State.WAITING),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
        Step.EXTEND: Then(Answer.APPLIED, State.FETCHED),
        Step.RELEASE: Then(Answer.APPLIED, State.WAITING),
        Step.KEEP: Then(Answer.APPLIED, State.WAITING),
        Step.KEEP_UNTIL: Then(Answer.APPLIED, State.WAITING),
        Step.BURY: Then(Answer.APPLIED, State.DEAD),
    },
    State.FETCHED: {
        Step.CLAIM: Then(Answer.IN_FLIGHT, State.FETCHED),
        Step.ENQUEUE: Then(Answer.WAITING, State.FETCHED),
        Step.FETCH: Then(Answer.IN_FLIGHT, State.FETCHED),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.FETCHED),
        Step.KEEP_IN_FLIGHT_UNTIL: Then(Answer.APPLIED, State.FETCHED),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
        Step.EXPIRE: Then(Answer.APPLIED, State.WAITING),
        Step.EXTEND: Then(Answer.APPLIED, State.FETCHED),
        Step.RELEASE: Then(Answer.APPLIED, State.WAITING),
        Step.KEEP: Then(Answer.APPLIED, State.FETCHED),
        Step.KEEP_UNTIL: Then(Answer.APPLIED, State.FETCHED),
        Step.BURY: Then(Answer.APPLIED, State.DEAD),
    },
    State.KEPT_FREE: {
        Step.CLAIM: Then(Answer.GRANTED, State.KEPT_CLAIMED),
        # The inbox stores its own copy of the body, so the kept delivery is dropped.
        Step.ENQUEUE: Then(Answer.STORED, State.WAITING),
        Step.REPLAY: Then(Answer.GRANTED, State.KEPT_CLAIMED),
        Step.DISCARD: Then(Answer.APPLIED, State.DONE),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.INTERRUPTED),
        Step.KEEP_IN_FLIGHT_UNTIL: Then(Answer.APPLIED, State.KEPT_FREE),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
        Step.END: Then(Answer.APPLIED, State.INTERRUPTED),
        Step.EXTEND: Then(Answer.APPLIED, State.KEPT_CLAIMED),
        Step.RELEASE: Then(Answer.APPLIED, State.KEPT_FREE),
        Step.KEEP: Then(Answer.APPLIED, State.INTERRUPTED),
        Step.KEEP_UNTIL: Then(Answer.APPLIED, State.KEPT_FREE),
        Step.BURY: Then(Answer.APPLIED, State.DEAD),
    },
    State.KEPT_CLAIMED: {
        Step.CLAIM: Then(Answer.IN_FLIGHT, State.KEPT_CLAIMED),
        Step.ENQUEUE: Then(Answer.STORED, State.FETCHED),
        Step.REPLAY: Then(Answer.IN_FLIGHT, State.KEPT_CLAIMED),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.LAST_CHANCE),
        Step.KEEP_IN_FLIGHT_UNTIL: Then(Answer.APPLIED, State.KEPT_CLAIMED),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
        Step.EXPIRE: Then(Answer.APPLIED, State.KEPT_FREE),
        Step.END: Then(Answer.APPLIED, State.LAST_CHANCE),
        Step.EXTEND: Then(Answer.APPLIED, State.KEPT_CLAIMED),
        Step.RELEASE: Then(Answer.APPLIED, State.KEPT_FREE),
        Step.KEEP: Then(Answer.APPLIED, State.LAST_CHANCE),
        Step.KEEP_UNTIL: Then(Answer.APPLIED, State.KEPT_CLAIMED),
        Step.BURY: Then(Answer.APPLIED, State.DEAD),
    },
    State.LAST_CHANCE: {
        Step.CLAIM: Then(Answer.IN_FLIGHT, State.LAST_CHANCE),
        Step.ENQUEUE: Then(Answer.WAITING, State.LAST_CHANCE),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.LAST_CHANCE),
        Step.KEEP_IN_FLIGHT_UNTIL: Then(Answer.APPLIED, State.LAST_CHANCE),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
        Step.EXPIRE: Then(Answer.APPLIED, State.INTERRUPTED),
        Step.EXTEND: Then(Answer.APPLIED, State.LAST_CHANCE),
        # The sender will not send the event again, so its failure is final.
        Step.RELEASE: Then(Answer.APPLIED, State.DEAD),
        Step.KEEP: Then(Answer.APPLIED, State.LAST_CHANCE),
        Step.KEEP_UNTIL: Then(Answer.APPLIED, State.LAST_CHANCE),
        Step.BURY: Then(Answer.APPLIED, State.DEAD),
    },
    State.INTERRUPTED: {
        Step.CLAIM: Then(Answer.DEAD, State.INTERRUPTED),
        Step.ENQUEUE: Then(Answer.DEAD, State.INTERRUPTED),
        Step.REPLAY: Then(Answer.GRANTED, State.REPLAYED),
        Step.DISCARD: Then(Answer.APPLIED, State.DONE),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.INTERRUPTED),
        Step.KEEP_IN_FLIGHT_UNTIL: Then(Answer.APPLIED, State.INTERRUPTED),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
        Step.EXTEND: Then(Answer.APPLIED, State.LAST_CHANCE),
        Step.RELEASE: Then(Answer.APPLIED, State.DEAD),
        Step.KEEP: Then(Answer.APPLIED, State.INTERRUPTED),
        Step.KEEP_UNTIL: Then(Answer.APPLIED, State.INTERRUPTED),
        Step.BURY: Then(Answer.APPLIED, State.DEAD),
    },
    State.DEAD: {
        Step.CLAIM: Then(Answer.DEAD, State.DEAD),
        Step.ENQUEUE: Then(Answer.DEAD, State.DEAD),
        Step.REPLAY: Then(Answer.GRANTED, State.REPLAYED),
        Step.DISCARD: Then(Answer.APPLIED, State.DONE),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.DEAD),
        Step.KEEP_IN_FLIGHT_UNTIL: Then(Answer.APPLIED, State.DEAD),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
        Step.EXTEND: Then(Answer.APPLIED, State.REPLAYED),
        Step.RELEASE: Then(Answer.APPLIED, State.DEAD),
        Step.KEEP: Then(Answer.APPLIED, State.DEAD),
        Step.KEEP_UNTIL: Then(Answer.APPLIED, State.DEAD),
        Step.BURY: Then(Answer.APPLIED, State.DEAD),
    },
    State.REPLAYED: {
        Step.CLAIM: Then(Answer.IN_FLIGHT, State.REPLAYED),
        Step.ENQUEUE: Then(Answer.DEAD, State.REPLAYED),
        Step.REPLAY: Then(Answer.IN_FLIGHT, State.REPLAYED),
        Step.DISCARD: Then(Answer.APPLIED, State.DONE),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.REPLAYED),
        Step.KEEP_IN_FLIGHT_UNTIL: Then(Answer.APPLIED, State.REPLAYED),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
        Step.EXPIRE: Then(Answer.APPLIED, State.DEAD),
        Step.EXTEND: Then(Answer.APPLIED, State.REPLAYED),
        Step.RELEASE: Then(Answer.APPLIED, State.DEAD),
        Step.KEEP: Then(Answer.APPLIED, State.REPLAYED),
        Step.KEEP_UNTIL: Then(Answer.APPLIED, State.REPLAYED),
        Step.BURY: Then(Answer.APPLIED, State.DEAD),
    },
    State.DONE: {
        Step.CLAIM: Then(Answer.DONE, State.DONE),
        Step.ENQUEUE: Then(Answer.DONE, State.DONE),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.DONE),
        Step.KEEP_IN_FLIGHT_UNTIL: Then(Answer.APPLIED, State.DONE),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
    },
}
"""The table: for each state, the steps that change the event or get an answer."""
