"""The life of an event: its states, the steps between them, and what each step answers.

This file has values and pure functions. It reads no clock, makes no token and keeps nothing: a
store brings the record of an event and the moment, and writes the record that it gets back. The
memory store calls every function but for the first claim; SQLite does too, but for the first claim,
put and completion of many events at once, which are rows of the table written as SQL; the Redis
store's Lua is a second writing of it. All three name the rows they stand for, as FREE.claim.

    FREE         new, or given back: whoever brings it claims it
    CLAIMED      an attempt runs
    WAITING      in the inbox
    FETCHED        in the inbox, and an attempt runs
    SAVED        as FREE; the delivery is kept for the case that the sender does not bring it again
    SAVED_CLAIMED  as CLAIMED, with the delivery kept for that case
    KEPT         an attempt runs; the delivery is kept for the case that it fails
    INTERRUPTED  the delivery is kept, and no attempt runs any more: a dead letter
    DEAD         a dead letter
    REPLAYED     a dead letter, and an attempt at it runs
    DONE         handled, or discarded by a person

A delivery is kept together with the time at which it is to be a dead letter. If the sender has
proved by its signature that it will not come again, that time is now, and the event is KEPT. Else
that time is the end of the sender's schedule. Until then the event is SAVED or SAVED_CLAIMED, and
can be claimed as ever; then SAVED turns into INTERRUPTED, and SAVED_CLAIMED into KEPT, without any
step.

Four rules hold in every state and are no rows:

- A claim has an owner, by its token. Only the owner extends, releases, keeps and buries; to anybody
  else the claim is lost, and nothing changes. When a lease runs out the owner stays, until somebody
  else takes the event or it is settled.
- Who asks with the token of a live claim, or of the put, gets the first answer again.
- A success is a fact. What has finished is remembered from a lost claim too, unless the event is
  done, and is never outstanding again. That the event is handled anybody may record, in any state.
- Every claim that is granted counts an attempt. One that its owner gives back without having begun
  a handler is taken off again; one whose lease runs out is not.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

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
    """What an event is to somebody who asks for it now."""

    FREE = "free"
    CLAIMED = "claimed"
    WAITING = "waiting"
    FETCHED = "fetched"
    SAVED = "saved"
    SAVED_CLAIMED = "saved_claimed"
    KEPT = "kept"
    INTERRUPTED = "interrupted"
    DEAD = "dead"
    REPLAYED = "replayed"
    DONE = "done"

    __hash__ = object.__hash__  # members are looked up at every claim; Enum hashes their names


class Step(Enum):
    """What can be done to an event. The last five only its owner may take."""

    CLAIM = "claim"
    ENQUEUE = "enqueue"
    FETCH = "fetch"
    REPLAY = "replay"
    DISCARD = "discard"
    KEEP_IN_FLIGHT = "keep_in_flight"
    SAVE_IN_FLIGHT = "save_in_flight"
    """``keep_in_flight`` with a time that has not come: the sender may bring the event again."""
    COMPLETE = "complete"
    EXPIRE = "expire"
    """The lease runs out."""
    END = "end"
    """The time comes at which a delivery that was saved is a dead letter."""
    EXTEND = "extend"
    RELEASE = "release"
    """``InboxStore.retry`` is a release, after which an event of the inbox is due later."""
    KEEP = "keep"
    SAVE = "save"
    """``keep`` with a time that has not come."""
    BURY = "bury"

    __hash__ = object.__hash__


class Answer(Enum):
    """What a step answers."""

    GRANTED = "granted"
    IN_FLIGHT = "in flight"
    STORED = "stored"
    WAITING = "waiting"
    DEAD = "dead"
    DONE = "done"
    APPLIED = "applied"
    """The step was taken; of the owner's five, ``Ownership.HELD``."""


class Then(NamedTuple):
    """The answer of a step, and the next state."""

    answer: Answer
    state: State


