"""Filters for the lists of deliveries and stored events, read from a URL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from urllib.parse import urlencode

from ...stores.filters import EventFilter
from ...stores.handled import HandledEvent
from ...stores.values import DeadLetter, DeadReason, Entry
from ...watching.steps import EventState, What
from .redaction import Redaction
from .seen import AnswerKind, Seen

_MOST_LENGTH = 256
# Compare only this many characters of a header: a long pattern on a long header is slow.
_MOST_COMPARED = 512
FAILED = "failed"
"""The only value of the filter for handlers: it selects events with a failed handler."""

AGES = {"1h": 3600.0, "24h": 86_400.0, "7d": 7 * 86_400.0}
"""Choices for the age of stored events, in seconds."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of the list of deliveries; an empty filter matches every delivery.

    Attributes:
        handlers: ``failed`` for events of which any handler has failed, also if it succeeded later.
        type: part of the event's type, or a pattern with ``*``.
        id: part of the event's id, or a pattern with ``*``.
    """

    kind: str = ""
    state: str = ""
    handlers: str = ""
    type: str = ""
    id: str = ""

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Filters:
        """Return the filters in a query string; unknown values are ignored."""
        return cls(
            _one_of(AnswerKind, query.get("kind", "")),
            _one_of(EventState, query.get("state", "")),
            _one_of({FAILED}, query.get("handlers", "")),
            query.get("type", "").strip()[:_MOST_LENGTH],
            query.get("id", "").strip()[:_MOST_LENGTH],
        )

    @property
    def query(self) -> str:
        """Query string of the filters, with its question mark; empty without filters."""
        return _query(self)

    def match(self, seen: Seen) -> bool:
        if self.kind and seen.kind != self.kind:
            return False
        if self.state and (seen.history is None or seen.history.state != self.state):
            return False
        if self.handlers and not _has_failed(seen):
            return False
        return _fits(self.type, seen.event_type) and _fits(self.id, seen.event_id)


@dataclass(frozen=True, slots=True)
class StoredFilters:
    """Filters of the lists of dead letters, the inbox and handled events; empty filters match all.

    Attributes:
        reason: why the event was given up. The store filters by it.
        age: the longest time since the event was given up or handled, or since it arrived in the
            inbox, one of ``AGES``. The store filters by it.
        handler: part of a handler's name, or a pattern with ``*``. The handler has not succeeded;
            in the list of handled events it has.
        type: part of the event's type, or a pattern with ``*``.
        where: a condition on the body, as ``stores.filters.Condition`` reads it.
    """

    reason: str = ""
    age: str = ""
    handler: str = ""
    type: str = ""
    where: str = ""

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> StoredFilters:
        """Return the filters in a query string; unknown values are ignored."""
        return cls(
            _one_of(DeadReason, query.get("reason", "")),
            _one_of(AGES, query.get("age", "")),
            query.get("handler", "").strip()[:_MOST_LENGTH],
            query.get("type", "").strip()[:_MOST_LENGTH],
            query.get("where", "").strip()[:_MOST_LENGTH],
        )

    @property
    def query(self) -> str:
        """Query string of the filters, with its question mark; empty without filters."""
        return _query(self)

    def match(self, event: DeadLetter | Entry | HandledEvent) -> bool:
        """Return whether an event passes the filters for handler and type."""
        if self.type and not _fits(self.type, event.delivery.event_type):
            return False
        names = event.finished if isinstance(event, HandledEvent) else event.outstanding
        return not self.handler or any(_fits(self.handler, name) for name in names)

    def of_body(self, redaction: Redaction) -> EventFilter:
        """Return a filter that checks the bodies of events.

        Raises:
            ValueError: the condition cannot be read, or it names a hidden field: a visitor could
                find the hidden value by trying many values.
        """
        wanted = EventFilter(where=(self.where,) if self.where else ())
        for condition in wanted.conditions:
            names = condition.path
            if any(redaction.hides(names[: depth + 1]) for depth in range(len(names))):
                raise ValueError(f"the inspector hides the field {'.'.join(names)}")
        return wanted


def _query(filters: Filters | StoredFilters) -> str:
    pairs = ((field.name, getattr(filters, field.name)) for field in fields(filters))
    given = {name: value for name, value in pairs if value}
    return f"?{urlencode(given)}" if given else ""


def _one_of(known: Iterable[str], value: str) -> str:
    return value if value in {str(one) for one in known} else ""


def _has_failed(seen: Seen) -> bool:
    steps = seen.history.steps if seen.history else ()
    return any(step.what is What.FAILED for step in steps)


def _fits(wanted: str, text: str | None) -> bool:
    wanted, text = wanted.lower(), (text or "")[:_MOST_COMPARED].lower()
    return fnmatchcase(text, wanted) if "*" in wanted else wanted in text
