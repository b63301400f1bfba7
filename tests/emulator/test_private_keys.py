"""The emulated service and the test sender sign with a private key, as every sender."""

from typing import Any

import pytest

from hookonce import Event, Receiver
from hookonce.clock import Clock, system_clock
from hookonce.emulator import EmulatedService, VirtualClock
from hookonce.senders import Sender, openai, publishing, standard, svix
from hookonce.testing import TestSender, make_event
from hookonce.verification.secrets import new_key_pair, new_secret

pytestmark = pytest.mark.anyio

PAIR = new_key_pair()
SENDERS = [
    pytest.param(publishing, "comment.received", id="publishing"),
    pytest.param(standard, "order.paid", id="standard"),
    pytest.param(svix, "order.paid", id="svix"),
    pytest.param(openai, "response.completed", id="openai"),
]


def failing_once(sender: Sender, secrets: str | list[str], clock: Clock) -> Receiver:
    """Return a receiver whose handler fails at its first call."""
    receiver = Receiver(secrets=secrets, store="memory://", sender=sender, clock=clock)
    calls: list[str] = []

    @receiver.on("*", name="note")
    async def note(event: Event[Any]) -> None:
        calls.append(event.id)
        if len(calls) == 1:
            raise ConnectionError("closed")

    return receiver


@pytest.mark.parametrize(("sender", "event_type"), SENDERS)
@pytest.mark.parametrize(
    "secrets", [PAIR.public, [new_secret(), PAIR.public]], ids=["the key", "a secret too"]
)
async def test_the_emulated_service_signs_every_attempt_with_a_private_key(
    sender: Sender, event_type: str, secrets: str | list[str], virtual_clock: VirtualClock
) -> None:
    receiver = failing_once(sender, secrets, virtual_clock)
    async with EmulatedService(receiver, secret=PAIR.private, clock=virtual_clock) as service:
        event = await service.emit(event_type)
        await service.advance(hours=1)
        [delivery] = service.deliveries(event_id=event.id)
        assert (delivery.status, delivery.attempts) == ("delivered", 2)


@pytest.mark.parametrize(("sender", "event_type"), SENDERS)
async def test_the_test_sender_signs_with_a_private_key(sender: Sender, event_type: str) -> None:
    receiver = failing_once(sender, PAIR.public, system_clock)
    event = make_event(event_type, sender=sender)
    async with TestSender(receiver, secrets=PAIR.private, sender=sender, path="/") as signing:
        (await signing.send(event)).expect(500, "handler_failed")
        (await signing.send(event)).expect(200, "handled")