# The steps read their answers and next states from here. A step that a state lacks changes nothing:
# there is no event to fetch, no dead letter to replay or discard, no lease to expire, and a done
# event has no owner. `complete` and `discard` always lead to DONE.
LIFE: dict[State, dict[Step, Then]] = {
    State.FREE: {
        Step.CLAIM: Then(Answer.GRANTED, State.CLAIMED),
        Step.ENQUEUE: Then(Answer.STORED, State.WAITING),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.INTERRUPTED),
        Step.SAVE_IN_FLIGHT: Then(Answer.APPLIED, State.SAVED),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
        Step.EXTEND: Then(Answer.APPLIED, State.CLAIMED),
        Step.RELEASE: Then(Answer.APPLIED, State.FREE),
        Step.KEEP: Then(Answer.APPLIED, State.INTERRUPTED),
        Step.SAVE: Then(Answer.APPLIED, State.SAVED),
        Step.BURY: Then(Answer.APPLIED, State.DEAD),
    },
    State.CLAIMED: {
        Step.CLAIM: Then(Answer.IN_FLIGHT, State.CLAIMED),
        # By a process without an inbox: it is due when that attempt's lease ends.
        Step.ENQUEUE: Then(Answer.STORED, State.FETCHED),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.KEPT),
        Step.SAVE_IN_FLIGHT: Then(Answer.APPLIED, State.SAVED_CLAIMED),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
        Step.EXPIRE: Then(Answer.APPLIED, State.FREE),
        Step.EXTEND: Then(Answer.APPLIED, State.CLAIMED),
        Step.RELEASE: Then(Answer.APPLIED, State.FREE),
        Step.KEEP: Then(Answer.APPLIED, State.KEPT),
        Step.SAVE: Then(Answer.APPLIED, State.SAVED_CLAIMED),
        Step.BURY: Then(Answer.APPLIED, State.DEAD),
    },
    State.WAITING: {
        Step.CLAIM: Then(Answer.IN_FLIGHT, State.WAITING),
        Step.ENQUEUE: Then(Answer.WAITING, State.WAITING),
        Step.FETCH: Then(Answer.GRANTED, State.FETCHED),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.WAITING),
        Step.SAVE_IN_FLIGHT: Then(Answer.APPLIED, State.WAITING),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
        Step.EXTEND: Then(Answer.APPLIED, State.FETCHED),
        Step.RELEASE: Then(Answer.APPLIED, State.WAITING),
        Step.KEEP: Then(Answer.APPLIED, State.WAITING),
        Step.SAVE: Then(Answer.APPLIED, State.WAITING),
        Step.BURY: Then(Answer.APPLIED, State.DEAD),
    },
    State.FETCHED: {
        Step.CLAIM: Then(Answer.IN_FLIGHT, State.FETCHED),
        Step.ENQUEUE: Then(Answer.WAITING, State.FETCHED),
        Step.FETCH: Then(Answer.IN_FLIGHT, State.FETCHED),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.FETCHED),
        Step.SAVE_IN_FLIGHT: Then(Answer.APPLIED, State.FETCHED),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
        Step.EXPIRE: Then(Answer.APPLIED, State.WAITING),
        Step.EXTEND: Then(Answer.APPLIED, State.FETCHED),
        Step.RELEASE: Then(Answer.APPLIED, State.WAITING),
        Step.KEEP: Then(Answer.APPLIED, State.FETCHED),
        Step.SAVE: Then(Answer.APPLIED, State.FETCHED),
        Step.BURY: Then(Answer.APPLIED, State.DEAD),
    },
    State.SAVED: {
        Step.CLAIM: Then(Answer.GRANTED, State.SAVED_CLAIMED),
        # The inbox has its own copy of the body.
        Step.ENQUEUE: Then(Answer.STORED, State.WAITING),
        Step.REPLAY: Then(Answer.GRANTED, State.SAVED_CLAIMED),
        Step.DISCARD: Then(Answer.APPLIED, State.DONE),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.INTERRUPTED),
        Step.SAVE_IN_FLIGHT: Then(Answer.APPLIED, State.SAVED),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
        Step.END: Then(Answer.APPLIED, State.INTERRUPTED),
        Step.EXTEND: Then(Answer.APPLIED, State.SAVED_CLAIMED),
        Step.RELEASE: Then(Answer.APPLIED, State.SAVED),
        Step.KEEP: Then(Answer.APPLIED, State.INTERRUPTED),
        Step.SAVE: Then(Answer.APPLIED, State.SAVED),
        Step.BURY: Then(Answer.APPLIED, State.DEAD),
    },
    State.SAVED_CLAIMED: {
        Step.CLAIM: Then(Answer.IN_FLIGHT, State.SAVED_CLAIMED),
        Step.ENQUEUE: Then(Answer.STORED, State.FETCHED),
        Step.REPLAY: Then(Answer.IN_FLIGHT, State.SAVED_CLAIMED),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.KEPT),
        Step.SAVE_IN_FLIGHT: Then(Answer.APPLIED, State.SAVED_CLAIMED),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
        Step.EXPIRE: Then(Answer.APPLIED, State.SAVED),
        Step.END: Then(Answer.APPLIED, State.KEPT),
        Step.EXTEND: Then(Answer.APPLIED, State.SAVED_CLAIMED),
        Step.RELEASE: Then(Answer.APPLIED, State.SAVED),
        Step.KEEP: Then(Answer.APPLIED, State.KEPT),
        Step.SAVE: Then(Answer.APPLIED, State.SAVED_CLAIMED),
        Step.BURY: Then(Answer.APPLIED, State.DEAD),
    },
    State.KEPT: {
        Step.CLAIM: Then(Answer.IN_FLIGHT, State.KEPT),
        Step.ENQUEUE: Then(Answer.WAITING, State.KEPT),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.KEPT),
        Step.SAVE_IN_FLIGHT: Then(Answer.APPLIED, State.KEPT),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
        Step.EXPIRE: Then(Answer.APPLIED, State.INTERRUPTED),
        Step.EXTEND: Then(Answer.APPLIED, State.KEPT),
        # Nobody will bring it again.
        Step.RELEASE: Then(Answer.APPLIED, State.DEAD),
        Step.KEEP: Then(Answer.APPLIED, State.KEPT),
        Step.SAVE: Then(Answer.APPLIED, State.KEPT),
        Step.BURY: Then(Answer.APPLIED, State.DEAD),
    },
    State.INTERRUPTED: {
        Step.CLAIM: Then(Answer.DEAD, State.INTERRUPTED),
        Step.ENQUEUE: Then(Answer.DEAD, State.INTERRUPTED),
        Step.REPLAY: Then(Answer.GRANTED, State.REPLAYED),
        Step.DISCARD: Then(Answer.APPLIED, State.DONE),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.INTERRUPTED),
        Step.SAVE_IN_FLIGHT: Then(Answer.APPLIED, State.INTERRUPTED),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
        Step.EXTEND: Then(Answer.APPLIED, State.KEPT),
        Step.RELEASE: Then(Answer.APPLIED, State.DEAD),
        Step.KEEP: Then(Answer.APPLIED, State.INTERRUPTED),
        Step.SAVE: Then(Answer.APPLIED, State.INTERRUPTED),
        Step.BURY: Then(Answer.APPLIED, State.DEAD),
    },
    State.DEAD: {
        Step.CLAIM: Then(Answer.DEAD, State.DEAD),
        Step.ENQUEUE: Then(Answer.DEAD, State.DEAD),
        Step.REPLAY: Then(Answer.GRANTED, State.REPLAYED),
        Step.DISCARD: Then(Answer.APPLIED, State.DONE),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.DEAD),
        Step.SAVE_IN_FLIGHT: Then(Answer.APPLIED, State.DEAD),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
        Step.EXTEND: Then(Answer.APPLIED, State.REPLAYED),
        Step.RELEASE: Then(Answer.APPLIED, State.DEAD),
        Step.KEEP: Then(Answer.APPLIED, State.DEAD),
        Step.SAVE: Then(Answer.APPLIED, State.DEAD),
        Step.BURY: Then(Answer.APPLIED, State.DEAD),
    },
    State.REPLAYED: {
        Step.CLAIM: Then(Answer.IN_FLIGHT, State.REPLAYED),
        Step.ENQUEUE: Then(Answer.DEAD, State.REPLAYED),
        Step.REPLAY: Then(Answer.IN_FLIGHT, State.REPLAYED),
        Step.DISCARD: Then(Answer.APPLIED, State.DONE),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.REPLAYED),
        Step.SAVE_IN_FLIGHT: Then(Answer.APPLIED, State.REPLAYED),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
        Step.EXPIRE: Then(Answer.APPLIED, State.DEAD),
        Step.EXTEND: Then(Answer.APPLIED, State.REPLAYED),
        Step.RELEASE: Then(Answer.APPLIED, State.DEAD),
        Step.KEEP: Then(Answer.APPLIED, State.REPLAYED),
        Step.SAVE: Then(Answer.APPLIED, State.REPLAYED),
        Step.BURY: Then(Answer.APPLIED, State.DEAD),
    },
    State.DONE: {
        Step.CLAIM: Then(Answer.DONE, State.DONE),
        Step.ENQUEUE: Then(Answer.DONE, State.DONE),
        Step.KEEP_IN_FLIGHT: Then(Answer.APPLIED, State.DONE),
        Step.SAVE_IN_FLIGHT: Then(Answer.APPLIED, State.DONE),
        Step.COMPLETE: Then(Answer.APPLIED, State.DONE),
    },
}

