"""Warns before the sender disables the endpoint.

A sender disables an endpoint that has failed for some time and for a number of attempts
(``Rules.disabling_seconds`` and ``disabling_failures``). Test events do not count. This file counts
only the answers of this process.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from ..clock import Clock, moment_text, unix_seconds, utc
from ..logs import get_logger
from ..outcome import Reason
from ..senders import Rules
from .records import DeliveryAnswered

_log = get_logger("hookonce.disabling")

# The sender disables the endpoint after some time and a number of failed attempts. Warn after a
# third of the time and half of the attempts, so that an operator has time to act, even at a
# weekend. If a sender does not publish its limits, warn after these seconds and attempts instead.
_WARNED_AFTER_SHARE = 1 / 3
_WARNED_AFTER_SECONDS = 24 * 3600.0
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
        rules: the rules by which the sender delivers.
    """

    since_unix: float
    attempts: int
    refused: int
    last: str
    rules: Rules

    @property
    def since(self) -> datetime:
        """The time of the first failed answer, as an aware UTC ``datetime``."""
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
        seconds, failures = self.rules.disabling_seconds, self.rules.disabling_failures
        least_seconds = _WARNED_AFTER_SECONDS if seconds is None else seconds * _WARNED_AFTER_SHARE
        least_attempts = _WARNED_AFTER_ATTEMPTS if failures is None else max(1, failures // 2)
        return self.attempts >= least_attempts and self.hours(now) * 3600 >= least_seconds


class DisableWatch:
    """Counts the failed answers since the last success, and warns before the sender disables.

    It counts only the answers of this process since its start. If several processes serve one
    endpoint, it does not see the successes of the others.

    Args:
        clock: Unix time in seconds.
        rules: the rules by which the sender delivers.

    Attributes:
        streak: the failures since the last success; None after a success.
    """

    def __init__(self, clock: Clock, rules: Rules) -> None:
        self._clock = clock
        self._rules = rules
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
        if record.event_type is not None and record.event_type == self._rules.test_type:
            return
        if outcome.status < 400:
            self.streak = None
            return
        if outcome.reason == Reason.METHOD_NOT_ALLOWED:
            return
        now = self._clock()
        since, attempts, refused, *_ = self.streak or FailureStreak(now, 0, 0, "", self._rules)
        refused += record.refusal is not None
        self.streak = FailureStreak(since, attempts + 1, refused, str(outcome.reason), self._rules)
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
        f"{refusals}), and the last answer was {streak.last}. {_consequence(streak)}"
    )


def _consequence(streak: FailureStreak) -> str:
    seconds, failures = streak.rules.disabling_seconds, streak.rules.disabling_failures
    if seconds is None:
        return (
            "The sender does not say when it disables an endpoint; repair the cause of that answer"
            " now"
        )
    attempts = "" if failures is None else f" and {failures} failed attempts"
    return (
        f"The sender disables an endpoint after {seconds / 3600:.0f} h{attempts}, that is from"
        f" {moment_text(streak.since_unix + seconds)} on; repair the cause of that answer before"
        " then"
    )
