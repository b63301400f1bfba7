"""Reading a body: whole, in time, and no larger than it may be."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import Receive

from ..delivery.outcome import Outcome
from ..errors import Refusal
from ..verification.loggers import get_logger

__all__ = [
    "GoneError",
    "TooLargeError",
    "announced_length",
    "note_changed_body",
    "read_body",
]

_log = get_logger("hookonce.http")


_MOST_LENGTH_DIGITS = 18


class TooLargeError(Exception):
    """The body is over the limit."""


class GoneError(Exception):
    """The client is gone; nobody waits for an answer."""


async def read_body(
    headers: Iterable[tuple[bytes, bytes]], receive: Receive, most: int, chunks: list[bytes]
) -> bytes:
    """Return the whole body, collected in ``chunks`` until then.

    Raises:
        TooLargeError: it is, or is announced to be, over ``most`` bytes.
        GoneError: the client went away first.

    """
    for name, value in headers:
        # By its length first: int() refuses thousands of digits.
        if name == b"content-length" and value.isdigit():
            too_large = len(value) > _MOST_LENGTH_DIGITS or int(value) > most
            if too_large:
                raise TooLargeError
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


def announced_length(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Return the length a request announces for its body, if it does so in digits."""
    for name, value in headers:
        if name == b"content-length" and value.isdigit() and len(value) <= _MOST_LENGTH_DIGITS:
            return int(value)
    return None


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
