"""The number and the size of the events in each inbox, for the limits of ``enqueue``.

Counting a large inbox is slow. So a process counts it rarely, and between two counts adds only its
own events. It misses the events that other processes store and that workers complete. So a large
inbox may exceed its limits by the events that other processes store in a few seconds, and a full
inbox may refuse events for a few seconds too long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

# An inbox with fewer events is counted before each batch, unless it is far from its limits.
_MANY = 1_000
_FAR_EVENTS, _FAR_BYTES = 10_000, 64 * 1024 * 1024
# Count at most once in a second, and for at most a twentieth of the time.
_LEAST_SECONDS, _MOST_SECONDS = 1.0, 10.0
_PATIENCE = 20


class InboxLimits(NamedTuple):
    """How much the inbox of an endpoint may hold; see ``Queue.enqueue``."""

    max_depth: int | None
    max_bytes: int | None

    def allow(self, depth: int, size: int) -> bool:
        """Return whether the limits allow ``depth`` events with ``size`` bytes of bodies."""
        return (self.max_depth is None or depth <= self.max_depth) and (
            self.max_bytes is None or size <= self.max_bytes
        )


@dataclass(slots=True)
class Room:
    """The number of events in an inbox, and the bytes of their bodies.

    Attributes:
        depth: the number of events.
        size: the bytes of their bodies.
        counted_at: the time of the event loop when the events were counted.
        seconds: how long the count took.
    """

    depth: int
    size: int
    counted_at: float = 0.0
    seconds: float = 0.0

    def add(self, size: int) -> None:
        """Count one more event, whose body has this size."""
        self.depth += 1
        self.size += size

    def must_be_counted(self, limits: InboxLimits) -> bool:
        """Return whether the next batch needs an exact count."""
        is_far = limits.allow(2 * self.depth + _FAR_EVENTS, 2 * self.size + _FAR_BYTES)
        return self.depth < _MANY and not is_far

    def is_fresh(self, now: float) -> bool:
        """Return whether the count is young enough for a batch that needs no exact count."""
        patience = min(max(_LEAST_SECONDS, _PATIENCE * self.seconds), _MOST_SECONDS)
        return now - self.counted_at < patience
