"""Request tokens, so that a store recognises a call that is repeated."""

from __future__ import annotations

import os
import time
from random import Random

from .values import Token

# A system call for each token would let go of the interpreter's lock in the middle of a request,
# and the thread of a SQLite store would take it and keep the event loop waiting.
_random = Random()  # noqa: S311 - a token is no secret; it only has to be another one
os.register_at_fork(after_in_child=_random.seed)


def new_token() -> Token:
    """Return a token that no other request has."""
    # The time too, since a restored snapshot of a machine draws what another one draws.
    return Token(hex(_random.getrandbits(64) << 64 | time.time_ns()))
