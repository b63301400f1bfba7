"""A receiver that is wrong on purpose: it marks an event as seen before the event is handled.

It looks like a shortcut: duplicates need no call to the store. But when the first attempt fails,
the receiver takes the retry for a duplicate, and the event is lost. Chaos finds the mistake::

    hookonce chaos examples.seen_too_soon:receiver
"""

from http import HTTPStatus

from hookonce import EnvironmentSecrets, Outcome, Reason, Receiver
from hookonce.events import CommentReceived
from hookonce.verification.headers import DeliveryHeaders, RawHeaders

seen: set[str] = set()


class Shortcut(Receiver):
    """Answers repeated deliveries without the store."""

    async def handle(
        self, body: bytes, headers: RawHeaders, *, started: float | None = None
    ) -> Outcome:
        """Answer a delivery, quickly and wrongly."""
        event_id = DeliveryHeaders.parse(headers).message_id
        if event_id in seen:
            return Outcome(HTTPStatus.OK, Reason.DUPLICATE)
        seen.add(event_id)  # wrong: nothing has been handled yet
        return await super().handle(body, headers, started=started)


receiver = Shortcut(secrets=EnvironmentSecrets(), store="sqlite:///hookonce.db")


@receiver.on(CommentReceived)
async def thank(event: CommentReceived) -> None:
    print(f"Thank you, {event.data.author_username}!", flush=True)
