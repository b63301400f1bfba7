"""Bearer tokens.

Every caller must show a token, even a local caller: behind a proxy on this machine all callers have
the proxy's address, and a plain proxy adds no header that tells them apart.
"""

from __future__ import annotations

import hmac

from starlette.types import Scope

_LEAST_TOKEN = 16


def check_token(token: str | None, whose: str) -> None:
    """Check that a token is too long to guess, and that a header can hold it.

    Raises:
        ValueError: it is missing, too short or not ASCII.
    """
    if token is None or len(token) < _LEAST_TOKEN or not token.isascii():
        raise ValueError(
            f"{whose} must have at least {_LEAST_TOKEN} characters of ASCII; make one with:"
            ' python -c "import secrets; print(secrets.token_urlsafe())"'
        )


def has_bearer(scope: Scope, token: str) -> bool:
    """Return whether a request has exactly one Authorization header, with this token."""
    shown = [value for name, value in scope["headers"] if name == b"authorization"]
    credentials = bearer_of(shown[0].decode("latin-1")) if len(shown) == 1 else None
    return credentials is not None and is_same_token(credentials, token)


def bearer_of(authorization: str) -> str | None:
    """Return the credentials of an Authorization header; None if its scheme is not Bearer."""
    scheme, _, credentials = authorization.partition(" ")
    # Scheme names are case-insensitive (RFC 9110, 11.1).
    return credentials.strip() if scheme.lower() == "bearer" else None


def is_same_token(shown: str, token: str) -> bool:
    """Return whether a caller's credentials are the token; compare in constant time."""
    return hmac.compare_digest(shown.encode("utf-8", "replace"), token.encode())
