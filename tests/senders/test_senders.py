"""A sender is a value; functions refuse arguments that are not senders."""

from collections.abc import Callable
from typing import Any

import pytest

from hookonce import Event, Receiver, Router, Verifier, sign, unwrap, verify
from hookonce.emulator import EmulatedService
from hookonce.events import EventParser
from hookonce.senders import Hints, Sender, openai, publishing
from hookonce.testing import TestSender, event_body, make_event, signed_request
from hookonce.verification import DeliveryHeaders
from hookonce.verification.secrets import new_secret
from hookonce.verification.signature import DEFAULT_TOLERANCE

SECRET = new_secret()

PLACES: dict[str, Callable[[Any], object]] = {
    "verify": lambda sender: verify(b"{}", {}, SECRET, sender=sender),
    "verify with a tolerance": lambda sender: verify(b"", {}, SECRET, sender=sender, tolerance=1),
    "unwrap": lambda sender: unwrap(b"{}", {}, SECRET, sender=sender),
    "Verifier": lambda sender: Verifier(SECRET, sender=sender),
    "sign": lambda sender: sign(SECRET, "msg_1", b"{}", sender=sender),
    "DeliveryHeaders": lambda sender: DeliveryHeaders.parse({}, sender),
    "Receiver": lambda sender: Receiver(secrets=SECRET, store="memory://", sender=sender),
    "Router": lambda sender: Router(sender=sender),
    "EventParser": lambda sender: EventParser(sender=sender),
    "event_body": lambda sender: event_body("comment.received", sender=sender),
    "make_event": lambda sender: make_event("comment.received", sender=sender),
    "signed_request": lambda sender: signed_request(b"{}", SECRET, sender=sender),
    "TestSender": lambda sender: TestSender(_unused, secrets=SECRET, sender=sender),
    "EmulatedService": lambda sender: EmulatedService(sender=sender),
}


async def _unused(*_: object) -> None: ...


@pytest.mark.parametrize("given", ["svix", 3])
@pytest.mark.parametrize("place", PLACES)
def test_a_name_instead_of_a_sender_is_refused(place: str, given: object) -> None:
    with pytest.raises(TypeError) as caught:
        PLACES[place](given)
    text = f"sender takes a Sender, such as hookonce.senders.svix, not {given!r}"
    assert str(caught.value) == text


def test_verify_without_a_sender_expects_the_default_sender() -> None:
    assert publishing.headers == ("webhook",)
    assert publishing.tolerance_seconds == DEFAULT_TOLERANCE


def test_the_service_names_the_prefix_of_the_hints() -> None:
    assert publishing.hints == Hints("event-type", "delivery-attempt", None)
    named = publishing.with_service("acme")
    assert named.hints == Hints("event-type", "delivery-attempt", "acme")
    assert named.rules is publishing.rules
    with pytest.raises(ValueError, match="'openai' has no hint headers"):
        openai.with_service("acme")
    with pytest.raises(TypeError, match="not ''"):
        publishing.with_service("")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "Acme Inc"}, "name takes lower-case letters"),
        ({"headers": "svix"}, "headers takes a tuple of prefixes"),
        ({"headers": ()}, "headers takes a tuple of prefixes"),
        ({"headers": ("svix-",)}, "without the final hyphen"),
        ({"headers": ("Svix",)}, "prefixes in lower case"),
        ({"hints": "acme"}, "hints takes Hints or None"),
        ({"hints": Hints(service=5)}, "hints takes Hints with text"),  # type: ignore[arg-type]  # the value is wrong on purpose
        ({"hints": Hints(event_type="")}, "hints takes Hints with text"),
        ({"hints": Hints(attempt=None)}, "hints takes Hints with text"),  # type: ignore[arg-type]  # the value is wrong on purpose
        ({"unknown_event": Event}, "unknown_event takes UnknownEvent or a class"),
        ({"unknown_event": "Event"}, "unknown_event takes UnknownEvent or a class"),
        ({"rules": {}}, "rules takes Rules"),
        ({"tolerance_seconds": -1}, "tolerance_seconds takes a finite number"),
    ],
)
def test_an_impossible_value_of_a_sender_is_refused(
    values: dict[str, object], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Sender(**{"name": "acme", **values})  # type: ignore[arg-type]  # the value is wrong on purpose
