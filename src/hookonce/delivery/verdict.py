"""What follows from an attempt: pure functions over the results of its handlers.

Nothing here waits, writes or answers; the attempt carries out the decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, NamedTuple, TypeAlias

from ..errors import Reject, Retry, StoreError
from ..events import Event
from ..outcome import ALREADY_DEAD, BROKEN, DUPLICATE, Outcome, Reason, later
from ..sender import ATTEMPTS, LAST_ATTEMPT_SECONDS, SCHEDULE_SECONDS
from ..stores.time_limit import BrokenStoreError
from ..stores.values import Claimed, Dead, DeadReason, Done, InFlight
from .calls import Call

# One fewer than the sender's attempts: the sender also counts a delivery that arrives while the
# event is in flight, which is no attempt here.
_LAST_OWN_ATTEMPT = ATTEMPTS - 1

_REJECTED = Outcome(HTTPStatus.ACCEPTED, Reason.REJECTED)
_EXHAUSTED = Outcome(HTTPStatus.ACCEPTED, Reason.EXHAUSTED)
_FAILED = Outcome(HTTPStatus.INTERNAL_SERVER_ERROR, Reason.HANDLER_FAILED)


def is_last_delivery(delivery_attempt: int | None) -> bool:
    """Return whether this is the sender's last attempt according to its unsigned header."""
    return delivery_attempt is not None and delivery_attempt >= ATTEMPTS


def may_be_last(claim: Claimed, delivery_attempt: int | None) -> bool:
    """Return whether this may be the last attempt, by our count or by the sender's header.

    Both can be forged: anybody can replay a delivery with another header, and each copy counts as
    an attempt.
    """
    return claim.attempt >= _LAST_OWN_ATTEMPT or is_last_delivery(delivery_attempt)


def redelivered_until(event: Event[Any] | None, sent_at: float) -> float | None:
    """Return the Unix time until which the sender may deliver an event again.

    None if it will not: by the signed times, the event is so old that this is the last attempt of
    the schedule.

    Args:
        event: the event; None if it cannot be read, which then counts as created when it was sent.
        sent_at: the signed time of this delivery, in Unix time.
    """
    created_at = sent_at if event is None else event.created_at.timestamp()
    if sent_at - created_at >= LAST_ATTEMPT_SECONDS:
        return None
    # `min`, because the sender's two clocks may differ.
    return min(created_at, sent_at) + SCHEDULE_SECONDS


def store_failed(error: StoreError) -> Outcome:
    """Return the answer after a failure of the store: 500 if a custom store broke its contract."""
    return BROKEN if isinstance(error, BrokenStoreError) else later(Reason.STORE_UNAVAILABLE)


def not_claimed(result: InFlight | Done | Dead, now_unix: float) -> Outcome:
    """Return the answer for an event that the store does not give to this attempt."""
    match result:
        case InFlight():
            return later(Reason.IN_FLIGHT, result.until_unix - now_unix)
        case Done():
            return DUPLICATE
        case Dead():
            return ALREADY_DEAD


class LeaseLost(Retry):
    """A handler was not begun, because another process may already hold the event."""

    def __str__(self) -> str:
        return "not begun, since the lease was over"


class NotAcquired(Retry):
    """A handler was not begun, because its key lock could not be acquired.

    Args:
        reason: the reason in the answer to the sender.
        after: seconds until the lock is free at the latest; None if that is unknown.
    """

    def __init__(self, reason: Reason, after: float | None = None) -> None:
        super().__init__(after)
        self.reason = reason

    def __str__(self) -> str:
        return "not begun, since it waits for its key lock"


class Failure(NamedTuple):
    """A handler that has not succeeded, and the error it raised."""

    handler: str
    error: Exception


class Report(NamedTuple):
    """The handlers that have not succeeded in an attempt.

    Attributes:
        failures: the handlers that have not succeeded, in the order of registration.
        absent: the outstanding handlers that this process does not have.
    """

    failures: list[Failure]
    absent: frozenset[str] = frozenset()

    @property
    def retry_after(self) -> float | None:
        """The longest wait that a ``Retry`` asked for, in seconds; None without such a wait."""
        asked = [f.error.after_seconds for f in self.failures if isinstance(f.error, Retry)]
        return max((seconds for seconds in asked if seconds is not None), default=None)

    @property
    def failures_except_retries(self) -> tuple[Failure, ...]:
        """All failures except ``Retry``, which a handler raises on purpose."""
        return tuple(f for f in self.failures if not isinstance(f.error, Retry))

    @property
    def is_rejected(self) -> bool:
        """Whether every outstanding handler has rejected the event."""
        rejects = [isinstance(failure.error, Reject) for failure in self.failures]
        return bool(rejects) and all(rejects) and not self.absent

    @property
    def only_waits(self) -> bool:
        """Whether no handler has failed, and every outstanding handler waits for a key lock."""
        waits = [isinstance(failure.error, NotAcquired) for failure in self.failures]
        return bool(waits) and all(waits) and not self.absent

    @property
    def outstanding(self) -> frozenset[str]:
        """The handlers that still have to succeed."""
        return self.absent.union(failure.handler for failure in self.failures)

    def describe(self) -> str:
        """Return the outstanding handlers as text for an operator, one line for each."""
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
        text = "(str() of this error failed)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class Complete(NamedTuple):
    """Every handler has succeeded: the event is done."""


