"""The grammar of a delivery's headers: raw headers are parsed here, once.

Three headers are signed (interface, Events: Delivery format). The service's own two headers are
outside the signature, so they are only hints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from ..errors import Refusal, VerificationError

RawHeaders: TypeAlias = (
    Mapping[str, str]
    | Mapping[bytes, bytes]
    | Iterable[tuple[str, str]]
    | Iterable[tuple[bytes, bytes]]
)
"""A mapping, or any iterable of (name, value) pairs, str or bytes, names in any case."""

SignedParts: TypeAlias = tuple[str, int, bytes, tuple[bytes, ...]]
"""The webhook-id, the timestamp, the signed bytes before the body, and the ``v1`` signatures."""

_Pairs: TypeAlias = Iterable[tuple[str | bytes, str | bytes]]

_NAME = itemgetter(0)

_ID, _TIMESTAMP, _SIGNATURE = range(3)
_FIELDS: dict[str | bytes, int] = {
    spelling: field
    for name, field in (
        ("webhook-id", _ID),
        ("webhook-timestamp", _TIMESTAMP),
        ("webhook-signature", _SIGNATURE),
    )
    for spelling in (name.encode(), name)
}

_NAME_LENGTHS = frozenset(len(spelling) for spelling in _FIELDS)

# A full stop would make `{id}.{timestamp}.{body}` ambiguous, and no header may hold control
# characters. The standard sets no limit; this limit bounds what a store must keep.
_MESSAGE_ID_MAX_LENGTH = 512
_MESSAGE_ID = re.compile(rf"[^\x00-\x1f\x7f-\x9f.]{{1,{_MESSAGE_ID_MAX_LENGTH}}}")

# Eleven digits reach the year 5138. A timestamp in milliseconds has thirteen and is refused.
_TIMESTAMP_MAX_DIGITS = 11

_ZERO = ord("0")

# The sender sends at most two signatures, one for each secret of a rotation. Sixteen leave room for
# other versions, and bound the work that a forged header can cause.
_MAX_SIGNATURES = 16

_V1 = b"v1,"
_TEXT_LENGTH = 44  # base64 of 32 bytes
_ENTRY_LENGTH = len(_V1) + _TEXT_LENGTH


def is_message_id(text: str) -> bool:
    """Return whether a text is a valid webhook-id."""
    return _MESSAGE_ID.fullmatch(text) is not None


def header_pairs(headers: RawHeaders) -> _Pairs:
    """Return the (name, value) pairs of any accepted shape of headers."""
    items: Any = getattr(headers, "items", None)
    pairs: Any = headers if items is None else items()
    return pairs  # type: ignore[no-any-return]  # cast() would be a call on the hot path


class DeliveryHints(NamedTuple):
    """The service's own two headers. They are not signed: show them, but never trust them.

    Attributes:
        event_type: ``<service>-event-type``, or None.
        attempt: ``<service>-delivery-attempt``, from 1; None if it is missing or unreadable.
    """

    event_type: str | None = None
    attempt: int | None = None

    @classmethod
    def parse(cls, headers: RawHeaders, service: str | None = None) -> DeliveryHints:
        """Return the hints in ``headers``; an unusable hint is None, never an error.

        Args:
            headers: in any accepted shape.
            service: the service's name; without it the endings of the names are enough.
        """
        pairs = list(header_pairs(headers))
        try:
            places = _places(tuple(map(_NAME, pairs)), service)
        except TypeError:  # a header's name is not hashable
            return cls()
        return _hints(places, pairs)


class DeliveryHeaders(NamedTuple):
    """The signed headers of a delivery, each well formed.

    Attributes:
        message_id: the webhook-id.
        timestamp: when the sender signed this attempt, in Unix seconds.
        signed_prefix: the bytes ``{webhook-id}.{webhook-timestamp}.`` as they arrived.
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
        """Return the signed headers in ``headers``.

        ``bytes`` are used as they are; ``str`` is encoded as UTF-8, as senders sign it.

        Raises:
            VerificationError: a header is missing, malformed, or repeated with another value.
        """
        return cls(*signed_parts(headers))


def read_headers(
    headers: RawHeaders, service: str | None = None
) -> tuple[SignedParts, DeliveryHints]:
    """Return the signed headers and the hints, in one pass over ``headers``.

    Args:
        headers: as for ``DeliveryHeaders.parse``.
        service: as for ``DeliveryHints.parse``.

    Raises:
        VerificationError: as ``DeliveryHeaders.parse`` does.
    """
    pairs: Any = headers if headers.__class__ is list else list(header_pairs(headers))
    try:
        places = _places(tuple(map(_NAME, pairs)), service)
    except TypeError:  # a header's name is not hashable
        return signed_parts(pairs), DeliveryHints()
    hints = _hints(places, pairs)
    if places.signed is not None:
        id_at, timestamp_at, signature_at = places.signed
        message_id, timestamp = pairs[id_at][1], pairs[timestamp_at][1]
        signature = pairs[signature_at][1]
        is_usual = message_id.__class__ is timestamp.__class__ is signature.__class__ is bytes
        if is_usual and message_id and timestamp and signature:
            signed = (
                _id_text(message_id),
                _unix_seconds(timestamp),
                b".".join((message_id, timestamp, b"")),
                _v1_entries(signature),
            )
            return signed, hints
    return signed_parts(pairs), hints


