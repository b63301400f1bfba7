"""Who asks: a client of this machine, or one that may be anywhere."""

from __future__ import annotations

import hmac
from ipaddress import IPv6Address, ip_address

from starlette.types import Scope

__all__ = ["has_bearer", "is_local"]

# What proxies add. Behind one on this machine every client has an address of this machine.
_FORWARDING = frozenset({b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"true-client-ip"})


def is_local(scope: Scope) -> bool:
    """Return whether a request comes from this machine, and by no proxy that it shows.

    A proxy shows by its headers, or by HTTP/1.0, which nginx speaks unless it is told otherwise.
    """
    client = scope.get("client")
    return (
        client is not None
        and _is_loopback(client[0])
        and scope.get("http_version") != "1.0"
        and not any(n in _FORWARDING or n.startswith(b"x-forwarded") for n, _ in scope["headers"])
    )


def has_bearer(scope: Scope, token: str) -> bool:
    """Return whether a request shows a token in its one Authorization header."""
    shown = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, credentials = shown[0].partition(b" ") if len(shown) == 1 else (b"", b"", b"")
    is_same = hmac.compare_digest(credentials.strip(), token.encode())
    return scheme.lower() == b"bearer" and is_same


def _is_loopback(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
