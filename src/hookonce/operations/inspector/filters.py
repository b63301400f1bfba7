"""Which deliveries and dead letters a page shows, as its URL says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from urllib.parse import urlencode

from ...stores.values import DeadLetter, DeadReason
from ...watching.steps import State, What
from .journal import Seen
from .reading import claimed_id, event_type_of
from .series import Kind

_MOST_LENGTH = 256
# A forged header may be long, and the cost of a pattern is its length times that of the text.
_MOST_COMPARED = 512
FAILED = "failed"
"""The one word that the filter of handlers knows."""

AGES = {"1h": 3600.0, "24h": 86_400.0, "7d": 7 * 86_400.0}
"""How long ago a dead letter was buried at the most, in seconds."""


@dataclass(frozen=True, slots=True)
class Filters:
    """What a delivery must be like to be shown; an empty text asks for nothing.

    Attributes:
        kind: what it was answered.
        state: what has become of its event.
        handlers: ``failed`` where a handler has failed, whatever became of the event later.
        type: a part of the event's type, or a pattern with ``*``.
        id: a part of the event's id, or a pattern with ``*``.

    """

    kind: str = ""
    state: str = ""
    handlers: str = ""
    type: str = ""
    id: str = ""

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Filters:
        """Return the filters of a query string; what asks for nothing known is left out."""
        return cls(
            _one_of(Kind, query.get("kind", "")),
            _one_of(State, query.get("state", "")),
            _one_of({FAILED}, query.get("handlers", "")),
            query.get("type", "").strip()[:_MOST_LENGTH],
            query.get("id", "").strip()[:_MOST_LENGTH],
        )

    @property
    def query(self) -> str:
        """The query string that stands for them, with its question mark; empty without any."""
        return _query(self)

    def match(self, seen: Seen) -> bool:
        """Return whether a delivery is to be shown."""
        if self.kind and seen.kind != self.kind:
            return False
        if self.state and (seen.history is None or seen.history.state != self.state):
            return False
        if self.handlers and not _has_failed(seen):
            return False
        return _fits(self.type, event_type_of(seen)) and _fits(self.id, claimed_id(seen))


@dataclass(frozen=True, slots=True)
class DeadLetterFilters:
    """What a dead letter must be like to be shown; an empty text asks for nothing.

    Attributes:
        reason: why it was buried.
        age: how long ago at the most, one of ``AGES``.
        handler: a part of the name of a handler that has not succeeded, or a pattern with ``*``.
        type: the event's type.

    """

    reason: str = ""
    age: str = ""
    handler: str = ""
    type: str = ""

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> DeadLetterFilters:
        """Return the filters of a query string; what asks for nothing known is left out."""
        return cls(
            _one_of(DeadReason, query.get("reason", "")),
            _one_of(AGES, query.get("age", "")),
            query.get("handler", "").strip()[:_MOST_LENGTH],
            query.get("type", "").strip()[:_MOST_LENGTH],
        )

    @property
    def query(self) -> str:
        """The query string that stands for them, as for deliveries."""
        return _query(self)

    def match(self, letter: DeadLetter) -> bool:
        """Return whether a dead letter of that reason and age is to be shown."""
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
