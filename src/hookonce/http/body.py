"""Reading a body: whole, in time, and no larger than it may be."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from starlette.types import Receive

from ..delivery.outcome import Outcome
from ..errors import Refusal

__all__ = [
    "CONSUMED",
    "GoneError",
    "IncompleteError",
    "TooLargeError",
    "announced_length",
    "check_whole",
    "note_changed_body",
    "read_body",
]

_log = logging.getLogger("hookonce.http")


_MOST_LENGTH_DIGITS = 18

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


async def read_body(receive: Receive, most: int, chunks: list[bytes]) -> bytes:
    """Return the body, collected in ``chunks`` until then.

    Raises:
        TooLargeError: it is over ``most`` bytes.
        GoneError: the client went away first.

    """
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise GoneError
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > most:
            raise TooLargeError
        chunks.append(chunk)
        if not message.get("more_body", False):
            body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            chunks.clear()  # or a slow handler would hold a large body twice
            return body


def announced_length(headers: Iterable[tuple[bytes, bytes]], most: int) -> int | None:
    """Return the length a request announces for its body, if it does so in digits.

    Raises:
        TooLargeError: it is over ``most``.

    """
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            # By its length first: int() refuses thousands of digits.
            if len(value) > _MOST_LENGTH_DIGITS or int(value) > most:
                raise TooLargeError
            return int(value)
    return None


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
