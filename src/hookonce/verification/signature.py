"""Verification and signing of deliveries: pure functions over bytes, without I/O.

Standard Webhooks, Signature scheme: ``v1`` is HMAC-SHA256 with a shared secret, ``v1a`` is ed25519.
Both sign ``{webhook-id}.{webhook-timestamp}.{raw body}``. The kind of a key alone decides which of
the two it makes or matches; a delivery cannot choose.
"""

from __future__ import annotations

import hashlib
import hmac
from binascii import b2a_base64
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from hmac import compare_digest
from typing import NamedTuple, TypeAlias, TypeVar

from ..clock import Clock, span_seconds, system_clock, unix_seconds, utc
from ..errors import Refusal, SecretError, VerificationError, shows_half_built, unmatched
from .header_names import WEBHOOK, Signing, families_of, names_of
from .headers import V1, DeliveryHeaders, RawHeaders, SignedParts, is_message_id, signed_parts
from .secrets import (
    SecretSource,
    SecretsProvider,
    provided,
    secrets_of,
    signing_key,
    verifying_key,
)

T = TypeVar("T")

DEFAULT_TOLERANCE = 300.0
"""The tolerance in seconds for a sender that publishes none; the reference library has the same."""

# The first timestamp that a receiver refuses: timestamps have at most eleven digits.
_END_OF_TIMESTAMPS = 10**11

Signer: TypeAlias = Callable[[bytes, bytes], bytes]
"""Returns the signature, with its version, of ``{webhook-id}.{webhook-timestamp}.`` and a body."""

Matcher: TypeAlias = Callable[[bytes, bytes, Sequence[bytes]], bool]
"""Takes the arguments of a `Signer`, and the texts of signatures, without their versions; returns
whether its key made one of them."""


class VerifiedDelivery(NamedTuple):
    """A delivery whose signature is genuine.

    Attributes:
        id: the webhook-id, which is the id of the event.
        timestamp: the webhook-timestamp: when the sender signed this attempt, in Unix seconds.
        body: the signed bytes.
        secret_index: which of the configured secrets matched; 0 is the first.
        signature_count: how many well-formed signatures it carried; two during a rotation.
        skew: our clock minus the timestamp, in seconds; negative if the sender's clock is ahead.
    """

    id: str
    timestamp: int
    body: bytes
    secret_index: int
    signature_count: int
    skew: float

    @property
    def signed_at(self) -> datetime:
        """The timestamp as an aware UTC ``datetime``."""
        return utc(self.timestamp)

    def __repr__(self) -> str:
        return (
            f"VerifiedDelivery(id={self.id!r}, timestamp={self.timestamp!r},"
            f" secret_index={self.secret_index!r}, signature_count={self.signature_count!r},"
            f" skew={self.skew!r})"
        )


def verify(
    body: bytes,
    headers: RawHeaders,
    secrets: SecretSource,
    *,
    sender: Signing | None = None,
    tolerance: float | timedelta | None = None,
    now: float | datetime | None = None,
) -> VerifiedDelivery:
    """Return the verified delivery; raise an error if the delivery is not genuine.

    Args:
        body: the raw request body, exactly as received.
        headers: a mapping or (name, value) pairs, str or bytes, any case.
        secrets: a ``whsec_`` secret or ``whpk_`` public key, several, or a provider; one match is
            enough.
        sender: who signs, such as ``hookonce.senders.svix``; by default the headers are
            ``webhook-*``.
        tolerance: how far the timestamp may be from ``now``, in both directions: seconds or a
            ``timedelta``; by default the sender's tolerance.
        now: an aware ``datetime`` or Unix seconds; the system's clock by default.

    Raises:
        VerificationError: the delivery is not genuine; ``reason`` says why.
        SecretError: a secret cannot be used, or there is none.
    """
    try:
        # A single secret, the most frequent case, has a separate and faster cache.
        matchers = (
            _known_matcher(secrets) if secrets.__class__ is str else _matchers(secrets_of(secrets))
        )
    except SecretError as error:
        del secrets
        raise error.with_traceback(None) from error.__cause__
    del secrets
    if sender is None:
        families, usual = None, DEFAULT_TOLERANCE
    else:
        families, usual = families_of(sender), sender.tolerance_seconds
    tolerance = usual if tolerance is None else span_seconds("tolerance", tolerance)
    if now is None:
        now = system_clock()
    elif now.__class__ is not float:
        now = unix_seconds("now", now)
    parts = signed_parts(headers, families)
    delivery = _verified(matchers, body, parts, tolerance, now)
    if delivery is None:
        raise unmatched()
    return delivery


