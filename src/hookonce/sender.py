"""The numbers of the sender's law, each with the part of the interface it is from."""

from __future__ import annotations

ANSWER_SECONDS = 10.0
"""Limits: Webhook answer time."""

RETRY_SECONDS = (30.0, 120.0, 600.0, 1800.0, 3600.0, 10_800.0, 21_600.0, 43_200.0)
"""Events: Delivery behaviour. Each is the wait after the attempt before it."""

RETRY_JITTER = 0.1
"""Events: Delivery behaviour, "each give or take 10 percent"."""

ATTEMPTS = 1 + len(RETRY_SECONDS)
"""Limits: Delivery attempts."""

LAST_ATTEMPT_SECONDS = 16 * 3600.0
"""So long after an event was created only its last attempt comes: by the schedule above the eighth
comes by 11.8 hours, and the ninth after 20.4 hours."""

SCHEDULE_SECONDS = 26 * 3600.0
"""So long after an event was created it comes no more: the schedule takes 25 hours at the most, and
one is for clocks and slow answers."""

DISABLING_SECONDS = 72 * 3600.0
DISABLING_FAILURES = 10
"""Limits: Disable threshold; both must be reached."""

LOG_SECONDS = 14 * 86_400.0
"""Limits: Delivery log retention."""

TWO_SIGNATURES_SECONDS = 24 * 3600.0
"""Limits: Dual-signature window after rotation."""

TOLERANCE_SECONDS = 300.0
"""Limits: Signature timestamp tolerance."""