# What the record of an event holds in a state: `state_of` reads the state from it, and each step
# writes what the next state of its row needs.
_LIVE = {State.CLAIMED, State.FETCHED, State.SAVED_CLAIMED, State.KEPT, State.REPLAYED}
_IN_INBOX = {State.WAITING, State.FETCHED}
_SAVED = {State.SAVED, State.SAVED_CLAIMED}
_KEPT = {State.KEPT, State.INTERRUPTED}
_DEAD = {State.DEAD, State.REPLAYED}
_WITH_LETTER = _SAVED | _KEPT | _DEAD

# A history is for a person to read; it is written anew with each failure.
MAX_HISTORY = 20
MAX_HISTORY_ERROR_CHARACTERS = 1_000
_MAX_ERROR_CHARACTERS = 4_000

_NONE: frozenset[str] = frozenset()


class Queued(NamedTuple):
    """An event's place in the inbox.

    Attributes:
        put: the token it was put with.
        due: when it may be taken, by the clock of leases.
        delay: by how much that was put off.

    """

    put: Token
    due: float
    delay: float


class Letter(NamedTuple):
    """A dead letter, or a delivery kept for the case that nothing settles its event.

    Attributes:
        reason: why it was given up.
        error: what failed.
        buried_at: since when it is a dead letter, in Unix time; of a kept one, from when on.
        is_kept: whether it is only kept, for as long as an attempt runs.
        is_saved: whether that is so until ``buried_at`` too, since the sender may come again.

    """

    reason: DeadReason
    error: str
    buried_at: float
    is_kept: bool
    is_saved: bool = False

    def may_come(self, moment: Moment) -> bool:
        """Return whether the sender may still bring the event."""
        return self.is_saved and moment.unix < self.buried_at


