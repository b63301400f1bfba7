"""The sender of the demo: signs with the reference library and posts over HTTP."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

import httpx2
from standardwebhooks import Webhook

from hookonce import Refusal
from hookonce.samples import event_body, new_event_id

from .log import Log

__all__ = ["PATH", "Sender"]

PATH = "/webhooks"


@dataclass(slots=True)
class Sender:
    """Signs and posts deliveries, and has a line printed for each."""

    client: httpx2.AsyncClient
    log: Log
    secret: str
    old_secret: str
    deliveries: int = 0
    events: set[str] = field(default_factory=set)

    async def deliver(
        self,
        event_type: str,
        expected: tuple[int, str],
        *,
        event_id: str | None = None,
        body: bytes | None = None,
        attempt: int = 1,
        age: float = 0.0,
        rotating: bool = False,
        tampered: bool = False,
    ) -> None:
        """Deliver once and check the answer: status and reason."""
        event_id = event_id or new_event_id()
        body = event_body(event_type, event_id=event_id) if body is None else body
        headers = self._headers(event_id, event_type, body, attempt, age, rotating=rotating)
        sent = body.replace(b"walnut", b"peanut") if tampered else body
        started = time.perf_counter()
        response = await self.client.post(PATH, content=sent, headers=headers)
        milliseconds = (time.perf_counter() - started) * 1000
        self.deliveries += 1
        self.events.add(event_id)
        reason = response.json()["reason"]
        self.log.delivery(
            event_type,
            event_id,
            attempt,
            is_genuine=reason not in set(Refusal),
            answer=(response.status_code, reason),
            expected=expected,
            milliseconds=milliseconds,
        )

    def _headers(
        self,
        event_id: str,
        event_type: str,
        body: bytes,
        attempt: int,
        age: float,
        *,
        rotating: bool,
    ) -> dict[str, str]:
        signed_at = datetime.fromtimestamp(time.time() - age, UTC)
        secrets = [self.secret, self.old_secret] if rotating else [self.secret]
        return {
            "content-type": "application/json",
            "user-agent": "example-webhooks/1.0 (+https://docs.example/webhooks)",
            "webhook-id": event_id,
            "webhook-timestamp": str(int(signed_at.timestamp())),
            "webhook-signature": " ".join(
                Webhook(secret).sign(event_id, signed_at, body.decode()) for secret in secrets
            ),
            "example-event-type": event_type,
            "example-delivery-attempt": str(attempt),
        }
