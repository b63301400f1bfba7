"""The additional records for ``reconcile``: ignored deliveries and accepted gaps.

An event of the sender's log is a gap if the store does not know it. There are two exceptions.
Deliveries of its type were ignored at that time, because no handler was registered for the type. Or
an operator has accepted the gap. If the store lacks both kinds of records, every unknown event is a
gap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

JOIN_SECONDS = 600
"""Ignored deliveries of a type that are at most this far apart count as one span.

This limits the spans of a type to 144 a day. But if a handler was registered for a shorter time
between two of these deliveries, the span hides this.
"""

MOST_SPANS = 5000
"""The largest number of spans per endpoint; the spans that ended first are forgotten. Without this
limit their number could grow without end, because the sender chooses the event types.
"""

MOST_TYPE_CHARACTERS = 128
"""The store does not remember event types that are longer than this."""


class Span(NamedTuple):
    """A span of time in which deliveries of an event type were ignored, in Unix seconds.

    Attributes:
        first_unix: when the first delivery came, rounded down.
        last_unix: when the last delivery came, rounded up.
    """

    first_unix: int
    last_unix: int


@runtime_checkable
class ReconcilingStore(Protocol):
    """A store that remembers ignored types and accepted gaps.

    These calls are optional: without them ``reconcile`` reports every unknown event as a gap, and
    gaps cannot be accepted. Every call may raise ``StoreError``.
    """

    async def note_ignored(self, endpoint: str, spans: Mapping[str, Sequence[Span]]) -> None:
        """Remember when deliveries of these types were ignored because no handler was registered.

        A span joins the spans of its type that are at most ``JOIN_SECONDS`` away. It is forgotten
        when the retention of done records has passed since its end, or when ``MOST_SPANS`` spans of
        the endpoint have ended later. The call may be repeated.
        """
        ...

    async def ignored(
        self, endpoint: str, event_types: Collection[str]
    ) -> dict[str, tuple[Span, ...]]:
        """Return when these types were ignored, oldest span first; omit types without spans."""
        ...

    async def accept(self, endpoint: str, event_ids: Sequence[str]) -> None:
        """Mark gaps as accepted; the store remembers them for as long as it remembers a done event.

        Claims ignore this: if the event is delivered later, it is handled as usual.
        """
        ...

    async def accepted(self, endpoint: str, event_ids: Sequence[str]) -> frozenset[str]:
        """Return the accepted gaps among these events."""
        ...


def joined(spans: Iterable[Span], new: Span) -> list[Span]:
    """Merge a new span into the spans of a type, and return them, oldest first.

    Args:
        spans: spans that are more than ``JOIN_SECONDS`` apart from each other.
        new: the new span, which is merged with the spans that are near it.
    """
    first, last = new
    apart = []
    for span in spans:
        if (
            span.first_unix <= new.last_unix + JOIN_SECONDS
            and span.last_unix >= new.first_unix - JOIN_SECONDS
        ):
            first, last = min(first, span.first_unix), max(last, span.last_unix)
        else:
            apart.append(span)
    return sorted([*apart, Span(first, last)])
