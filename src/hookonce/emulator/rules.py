"""The limits of a workspace, and the event types that endpoints can subscribe to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..events import EVENT_CLASSES
from ..senders import Sender, publishing

SUBSCRIBABLE = tuple(name for name in EVENT_CLASSES if name != publishing.rules.test_type)
"""The event types without the test event, which "cannot be subscribed to" (Events: Event types)."""


def subscribable(sender: Sender) -> tuple[str, ...]:
    """Return the event types of the publishing service; nothing if another sender is emulated."""
    return SUBSCRIBABLE if sender.event_classes == publishing.event_classes else ()


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """The limits of a plan (interface, Limits).

    Attributes:
        requests_per_day: API calls by all keys together; 0 means no API access.
    """

    requests_per_day: int
    keys: int
    webhooks: int


PLANS: Mapping[str, PlanLimits] = MappingProxyType(
    {
        "free": PlanLimits(0, 1, 0),  # the plan's one key is for the tool server, not for the API
        "starter": PlanLimits(1_000, 3, 3),
        "pro": PlanLimits(10_000, 10, 10),  # the interface's tables call this plan "premium"
        "agency": PlanLimits(50_000, 30, 30),
    }
)
"""The plans by their names in ``GET /v1/me``."""


@dataclass(frozen=True, slots=True)
class Allowances:
    """Limits that the interface mentions without a number (Limits: Gaps).

    Attributes:
        scheduled_posts_per_month: the posts that may be scheduled or published in a month of the
            workspace's time zone; None means no limit.
        x_credits: the credits for posts to X; None means no limit.
        storage_bytes: the total size of media. The emulator keeps their bytes in memory.
    """

    scheduled_posts_per_month: int | None = None
    x_credits: int | None = None
    storage_bytes: int = 512 * 2**20
