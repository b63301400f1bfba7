"""The connections of a server: how many there may be, and which give way when there are too many.

A sender opens one, asks at once, and has its whole request here in no time. So where there is no
room, whoever has kept the server waiting longest goes first: connections without a request, then
those whose body is under way. Only where every connection is being answered a new one is refused.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from http import HTTPStatus
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hookonce.delivery.outcome import Outcome, Reason, later
from hookonce.http.app import ASGIApp
from hookonce.http.guard import headers_of

_log = logging.getLogger("hookonce")

OVERLOADED = later(Reason.OVERLOADED)

# As h11 has it; httptools takes any number of bytes.
_MOST_HEAD_BYTES = 64 * 1024

_WARNING_SECONDS = 60.0

_FILES_BESIDE = 256  # the store's, the log's, the interpreter's


class Connections:
    """Those of one server, in the order in which they began to wait or to ask.

    Args:
        most: how many there may be.
        idle_seconds: after this one is closed that has not sent the head of a request.
        refuse: answers the requests of those that are too many.

    """

    def __init__(self, most: int, *, idle_seconds: float, refuse: ASGIApp) -> None:
        self.refuse = refuse
        self._most = most
        self._idle_seconds = idle_seconds
        self._waiting: dict[_Connection, float] = {}
        self._asking: dict[_Connection, None] = {}
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

    def close_idle(self, now: float) -> None:
        """Close those that have not sent the head of a request in time."""
        while self._waiting:
            connection, since = next(iter(self._waiting.items()))
            if now - since < self._idle_seconds:
                return
            self.leave(connection)
            connection.transport.close()

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


class _Connection(HttpToolsProtocol):
    """An HTTP connection that is one of many."""

    others: ClassVar[Connections]

    _head_bytes: int | None = None  # None outside of a head

    @property
    def sends_body(self) -> bool:
        """Whether its request is not here as a whole."""
        return self.cycle.more_body and not self.cycle.response_started

    def give_way(self) -> None:
        """Close, with an answer if there is a request."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.write(_refusal(OVERLOADED))
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if not self.others.enter(self, self.loop.time()):
            self.app = self.others.refuse

    def connection_lost(self, exc: Exception | None) -> None:
        self.others.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if (self._head_bytes or 0) > _MOST_HEAD_BYTES and not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(_HEAD_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        self.others.ask(self)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self.others.wait(self, self.loop.time())

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
