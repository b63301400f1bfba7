"""What a store remembers for ``reconcile``, beside what became of each event.

Two things keep an event of the sender's log from being a gap: a delivery of its type was ignored at
that time, since no handler was registered for it; or a person has accepted the gap. Only what is
recorded here counts. A store that lacks it, or has lost it, excuses nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

JOIN_SECONDS = 600
"""Ignored deliveries of a type that are at most so far apart count as one span.

A handler that is there for a shorter time between two of them is not seen. The number bounds how
many spans of a type there can be: 144 a day.
"""

MOST_SPANS = 5000
"""How many spans are remembered for an endpoint; of more, those that ended first are forgotten.

Event types come from the sender, so nothing else bounds their number.
"""

MOST_TYPE_CHARACTERS = 128
"""A longer event type is not remembered."""


class Span(NamedTuple):
    """A time in which deliveries of an event type were ignored, in Unix seconds.

    Attributes:
        first: when the first of them came, rounded down.
        last: when the last of them came, rounded up.

    """

    first: int
    last: int


@runtime_checkable
class ReconcilingStore(Protocol):
    """A store that remembers which types were ignored, and which gaps were accepted.

    It is optional: with a store that lacks these calls, ``reconcile`` excuses nothing, and gaps
    cannot be accepted. Every call may raise ``StoreError``.
    """

    async def note_ignored(self, endpoint: str, spans: Mapping[str, Sequence[Span]]) -> None:
        """Remember when deliveries of these types were ignored for want of a handler.

        A span joins those of its type that are at most ``JOIN_SECONDS`` away. It is forgotten when
        the retention of done records has passed since its end, or when there are more than
        ``MOST_SPANS`` of the endpoint that ended later. The call may be repeated.
        """
        ...

    async def ignored(
        self, endpoint: str, event_types: Collection[str]
    ) -> dict[str, tuple[Span, ...]]:
        """Return when deliveries of these types were ignored, oldest first; others are left out."""
        ...

    async def accept(self, endpoint: str, event_ids: Sequence[str]) -> None:
        """Remember gaps as accepted, for the retention of done records.

        Claims do not look at it: an event that is delivered later is handled like any other.
        """
        ...

    async def accepted(self, endpoint: str, event_ids: Sequence[str]) -> frozenset[str]:
        """Return which of these events are accepted gaps."""
        ...


def joined(spans: Iterable[Span], new: Span) -> list[Span]:
    """Return the spans of a type with one more, oldest first.

    Args:
        spans: more than ``JOIN_SECONDS`` apart from each other.
        new: joins those that are near.

    """
    first, last = new
    apart = []
    for span in spans:
        if span.first <= new.last + JOIN_SECONDS and span.last >= new.first - JOIN_SECONDS:
            first, last = min(first, span.first), max(last, span.last)
        else:
            apart.append(span)
    return sorted([*apart, Span(first, last)])