class Record(NamedTuple):
    """What is known of an event.

    Attributes:
        token: the owner's; None if the last claim was settled, or there was none.
        until: when the lease ends, by the clock of leases.
        lease: seconds that it lasts.
        attempt: how many attempts count.
        finished: the handlers that have succeeded.
        outstanding: the handlers known to have failed or not run.
        history: the last failed attempts.
        expires: until when it is remembered if nobody asks for it, in Unix time.
        queued: its place in the inbox.
        letter: of a dead or kept one.
        done_until: of a done one, until when that is remembered, in Unix time.

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
    letter: Letter | None = None
    done_until: float = 0.0


NEW = Record()
"""Of an event that nothing is known of."""


class Moment(NamedTuple):
    """When a step is taken.

    Attributes:
        now: by the clock of leases.
        unix: Unix time.
        expires: until when is remembered what is granted or done now, in Unix time.

    """

    now: float
    unix: float
    expires: float

    def unix_time(self, at: float) -> float:
        """Return the Unix time that a time of the clock of leases stands for."""
        return self.unix + (at - self.now)


def state_of(record: Record, moment: Moment) -> State:
    """Return the state of an event at this moment; leases and schedules end without a call."""
    if moment.unix < record.done_until:
        return State.DONE
    letter = record.letter
    if letter is not None:
        state = State.KEPT if letter.is_kept else State.REPLAYED
        if letter.is_saved:
            state = State.SAVED_CLAIMED
    else:
        state = State.CLAIMED if record.queued is None else State.FETCHED
    if moment.now >= record.until:
        state = LIFE[state][Step.EXPIRE].state
    if letter is not None and letter.is_saved and moment.unix >= letter.buried_at:
        state = LIFE[state][Step.END].state
    return state


_KNOWN_AS = {
    State.CLAIMED: Known.IN_FLIGHT,
    State.WAITING: Known.WAITING,
    State.FETCHED: Known.WAITING,
    State.SAVED: Known.FAILED,
    State.SAVED_CLAIMED: Known.IN_FLIGHT,
    State.KEPT: Known.IN_FLIGHT,
    State.INTERRUPTED: Known.DEAD,
    State.DEAD: Known.DEAD,
    State.REPLAYED: Known.DEAD,
    State.DONE: Known.DONE,
}


def known_as(record: Record, moment: Moment) -> Known | None:
    """Return what is known of an event, or None for one that was never tried."""
    state = state_of(record, moment)
    if state is State.FREE and record.attempt and moment.unix < record.expires:
        return Known.FAILED
    return _KNOWN_AS.get(state)


def claim(
    record: Record, moment: Moment, key: DeliveryKey, token: Token, lease: float
) -> tuple[ClaimResult, Record]:
    """Claim an event for so many seconds."""
    return _claim(record, moment, Step.CLAIM, key, token, lease)


def replay(
    record: Record, moment: Moment, key: DeliveryKey, token: Token, lease: float
) -> tuple[ClaimResult | None, Record]:
    """Claim a dead letter, which stays one, or what was saved; None where there is neither."""
    record = _capped(record, moment)
    if Step.REPLAY not in LIFE[state_of(record, moment)]:
        return None, record
    return _claim(record, moment, Step.REPLAY, key, token, lease)


def fetch(
    record: Record, moment: Moment, key: DeliveryKey, token: Token, lease: float
) -> tuple[Claimed | None, Record]:
    """Claim an event of the inbox that is due; None if somebody is at it.

    One that is not in the inbox by its state, since something else has settled it, is taken out.
    """
    if Step.FETCH not in LIFE[state_of(record, moment)]:
        return None, record._replace(queued=None)
    result, record = _claim(record, moment, Step.FETCH, key, token, lease)
    if isinstance(result, Claimed):
        return result, record._replace(queued=_scheduled(record.queued, moment, lease))
    # An attempt inside a request, in a process without the inbox, was extended meanwhile.
    queued = _scheduled(record.queued, moment, record.until - moment.now)
    return None, record._replace(queued=queued)


def fetch_again(
    record: Record, moment: Moment, key: DeliveryKey, token: Token, lease: float
) -> tuple[Claimed | None, Record]:
    """Return what the same take has taken before and still holds, with its lease begun anew."""
    if record.token != token or moment.now >= record.until:
        return None, record
    held, record = fetch(record, moment, key, token, lease)
    if held is None:
        return None, record
    return held._replace(lease=lease), record._replace(until=moment.now + lease, lease=lease)


def enqueue(record: Record, moment: Moment, token: Token) -> tuple[EnqueueResult, Record]:
    """Give an event a place in the inbox, unless it is known."""
    record = _capped(record, moment)
    answer, state = LIFE[state_of(record, moment)][Step.ENQUEUE]
    if answer is Answer.STORED:
        # One that is claimed is due when that attempt's lease ends.
        delay = max(0.0, record.until - moment.now)
        queued = Queued(token, moment.now + delay, delay) if state in _IN_INBOX else None
        letter = record.letter if state in _WITH_LETTER else None  # the inbox has its own copy
        return Stored(), record._replace(queued=queued, letter=letter)
    if answer is Answer.WAITING:
        is_own = record.queued is not None and record.queued.put == token
        return Stored() if is_own else Waiting(), record
    return Done() if answer is Answer.DONE else Dead(), record


def extend(
    record: Record,
    moment: Moment,
    claim: Claimed,
    finished: frozenset[str] = _NONE,
    outstanding: frozenset[str] = _NONE,
) -> tuple[Ownership, Record]:
    """Start the lease anew, and note what has finished and what is outstanding."""
    state = _owners_next(record, moment, claim, Step.EXTEND)
    if state is None:
        return Ownership.LOST, _lost(record, finished)
    finished, outstanding = _noted(record, finished, outstanding)
    return Ownership.HELD, record._replace(
        until=moment.now + claim.lease if state in _LIVE else 0.0,
        finished=finished,
        outstanding=outstanding,
        queued=_scheduled(record.queued, moment, claim.lease),
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
    """End an attempt that did not succeed; one in the inbox is due ``after`` so many seconds."""
    state = _owners_next(record, moment, claim, Step.RELEASE)
    if state is None:
        return Ownership.LOST, _lost(record, finished)
    error = error_text(error or "")
    finished, outstanding = _noted(record, finished, outstanding)
    letter = record.letter if state in _WITH_LETTER else None
    if state in _DEAD and (letter is None or letter.is_kept):
        letter = Letter(DeadReason.EXHAUSTED, error, moment.unix, is_kept=False)
    elif letter is not None and letter.is_kept and error:
        letter = letter._replace(reason=DeadReason.EXHAUSTED, error=error)
    return Ownership.HELD, record._replace(
        token=None,
        until=record.until if state in _LIVE else 0.0,
        attempt=record.attempt - (not began),
        finished=finished,
        outstanding=outstanding,
        history=_failed(record, moment.unix, error),
        queued=_scheduled(record.queued, moment, max(0.0, after)) if state in _IN_INBOX else None,
        letter=letter,
    )


def keep(
    record: Record, moment: Moment, claim: Claimed, dead_at: float | None = None
) -> tuple[Ownership, Record]:
    """Keep the delivery of a claim, unless the event waits in the inbox or is a dead letter."""
    step = Step.KEEP if _is_over(dead_at, moment) else Step.SAVE
    state = _owners_next(record, moment, claim, step)
    if state is None:
        return Ownership.LOST, record
    return Ownership.HELD, _kept(record, moment, state, dead_at)


def keep_in_flight(record: Record, moment: Moment, dead_at: float | None = None) -> Record:
    """Keep a delivery beside somebody else's claim, unless the event is done."""
    record = _capped(record, moment)
    step = Step.KEEP_IN_FLIGHT if _is_over(dead_at, moment) else Step.SAVE_IN_FLIGHT
    return _kept(record, moment, LIFE[state_of(record, moment)][step].state, dead_at)


