"""What may go out: never a redirect, never a 410."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Collection
from dataclasses import dataclass
from posixpath import normpath

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..delivery.outcome import BROKEN, Outcome, is_punished
from ..verification.loggers import get_logger

_log = get_logger("hookonce.http")

_JSON = "application/json"
_CONTENT_TYPE = (b"content-type", _JSON.encode())

_PARAMETERS = re.compile(";[^/]*")


async def respond(send: Send, outcome: Outcome, *, closing: Scope | None = None) -> None:
    """Send an outcome; ``closing`` a connection whose body was left unread."""
    body = outcome.body
    headers = [_CONTENT_TYPE, (b"content-length", b"%d" % len(body))]
    if outcome.headers:
        headers += [(name.encode(), value.encode()) for name, value in outcome.headers.items()]
    if closing is not None and closing.get("http_version", "1.1") < "2":
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": int(outcome.status), "headers": headers})
    await send({"type": "http.response.body", "body": body})


def headers_of(outcome: Outcome) -> list[tuple[str, str]]:
    """Return the headers of an answer."""
    return [
        ("content-type", _JSON),
        ("content-length", str(len(outcome.body))),
        *outcome.headers.items(),
    ]


class StatusGuard:
    """ASGI middleware that never lets out an answer the sender would punish.

    A 410 disables the endpoint at once and a redirect is a failed delivery (interface, Events), so
    both become 500, and so does an exception that nothing inside has turned into an answer. The
    routes of a receiver have one around their middleware; put another around an application whose
    own middleware may answer first, such as a redirect to a login page::

        Starlette(middleware=[Middleware(StatusGuard, paths=["/webhooks"]), ...])

    Args:
        app: the application to guard.
        paths: the paths to guard, however they are spelled; every path by default.

    """

    def __init__(self, app: ASGIApp, paths: Collection[str] | None = None) -> None:
        self._app = app
        self._paths = None if paths is None else {plain_path(path) for path in paths}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and guard its answer."""
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
    """Send nothing of the rest of an answer that was replaced."""


def app_path(scope: Scope) -> str:
    """Return the path within the application, which is mounted at ``root_path``."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) else path


def plain_path(path: str) -> str:
    """Return a path as all of its spellings mean it: those a framework or proxy may redirect from.

    They differ in slashes (at the end, doubled), dots, and parameters behind a semicolon.
    """
    return normpath(f"/{_PARAMETERS.sub('', path).strip('/')}")
