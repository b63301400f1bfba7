"""The numbers of the interface that the sending side keeps to, each with the section it is from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..delivery.handler import TEST_TYPE
from ..events import EVENT_CLASSES

__all__ = [
    "ANSWER_SECONDS",
    "ATTEMPTS",
    "DISABLING_FAILURES",
    "DISABLING_SECONDS",
    "LOG_SECONDS",
    "PLANS",
    "RETRY_JITTER",
    "RETRY_SECONDS",
    "SUBSCRIBABLE",
    "TWO_SIGNATURES_SECONDS",
    "PlanLimits",
]

ANSWER_SECONDS = 10.0
"""Limits: Webhook answer time."""

RETRY_SECONDS = (30.0, 120.0, 600.0, 1800.0, 3600.0, 10_800.0, 21_600.0, 43_200.0)
"""Events: Delivery behaviour. Each is the wait after the attempt before it."""

RETRY_JITTER = 0.1
"""Events: Delivery behaviour, "each give or take 10 percent"."""

ATTEMPTS = 1 + len(RETRY_SECONDS)
"""Limits: Delivery attempts."""

DISABLING_SECONDS = 72 * 3600.0
DISABLING_FAILURES = 10
"""Limits: Disable threshold; both must be reached."""

LOG_SECONDS = 14 * 86_400.0
"""Limits: Delivery log retention."""

TWO_SIGNATURES_SECONDS = 24 * 3600.0
"""Limits: Dual-signature window after rotation."""

SUBSCRIBABLE = tuple(name for name in EVENT_CLASSES if name != TEST_TYPE)
"""Events: Event types; the test event "cannot be subscribed to"."""


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """What a plan allows a workspace (interface, Limits).

    Attributes:
        requests_per_day: calls of the API by all its keys; 0 is no access to it.
        keys: API keys.
        webhooks: webhook endpoints.

    """

    requests_per_day: int
    keys: int
    webhooks: int


PLANS: Mapping[str, PlanLimits] = MappingProxyType(
    {
        "free": PlanLimits(0, 1, 0),  # its one key works with the tool server only
        "starter": PlanLimits(1_000, 3, 3),
        "pro": PlanLimits(10_000, 10, 10),  # "premium" in the interface's tables
        "agency": PlanLimits(50_000, 30, 30),
    }
)
"""The plans by the names that ``GET /v1/me`` gives them."""
