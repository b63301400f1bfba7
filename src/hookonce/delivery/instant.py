"""The two clocks of an attempt."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple


class Instant(NamedTuple):
    """The time on two clocks: the monotonic clock and the event loop's clock.

    The loop's clock times what the loop does next. But uvloop's clock stands still within one turn
    of the loop, so only the monotonic clock shows that this process has just been blocked.
    """

    monotonic: float
    loop: float

    @classmethod
    def now(cls, loop: asyncio.AbstractEventLoop) -> Instant:
        """Read both clocks."""
        return cls(time.monotonic(), loop.time())
