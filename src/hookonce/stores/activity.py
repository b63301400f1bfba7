"""The activity feed: processes that share a store report their work while an operator watches.

No promise depends on it. It is bounded, the oldest lines go first, and a store may lose lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

WATCHED_SECONDS = 10.0
"""Processes report for this long after an operator last looked."""

MOST_LINES = 2000
"""The largest number of lines that are kept per endpoint."""


class Activity(NamedTuple):
    """Activity lines of an endpoint that follow a cursor, and the next cursor.

    Attributes:
        place: the cursor for the next call.
        lines: the lines between the two cursors, oldest first; the store may have dropped some.
    """

    place: int
    lines: tuple[bytes, ...]


@runtime_checkable
class ActivityStore(Protocol):
    """A store with an activity feed for the processes that share it."""

    async def publish(self, endpoint: str, lines: Sequence[bytes]) -> bool:
        """Add activity lines of an endpoint; return whether an operator is watching it.

        If no operator watches, the lines are dropped. Without lines the call only asks.
        """
        ...

    async def follow(self, endpoint: str, place: int | None) -> Activity:
        """Return the lines after the cursor ``place``, and note that an operator is watching.

        Args:
            endpoint: the name of the receiving endpoint.
            place: where the last call ended; None starts with the lines from now on. So does a
                place after the last line, which shows that the file or server was emptied.
        """
        ...
