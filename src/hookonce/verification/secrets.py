"""Signing secrets and keys: how they are written, and where they come from.

The key is the base64 decoding of the text after its prefix (Standard Webhooks, Signature scheme):
``whsec_`` is a secret that sender and receiver share (HMAC-SHA256), ``whsk_`` the private key of a
sender, and ``whpk_`` its public key (ed25519). The prefix alone decides which signatures a key
makes or matches.

No message, repr or log line of this file shows a secret. Error trackers also send the local
variables of every frame that an error passes through. So a function that reads a secret returns
the fault as text, and its caller deletes its own reference to the secret before it raises.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from secrets import token_bytes
from typing import NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

from ..errors import SecretError

_SHARED, _PUBLIC, _PRIVATE = "whsec_", "whpk_", "whsk_"

# Standard Webhooks, Signature scheme: "between 24 and 64 bytes". A key of fewer than 16 bytes can
# be guessed, or its secret is a word such as "null" that happens to be base64. A secret without the
# prefix is more likely such a word, so its key needs 24 bytes.
_LEAST_KEY_BYTES = 16
USUAL_KEY_BYTES = 24

# An ed25519 public key in a PEM file begins with these bytes (RFC 8410, 10.1).
_PEM_PUBLIC_KEY = bytes.fromhex("302a300506032b6570032100")

_NOT_VERIFYING = {
    _PRIVATE: (
        "this is a private key (whsk_…), and only the sender may have it; configure its public key"
        " (whpk_…)"
    )
}
_NOT_SIGNING = {
    _PUBLIC: (
        "a public key (whpk_…) only verifies; sign with the private key (whsk_…) that belongs to it"
    )
}

_BYTES = "a secret is text such as 'whsec_…', not bytes; decode it: secret.decode()"


@runtime_checkable
class SecretsProvider(Protocol):
    """A source of secrets that may change while the program runs."""

    def current(self) -> Sequence[str]:
        """Return the secrets in force, newest first; be fast, because every delivery calls this."""
        ...


SecretSource: TypeAlias = str | Sequence[str] | SecretsProvider
"""A secret (``whsec_…``) or public key (``whpk_…``), several (newest first), or a provider."""


def secrets_of(secrets: SecretSource) -> tuple[str, ...]:
    """Return the secrets that a source has now, unchecked, newest first.

    Raises:
        SecretError: there is no source, or its provider fails.
    """
    if isinstance(secrets, str):
        return (secrets,)
    if isinstance(secrets, list | tuple):
        return tuple(secrets)
    if isinstance(secrets, bytes | bytearray | memoryview):
        raise SecretError(_BYTES)
    if secrets is None:
        raise SecretError("no secret is configured; is the setting it comes from missing?")
    if isinstance(secrets, SecretsProvider):
        return provided(secrets)
    try:
        return tuple(secrets)
    except TypeError:
        pass
    raise SecretError(f"secrets must be text such as 'whsec_…', not {type(secrets).__name__}")


def provided(provider: SecretsProvider) -> tuple[str, ...]:
    """Return the secrets that a provider has now.

    Raises:
        SecretError: the provider raised an error, of any kind.
    """
    try:
        secrets = provider.current()
        return (secrets,) if isinstance(secrets, str) else tuple(secrets)
    except (KeyboardInterrupt, SecretError):
        raise
    except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
        # This frame and the message of the error may show a secret: leave both out.
        trace = error.__traceback__
        cause = error.with_traceback(trace and trace.tb_next)
    raise SecretError(
        f"{type(provider).__name__}.current() raised {type(cause).__name__}; as long as it does,"
        " there is no secret to verify with"
    ) from cause


class Key(NamedTuple):
    """A decoded secret or key.

    Attributes:
        prefix: its kind: ``whsec_``, ``whpk_`` or ``whsk_``.
        raw: the bytes of the key, without the public half of a private key.
    """

    prefix: str
    raw: bytes

    @property
    def is_shared(self) -> bool:
        """Whether sender and receiver share this key, which both signs and verifies (HMAC)."""
        return self.prefix == _SHARED

    def __repr__(self) -> str:
        return f"Key({self.prefix!r}, <{len(self.raw)} bytes>)"


def verifying_key(secret: str) -> Key:
    """Return the key of a ``whsec_…`` secret or a public key (``whpk_…``).

    White space around it is ignored. The prefix ``whsec_`` may be missing if the key has at least
    24 bytes.

    Raises:
        SecretError: it is not standard base64, a secret of less than 16 bytes, a public key that
            belongs to no private key, or a private key; or the extra ``v1a`` is not installed.
    """
    key = _key_or_fault(secret, _NOT_VERIFYING)
    del secret
    if isinstance(key, str):
        raise SecretError(key)
    return key


def signing_key(secret: str) -> Key:
    """Return the key of a ``whsec_…`` secret or a private key (``whsk_…``).

    Raises:
        SecretError: as `verifying_key`, but for a public key instead of a private key.
    """
    key = _key_or_fault(secret, _NOT_SIGNING)
    del secret
    if isinstance(key, str):
        raise SecretError(key)
    return key


def fingerprint(secret: str, purpose: str = "fingerprint") -> str:
    """Return 16 hexadecimal digits that identify a secret and reveal nothing about it.

    Fingerprints for different purposes cannot be compared.

    Raises:
        SecretError: as `verifying_key`.
    """
    prefix, raw = verifying_key(secret)
    # With `person`, a secret and a public key of the same bytes have different fingerprints.
    key = blake2b(raw, person=b"" if prefix == _SHARED else prefix.encode()).digest()
    return blake2b(f"hookonce {purpose}".encode(), key=key, digest_size=8).hexdigest()


def fault_among(secrets: Iterable[str], where: str) -> str | None:
    """Return the place and the fault of the first unusable secret; None if all are usable."""
    for number, secret in enumerate(secrets, start=1):
        key = _key_or_fault(secret, _NOT_VERIFYING)
        if isinstance(key, str):
            return f"secret {number} in {where} cannot be used: {key}"
    return None


def _key_or_fault(secret: object, refused: Mapping[str, str]) -> Key | str:
    """Return the key of a secret, or the secret's fault as text.

    Args:
        secret: the text of a secret, in any shape that a mistake may give it.
        refused: the faults of the kinds that cannot be used here.
    """
    if isinstance(secret, bytes | bytearray | memoryview):
        return _BYTES
    if not isinstance(secret, str):
        return (
            f"a secret must be text such as 'whsec_…', not {type(secret).__name__};"
            " is the setting it comes from missing?"
        )
    text = secret.strip()
    for prefix, fault in refused.items():
        if text.startswith(prefix):
            return fault
    for prefix in (_PUBLIC, _PRIVATE):
        if text.startswith(prefix):
            return _asymmetric_or_fault(prefix, text.removeprefix(prefix))
    if text.startswith("v1,whsec_"):
        return (
            "this is not a whsec_ secret but a secret with a signature version before it; remove"
            " the 'v1,'"
        )
    raw = _shared_or_fault(text)
    return raw if isinstance(raw, str) else Key(_SHARED, raw)


def _asymmetric_or_fault(prefix: str, encoded: str) -> Key | str:
    """Return the key that the text after the prefix encodes, or the fault of that text."""
    name = "public key" if prefix == _PUBLIC else "private key"
    fault = _base64_fault(encoded) if encoded else "nothing follows the prefix"
    if fault is not None:
        return f"the {name} is not standard base64: {fault}; copy the whole value again"
    raw = base64.b64decode(encoded)
    if base64.b64encode(raw).decode("ascii") != encoded:
        return f"the {name} is not canonical base64; copy the whole value again"
    try:
        # Imported here, because only these keys need cryptography.
        from . import ed25519  # noqa: PLC0415
    except ImportError as error:
        return str(error)
    fault = ed25519.public_key_fault(raw) if prefix == _PUBLIC else ed25519.private_key_fault(raw)
    if fault is not None:
        return f"the {name} cannot be used: {fault}; copy the whole value again"
    return Key(prefix, raw[: ed25519.KEY_BYTES])


def _shared_or_fault(text: str) -> bytes | str:
    """Return the HMAC key of a secret without white space around it, or its fault."""
    encoded = text.removeprefix(_SHARED)
    has_prefix = encoded != text
    if not encoded:
        return "the secret is empty; copy the whole value that starts with 'whsec_'"
    if text.startswith((_PUBLIC.rstrip("_"), _PRIVATE.rstrip("_"))):
        # Without this check, a public key without its '_' would be valid base64, and become an HMAC
        # key that everybody knows.
        return "this is not a whsec_ secret, and its prefix has no '_'; copy the whole value again"
    fault = _base64_fault(encoded)
    if fault is not None:
        unprefixed = "" if has_prefix else f"does not start with {_SHARED!r} and "
        return f"the secret {unprefixed}is not standard base64: {fault}; copy the whole value again"
    key = base64.b64decode(encoded)
    if key.startswith(_PEM_PUBLIC_KEY):
        # Without this check, the text would become an HMAC key that everybody knows.
        return (
            "this is not a secret but the public key of a PEM file; write 'whpk_' and the base64 of"
            " its last 32 bytes"
        )
    if len(key) < USUAL_KEY_BYTES and not has_prefix:
        return (
            f"the secret does not start with {_SHARED!r}, and is too short to be one without; copy"
            " the whole value that was shown when the endpoint was made or its secret rotated"
        )
    if len(key) < _LEAST_KEY_BYTES:
        return (
            f"the secret is too short: its key has {len(key)} bytes, and {_LEAST_KEY_BYTES} is the"
            " least (24 to 64 are usual); copy the whole value, or rotate the endpoint's secret"
        )
    if len(key) < USUAL_KEY_BYTES:
        _warn_of_short_key(key)
    return key


@lru_cache(maxsize=64)
def _warn_of_short_key(key: bytes) -> None:
    """Log a warning, once for each key."""
    # Imported here so that `verify` alone does not load logging.
    from ..logs import get_logger  # noqa: PLC0415

    get_logger("hookonce.secrets").warning(
        "a secret has a key of only %d bytes (%d to 64 are usual), so part of it may be missing;"
        " copy the whole value, or rotate the endpoint's secret",
        len(key),
        USUAL_KEY_BYTES,
    )


def _base64_fault(encoded: str) -> str | None:
    """Return the fault of a base64 text, or None: some versions of `b64decode` miss faults."""
    if "-" in encoded or "_" in encoded:
        return "it has '-' or '_', the URL-safe alphabet, or a prefix that is not 'whsec_'"
    if re.search(r"[^A-Za-z0-9+/=]", encoded):
        return "it has characters outside A-Z a-z 0-9 + / ="
    if len(encoded) % 4:
        return (
            "its length is not a multiple of four: characters are missing, perhaps the '=' at the"
            " end"
        )
    if re.fullmatch(r"[^=]+={0,2}", encoded) is None:
        return "its '=' padding is in the wrong place"
    return None


def new_secret() -> str:
    """Return a new ``whsec_`` secret: 32 random bytes, the length of the hash."""
    return _text(_SHARED, token_bytes(32))


class KeyPair(NamedTuple):
    """A key pair of the asymmetric scheme.

    Attributes:
        private: signs (``whsk_…``); only the sender may have it.
        public: verifies (``whpk_…``); it is no secret.
    """

    private: str
    public: str

    def __repr__(self) -> str:
        return f"KeyPair(private=<hidden>, public={self.public!r})"

    @classmethod
    def of(cls, private: str) -> Self:
        """Return the key pair of a private key; its ``private`` text includes the public half.

        Raises:
            SecretError: as `signing_key`, and for a ``whsec_…`` secret.
        """
        key = _key_or_fault(private, _NOT_SIGNING)
        del private
        if isinstance(key, Key) and key.is_shared:
            key = "this is a whsec_ secret, and not a private key (whsk_…)"
        if isinstance(key, str):
            raise SecretError(key)
        from . import ed25519  # noqa: PLC0415 - the key could be read, so cryptography is installed

        public = ed25519.public_bytes(key.raw)
        return cls(_text(_PRIVATE, key.raw + public), _text(_PUBLIC, public))


def new_key_pair() -> KeyPair:
    """Return a new key pair: the sender signs with ``private``, receivers verify with ``public``.

    Raises:
        SecretError: the extra ``v1a`` is not installed.
    """
    return KeyPair.of(_text(_PRIVATE, token_bytes(32)))


def _text(prefix: str, raw: bytes) -> str:
    return prefix + base64.b64encode(raw).decode("ascii")


def split_secrets(text: str) -> tuple[str, ...]:
    """Return the secrets in a setting, separated by white space or commas."""
    # Keep the comma of a mistaken 'v1,whsec_…', so that the error message can name the mistake.
    return tuple(part for part in re.split(r"\s+|(?<!v1),", text) if part)


def secret_lines(text: str) -> tuple[str, ...]:
    """Return the secrets in a file, one on each line, without empty lines and ``#`` comments."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))