@shows_half_built
class Verifier:
    """Verifies deliveries, and decodes the secrets only once.

    Args:
        secrets: a ``whsec_`` secret or ``whpk_`` public key, several, or a provider, which every
            delivery asks.
        sender: who signs, such as ``hookonce.senders.svix``; by default the headers are
            ``webhook-*``.
        tolerance: how far a timestamp may be from the clock, in both directions: seconds or a
            ``timedelta``; by default the sender's tolerance.
        clock: returns the Unix time in seconds.

    Raises:
        SecretError: a secret cannot be used, or there is none.
    """

    __slots__ = ("_clock", "_families", "_keyring", "_provider", "_tolerance")

    def __init__(
        self,
        secrets: SecretSource,
        *,
        sender: Signing | None = None,
        tolerance: float | timedelta | None = None,
        clock: Clock = system_clock,
    ) -> None:
        try:
            known = secrets_of(secrets)
            # One attribute holds secrets and keys: no thread sees new secrets with old keys.
            self._keyring = known, _matchers(known)
        except SecretError as error:
            known = ()
            del secrets
            raise error.with_traceback(None) from error.__cause__
        self._provider = secrets if isinstance(secrets, SecretsProvider) else None
        del secrets, known
        self._families = families_of(sender)
        if tolerance is None:
            tolerance = DEFAULT_TOLERANCE if sender is None else sender.tolerance_seconds
        self._tolerance = span_seconds("tolerance", tolerance)
        self._clock = clock

    def __repr__(self) -> str:
        return f"Verifier(<{len(self._keyring[0])} secrets>, tolerance={self._tolerance:g})"

    def verify(
        self, body: bytes, headers: RawHeaders, *, now: float | datetime | None = None
    ) -> VerifiedDelivery:
        """Return the verified delivery; raise the same errors as the function ``verify``."""
        matchers = self._keyring[1] if self._provider is None else self._current(self._provider)
        if now is None:
            now = self._clock()
        elif now.__class__ is not float:
            now = unix_seconds("now", now)
        parts = signed_parts(headers, self._families)
        delivery = _verified(matchers, body, parts, self._tolerance, now)
        if delivery is None:
            raise unmatched()
        return delivery

    def _current(self, provider: SecretsProvider) -> tuple[Matcher, ...]:
        """Return the matchers of the secrets that the provider has now."""
        try:
            self._keyring = _renewed(self._keyring, provider)
        except SecretError as error:
            del provider
            raise error.with_traceback(None) from error.__cause__
        return self._keyring[1]


class PartsVerifier(Verifier):
    """Verifies deliveries from parsed headers; the pipeline parses headers and hints at once."""

    __slots__ = ()

    def verify_parts(
        self, body: bytes, parts: SignedParts, *, now: float | None = None
    ) -> VerifiedDelivery:
        """Return the verified delivery.

        Raises:
            VerificationError: the timestamp is outside the tolerance, or no signature matches.
            SecretError: a secret cannot be used, or there is none.
        """
        matchers = self._keyring[1] if self._provider is None else self._current(self._provider)
        now = self._clock() if now is None else now
        delivery = _verified(matchers, body, parts, self._tolerance, now)
        if delivery is None:
            raise unmatched()
        return delivery


def sign(
    secret: str | Sequence[str],
    message_id: str,
    body: bytes,
    *,
    sender: Signing | None = None,
    timestamp: float | datetime | None = None,
) -> dict[str, str]:
    """Return the three headers that make ``body`` a genuine delivery.

    Args:
        secret: a ``whsec_`` secret or ``whsk_`` private key, or several, as during a rotation: each
            adds a signature.
        message_id: the webhook-id.
        body: the raw bytes that will be sent.
        sender: who signs, which names the headers; by default they are ``webhook-*``.
        timestamp: an aware ``datetime`` or Unix seconds (a fraction is cut off); now by default.

    Raises:
        SecretError: a secret cannot be used, or there is none.
        ValueError: no receiver would accept the ``message_id`` or the ``timestamp``.
    """
    try:
        signers = _each(_known_signers, secrets_of(secret))
    except SecretError as error:
        del secret
        raise error.with_traceback(None) from error.__cause__
    del secret
    [prefix, *_] = WEBHOOK if sender is None else names_of(sender).prefixes
    if not is_message_id(message_id):
        raise ValueError(VerificationError(Refusal.MALFORMED_ID, headers=(prefix,)))
    moment = system_clock() if timestamp is None else unix_seconds("timestamp", timestamp)
    if not 1 <= moment < _END_OF_TIMESTAMPS:
        raise ValueError(f"timestamp takes Unix seconds (not milliseconds), unlike {timestamp!r}")
    seconds = int(moment)
    signed_prefix = f"{message_id}.{seconds}.".encode()
    signatures = (sign_with(signed_prefix, _raw(body)).decode("ascii") for sign_with in signers)
    return {
        f"{prefix}-id": message_id,
        f"{prefix}-timestamp": str(seconds),
        f"{prefix}-signature": " ".join(signatures),
    }


def count_matching(secrets: Sequence[str], body: bytes, headers: DeliveryHeaders) -> int:
    """Return how many of the secrets have signed a delivery.

    Raises:
        SecretError: a secret cannot be used, or there is none.
    """
    matchers = _matchers(tuple(secrets))
    return sum(matches(headers.signed_prefix, body, headers.signatures) for matches in matchers)


