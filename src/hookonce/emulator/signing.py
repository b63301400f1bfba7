"""The headers of a delivery.

The reference library signs them. Our own signing could repeat a mistake of our verification.
"""

from __future__ import annotations

from collections.abc import Sequence

from standardwebhooks import Webhook

from ..clock import utc
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
        event: the event; its body is UTF-8.
        secrets: one secret, or two during a rotation.
        attempt: the number of the attempt, from 1.
        signed_at: Unix seconds.
        service: the name in the service's own headers.
    """
    # Cut to whole seconds: rounding could give a time in the future.
    second = int(signed_at)
    text = event.body.decode()
    return {
        "content-type": "application/json",
        "user-agent": f"{service}-webhooks/1.0 (+https://docs.example/webhooks)",
        "webhook-id": event.id,
        "webhook-timestamp": str(second),
        "webhook-signature": " ".join(
            Webhook(decode_secret(secret)).sign(event.id, utc(second), text) for secret in secrets
        ),
        f"{service}-event-type": event.type,
        f"{service}-delivery-attempt": str(attempt),
    }
