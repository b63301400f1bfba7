"""The steps of an event: each is a function from a record and a moment to the next record."""

from __future__ import annotations

from ..formats import damaged
from ..values import (
    Claimed,
    ClaimResult,
    Dead,
    DeadReason,
    DeliveryKey,
    Done,
    EnqueueResult,
    InFlight,
    Ownership,
    Stored,
    Token,
    Waiting,
)
from .record import (
    DeadLetterRecord,
    InboxEntry,
    Moment,
    Record,
    as_shown,
    capped,
    error_text,
    history_after,
    interrupted,
    state_of,
)
from .table import LIFE, Answer, State, Step

# Each set has the states in which a record holds the same kind of value: a live claim, an entry in
# the inbox, or a kind of dead letter. `state_of` finds the state by these values, and a step writes
# the values of its next state.
_LIVE = {State.CLAIMED, State.FETCHED, State.KEPT_CLAIMED, State.LAST_CHANCE, State.REPLAYED}
_IN_INBOX = {State.WAITING, State.FETCHED}
_SENDER_RETRIES = {State.KEPT_FREE, State.KEPT_CLAIMED}
_KEPT = {State.LAST_CHANCE, State.INTERRUPTED}
_DEAD = {State.DEAD, State.REPLAYED}
_WITH_DEAD_LETTER = _SENDER_RETRIES | _KEPT | _DEAD

_NONE: frozenset[str] = frozenset()


def claim(
    record: Record, moment: Moment, key: DeliveryKey, token: Token, lease: float
) -> tuple[ClaimResult, Record]:
    """Claim an event for ``lease`` seconds; raise DamagedError if its record was set aside."""
    _check_readable(record, moment)
    return _claim(record, moment, Step.CLAIM, key, token, lease)


def replay(
    record: Record, moment: Moment, key: DeliveryKey, token: Token, lease: float
) -> tuple[ClaimResult | None, Record]:
    """Claim a dead letter or a kept delivery; return None if the event has neither.

    The dead letter or kept delivery stays until the event succeeds.
    """
    record = capped(record, moment)
    if Step.REPLAY not in LIFE[state_of(record, moment)]:
        return None, record
    return _claim(record, moment, Step.REPLAY, key, token, lease)


