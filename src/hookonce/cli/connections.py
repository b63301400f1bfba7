"""Limits the connections of a server, and chooses which connections to close first.

A sender opens a connection and sends its whole request at once. So if there are too many
connections, the server closes connections on which it waits for data: first the connections that
have waited longest for a request, then those that have waited longest for the rest of a body. It
refuses a new connection only if it is answering on all others.

uvicorn limits bodies, because it stops reading. With httptools it limits nothing else. This module
limits heads, trailers, chunk extensions, and requests that are sent before the last answer.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from http import HTTPStatus
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from hookonce.http.app import ASGIApp
from hookonce.http.guard import headers_of
from hookonce.outcome import Outcome, Reason, later

_log = logging.getLogger("hookonce")

OVERLOADED = later(Reason.OVERLOADED)

# The largest size of a request's head, or of a body's trailers. uvicorn's parser h11 has the same
# limit; its parser httptools has none.
_MOST_FRAMING_BYTES = 64 * 1024
# The most header fields of a request. A limit on the size does not suffice, because a field of four
# bytes takes 200 bytes as Python objects.
_MOST_FIELDS = 256

# The most requests that a client may send before it has an answer. No proxy sends so many.
_MOST_PIPELINED = 20
_MOST_PIPELINED_BYTES = 256 * 1024

_WARNING_SECONDS = 60.0

_OTHER_FILES = 256  # the store, the log and the interpreter open at most this many files


class ServerConnections:
    """The open connections of a server, sorted by the start of their current request or wait.

    Args:
        most: how many there may be.
        idle_seconds: how long a client may take to send the head of a request, or to read more of
            an answer.
        refuse: the application that answers on connections beyond ``most``.
    """

    def __init__(self, most: int, *, idle_seconds: float, refuse: ASGIApp) -> None:
        self.refuse = refuse
        self._most = most
        self._idle_seconds = idle_seconds
        self._waiting: dict[_Connection, float] = {}
        self._asking: dict[_Connection, None] = {}
        self._not_reading: dict[_Connection, float] = {}
        self._next_warning = 0.0

    def protocol(self) -> type[asyncio.Protocol]:
        """Return the class of these connections, for ``uvicorn.Config(http=…)``."""
        return type("_Connection", (_Connection,), {"others": self})

    def add(self, connection: _Connection, now: float) -> bool:
        """Add a new connection; return False if there are too many and none can be closed."""
        has_room = len(self._waiting) + len(self._asking) < self._most
        if not has_room:
            self._warn(now)
            has_room = self._close_one()
        self._waiting[connection] = now
        return has_room

    def end_request(self, connection: _Connection, now: float) -> None:
        """Record that a connection now waits for its next request."""
        if connection in self._asking:
            del self._asking[connection]
            self._waiting[connection] = now

    def begin_request(self, connection: _Connection) -> None:
        """Record that a connection has received the head of a request."""
        if connection in self._waiting:
            del self._waiting[connection]
            self._asking[connection] = None

    def remove(self, connection: _Connection) -> None:
        """Forget a connection that is closed."""
        self._waiting.pop(connection, None)
        self._asking.pop(connection, None)
        self._not_reading.pop(connection, None)

    def stop_reading(self, connection: _Connection, now: float) -> None:
        """Record that a client has stopped reading an answer."""
        self._not_reading[connection] = now

    def resume_reading(self, connection: _Connection) -> None:
        """Record that a client reads its answer again."""
        self._not_reading.pop(connection, None)

    def close_idle(self, now: float) -> None:
        """Close connections whose client has taken too long to send a head or read an answer."""
        for idle in (self._waiting, self._not_reading):
            while idle:
                connection, since = next(iter(idle.items()))
                if now - since < self._idle_seconds:
                    break
                self.remove(connection)
                connection.close()

    def _warn(self, now: float) -> None:
        """Log that there are too many connections, at most once a minute."""
        if now >= self._next_warning:
            self._next_warning = now + _WARNING_SECONDS
            _log.warning(
                "all %d connections are in use: the server closes those that it has waited for"
                " the longest",
                self._most,
            )

    def _close_one(self) -> bool:
        sending = (connection for connection in self._asking if connection.sends_body)
        connection = next(iter(self._waiting), None) or next(sending, None)
        if connection is None:
            return False
        self.remove(connection)
        connection.make_room()
        return True


class _ExcessError(Exception):
    """Raised to stop the parser when a client exceeds a limit."""


class _Connection(HttpToolsProtocol):
    """An HTTP connection; ``others`` holds all open connections of the server."""

    others: ClassVar[ServerConnections]

    _in_head = False
    _framing_bytes = 0  # bytes since the last complete head or piece of a body
    _pipelined_bytes = 0
    _exceeds = False
    _current: RequestResponseCycle | None = None  # the request that the application is answering

    @property
    def sends_body(self) -> bool:
        """Whether the body of the current request is still arriving."""
        return self.cycle.more_body and not self.cycle.response_started

    def make_room(self) -> None:
        """Close the connection to make room; first answer its request, if there is one."""
        if self._is_answering:
            self._close_with(_refusal(OVERLOADED))
        else:
            self.close()

    def close(self) -> None:
        """Close the connection, without waiting for a client that does not read its answer."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.others.stop_reading(self, self.loop.time())

    def resume_writing(self) -> None:
        super().resume_writing()
        self.others.resume_reading(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's class has this signature
        super().connection_made(transport)
        if not self.others.add(self, self.loop.time()):
            self.app: ASGIApp = self.others.refuse

    def connection_lost(self, exc: Exception | None) -> None:
        self.others.remove(self)
        self._disconnect()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._framing_bytes += len(data)
        super().data_received(data)
        if self._framing_bytes > _MOST_FRAMING_BYTES and not self.transport.is_closing():
            self._refuse_excess()

    def send_400_response(self, msg: str) -> None:
        if self._exceeds:
            self._refuse_excess()
        else:
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._framing_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header field; drop a trailer, which the application would treat as a header."""
        if self._in_head:
            self._check(len(self.headers) < _MOST_FIELDS)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._framing_bytes = 0
        self.others.begin_request(self)
        super().on_headers_complete()
        if not self.pipeline:
            self._current = self.cycle
        self._check(len(self.pipeline) <= _MOST_PIPELINED)

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = 0
        super().on_body(body)
        self._pipelined_bytes = self._pipelined_bytes + len(body) if self.pipeline else 0
        self._check(self._pipelined_bytes <= _MOST_PIPELINED_BYTES)

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._current = self.pipeline[-1][0]
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self.others.end_request(self, self.loop.time())

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _check(self, is_within: bool) -> None:
        if not is_within:
            self._exceeds = True
            raise _ExcessError

    def _refuse_excess(self) -> None:
        """Close the connection of a client that exceeds a limit, with an answer where possible."""
        if self.pipeline or (self._is_answering and self.cycle.response_started):
            self._disconnect()
            self.transport.close()
        else:
            self._close_with(_HEAD_TOO_LARGE)

    def _close_with(self, answer: bytes) -> None:
        """Send an answer, close the connection, and report a disconnect to the application."""
        self.transport.write(answer)
        self.transport.close()
        self._disconnect()

    def _disconnect(self) -> None:
        """Report a disconnect to the application; uvicorn does so only for the newest request."""
        if self._current is not None and not self._current.response_complete:
            self._current.disconnected = True
            self._current.message_event.set()

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing, because any client could fill the log with this warning."""


def allow_files(connections: int) -> None:
    """Raise this process's limit of open files to fit this many connections, if possible."""
    try:
        import resource  # noqa: PLC0415 - Windows has neither this module nor the limit
    except ImportError:
        return
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    if limit != resource.RLIM_INFINITY and limit < wanted:
        # On macOS the true maximum is lower than the maximum that getrlimit returns.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _refusal(outcome: Outcome) -> bytes:
    status = HTTPStatus(outcome.status)
    headers = [*headers_of(outcome), ("connection", "close")]
    lines = [f"HTTP/1.1 {int(status)} {status.phrase}", *(f"{n}: {v}" for n, v in headers)]
    return "\r\n".join([*lines, "", ""]).encode() + outcome.body


_HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\n"
    b"connection: close\r\n\r\n"
)