def bury(
    record: Record,
    moment: Moment,
    claim: Claimed,
    reason: DeadReason,
    error: str = "",
    finished: frozenset[str] = _NONE,
    outstanding: frozenset[str] = _NONE,
) -> tuple[Ownership, Record]:
    """Give an event up."""
    state = _owners_next(record, moment, claim, Step.BURY)
    if state is None:
        return Ownership.LOST, _lost(record, finished)
    error = error_text(error)
    finished, outstanding = _noted(record, finished, outstanding)
    letter = Letter(reason, error, moment.unix, is_kept=False) if state in _DEAD else None
    return Ownership.HELD, record._replace(
        token=None,
        until=record.until if state in _LIVE else 0.0,
        finished=finished,
        outstanding=outstanding,
        history=_failed(record, moment.unix, error),
        queued=record.queued if state in _IN_INBOX else None,
        letter=letter,
    )


def complete(moment: Moment) -> Record:
    """Return the record of an event that is handled, whatever was known of it."""
    return Record(done_until=moment.expires)


def discard(record: Record, moment: Moment) -> tuple[bool, Record]:
    """Take a dead letter for done."""
    if Step.DISCARD not in LIFE[state_of(_as_shown(record, moment), moment)]:
        return False, record
    return True, complete(moment)


def make_due(record: Record, moment: Moment) -> tuple[bool, Record]:
    """Make an event of the inbox due now, unless an attempt runs."""
    if record.queued is None or state_of(record, moment) is not State.WAITING:
        return False, record
    due = min(record.queued.due, moment.now)
    return True, record._replace(queued=record.queued._replace(due=due, delay=0.0))