def fetch(
    record: Record, moment: Moment, key: DeliveryKey, token: Token, lease: float
) -> tuple[Claimed | None, Record]:
    """Claim an event of the inbox that is due; return None while another attempt runs.

    An event that another step has settled leaves the inbox.
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
    """Extend and return the claim of a repeated fetch; return None if the claim has ended."""
    if record.token != token or moment.now >= record.until:
        return None, record
    held, record = fetch(record, moment, key, token, lease)
    if held is None:
        return None, record
    return held._replace(lease_seconds=lease), record._replace(
        until=moment.now + lease, lease=lease
    )


def enqueue(record: Record, moment: Moment, token: Token) -> tuple[EnqueueResult, Record]:
    """Put an event into the inbox, unless the event is known; raise DamagedError like ``claim``."""
    _check_readable(record, moment)
    record = capped(record, moment)
    answer, state = LIFE[state_of(record, moment)][Step.ENQUEUE]
    if answer is Answer.STORED:
        # A claimed event is due when the lease of its attempt ends.
        delay = max(0.0, record.until - moment.now)
        queued = InboxEntry(token, moment.now + delay, delay) if state in _IN_INBOX else None
        # The inbox has its own copy of the body, so a kept delivery may be dropped.
        dead_letter = record.dead_letter if state in _WITH_DEAD_LETTER else None
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
        history=history_after(record, moment.unix, error),
        queued=_scheduled(record.queued, moment, max(0.0, after)) if state in _IN_INBOX else None,
        dead_letter=dead_letter,
    )


def keep(
    record: Record,
    moment: Moment,
    claim: Claimed,
    dead_unix: float | None = None,
    *,
    renew: bool = False,
) -> tuple[Ownership, Record]:
    """Keep the delivery of a claim, unless the event waits in the inbox or is a dead letter."""
    step = Step.KEEP if _is_over(dead_unix, moment) else Step.KEEP_UNTIL
    state = _owners_next(record, moment, claim, step)
    if state is None:
        return Ownership.LOST, record
    return Ownership.HELD, _kept(record, moment, state, dead_unix, renew=renew)


def keep_in_flight(
    record: Record, moment: Moment, dead_unix: float | None = None, *, renew: bool = False
) -> Record:
    """Keep the body of a delivery whose event another caller has claimed."""
    record = capped(record, moment)
    step = Step.KEEP_IN_FLIGHT if _is_over(dead_unix, moment) else Step.KEEP_IN_FLIGHT_UNTIL
    state = LIFE[state_of(record, moment)][step].state
    return _kept(record, moment, state, dead_unix, renew=renew)


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
        history=history_after(record, moment.unix, error),
        queued=record.queued if state in _IN_INBOX else None,
        dead_letter=dead_letter,
    )


def complete(moment: Moment) -> Record:
    """Return the record of a handled event; this step is allowed in every state."""
    return Record(done_until=moment.expires)


def discard(record: Record, moment: Moment) -> tuple[bool, Record]:
    """Turn a dead letter into a done event; return False if the event is not a dead letter."""
    if Step.DISCARD not in LIFE[state_of(as_shown(record, moment), moment)]:
        return False, record
    return True, complete(moment)


def make_due(record: Record, moment: Moment) -> tuple[bool, Record]:
    """Make an event of the inbox due now, unless an attempt runs."""
    if record.queued is None or state_of(record, moment) is not State.WAITING:
        return False, record
    due = min(record.queued.due, moment.now)
    return True, record._replace(queued=record.queued._replace(due=due, delay=0.0))


def _claim(
    record: Record, moment: Moment, step: Step, key: DeliveryKey, token: Token, lease: float
) -> tuple[ClaimResult, Record]:
    record = capped(record, moment)
    answer, state = LIFE[state_of(record, moment)][step]
    if answer is Answer.GRANTED:
        if record.token is not None:
            record = interrupted(record, moment)
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
    # Do not use `_replace`, which is much slower: every event of an inbox needs this step.
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


def _check_readable(record: Record, moment: Moment) -> None:
    dead_letter = record.dead_letter
    is_damaged = dead_letter is not None and dead_letter.reason is DeadReason.DAMAGED
    if is_damaged and state_of(record, moment) is State.DEAD:
        raise damaged()


def _noted(
    record: Record, finished: frozenset[str], outstanding: frozenset[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Merge the finished and outstanding handlers of the record with those of this step."""
    finished |= record.finished
    return finished, (record.outstanding | outstanding) - finished


def _lost(record: Record, finished: frozenset[str]) -> Record:
    # A new event and a done event have no attempts: the store remembers no handlers for them.
    if finished <= record.finished or not record.attempt:
        return record
    finished, outstanding = _noted(record, finished, _NONE)
    return record._replace(finished=finished, outstanding=outstanding)


def _scheduled(queued: InboxEntry | None, moment: Moment, delay: float) -> InboxEntry | None:
    return queued and InboxEntry(queued.token, moment.now + delay, delay)


def _kept(
    record: Record, moment: Moment, state: State, dead_unix: float | None, *, renew: bool
) -> Record:
    """Return the record for the next state, with a kept delivery if that state has one."""
    dead_letter = record.dead_letter
    if state in _SENDER_RETRIES and dead_unix is not None:
        if dead_letter is None:
            dead_letter = DeadLetterRecord(
                DeadReason.INTERRUPTED, "", dead_unix, is_kept=True, sender_retries=True
            )
        later_or_earlier = max if renew else min
        buried_unix = later_or_earlier(dead_letter.buried_unix, dead_unix)
        dead_letter = dead_letter._replace(buried_unix=buried_unix)
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
    """Return the state after a step that needs the claim; None if the claim is lost."""
    if record.token != claim.token:
        return None
    then = LIFE[state_of(record, moment)].get(step)
    return then.state if then else None
