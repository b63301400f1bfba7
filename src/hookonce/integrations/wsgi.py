"""A receiver in a WSGI application, such as Pyramid or Bottle, or alone on a WSGI server.

WSGI has threads and no lifespan, and a receiver needs an event loop. So the first delivery starts a
thread with a loop, after the server may have forked, and the end of the process ends it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING

from ..http.body import (
    announced_length,
    check_method,
    check_size,
    check_whole,
    note_changed_body,
)
from ..http.guard import check_path, headers_of, plain_path
from ..logs import get_logger
from ..outcome import BROKEN, NOT_FOUND, Outcome, is_punished
from ..receiver import Receiver
from .loop_thread import LoopThread
from .wsgi_input import ReadDeadlines, is_chunked, leave_unread, read_input, request_headers

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["WSGIReceiver", "WSGIStatusGuard", "mount"]

_log = get_logger("hookonce.http")


def mount(app: WSGIApplication, receiver: Receiver, path: str = "/webhooks") -> WSGIReceiver:
    """Return a WSGI application that answers deliveries at ``path``; ``app`` gets other requests.

    Deliveries do not pass through ``app`` and its middleware. Requests with another spelling of the
    path, such as ``//webhooks``, do, but ``app`` cannot answer them with a 3xx or a 410.

    Args:
        app: answers at all other paths.
        receiver: answers the deliveries, in an event loop that the first delivery starts.
        path: where deliveries arrive, with and without a trailing slash.

    Returns:
        the application for the server; its ``close`` drains running handlers. At exit this
        happens by itself.

    Raises:
        ValueError: the path does not start with a slash.
    """
    return WSGIReceiver(receiver, path, otherwise=WSGIStatusGuard(app, [path]))


class WSGIReceiver:
    """A receiver as a WSGI application, which any number of threads may call.

    It answers at ``path``, with and without a trailing slash. Alone, it also answers at the path
    where a dispatcher has mounted it, and 404 elsewhere.

    Args:
        receiver: answers the deliveries, in an event loop that the first delivery starts.
        path: where deliveries arrive.
        otherwise: answers at all other paths.

    Raises:
        ValueError: the path does not start with a slash.
    """

    def __init__(
        self,
        receiver: Receiver,
        path: str = "/webhooks",
        *,
        otherwise: WSGIApplication | None = None,
    ) -> None:
        check_path(path)
        bare = path.rstrip("/")
        self._paths = {bare, f"{bare}/"} | (set() if otherwise else {"", "/"})
        self._otherwise = otherwise
        self._limits = receiver.limits
        self._loop = LoopThread(receiver)
        self._reads = ReadDeadlines()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        found = environ.get("PATH_INFO", "") in self._paths
        if not found and self._otherwise is not None:
            return self._otherwise(environ, start_response)
        outcome = self.dispatch(environ) if found else NOT_FOUND
        start_response(_status_line(outcome.status), headers_of(outcome))
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [outcome.body]

    def dispatch(self, environ: WSGIEnvironment, *, body: bytes | None = None) -> Outcome:
        """Return the answer to a request at any path; raise nothing.

        A framework that has routes of its own calls this instead of the application.

        Args:
            environ: the request; nothing may have read its input.
            body: the raw body, if the framework has read and kept it.
        """
        arrived = time.monotonic()
        try:
            check_method(environ["REQUEST_METHOD"])
            return self._deliver(environ, body, arrived)
        except Exception as error:  # noqa: BLE001 - the client must get an answer
            leave_unread(environ)
            return self._loop.refuse(error, waited=time.monotonic() - arrived)

    def close(self) -> None:
        """Drain running handlers and end the event loop; Python also calls this at its exit."""
        self._loop.close()

    def _deliver(self, environ: WSGIEnvironment, body: bytes | None, arrived: float) -> Outcome:
        most = self._limits.body_bytes
        announced = announced_length(environ.get("CONTENT_LENGTH"), most)
        if body is None:
            deadline = arrived + self._limits.body_seconds
            with self._reads.ending(environ, deadline):
                body = read_input(environ, announced, most, deadline)
        else:
            check_size(len(body), most)
        check_whole(body, announced, is_chunked=is_chunked(environ))
        headers = list(request_headers(environ))
        outcome = self._loop.handle(body, headers, waited=time.monotonic() - arrived)
        note_changed_body(outcome, body, announced)
        return outcome


def _status_line(status: int) -> str:
    return f"{int(status)} {HTTPStatus(status).phrase}"


class WSGIStatusGuard:
    """WSGI middleware that turns redirects and 410 into 500.

    A 410 disables the endpoint at once, and a redirect is a failed delivery. Put the guard around
    an application whose own hooks may answer first, for example with a redirect to a login page::

        app.wsgi_app = WSGIStatusGuard(app.wsgi_app, paths=["/webhooks"])

    Args:
        app: the application to guard.
        paths: the paths to guard, in all spellings (slashes, dots); every path by default.
    """

    def __init__(self, app: WSGIApplication, paths: Collection[str] | None = None) -> None:
        self._app = app
        self._paths = None if paths is None else {plain_path(path) for path in paths}

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Pass a request on, and replace a redirect or 410."""
        path = plain_path(environ.get("PATH_INFO", ""))
        if self._paths is not None and path not in self._paths:
            return self._app(environ, start_response)
        punished = False

        def guarded(
            status: str,
            headers: list[tuple[str, str]],
            exc_info: tuple[type[BaseException], BaseException, TracebackType]
            | tuple[None, None, None]
            | None = None,
        ) -> Callable[[bytes], object]:
            nonlocal punished
            if not is_punished(int(status[:3])):
                return start_response(status, headers, exc_info)
            punished = True
            _log.error("the application answered a delivery with %s; sent 500 instead", status[:3])
            start_response(_status_line(BROKEN.status), headers_of(BROKEN), exc_info)
            return _drop

        parts = self._app(environ, guarded)

        def passed() -> Iterator[bytes]:
            try:
                for part in parts:  # if the application is a generator, it calls `guarded` only now
                    if punished:
                        break
                    yield part
                if punished:
                    yield BROKEN.body
            finally:
                close = getattr(parts, "close", None)
                if close is not None:
                    close()

        return passed()


def _drop(data: bytes) -> None:
    """Ignore the data that the application writes into a replaced response."""