def signed_parts(headers: RawHeaders) -> SignedParts:
    """Parse the signed headers like ``DeliveryHeaders.parse``, but into a plain tuple.

    Verification unpacks the tuple at once, and an object would only cost time.
    """
    found = None
    if headers.__class__ is list:
        found = _usual(headers)
    elif headers.__class__ is dict:
        found = _spelled(headers)
    message_id, timestamp, signature = found or _found(headers)
    if not message_id:
        raise VerificationError(Refusal.MISSING_ID)
    if not timestamp:
        raise VerificationError(Refusal.MISSING_TIMESTAMP)
    if not signature:
        raise VerificationError(Refusal.MISSING_SIGNATURE)
    return (
        _id_text(message_id),
        _unix_seconds(timestamp),
        b".".join((message_id, timestamp, b"")),
        _v1_entries(signature),
    )


_Found: TypeAlias = tuple[bytes | None, bytes | None, bytes | None]


def _usual(headers: Any) -> _Found | None:
    """Return the id, timestamp and signature of raw ASGI headers: the fast way.

    Return None if anything about them is unusual: then ``_found`` reads them, with every check.
    """
    message_id = timestamp = signature = None
    try:
        for name, value in headers:
            # Comparing the length first skips most headers.
            if len(name) not in _NAME_LENGTHS:
                continue
            if name == b"webhook-timestamp" and timestamp is None:
                timestamp = value
            elif name == b"webhook-signature" and signature is None:
                signature = value
            elif name == b"webhook-id" and message_id is None:
                message_id = value
            elif name.lower() in _FIELDS:
                return None
    except (TypeError, AttributeError):  # a header's name is not text
        return None
    if message_id.__class__ is timestamp.__class__ is signature.__class__ is bytes:
        return message_id, timestamp, signature
    return None


def _spelled(headers: Any) -> _Found | None:
    """Return the id, timestamp and signature of a framework's dict of text, the fast way.

    Return None if anything about them is unusual. Requests with the same names share one cached
    search for the three spellings.
    """
    spellings = _spellings(tuple(headers))
    if spellings is None:
        return None
    id_name, timestamp_name, signature_name = spellings
    message_id, timestamp = headers[id_name], headers[timestamp_name]
    signature = headers[signature_name]
    if message_id.__class__ is timestamp.__class__ is signature.__class__ is str:
        try:
            return message_id.encode(), timestamp.encode(), signature.encode()
        except UnicodeEncodeError:  # the text contains lone surrogates
            return None
    return None


# A sender and its proxies send the same names in the same order every time. The cache is small
# because anybody can send new names, as long as the server allows.
@lru_cache(maxsize=32)
def _spellings(names: tuple[object, ...]) -> tuple[str, str, str] | None:
    """Return the spellings of the three header names; None if one is missing or repeated."""
    found: dict[int, str] = {}
    for name in names:
        if not isinstance(name, str):
            return None
        field = _FIELDS.get(name.lower())
        if field is None:
            continue
        if field in found:
            return None
        found[field] = name
    if len(found) != len((_ID, _TIMESTAMP, _SIGNATURE)):
        return None
    return found[_ID], found[_TIMESTAMP], found[_SIGNATURE]


def _found(headers: RawHeaders) -> _Found:
    """Return the id, timestamp and signature of headers in any accepted shape."""
    found: list[bytes | None] = [None, None, None]
    more_signatures: list[bytes] = []
    for name, value in header_pairs(headers):
        try:
            field = _FIELDS.get(name)
            if field is None:
                field = _FIELDS.get(name.lower())
                if field is None:
                    continue
        except (TypeError, AttributeError):  # a name that is not text is not a signed header
            continue
        if value.__class__ is str and value.isascii():
            value = value.encode()  # noqa: PLW2901 - the same value, as bytes
        elif value.__class__ is not bytes:
            if value is None:  # some frameworks list a missing header with the value None
                continue
            value = _encoded(value, field)  # noqa: PLW2901 - as above
        before = found[field]
        if before is None:
            found[field] = value
        elif field == _SIGNATURE:
            more_signatures.append(value)
        elif before != value:
            raise VerificationError(_CONFLICTING[field])
    message_id, timestamp, signature = found
    if more_signatures:
        signature = b" ".join([signature or b"", *more_signatures])
    return message_id, timestamp, signature


