"""The headers of a delivery.

The reference library signs them. Our own signing could repeat a mistake of our verification. With a
private key of the asymmetric scheme, which that library does not have, cryptography signs.
"""

from __future__ import annotations

from collections.abc import Sequence

from standardwebhooks import Webhook

from ..clock import utc
from ..senders import Sender
from ..verification.secrets import signing_key
from ..verification.signature import sign
from .records import OutgoingEvent


def delivery_headers(
    event: OutgoingEvent,
    secrets: Sequence[str],
    *,
    attempt: int,
    signed_at: float,
    sender: Sender,
    service: str,
) -> dict[str, str]:
    """Return every header of a delivery (interface, Events: Delivery format).

    They are those of the sender's first family.

    Args:
        event: the event; its body is UTF-8.
        secrets: one secret, or two during a rotation.
        attempt: the number of the attempt, from 1.
        signed_at: Unix seconds.
        sender: the sender that the headers belong to.
        service: the name in the service's own headers.
    """
    # Cut to whole seconds: rounding could give a time in the future.
    second = int(signed_at)
    family = sender.headers[0]
    headers = {
        "content-type": "application/json",
        "user-agent": f"{service}-webhooks/1.0 (+https://docs.example/webhooks)",
        f"{family}-id": event.id,
        f"{family}-timestamp": str(second),
        f"{family}-signature": " ".join(_signature(secret, event, second) for secret in secrets),
    }
    if sender.hints is not None:
        headers[f"{service}-{sender.hints.event_type}"] = event.type
        headers[f"{service}-{sender.hints.attempt}"] = str(attempt)
    return headers


def _signature(secret: str, event: OutgoingEvent, second: int) -> str:
    key = signing_key(secret)
    if key.is_shared:
        return Webhook(key.raw).sign(event.id, utc(second), event.body.decode())
    return sign(secret, event.id, event.body, timestamp=second)["webhook-signature"]
