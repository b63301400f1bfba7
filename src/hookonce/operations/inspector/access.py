"""Checks who may see the pages and who may change events.

Every visitor has to show the token, also one on this machine: behind a proxy every visitor seems
to be local. A browser shows the token once and gets a session. Sessions are kept here, since
Starlette's ``SessionMiddleware`` cannot end a session at logout, and fixes ``Secure`` and ``Path``
before the first request. HTTP Basic has no logout, and any site could make the browser send the
token.

The check of ``Host`` stops DNS rebinding. It also hides the inspector from the receiver's public
host name, if both share a port. The check of ``Origin`` keeps other sites from acting in a session.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator, MutableMapping
from enum import Enum, auto
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.requests import HTTPConnection

from ...clock import Clock, uptime
from ...http.bearer import check_token, is_same_token
from .login_limit import LoginLimit

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
"""The host names of this machine."""

COOKIE = "hookonce_inspector"
SESSION_SECONDS = 12 * 3600
_MOST_SESSIONS = 100

_CONTENT_SECURITY_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    b" form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = (
    (b"content-security-policy", _CONTENT_SECURITY_POLICY),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # With `no-referrer`, browsers would send forms with the Origin `null`, which is refused.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Login(Enum):
    """The result of a login with a token."""

    RIGHT = auto()
    WRONG = auto()
    LIMITED = auto()


class Access:
    """Checks tokens, sessions, hosts and origins.

    Args:
        hosts: accepted values of ``Host``; a name without a port is accepted with any port.
        clock: seconds that are never set back.

    Raises:
        ValueError: the token is missing or too short, or a host is not a host name.
        TypeError: hosts is a single string.
    """

    def __init__(self, token: str, hosts: Iterable[str], *, clock: Clock = uptime) -> None:
        check_token(token, "the inspector's token")
        if isinstance(hosts, str):
            raise TypeError(f"hosts takes a collection of names, such as [{hosts!r}]")
        self._hosts = frozenset(host.lower() for host in hosts)
        for host in self._hosts:
            if not host or any(character in host for character in "/@* \t"):
                raise ValueError(f"a host is a name, with a port or without, unlike {host!r}")
        self._token = token
        self._clock = clock
        self._limit = LoginLimit(clock=clock)
        self._session_ends: OrderedDict[str, float] = OrderedDict()

    def log_in(self, token: str, client: str | None) -> Login:
        """Check a token; a wrong token counts against its client, which may then have to wait."""
        if self._limit.seconds_to_wait(client):
            return Login.LIMITED
        if is_same_token(token, self._token):
            return Login.RIGHT
        self._limit.count_wrong(client)
        return Login.WRONG

    def seconds_to_wait(self, client: str | None) -> float:
        """Return how long a client must wait before its next token is checked."""
        return self._limit.seconds_to_wait(client)

    def begin_session(self) -> str:
        """Begin a session and return its cookie: a random name, unrelated to the token."""
        name = secrets.token_urlsafe()
        self._session_ends[name] = self._clock() + SESSION_SECONDS
        if len(self._session_ends) > _MOST_SESSIONS:
            self._session_ends.popitem(last=False)
        return name

    def has_session(self, visitor: HTTPConnection) -> bool:
        """Return whether a visitor has a session that has not ended."""
        ends = (self._session_ends.get(name, 0.0) for name in _session_names(visitor))
        return self._clock() < max(ends, default=0.0)

    def end_session(self, visitor: HTTPConnection) -> None:
        """End a visitor's session, so that even a copy of its cookie is invalid."""
        for name in _session_names(visitor):
            self._session_ends.pop(name, None)

    def host_refusal(self, visitor: HTTPConnection) -> str | None:
        """Return why the ``Host`` of a request is refused; None if it is allowed."""
        host = _only(visitor, "host")
        name, _, port = host.rpartition(":")
        if host in self._hosts or (port.isdecimal() and name in self._hosts):
            return None
        return "this Host is not accepted; name it with --inspector-host or Inspector(hosts=…)"

    def origin_refusal(self, visitor: HTTPConnection) -> str | None:
        """Return why a request must not change events; None if a page of this host sends it."""
        host = _only(visitor, "host")
        if _only(visitor, "origin") in {f"http://{host}", f"https://{host}"}:
            return None
        return "Origin and Host do not match; a proxy has to pass Host on unchanged"


def take_token(scope: MutableMapping[str, Any]) -> str | None:
    """Return the token in the URL of a request, and remove it from the URL.

    The scope itself changes: servers such as uvicorn log its query string when the answer begins.
    """
    query = scope.get("query_string", b"")
    if b"token=" not in query:
        return None
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    rest = [pair for pair in pairs if pair[0] != "token"]
    scope["query_string"] = urlencode(rest).encode()
    return next((value for name, value in pairs if name == "token"), None)


def _session_names(visitor: HTTPConnection) -> Iterator[str]:
    """Yield all cookies with the inspector's name; other inspectors on this host may set some."""
    for pair in ";".join(visitor.headers.getlist("cookie")).split(";"):
        name, _, value = pair.strip().partition("=")
        if name == COOKIE:
            yield value


def _only(visitor: HTTPConnection, header: str) -> str:
    """Return a header in lower case; an empty text if the header is missing or repeated."""
    values = visitor.headers.getlist(header)
    return values[0].lower() if len(values) == 1 else ""
