"""Signing secrets: their spelling, and where they come from.

The key is the base64 decoding of the secret after its ``whsec_`` prefix (interface, Events:
Signature). No message, repr or log of this file ever shows a secret. Nor does a frame that an error
passes through: error trackers send its locals away. So what looks at a secret returns what is wrong
with it, and who raises has let go of it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from secrets import token_bytes
from typing import Protocol, TypeAlias, runtime_checkable

from ..errors import SecretError

_PREFIX = "whsec_"

# Standard Webhooks, Signature scheme: "between 24 and 64 bytes". Under 16 a key can be guessed, or
# is a word such as "null" that happens to be base64. Without the prefix, that is more likely.
_LEAST_KEY_BYTES = 16
USUAL_KEY_BYTES = 24

# Other kinds of keys of the Standard Webhooks family, which must never become an HMAC key: with a
# public key as the secret, anybody who knows it could sign.
_FOREIGN_PREFIXES = {
    "whpk_": "a public key of the asymmetric scheme",
    "whsk_": "a private key of the asymmetric scheme",
    "v1,whsec_": "a secret with a signature version before it; remove the 'v1,'",
}


_BYTES = "a secret is text such as 'whsec_…', not bytes; decode it: secret.decode()"


@runtime_checkable
class SecretsProvider(Protocol):
    """A source of secrets that may change while the program runs."""

    def current(self) -> Sequence[str]:
        """Return the secrets in force, newest first; called for every delivery, so be quick."""
        ...


SecretSource: TypeAlias = str | Sequence[str] | SecretsProvider
"""One ``whsec_`` secret, several (newest first), or a provider of them."""


def secrets_of(secrets: SecretSource) -> tuple[str, ...]:
    """Return the secrets a source has now, as they are, newest first.

    Raises:
        SecretError: there is no source, or it is a provider that fails.

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
    """Return the secrets a provider has now; SecretError whatever it raises."""
    try:
        secrets = provider.current()
        return (secrets,) if isinstance(secrets, str) else tuple(secrets)
    except (KeyboardInterrupt, SecretError):
        raise
    except BaseException as error:  # noqa: BLE001 - foreign code, on which every delivery depends
        # Without this frame, and below without its words: both may show a secret.
        trace = error.__traceback__
        cause = error.with_traceback(trace and trace.tb_next)
    raise SecretError(
        f"{type(provider).__name__}.current() raised {type(cause).__name__}; as long as it does,"
        " there is no secret to verify with"
    ) from cause


def decode_secret(secret: str) -> bytes:
    """Return the HMAC key of a ``whsec_…`` secret.

    Surrounding white space is forgiven, and so is a missing prefix if the key has 24 bytes.

    Raises:
        SecretError: it is no secret, or no standard base64, or decodes to less than 16 bytes.

    """
    key = _key_or_fault(secret)
    del secret
    if isinstance(key, str):
        raise SecretError(key)
    return key


def fingerprint(secret: str, purpose: str = "fingerprint") -> str:
    """Return 16 hexadecimal digits that tell a secret from others, and nothing else about it.

    Those of one purpose tell nothing of those of another.

    Raises:
        SecretError: it cannot be used.

    """
    key = blake2b(decode_secret(secret)).digest()
    return blake2b(f"hookonce {purpose}".encode(), key=key, digest_size=8).hexdigest()


def fault_among(secrets: Iterable[str], where: str) -> str | None:
    """Return what is wrong with the first of the secrets that cannot be used, and where it is."""
    for number, secret in enumerate(secrets, start=1):
        key = _key_or_fault(secret)
        if isinstance(key, str):
            return f"secret {number} in {where} cannot be used: {key}"
    return None


def _key_or_fault(secret: object) -> bytes | str:
    """Return the key, or what is wrong with the secret."""
    if isinstance(secret, bytes | bytearray | memoryview):
        return _BYTES
    if not isinstance(secret, str):
        return (
            f"a secret must be text such as 'whsec_…', not {type(secret).__name__};"
            " is the setting it comes from missing?"
        )
    text = secret.strip()
    for prefix, meaning in _FOREIGN_PREFIXES.items():
        if text.startswith(prefix):
            return f"this is not a whsec_ secret but {meaning}"
    encoded = text.removeprefix(_PREFIX)
    has_prefix = encoded != text
    if not encoded:
        return "the secret is empty; copy the whole value that starts with 'whsec_'"
    fault = _base64_fault(encoded)
    if fault is not None:
        unprefixed = "" if has_prefix else f"does not start with {_PREFIX!r} and "
        return f"the secret {unprefixed}is not standard base64: {fault}"
    key = base64.b64decode(encoded)
    if len(key) < USUAL_KEY_BYTES and not has_prefix:
        return (
            f"the secret does not start with {_PREFIX!r}, and is too short to be one without; copy"
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
    """Say once for each key that it is short."""
    # Hardly any program comes here, and `verify` alone needs no logging.
    from .loggers import get_logger  # noqa: PLC0415

    get_logger("hookonce.secrets").warning(
        "a secret has a key of %d bytes, and %d to 64 are usual: it may be cut off; copy the whole"
        " value, or rotate the endpoint's secret",
        len(key),
        USUAL_KEY_BYTES,
    )


def _base64_fault(encoded: str) -> str | None:
    """Return what is wrong; `b64decode` would let some of it pass, depending on its version."""
    if "-" in encoded or "_" in encoded:
        return "it has '-' or '_', the URL-safe alphabet, or a prefix that is not 'whsec_'"
    if re.search(r"[^A-Za-z0-9+/=]", encoded):
        return "it has characters outside A-Z a-z 0-9 + / ="
    if len(encoded) % 4:
        return (
            "its length is not a multiple of four, so characters (perhaps the '=' at its end)"
            " are missing"
        )
    if re.fullmatch(r"[^=]+={0,2}", encoded) is None:
        return "its '=' padding is not where it belongs"
    return None


def new_secret() -> str:
    """Return a new ``whsec_`` secret: 32 random bytes, as long as the hash it keys."""
    return _PREFIX + base64.b64encode(token_bytes(32)).decode("ascii")


def split_secrets(text: str) -> tuple[str, ...]:
    """Return the secrets of a setting that holds several, separated by white space or commas."""
    # The comma of a mistaken 'v1,whsec_…' stays, so that the mistake can be named.
    return tuple(part for part in re.split(r"\s+|(?<!v1),", text) if part)


def secret_lines(text: str) -> tuple[str, ...]:
    """Return the secrets of a file: one a line, but for blank lines and ``#`` comments."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))
