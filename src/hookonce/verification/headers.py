"""Raw HTTP headers become one value object here; nothing later indexes raw headers.

All grammar of the three signed headers lives in this file (interface, Events: Delivery format), and
beside it the two headers of the service that are outside the signature and therefore only hints.
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
"""The webhook-id, the timestamp, what is signed before the body, and the ``v1`` signatures."""

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

# A full stop would make `{id}.{timestamp}.{body}` ambiguous; control characters have no place in a
# header. The standard sets no limit to the length; this one bounds what a store must keep.
_MESSAGE_ID_MAX_LENGTH = 512
_MESSAGE_ID = re.compile(rf"[^\x00-\x1f\x7f-\x9f.]{{1,{_MESSAGE_ID_MAX_LENGTH}}}")

# Eleven digits reach the year 5138; a timestamp in milliseconds has thirteen and is refused.
_TIMESTAMP_MAX_DIGITS = 11

_ZERO = ord("0")

# The sender puts two signatures at the most (one per secret of a rotation). Sixteen leave room for
# other versions beside them, and bound the work a flood of entries can ask for.
_MAX_SIGNATURES = 16

_V1 = b"v1,"
_TEXT_LENGTH = 44  # base64 of 32 bytes
_ENTRY_LENGTH = len(_V1) + _TEXT_LENGTH


def is_message_id(text: str) -> bool:
    """Return whether this may stand as a webhook-id."""
    return _MESSAGE_ID.fullmatch(text) is not None


def header_pairs(headers: RawHeaders) -> _Pairs:
    """Return the (name, value) pairs of any accepted shape of headers."""
    items: Any = getattr(headers, "items", None)
    pairs: Any = headers if items is None else items()
    return pairs  # type: ignore[no-any-return]  # a cast would be called, for nothing


class DeliveryHints(NamedTuple):
    """What the service says outside the signature: good for messages, never to be trusted.

    Attributes:
        event_type: ``<service>-event-type``, or None.
        attempt: ``<service>-delivery-attempt``, 1 for the first, or None where unreadable.

    """

    event_type: str | None = None
    attempt: int | None = None

    @classmethod
    def parse(cls, headers: RawHeaders, service: str | None = None) -> DeliveryHints:
        """Return the hints among ``headers``; unusable ones are None, never an error.

        The service's name is not known, so its headers are recognised by their endings unless
        ``service`` names it.
        """
        pairs = list(header_pairs(headers))
        try:
            places = _places(tuple(map(_NAME, pairs)), service)
        except TypeError:  # a name that is not even hashable
            return cls()
        return _hints(places, pairs)


class DeliveryHeaders(NamedTuple):
    """The signed headers of a delivery, checked for grammar.

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
        return cls(*signed_parts(headers))


def read_headers(
    headers: RawHeaders, service: str | None = None
) -> tuple[SignedParts, DeliveryHints]:
    """Return all that a receiver reads of ``headers``, which are looked through once.

    Args:
        headers: as for ``DeliveryHeaders.parse``.
        service: the sender's name in its own two headers; without it their endings are enough.

    Raises:
        VerificationError: as ``DeliveryHeaders.parse`` does.

    """
    pairs: Any = headers if headers.__class__ is list else list(header_pairs(headers))
    try:
        places = _places(tuple(map(_NAME, pairs)), service)
    except TypeError:  # a name that is not even hashable
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
    """Return what ``DeliveryHeaders.parse`` does, as a plain tuple to unpack at once.

    It is for verification alone, which would have the object only for a moment.
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
    """Return the id, timestamp and signature of a request as an ASGI server gives it.

    None where anything about them is unusual; then ``_found`` must look. Types, cases and
    repetitions need not be asked for one by one here.
    """
    message_id = timestamp = signature = None
    try:
        for name, value in headers:
            # Most headers end here, and are not compared.
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
    except (TypeError, AttributeError):  # a name that is no text
        return None
    if message_id.__class__ is timestamp.__class__ is signature.__class__ is bytes:
        return message_id, timestamp, signature
    return None


def _spelled(headers: Any) -> _Found | None:
    """Return the id, timestamp and signature of a dict of text, as frameworks give it.

    None where anything about them is unusual. Its names are looked through once
    for all requests that have the same, which is quicker than going through the items.
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
        except UnicodeEncodeError:  # lone surrogates
            return None
    return None


# A sender and the servers before us give the same names in the same order, each time. Few are
# kept: names are as long as a server lets them be, and anybody can send new ones.
@lru_cache(maxsize=32)
def _spellings(names: tuple[object, ...]) -> tuple[str, str, str] | None:
    """Return how the three headers are spelled, or None where one is missing or comes twice."""
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
        except (TypeError, AttributeError):  # a name that is no text is none of ours
            continue
        if value.__class__ is str and value.isascii():
            value = value.encode()  # noqa: PLW2901 - the same value, as bytes
        elif value.__class__ is not bytes:
            if value is None:  # a framework's "no such header"
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
    # Printable text has no control characters, and nearly every id is such.
    if text.isprintable() and "." not in text and len(text) <= _MESSAGE_ID_MAX_LENGTH:
        return text
    if _MESSAGE_ID.fullmatch(text) is None:
        raise VerificationError(Refusal.MALFORMED_ID)
    return text


# Deliveries that come fast enough for it to matter share their second.
@lru_cache(maxsize=64)
def _unix_seconds(raw: bytes) -> int:
    # bytes.isdigit() knows ASCII digits only, unlike str.isdigit() and int().
    if not raw.isdigit() or raw[0] == _ZERO or len(raw) > _TIMESTAMP_MAX_DIGITS:
        raise VerificationError(Refusal.MALFORMED_TIMESTAMP)
    return int(raw)


def _v1_entries(signature: bytes) -> tuple[bytes, ...]:
    """Return what could match: other versions and broken entries are skipped, never an error."""
    if len(signature) == _ENTRY_LENGTH:
        # One call looks for the version and cuts it off.
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
    """Where among the headers ours are; of the service's own two the last, where one is repeated.

    Of the three signed ones None, where one is missing or repeated.
    """

    signed: tuple[int, ...] | None
    event_type: int | None
    attempt: int | None


# Requests of one sender have the same names in the same order, and these are looked through once.
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


# A service has few event types and attempts; they come with every delivery.
@lru_cache(maxsize=256)
def _usual_hints(event_type: bytes, attempt: bytes) -> DeliveryHints:
    return _read_hints(event_type, attempt)


def _read_hints(event_type: object, attempt: object) -> DeliveryHints:
    name = None if event_type is None else _text(event_type)[:256]
    number = "" if attempt is None else _text(attempt)
    return DeliveryHints(name, int(number) if _is_attempt(number) else None)


def _is_attempt(text: str) -> bool:
    # Nine attempts are documented; more than four digits is not a count of them.
    return text.isascii() and text.isdigit() and len(text) <= 4


def _text(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("latin-1")
    return str(value)
