"""The grammar of a delivery's headers: raw headers are parsed here, once.

Three headers are signed (Standard Webhooks: Webhook headers). Their names have the prefix
``webhook``, or a sender's own prefix such as ``svix``. The three headers with one prefix are a
family. Headers outside the signature are only hints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn, TypeAlias

from ..errors import Refusal, VerificationError
from .header_names import (
    ENDINGS,
    ID,
    SIGNATURE,
    TIMESTAMP,
    WEBHOOK,
    HeaderNames,
    Signing,
    families_of,
    fields_of,
    names_of,
)

RawHeaders: TypeAlias = (
    Mapping[str, str]
    | Mapping[bytes, bytes]
    | Iterable[tuple[str, str]]
    | Iterable[tuple[bytes, bytes]]
)
"""A mapping, or any iterable of (name, value) pairs, str or bytes, names in any case."""

SignedParts: TypeAlias = tuple[str, int, bytes, tuple[bytes, ...]]
"""The webhook-id, the timestamp, the signed bytes before the body, and the signatures."""

_Pairs: TypeAlias = Iterable[tuple[str | bytes, str | bytes]]

_NAME = itemgetter(0)

_FIELDS = fields_of(*WEBHOOK)

_NAME_LENGTHS = frozenset(len(spelling) for spelling in _FIELDS)

# A full stop would make `{id}.{timestamp}.{body}` ambiguous, and no header may hold control
# characters. The standard sets no limit; this limit bounds what a store must keep.
_MESSAGE_ID_MAX_LENGTH = 512
_MESSAGE_ID = re.compile(rf"[^\x00-\x1f\x7f-\x9f.]{{1,{_MESSAGE_ID_MAX_LENGTH}}}")

# Eleven digits reach the year 5138. A timestamp in milliseconds has thirteen and is refused.
_TIMESTAMP_MAX_DIGITS = 11

_ZERO = ord("0")

# The sender sends at most two signatures, one for each secret of a rotation. Sixteen leave room for
# other versions, and bound the work that a forged header can cause. Each `v1a` signature hashes the
# whole body again and takes much longer to check, so fewer of them are read.
_MAX_SIGNATURES = 16
_MAX_ASYMMETRIC = 4

V1, V1A = b"v1,", b"v1a,"
# The length of a signature's base64 text shows its version. So only signatures of the same scheme
# are compared, and the text needs no version before it.
V1_LENGTH = 44  # base64 of 32 bytes
V1A_LENGTH = 88  # base64 of 64 bytes
_V1_ENTRY_LENGTH = len(V1) + V1_LENGTH
_V1A_ENTRY_LENGTH = len(V1A) + V1A_LENGTH


def is_message_id(text: str) -> bool:
    """Return whether a text is a valid webhook-id."""
    return _MESSAGE_ID.fullmatch(text) is not None


def header_pairs(headers: RawHeaders) -> _Pairs:
    """Return the (name, value) pairs of any accepted shape of headers."""
    items: Any = getattr(headers, "items", None)
    pairs: Any = headers if items is None else items()
    return pairs  # type: ignore[no-any-return]  # cast() would be a call on the hot path


def families_in(headers: RawHeaders) -> tuple[str, ...]:
    """Return the prefixes with which ``headers`` has all three signed headers, of any sender."""
    names = {_text(name).lower() for name, _ in header_pairs(headers)}
    prefixes = (name.removesuffix(ENDINGS[ID]) for name in names if name.endswith(ENDINGS[ID]))
    return tuple(
        sorted(one for one in prefixes if all(f"{one}{ending}" in names for ending in ENDINGS))
    )


class DeliveryHints(NamedTuple):
    """The sender's headers outside the signature: show them, but never trust them.

    Attributes:
        event_type: the type of the event; None if it is missing.
        attempt: the number of the attempt, from 1; None if it is missing or unreadable.
    """

    event_type: str | None = None
    attempt: int | None = None

    @classmethod
    def parse(cls, headers: RawHeaders, sender: Signing | None = None) -> DeliveryHints:
        """Return the hints in ``headers``; an unusable hint is None, never an error.

        Args:
            headers: in any accepted shape.
            sender: the sender; by default every header is a hint whose name ends in
                ``-event-type`` or ``-delivery-attempt``.
        """
        pairs = list(header_pairs(headers))
        try:
            places = _places(tuple(map(_NAME, pairs)), names_of(sender))
        except TypeError:  # a header's name is not hashable
            return cls()
        return _hints(places, pairs)


class DeliveryHeaders(NamedTuple):
    """The signed headers of a delivery, each well formed.

    Attributes:
        message_id: the webhook-id.
        timestamp: when the sender signed this attempt, in Unix seconds.
        signed_prefix: the bytes ``{webhook-id}.{webhook-timestamp}.`` as they arrived.
        signatures: the base64 text of each well-formed entry: 44 characters for ``v1``, 88 for
            ``v1a``.
    """

    message_id: str
    timestamp: int
    signed_prefix: bytes
    signatures: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"DeliveryHeaders({self.message_id!r}, {self.timestamp}, <signatures>)"

    @classmethod
    def parse(cls, headers: RawHeaders, sender: Signing | None = None) -> DeliveryHeaders:
        """Return the signed headers in ``headers``.

        ``bytes`` are used as they are; ``str`` is encoded as UTF-8, as senders sign it.

        Args:
            headers: in any accepted shape.
            sender: the sender; by default the headers are ``webhook-*``.

        Raises:
            VerificationError: a header is missing, malformed, or repeated with another value, or
                two families differ.
        """
        return cls(*signed_parts(headers, families_of(sender)))


def read_headers(headers: RawHeaders, names: HeaderNames) -> tuple[SignedParts, DeliveryHints]:
    """Return the signed headers and the hints, in one pass over ``headers``.

    Args:
        headers: as for ``DeliveryHeaders.parse``.
        names: the names of the sender's headers.

    Raises:
        VerificationError: as ``DeliveryHeaders.parse`` does.
    """
    pairs: Any = headers if headers.__class__ is list else list(header_pairs(headers))
    try:
        places = _places(tuple(map(_NAME, pairs)), names)
    except TypeError:  # a header's name is not hashable
        return signed_parts(pairs, names), DeliveryHints()
    hints = _hints(places, pairs)
    if places.signed is not None:
        id_at, timestamp_at, signature_at = places.signed
        message_id, timestamp = pairs[id_at][1], pairs[timestamp_at][1]
        signature = pairs[signature_at][1]
        is_usual = message_id.__class__ is timestamp.__class__ is signature.__class__ is bytes
        if is_usual and message_id and timestamp and signature:
            try:
                signed = (
                    _id_text(message_id),
                    _unix_seconds(timestamp),
                    b".".join((message_id, timestamp, b"")),
                    _signature_texts(signature),
                )
            except VerificationError as error:
                raise _naming(error, names) from None
            return signed, hints
    return signed_parts(pairs, names), hints


def signed_parts(headers: RawHeaders, names: HeaderNames | None = None) -> SignedParts:
    """Parse the signed headers like ``DeliveryHeaders.parse``, but into a plain tuple.

    Verification unpacks the tuple at once, and an object would only cost time.

    Args:
        headers: as for ``DeliveryHeaders.parse``.
        names: the names of the sender's headers; None for ``webhook-*`` alone.
    """
    try:
        found = None
        if names is not None:
            found = _agreed(headers, names.families)
        elif headers.__class__ is list:
            found = _usual(headers)
        elif headers.__class__ is dict:
            found = _spelled(headers)
        message_id, timestamp, signature = found or _found(headers)
        if not (message_id and timestamp and signature):
            _refuse_missing(message_id, timestamp)
        return (
            _id_text(message_id),
            _unix_seconds(timestamp),
            b".".join((message_id, timestamp, b"")),
            _signature_texts(signature),
        )
    except VerificationError as error:
        if names is None:
            raise
        raise _naming(error, names) from None


def _refuse_missing(message_id: bytes | None, timestamp: bytes | None) -> NoReturn:
    if not message_id:
        raise VerificationError(Refusal.MISSING_ID)
    if not timestamp:
        raise VerificationError(Refusal.MISSING_TIMESTAMP)
    raise VerificationError(Refusal.MISSING_SIGNATURE)


def _naming(error: VerificationError, names: HeaderNames) -> VerificationError:
    """Return the error; its message shows the names of the sender's headers."""
    return VerificationError(error.reason, error.skew, names.prefixes)


