"""Warns if every delivery is refused, which a wrong secret or a wrong clock may cause.

Strangers can send what is refused, so this is a warning, and never makes a receiver unready.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from ..clock import Clock, moment_text, utc
from .records import DeliveryAnswered

MANY_REFUSED = 20
"""A receiver warns after this many refused deliveries without a genuine delivery."""
FEW_REFUSED = 4
"""The doctor warns after this many: a person reads it, so a false alarm costs little."""

DOCTOR_ID = "evt_doctor_"
"""The first part of the ids of the doctor's tests. They are signed with the secret that is
configured here, so they prove nothing about the sender's."""


def refusals_text(count: int, since: str, reason: str) -> str:
    """Return the warning for an operator."""
    return (
        f"the last {count} deliveries were refused since {since} and none was genuine; the last"
        f" reason is {reason}. Compare the secret and the clock with the sender's, unless strangers"
        " send them"
    )


class Refusals(NamedTuple):
    """The deliveries refused since the last genuine one, in this process.

    Attributes:
        since_unix: when the first of them was refused, in Unix seconds.
        deliveries: how many were refused.
        reason: the reason of the last refusal, for example ``no_matching_signature``.
    """

    since_unix: float
    deliveries: int
    reason: str

    @property
    def since(self) -> datetime:
        """When the first of these deliveries was refused, as an aware UTC ``datetime``."""
        return utc(self.since_unix)


class RefusalWatch:
    """Counts the refused deliveries since the last genuine one.

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
        if record.refusal is not None:
            since, count, _ = self.current or Refusals(self._clock(), 0, "")
            self.current = Refusals(since, count + 1, str(record.refusal.reason))
        elif record.verified is not None and not record.verified.id.startswith(DOCTOR_ID):
            self.current = None

    def warnings(self) -> tuple[str, ...]:
        """Return the warning if at least 20 deliveries were refused and none was genuine."""
        if self.current is None or self.current.deliveries < MANY_REFUSED:
            return ()
        since, count, reason = self.current
        return (refusals_text(count, moment_text(since), reason),)
