"""Bodies that are read from inputs that block, and the answers where one cannot be had."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..delivery.outcome import BROKEN, INCOMPLETE, TOO_LARGE, TOO_SLOW, Outcome
from ..http.body import IncompleteError, TooLargeError, check_size
from ..verification.loggers import get_logger

_log = get_logger("hookonce.http")

_PIECE_BYTES = 64 * 1024


def refusal_of(error: Exception) -> Outcome:
    """Return what to answer where a delivery did not get as far as the receiver, and log a fault.

    No exception may escape: what a server would answer instead says nothing, and may be a page.
    """
    match error:
        case TooLargeError():
            return TOO_LARGE
        case TimeoutError():
            return TOO_SLOW
        case IncompleteError():
            return INCOMPLETE
    _log.error("a delivery could not be handed to the receiver; answered 500", exc_info=error)
    return BROKEN


def read_body(
    read: Callable[[int], bytes], announced: int | None, most: int, deadline: float
) -> bytes:
    """Return a body, read in pieces; without an announced length up to the end of the input.

    A piece that never comes ends the body only where its socket can be closed for reading
    (``ReadDeadlines``): blocking input cannot be given up.

    Args:
        read: returns at most so many bytes, and none at the end.
        announced: how many bytes there are.
        most: how many there may be.
        deadline: when the last piece must have come, in ``time.monotonic()`` seconds.

    Raises:
        TooLargeError: there are more bytes than there may be.
        TimeoutError: the deadline has passed.

    """
    pieces: list[bytes] = []
    left = most + 1 if announced is None else announced
    while left > 0 and (piece := read(min(left, _PIECE_BYTES))):
        pieces.append(piece)
        left -= len(piece)
        check_time(deadline, is_whole=left <= 0)
    check_time(deadline, is_whole=announced is None or left <= 0)
    body = b"".join(pieces)
    check_size(len(body), most)
    return body


def check_time(deadline: float, *, is_whole: bool) -> None:
    """Refuse a body that is not here as a whole at its deadline, and say so in the log.

    Raises:
        TimeoutError: it is not.

    """
    if not is_whole and time.monotonic() > deadline:
        _log.warning("a body had not arrived in time")
        raise TimeoutError
