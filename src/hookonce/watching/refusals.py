"""Warns if every delivery is refused: the secret or the clock may be wrong.

Strangers can cause refusals, so this is only a warning, and never makes a receiver unready.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from ..clock import Clock, moment_text, utc
from ..errors import Refusal
from .records import DeliveryAnswered

MANY_REFUSED = 20
"""A receiver warns after this many refused deliveries without a genuine delivery."""
FEW_REFUSED = 4
"""The doctor warns after this many refusals: a person reads the warning and can judge it."""

DOCTOR_ID = "evt_doctor_"
"""The first part of the ids of the doctor's tests. They are signed with the secret that is
configured here, or forged on purpose, so they prove nothing about the sender's secret."""


_HEADERS = "a proxy drops or changes headers; let it pass every {families} header on unchanged"
_EXPLAINED = {
    Refusal.NO_MATCHING_SIGNATURE: (
        "the sender signs with another secret, or a proxy changes the bodies; configure the"
        " endpoint's current secret (when a rotation has ended, only the new one is valid)"
    ),
    Refusal.TIMESTAMP_TOO_OLD: (
        "this machine's clock is ahead of the sender's{by}; synchronise it with NTP"
    ),
    Refusal.TIMESTAMP_TOO_NEW: (
        "this machine's clock is behind the sender's{by}; synchronise it with NTP"
    ),
}


class Refusals(NamedTuple):
    """The deliveries refused since the last genuine delivery, in this process.

    Attributes:
        since_unix: when the first of them was refused, in Unix seconds.
        deliveries: how many were refused.
        reason: the reason of the last refusal, for example ``no_matching_signature``.
        skew: our clock minus the last timestamp, in seconds, if that timestamp was outside the
            tolerance.
        headers: the prefixes of the sender's signed headers.
    """

    since_unix: float
    deliveries: int
    reason: str
    skew: float | None = None
    headers: tuple[str, ...] = ("webhook",)

    @property
    def since(self) -> datetime:
        """When the first of these deliveries was refused, as an aware UTC ``datetime``."""
        return utc(self.since_unix)

    @property
    def warning(self) -> str:
        """The warning for an operator, as "problem; fix"."""
        by = "" if self.skew is None else f" by {abs(self.skew):.0f} s"
        families = " and ".join(f"{prefix}-*" for prefix in self.headers)
        explained = _EXPLAINED.get(Refusal(self.reason), _HEADERS).format(by=by, families=families)
        return (
            f"the last {self.deliveries} deliveries were refused since"
            f" {moment_text(self.since_unix)} and none was genuine; the last reason is"
            f" {self.reason}, so either strangers send them, or {explained}"
        )


class RefusalWatch:
    """Counts the refused deliveries since the last genuine delivery.

    The doctor's tests do not count, because they prove nothing about the sender's secret.

    Args:
        clock: Unix time in seconds.

    Attributes:
        current: the refusals since the last genuine delivery; None after a genuine one.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.current: Refusals | None = None

    def note(self, record: DeliveryAnswered) -> None:
        """Count a refusal; a genuine delivery of the sender resets the count."""
        refusal = record.refusal
        if refusal is not None:
            headers = record.headers
            if headers is not None and headers.message_id.startswith(DOCTOR_ID):
                return
            now = self.current or Refusals(self._clock(), 0, "")
            self.current = Refusals(
                now.since_unix,
                now.deliveries + 1,
                str(refusal.reason),
                refusal.skew,
                refusal.headers,
            )
        elif record.verified is not None and not record.verified.id.startswith(DOCTOR_ID):
            self.current = None

    def warnings(self) -> tuple[str, ...]:
        """Return the warning if at least 20 deliveries were refused and none was genuine."""
        if self.current is None or self.current.deliveries < MANY_REFUSED:
            return ()
        return (self.current.warning,)
