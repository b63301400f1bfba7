"""The connections of a server: how many there may be, and which give way when there are too many.

A sender opens one, asks at once, and has its whole request here in no time. So where there is no
room, whoever has kept the server waiting longest goes first: connections without a request, then
those whose body is under way. Only where every connection is being answered a new one is refused.

uvicorn bounds bodies, by not reading on. It bounds nothing else with httptools, so the rest is
bounded here: heads, trailers and chunk extensions, and requests that wait behind another.
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

# Bytes in a row that belong to no body: a head, or trailers. h11 has this limit, httptools none.
_MOST_FRAMING_BYTES = 64 * 1024
# A field of four bytes takes 200 as Python objects.
_MOST_FIELDS = 256

# Requests that a client sends before it has the answer to the one before. No proxy does that.
_MOST_PIPELINED = 20
_MOST_PIPELINED_BYTES = 256 * 1024

_WARNING_SECONDS = 60.0

_FILES_BESIDE = 256  # the store's, the log's, the interpreter's


class Connections:
    """Those of one server, in the order in which they began to wait or to ask.

    Args:
        most: how many there may be.
        idle_seconds: after this one is closed that has not sent the head of a request, or does not
            take the answer.
        refuse: answers the requests of those that are too many.

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

    def enter(self, connection: _Connection, now: float) -> bool:
        """Note a new connection; return whether there was room, or another could make some."""
        has_room = len(self._waiting) + len(self._asking) < self._most
        if not has_room:
            self._warn(now)
            has_room = self._give_way()
        self._waiting[connection] = now
        return has_room

    def wait(self, connection: _Connection, now: float) -> None:
        """Note that a connection waits for a request from now on."""
        if connection in self._asking:
            del self._asking[connection]
            self._waiting[connection] = now

    def ask(self, connection: _Connection) -> None:
        """Note that the head of a request has come."""
        if connection in self._waiting:
            del self._waiting[connection]
            self._asking[connection] = None

    def leave(self, connection: _Connection) -> None:
        """Note that a connection is closed."""
        self._waiting.pop(connection, None)
        self._asking.pop(connection, None)
        self._not_reading.pop(connection, None)

    def stop_reading(self, connection: _Connection, now: float) -> None:
        """Note that a client takes no more of an answer from now on."""
        self._not_reading[connection] = now

    def read_on(self, connection: _Connection) -> None:
        """Note that it takes more."""
        self._not_reading.pop(connection, None)

    def close_idle(self, now: float) -> None:
        """Close those that have not sent the head of a request, or taken an answer, in time."""
        for idle in (self._waiting, self._not_reading):
            while idle:
                connection, since = next(iter(idle.items()))
                if now - since < self._idle_seconds:
                    break
                self.leave(connection)
                connection.close()

    def _warn(self, now: float) -> None:
        """Say it, but not with every connection of a flood."""
        if now >= self._next_warning:
            self._next_warning = now + _WARNING_SECONDS
            _log.warning(
                "%d connections are open, which is all there may be: those that have kept the"
                " server waiting longest are closed",
                self._most,
            )

    def _give_way(self) -> bool:
        sending = (connection for connection in self._asking if connection.sends_body)
        connection = next(iter(self._waiting), None) or next(sending, None)
        if connection is None:
            return False
        self.leave(connection)
        connection.give_way()
        return True


class _ExcessError(Exception):
    """A client sends more than it may; raised within the parser, which then stops."""


class _Connection(HttpToolsProtocol):
    """An HTTP connection that is one of many."""

    others: ClassVar[Connections]

    _in_head = False
    _framing_bytes = 0  # since the head began or ended, or since the last byte of a body
    _pipelined_bytes = 0
    _exceeds = False
    _current: RequestResponseCycle | None = None  # behind it there may be others that wait

    @property
    def sends_body(self) -> bool:
        """Whether its request is not here as a whole."""
        return self.cycle.more_body and not self.cycle.response_started

    def give_way(self) -> None:
        """Close, with an answer if there is a request."""
        if self._is_answering:
            self._close_with(_refusal(OVERLOADED))
        else:
            self.close()

    def close(self) -> None:
        """Close, and do not wait for a client that does not take the last answer."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.others.stop_reading(self, self.loop.time())

    def resume_writing(self) -> None:
        super().resume_writing()
        self.others.read_on(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if not self.others.enter(self, self.loop.time()):
            self.app = self.others.refuse

    def connection_lost(self, exc: Exception | None) -> None:
        self.others.leave(self)
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
        """Take a header field of the head, and drop a trailer: nobody would tell them apart."""
        if self._in_head:
            self._check(len(self.headers) < _MOST_FIELDS)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._framing_bytes = 0
        self.others.ask(self)
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
            self.others.wait(self, self.loop.time())

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _check(self, is_within: bool) -> None:
        if not is_within:
            self._exceeds = True
            raise _ExcessError

    def _refuse_excess(self) -> None:
        """Close; with an answer, unless it would be taken for that to an earlier request."""
        if self.pipeline or (self._is_answering and self.cycle.response_started):
            self._disconnect()
            self.transport.close()
        else:
            self._close_with(_HEAD_TOO_LARGE)

    def _close_with(self, answer: bytes) -> None:
        """Answer instead of the application, which hears that the client is gone."""
        self.transport.write(answer)
        self.transport.close()
        self._disconnect()

    def _disconnect(self) -> None:
        """Tell the application that the client is gone; uvicorn tells only the latest request."""
        if self._current is not None and not self._current.response_complete:
            self._current.disconnected = True
            self._current.message_event.set()

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: whoever wants to could fill the log."""


def allow_files(connections: int) -> None:
    """Let this process have as many open files as so many connections need, where it may."""
    try:
        import resource  # noqa: PLC0415 - there is none on Windows, and no such limit
    except ImportError:
        return
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _FILES_BESIDE
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    if limit != resource.RLIM_INFINITY and limit < wanted:
        with suppress(OSError, ValueError):  # macOS has a lower limit than it says
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
