"""What a noted request says, read when somebody looks."""

from __future__ import annotations

from collections.abc import Iterator

from ...verification.headers import DeliveryHints, RawHeaders, header_pairs
from .journal import Seen


def header_texts(headers: RawHeaders) -> Iterator[tuple[str, str]]:
    """Yield names and values as text, as they came."""
    for name, value in header_pairs(headers):
        yield _text(name), _text(value)


def claimed_id(seen: Seen) -> str | None:
    """Return the event's id: signed, or what a refused delivery calls itself."""
    if seen.verified is not None:
        return seen.verified.id
    if seen.answered is not None and seen.answered.event_id is not None:
        return seen.answered.event_id
    if seen.received is None:
        return None
    headers = header_texts(seen.received.headers)
    return next((value for name, value in headers if name.lower() == "webhook-id"), None)


def hints_of(seen: Seen) -> DeliveryHints:
    """Return what the sender says unsigned."""
    if seen.hints is not None:
        return seen.hints
    if seen.received is None:
        return DeliveryHints(None, None)
    return DeliveryHints.parse(seen.received.headers)


def event_type_of(seen: Seen) -> str | None:
    """Return the type of the event: signed where it could be read, else what the sender says."""
    if seen.answered is not None and seen.answered.event_type is not None:
        return seen.answered.event_type
    return hints_of(seen).event_type


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
