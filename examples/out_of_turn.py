"""A receiver that is wrong on purpose: it takes an event's arrival time for its creation time.

The intention looks careful: the service's clock may be wrong, so the receiver's event class
replaces the creation time. But a retried event arrives after newer events, and then ``latest_by``
takes it for the newest event. Chaos finds the mistake::

    hookonce chaos examples.out_of_turn:receiver
"""

from datetime import UTC, datetime

from pydantic import field_validator

from hookonce import EnvironmentSecrets, Receiver
from hookonce.events import ChannelUnhealthy

reason_of: dict[str, str | None] = {}


class ArrivedUnhealthy(ChannelUnhealthy):
    """An event with the time of its arrival."""

    @field_validator("created_at", mode="after")
    @classmethod
    def arrival(cls, _: datetime) -> datetime:
        """Return the time of arrival. This is the mistake: events may arrive out of order."""
        return datetime.now(UTC)


receiver = Receiver(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")


@receiver.on(ArrivedUnhealthy, latest_by=lambda event: event.data.id)
async def follow(event: ArrivedUnhealthy) -> None:
    reason_of[event.data.id] = event.data.status_reason
    print(f"{event.data.username}: {event.data.status_reason}", flush=True)
