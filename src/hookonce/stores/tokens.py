"""Names that nobody else gives: for requests to a store, which may have to be recognised."""

from __future__ import annotations

import os
import time
from random import Random

from .values import Token

__all__ = ["new_token"]

# A system call for each token would let go of the interpreter's lock in the middle of a request,
# and the thread of an SQLite store takes it: 49 µs a delivery at 64 at once, against 0.4 so.
_random = Random()  # noqa: S311 - a token is no secret; it only has to be another one
os.register_at_fork(after_in_child=_random.seed)


def new_token() -> Token:
    """Return a token that no other request has."""
    # The time too, since a restored snapshot of a machine draws what another one draws.
    return Token(f"{_random.getrandbits(64):016x}{time.time_ns():016x}")
