"""Decides how an attempt ends, by pure functions over the results of its handlers.

Nothing here waits, writes or answers; the attempt carries out the decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, NamedTuple, TypeAlias

from ..errors import Reject, Retry, StoreError
from ..events import Event
from ..outcome import ALREADY_DEAD, BROKEN, DUPLICATE, Outcome, Reason, later
from ..senders import Rules
from ..stores.time_limit import BrokenStoreError
from ..stores.values import Claimed, Dead, DeadReason, Done, InFlight

_REJECTED = Outcome(HTTPStatus.ACCEPTED, Reason.REJECTED)
_EXHAUSTED = Outcome(HTTPStatus.ACCEPTED, Reason.EXHAUSTED)
_FAILED = Outcome(HTTPStatus.INTERNAL_SERVER_ERROR, Reason.HANDLER_FAILED)


def is_last_delivery(rules: Rules, delivery_attempt: int | None) -> bool:
    """Return whether this may be the sender's last attempt according to its unsigned header.

    Every attempt may be the last of a sender that does not publish its number of attempts.
    """
    return rules.attempts is None or (delivery_attempt or 0) >= rules.attempts


def may_be_last(rules: Rules, claim: Claimed, delivery_attempt: int | None) -> bool:
    """Return whether this may be the last attempt, by our count or by the sender's header.

    Both can be forged: anybody can replay a delivery with another header, and each copy counts as
    an attempt. If the sender does not publish its number of attempts, every attempt after the first
    may be the last; the first attempt keeps the body when it fails.
    """
    most = rules.attempts
    if most is None:
        return claim.attempt > 1
    # One fewer than the sender's attempts: the sender also counts a delivery that arrives while the
    # event is in flight, which is no attempt here.
    return claim.attempt >= most - 1 or (delivery_attempt or 0) >= most


def redelivered_until(rules: Rules, event: Event[Any] | None, sent_at: float) -> float | None:
    """Return the Unix time until which the sender may deliver an event again.

    None if it will not: by the signed times, the event is so old that this is the last attempt of
    the schedule.

    Args:
        rules: the rules by which the sender delivers.
        event: the event; None if it cannot be read. Such an event, and an event without a time,
            counts as created when it was sent.
        sent_at: the signed time of this delivery, in Unix time.
    """
    if rules.attempts is None or rules.reads_retry_after:
        # The event's age does not show how many attempts are left, so count from this attempt.
        return sent_at + rules.span_seconds
    created = None if event is None else event.created_at
    created_at = sent_at if created is None else created.timestamp()
    last = rules.last_attempt_seconds
    if last is not None and sent_at - created_at >= last:
        return None
    # Take the earlier time: the sender may take the two times from clocks that differ.
    return min(created_at, sent_at) + rules.span_seconds


def store_failed(error: StoreError) -> Outcome:
    """Return the answer after a failure of the store: 500 if a custom store broke its contract."""
    return BROKEN if isinstance(error, BrokenStoreError) else later(Reason.STORE_UNAVAILABLE)


class ShuttingDown(NamedTuple):
    """A shutdown has begun before the store granted a claim."""


def not_claimed(result: InFlight | Done | Dead | ShuttingDown, now_unix: float) -> Outcome:
    """Return the answer for an event that this attempt has not claimed."""
    match result:
        case ShuttingDown():
            return later(Reason.SHUTTING_DOWN)
        case InFlight():
            return later(Reason.IN_FLIGHT, result.until_unix - now_unix)
        case Done():
            return DUPLICATE
        case Dead():
            return ALREADY_DEAD


class LeaseLost(Retry):
    """The attempt has not begun a handler, because another process may already hold the event."""

    def __str__(self) -> str:
        return "not begun, since the lease was over"


class NotAcquired(Retry):
    """The attempt has not begun a handler, because it could not acquire the key lock.

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
        has_begun: whether a handler has begun.
    """

    failures: list[Failure]
    absent: frozenset[str] = frozenset()
    has_begun: bool = True

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
    except BaseException:  # noqa: BLE001 - a broken __str__ of the error must not prevent its report
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
        counts: whether the attempt counts; an attempt that began no handler does not.
    """

    outcome: Outcome
    error: str
    outstanding: frozenset[str]
    counts: bool


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


AfterFailure: TypeAlias = Release | Defer | Bury
"""What becomes of an event after an attempt that has not succeeded."""

Settlement: TypeAlias = Complete | AfterFailure
"""What the store records after the handlers have ended."""


def decide(
    report: Report, *, last_chance: bool, keeps_bodies: bool, backoff_seconds: float | None = None
) -> AfterFailure:
    """Return what becomes of an event after an attempt that has not succeeded.

    A rejection counts only if every outstanding handler rejects the event. While another handler
    may still succeed, the event is tried again, and the rejecting handler rejects it again.

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
        return Release(outcome, error, outstanding, counts=report.has_begun)
    after_seconds = wait_seconds(report, backoff_seconds)
    return Defer(outcome, error, outstanding, after_seconds, counts=not only_waits)


def _outcome(report: Report) -> Outcome:
    """Return the answer for an event that needs another attempt."""
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


def what_follows(settlement: AfterFailure, generation: int) -> str:
    """Return what happens to the event now, as text for an operator."""
    match settlement:
        case Release():
            return "the replay is tried again" if generation else "the sender delivers it again"
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
