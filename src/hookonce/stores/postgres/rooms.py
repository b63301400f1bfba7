"""The number and the size of the events in each inbox, for the limits of ``enqueue``.

To count a million events takes a large part of a second. So a process counts a large inbox rarely:
it adds its own events to its last count. This leaves out what other processes have stored since,
and what workers have completed. So a large inbox may exceed its limits by what arrives elsewhere in
a few seconds, and a full one may refuse events for a few seconds longer.
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
