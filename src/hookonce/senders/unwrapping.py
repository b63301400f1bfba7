"""``unwrap``: verify a delivery and read its body."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache, lru_cache
from typing import Any

from ..errors import WebhookError
from ..events import Event, EventClass, EventParser
from ..verification.headers import RawHeaders
from ..verification.secrets import SecretSource
from ..verification.signature import verify
from .built_in import publishing
from .sender import Sender


@lru_cache(maxsize=32)
def _parser(sender: Sender, events: tuple[EventClass, ...]) -> EventParser:
    return EventParser(events, sender=sender)


@cache
def _usual_parser() -> EventParser:
    """Return the parser of the default sender, for which `_parser` would compute hashes."""
    return EventParser(sender=publishing)


def unwrap(
    body: bytes,
    headers: RawHeaders,
    secrets: SecretSource,
    *,
    sender: Sender = publishing,
    tolerance: float | timedelta | None = None,
    now: float | datetime | None = None,
    events: tuple[EventClass, ...] = (),
) -> Event[Any]:
    """Return the typed event of a genuine delivery: ``verify``, then read the body.

    Args:
        body: the raw request body, exactly as received.
        headers: a mapping or (name, value) pairs, str or bytes, any case.
        secrets: a ``whsec_`` secret or ``whpk_`` public key, several, or a provider; one match is
            enough.
        sender: who sends, such as ``hookonce.senders.openai``; the Social Publishing Service by
            default.
        tolerance: how far the timestamp may be from ``now``, in both directions: seconds or a
            ``timedelta``; by default the sender's tolerance.
        now: an aware ``datetime`` or Unix seconds; the system's clock by default.
        events: event classes of your own.

    Raises:
        VerificationError: the delivery is not genuine.
        PayloadError: the delivery is genuine, but its body cannot be read as an event.
        SecretError: a secret cannot be used, or there is none.
    """
    signing = None if sender is publishing else sender  # `verify` expects publishing by default
    try:
        delivery = verify(body, headers, secrets, sender=signing, tolerance=tolerance, now=now)
    except (WebhookError, TypeError, ValueError) as error:
        del secrets  # error trackers send the local variables of every frame
        raise error.with_traceback(None) from error.__cause__
    del secrets
    is_usual = sender is publishing and not events
    parser = _usual_parser() if is_usual else _parser(sender, events)
    return parser.parse(delivery.body, delivery.id)
