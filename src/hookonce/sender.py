"""The sender's rules as constants, each with its section of the interface document.

Also the environment variables that lead to the sender's API.
"""

from __future__ import annotations

ANSWER_SECONDS = 10.0
"""How long the sender waits for an answer (Limits: Webhook answer time)."""

RETRY_SECONDS = (30.0, 120.0, 600.0, 1800.0, 3600.0, 10_800.0, 21_600.0, 43_200.0)
"""The seconds before attempts 2, 3, 4 and so on (Events: Delivery behaviour)."""

RETRY_JITTER = 0.1
"""The random part of each wait (Events: Delivery behaviour, "give or take 10 percent")."""

ATTEMPTS = 1 + len(RETRY_SECONDS)
"""The largest number of attempts to deliver an event (Limits: Delivery attempts)."""

LAST_ATTEMPT_SECONDS = 16 * 3600.0
"""An attempt this long after the event's creation, or later, is the last attempt. By the schedule,
the eighth attempt comes at most 11.8 hours after creation, and the ninth at least 20.4 hours."""

SCHEDULE_SECONDS = 26 * 3600.0
"""All attempts come within this time after the event's creation: the schedule takes at most 25
hours, and one more hour allows for clocks and slow answers."""

DISABLING_SECONDS = 72 * 3600.0
DISABLING_FAILURES = 10
"""The sender disables an endpoint that has reached both limits (Limits: Disable threshold)."""

LOG_SECONDS = 14 * 86_400.0
"""How long the sender keeps its delivery log (Limits: Delivery log retention)."""

TWO_SIGNATURES_SECONDS = 24 * 3600.0
"""How long both secrets sign after a rotation (Limits: Dual-signature window)."""

TOLERANCE_SECONDS = 300.0
"""The largest allowed clock skew of a timestamp (Limits: Signature timestamp tolerance)."""

TEST_TYPE = "webhook.test"
"""The type of a test event, which the sender never retries."""

API_URL_VARIABLE = "HOOKONCE_API_URL"
"""The environment variable with the base URL of the service's API."""

API_KEY_VARIABLE = "HOOKONCE_API_KEY"
"""The environment variable with the key for the service's API."""
