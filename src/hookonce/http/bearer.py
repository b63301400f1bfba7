"""Bearer tokens: what a caller shows, wherever it comes from.

Neither an address nor a header says that a caller is on this machine: behind a proxy on it every
caller is, and a plain proxy adds no header.
"""

from __future__ import annotations

import hmac

from starlette.types import Scope

_LEAST_TOKEN = 16


def check_token(token: str | None, whose: str) -> None:
    """Check that nobody guesses a token, and that a header can hold it.

    Raises:
        ValueError: there is none, or it is too short or not ASCII.

    """
    if token is None or len(token) < _LEAST_TOKEN or not token.isascii():
        raise ValueError(
            f"{whose} must have at least {_LEAST_TOKEN} characters of ASCII; make one with:"
            ' python -c "import secrets; print(secrets.token_urlsafe())"'
        )


def has_bearer(scope: Scope, token: str) -> bool:
    """Return whether a request shows a token in its one Authorization header."""
    shown = [value for name, value in scope["headers"] if name == b"authorization"]
    credentials = bearer_of(shown[0].decode("latin-1")) if len(shown) == 1 else None
    return credentials is not None and is_same_token(credentials, token)


def bearer_of(authorization: str) -> str | None:
    """Return what an Authorization header shows by the scheme Bearer, if that is its scheme."""
    scheme, _, credentials = authorization.partition(" ")
    # Names of schemes have no case (RFC 9110, 11.1).
    return credentials.strip() if scheme.lower() == "bearer" else None


def is_same_token(shown: str, token: str) -> bool:
    """Compare a token with what somebody shows, in a time that tells nothing of it."""
    return hmac.compare_digest(shown.encode("utf-8", "replace"), token.encode())
