"""The sender's rules as constants, each with its section of the interface document."""

from __future__ import annotations

ANSWER_SECONDS = 10.0
"""Limits: Webhook answer time."""

RETRY_SECONDS = (30.0, 120.0, 600.0, 1800.0, 3600.0, 10_800.0, 21_600.0, 43_200.0)
"""Events: Delivery behaviour. The wait before the second attempt, the third, and so on."""

RETRY_JITTER = 0.1
"""Events: Delivery behaviour, "each give or take 10 percent"."""

ATTEMPTS = 1 + len(RETRY_SECONDS)
"""Limits: Delivery attempts."""

LAST_ATTEMPT_SECONDS = 16 * 3600.0
"""An attempt so long after the event's creation, or later, is the last one. By the schedule above,
the eighth attempt comes at most 11.8 hours after creation, and the ninth at least 20.4 hours."""

SCHEDULE_SECONDS = 26 * 3600.0
"""All attempts come sooner than this after creation: the schedule takes at most 25 hours, and
one more hour allows for clocks and slow answers."""

DISABLING_SECONDS = 72 * 3600.0
DISABLING_FAILURES = 10
"""Limits: Disable threshold; both must be reached."""

LOG_SECONDS = 14 * 86_400.0
"""Limits: Delivery log retention."""

TWO_SIGNATURES_SECONDS = 24 * 3600.0
"""Limits: Dual-signature window after rotation."""

TOLERANCE_SECONDS = 300.0
"""Limits: Signature timestamp tolerance."""

TEST_TYPE = "webhook.test"
"""The type of a test event, which the sender never retries."""