_Found: TypeAlias = tuple[bytes | None, bytes | None, bytes | None]


def _usual(headers: Any) -> _Found | None:
    """Read the id, timestamp and signature of raw ASGI headers on the fast path.

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
    """Read the id, timestamp and signature of a framework's dict of text on the fast path.

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


# A sender and its proxies send the same names in the same order every time. The cache is small,
# because anybody can send new names, and the server's limit on their length may be high.
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
    if len(found) != len((ID, TIMESTAMP, SIGNATURE)):
        return None
    return found[ID], found[TIMESTAMP], found[SIGNATURE]


def _agreed(headers: RawHeaders, families: tuple[dict[str | bytes, int], ...]) -> _Found:
    """Return the id, timestamp and signature, which must be equal under all prefixes in a delivery.

    A verifier that picks one of two families could be led to verify one and to handle the other.
    """
    pairs: Any = list(header_pairs(headers))
    found = [_found(pairs, fields) for fields in families]
    carried = [one for one in found if one != _NOTHING]
    if any(one != carried[0] for one in carried[1:]):
        raise VerificationError(Refusal.CONFLICTING_HEADERS)
    return carried[0] if carried else _NOTHING


_NOTHING: _Found = (None, None, None)


def _found(headers: RawHeaders, fields: dict[str | bytes, int] = _FIELDS) -> _Found:
    """Return the id, timestamp and signature of headers in any accepted shape."""
    found: list[bytes | None] = [None, None, None]
    more_signatures: list[bytes] = []
    for name, value in header_pairs(headers):
        try:
            field = fields.get(name)
            if field is None:
                field = fields.get(name.lower())
                if field is None:
                    continue
        except (TypeError, AttributeError):  # a name that is not text is not a signed header
            continue
        if value.__class__ is str and value.isascii():
            value = value.encode()  # noqa: PLW2901 - the same value, as bytes
        elif value.__class__ is not bytes:
            if value is None:  # some frameworks list a missing header with the value None
                continue
            value = _encoded(value, field)  # noqa: PLW2901 - the same value, as bytes
        before = found[field]
        if before is None:
            found[field] = value
        elif field == SIGNATURE:
            more_signatures.append(value)
        elif before != value:
            raise VerificationError(_CONFLICTING[field])
    message_id, timestamp, signature = found
    if more_signatures:
        signature = b" ".join([signature or b"", *more_signatures])
    return message_id, timestamp, signature


