"""Test deliveries: genuine, forged, or with JSON that middleware has re-serialized."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any

from ...samples.events import event_body
from ...senders.sender import Sender
from ...testing import SignedRequest, signed_request
from ...verification.secrets import new_secret
from ...watching.refusals import DOCTOR_ID


@dataclass(frozen=True, slots=True)
class TestDelivery:
    """A test event with an id of its own; each method returns signed requests with this event.

    It reaches only handlers that are registered for its type by name or class. A sender without
    test events has only forged deliveries: a genuine delivery would reach handlers of business
    events.

    Attributes:
        envelope: the JSON body; empty if there is no test event.
        sender: the sender, which decides the names of the headers.
    """

    __test__ = False  # otherwise pytest would collect the class

    event_id: str
    envelope: dict[str, Any]
    secret: str
    sender: Sender

    @classmethod
    def new(cls, secret: str, sender: Sender) -> TestDelivery:
        event_id, test_type = f"{DOCTOR_ID}{token_hex(8)}", sender.rules.test_type
        if test_type is None:
            return cls(event_id, {}, secret, sender)
        try:
            body = event_body(test_type, event_id=event_id, sender=sender)
        except (TypeError, ValueError):  # hookonce cannot write a body for this sender
            return cls(event_id, {}, secret, sender)
        return cls(event_id, json.loads(body), secret, sender)

    @property
    def is_only_forged(self) -> bool:
        """Whether only forged deliveries may be sent, because the sender has no test event."""
        return not self.envelope

    def genuine(self) -> SignedRequest:
        """Return a delivery in an unusual JSON layout, so that rewriting middleware changes it."""
        return self._signed(json.dumps(self.envelope, indent=1).encode())

    def forged(self) -> SignedRequest:
        """Return the genuine delivery, but signed with an unknown secret."""
        return replace(self, secret=new_secret()).genuine()

    def rewritten(self) -> tuple[SignedRequest, ...]:
        """Return deliveries in the usual layouts of middleware that rewrites JSON."""
        return tuple(
            self._signed(json.dumps(self.envelope, separators=separators).encode())
            for separators in ((", ", ": "), (",", ":"))
        )

    def _signed(self, body: bytes) -> SignedRequest:
        return signed_request(body, self.secret, message_id=self.event_id, sender=self.sender)
