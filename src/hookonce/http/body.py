"""Reading a body: whole, in time, and no larger than it may be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from starlette.types import Message, Receive

from ..delivery.outcome import Outcome
from ..errors import Refusal
from ..verification.loggers import get_logger

_log = get_logger("hookonce.http")


_MOST_LENGTH_DIGITS = 18  # int() refuses thousands of digits

CONSUMED = (
    "Something before the receiver (middleware, a hook, a dependency) has read it: let it leave the"
    " receiver's path alone, or let it read by what the framework keeps for others"
)


class TooLargeError(Exception):
    """The body is over the limit."""


class GoneError(Exception):
    """The client is gone; nobody waits for an answer."""


class IncompleteError(Exception):
    """The body cannot be had whole, and the log says why."""


class TooManyError(Exception):
    """Too much is held of bodies under way, and this one had to give way."""


@dataclass(eq=False, slots=True)
class PartialBody:
    """What has arrived of one body.

    Attributes:
        pieces: its bytes.
        size: how many there have been.
        gave_way: whether they were let go for the sake of others.

    """

    pieces: list[bytes]
    size: int
    gave_way: bool = False


class BodyBudget:
    """The bytes of all bodies that have not arrived whole.

    Where they are too many, the body under way longest gives way: a sender's is here in no time,
    and one that never ends is no reason to turn away those that come after it.

    Args:
        most: how many bytes there may be.

    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        self._bodies: dict[PartialBody, int] = {}

    def hold(self, body: PartialBody) -> None:
        """Count what has arrived of a body by now."""
        self._bytes += body.size - self._bodies.get(body, 0)
        self._bodies[body] = body.size
        while self._bytes > self._most:
            oldest = next(iter(self._bodies))
            self.release(oldest)
            oldest.pieces.clear()
            oldest.gave_way = True

    def release(self, body: PartialBody) -> None:
        """Count a body no more."""
        self._bytes -= self._bodies.pop(body, 0)


def piece_of(message: Message, before: int, most: int) -> bytes:
    """Return what a message of the server's brings of a body.

    Raises:
        TooLargeError: with the bytes before it these are over ``most``.
        GoneError: the client went away instead.

    """
    if message["type"] == "http.disconnect":
        raise GoneError
    piece: bytes = message.get("body", b"")
    check_size(before + len(piece), most)
    return piece


async def read_rest(receive: Receive, most: int, body: PartialBody, budget: BodyBudget) -> bytes:
    """Return a body of which more is to come, collected in ``body`` until then.

    Raises:
        TooLargeError: it is over ``most`` bytes.
        TooManyError: it had to give way to others.
        GoneError: the client went away first.

    """
    try:
        budget.hold(body)
        while not body.gave_way:
            message = await receive()
            piece = piece_of(message, body.size, most)
            body.size += len(piece)
            if body.gave_way:
                break
            body.pieces.append(piece)
            if not message.get("more_body", False):
                whole = b"".join(body.pieces)
                body.pieces.clear()  # or a slow handler would hold a large body twice
                return whole
            del message, piece  # or a body that gives way would still be held here
            budget.hold(body)
        raise TooManyError
    finally:
        budget.release(body)


def length_header(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Return the content-length of a request, if it has one."""
    for name, value in headers:
        if name == b"content-length":
            return value
    return None


def announced_length(value: bytes | str | None, most: int) -> int | None:
    """Return the number in a content-length header; None where it says nothing.

    Raises:
        TooLargeError: it is over ``most``; nothing has been read then.

    """
    text = (value or b"").strip()
    if not (text.isascii() and text.isdigit()):
        return None
    length = int(text) if len(text) <= _MOST_LENGTH_DIGITS else most + 1
    check_size(length, most)
    return length


def check_size(size: int, most: int) -> None:
    """Refuse a body that has more bytes than it may have, and say so in the log.

    Raises:
        TooLargeError: it has.

    """
    if size > most:
        _log.warning("refused a body of more than %d bytes", most)
        raise TooLargeError


def check_whole(body: bytes, announced: int | None, *, is_chunked: bool) -> None:
    """Check that no byte of a body is missing.

    Of what is left no signature could match, and a bare 401 would send somebody to look for a wrong
    secret. It happens where something has read the body before, where a connection breaks off, and
    where a server cannot read a body: uvicorn drops that of a request to upgrade, and Django under
    WSGI one in chunks. No delivery is empty, so chunks without a byte were lost as well.

    Args:
        body: as it arrived.
        announced: the content-length of the request, if it had one.
        is_chunked: whether it had a transfer-encoding, beside which a length does not count.

    Raises:
        IncompleteError: bytes are missing.

    """
    if is_chunked:
        if body:
            return
        _log.error("the body of a delivery came in chunks, and nothing is left of it. %s", CONSUMED)
    elif announced is None or len(body) >= announced:
        return
    elif body:
        _log.warning(
            "only %d of %d bytes of a body arrived: the connection broke off, or something before"
            " the receiver has read or changed it",
            len(body),
            announced,
        )
    else:
        _log.error(
            "the body of a delivery is consumed: %d bytes were announced and none is left. %s",
            announced,
            CONSUMED,
        )
    raise IncompleteError


def note_changed_body(outcome: Outcome, body: bytes, announced: int | None) -> None:
    """Say in the log where no signature matches since the body was written anew on its way.

    The refusal alone would send somebody to look for a wrong secret.

    Args:
        outcome: what the receiver answers.
        body: the body as it arrived at the receiver.
        announced: the content-length of the request, if it had one.

    """
    if outcome.reason == Refusal.NO_MATCHING_SIGNATURE and announced not in {None, len(body)}:
        _log.error(
            "the body of a delivery was changed on its way: it has %d bytes, and %s were announced."
            " Signatures cover the bytes as they were sent: hand them on as they are, without"
            " parsing, mapping or encoding them anew",
            len(body),
            announced,
        )
