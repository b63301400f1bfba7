"""The workspace: its plan, and the endpoints registered in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .records import EndpointRow
from .rules import PLANS, SUBSCRIBABLE, PlanLimits

__all__ = ["Workspace"]


@dataclass(slots=True)
class Workspace:
    """A workspace of the service.

    Attributes:
        id: as events name it.
        plan: free, starter, pro or agency.
        service: the name in the service's own headers and keys.
        endpoints: the registered endpoints by id.

    """

    id: str
    plan: str
    service: str
    endpoints: dict[str, EndpointRow] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.plan not in PLANS:
            raise ValueError(f"there is no plan {self.plan!r}; there are {', '.join(PLANS)}")

    @property
    def limits(self) -> PlanLimits:
        """What the plan allows."""
        return PLANS[self.plan]

    def add(
        self,
        url: str,
        events: Sequence[str],
        description: str,
        secret: str,
        now: float,
        endpoint_id: str,
    ) -> EndpointRow:
        """Register an endpoint; ValueError for an event type that cannot be subscribed to."""
        unknown = [name for name in events if name not in SUBSCRIBABLE]
        if unknown:
            raise ValueError(
                f"{unknown[0]!r} cannot be subscribed to; there are {', '.join(SUBSCRIBABLE)}"
            )
        row = EndpointRow(endpoint_id, url, description, tuple(events), now, secret)
        self.endpoints[endpoint_id] = row
        return row
