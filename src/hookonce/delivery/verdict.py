"""What follows from an attempt: pure functions over what became of its handlers.

Nothing here waits, writes or answers; a run does what is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeAlias

from ..errors import Reject, Retry
from ..sender import ATTEMPTS
from ..stores.values import Claimed, DeadReason
from .outcome import Outcome, Reason, later

__all__ = [
    "Bury",
    "Complete",
    "Failure",
    "Release",
    "Report",
    "Verdict",
    "decide",
    "is_last_chance",
    "is_last_delivery",
    "wait_seconds",
]

# Own attempts can be fewer than the sender's, because a copy that finds the event in flight counts
# as one of the sender's only; giving up one earlier leaves room for that.
_LAST_OWN_ATTEMPT = ATTEMPTS - 1


def is_last_delivery(delivery_attempt: int | None) -> bool:
    """Return whether the sender, by its own unsigned count, will not bring the event again."""
    return delivery_attempt is not None and delivery_attempt >= ATTEMPTS


def is_last_chance(claim: Claimed, delivery_attempt: int | None) -> bool:
    """Return whether the sender may not bring the event again if this attempt fails."""
    return claim.attempt >= _LAST_OWN_ATTEMPT or is_last_delivery(delivery_attempt)


@dataclass(frozen=True, slots=True)
class Failure:
    """A handler and what it raised."""

    handler: str
    error: Exception


@dataclass(frozen=True, slots=True)
class Report:
    """What became of one attempt.

    Attributes:
        failures: the handlers that have not succeeded, in the order of registration.
        absent: handlers that the event still owes and that this process does not have.

    """

    failures: Sequence[Failure]
    absent: frozenset[str] = frozenset()

    @property
    def rejected(self) -> bool:
        """Whether there are failures, and all of them are ``Reject``."""
        return bool(self.failures) and all(isinstance(f.error, Reject) for f in self.failures)

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
    def owed(self) -> frozenset[str]:
        """The handlers that have still to succeed."""
        return self.absent.union(failure.handler for failure in self.failures)

    def describe(self) -> str:
        """Return what is missing as text for an operator, one line for each handler."""
        lines = [f"{failure.handler}: {_one_line(failure.error)}" for failure in self.failures]
        lines += [
            f"{name}: no handler of this name is registered here" for name in sorted(self.absent)
        ]
        return "\n".join(lines)


def _one_line(error: Exception) -> str:
    try:
        text = " ".join(str(error).split())
    except BaseException:  # noqa: BLE001 - a broken __str__ must not break the report of it
        text = "(its text cannot be made)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@dataclass(frozen=True, slots=True)
class Complete:
    """Every handler has succeeded: record it."""


@dataclass(frozen=True, slots=True)
class Release:
    """Give the event back; the sender or the inbox will bring it again."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Bury:
    """Make the event a dead letter."""

    reason: DeadReason
    outcome: Outcome


Verdict: TypeAlias = Complete | Release | Bury


def decide(report: Report, *, last_chance: bool, keeps_bodies: bool) -> Verdict:
    """Return what follows from a report.

    A rejection counts only when nothing else is missing: as long as another handler may still
    succeed, the event comes again, and the rejecting one will reject it then.
    """
    if not report.failures and not report.absent:
        return Complete()
    if report.rejected and not report.absent:
        return Bury(DeadReason.REJECTED, Outcome(HTTPStatus.ACCEPTED, Reason.REJECTED))
    if last_chance and keeps_bodies:
        return Bury(DeadReason.EXHAUSTED, Outcome(HTTPStatus.ACCEPTED, Reason.EXHAUSTED))
    if report.errors:
        return Release(Outcome(HTTPStatus.INTERNAL_SERVER_ERROR, Reason.HANDLER_FAILED))
    if report.failures:
        return Release(later(Reason.RETRY_REQUESTED, report.retry_after))
    return Release(later(Reason.HANDLER_ABSENT))


def wait_seconds(report: Report, backoff_seconds: float) -> float:
    """Return how long an event of the inbox waits after a failure.

    A wait that a handler asked for is its own affair; others' failures wait as long at least.
    """
    least = backoff_seconds if report.errors or report.absent else 0.0
    asked = backoff_seconds if report.retry_after is None else report.retry_after
    return max(least, asked)
