"""Time limits for reads that block a thread.

A thread that reads from a socket cannot be interrupted. Another thread can close that socket for
reading: the read then ends as if the client had, and the answer can still be written. gunicorn and
Werkzeug's server name the socket of a request; for other servers nothing can be done here.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

_SOCKETS = ("gunicorn.socket", "werkzeug.socket")

# Short beside what a body may take, and long enough to cost nothing.
_LOOK_SECONDS = 0.25


class ReadDeadlines:
    """Ends reads of request bodies at their deadlines, in a thread that runs while there are any.

    The thread is started by a read, never by an import: a server may fork before.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reads: dict[object, tuple[socket.socket, float]] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def ending(self, environ: Mapping[str, Any], deadline: float) -> Iterator[None]:
        """End what is read from a request's socket within the block at the deadline.

        Args:
            environ: the request.
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
            with self._lock:  # from here on the socket is the server's alone
                del self._reads[read]

    def _watch(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            now = time.monotonic()
            with self._lock:
                if not self._reads:
                    self._thread = None
                    return
                for connection, deadline in self._reads.values():
                    if now > deadline:
                        _close_for_reading(connection)


def leave_unread(environ: Mapping[str, Any]) -> None:
    """Keep the server from reading the rest of a body that nobody wants, however slowly it comes.

    gunicorn would, up to its end, to use the connection again.
    """
    connection = _socket_of(environ)
    has_body = environ.get("CONTENT_LENGTH", "") not in {"", "0"}
    if connection is not None and (has_body or "HTTP_TRANSFER_ENCODING" in environ):
        _close_for_reading(connection)


def _socket_of(environ: Mapping[str, Any]) -> socket.socket | None:
    return next((environ[name] for name in _SOCKETS if name in environ), None)


def _close_for_reading(connection: socket.socket) -> None:
    # SSLSocket's own shutdown would have the answer written in plain text.
    own = isinstance(connection, socket.socket)
    with suppress(OSError):  # it is closed
        (socket.socket if own else type(connection)).shutdown(connection, socket.SHUT_RD)
