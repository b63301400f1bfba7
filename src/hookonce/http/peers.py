"""Who asks: a client of this machine, or one that may be anywhere."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address

from starlette.types import Scope

_LEAST_TOKEN = 16

# How the names of what proxies add begin. Behind one on this machine every client has an address
# of this machine.
_FORWARDING = (
    "cdn-loop",
    "cf-",
    "client-ip",
    "cloudfront-",
    "fastly-",
    "fly-",
    "forwarded",
    "ngrok-",
    "proxy-connection",
    "tailscale-",
    "true-client-ip",
    "via",
    "x-amz-cf-",
    "x-amzn-",
    "x-appengine-",
    "x-arr-",
    "x-azure-",
    "x-client-ip",
    "x-cloud-trace-context",
    "x-cluster-client-ip",
    "x-envoy-",
    "x-forwarded",
    "x-goog-",
    "x-host",
    "x-original-",
    "x-proxyuser-ip",
    "x-real-ip",
    "x-remote-",
    "x-request-start",
    "x-rewrite-url",
    "x-scheme",
    "x-url-scheme",
    "x-vercel-",
)


def is_local(scope: Scope) -> bool:
    """Return whether a request comes from this machine, and by no proxy that it shows."""
    client = scope.get("client")
    return (
        client is not None
        and is_loopback(client[0])
        and not is_forwarded(
            scope.get("http_version", "1.1"), (n.decode("latin-1") for n, _ in scope["headers"])
        )
    )


def is_forwarded(http_version: str, names: Iterable[str]) -> bool:
    """Return whether the HTTP version or a header, named in lower case, hints at a proxy.

    Browsers have not spoken HTTP/1.0 for long, while nginx does unless it is told otherwise.
    """
    return http_version in {"0.9", "1.0"} or any(name.startswith(_FORWARDING) for name in names)


def check_token(token: str | None, whose: str) -> None:
    """Check that nobody guesses a token, and that a header can hold it.

    Raises:
        ValueError: it is too short, or not ASCII.

    """
    if token is not None and (len(token) < _LEAST_TOKEN or not token.isascii()):
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


def is_loopback(host: str | None) -> bool:
    """Return whether an address is this machine's own."""
    try:
        address = ip_address(host or "")
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
