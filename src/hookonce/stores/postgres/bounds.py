"""The due time from which a process looks for events of the inbox.

PostgreSQL cannot remove the dead rows of handled events while any transaction of the server that is
older than them stays open. The index on ``due`` keeps them, too. So each fetch begins at a
remembered bound, and does not read the dead rows before it.
"""

from __future__ import annotations

from math import inf

# A transaction reads the time first, and may commit up to this much later. So an event may become
# visible after another event that has a later due time.
_OVERLAP_SECONDS = 1.0
# The pause between searches before the bound, for events whose transactions took even longer.
_LOOK_BACK_SECONDS = 30.0


class DueBounds:
    """Remembers a lower bound for the due times of each endpoint's events."""

    def __init__(self) -> None:
        self._bounds: dict[str, float] = {}
        self._looked_back: dict[str, float] = {}

    def bound(self, endpoint: str) -> float:
        """Return the due time from which a fetch must look for events; at first minus infinity."""
        return self._bounds.get(endpoint, -inf)

    def saw(self, endpoint: str, bound: float, first: float | None, now: float) -> None:
        """Raise the bound after a fetch has looked at the events that are due from ``bound`` on.

        Args:
            endpoint: the endpoint.
            bound: the bound that the fetch used; nothing changes if the bound has changed since.
            first: the due time of the first event from there on; None if there is none.
            now: the server's time when the fetch looked.
        """
        if self.bound(endpoint) == bound:
            earliest = now - _OVERLAP_SECONDS
            self._bounds[endpoint] = max(bound, earliest if first is None else min(first, earliest))

    def found(self, endpoint: str, due: float) -> None:
        """Lower the bound to the due time of an event that became visible late."""
        self._bounds[endpoint] = min(self.bound(endpoint), due)

    def forget(self, endpoint: str) -> None:
        """Remove the bound, so that the next fetch looks at all events: the clock was set back."""
        self._bounds.pop(endpoint, None)

    def must_look_back(self, endpoint: str, uptime: float) -> bool:
        """Return whether the caller must look for events before the bound; if so, note the time."""
        looked_at = self._looked_back.setdefault(endpoint, uptime)
        if uptime - looked_at < _LOOK_BACK_SECONDS:
            return False
        self._looked_back[endpoint] = uptime
        return True
