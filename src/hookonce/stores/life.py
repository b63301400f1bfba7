"""The life of an event: its states, the steps between them, and the answer of each step.

This file has values and pure functions. It reads no clock, makes no token and stores nothing: a
store passes the record of an event and the moment, and writes the record that it gets back.

The memory store calls these functions for all but the first claim. SQLite writes the first
claim, the first enqueue, fetch and completion as SQL over many events at once. The Redis store has
the whole table a second time, in Lua. Comments in all three name the rows that the code implements:
FREE.claim is the step CLAIM in the state FREE.

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
LAST_CHANCE.

Five rules hold in every state and are not rows of the table:

- A claim has an owner, named by a token. Only the owner extends, releases, keeps and buries. To
  every other caller the claim is lost, and only the handlers that finished are remembered. When the
  lease runs out the owner stays the owner until another caller claims the event or it is settled.
- A caller that repeats a claim or an enqueue with the same token gets the first answer again.
- A success is a fact. A handler that finished is remembered from a lost claim too, unless the event
  is done, and is never outstanding again. In every state any caller may record that the event is
  handled.
- Every claim that is granted counts as an attempt. The count goes back if the owner releases the
  claim before a handler began; it does not go back if the lease runs out.
- A dead letter whose record could not be read (``DeadReason.DAMAGED``) is claimed and enqueued by
  nobody: both raise StoreError until a person has replayed or discarded it.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from .formats import damaged
from .values import (
    INTERRUPTED,
    Claimed,
    ClaimResult,
    Dead,
    DeadLetter,
    DeadReason,
    Delivery,
    DeliveryKey,
    Done,
    EnqueueResult,
    FailedAttempt,
    InFlight,
    Known,
    Ownership,
    Stored,
    Token,
    Waiting,
)


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

    __hash__ = object.__hash__  # faster: Enum would hash the name at every look-up


class Step(Enum):
    """A step in the life of an event. Only the event's owner may do the last five steps."""

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

    __hash__ = object.__hash__


class Answer(Enum):
    """The answer of a step."""

    GRANTED = "granted"
    IN_FLIGHT = "in flight"
    STORED = "stored"
    WAITING = "waiting"
    DEAD = "dead"
    DONE = "done"
    APPLIED = "applied"
    """The step was done; the owner's five steps answer ``Ownership.HELD``."""


class Then(NamedTuple):
    """The answer of a step, and the next state."""

    answer: Answer
    state: State


# Each step reads its answer and next state here. A step that is missing in a state changes nothing:
# there is no event to fetch, no dead letter to replay or discard, no lease to expire, and a done
# event has no owner. `complete` and `discard` always lead to DONE.
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
        # A process without an inbox runs the attempt; the event is due when the lease ends.
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

# The states whose records have a certain part: a live claim, an entry in the inbox, or one kind of
# dead letter. `state_of` finds the state by these parts; a step writes the parts of its next state.
_LIVE = {State.CLAIMED, State.FETCHED, State.KEPT_CLAIMED, State.LAST_CHANCE, State.REPLAYED}
_IN_INBOX = {State.WAITING, State.FETCHED}
_SENDER_RETRIES = {State.KEPT_FREE, State.KEPT_CLAIMED}
_KEPT = {State.LAST_CHANCE, State.INTERRUPTED}
_DEAD = {State.DEAD, State.REPLAYED}
_WITH_DEAD_LETTER = _SENDER_RETRIES | _KEPT | _DEAD

# Each failure writes the event's whole history again, so its length is bounded.
MAX_HISTORY = 20
MAX_HISTORY_ERROR_CHARACTERS = 1_000
_MAX_ERROR_CHARACTERS = 4_000

_NONE: frozenset[str] = frozenset()


class Queued(NamedTuple):
    """The entry of an event in the inbox.

    Attributes:
        token: the token of the call that enqueued it.
        due: when a worker may fetch it, by the clock of leases.
        delay: the seconds between setting ``due`` and ``due``.
    """

    token: Token
    due: float
    delay: float


class DeadLetterRecord(NamedTuple):
    """A dead letter, or a kept delivery that may become one.

    Attributes:
        reason: why it is, or would be, a dead letter.
        error: what failed.
        buried_unix: Unix time at which it became, or will become, a dead letter.
        is_kept: whether the delivery is only kept: it is no dead letter while an attempt runs.
        sender_retries: whether it is no dead letter before ``buried_unix`` either, because the
            sender may send the event again.
    """

    reason: DeadReason
    error: str
    buried_unix: float
    is_kept: bool
    sender_retries: bool = False

    def may_come(self, moment: Moment) -> bool:
        """Return whether the sender may still send the event again."""
        return self.sender_retries and moment.unix < self.buried_unix


