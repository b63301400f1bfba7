"""Responses, and the guard, which answers 500 in place of a redirect or 410."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Collection
from dataclasses import dataclass
from posixpath import normpath

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..logs import get_logger
from ..outcome import BROKEN, Outcome, is_punished

_log = get_logger("hookonce.http")

_JSON = "application/json"
_CONTENT_TYPE = (b"content-type", _JSON.encode())

_PARAMETERS = re.compile(";[^/]*")


async def respond(send: Send, outcome: Outcome, *, closing: Scope | None = None) -> None:
    """Send an outcome; close the connection after it if ``closing`` is an HTTP/1.1 scope."""
    body = outcome.body
    headers = [_CONTENT_TYPE, (b"content-length", b"%d" % len(body))]
    if outcome.headers:
        headers += [(name.encode(), value.encode()) for name, value in outcome.headers.items()]
    if closing is not None and closing.get("http_version", "1.1") < "2":
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": int(outcome.status), "headers": headers})
    await send({"type": "http.response.body", "body": body})


def headers_of(outcome: Outcome) -> list[tuple[str, str]]:
    return [
        ("content-type", _JSON),
        ("content-length", str(len(outcome.body))),
        *outcome.headers.items(),
    ]


class StatusGuard:
    """ASGI middleware that replaces redirects and 410 by 500.

    A 410 disables the endpoint at once, and a redirect is a failed delivery (interface, Events). An
    exception that the application does not handle is answered 500 too. The routes of a receiver
    have a guard around their own middleware. Put another guard around an application whose
    middleware may answer before the receiver, for example with a redirect to a login page::

        Starlette(middleware=[Middleware(StatusGuard, paths=["/webhooks"]), ...])

    Args:
        app: the application to guard.
        paths: the paths to guard, in all spellings (slashes, dots); every path by default.
    """

    def __init__(self, app: ASGIApp, paths: Collection[str] | None = None) -> None:
        self._app = app
        self._paths = None if paths is None else {plain_path(path) for path in paths}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and guard the response."""
        if scope["type"] != "http" or not self._guards(scope):
            await self._app(scope, receive, send)
            return
        answer = _GuardedAnswer(send, scope["path"])
        try:
            await self._app(scope, receive, answer.send)
        except Exception:
            if answer.started:
                raise
            _log.exception("the application around a receiver raised; answered 500")
            await respond(send, BROKEN)

    def _guards(self, scope: Scope) -> bool:
        return self._paths is None or plain_path(app_path(scope)) in self._paths


@dataclass(slots=True)
class _GuardedAnswer:
    _send: Send
    _path: str
    started: bool = False
    replaced: bool = False

    def send(self, message: Message) -> Awaitable[None]:
        if self.replaced:
            return _dropped()
        if message["type"] == "http.response.start":
            self.started = True
            status = message["status"]
            if is_punished(status):
                self.replaced = True
                _log.error(
                    "the application answered a delivery to %s with %d; sent 500 instead",
                    self._path,
                    status,
                )
                return respond(self._send, BROKEN)
        return self._send(message)


async def _dropped() -> None:
    """Discard the rest of a response that the guard has replaced."""


def check_path(path: str) -> None:
    """Check the path of a receiver.

    Raises:
        ValueError: it does not start with a slash.
    """
    if not path.startswith("/"):
        raise ValueError(f"a path starts with a slash, unlike {path!r}")


def app_path(scope: Scope) -> str:
    """Return the path below ``root_path``, where the application is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) else path


def plain_path(path: str) -> str:
    """Return the common form of all spellings of a path that a framework or proxy may redirect.

    They differ in extra slashes, dots, and parameters after a semicolon.
    """
    return normpath(f"/{_PARAMETERS.sub('', path).strip('/')}")