def dead_letter(
    record: Record, moment: Moment, delivery: Delivery, place: str = ""
) -> DeadLetter | None:
    """Return a dead letter, or what was saved, as a person sees it; None if there is none now."""
    record = _as_shown(record, moment)
    letter, state = record.letter, state_of(record, moment)
    if letter is None or state in {State.SAVED_CLAIMED, State.KEPT, State.DONE}:
        return None
    if record.token is not None and moment.now >= record.until:
        record = _interrupted(record, moment)
    return DeadLetter(
        delivery,
        letter.reason,
        letter.error,
        record.attempt - (state is State.REPLAYED),  # the one under way may yet succeed
        record.finished,
        letter.buried_at,
        record.history,
        record.outstanding,
        state is State.SAVED,
        place,
    )


def error_text(error: str) -> str:
    """Return the text, bounded, with an escape for what no encoding can hold."""
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
    letter = record.letter
    if letter is not None and state in _DEAD:
        letter = letter._replace(is_kept=False, is_saved=False)
    # Every event of an inbox passes here, and `_replace` is much slower.
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
        letter,
    )
    return _own(record, key, token), record


def _own(record: Record, key: DeliveryKey, token: Token) -> Claimed:
    return Claimed(key, token, record.attempt, record.finished, record.lease, record.outstanding)


