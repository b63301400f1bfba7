"""Signing secrets: their spelling, and where they come from.

The key is the base64 decoding of the secret after its ``whsec_`` prefix (interface, Events:
Signature). No message, repr or log of this file ever shows a secret.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from secrets import token_bytes
from typing import Protocol, TypeAlias, runtime_checkable

from ..errors import SecretError

__all__ = [
    "SecretSource",
    "SecretsProvider",
    "decode_secret",
    "new_secret",
    "secret_lines",
    "secrets_of",
    "split_secrets",
]

_PREFIX = "whsec_"

# Other kinds of keys of the Standard Webhooks family, which must never become an HMAC key: with a
# public key as the secret, anybody who knows it could sign.
_FOREIGN_PREFIXES = {
    "whpk_": "a public key of the asymmetric scheme",
    "whsk_": "a private key of the asymmetric scheme",
    "v1,whsec_": "a secret with a signature version before it; remove the 'v1,'",
}


@runtime_checkable
class SecretsProvider(Protocol):
    """A source of secrets that may change while the program runs."""

    def current(self) -> Sequence[str]:
        """Return the secrets in force, newest first; called for every delivery, so be quick."""
        ...


SecretSource: TypeAlias = str | Sequence[str] | SecretsProvider
"""One ``whsec_`` secret, several (newest first), or a provider of them."""


def secrets_of(secrets: SecretSource) -> tuple[str, ...]:
    """Return the secrets a source has now, as they are, newest first; SecretError for None."""
    if isinstance(secrets, str):
        return (secrets,)
    if isinstance(secrets, list | tuple):
        return tuple(secrets)
    if secrets is None:
        raise SecretError("no secret is configured; is the setting it comes from missing?")
    return tuple(secrets.current() if isinstance(secrets, SecretsProvider) else secrets)


def decode_secret(secret: str) -> bytes:
    """Return the HMAC key of a ``whsec_…`` secret.

    Surrounding white space is forgiven, and so is a missing prefix.

    Raises:
        SecretError: it is no secret, or no standard base64, or decodes to nothing.

    """
    if not isinstance(secret, str):
        raise SecretError(
            f"a secret must be text such as 'whsec_…', not {type(secret).__name__};"
            " is the setting it comes from missing?"
        )
    text = secret.strip()
    for prefix, meaning in _FOREIGN_PREFIXES.items():
        if text.startswith(prefix):
            raise SecretError(f"this is not a whsec_ secret but {meaning}")
    encoded = text.removeprefix(_PREFIX)
    if not encoded:
        raise SecretError("the secret is empty; copy the whole value that starts with 'whsec_'")
    fault = _base64_fault(encoded)
    if fault is not None:
        unprefixed = "" if text.startswith(_PREFIX) else f"does not start with {_PREFIX!r} and "
        raise SecretError(f"the secret {unprefixed}is not standard base64: {fault}")
    return base64.b64decode(encoded)


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
