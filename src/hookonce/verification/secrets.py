"""Signing secrets: how they are written, and where they come from.

The key is the base64 decoding of the secret after its ``whsec_`` prefix (interface, Events:
Signature).

No message, repr or log line of this file shows a secret. Error trackers also send the local
variables of every frame that an error passes through. So a function that reads a secret returns
the fault as text, and its caller deletes its own reference to the secret before it raises.
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

# Standard Webhooks, Signature scheme: "between 24 and 64 bytes". A shorter key than 16 bytes can
# be guessed, or is a word such as "null" that happens to be base64. A secret without the prefix is
# more likely such a word, so its key needs 24 bytes.
_LEAST_KEY_BYTES = 16
USUAL_KEY_BYTES = 24

# Other kinds of keys of Standard Webhooks, which must never become an HMAC key: if a public key
# were the secret, anybody who knows it could sign.
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
        """Return the secrets in force, newest first, and fast, because every delivery calls it."""
        ...


SecretSource: TypeAlias = str | Sequence[str] | SecretsProvider
"""One ``whsec_`` secret, several (newest first), or a provider of them."""


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
        # This frame and the error's message may show a secret; leave both out.
        trace = error.__traceback__
        cause = error.with_traceback(trace and trace.tb_next)
    raise SecretError(
        f"{type(provider).__name__}.current() raised {type(cause).__name__}; as long as it does,"
        " there is no secret to verify with"
    ) from cause


def decode_secret(secret: str) -> bytes:
    """Return the HMAC key of a ``whsec_…`` secret.

    White space around it is ignored. The prefix may be missing if the key has at least 24 bytes.

    Raises:
        SecretError: it is not a secret, not standard base64, or its key has less than 16 bytes.
    """
    key = _key_or_fault(secret)
    del secret
    if isinstance(key, str):
        raise SecretError(key)
    return key


def fingerprint(secret: str, purpose: str = "fingerprint") -> str:
    """Return 16 hexadecimal digits that identify a secret and reveal nothing about it.

    Fingerprints for different purposes cannot be compared.

    Raises:
        SecretError: the secret cannot be used.
    """
    key = blake2b(decode_secret(secret)).digest()
    return blake2b(f"hookonce {purpose}".encode(), key=key, digest_size=8).hexdigest()


def fault_among(secrets: Iterable[str], where: str) -> str | None:
    """Return the fault and the place of the first unusable secret; None if all are usable."""
    for number, secret in enumerate(secrets, start=1):
        key = _key_or_fault(secret)
        if isinstance(key, str):
            return f"secret {number} in {where} cannot be used: {key}"
    return None


def _key_or_fault(secret: object) -> bytes | str:
    """Return the key as bytes, or the fault of the secret as text."""
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
        return f"the secret {unprefixed}is not standard base64: {fault}; copy the whole value again"
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
    """Return a new ``whsec_`` secret: 32 random bytes, as long as the hash it keys."""
    return _PREFIX + base64.b64encode(token_bytes(32)).decode("ascii")


def split_secrets(text: str) -> tuple[str, ...]:
    """Return the secrets in a setting, separated by white space or commas."""
    # Keep the comma of a mistaken 'v1,whsec_…', so that the error message can name the mistake.
    return tuple(part for part in re.split(r"\s+|(?<!v1),", text) if part)


def secret_lines(text: str) -> tuple[str, ...]:
    """Return the secrets in a file, one on each line, without empty lines and ``#`` comments."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))
