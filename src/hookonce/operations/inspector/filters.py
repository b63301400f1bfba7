"""Filters for the lists of deliveries and dead letters, read from a URL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from urllib.parse import urlencode

from ...stores.values import DeadLetter, DeadReason
from ...watching.steps import EventState, What
from .seen import AnswerKind, Seen

_MOST_LENGTH = 256
# Compare only the start of a header: a long pattern on a long header is slow.
_MOST_COMPARED = 512
FAILED = "failed"
"""The only value of the filter for handlers: events of which a handler has failed."""

AGES = {"1h": 3600.0, "24h": 86_400.0, "7d": 7 * 86_400.0}
"""Choices for the age of dead letters, in seconds."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of the list of deliveries; an empty text matches all.

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
class DeadLetterFilters:
    """Filters of the list of dead letters; an empty text matches all.

    Attributes:
        reason: why the event was given up. The store filters by it.
        age: how long ago that was at most, one of ``AGES``. The store filters by it.
        handler: part of the name of a handler that has not succeeded, or a pattern with ``*``.
        type: part of the event's type, or a pattern with ``*``.
    """

    reason: str = ""
    age: str = ""
    handler: str = ""
    type: str = ""

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> DeadLetterFilters:
        """Return the filters in a query string; unknown values are ignored."""
        return cls(
            _one_of(DeadReason, query.get("reason", "")),
            _one_of(AGES, query.get("age", "")),
            query.get("handler", "").strip()[:_MOST_LENGTH],
            query.get("type", "").strip()[:_MOST_LENGTH],
        )

    @property
    def query(self) -> str:
        """Query string of the filters, with its question mark; empty without filters."""
        return _query(self)

    def match(self, letter: DeadLetter) -> bool:
        """Return whether a dead letter passes the filters for handler and type."""
        if self.type and not _fits(self.type, letter.delivery.event_type):
            return False
        return not self.handler or any(_fits(self.handler, name) for name in letter.outstanding)


def _query(filters: Filters | DeadLetterFilters) -> str:
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
