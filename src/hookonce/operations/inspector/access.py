"""Who may look, and who may act.

Three doors. The token: every visitor shows it, once, for a session, also on this machine, since
behind a proxy every visitor seems to be there. The Host: a page elsewhere whose name was made to
point at this machine is refused. And for what changes something the Origin and a header that no
form and no link can send.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any
from urllib.parse import parse_qsl, urlencode

from ...http.app import Scope
from ...http.bearer import bearer_of, check_token, is_same_token
from ...verification.clock import Clock, system_clock, uptime
from .guesses import Guesses
from .sessions import Sessions

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
"""The names that this machine has for itself."""

COOKIE = "hookonce_inspector"
WRITE_HEADER = "x-hookonce-inspector"


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

    def cookies(self, wanted: str) -> Iterator[str]:
        """Yield the values of the cookies of a name, whatever other cookies look like."""
        for name, value in self.headers:
            if name == "cookie":
                for pair in value.split(";"):
                    key, _, content = pair.partition("=")
                    if key.strip() == wanted:
                        yield content.strip()

    def has_any(self, names: Collection[str]) -> bool:
        """Return whether one of these headers is given."""
        return any(name in names for name, _ in self.headers)


class Standing(Enum):
    """What a visitor has shown of the token."""

    KNOWN = auto()
    UNKNOWN = auto()
    WRONG = auto()
    TOO_SOON = auto()


class Access:
    """Decides who may look and act.

    Args:
        token: what a visitor must know.
        hosts: which ``Host`` is accepted, exactly; one without a port goes with every port.
        clock: Unix time in seconds.
        guess_clock: seconds by which wrong tokens are slowed.

    Raises:
        ValueError: there is no token, it is too short, or a host is none; the message says what to
            do.

    """

    def __init__(
        self,
        token: str,
        hosts: Iterable[str],
        *,
        clock: Clock = system_clock,
        guess_clock: Clock = uptime,
    ) -> None:
        check_token(token, "the inspector's token")
        if isinstance(hosts, str):
            raise TypeError(f"hosts takes a collection of names, such as [{hosts!r}]")
        self._hosts = frozenset(host.lower() for host in hosts)
        for host in self._hosts:
            if not host or any(character in host for character in "/@* \t"):
                raise ValueError(f"a host is a name, with a port or without, unlike {host!r}")
        self._token = token
        self._sessions = Sessions(clock=clock)
        self._guesses = Guesses(clock=guess_clock)

    def refusal(self, visit: Visit) -> str | None:
        """Return why a visitor is turned away before anything else, or None."""
        host = (visit.only("host") or "").lower()
        if host not in self._hosts and _without_port(host) not in self._hosts:
            return "this Host is not one of the inspector's; name it in its hosts"
        if _is_of_another_site(visit):
            return "a page of another site may lead here, and use nothing of it"
        return None

    def standing(self, visit: Visit) -> Standing:
        """Return whether a visitor may look, as its session or its own token says."""
        if self.may_go_on(visit):
            return Standing.KNOWN
        token = _bearer_of(visit)
        return Standing.UNKNOWN if token is None else self.judge(token, visit)

    def may_go_on(self, visit: Visit) -> bool:
        """Return whether a visitor that was let in has not been sent away since."""
        return any(map(self._sessions.goes_on, visit.cookies(COOKIE)))

    def judge(self, token: str, visit: Visit) -> Standing:
        """Return what a token is that a visitor shows: never looked at while it has to wait."""
        if self.seconds_to_wait(visit):
            return Standing.TOO_SOON
        if not is_same_token(token, self._token):
            self._guesses.note_wrong(visit.client)
            return Standing.WRONG
        self._guesses.note_right(visit.client)
        return Standing.KNOWN

    def seconds_to_wait(self, visit: Visit) -> float:
        """Return for how long no token of a visitor is looked at."""
        return self._guesses.seconds_to_wait(visit.client)

    def write_refusal(self, visit: Visit) -> str | None:
        """Return why a visitor may look and not act, or None."""
        if visit.only(WRITE_HEADER) is None:
            return f"send the header {WRITE_HEADER}"
        return self.origin_refusal(visit)

    def origin_refusal(self, visit: Visit) -> str | None:
        """Return why a request is not one of a page of the inspector's own, or None."""
        if not visit.has_any({"origin"}) and self._has_bearer(visit):
            return None  # a program, not a page
        origin, host = (visit.only("origin") or "").lower(), (visit.only("host") or "").lower()
        if origin not in {f"http://{host}", f"https://{host}"}:
            return "the Origin is not this page's own"
        return None

    def begin_session(self) -> str:
        """Return what a session's cookie holds; never the token, nor anything made of it."""
        return self._sessions.begin()

    def end_sessions(self, visit: Visit) -> None:
        """End the session of a visitor: its cookie is of no use to anybody after this."""
        for name in visit.cookies(COOKIE):
            self._sessions.end(name)

    def _has_bearer(self, visit: Visit) -> bool:
        token = _bearer_of(visit)
        return token is not None and is_same_token(token, self._token)


def take_token(scope: MutableMapping[str, Any]) -> str | None:
    """Take the token out of the URL of a request, so that no access log shows it, and return it.

    Servers such as uvicorn log the query string of the scope when the answer begins.
    """
    query = scope.get("query_string", b"")
    if b"token=" not in query:
        return None
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    rest = [pair for pair in pairs if pair[0] != "token"]
    scope["query_string"] = urlencode(rest).encode()
    return next((value for name, value in pairs if name == "token"), None)


def _bearer_of(visit: Visit) -> str | None:
    return bearer_of(visit.only("authorization") or "")


def _is_of_another_site(visit: Visit) -> bool:
    """Return whether a page elsewhere asks, as browsers say, and not a person who follows a link.

    It could read nothing, but take the places of live pages and let others be made.
    """
    if visit.only("sec-fetch-site") not in {"cross-site", "same-site"}:
        return False
    return (visit.only("sec-fetch-mode"), visit.only("sec-fetch-dest")) != ("navigate", "document")


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isascii() and port.isdigit() else host
