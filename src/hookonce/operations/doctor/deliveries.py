"""Test deliveries: genuine, forged, or with JSON that middleware has written again."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any

from ...samples.events import event_body
from ...sender import TEST_TYPE
from ...testing import SignedRequest, signed_request
from ...verification.secrets import new_secret
from ...watching.refusals import DOCTOR_ID


@dataclass(frozen=True, slots=True)
class TestDelivery:
    """A ``webhook.test`` event with an id of its own; each method returns signed requests with it.

    It reaches only handlers that are registered for this type by name or class.

    Attributes:
        service: the sender's name in its headers.
    """

    __test__ = False  # otherwise pytest would collect the class

    envelope: dict[str, Any]
    secret: str
    service: str

    @classmethod
    def new(cls, secret: str, service: str | None) -> TestDelivery:
        event_id = f"{DOCTOR_ID}{token_hex(8)}"
        envelope = json.loads(event_body(TEST_TYPE, event_id=event_id))
        return cls(envelope, secret, service or "example")

    def genuine(self) -> SignedRequest:
        """Return a delivery in an unusual JSON layout: middleware that rewrites JSON changes it."""
        return self._signed(json.dumps(self.envelope, indent=1).encode())

    def forged(self) -> SignedRequest:
        """Return the genuine delivery, but signed with an unknown secret."""
        return replace(self, secret=new_secret()).genuine()

    def rewritten(self) -> tuple[SignedRequest, ...]:
        """Return deliveries in the usual JSON layouts, which rewriting does not change."""
        return tuple(
            self._signed(json.dumps(self.envelope, separators=separators).encode())
            for separators in ((", ", ": "), (",", ":"))
        )

    def _signed(self, body: bytes) -> SignedRequest:
        return signed_request(body, self.secret, service=self.service)
