"""Reading a request body: complete, in time, and within its size limit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from starlette.types import Message, Receive

from ..errors import Refusal
from ..logs import get_logger
from ..outcome import INCOMPLETE, NOT_POST, TOO_LARGE, Outcome, Reason, later

_log = get_logger("hookonce.http")


_MOST_LENGTH_DIGITS = 18  # int() refuses thousands of digits

CONSUMED = (
    "Something before the receiver (middleware, a hook, a dependency) has read it: exempt the"
    " receiver's path from it, or let it read the body by a way that keeps the bytes"
)


class RequestRefusedError(Exception):
    """Raised to answer a request before it reaches the receiver."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


class GoneError(Exception):
    """The client has disconnected; nobody waits for an answer."""


@dataclass(eq=False, slots=True)
class PartialBody:
    """The part of a body that has arrived.

    Attributes:
        size: the number of bytes that have arrived.
        is_evicted: whether the budget has dropped the bytes to make room for other bodies.
    """

    pieces: list[bytes]
    size: int
    is_evicted: bool = False


class BodyBudget:
    """Limits the memory of all bodies that are still arriving.

    When these bodies need too much memory, the oldest body is evicted. The service sends a body at
    once, so an old body most likely never ends, and must not keep out later deliveries.

    Args:
        most: the limit in bytes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        self._bodies: dict[PartialBody, int] = {}

    def hold(self, body: PartialBody) -> None:
        """Count the bytes of a body that have arrived, and evict the oldest bodies if needed."""
        self._bytes += body.size - self._bodies.get(body, 0)
        self._bodies[body] = body.size
        while self._bytes > self._most:
            _log.warning("bodies that are still arriving hold over %d bytes", self._most)
            oldest = next(iter(self._bodies))
            self.release(oldest)
            oldest.pieces.clear()
            oldest.is_evicted = True

    def release(self, body: PartialBody) -> None:
        """Stop counting a body."""
        self._bytes -= self._bodies.pop(body, 0)


def check_method(method: str | None) -> None:
    """Check that a request is a POST.

    Raises:
        RequestRefusedError: 405, it is not.
    """
    if method != "POST":
        raise RequestRefusedError(NOT_POST)


def piece_of(message: Message, before: int, most: int) -> bytes:
    """Return the piece of a body in a message from the server.

    Raises:
        RequestRefusedError: 413, the piece and the ``before`` bytes before it exceed ``most``.
        GoneError: the client has disconnected.
    """
    if message["type"] == "http.disconnect":
        raise GoneError
    piece: bytes = message.get("body", b"")
    check_size(before + len(piece), most)
    return piece


async def read_rest(receive: Receive, most: int, body: PartialBody, budget: BodyBudget) -> bytes:
    """Read the rest of a body into ``body``, and return the whole body.

    Raises:
        RequestRefusedError: 413, it exceeds ``most`` bytes; 503, it was evicted.
        GoneError: the client has disconnected.
    """
    try:
        budget.hold(body)
        while not body.is_evicted:
            message = await receive()
            piece = piece_of(message, body.size, most)
            body.size += len(piece)
            if body.is_evicted:
                break
            body.pieces.append(piece)
            if not message.get("more_body", False):
                whole = b"".join(body.pieces)
                body.pieces.clear()  # otherwise a slow handler would hold a large body twice
                return whole
            del message, piece  # otherwise these names would keep an evicted body alive
            budget.hold(body)
        raise RequestRefusedError(later(Reason.OVERLOADED))
    finally:
        budget.release(body)


def length_header(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Return the value of the content-length header, if there is one."""
    for name, value in headers:
        if name == b"content-length":
            return value
    return None


def announced_length(value: bytes | str | None, most: int) -> int | None:
    """Return the number in a content-length header; None if it is absent or not a number.

    Raises:
        RequestRefusedError: 413, it exceeds ``most``. No byte of the body has been read yet.
    """
    text = (value or b"").strip()
    if not (text.isascii() and text.isdigit()):
        return None
    length = int(text) if len(text) <= _MOST_LENGTH_DIGITS else most + 1
    check_size(length, most)
    return length


def check_size(size: int, most: int) -> None:
    """Refuse a body that exceeds its limit, and log the refusal.

    Raises:
        RequestRefusedError: 413, the body is too large.
    """
    if size > most:
        _log.warning(
            "refused a body of more than %d bytes; if the sender's events are larger, raise"
            " Limits(body_bytes=…)",
            most,
        )
        raise RequestRefusedError(TOO_LARGE)


def check_whole(body: bytes, announced: int | None, *, is_chunked: bool) -> None:
    """Check that no byte of a body is missing.

    No signature matches a part of a body. A plain 401 would make an operator search for a wrong
    secret. Bytes are missing if something has read the body before the receiver, if the connection
    breaks off, or if the server cannot read the body: uvicorn drops the body of a request to
    upgrade, and Django under WSGI drops a chunked body. No delivery is empty, so an empty chunked
    body has lost its bytes too.

    Args:
        announced: the content-length of the request, if it had one.
        is_chunked: whether it had a transfer-encoding, which overrides the length.

    Raises:
        RequestRefusedError: 500, bytes are missing.
    """
    if is_chunked:
        if body:
            return
        _log.error(
            "the body of a delivery is consumed: it came in chunks, and no byte is left. %s",
            CONSUMED,
        )
    elif announced is None or len(body) >= announced:
        return
    elif body:
        _log.warning(
            "only %d of %d bytes of a body arrived: the connection broke off, or something before"
            " the receiver has read or changed the body",
            len(body),
            announced,
        )
    else:
        _log.error(
            "the body of a delivery is consumed: %d bytes were announced and none is left. %s",
            announced,
            CONSUMED,
        )
    raise RequestRefusedError(INCOMPLETE)


def note_changed_body(outcome: Outcome, body: bytes, announced: int | None) -> None:
    """Log that no signature matches because something has rewritten the body on its way.

    A plain 401 would make an operator search for a wrong secret.

    Args:
        announced: the content-length of the request, if it had one.
    """
    if outcome.reason == Refusal.NO_MATCHING_SIGNATURE and announced not in {None, len(body)}:
        _log.error(
            "the body of a delivery was changed on its way: it has %d bytes, and %s were announced."
            " A signature covers the original bytes: pass the body on without parsing, mapping or"
            " encoding it again",
            len(body),
            announced,
        )
