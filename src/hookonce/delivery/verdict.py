"""What follows from an attempt: pure functions over what became of its handlers.

Nothing here waits, writes or answers; a run does what is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from ..errors import Reject, Retry, StoreError
from ..events import Event
from ..sender import ATTEMPTS, LAST_ATTEMPT_SECONDS, SCHEDULE_SECONDS
from ..stores.values import Claimed, DeadReason
from .outcome import BROKEN, Outcome, Reason, later
from .time_limit import BrokenStoreError

# Own attempts can be fewer than the sender's, because a copy that finds the event in flight counts
# as one of the sender's only; giving up one earlier leaves room for that.
_LAST_OWN_ATTEMPT = ATTEMPTS - 1


def is_last_delivery(delivery_attempt: int | None) -> bool:
    """Return whether the sender, by its own unsigned count, will not bring the event again."""
    return delivery_attempt is not None and delivery_attempt >= ATTEMPTS


def may_be_last(claim: Claimed, delivery_attempt: int | None) -> bool:
    """Return whether this may be the sender's last attempt, by counts that nobody has signed.

    Anybody can set the header of a copy, and anybody's copies count as attempts.
    """
    return claim.attempt >= _LAST_OWN_ATTEMPT or is_last_delivery(delivery_attempt)


def comes_until(event: Event[Any] | None, sent_at: float) -> float | None:
    """Return until when the sender may bring an event again, in Unix time.

    None where it will not, by what it has signed: the event is so old that only the last attempt of
    the schedule can bring it.

    Args:
        event: None if it cannot be read; then it counts as created when it was sent.
        sent_at: the signed time of this attempt.

    """
    created_at = sent_at if event is None else event.created_at.timestamp()
    if sent_at - created_at >= LAST_ATTEMPT_SECONDS:
        return None
    # Nothing was created after it was sent, whatever the sender's clocks say.
    return min(created_at, sent_at) + SCHEDULE_SECONDS


def unavailable(error: StoreError) -> Outcome:
    """Return what to answer where a store has failed."""
    return BROKEN if isinstance(error, BrokenStoreError) else later(Reason.STORE_UNAVAILABLE)


class LeaseLost(Retry):
    """A handler was not begun: another process may have the event by now."""

    def __str__(self) -> str:
        return "not begun, since the lease was over"


class NoTurn(Retry):
    """A handler was not begun: another run has its key, or the store could not say.

    Args:
        reason: what the sender is told.
        after: in how many seconds it may have its turn at the latest, if that is known.

    """

    def __init__(self, reason: Reason, after: float | None = None) -> None:
        super().__init__(after)
        self.reason = reason

    def __str__(self) -> str:
        return "not begun, since it waits for its turn"


class Failure(NamedTuple):
    """A handler that has not succeeded, and what it raised."""

    handler: str
    error: Exception


class Report(NamedTuple):
    """What is missing after an attempt.

    Attributes:
        failures: the handlers that have not succeeded, in the order of registration.
        absent: handlers that the event still owes and that this process does not have.

    """

    failures: Sequence[Failure]
    absent: frozenset[str] = frozenset()

    @property
    def retry_after(self) -> float | None:
        """The longest wait a ``Retry`` asked for, in seconds; None if none named one."""
        asked = [f.error.after_seconds for f in self.failures if isinstance(f.error, Retry)]
        return max((seconds for seconds in asked if seconds is not None), default=None)

    @property
    def errors(self) -> tuple[Failure, ...]:
        """The failures that nobody asked for: all but ``Retry``."""
        return tuple(f for f in self.failures if not isinstance(f.error, Retry))

    @property
    def only_waits(self) -> bool:
        """Whether nothing has failed, and handlers only wait for their turn."""
        waits = [isinstance(failure.error, NoTurn) for failure in self.failures]
        return bool(waits) and all(waits) and not self.absent

    @property
    def owed(self) -> frozenset[str]:
        """The handlers that have still to succeed."""
        return self.absent.union(failure.handler for failure in self.failures)

    def describe(self) -> str:
        """Return what is missing as text for an operator, one line for each handler."""
        lines = [f"{failure.handler}: {_one_line(failure.error)}" for failure in self.failures]
        lines += [
            f"{name}: no handler of this name is registered for it here"
            for name in sorted(self.absent)
        ]
        return "\n".join(lines)


def _one_line(error: Exception) -> str:
    try:
        text = " ".join(str(error).split())
    except BaseException:  # noqa: BLE001 - a broken __str__ must not break the report of it
        text = "(its text cannot be made)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class Verdict(NamedTuple):
    """What follows from an attempt that has not succeeded.

    Attributes:
        outcome: the answer.
        dead: why the event becomes a dead letter; None where it is given back, and the sender or
            the inbox brings it again.

    """

    outcome: Outcome
    dead: DeadReason | None = None


def decide(report: Report, *, last_chance: bool, keeps_bodies: bool) -> Verdict:
    """Return what follows from a report of what is missing.

    A rejection counts only when nothing else is missing: as long as another handler may still
    succeed, the event comes again, and the rejecting one will reject it then.
    """
    errors = [failure.error for failure in report.failures]
    waits = [error for error in errors if isinstance(error, NoTurn)]
    if report.only_waits:
        return Verdict(_until_its_turn(waits))
    if errors and not report.absent and all(isinstance(error, Reject) for error in errors):
        return Verdict(Outcome(HTTPStatus.ACCEPTED, Reason.REJECTED), DeadReason.REJECTED)
    if last_chance and keeps_bodies:
        return Verdict(Outcome(HTTPStatus.ACCEPTED, Reason.EXHAUSTED), DeadReason.EXHAUSTED)
    if report.errors:
        return Verdict(Outcome(HTTPStatus.INTERNAL_SERVER_ERROR, Reason.HANDLER_FAILED))
    if any(isinstance(error, LeaseLost) for error in errors):
        return Verdict(later(Reason.IN_FLIGHT))
    if waits:
        return Verdict(_until_its_turn(waits))
    if errors:
        return Verdict(later(Reason.RETRY_REQUESTED, report.retry_after))
    return Verdict(later(Reason.HANDLER_ABSENT))


def _until_its_turn(waits: Sequence[NoTurn]) -> Outcome:
    known = [error.after_seconds for error in waits if error.after_seconds is not None]
    return later(waits[0].reason, max(known, default=None))


def wait_seconds(report: Report, backoff_seconds: float) -> float:
    """Return how long an event of the inbox waits after a failure.

    A wait that a handler asked for is its own affair; others' failures wait as long at least.
    """
    least = backoff_seconds if report.errors or report.absent else 0.0
    asked = backoff_seconds if report.retry_after is None else report.retry_after
    return max(least, asked)