# A traceback through the functions below would keep secrets alive in local variables. So the
# callers of these functions raise each error again without its traceback.
_Keyring: TypeAlias = tuple[tuple[str, ...], tuple[Matcher, ...]]


def _renewed(keyring: _Keyring, provider: SecretsProvider) -> _Keyring:
    """Return the secrets that a provider has now, with their matchers."""
    current = provided(provider)
    return keyring if current == keyring[0] else (current, _matchers(current))


def _matchers(secrets: tuple[str, ...]) -> tuple[Matcher, ...]:
    return _each(_known_matchers, secrets)


def _each(
    known: Callable[[tuple[str, ...]], tuple[T, ...]], secrets: tuple[str, ...]
) -> tuple[T, ...]:
    try:
        return known(secrets)
    except TypeError:
        pass  # a secret is unhashable, so not text: the loop below raises a SecretError
    for secret in secrets:
        verifying_key(secret)
    return known(secrets)


# Cached: decoding a secret takes as long as verifying a delivery, and the secrets are few.
@lru_cache(maxsize=64)
def _known_matcher(secret: str) -> tuple[Matcher, ...]:
    return (matcher(secret),)


@lru_cache(maxsize=64)
def _known_matchers(secrets: tuple[str, ...]) -> tuple[Matcher, ...]:
    _check_any(secrets)
    return tuple(map(matcher, secrets))


@lru_cache(maxsize=64)
def _known_signers(secrets: tuple[str, ...]) -> tuple[Signer, ...]:
    _check_any(secrets)
    return tuple(map(signer, secrets))


def _check_any(secrets: tuple[str, ...]) -> None:
    if not secrets:
        raise SecretError("at least one secret is needed, and none is configured")


def matcher(secret: str) -> Matcher:
    """Return a function that checks whether a secret or its key pair made a signature.

    Raises:
        SecretError: the secret cannot verify.
    """
    key = verifying_key(secret)
    del secret
    if key.is_shared:
        return hmac_matcher(key.raw)
    from . import ed25519  # noqa: PLC0415 - only asymmetric keys need cryptography

    return ed25519.matcher(key.raw)


def signer(secret: str) -> Signer:
    """Return the signing function of a secret or private key.

    Raises:
        SecretError: the secret cannot sign.
    """
    key = signing_key(secret)
    del secret
    if not key.is_shared:
        from . import ed25519  # noqa: PLC0415 - only asymmetric keys need cryptography

        return ed25519.signer(key.raw)

    def signed(prefix: bytes, body: bytes) -> bytes:
        return V1 + b2a_base64(hmac.digest(key.raw, prefix + body, "sha256"), newline=False)

    return signed


def hmac_matcher(key: bytes) -> Matcher:
    """Return the matcher of an HMAC key.

    HMAC (RFC 2104) hashes one block made of the key before the message, and another before the
    result. Both hash states are computed once and copied, which halves the work for a small body.
    """
    block_size = 64
    block = (hashlib.sha256(key).digest() if len(key) > block_size else key).ljust(
        block_size, b"\0"
    )
    inner_state = hashlib.sha256(bytes(byte ^ 0x36 for byte in block)).copy
    outer_state = hashlib.sha256(bytes(byte ^ 0x5C for byte in block)).copy

    def matches(prefix: bytes, body: bytes, signatures: Sequence[bytes]) -> bool:
        inner = inner_state()
        inner.update(prefix)
        inner.update(body)
        outer = outer_state()
        outer.update(inner.digest())
        expected = b2a_base64(outer.digest(), newline=False)
        for signature in signatures:  # noqa: SIM110 - faster than any() with a generator
            if compare_digest(signature, expected):
                return True
        return False

    return matches


def _raw(body: bytes) -> bytes:
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise TypeError(
        f"body must be the raw bytes of the request, not {type(body).__name__}: decoded or"
        " re-encoded text does not verify"
    )


def _verified(
    matchers: tuple[Matcher, ...],
    body: bytes,
    parts: SignedParts,
    tolerance: float,
    now: float,
) -> VerifiedDelivery | None:
    """Return the delivery; None if no signature matches, and the caller then raises an error.

    Raises:
        VerificationError: the timestamp is outside the tolerance.
    """
    message_id, timestamp, prefix, signatures = parts
    skew = now - timestamp
    # If the clock is NaN, both comparisons are false, and the delivery is refused.
    if not -tolerance <= skew <= tolerance:
        too_old = skew > 0
        raise VerificationError(
            Refusal.TIMESTAMP_TOO_OLD if too_old else Refusal.TIMESTAMP_TOO_NEW, skew
        )
    if body.__class__ is not bytes:
        body = _raw(body)
    if not signatures:
        return None
    for index, matches in enumerate(matchers):
        if matches(prefix, body, signatures):
            return VerifiedDelivery(message_id, timestamp, body, index, len(signatures), skew)
    return None