class Record(NamedTuple):
    """The record of an event.

    Attributes:
        token: the owner's token; None if the last claim was settled, or there was none.
        until: when the lease ends, by the clock of leases.
        lease: the length of the lease in seconds.
        attempt: the number of attempts that count.
        finished: the handlers that have succeeded.
        outstanding: the handlers known to have failed or not run.
        history: the last failed attempts.
        expires: Unix time at which the record is forgotten if no call changes it before.
        queued: the place in the inbox.
        dead_letter: the dead letter, or the kept delivery.
        done_until: Unix time until which a done event is remembered.
    """

    token: Token | None = None
    until: float = 0.0
    lease: float = 0.0
    attempt: int = 0
    finished: frozenset[str] = _NONE
    outstanding: frozenset[str] = _NONE
    history: tuple[FailedAttempt, ...] = ()
    expires: float = 0.0
    queued: Queued | None = None
    dead_letter: DeadLetterRecord | None = None
    done_until: float = 0.0


NEW = Record()
"""The record of an event that the store has not seen."""


class Moment(NamedTuple):
    """The time of a step.

    Attributes:
        now: the clock of leases.
        unix: Unix time.
        expires: Unix time until which an event that is claimed or done now is remembered.
    """

    now: float
    unix: float
    expires: float

    def unix_time(self, at: float) -> float:
        """Convert a time of the leases' clock to Unix time."""
        return self.unix + (at - self.now)


def state_of(record: Record, moment: Moment) -> State:
    """Return the state of an event now; an ended lease or schedule changes it without a write."""
    if moment.unix < record.done_until:
        return State.DONE
    dead_letter = record.dead_letter
    if dead_letter is not None:
        state = State.LAST_CHANCE if dead_letter.is_kept else State.REPLAYED
        if dead_letter.sender_retries:
            state = State.KEPT_CLAIMED
    else:
        state = State.CLAIMED if record.queued is None else State.FETCHED
    if moment.now >= record.until:
        state = LIFE[state][Step.EXPIRE].state
    if (
        dead_letter is not None
        and dead_letter.sender_retries
        and moment.unix >= dead_letter.buried_unix
    ):
        state = LIFE[state][Step.END].state
    return state


_KNOWN_AS = {
    State.CLAIMED: Known.IN_FLIGHT,
    State.WAITING: Known.WAITING,
    State.FETCHED: Known.WAITING,
    State.KEPT_FREE: Known.FAILED,
    State.KEPT_CLAIMED: Known.IN_FLIGHT,
    State.LAST_CHANCE: Known.IN_FLIGHT,
    State.INTERRUPTED: Known.DEAD,
    State.DEAD: Known.DEAD,
    State.REPLAYED: Known.DEAD,
    State.DONE: Known.DONE,
}


def known_as(record: Record, moment: Moment) -> Known | None:
    """Return the state as operators see it; None for an event that was never tried."""
    state = state_of(record, moment)
    if state is State.FREE and record.attempt and moment.unix < record.expires:
        return Known.FAILED
    return _KNOWN_AS.get(state)


def claim(
    record: Record, moment: Moment, key: DeliveryKey, token: Token, lease: float
) -> tuple[ClaimResult, Record]:
    """Claim an event for ``lease`` seconds; DamagedError if its record was set aside."""
    _check_readable(record, moment)
    return _claim(record, moment, Step.CLAIM, key, token, lease)


def replay(
    record: Record, moment: Moment, key: DeliveryKey, token: Token, lease: float
) -> tuple[ClaimResult | None, Record]:
    """Claim a dead letter or a kept delivery, which stays until success; None if there is none."""
    record = _capped(record, moment)
    if Step.REPLAY not in LIFE[state_of(record, moment)]:
        return None, record
    return _claim(record, moment, Step.REPLAY, key, token, lease)


