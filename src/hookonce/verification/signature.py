"""Verification and signing of deliveries: pure functions over bytes, without I/O.

Standard Webhooks, symmetric scheme (interface, Events: Signature): HMAC-SHA256 with the decoded
secret over ``{webhook-id}.{webhook-timestamp}.{raw body}``, compared as base64 text.
"""

from __future__ import annotations

import hashlib
from binascii import b2a_base64
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from hmac import compare_digest
from typing import NamedTuple, TypeAlias

from ..clock import Clock, span_seconds, system_clock, unix_seconds, utc
from ..errors import Refusal, SecretError, VerificationError, shows_half_built, unmatched
from ..sender import TOLERANCE_SECONDS
from .headers import RawHeaders, SignedParts, is_message_id, signed_parts
from .secrets import SecretSource, SecretsProvider, decode_secret, provided, secrets_of

DEFAULT_TOLERANCE = TOLERANCE_SECONDS
"""Seconds: "a webhook-timestamp more than five minutes away" is rejected (interface, Limits)."""

# A receiver accepts timestamps of at most eleven digits.
_END_OF_TIMESTAMPS = 10**11

Signer: TypeAlias = Callable[[bytes, bytes], bytes]
"""Gives the base64 signature of ``{webhook-id}.{webhook-timestamp}.`` and a body."""


