"""Who may look, and who may act.

Four doors, each for another visitor. The client's address: without a token only this machine gets
in. The Host: a page elsewhere whose name was made to point at this machine is refused. The token:
everybody from further away shows it, once, for a session. And for what changes something the Origin
and a header that no form and no link can send.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from ..clock import Clock, system_clock
from ..http.app import Scope

__all__ = [
    "COOKIE",
    "LOOPBACK_HOSTS",
    "SECURITY_HEADERS",
    "SESSION_SECONDS",
    "WRITE_HEADER",
    "Access",
    "Visit",
]

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")

COOKIE = "hookonce_inspector"
WRITE_HEADER = "x-hookonce-inspector"
SESSION_SECONDS = 12 * 3600

_LEAST_TOKEN = 16
_MOST_DIGITS = 12

# What proxies add. Behind one on this machine every client has an address of this machine.
_FORWARDING = frozenset(
    {"forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via"}
)

SECURITY_HEADERS = (
    (
        b"content-security-policy",
        b"; ".join(
            (
                b"default-src 'none'",
                b"script-src 'self'",
                b"style-src 'self'",
                b"img-src 'self'",
                b"connect-src 'self'",
                b"form-action 'self'",
                b"base-uri 'none'",
                b"frame-ancestors 'none'",
            )
        ),
    ),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # Not `no-referrer`: forms would then be sent with the Origin `null`.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


@dataclass(frozen=True, slots=True)
class Visit:
    """A request, as far as access is decided by it.

    Attributes:
        client: the address of the client, or None where the server gives none.
        headers: every header, names in lower case.

    """

    client: str | None
    headers: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, scope: Scope) -> Visit:
        """Return what an ASGI scope says."""
        client = scope.get("client")
        return cls(
            client[0] if client else None,
            tuple((n.decode("latin-1").lower(), v.decode("latin-1")) for n, v in scope["headers"]),
        )

    def only(self, name: str) -> str | None:
        """Return the value of a header that is given exactly once."""
        values = [value for key, value in self.headers if key == name]
        return values[0] if len(values) == 1 else None

    def has_any(self, names: Collection[str]) -> bool:
        """Return whether one of these headers is given."""
        return any(name in names for name, _ in self.headers)


class Access:
    """Decides who may look and act.

    Args:
        token: what a visitor must know; without one only visitors of this machine may look.
        hosts: which ``Host`` is accepted, exactly; one without a port goes with every port.
        clock: Unix time in seconds.

    Raises:
        ValueError: the token is too short, or a host is none; the message says what to do.

    """

    def __init__(
        self, token: str | None, hosts: Iterable[str], *, clock: Clock = system_clock
    ) -> None:
        if token is not None and (len(token) < _LEAST_TOKEN or not token.isascii()):
            raise ValueError(
                f"the inspector's token must have at least {_LEAST_TOKEN} characters of ASCII; make"
                ' one with: python -c "import secrets; print(secrets.token_urlsafe())"'
            )
        if isinstance(hosts, str):
            raise TypeError(f"hosts takes a collection of names, such as [{hosts!r}]")
        self._hosts = frozenset(host.lower() for host in hosts)
        for host in self._hosts:
            if not host or any(character in host for character in "/@* \t"):
                raise ValueError(f"a host is a name, with a port or without, unlike {host!r}")
        self._token = token
        self._key = None if token is None else hashlib.sha256(token.encode()).digest()
        self._clock = clock

    @property
    def needs_token(self) -> bool:
        """Whether a token is configured."""
        return self._token is not None

    def refusal(self, visit: Visit) -> str | None:
        """Return why a visitor is turned away before anything else, or None."""
        host = (visit.only("host") or "").lower()
        if host not in self._hosts and _without_port(host) not in self._hosts:
            return "this Host is not one of the inspector's; name it in its hosts"
        if self._token is not None:
            return None
        if not _is_loopback(visit.client):
            return "without a token the inspector answers clients of its own machine only"
        if visit.has_any(_FORWARDING):
            return "without a token the inspector answers nobody through a proxy"
        return None

    def is_known(self, visit: Visit) -> bool:
        """Return whether a visitor has shown the token, where there is one."""
        return self._token is None or self._has_bearer(visit) or self._has_session(visit)

    def accepts(self, token: str) -> bool:
        """Return whether this is the token."""
        return self._token is not None and _equal(token, self._token)

    def write_refusal(self, visit: Visit) -> str | None:
        """Return why a visitor may look and not act, or None."""
        if visit.only(WRITE_HEADER) is None:
            return f"send the header {WRITE_HEADER}"
        return self.origin_refusal(visit)

    def origin_refusal(self, visit: Visit) -> str | None:
        """Return why a request is not one of a page of the inspector's own, or None."""
        if not visit.has_any({"origin"}) and self._has_bearer(visit):
            return None  # a program, not a page
        origin, host = visit.only("origin"), visit.only("host")
        parts = urlsplit(origin or "")
        if parts.scheme not in {"http", "https"} or parts.netloc.lower() != (host or "").lower():
            return "the Origin is not this page's own"
        return None

    def new_session(self) -> str:
        """Return what a session's cookie holds: signed by the token, and never the token."""
        ends = int(self._clock()) + SESSION_SECONDS
        return f"{ends}.{self._signature(ends)}"

    def _has_bearer(self, visit: Visit) -> bool:
        scheme, _, token = (visit.only("authorization") or "").partition(" ")
        return scheme.lower() == "bearer" and self.accepts(token.strip())

    def _has_session(self, visit: Visit) -> bool:
        try:
            cookies = SimpleCookie("; ".join(v for n, v in visit.headers if n == "cookie"))
        except CookieError:
            return False
        if COOKIE not in cookies:
            return False
        ends, _, signature = cookies[COOKIE].value.partition(".")
        if not (ends.isascii() and ends.isdigit() and len(ends) <= _MOST_DIGITS):
            return False
        is_signed = _equal(signature, self._signature(int(ends)))
        return is_signed and self._clock() < int(ends)

    def _signature(self, ends: int) -> str:
        text = f"hookonce inspector session {ends}".encode()
        return hmac.new(self._key or b"", text, hashlib.sha256).hexdigest()


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isascii() and port.isdigit() else host


def _is_loopback(client: str | None) -> bool:
    try:
        address = ip_address(client or "")
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
