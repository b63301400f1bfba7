"""Reading a request from a WSGI environ, within the receiver's limits.

A thread that reads from a socket cannot be interrupted. But another thread can close the socket for
reading: the read then ends as if the client had disconnected, and the answer can still be written.
gunicorn and Werkzeug's server put the socket into the environ. Behind other servers a read that
blocks has no time limit.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ..http.body import RequestRefusedError, check_size
from ..logs import get_logger
from ..outcome import INCOMPLETE, TOO_SLOW

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

_log = get_logger("hookonce.http")

_PIECE_BYTES = 64 * 1024

_SOCKETS = ("gunicorn.socket", "werkzeug.socket")

# The time between two checks of the deadlines: a read may end this much too late. A shorter time
# would make the polling expensive.
_POLL_SECONDS = 0.25


def request_headers(environ: WSGIEnvironment) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of a request, with the original bytes of their values."""
    for name, value in environ.items():
        if name.startswith("HTTP_"):
            # A WSGI server decodes each byte as one character of Latin-1 (PEP 3333).
            field = name.removeprefix("HTTP_").replace("_", "-")
            yield field.encode("latin-1", "replace"), value.encode("latin-1", "replace")


def is_chunked(environ: WSGIEnvironment) -> bool:
    """Return whether the body has a transfer coding instead of a content-length."""
    return "HTTP_TRANSFER_ENCODING" in environ


def read_input(
    environ: WSGIEnvironment, announced: int | None, most: int, deadline: float
) -> bytes:
    """Read and return the body of a request.

    Args:
        announced: its content-length, if it has one.
        most: the largest permitted body, in bytes.
        deadline: when the last piece must have arrived, in ``time.monotonic()`` seconds.

    Raises:
        RequestRefusedError: 408, the deadline has passed; 413, the body exceeds ``most``; 500, the
            input cannot be read to its end, and the log says why.
    """
    if is_chunked(environ):
        announced = None
        if not environ.get("wsgi.input_terminated"):
            _log.error(
                "a delivery came in chunks, and this server does not say where they end"
                " (wsgi.input_terminated): use one that does, such as gunicorn, or let a proxy"
                " buffer requests"
            )
            raise RequestRefusedError(INCOMPLETE)
    elif announced is None:
        return b""
    source = environ["wsgi.input"]
    # read(n) of a buffered input waits for all n bytes, read1(n) only for the first.
    read = getattr(source, "read1", source.read)
    pieces: list[bytes] = []
    left = most + 1 if announced is None else announced
    try:
        while left > 0 and (piece := read(min(left, _PIECE_BYTES))):
            pieces.append(piece)
            left -= len(piece)
            check_time(deadline, is_whole=left <= 0)
    except RequestRefusedError:
        raise
    except TimeoutError as error:
        raise RequestRefusedError(TOO_SLOW) from error
    except Exception as error:
        check_time(deadline, is_whole=False)
        # Log the text of an OSError only, because other errors may quote the body.
        why = error if isinstance(error, OSError) else type(error).__name__
        _log.warning("the input of a request broke off: %s", why)
        raise RequestRefusedError(INCOMPLETE) from error
    check_time(deadline, is_whole=announced is None or left <= 0)
    body = b"".join(pieces)
    check_size(len(body), most)
    return body


def check_time(deadline: float, *, is_whole: bool) -> None:
    """Raise RequestRefusedError if a body is not complete at its deadline.

    Raises:
        RequestRefusedError: 408, it has not.
    """
    if not is_whole and time.monotonic() > deadline:
        _log.warning("a body had not arrived in time")
        raise RequestRefusedError(TOO_SLOW)


class ReadDeadlines:
    """Ends reads of request bodies at their deadlines; a thread watches the time.

    The first read starts the thread, never an import: a server may fork after loading the
    application. The thread ends when no read is left.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reads: dict[object, tuple[socket.socket, float]] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def ending(self, environ: WSGIEnvironment, deadline: float) -> Iterator[None]:
        """End reads from a request's socket if the block still runs at the deadline.

        Args:
            deadline: in ``time.monotonic()`` seconds.
        """
        connection = _socket_of(environ)
        if connection is None:
            yield
            return
        read = object()
        with self._lock:
            self._reads[read] = (connection, deadline)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._watch, name="hookonce-reads", daemon=True
                )
                self._thread.start()
        try:
            yield
        finally:
            # After this block, do not end the read: the server may reuse the connection.
            with self._lock:
                del self._reads[read]

    def _watch(self) -> None:
        while True:
            time.sleep(_POLL_SECONDS)
            now = time.monotonic()
            with self._lock:
                if not self._reads:
                    self._thread = None
                    return
                for connection, deadline in self._reads.values():
                    if now > deadline:
                        _close_for_reading(connection)


def leave_unread(environ: WSGIEnvironment) -> None:
    """Keep the server from reading the rest of a body that was refused.

    gunicorn would read it to its end, however slowly it comes, to reuse the connection.
    """
    connection = _socket_of(environ)
    has_body = environ.get("CONTENT_LENGTH", "") not in {"", "0"}
    if connection is not None and (has_body or is_chunked(environ)):
        _close_for_reading(connection)


def _socket_of(environ: WSGIEnvironment) -> socket.socket | None:
    return next((environ[name] for name in _SOCKETS if name in environ), None)


def _close_for_reading(connection: socket.socket) -> None:
    # Do not call SSLSocket.shutdown(): it would end encryption, and the server would answer in
    # plain text.
    is_own = isinstance(connection, socket.socket)
    with suppress(OSError):  # the connection is closed already
        (socket.socket if is_own else type(connection)).shutdown(connection, socket.SHUT_RD)
