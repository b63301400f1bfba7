"""Finds stale calls of handlers with ``latest_by``, and overlapping calls with one key.

The checks compare calls by the order of their starts and ends, because many calls start and end at
the same virtual time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..routing.keyed import Keyed
from ..stores.key_locks import is_stale
from ..stores.values import Watermark
from .calls import CallOutcome, HandlerCall


@dataclass(frozen=True, slots=True)
class EventKey:
    """The key that a handler's ``latest_by`` or ``serial_by`` gives to an event.

    Attributes:
        watermark: the event's creation time and id, which decide which event is newer.
        keyed: the handler's key function and options.
    """

    key: str
    watermark: Watermark
    keyed: Keyed

    def is_stale_after(self, other: EventKey) -> bool:
        """Return whether the event is stale if the other event has succeeded."""
        return self.keyed.is_latest and is_stale(
            self.watermark, other.watermark, drop_ties=self.keyed.drop_ties
        )


class KeyedCalls:
    """The calls of handlers with ``latest_by`` or ``serial_by``.

    Args:
        keys: the keys of emitted events, by event id and handler name.
    """

    def __init__(
        self, keys: Mapping[tuple[str, str], EventKey], calls: Sequence[HandlerCall]
    ) -> None:
        self._keys = keys
        self._too_late = {
            (call.event_id, call.handler) for call in calls if call.outcome is CallOutcome.TOO_LATE
        }
        self._calls: defaultdict[tuple[str, str], list[HandlerCall]] = defaultdict(list)
        for call in sorted(calls, key=lambda call: call.start_order):
            key = keys.get((call.event_id, call.handler))
            if key is not None:
                self._calls[call.handler, key.key].append(call)

    def is_superseded(self, event_id: str, handler: str) -> bool:
        """Return whether a handler may skip an event because a newer event has succeeded."""
        if (event_id, handler) in self._too_late:
            return True
        key = self._keys.get((event_id, handler))
        return key is not None and any(
            call.outcome is CallOutcome.SUCCEEDED and key.is_stale_after(self._key_of(call))
            for call in self._calls[handler, key.key]
        )

    def stale(self) -> Iterator[tuple[HandlerCall, HandlerCall]]:
        """Yield each stale call, and the earlier success with a newer event."""
        for calls in self._calls.values():
            newest: HandlerCall | None = None
            succeeded = [call for call in calls if call.outcome is CallOutcome.SUCCEEDED]
            succeeded.sort(key=lambda call: call.end_order, reverse=True)
            for call in calls:
                while succeeded and succeeded[-1].end_order < call.start_order:
                    other = succeeded.pop()
                    if (
                        newest is None
                        or self._key_of(newest).watermark < self._key_of(other).watermark
                    ):
                        newest = other
                # If the newest success is of the same event, this call is a second success:
                # Breach.TWICE, not STALE.
                if newest is None or newest.event_id == call.event_id:
                    continue
                if self._key_of(call).is_stale_after(self._key_of(newest)):
                    yield call, newest

    def overlapping(self) -> Iterator[tuple[HandlerCall, HandlerCall]]:
        """Yield each pair of overlapping calls with one key; the later call is first."""
        for calls in self._calls.values():
            longest = calls[0]
            for call in calls[1:]:
                if call.start_order < longest.end_order:
                    yield call, longest
                longest = max(longest, call, key=lambda call: call.end_order)

    def _key_of(self, call: HandlerCall) -> EventKey:
        return self._keys[call.event_id, call.handler]