def _capped(record: Record, moment: Moment) -> Record:
    # A lease cannot end later than it lasts, unless its clock was set back or began anew.
    end = moment.now + record.lease
    return record._replace(until=end) if record.until > end else record


def _as_shown(record: Record, moment: Moment) -> Record:
    # To a person such a lease is over: who held it has most likely gone with the clock.
    is_over = record.until > moment.now + record.lease
    return record._replace(until=moment.now) if is_over else record


def _noted(
    record: Record, finished: frozenset[str], outstanding: frozenset[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Return what has finished and what is outstanding, with what is new of both."""
    finished |= record.finished
    return finished, (record.outstanding | outstanding) - finished


def _lost(record: Record, finished: frozenset[str]) -> Record:
    # Without an attempt there is nothing that can have succeeded; what is done has none any more.
    if finished <= record.finished or not record.attempt:
        return record
    finished, outstanding = _noted(record, finished, _NONE)
    return record._replace(finished=finished, outstanding=outstanding)


def _scheduled(queued: Queued | None, moment: Moment, delay: float) -> Queued | None:
    return queued and Queued(queued.put, moment.now + delay, delay)


def _kept(record: Record, moment: Moment, state: State, dead_at: float | None) -> Record:
    """Return the record in a state to which a delivery that is kept has led."""
    letter = record.letter
    if state in _SAVED and dead_at is not None:
        if letter is None:
            letter = Letter(DeadReason.INTERRUPTED, "", dead_at, is_kept=True, is_saved=True)
        letter = letter._replace(buried_at=min(letter.buried_at, dead_at))
    elif state in _KEPT and letter is None:
        letter = Letter(DeadReason.INTERRUPTED, "", moment.unix, is_kept=True)
    elif state in _KEPT and letter is not None and letter.is_saved and _is_over(dead_at, moment):
        letter = letter._replace(buried_at=moment.unix, is_saved=False)
    return record if letter is record.letter else record._replace(letter=letter)


def _is_over(dead_at: float | None, moment: Moment) -> bool:
    """Return whether the sender will not send the event again."""
    return dead_at is None or dead_at <= moment.unix


def _owners_next(record: Record, moment: Moment, claim: Claimed, step: Step) -> State | None:
    """Return the state after a step of the owner; None if the claim is lost."""
    if record.token != claim.token:
        return None
    then = LIFE[state_of(record, moment)].get(step)
    return then.state if then else None


def _failed(record: Record, ended_at: float, error: str) -> tuple[FailedAttempt, ...]:
    """Return the history, with the attempt's failure if it had one."""
    if not error:
        return record.history
    failure = FailedAttempt(record.attempt, ended_at, error[:MAX_HISTORY_ERROR_CHARACTERS])
    return (*record.history, failure)[-MAX_HISTORY:]


def _interrupted(record: Record, moment: Moment) -> Record:
    return record._replace(history=_failed(record, moment.unix_time(record.until), INTERRUPTED))
