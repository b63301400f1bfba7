"""A receiver as a WSGI application, for Flask, Pyramid, Bottle or a server alone.

WSGI has threads and no lifespan, a receiver has an event loop: it runs in a thread of its own that
the first delivery starts (so a server may fork before), and that ends with the interpreter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING

from ..delivery.outcome import BROKEN, NOT_FOUND, NOT_POST, Outcome, is_punished
from ..http.body import (
    IncompleteError,
    TooLargeError,
    announced_length,
    check_size,
    check_whole,
    note_changed_body,
)
from ..http.guard import headers_of, plain_path
from ..receiver import Receiver
from ..verification.loggers import get_logger
from .bodies import check_time, read_body, refusal_of
from .deadlines import ReadDeadlines, leave_unread
from .loop_thread import LoopThread

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["WSGIReceiver", "WSGIStatusGuard", "mount"]

_log = get_logger("hookonce.http")


def mount(app: WSGIApplication, receiver: Receiver, path: str = "/webhooks") -> WSGIReceiver:
    """Return a WSGI application that answers deliveries at ``path`` and hands the rest to ``app``.

    Deliveries do not pass ``app`` and its middleware. Other spellings of the path, such as
    ``//webhooks``, do, and ``app`` cannot send a 3xx or a 410 from them.

    Args:
        app: answers at all other paths.
        receiver: answers the deliveries, in an event loop that the first delivery starts.
        path: where deliveries arrive, with and without a trailing slash.

    Returns:
        the application for the server; its ``close`` drains running handlers. At exit this
        happens by itself.

    """
    return WSGIReceiver(receiver, path, otherwise=WSGIStatusGuard(app, [path]))


class WSGIReceiver:
    """A receiver as a WSGI application, for any number of threads.

    It answers at ``path``, with and without a trailing slash. Alone, it also answers at the path
    where a dispatcher has mounted it, and 404 elsewhere.

    Args:
        receiver: answers the deliveries, in an event loop that the first delivery starts.
        path: where deliveries arrive.
        otherwise: answers at all other paths.

    """

    def __init__(
        self,
        receiver: Receiver,
        path: str = "/webhooks",
        *,
        otherwise: WSGIApplication | None = None,
    ) -> None:
        bare = path.rstrip("/")
        self._paths = {bare, f"{bare}/"} | (set() if otherwise else {"", "/"})
        self._otherwise = otherwise
        self._limits = receiver.limits
        self._loop = LoopThread(receiver)
        self._reads = ReadDeadlines()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        found = environ.get("PATH_INFO", "") in self._paths
        if not found and self._otherwise is not None:
            return self._otherwise(environ, start_response)
        outcome = self.dispatch(environ) if found else NOT_FOUND
        start_response(_status_line(outcome.status), headers_of(outcome))
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [outcome.body]

    def dispatch(self, environ: WSGIEnvironment, *, body: bytes | None = None) -> Outcome:
        """Return what to answer to a request, whatever its path; no exception escapes.

        Args:
            environ: the request; its input must not have been read.
            body: the raw body where it has been read and kept.

        """
        arrived = time.monotonic()
        try:
            if environ["REQUEST_METHOD"] == "POST":
                return self._deliver(environ, body, arrived)
            outcome = NOT_POST
        except Exception as error:  # noqa: BLE001 - it is answered
            outcome = refusal_of(error)
        leave_unread(environ)
        return self._loop.note_unread(outcome, waited=time.monotonic() - arrived)

    def close(self) -> None:
        """Drain running handlers and end the thread; at exit this happens by itself."""
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


def is_chunked(environ: WSGIEnvironment) -> bool:
    """Return whether a body has its end in itself, and not by a length."""
    return "HTTP_TRANSFER_ENCODING" in environ


def read_input(
    environ: WSGIEnvironment, announced: int | None, most: int, deadline: float
) -> bytes:
    """Return the body of a request, read from its input; the arguments are those of ``read_body``.

    Raises:
        IncompleteError: the input cannot be read to its end, and the log says why.
        TooLargeError: it has more bytes than it may have.
        TimeoutError: the deadline has passed.

    """
    if is_chunked(environ):
        announced = None
        if not environ.get("wsgi.input_terminated"):
            _log.error(
                "a delivery came in chunks, and this server does not say where they end"
                " (wsgi.input_terminated): use one that does, such as gunicorn, or let a proxy"
                " buffer requests"
            )
            raise IncompleteError
    elif announced is None:
        return b""
    source = environ["wsgi.input"]
    # read(n) of a buffered input waits for all of n bytes, read1(n) for the first of them.
    read = getattr(source, "read1", source.read)
    try:
        return read_body(read, announced, most, deadline)
    except (TooLargeError, TimeoutError):
        raise
    except Exception as error:
        check_time(deadline, is_whole=False)
        # What is no OSError may show bytes of the body.
        why = error if isinstance(error, OSError) else type(error).__name__
        _log.warning("the input of a request broke off: %s", why)
        raise IncompleteError from error


def request_headers(environ: WSGIEnvironment) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of a request, values in the bytes that arrived."""
    for name, value in environ.items():
        if name.startswith("HTTP_"):
            # WSGI gives every byte as the character of its number (PEP 3333).
            field = name.removeprefix("HTTP_").replace("_", "-")
            yield field.encode("latin-1", "replace"), value.encode("latin-1", "replace")


def _status_line(status: int) -> str:
    return f"{int(status)} {HTTPStatus(status).phrase}"


class WSGIStatusGuard:
    """WSGI middleware that never lets out an answer the sender would punish.

    A 410 disables the endpoint at once and a redirect is a failed delivery, so both become 500. Put
    it around an application whose own hooks may answer first, such as a redirect to a login page::

        app.wsgi_app = WSGIStatusGuard(app.wsgi_app, paths=["/webhooks"])

    Args:
        app: the application to guard.
        paths: the paths to guard, however they are spelled; every path by default.

    """

    def __init__(self, app: WSGIApplication, paths: Collection[str] | None = None) -> None:
        self._app = app
        self._paths = None if paths is None else {plain_path(path) for path in paths}

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Pass a request on, and guard its answer."""
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
                for part in parts:  # a generator begins its answer with its first part
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
    """Take what an application writes after an answer that was replaced."""
