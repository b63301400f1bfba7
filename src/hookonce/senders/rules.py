"""The rules by which a sender delivers, as its public documents state them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from itertools import accumulate
from math import ceil

from ..clock import span_seconds

UNKNOWN_SPAN_SECONDS = 7 * 86_400.0
"""How long a sender may deliver an event again, if the sender does not publish this time."""

UNKNOWN_ANSWER_SECONDS = 5.0
"""How long a sender waits for an answer, if the sender does not publish this time."""

_MINUTE, _HOUR = 60.0, 3600.0

EXAMPLE_RETRY_SECONDS = (
    *(5.0, 5 * _MINUTE, 30 * _MINUTE, 2 * _HOUR, 5 * _HOUR),
    *(10 * _HOUR, 14 * _HOUR, 20 * _HOUR, 24 * _HOUR),
)
"""The "Example retry schedule" of the Standard Webhooks specification (Operational considerations,
Deliverability and reliability)."""

# Reserve an hour: clocks differ, and each attempt waits for the answer to the previous attempt.
_RESERVE_SECONDS = _HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules by which a sender delivers; a rule is None if the sender does not publish it.

    If a rule is None, the receiver makes the safe choice: see the guide's page on senders.

    Attributes:
        answer_seconds: how long the sender waits for an answer.
        retry_seconds: the waits before attempts 2, 3, 4 and so on, each counted from the previous
            attempt; only an example if ``attempts`` is None.
        retry_jitter: the random part of each wait: with 0.1 a wait is 90 to 110 percent.
        attempts: the largest number of attempts to deliver an event.
        retry_span_seconds: how long after an event's creation the sender delivers it again, for a
            sender that publishes this span but no schedule.
        disabling_seconds: how long an endpoint has to fail before the sender disables it.
        disabling_failures: how many attempts have to fail before the sender disables the endpoint;
            the sender disables an endpoint that has reached both limits.
        two_signatures_seconds: how long a delivery carries two signatures after a rotation.
        reads_retry_after: whether the sender waits as long as ``Retry-After`` asks, instead of its
            schedule. The age of an event then does not prove that an attempt is the last.
        log_seconds: how long the sender keeps its log of deliveries, with which ``reconcile``
            compares.
        test_type: the type of test events, which the sender never retries.

    Raises:
        TypeError: a value has a wrong type.
        ValueError: a value is negative or not finite, or the schedule does not fit the number of
            attempts.
    """

    answer_seconds: float | None = None
    retry_seconds: tuple[float, ...] | None = None
    retry_jitter: float | None = None
    attempts: int | None = None
    retry_span_seconds: float | None = None
    disabling_seconds: float | None = None
    disabling_failures: int | None = None
    two_signatures_seconds: float | None = None
    reads_retry_after: bool | None = None
    log_seconds: float | None = None
    test_type: str | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name.endswith("_seconds") and one.name != "retry_seconds" and value is not None:
                object.__setattr__(self, one.name, span_seconds(one.name, value, positive=True))
        if self.retry_seconds is not None:
            waits = tuple(span_seconds("retry_seconds", wait) for wait in self.retry_seconds)
            object.__setattr__(self, "retry_seconds", waits)
        if self.retry_jitter is not None and not 0 <= self.retry_jitter < 1:
            raise ValueError(
                f"retry_jitter must be at least 0 and less than 1, not {self.retry_jitter!r}"
            )
        for name, kind in (("reads_retry_after", bool), ("test_type", str)):
            if not isinstance(getattr(self, name), kind | None):
                raise TypeError(
                    f"{name} takes a {kind.__name__} or None, not {getattr(self, name)!r}"
                )
        for name in ("attempts", "disabling_failures"):
            number = getattr(self, name)
            if number is None:
                continue
            if not isinstance(number, int) or isinstance(number, bool):
                raise TypeError(f"{name} takes a whole number or None, not {number!r}")
            if number < 1:
                raise ValueError(f"{name} takes a number from 1, not {number}")
        if None not in (self.attempts, self.retry_seconds) and self.attempts != 1 + len(
            self.retry_seconds or ()
        ):
            raise ValueError(
                f"{self.attempts} attempts have {(self.attempts or 1) - 1} waits between them, but"
                f" retry_seconds has {len(self.retry_seconds or ())}; leave attempts out if the"
                " schedule is only an example"
            )

    @property
    def span_seconds(self) -> float:
        """The time after an event's creation in which the sender may deliver the event again.

        This is the sum of the longest waits, or the published span if that is longer, and an hour
        for clocks and slow answers, in whole hours; seven days if neither is published.
        """
        if self.retry_span_seconds is None and self.retry_seconds is None:
            return UNKNOWN_SPAN_SECONDS
        waits = sum(self.retry_seconds or ()) * (1 + (self.retry_jitter or 0.0))
        longest = max(waits, self.retry_span_seconds or 0.0)
        return ceil((longest + _RESERVE_SECONDS) / _HOUR) * _HOUR

    @property
    def last_attempt_seconds(self) -> float | None:
        """The age of an event at which an attempt is certainly the last attempt.

        It lies in the middle between the latest time of the second-to-last attempt and the earliest
        time of the last attempt, in whole hours where the schedule allows that. None if the sender
        does not publish its attempts, their schedule and its jitter, or if the two times overlap.
        """
        if self.attempts == 1:
            return 0.0
        if self.attempts is None or not self.retry_seconds or self.retry_jitter is None:
            return None
        before = sum(self.retry_seconds[:-1]) * (1 + self.retry_jitter) + _RESERVE_SECONDS
        last = sum(self.retry_seconds) * (1 - self.retry_jitter)
        if before >= last:
            return None
        middle = (before + last) / 2
        hours = middle // _HOUR * _HOUR
        return hours if hours > before else middle

    @property
    def tried_retry_seconds(self) -> tuple[float, ...]:
        """The waits between attempts, for test senders and simulations.

        This is the published schedule. Without one, it is the specification's example schedule, as
        far as it fits into the published span and number of attempts.
        """
        if self.retry_seconds is not None:
            return self.retry_seconds
        longest = self.retry_span_seconds or self.span_seconds
        ages = accumulate(EXAMPLE_RETRY_SECONDS)
        count = sum(age <= longest for age in ages)
        return EXAMPLE_RETRY_SECONDS[: count if self.attempts is None else self.attempts - 1]

    @property
    def patience_seconds(self) -> float:
        """The time for which a receiver may assume that the sender waits for an answer."""
        return UNKNOWN_ANSWER_SECONDS if self.answer_seconds is None else self.answer_seconds


def retention_fault(rules: Rules, retention_seconds: float | None) -> str | None:
    """Return why a store or a ledger forgets handled events too early for a sender, or None.

    Args:
        rules: the rules by which the sender delivers.
        retention_seconds: how long handled events are remembered; None if that is unknown.
    """
    span = rules.span_seconds
    if retention_seconds is None or retention_seconds >= span:
        return None
    return (
        f"retention must be at least {span / _HOUR:g} hours, not"
        f" {timedelta(seconds=retention_seconds)}: the sender may deliver an event again for that"
        " long, and a forgotten event would be handled again"
    )
