"""Remembers for a while that the store has failed a delivery.

A store may fail for some calls only. On a full disk a small write can succeed while a larger one
fails, so a check that only asks the store finds nothing wrong.
"""

from __future__ import annotations

import time

from ..outcome import Reason
from .records import DeliveryAnswered

RECENT_SECONDS = 10.0
"""How long a failure counts. Readiness probes usually need three failed checks, ten seconds apart;
this is shorter, so that one failure takes no process out of service."""


class StoreFailures:
    """Makes the receiver unready for ten seconds after an answer ``store_unavailable``."""

    def __init__(self) -> None:
        self._failed_at: float | None = None

    def note(self, record: DeliveryAnswered) -> None:
        """Record the time of an answer ``store_unavailable``; ignore all other answers."""
        if record.outcome.reason == Reason.STORE_UNAVAILABLE:
            self._failed_at = time.monotonic()

    def problem(self) -> str | None:
        """Return the problem of a recent failure; None if there was none."""
        if self._failed_at is None:
            return None
        seconds = time.monotonic() - self._failed_at
        if seconds > RECENT_SECONDS:
            return None
        return (
            f"the store failed for a delivery {seconds:.0f} s ago, which was answered 503; the log"
            " says why"
        )
