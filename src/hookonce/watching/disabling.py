"""Warns before the sender disables the endpoint.

The sender disables an endpoint that has failed for 72 hours, with at least 10 failed attempts; test
events do not count (interface, Events: Delivery behaviour). This file counts only the answers of
this process.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from ..clock import Clock, moment_text, unix_seconds, utc
from ..logs import get_logger
from ..outcome import Reason
from ..sender import DISABLING_FAILURES, DISABLING_SECONDS, TEST_TYPE
from .records import DeliveryAnswered

_log = get_logger("hookonce.disabling")

# Warn two days before the time limit, and at half the number of attempts: even at a weekend an
# operator then has time to act.
_WARNED_AFTER_HOURS = 24.0
_WARNED_AFTER_ATTEMPTS = 5
_LOG_AGAIN_SECONDS = 3600.0


class FailureStreak(NamedTuple):
    """The failed answers since the last success.

    Attributes:
        since_unix: when the first failed answer was given, in Unix seconds.
        attempts: the number of failed answers.
        refused: how many of them refused a delivery that was not genuine: a forgery, or a delivery
            signed with a secret that is not configured here.
        last: the reason of the last failed answer, for example ``handler_failed``.
    """

    since_unix: float
    attempts: int
    refused: int
    last: str

    @property
    def since(self) -> datetime:
        """When the first failed answer was given, as an aware UTC ``datetime``."""
        return utc(self.since_unix)

    def hours(self, now: float | datetime) -> float:
        """Return how many hours the failures have lasted.

        Args:
            now: an aware ``datetime`` or Unix seconds.
        """
        return (unix_seconds("now", now) - self.since_unix) / 3600

    def is_serious(self, now: float | datetime) -> bool:
        """Return whether the sender may disable the endpoint soon.

        Args:
            now: an aware ``datetime`` or Unix seconds.
        """
        return self.attempts >= _WARNED_AFTER_ATTEMPTS and self.hours(now) >= _WARNED_AFTER_HOURS


class DisableWatch:
    """Counts the failed answers since the last success, and warns before the sender disables.

    It counts only the answers of this process since its start. If several processes serve one
    endpoint, it does not see the successes of the others.

    Args:
        clock: Unix time in seconds.

    Attributes:
        streak: the failures since the last success; None after a success.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.streak: FailureStreak | None = None
        self._next_log = 0.0

    def note(self, record: DeliveryAnswered) -> None:
        """Count an answer to a delivery; ignore test events and requests that are not deliveries.

        A backfill does not count either: the sender judges only its own deliveries (interface,
        States: deliveries failing).
        """
        outcome, received = record.outcome, record.received
        if received is not None and received.is_backfill:
            return
        if record.event_type == TEST_TYPE:
            return
        if outcome.status < 400:
            self.streak = None
            return
        if outcome.reason == Reason.METHOD_NOT_ALLOWED:
            return
        now = self._clock()
        since, attempts, refused, _ = self.streak or FailureStreak(now, 0, 0, "")
        refused += record.refusal is not None
        self.streak = FailureStreak(since, attempts + 1, refused, str(outcome.reason))
        self._complain(now)

    def warnings(self) -> tuple[str, ...]:
        """Return the warnings about failed deliveries for an operator."""
        now = self._clock()
        if self.streak is None or not self.streak.is_serious(now):
            return ()
        return (_described(self.streak, now),)

    def _complain(self, now: float) -> None:
        if now >= self._next_log and (warnings := self.warnings()):
            self._next_log = now + _LOG_AGAIN_SECONDS
            _log.error("%s", warnings[0])


def _described(streak: FailureStreak, now: float) -> str:
    refusals = (
        f", {streak.refused} of them refused as not genuine: forgeries, or a secret that is missing"
        if streak.refused
        else ""
    )
    return (
        f"every delivery has failed for {streak.hours(now):.0f} h ({streak.attempts} attempts"
        f"{refusals}), and the last answer was {streak.last}. The sender disables an endpoint after"
        f" {DISABLING_SECONDS / 3600:.0f} h and {DISABLING_FAILURES} failed attempts, that is from"
        f" {moment_text(streak.since_unix + DISABLING_SECONDS)} on; repair the cause of that answer"
        " before then"
    )