_CONFLICTING = {_ID: Refusal.CONFLICTING_ID, _TIMESTAMP: Refusal.CONFLICTING_TIMESTAMP}
_MALFORMED = {
    _ID: Refusal.MALFORMED_ID,
    _TIMESTAMP: Refusal.MALFORMED_TIMESTAMP,
    _SIGNATURE: Refusal.MALFORMED_SIGNATURE,
}


def _encoded(value: object, field: int) -> bytes:
    if isinstance(value, str):
        # A signature with lone surrogates matches nothing, but another signature in the header may
        # match.
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
    # Fast path: printable text has no control characters, and nearly every id is printable.
    if text.isprintable() and "." not in text and len(text) <= _MESSAGE_ID_MAX_LENGTH:
        return text
    if _MESSAGE_ID.fullmatch(text) is None:
        raise VerificationError(Refusal.MALFORMED_ID)
    return text


# Under load many deliveries share one second, and so one cache entry.
@lru_cache(maxsize=64)
def _unix_seconds(raw: bytes) -> int:
    # bytes.isdigit() accepts ASCII digits only, unlike str.isdigit() and int().
    if not raw.isdigit() or raw[0] == _ZERO or len(raw) > _TIMESTAMP_MAX_DIGITS:
        raise VerificationError(Refusal.MALFORMED_TIMESTAMP)
    return int(raw)


def _v1_entries(signature: bytes) -> tuple[bytes, ...]:
    """Return the well-formed ``v1`` signatures; other versions and broken entries are skipped."""
    if len(signature) == _ENTRY_LENGTH:
        # removeprefix() checks the version and removes it in one call.
        text = signature.removeprefix(_V1)
        return (text,) if len(text) == _TEXT_LENGTH else ()
    texts: list[bytes] = []
    for entry in signature.split(b" "):
        if len(entry) == _ENTRY_LENGTH and entry.startswith(_V1):
            texts.append(entry.removeprefix(_V1))
            if len(texts) == _MAX_SIGNATURES:
                break
    return tuple(texts)


_MOST_USUAL = 64


class _Places(NamedTuple):
    """The positions of a delivery's headers in the list of headers.

    Attributes:
        signed: the positions of the three signed headers; None if a header is missing or repeated.
        event_type: the position of the event-type hint; of its last copy if it is repeated.
        attempt: the position of the attempt hint; of its last copy if it is repeated.
    """

    signed: tuple[int, ...] | None
    event_type: int | None
    attempt: int | None


# Requests of one sender have the same names in the same order, so one search serves them all.
@lru_cache(maxsize=32)
def _places(names: tuple[object, ...], service: str | None) -> _Places:
    hints: dict[str, int] = {}
    signed: list[tuple[int, int]] = []
    for place, name in enumerate(names):
        lowered = _text(name).lower()
        if lowered in _FIELDS:
            signed.append((_FIELDS[lowered], place))
        for ending in ("-event-type", "-delivery-attempt"):
            sender = lowered.removesuffix(ending)
            if sender != lowered and (service is None or sender == service.lower()):
                hints[ending] = place
    signed.sort()
    is_usual = [field for field, _ in signed] == [_ID, _TIMESTAMP, _SIGNATURE]
    return _Places(
        tuple(place for _, place in signed) if is_usual else None,
        hints.get("-event-type"),
        hints.get("-delivery-attempt"),
    )


def _hints(places: _Places, pairs: Sequence[tuple[object, object]]) -> DeliveryHints:
    _, type_at, attempt_at = places
    event_type: Any = None if type_at is None else pairs[type_at][1]
    attempt: Any = None if attempt_at is None else pairs[attempt_at][1]
    is_usual = event_type.__class__ is attempt.__class__ is bytes
    if is_usual and len(event_type) + len(attempt) <= _MOST_USUAL:
        return _usual_hints(event_type, attempt)
    return _read_hints(event_type, attempt)


# Cached: a service has few event types and attempts, and every delivery carries both.
@lru_cache(maxsize=256)
def _usual_hints(event_type: bytes, attempt: bytes) -> DeliveryHints:
    return _read_hints(event_type, attempt)


def _read_hints(event_type: object, attempt: object) -> DeliveryHints:
    name = None if event_type is None else _text(event_type)[:256]
    number = "" if attempt is None else _text(attempt)
    return DeliveryHints(name, int(number) if _is_attempt(number) else None)


def _is_attempt(text: str) -> bool:
    # The interface documents nine attempts; a number of five digits is not an attempt.
    return text.isascii() and text.isdigit() and len(text) <= 4


def _text(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("latin-1")
    return str(value)
