"""The activity feed: processes that share a store report their work while an operator watches.

No promise depends on the feed. Its length is limited: the oldest lines are dropped first, and a
store may lose lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

WATCHED_SECONDS = 10.0
"""Processes report their work for this long after an operator's last look."""

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
        """Add activity lines of an endpoint; return whether an operator watches the endpoint.

        If no operator watches, the store drops the lines. Without lines the call only asks whether
        an operator watches.
        """
        ...

    async def follow(self, endpoint: str, place: int | None) -> Activity:
        """Return the lines after the cursor ``place``, and remember that an operator is watching.

        Args:
            endpoint: the name of the receiving endpoint.
            place: the cursor that the last call returned. With None, the call starts with the lines
                that are added from now on. A cursor after the last line has the same effect: it
                shows that the file or server was emptied.
        """
        ...
