"""Events that a worker has fetched, but cannot begin yet.

Fetching takes time. Without prefetched events, a place would stay empty during a fetch after each
handler.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from ..delivery.attempt import Attempt
from ..delivery.instant import Instant
from ..stores.values import Claimed, DeliveryKey

# The largest number of prefetched events, as a multiple of the concurrency. Quick handlers can
# handle several times as many events during one fetch.
_MOST_AHEAD = 4
# The longest wait of a prefetched event. Then the worker returns the event, so that another worker
# can handle it if the handlers here have become slow.
_LONGEST_WAIT_SECONDS = 1.0


class Prefetched(NamedTuple):
    """A fetched event that waits until the worker can begin it.

    Attributes:
        attempt: the attempt, which has not begun.
        claim: the claim that the store has granted.
        asked_at: when the worker asked the store for events.
    """

    attempt: Attempt
    claim: Claimed
    asked_at: Instant


class Prefetch:
    """The prefetched events in due order, and the number of events to fetch next.

    A worker begins a fetch when it has no more prefetched events than leave their places during two
    fetches. So a worker whose handlers take long prefetches nothing, and leaves the events to other
    workers.

    Args:
        concurrency: how many events the worker handles at once.
        lease_seconds: how long the claims last.
    """

    def __init__(self, concurrency: int, lease_seconds: float) -> None:
        self._most = _MOST_AHEAD * concurrency
        self._longest_seconds = min(_LONGEST_WAIT_SECONDS, lease_seconds / 3)
        self._waiting: dict[DeliveryKey, Prefetched] = {}
        self._needed = 0

    def learn(self, left: int, seconds: float, fetch_seconds: float) -> None:
        """Adapt the number of events to fetch to the speed of the handlers and of the store.

        Args:
            left: how many attempts have left their places between the ends of the last two fetches.
            seconds: the time between the ends of the last two fetches.
            fetch_seconds: how long the last fetch took.
        """
        # Prefetch twice as many events as left their places during a fetch. While places are empty,
        # fewer events leave, so with just that number these places would stay empty.
        needed = round(2 * left * fetch_seconds / seconds) if seconds > 0 else 0
        self._needed = max(needed, (needed + self._needed) // 2)

    def wanted(self, free: int) -> int:
        """Return how many events to fetch now.

        Args:
            free: how many events may begin now.
        """
        waiting = len(self._waiting) - free
        if waiting > min(self._needed, self._most // 2):
            return 0  # enough for now; few large fetches cost less than many small fetches
        return max(0, min(2 * self._needed, self._most) - waiting)

    def add(self, event: Prefetched) -> None:
        """Add an event at the end; it replaces an older claim of the same event."""
        self._waiting.pop(event.claim.key, None)
        self._waiting[event.claim.key] = event

    def take(self, most: int) -> Iterator[Prefetched]:
        """Remove and return at most ``most`` events, in the order in which they became due."""
        while most > 0 and self._waiting:
            most -= 1
            yield self._waiting.pop(next(iter(self._waiting)))

    def take_all(self) -> list[Prefetched]:
        """Remove and return all events, in the order in which they became due."""
        return list(self.take(len(self._waiting)))

    def take_late(self, now: float) -> list[Prefetched]:
        """Remove and return the events that have waited too long to begin.

        If there are such events, the worker prefetches no more until the handlers are quick again.

        Args:
            now: the event loop's time.
        """
        late = [one for one in self._waiting.values() if self._late_at(one) <= now]
        for one in late:
            del self._waiting[one.claim.key]
        if late:
            self._needed = 0
        return late

    def late_in(self, now: float) -> float:
        """Return the seconds until an event has waited too long; inf if no event waits."""
        first = next(iter(self._waiting.values()), None)
        return inf if first is None else max(0.0, self._late_at(first) - now)

    def _late_at(self, event: Prefetched) -> float:
        return event.asked_at.loop + self._longest_seconds
