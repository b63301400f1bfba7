"""The cost of verification together with a typed event, for each documented event type.

Peers that parse as well are given the same body; what they make of it is named beside them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import JsonValue

from hookonce import Verifier, sign, unwrap
from hookonce.events import EVENT_CLASSES, EventParser
from hookonce.testing import event_body
from hookonce.verification.secrets import new_secret

from .measuring import AtMost, Part, Result, Subject, compare
from .peers import parsing
from .verify import MESSAGE_ID, floor

__all__ = ["PART"]

_TARGET = AtMost(4)
_TEXT = "A loaf of walnut bread, still warm, and a queue around the corner. "

# Give these fields long values: people write long texts, so real events are larger than samples.
# The other fields together have about half a kilobyte.
_LONG: dict[str, dict[str, JsonValue]] = {
    "post.target.published": {"caption": _TEXT * 20, "settings": {"tags": ["bread", "bakery"]}},
    "post.target.failed": {"caption": _TEXT * 20, "settings": {"tags": ["bread", "bakery"]}},
    "comment.received": {"text": _TEXT * 20},
    "message.received": {"message": {"text": _TEXT * 20, "attachments": [{"id": "att_1"}]}},
    "channel.unhealthy": {"statusReason": _TEXT * 10},
    "channel.disconnected": {"statusReason": _TEXT * 10},
    "webhook.test": {"notes": [_TEXT] * 15},
}


def _run(is_quick: bool) -> list[Result]:
    results: list[Result] = []
    for event_type in EVENT_CLASSES:
        results += _one(event_type, is_quick=is_quick)
    return results


def _one(event_type: str, *, is_quick: bool) -> list[Result]:
    secret = new_secret()
    body = event_body(event_type, event_id=MESSAGE_ID, data=_LONG[event_type])
    headers = sign(secret, MESSAGE_ID, body)
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    verifier, parser = Verifier(secret), EventParser()

    def as_a_receiver_does() -> Any:
        delivery = verifier.verify(body, raw)
        return parser.parse(delivery.body, delivery.id)

    subjects: dict[str, Subject] = {
        "floor of verification": floor(secret, headers, body),
        "hookonce unwrap": lambda: unwrap(body, headers, secret),
        "hookonce Verifier and EventParser": as_a_receiver_does,
        "hookonce EventParser alone": partial(parser.parse, body, MESSAGE_ID),
        **parsing(secret, headers, body),
    }
    targets = {"hookonce unwrap": _TARGET, "hookonce Verifier and EventParser": _TARGET}
    return compare(f"{event_type}, {len(body)} bytes", subjects, targets, is_quick=is_quick)


PART = Part("unwrap", "verification and a typed event, as multiples of verification's floor", _run)