COMPLETE = Complete()


class Release(NamedTuple):
    """The event is free, and the sender delivers it again.

    Attributes:
        outcome: the answer.
        error: what failed, one line for each handler; empty if nothing failed.
        outstanding: the handlers that have still to succeed.
    """

    outcome: Outcome
    error: str
    outstanding: frozenset[str]


class Defer(NamedTuple):
    """The event waits in the inbox for another attempt.

    Attributes:
        outcome: the result of the attempt; no request waits for it.
        error: what failed, one line for each handler; empty if nothing failed.
        outstanding: the handlers that have still to succeed.
        after_seconds: how long the event waits.
        counts: whether the attempt counts; an attempt that only waited for a key lock does not.
    """

    outcome: Outcome
    error: str
    outstanding: frozenset[str]
    after_seconds: float
    counts: bool


class Bury(NamedTuple):
    """The event becomes a dead letter.

    Attributes:
        outcome: the answer.
        error: what failed, one line for each handler.
        outstanding: the handlers that have still to succeed.
        reason: why the event is given up.
    """

    outcome: Outcome
    error: str
    outstanding: frozenset[str]
    reason: DeadReason


class Abandon(NamedTuple):
    """The attempt ends without a result: its handlers were stopped, or none began.

    Attributes:
        calls: the handlers that were running.
    """

    calls: Sequence[Call]


AfterFailure: TypeAlias = Release | Defer | Bury
"""What becomes of an event after an attempt that has not succeeded."""

Settlement: TypeAlias = Complete | AfterFailure | Abandon
"""What the store records at the end of an attempt."""


def decide(
    report: Report, *, last_chance: bool, keeps_bodies: bool, backoff_seconds: float | None = None
) -> AfterFailure:
    """Return what follows from an attempt that has not succeeded.

    A rejection counts only if every missing handler rejects the event. While another handler may
    still succeed, the event comes again, and the rejecting handler rejects it then.

    Args:
        report: the handlers that have not succeeded.
        last_chance: whether the event may not be delivered again.
        keeps_bodies: whether the store can keep a dead letter.
        backoff_seconds: how long an event of the inbox waits after a failure; None for an event
            that the sender delivers again.
    """
    only_waits = report.only_waits
    error, outstanding = "" if only_waits else report.describe(), report.outstanding
    if not only_waits:
        if report.is_rejected:
            return Bury(_REJECTED, error, outstanding, DeadReason.REJECTED)
        if last_chance and keeps_bodies:
            return Bury(_EXHAUSTED, error, outstanding, DeadReason.EXHAUSTED)
    outcome = _outcome(report)
    if backoff_seconds is None:
        return Release(outcome, error, outstanding)
    after_seconds = wait_seconds(report, backoff_seconds)
    return Defer(outcome, error, outstanding, after_seconds, counts=not only_waits)


def _outcome(report: Report) -> Outcome:
    """Return the answer for an event that is to be delivered again."""
    errors = [failure.error for failure in report.failures]
    if report.failures_except_retries:
        return _FAILED
    if any(isinstance(error, LeaseLost) for error in errors):
        return later(Reason.IN_FLIGHT)
    if waits := [error for error in errors if isinstance(error, NotAcquired)]:
        return _until_acquired(waits)
    if errors:
        return later(Reason.RETRY_REQUESTED, report.retry_after)
    return later(Reason.HANDLER_ABSENT)


def _until_acquired(waits: Sequence[NotAcquired]) -> Outcome:
    known = [error.after_seconds for error in waits if error.after_seconds is not None]
    return later(waits[0].reason, max(known, default=None))


def what_follows(settlement: AfterFailure) -> str:
    """Return what happens to the event now, as text for an operator."""
    match settlement:
        case Release():
            return "the sender delivers it again"
        case Defer():
            return f"next attempt in {settlement.after_seconds:.0f} s"
        case Bury():
            return f"it is a dead letter now, as {settlement.reason}"


def wait_seconds(report: Report, backoff_seconds: float) -> float:
    """Return how long an event of the inbox waits after a failure.

    A `Retry(after=…)` may wait less than the backoff, unless another handler has failed.
    """
    least = backoff_seconds if report.failures_except_retries or report.absent else 0.0
    asked = backoff_seconds if report.retry_after is None else report.retry_after
    return max(least, asked)
