"""Test deliveries: genuine, forged, and written as others would write them anew."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any

from ...delivery.handler import TEST_TYPE
from ...testing import SignedRequest, signed_request
from ...testing.samples import event_body
from ...verification.secrets import new_secret


@dataclass(frozen=True, slots=True)
class TestDelivery:
    """A test event that has an id of its own, signed anew whenever it is asked for.

    A ``webhook.test`` reaches only handlers registered for it by name or class.

    Attributes:
        envelope: the event.
        secret: what to sign with.
        service: the sender's name in its own headers.

    """

    __test__ = False  # not a test, whatever its name

    envelope: dict[str, Any]
    secret: str
    service: str

    @classmethod
    def new(cls, secret: str, service: str | None) -> TestDelivery:
        """Return one of an event that nobody has seen."""
        event_id = f"evt_doctor_{token_hex(8)}"
        envelope = json.loads(event_body(TEST_TYPE, event_id=event_id))
        return cls(envelope, secret, service or "example")

    def genuine(self) -> SignedRequest:
        """Return it in a spelling that nobody who writes JSON anew would choose."""
        return self._signed(json.dumps(self.envelope, indent=1).encode())

    def forged(self) -> SignedRequest:
        """Return it signed with a secret that nobody has: nothing else is wrong with it."""
        return replace(self, secret=new_secret()).genuine()

    def rewritten(self) -> tuple[SignedRequest, ...]:
        """Return it as what parses and writes anew would write it: that keeps these as they are."""
        return tuple(
            self._signed(json.dumps(self.envelope, separators=separators).encode())
            for separators in ((", ", ": "), (",", ":"))
        )

    def _signed(self, body: bytes) -> SignedRequest:
        return signed_request(body, self.secret, service=self.service)
