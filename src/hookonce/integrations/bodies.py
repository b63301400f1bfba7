"""Reads bodies within their limits from inputs that block."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..verification.loggers import get_logger

__all__ = ["BodyTooLargeError", "announced_length", "read_body"]

_log = get_logger("hookonce.http")

_PIECE_BYTES = 64 * 1024
_MOST_LENGTH_DIGITS = 18  # int() refuses thousands of digits


class BodyTooLargeError(Exception):
    """The body is over the limit."""


def announced_length(value: str | None, most: int) -> int | None:
    """Return the number in a content-length header; None where it says nothing.

    Raises:
        BodyTooLargeError: it is over ``most``; nothing has been read then.

    """
    text = (value or "").strip()
    if not (text.isascii() and text.isdigit()):
        return None
    if len(text) > _MOST_LENGTH_DIGITS or int(text) > most:
        _log.warning("refused a body of more than %d bytes", most)
        raise BodyTooLargeError
    return int(text)


def read_body(
    read: Callable[[int], bytes], announced: int | None, most: int, deadline: float
) -> bytes:
    """Return a body, read in pieces; without an announced length up to the end of the input.

    A piece that never comes is the server's affair: blocking input cannot be given up.

    Args:
        read: returns at most so many bytes, and none at the end.
        announced: how many bytes there are.
        most: how many there may be.
        deadline: when the last piece must have come, in ``time.monotonic()`` seconds.

    Raises:
        BodyTooLargeError: there are more bytes than there may be.
        TimeoutError: the deadline has passed.

    """
    pieces: list[bytes] = []
    left = most + 1 if announced is None else announced
    while left > 0 and (piece := read(min(left, _PIECE_BYTES))):
        pieces.append(piece)
        left -= len(piece)
        if left > 0 and time.monotonic() > deadline:
            _log.warning("a body had not arrived in time")
            raise TimeoutError
    body = b"".join(pieces)
    if len(body) > most:
        _log.warning("refused a body of more than %d bytes", most)
        raise BodyTooLargeError
    return body
