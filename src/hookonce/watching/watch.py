"""The observer of every answer, which passes unusual answers on to other checks.

A busy receiver gives thousands of answers a second. Nearly all are successes of deliveries signed
once by the newest secret; `AnswerWatch` skips these after a few comparisons.
"""

from __future__ import annotations

import logging
from collections import deque

from ..clock import Clock
from ..logs import get_logger
from ..verification.signature import VerifiedDelivery
from .disabling import DisableWatch
from .log import log_answer
from .records import DeliveryAnswered, Observer
from .refusals import RefusalWatch
from .rotation import RotationWatch
from .store_failures import StoreFailures
from .unreadable import UnreadableWatch

_log = get_logger("hookonce")

# Keep this many of the last events for `Receiver.expecting`: an event may arrive before the program
# that caused the event calls this method. The events usually need a few hundred kilobytes.
_MOST_RECENT = 128
_LARGEST_RECENT_BYTES = 64 * 1024


class AnswerWatch(Observer):
    """Logs answers, and passes them to the objects that detect rotations and failures.

    Args:
        rotation: detects a rotation of the secret.
        disabling: detects that the sender is about to disable the endpoint.
        refusals: detects that only refused deliveries arrive.
        unreadable: detects that only unreadable deliveries arrive.
        store_failures: remembers that the store has failed a delivery.
        clock: Unix time in seconds.
    """

    def __init__(
        self,
        rotation: RotationWatch,
        disabling: DisableWatch,
        refusals: RefusalWatch,
        unreadable: UnreadableWatch,
        store_failures: StoreFailures,
        clock: Clock,
    ) -> None:
        self._rotation = rotation
        self._disabling = disabling
        self._refusals = refusals
        self._unreadable = unreadable
        self._store_failures = store_failures
        self._clock = clock
        self._recent: deque[tuple[float, VerifiedDelivery]] = deque(maxlen=_MOST_RECENT)

    def delivery_answered(self, record: DeliveryAnswered) -> None:
        """Log an answer, and pass it on to the checks that need it."""
        # Unpacking a named tuple is much faster than reading its fields by name.
        _, outcome, _, received, delivery, event_type, _, refusal, unreadable = record
        if refusal is not None or _log.isEnabledFor(logging.INFO):
            log_answer(record)
        if outcome.status >= 400 or self._disabling.streak is not None:
            self._disabling.note(record)
            self._refusals.note(record)
            self._store_failures.note(record)
        if unreadable is not None or self._unreadable.current is not None:
            self._unreadable.note(record)
        if delivery is None or received is None:
            return
        _, body, _, at, is_backfill, _ = received
        if event_type is not None and len(body) <= _LARGEST_RECENT_BYTES:
            self._recent.append((at, delivery))
        if not is_backfill:
            rotation = self._rotation
            rotation.matched[delivery.secret_index] = at
            if delivery.signature_count > 1 or at >= rotation.quiet_until:
                rotation.note(record)

    def recent(self, seconds: float) -> list[VerifiedDelivery]:
        """Return the last small, readable events, received within ``seconds``, oldest first."""
        earliest = self._clock() - seconds
        return [delivery for at, delivery in tuple(self._recent) if at >= earliest]