def fetch(
    record: Record, moment: Moment, key: DeliveryKey, token: Token, lease: float
) -> tuple[Claimed | None, Record]:
    """Claim an event of the inbox that is due; None if an attempt runs.

    If another step has settled the event, it leaves the inbox.
    """
    if Step.FETCH not in LIFE[state_of(record, moment)]:
        return None, record._replace(queued=None)
    result, record = _claim(record, moment, Step.FETCH, key, token, lease)
    if isinstance(result, Claimed):
        return result, record._replace(queued=_scheduled(record.queued, moment, lease))
    # An attempt in a process without an inbox has extended its lease: the event is due when that
    # lease ends.
    queued = _scheduled(record.queued, moment, record.until - moment.now)
    return None, record._replace(queued=queued)


def fetch_again(
    record: Record, moment: Moment, key: DeliveryKey, token: Token, lease: float
) -> tuple[Claimed | None, Record]:
    """Extend and return the claim of a repeated fetch; None if the claim has ended."""
    if record.token != token or moment.now >= record.until:
        return None, record
    held, record = fetch(record, moment, key, token, lease)
    if held is None:
        return None, record
    return held._replace(lease_seconds=lease), record._replace(
        until=moment.now + lease, lease=lease
    )


def enqueue(record: Record, moment: Moment, token: Token) -> tuple[EnqueueResult, Record]:
    """Put an event into the inbox, unless it is known; DamagedError as in ``claim``."""
    _check_readable(record, moment)
    record = _capped(record, moment)
    answer, state = LIFE[state_of(record, moment)][Step.ENQUEUE]
    if answer is Answer.STORED:
        # A claimed event is due when the lease of its attempt ends.
        delay = max(0.0, record.until - moment.now)
        queued = Queued(token, moment.now + delay, delay) if state in _IN_INBOX else None
        dead_letter = (
            record.dead_letter if state in _WITH_DEAD_LETTER else None
        )  # the inbox has its own copy of the body
        return Stored(), record._replace(queued=queued, dead_letter=dead_letter)
    if answer is Answer.WAITING:
        is_own = record.queued is not None and record.queued.token == token
        return Stored() if is_own else Waiting(), record
    return Done() if answer is Answer.DONE else Dead(), record


def extend(
    record: Record,
    moment: Moment,
    claim: Claimed,
    finished: frozenset[str] = _NONE,
    outstanding: frozenset[str] = _NONE,
) -> tuple[Ownership, Record]:
    """Restart the lease, and remember the finished and the outstanding handlers."""
    state = _owners_next(record, moment, claim, Step.EXTEND)
    if state is None:
        return Ownership.LOST, _lost(record, finished)
    finished, outstanding = _noted(record, finished, outstanding)
    return Ownership.HELD, record._replace(
        until=moment.now + claim.lease_seconds if state in _LIVE else 0.0,
        finished=finished,
        outstanding=outstanding,
        queued=_scheduled(record.queued, moment, claim.lease_seconds),
    )


def release(
    record: Record,
    moment: Moment,
    claim: Claimed,
    finished: frozenset[str] = _NONE,
    error: str | None = None,
    *,
    outstanding: frozenset[str] = _NONE,
    began: bool = True,
    after: float = 0.0,
) -> tuple[Ownership, Record]:
    """End an attempt without success; an event of the inbox is due after ``after`` seconds."""
    state = _owners_next(record, moment, claim, Step.RELEASE)
    if state is None:
        return Ownership.LOST, _lost(record, finished)
    error = error_text(error or "")
    finished, outstanding = _noted(record, finished, outstanding)
    dead_letter = record.dead_letter if state in _WITH_DEAD_LETTER else None
    if state in _DEAD and (dead_letter is None or dead_letter.is_kept):
        dead_letter = DeadLetterRecord(DeadReason.EXHAUSTED, error, moment.unix, is_kept=False)
    elif dead_letter is not None and dead_letter.is_kept and error:
        dead_letter = dead_letter._replace(reason=DeadReason.EXHAUSTED, error=error)
    return Ownership.HELD, record._replace(
        token=None,
        until=record.until if state in _LIVE else 0.0,
        attempt=record.attempt - (not began),
        finished=finished,
        outstanding=outstanding,
        history=_failed(record, moment.unix, error),
        queued=_scheduled(record.queued, moment, max(0.0, after)) if state in _IN_INBOX else None,
        dead_letter=dead_letter,
    )


def keep(
    record: Record, moment: Moment, claim: Claimed, dead_unix: float | None = None
) -> tuple[Ownership, Record]:
    """Keep the delivery of a claim, unless the event waits in the inbox or is a dead letter."""
    step = Step.KEEP if _is_over(dead_unix, moment) else Step.KEEP_UNTIL
    state = _owners_next(record, moment, claim, step)
    if state is None:
        return Ownership.LOST, record
    return Ownership.HELD, _kept(record, moment, state, dead_unix)


