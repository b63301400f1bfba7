"""The record of an event, and the state that follows from the record and the clock.

When a lease or a schedule ends, the state changes without a write, so no background task is needed.
"""

from __future__ import annotations

from typing import NamedTuple

from ..values import INTERRUPTED, DeadLetter, DeadReason, Delivery, FailedAttempt, Known, Token
from .table import LIFE, State, Step

# Limit the history of an event, because each failure writes the whole history again.
MAX_HISTORY = 20
MAX_HISTORY_ERROR_CHARACTERS = 1_000
_MAX_ERROR_CHARACTERS = 4_000

_NONE: frozenset[str] = frozenset()


class InboxEntry(NamedTuple):
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
        reason: why the event is, or would be, a dead letter.
        error: what failed.
        buried_unix: Unix time at which it became, or will become, a dead letter.
        is_kept: whether this is a kept delivery, which is no dead letter while an attempt runs.
        sender_retries: whether the kept delivery is also no dead letter before ``buried_unix``,
            because the sender may send the event again.
    """

    reason: DeadReason
    error: str
    buried_unix: float
    is_kept: bool
    sender_retries: bool = False


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
    queued: InboxEntry | None = None
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
    """Return the state of an event now; a lease or schedule may have ended since the last write."""
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


def is_forgotten(record: Record, moment: Moment) -> bool:
    """Return whether the store may delete the ``record`` of an event at a ``moment``."""
    if record.queued is not None or record.dead_letter is not None:
        return False
    return moment.unix >= max(record.done_until, record.expires) and moment.now >= record.until


def dead_letter(
    record: Record, moment: Moment, delivery: Delivery, place: str = ""
) -> DeadLetter | None:
    """Return a dead letter or a kept delivery, as an operator sees it; None if there is none."""
    record = as_shown(record, moment)
    dead_letter, state = record.dead_letter, state_of(record, moment)
    if dead_letter is None or state in {State.KEPT_CLAIMED, State.LAST_CHANCE, State.DONE}:
        return None
    if record.token is not None and moment.now >= record.until:
        record = interrupted(record, moment)
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


def as_shown(record: Record, moment: Moment) -> Record:
    """Return the record for operators; a lease from before a restart of the clock shows as ended.

    Only a restart of the clock can leave a lease more time than its length. Then the owner is
    probably gone.
    """
    is_over = record.until > moment.now + record.lease
    return record._replace(until=moment.now) if is_over else record


def capped(record: Record, moment: Moment) -> Record:
    """Return the record with at most one whole lease left, because the clock may be set back."""
    end = moment.now + record.lease
    return record._replace(until=end) if record.until > end else record


def history_after(record: Record, ended_unix: float, error: str) -> tuple[FailedAttempt, ...]:
    """Return the history after an attempt; an attempt without an error adds nothing."""
    if not error:
        return record.history
    failure = FailedAttempt(record.attempt, ended_unix, error[:MAX_HISTORY_ERROR_CHARACTERS])
    return (*record.history, failure)[-MAX_HISTORY:]


def interrupted(record: Record, moment: Moment) -> Record:
    """Add the attempt whose lease has run out to the history of the record."""
    return record._replace(
        history=history_after(record, moment.unix_time(record.until), INTERRUPTED)
    )
