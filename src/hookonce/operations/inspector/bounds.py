"""How much the inspector may hold, and how many may look at it."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much of what happens is kept in memory, and for how many viewers.

    Forged deliveries have a place of their own: a flood of them pushes out no genuine one. Bytes
    are those of bodies, headers and tracebacks; the objects around them come on top.

    Attributes:
        deliveries: how many genuine deliveries, and other requests that were read.
        deliveries_bytes: what they may add up to.
        each_second: how many genuine deliveries of a second are kept with all that happened to
            them. Of what comes beyond it, only what failed is kept; everything is counted.
        refused: how many refused ones.
        refused_bytes: what those may add up to.
        histories_bytes: what the tracebacks of failed handlers may add up to.
        viewers: how many pages may be live at once.
        stream_seconds: after this a live page connects anew. A server that shuts down gracefully
            waits so long at the most for a page that is open.
        actions: how many replays and other actions may be under way at once.

    """

    deliveries: int = 500
    deliveries_bytes: int = 16 * 1024**2
    each_second: int = 50
    refused: int = 200
    refused_bytes: int = 2 * 1024**2
    histories_bytes: int = 8 * 1024**2
    viewers: int = 8
    stream_seconds: float = 10.0
    actions: int = 4

    def __post_init__(self) -> None:
        for bound in fields(self):
            value = getattr(self, bound.name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{bound.name} must be a finite number above 0, not {value!r}")
