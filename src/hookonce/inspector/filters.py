"""Which deliveries a page shows, as its URL says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from .journal import Seen
from .reading import claimed_id, event_type_of
from .series import Kind

__all__ = ["Filters"]

_MOST_LENGTH = 256


@dataclass(frozen=True, slots=True)
class Filters:
    """What a delivery must be like to be shown; an empty text asks for nothing.

    Attributes:
        kind: what it was answered.
        type: a part of the event's type.
        id: a part of the event's id.

    """

    kind: str = ""
    type: str = ""
    id: str = ""

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Filters:
        """Return the filters of a query string; what asks for nothing known is left out."""
        kind = query.get("kind", "")
        return cls(
            kind if kind in set(Kind) else "",
            query.get("type", "").strip()[:_MOST_LENGTH],
            query.get("id", "").strip()[:_MOST_LENGTH],
        )

    @property
    def query(self) -> str:
        """The query string that stands for them, with its question mark; empty without any."""
        given = {
            name: value
            for name, value in (("kind", self.kind), ("type", self.type), ("id", self.id))
            if value
        }
        return f"?{urlencode(given)}" if given else ""

    def match(self, seen: Seen) -> bool:
        """Return whether a delivery is to be shown."""
        if self.kind and seen.kind != self.kind:
            return False
        if self.type and self.type.lower() not in (event_type_of(seen) or "").lower():
            return False
        return not self.id or self.id.lower() in (claimed_id(seen) or "").lower()
