"""The headers of a delivery, signed by the reference library and not by the code that verifies."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from standardwebhooks import Webhook

from ..verification.secrets import decode_secret
from .records import OutgoingEvent


def delivery_headers(
    event: OutgoingEvent,
    secrets: Sequence[str],
    *,
    attempt: int,
    signed_at: float,
    service: str,
) -> dict[str, str]:
    """Return every header of a delivery (interface, Events: Delivery format).

    Args:
        event: what is delivered; its body is UTF-8.
        secrets: one, or two during a rotation.
        attempt: from 1.
        signed_at: Unix seconds.
        service: the name in the service's own headers.

    """
    # The second alone: the fraction of a time just before the next second would be rounded up.
    second = int(signed_at)
    moment = datetime.fromtimestamp(second, UTC)
    text = event.body.decode()
    return {
        "content-type": "application/json",
        "user-agent": f"{service}-webhooks/1.0 (+https://docs.example/webhooks)",
        "webhook-id": event.id,
        "webhook-timestamp": str(second),
        "webhook-signature": " ".join(
            Webhook(decode_secret(secret)).sign(event.id, moment, text) for secret in secrets
        ),
        f"{service}-event-type": event.type,
        f"{service}-delivery-attempt": str(attempt),
    }