_CONFLICTING = {ID: Refusal.CONFLICTING_ID, TIMESTAMP: Refusal.CONFLICTING_TIMESTAMP}
_MALFORMED = {
    ID: Refusal.MALFORMED_ID,
    TIMESTAMP: Refusal.MALFORMED_TIMESTAMP,
    SIGNATURE: Refusal.MALFORMED_SIGNATURE,
}


def _encoded(value: object, field: int) -> bytes:
    if isinstance(value, str):
        # A signature with lone surrogates matches nothing, but another signature in the header may
        # match.
        errors = "replace" if field == SIGNATURE else "strict"
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


# Under load many deliveries have the same second, so they share one cache entry.
@lru_cache(maxsize=64)
def _unix_seconds(raw: bytes) -> int:
    # bytes.isdigit() accepts ASCII digits only, unlike str.isdigit() and int().
    if not raw.isdigit() or raw[0] == _ZERO or len(raw) > _TIMESTAMP_MAX_DIGITS:
        raise VerificationError(Refusal.MALFORMED_TIMESTAMP)
    return int(raw)


def _signature_texts(signature: bytes) -> tuple[bytes, ...]:
    """Return the texts of the well-formed entries; skip other versions and broken entries."""
    if len(signature) == _V1_ENTRY_LENGTH:
        # removeprefix() checks the version and removes it in one call.
        text = signature.removeprefix(V1)
        return (text,) if len(text) == V1_LENGTH else ()
    texts: list[bytes] = []
    asymmetric = 0
    for entry in signature.split(b" "):
        if len(entry) == _V1_ENTRY_LENGTH and entry.startswith(V1):
            texts.append(entry.removeprefix(V1))
        elif len(entry) == _V1A_ENTRY_LENGTH and entry.startswith(V1A):
            asymmetric += 1
            if asymmetric > _MAX_ASYMMETRIC:
                continue
            texts.append(entry.removeprefix(V1A))
        if len(texts) == _MAX_SIGNATURES:
            break
    return tuple(texts)


_MOST_USUAL = 64


class _Places(NamedTuple):
    """The positions of a delivery's headers in the list of headers.

    Attributes:
        signed: the positions of the three signed headers; None if a header is missing or repeated,
            or if there are headers of two families.
        event_type: the position of the event-type hint; of its last copy if it is repeated.
        attempt: the position of the attempt hint; of its last copy if it is repeated.
    """

    signed: tuple[int, ...] | None
    event_type: int | None
    attempt: int | None


# Requests of one sender have the same names in the same order, so one search serves them all.
@lru_cache(maxsize=32)
def _places(received: tuple[object, ...], names: HeaderNames) -> _Places:
    hints: list[int | None] = [None, None]
    signed: list[tuple[int, int, int]] = []
    for place, name in enumerate(received):
        lowered = _text(name).lower()
        if lowered in names.fields:
            signed.append((*names.fields[lowered], place))
        for ending, hint in names.endings:
            service = lowered.removesuffix(ending)
            if service != lowered and names.service in {None, service}:
                hints[hint] = place
    signed.sort()
    is_usual = len({family for family, _, _ in signed}) == 1 and [
        field for _, field, _ in signed
    ] == [ID, TIMESTAMP, SIGNATURE]
    return _Places(tuple(place for _, _, place in signed) if is_usual else None, *hints)


def _hints(places: _Places, pairs: Sequence[tuple[object, object]]) -> DeliveryHints:
    _, type_at, attempt_at = places
    event_type: Any = None if type_at is None else pairs[type_at][1]
    attempt: Any = None if attempt_at is None else pairs[attempt_at][1]
    is_usual = event_type.__class__ is attempt.__class__ is bytes
    if is_usual and len(event_type) + len(attempt) <= _MOST_USUAL:
        return _usual_hints(event_type, attempt)
    return _read_hints(event_type, attempt)


# Cache the hints: a service has few event types and attempts, and every delivery carries both.
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
