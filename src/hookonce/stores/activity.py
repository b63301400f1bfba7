"""What processes that share a store tell each other of their work, while somebody looks.

Nothing rests on it. It is bounded, the oldest is forgotten first, and a store may lose it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

WATCHED_SECONDS = 10.0
"""How long after somebody has looked processes go on telling."""

MOST_LINES = 2000
"""How many lines of an endpoint are kept."""


class Activity(NamedTuple):
    """What was told of an endpoint after a place.

    Attributes:
        place: where to go on the next time.
        lines: what was told in between, oldest first; some may be forgotten already.

    """

    place: int
    lines: tuple[bytes, ...]


@runtime_checkable
class ActivityStore(Protocol):
    """A store that several processes share, as far as they tell each other of their work."""

    async def publish(self, endpoint: str, lines: Sequence[bytes]) -> bool:
        """Keep lines for whoever looks at an endpoint; return whether anybody does.

        Where nobody does the lines are dropped. Without lines it only asks.
        """
        ...

    async def follow(self, endpoint: str, place: int | None) -> Activity:
        """Return what was told after a place, and note that somebody looks.

        Args:
            endpoint: whose.
            place: where the last call has ended; None begins with what is told from now on. A
                place that lies ahead, of a file or server that was emptied, begins anew too.

        """
        ...
