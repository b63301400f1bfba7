"""A receiver that is wrong on purpose: its handlers do not take turns.

It looks like a shortcut: taking turns costs two calls of the store, and all runs in one process
here. But one process handles many deliveries at once, and an event that is retried comes back when
a newer one has long been handled. Chaos finds it::

    hookonce chaos examples.out_of_turn:receiver
"""

from dataclasses import replace

from hookonce import EnvironmentSecrets, Receiver
from hookonce.events import ChannelDisconnected, ChannelUnhealthy, Event
from hookonce.routing.handler import Handler

status_of: dict[str, str] = {}


class Shortcut(Receiver):
    """Runs each handler at once."""

    def find(self, event: Event[object]) -> tuple[Handler, ...]:
        """Return the handlers of an event, quickly and wrongly."""
        return tuple(replace(handler, keyed=None) for handler in super().find(event))


receiver = Shortcut(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")


@receiver.on(ChannelUnhealthy, ChannelDisconnected, latest_by=lambda event: event.data.id)
async def follow(event: ChannelUnhealthy | ChannelDisconnected) -> None:
    status_of[event.data.id] = event.data.status
    print(f"{event.data.username} is {event.data.status}", flush=True)