class VerifiedDelivery(NamedTuple):
    """A delivery whose signature is genuine.

    Attributes:
        id: the webhook-id, which is the id of the event.
        timestamp: the webhook-timestamp: when the sender signed this attempt, in Unix seconds.
        body: the signed bytes.
        secret_index: which of the configured secrets matched; 0 is the first.
        signature_count: how many ``v1`` signatures it carried; two during a rotation.
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
    tolerance: float | timedelta = DEFAULT_TOLERANCE,
    now: float | datetime | None = None,
) -> VerifiedDelivery:
    """Return the verified delivery, or raise.

    Args:
        body: the raw request body, exactly as received.
        headers: a mapping or (name, value) pairs, str or bytes, any case.
        secrets: one ``whsec_`` secret, several, or a provider; one match is enough.
        tolerance: how far the timestamp may be from ``now``, in both directions: seconds or a
            ``timedelta``.
        now: an aware ``datetime`` or Unix seconds; the system's clock by default.

    Raises:
        VerificationError: the delivery is not genuine; ``reason`` says why.
        SecretError: a secret cannot be used, or there is none.
    """
    try:
        # Most receivers have one secret, which has a faster cache of its own.
        signers = (
            _known_signer(secrets) if secrets.__class__ is str else _signers(secrets_of(secrets))
        )
    except SecretError as error:
        del secrets
        raise error.with_traceback(None) from error.__cause__
    del secrets
    if tolerance is not DEFAULT_TOLERANCE:
        tolerance = span_seconds("tolerance", tolerance)
    if now is None:
        now = system_clock()
    elif now.__class__ is not float:
        now = unix_seconds("now", now)
    delivery = _verified(signers, body, signed_parts(headers), tolerance, now)
    if delivery is None:
        raise unmatched()
    return delivery


@shows_half_built
class Verifier:
    """Verifies deliveries with secrets that are decoded once.

    Args:
        secrets: one ``whsec_`` secret, several, or a provider, which every delivery asks.
        tolerance: how far a timestamp may be from the clock, in both directions: seconds or a
            ``timedelta``.
        clock: returns the Unix time in seconds.

    Raises:
        SecretError: a secret cannot be used, or there is none.
    """

    __slots__ = ("_clock", "_keyring", "_provider", "_tolerance")

    def __init__(
        self,
        secrets: SecretSource,
        *,
        tolerance: float | timedelta = DEFAULT_TOLERANCE,
        clock: Clock = system_clock,
    ) -> None:
        try:
            known = secrets_of(secrets)
            # One attribute holds secrets and keys: no thread sees new secrets with old keys.
            self._keyring = known, _signers(known)
        except SecretError as error:
            known = ()
            del secrets
            raise error.with_traceback(None) from error.__cause__
        self._provider = secrets if isinstance(secrets, SecretsProvider) else None
        del secrets, known
        self._tolerance = span_seconds("tolerance", tolerance)
        self._clock = clock

    def __repr__(self) -> str:
        return f"Verifier(<{len(self._keyring[0])} secrets>, tolerance={self._tolerance:g})"

    def verify(
        self, body: bytes, headers: RawHeaders, *, now: float | datetime | None = None
    ) -> VerifiedDelivery:
        """Return the verified delivery, or raise as the function ``verify`` does."""
        signers = self._keyring[1] if self._provider is None else self._current(self._provider)
        if now is None:
            now = self._clock()
        elif now.__class__ is not float:
            now = unix_seconds("now", now)
        delivery = _verified(signers, body, signed_parts(headers), self._tolerance, now)
        if delivery is None:
            raise unmatched()
        return delivery

    def _current(self, provider: SecretsProvider) -> tuple[Signer, ...]:
        """Return the signing functions for the secrets that the provider has now."""
        try:
            self._keyring = _renewed(self._keyring, provider)
        except SecretError as error:
            del provider
            raise error.with_traceback(None) from error.__cause__
        return self._keyring[1]


class PartsVerifier(Verifier):
    """Verifies deliveries whose headers the pipeline has parsed, together with the hints."""

    __slots__ = ()

    def verify_parts(
        self, body: bytes, parts: SignedParts, *, now: float | None = None
    ) -> VerifiedDelivery:
        """Return the verified delivery.

        Raises:
            VerificationError: the timestamp is outside the tolerance, or no signature matches.
            SecretError: a secret cannot be used, or there is none.
        """
        signers = self._keyring[1] if self._provider is None else self._current(self._provider)
        now = self._clock() if now is None else now
        delivery = _verified(signers, body, parts, self._tolerance, now)
        if delivery is None:
            raise unmatched()
        return delivery


def sign(
    secret: str | Sequence[str],
    message_id: str,
    body: bytes,
    *,
    timestamp: float | datetime | None = None,
) -> dict[str, str]:
    """Return the three headers that make ``body`` a genuine delivery.

    Args:
        secret: a ``whsec_`` secret, or several, as during a rotation: each adds a signature.
        message_id: the webhook-id.
        body: the raw bytes that will be sent.
        timestamp: an aware ``datetime`` or Unix seconds (a fraction is cut off); now by default.

    Raises:
        SecretError: a secret cannot be used, or there is none.
        ValueError: no receiver would accept the ``message_id`` or the ``timestamp``.
    """
    try:
        signers = _signers(secrets_of(secret))
    except SecretError as error:
        del secret
        raise error.with_traceback(None) from error.__cause__
    del secret
    if not is_message_id(message_id):
        raise ValueError(VerificationError(Refusal.MALFORMED_ID))
    moment = system_clock() if timestamp is None else unix_seconds("timestamp", timestamp)
    if not 1 <= moment < _END_OF_TIMESTAMPS:
        raise ValueError(f"timestamp takes Unix seconds (not milliseconds), unlike {timestamp!r}")
    seconds = int(moment)
    prefix = f"{message_id}.{seconds}.".encode()
    signatures = (signed(prefix, _raw(body)).decode("ascii") for signed in signers)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


# A traceback of the functions below would hold secrets in local variables. So their callers raise
# the error again without its traceback.
_Keyring: TypeAlias = tuple[tuple[str, ...], tuple[Signer, ...]]


def _renewed(keyring: _Keyring, provider: SecretsProvider) -> _Keyring:
    """Return the secrets that a provider has now, with their signing functions."""
    current = provided(provider)
    return keyring if current == keyring[0] else (current, _signers(current))


def _signers(secrets: tuple[str, ...]) -> tuple[Signer, ...]:
    try:
        return _known_signers(secrets)
    except TypeError:
        pass  # a secret is not hashable, so it is no text; decode_secret refuses it below
    return tuple(signer(decode_secret(secret)) for secret in secrets)


# Cached: decoding a secret takes as long as verifying a delivery, and the secrets are few.
@lru_cache(maxsize=64)
def _known_signer(secret: str) -> tuple[Signer, ...]:
    return (signer(decode_secret(secret)),)


@lru_cache(maxsize=64)
def _known_signers(secrets: tuple[str, ...]) -> tuple[Signer, ...]:
    if not secrets:
        raise SecretError("at least one secret is needed, and none is configured")
    return tuple(signer(decode_secret(secret)) for secret in secrets)


def signer(key: bytes) -> Signer:
    """Return the signing function of an HMAC key.

    HMAC (RFC 2104) hashes one block made of the key before the message, and another before the
    result. Both hash states are computed once and copied, which halves the work for a small body.
    """
    block_size = 64
    block = (hashlib.sha256(key).digest() if len(key) > block_size else key).ljust(
        block_size, b"\0"
    )
    inner_state = hashlib.sha256(bytes(byte ^ 0x36 for byte in block)).copy
    outer_state = hashlib.sha256(bytes(byte ^ 0x5C for byte in block)).copy

    def signed(prefix: bytes, body: bytes) -> bytes:
        inner = inner_state()
        inner.update(prefix)
        inner.update(body)
        outer = outer_state()
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False)

    return signed


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
    signers: tuple[Signer, ...],
    body: bytes,
    parts: SignedParts,
    tolerance: float,
    now: float,
) -> VerifiedDelivery | None:
    """Return the delivery, or None if no signature matches.

    The caller raises for None: an error raised here would carry this function's local variables,
    and so the expected signature.

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
    for index, signed in enumerate(signers):
        expected = signed(prefix, body)
        for signature in signatures:
            if compare_digest(signature, expected):
                return VerifiedDelivery(message_id, timestamp, body, index, len(signatures), skew)
    return None
