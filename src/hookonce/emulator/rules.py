"""What the service allows a workspace, each with the section of the interface it is from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..events import EVENT_CLASSES
from ..sender import TEST_TYPE

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


@dataclass(frozen=True, slots=True)
class Allowances:
    """The limits whose numbers the interface does not show (Limits: Gaps).

    Attributes:
        scheduled_posts_per_month: how many posts may be scheduled or published in a month of the
            workspace's time zone; None is no limit.
        x_credits: how many credits there are for posts to X; None is no limit.
        storage_bytes: how many bytes of media there may be. The emulator holds them in memory.

    """

    scheduled_posts_per_month: int | None = None
    x_credits: int | None = None
    storage_bytes: int = 512 * 2**20