def keep_in_flight(record: Record, moment: Moment, dead_unix: float | None = None) -> Record:
    """Keep the body of a delivery whose event another caller has claimed."""
    record = _capped(record, moment)
    step = Step.KEEP_IN_FLIGHT if _is_over(dead_unix, moment) else Step.KEEP_IN_FLIGHT_UNTIL
    return _kept(record, moment, LIFE[state_of(record, moment)][step].state, dead_unix)


def bury(
    record: Record,
    moment: Moment,
    claim: Claimed,
    reason: DeadReason,
    error: str = "",
    finished: frozenset[str] = _NONE,
    outstanding: frozenset[str] = _NONE,
) -> tuple[Ownership, Record]:
    """Make an event a dead letter."""
    state = _owners_next(record, moment, claim, Step.BURY)
    if state is None:
        return Ownership.LOST, _lost(record, finished)
    error = error_text(error)
    finished, outstanding = _noted(record, finished, outstanding)
    dead_letter = (
        DeadLetterRecord(reason, error, moment.unix, is_kept=False) if state in _DEAD else None
    )
    return Ownership.HELD, record._replace(
        token=None,
        until=record.until if state in _LIVE else 0.0,
        finished=finished,
        outstanding=outstanding,
        history=_failed(record, moment.unix, error),
        queued=record.queued if state in _IN_INBOX else None,
        dead_letter=dead_letter,
    )


def complete(moment: Moment) -> Record:
    """Return the record of a handled event; this step is allowed in every state."""
    return Record(done_until=moment.expires)


def discard(record: Record, moment: Moment) -> tuple[bool, Record]:
    """Turn a dead letter into a done event; False if the event is not a dead letter."""
    if Step.DISCARD not in LIFE[state_of(_as_shown(record, moment), moment)]:
        return False, record
    return True, complete(moment)


def make_due(record: Record, moment: Moment) -> tuple[bool, Record]:
    """Make an event of the inbox due now, unless an attempt runs."""
    if record.queued is None or state_of(record, moment) is not State.WAITING:
        return False, record
    due = min(record.queued.due, moment.now)
    return True, record._replace(queued=record.queued._replace(due=due, delay=0.0))


def is_forgotten(record: Record, moment: Moment) -> bool:
    """Return whether the store may delete the ``record`` of an event at a ``moment``."""
    if record.queued is not None or record.dead_letter is not None:
        return False
    return moment.unix >= max(record.done_until, record.expires) and moment.now >= record.until


def dead_letter(
    record: Record, moment: Moment, delivery: Delivery, place: str = ""
) -> DeadLetter | None:
    """Return a dead letter or a kept delivery, as an operator sees it; None if there is none."""
    record = _as_shown(record, moment)
    dead_letter, state = record.dead_letter, state_of(record, moment)
    if dead_letter is None or state in {State.KEPT_CLAIMED, State.LAST_CHANCE, State.DONE}:
        return None
    if record.token is not None and moment.now >= record.until:
        record = _interrupted(record, moment)
    return DeadLetter(
        delivery,
        dead_letter.reason,
        dead_letter.error,
        record.attempt - (state is State.REPLAYED),  # the running attempt does not count yet
        record.finished,
        dead_letter.buried_unix,
        record.history,
        record.outstanding,
        state is State.KEPT_FREE,
        place,
    )


def error_text(error: str) -> str:
    """Return the text, bounded, with escapes for lone surrogates, which cannot be encoded."""
    return error[:_MAX_ERROR_CHARACTERS].encode("utf-8", "backslashreplace").decode()


def _claim(
    record: Record, moment: Moment, step: Step, key: DeliveryKey, token: Token, lease: float
) -> tuple[ClaimResult, Record]:
    record = _capped(record, moment)
    answer, state = LIFE[state_of(record, moment)][step]
    if answer is Answer.GRANTED:
        if record.token is not None:
            record = _interrupted(record, moment)
        return _granted(record, moment, state, key, token, lease)
    if answer is Answer.IN_FLIGHT:
        is_live = moment.now < record.until
        if is_live and record.token == token:
            return _own(record, key, token), record
        end = record.until if is_live or record.queued is None else record.queued.due
        return InFlight(moment.unix_time(max(end, moment.now))), record
    return Done() if answer is Answer.DONE else Dead(), record


