"""A receiver that is wrong on purpose: its handlers ignore the key lock.

It looks like a shortcut: the lock costs two calls to the store, and here is only one process. But a
process handles many deliveries at once, and a retried event returns after a newer one has been
handled. Chaos finds the mistake::

    hookonce chaos examples.out_of_turn:receiver
"""

from dataclasses import replace

from hookonce import EnvironmentSecrets, Receiver
from hookonce.events import ChannelDisconnected, ChannelUnhealthy, Event
from hookonce.routing.handler import Handler

status_of: dict[str, str] = {}


class Shortcut(Receiver):
    """Runs handlers without the key lock."""

    def find(self, event: Event[object]) -> tuple[Handler, ...]:
        """Return the handlers of an event, quickly and wrongly."""
        return tuple(replace(handler, keyed=None) for handler in super().find(event))


receiver = Shortcut(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")


@receiver.on(ChannelUnhealthy, ChannelDisconnected, latest_by=lambda event: event.data.id)
async def follow(event: ChannelUnhealthy | ChannelDisconnected) -> None:
    status_of[event.data.id] = event.data.status
    print(f"{event.data.username} is {event.data.status}", flush=True)
