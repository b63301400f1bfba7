"""Raw HTTP headers become one value object here; nothing later indexes raw headers.

All grammar of the three signed headers lives in this file (interface, Events: Delivery format), and
beside it the two headers of the service that are outside the signature and therefore only hints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias, cast

from .errors import Refusal, VerificationError

__all__ = ["DeliveryHeaders", "DeliveryHints", "RawHeaders", "header_pairs", "is_message_id"]

RawHeaders: TypeAlias = (
    Mapping[str, str]
    | Mapping[bytes, bytes]
    | Iterable[tuple[str, str]]
    | Iterable[tuple[bytes, bytes]]
)
"""A mapping, or any iterable of (name, value) pairs, str or bytes, names in any case."""

_Pairs: TypeAlias = Iterable[tuple[str | bytes, str | bytes]]

_ID, _TIMESTAMP, _SIGNATURE = range(3)
_FIELDS: dict[object, int] = {
    spelling: field
    for name, field in (
        ("webhook-id", _ID),
        ("webhook-timestamp", _TIMESTAMP),
        ("webhook-signature", _SIGNATURE),
    )
    for spelling in (name, name.encode())
}

# A full stop would make `{id}.{timestamp}.{body}` ambiguous; control characters have no place in a
# header; 256 characters bound what a store must keep.
_MESSAGE_ID = re.compile(r"[^\x00-\x1f\x7f-\x9f.]{1,256}")

# Eleven digits reach the year 5138; a timestamp in milliseconds has thirteen and is refused.
_TIMESTAMP_MAX_DIGITS = 11

_ZERO = ord("0")

# The sender puts two signatures at the most (one per secret of a rotation). Sixteen leave room for
# other versions beside them, and bound the work a flood of entries can ask for.
_MAX_SIGNATURES = 16

_SIGNATURE_LENGTH = len("v1,") + 44  # base64 of 32 bytes


def is_message_id(text: str) -> bool:
    """Return whether this may stand as a webhook-id."""
    return _MESSAGE_ID.fullmatch(text) is not None


def header_pairs(headers: RawHeaders) -> _Pairs:
    """Return the (name, value) pairs of any accepted shape of headers."""
    items: Any = getattr(headers, "items", None)
    return cast("_Pairs", headers if items is None else items())


class DeliveryHeaders(NamedTuple):
    """The three signed headers, checked for grammar and nothing else.

    Attributes:
        message_id: the webhook-id as text.
        timestamp: when this attempt was signed, in Unix seconds.
        signed_prefix: ``{webhook-id}.{webhook-timestamp}.`` in the bytes that arrived.
        signatures: the base64 text of each well-formed ``v1`` entry.

    """

    message_id: str
    timestamp: int
    signed_prefix: bytes
    signatures: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"DeliveryHeaders({self.message_id!r}, {self.timestamp}, <signatures>)"

    @classmethod
    def parse(cls, headers: RawHeaders) -> DeliveryHeaders:
        """Return the signed headers among ``headers``.

        ``bytes`` are taken as they are; ``str`` is encoded as UTF-8, the way senders sign it.

        Raises:
            VerificationError: one is missing, malformed, or repeated with another value.

        """
        found: list[bytes | None] = [None, None]
        signature_lines: list[bytes] = []
        for name, value in header_pairs(headers):
            try:
                field = _FIELDS.get(name)
                if field is None:
                    field = _FIELDS.get(name.lower())
                    if field is None:
                        continue
            except (TypeError, AttributeError):  # a name that is no text is none of ours
                continue
            if value.__class__ is not bytes:
                if value is None:  # a framework's "no such header"
                    continue
                value = _encoded(value, field)  # noqa: PLW2901 - the same value, as bytes
            if field == _SIGNATURE:
                signature_lines.append(value)
            elif found[field] is None:
                found[field] = value
            elif found[field] != value:
                raise VerificationError(_CONFLICTING[field])
        message_id, timestamp = found
        signature = b" ".join(signature_lines)
        if not message_id:
            raise VerificationError(Refusal.MISSING_ID)
        if not timestamp:
            raise VerificationError(Refusal.MISSING_TIMESTAMP)
        if not signature:
            raise VerificationError(Refusal.MISSING_SIGNATURE)
        return cls(
            _id_text(message_id),
            _unix_seconds(timestamp),
            b"%b.%b." % (message_id, timestamp),
            _v1_entries(signature),
        )


_CONFLICTING = {_ID: Refusal.CONFLICTING_ID, _TIMESTAMP: Refusal.CONFLICTING_TIMESTAMP}
_MALFORMED = {
    _ID: Refusal.MALFORMED_ID,
    _TIMESTAMP: Refusal.MALFORMED_TIMESTAMP,
    _SIGNATURE: Refusal.MALFORMED_SIGNATURE,
}


def _encoded(value: object, field: int) -> bytes:
    if isinstance(value, str):
        # An entry with lone surrogates can match nothing, and must not spoil a good one beside it.
        errors = "replace" if field == _SIGNATURE else "strict"
        try:
            return value.encode("utf-8", errors)
        except UnicodeEncodeError:
            raise VerificationError(_MALFORMED[field]) from None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise VerificationError(_MALFORMED[field])


def _id_text(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise VerificationError(Refusal.MALFORMED_ID) from None
    if _MESSAGE_ID.fullmatch(text) is None:
        raise VerificationError(Refusal.MALFORMED_ID)
    return text


def _unix_seconds(raw: bytes) -> int:
    # bytes.isdigit() knows ASCII digits only, unlike str.isdigit() and int().
    if not raw.isdigit() or raw[0] == _ZERO or len(raw) > _TIMESTAMP_MAX_DIGITS:
        raise VerificationError(Refusal.MALFORMED_TIMESTAMP)
    return int(raw)


def _v1_entries(signature: bytes) -> tuple[bytes, ...]:
    """Return what could match: other versions and broken entries are skipped, never an error."""
    if len(signature) == _SIGNATURE_LENGTH and signature.startswith(b"v1,"):
        return (signature[3:],)
    return tuple(
        [
            entry[3:]
            for entry in signature.split(b" ")
            if len(entry) == _SIGNATURE_LENGTH and entry.startswith(b"v1,")
        ][:_MAX_SIGNATURES]
    )


class DeliveryHints(NamedTuple):
    """What the service says outside the signature: good for messages, never to be trusted.

    Attributes:
        event_type: ``<service>-event-type``, or None.
        attempt: ``<service>-delivery-attempt``, 1 for the first, or None where unreadable.

    """

    event_type: str | None
    attempt: int | None

    @classmethod
    def parse(cls, headers: RawHeaders, service: str | None = None) -> DeliveryHints:
        """Return the hints among ``headers``; unusable ones are None, never an error.

        The service's name is not known, so its headers are recognised by their endings unless
        ``service`` names it.
        """
        event_type: str | None = None
        attempt: int | None = None
        for name, value in header_pairs(headers):
            if value is None or not isinstance(name, str | bytes):
                continue
            lowered = name.lower()
            if not lowered.endswith(_HINT_ENDINGS.get(type(lowered), ())):
                continue
            prefix, _, last_word = _text(lowered).rsplit("-", 2)
            if service is not None and prefix != service.lower():
                continue
            text = _text(value)
            if last_word == "attempt":
                attempt = int(text) if _is_attempt(text) else None
            else:
                event_type = text[:256]
        return cls(event_type, attempt)


_HINT_ENDINGS: dict[type, Any] = {
    str: ("-event-type", "-delivery-attempt"),
    bytes: (b"-event-type", b"-delivery-attempt"),
}


def _is_attempt(text: str) -> bool:
    # Nine attempts are documented; more than four digits is not a count of them.
    return text.isascii() and text.isdigit() and len(text) <= 4


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