def _granted(
    record: Record, moment: Moment, state: State, key: DeliveryKey, token: Token, lease: float
) -> tuple[Claimed, Record]:
    dead_letter = record.dead_letter
    if dead_letter is not None and state in _DEAD:
        dead_letter = dead_letter._replace(is_kept=False, sender_retries=False)
    # Not `_replace`, which is much slower: every event of an inbox needs this step.
    record = Record(
        token,
        moment.now + lease if state in _LIVE else 0.0,
        lease,
        record.attempt + 1,
        record.finished,
        record.outstanding,
        record.history,
        moment.expires,
        record.queued,
        dead_letter,
    )
    return _own(record, key, token), record


def _own(record: Record, key: DeliveryKey, token: Token) -> Claimed:
    return Claimed(key, token, record.attempt, record.finished, record.lease, record.outstanding)


def _capped(record: Record, moment: Moment) -> Record:
    # If the time left is longer than the lease, the clock was set back or restarted.
    end = moment.now + record.lease
    return record._replace(until=end) if record.until > end else record


def _check_readable(record: Record, moment: Moment) -> None:
    dead_letter = record.dead_letter
    is_damaged = dead_letter is not None and dead_letter.reason is DeadReason.DAMAGED
    if is_damaged and state_of(record, moment) is State.DEAD:
        raise damaged()


def _as_shown(record: Record, moment: Moment) -> Record:
    # Shown as expired: after a restart of the clock the owner is most likely gone.
    is_over = record.until > moment.now + record.lease
    return record._replace(until=moment.now) if is_over else record


def _noted(
    record: Record, finished: frozenset[str], outstanding: frozenset[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Merge the finished and outstanding handlers of the record with those of this step."""
    finished |= record.finished
    return finished, (record.outstanding | outstanding) - finished


def _lost(record: Record, finished: frozenset[str]) -> Record:
    # A record without attempts is new or done: no handler of this claim can have succeeded.
    if finished <= record.finished or not record.attempt:
        return record
    finished, outstanding = _noted(record, finished, _NONE)
    return record._replace(finished=finished, outstanding=outstanding)


def _scheduled(queued: Queued | None, moment: Moment, delay: float) -> Queued | None:
    return queued and Queued(queued.token, moment.now + delay, delay)


def _kept(record: Record, moment: Moment, state: State, dead_unix: float | None) -> Record:
    """Return the record with a kept delivery if the next state has one."""
    dead_letter = record.dead_letter
    if state in _SENDER_RETRIES and dead_unix is not None:
        if dead_letter is None:
            dead_letter = DeadLetterRecord(
                DeadReason.INTERRUPTED, "", dead_unix, is_kept=True, sender_retries=True
            )
        dead_letter = dead_letter._replace(buried_unix=min(dead_letter.buried_unix, dead_unix))
    elif state in _KEPT and dead_letter is None:
        dead_letter = DeadLetterRecord(DeadReason.INTERRUPTED, "", moment.unix, is_kept=True)
    elif (
        state in _KEPT
        and dead_letter is not None
        and dead_letter.sender_retries
        and _is_over(dead_unix, moment)
    ):
        dead_letter = dead_letter._replace(buried_unix=moment.unix, sender_retries=False)
    return record if dead_letter is record.dead_letter else record._replace(dead_letter=dead_letter)


def _is_over(dead_unix: float | None, moment: Moment) -> bool:
    """Return whether the sender will not send the event again."""
    return dead_unix is None or dead_unix <= moment.unix


def _owners_next(record: Record, moment: Moment, claim: Claimed, step: Step) -> State | None:
    """Return the state after a step of the owner; None if the claim is lost."""
    if record.token != claim.token:
        return None
    then = LIFE[state_of(record, moment)].get(step)
    return then.state if then else None


def _failed(record: Record, ended_unix: float, error: str) -> tuple[FailedAttempt, ...]:
    """Return the history, with the error of this attempt if there is one."""
    if not error:
        return record.history
    failure = FailedAttempt(record.attempt, ended_unix, error[:MAX_HISTORY_ERROR_CHARACTERS])
    return (*record.history, failure)[-MAX_HISTORY:]


def _interrupted(record: Record, moment: Moment) -> Record:
    return record._replace(history=_failed(record, moment.unix_time(record.until), INTERRUPTED))
