"""The ignored event types and the accepted gaps that ``reconcile`` reads from the file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import apsw

from ..reconciling import JOIN_SECONDS, MOST_SPANS, Span
from ..values import delivery_key
from .records import digest_of
from .shared import SharedFile

T = TypeVar("T")

# Claims wait while a transaction runs, so one transaction handles no more than this.
_MOST_AT_ONCE = 500

_NEAR = """
FROM ignored WHERE endpoint = :endpoint AND event_type = :event_type
    AND first <= :last + :apart AND last >= :first - :apart
"""
_JOIN = f"SELECT min(:first, min(first)), max(:last, max(last)) {_NEAR}"
_FORGET_NEAR = f"DELETE {_NEAR}"
_ADD = "INSERT INTO ignored VALUES (:endpoint, :event_type, :first, :last)"
_FORGET_OLD = "DELETE FROM ignored WHERE endpoint = ? AND last <= ?"
_FORGET_MOST = """
DELETE FROM ignored WHERE endpoint = ?1 AND last <= (
    SELECT last FROM ignored WHERE endpoint = ?1 ORDER BY last DESC LIMIT 1 OFFSET ?2
)
"""
_IGNORED = """
SELECT first, last FROM ignored WHERE endpoint = ? AND event_type = ? AND last > ? ORDER BY first
"""
_ACCEPT = "INSERT OR REPLACE INTO accepted VALUES (?, ?)"
_IS_ACCEPTED = "SELECT EXISTS (SELECT 1 FROM accepted WHERE key = ? AND expires > ?)"


class SQLiteReconciling(ABC):
    """The part of a SQLite store that implements ``ReconcilingStore``."""

    _file: SharedFile

    @abstractmethod
    def _run(self, step: Callable[[apsw.Connection], T], **allowed: bool) -> Awaitable[T]:
        """Run ``step`` in a transaction; the keyword arguments are those of ``Job``."""

    async def note_ignored(self, endpoint: str, spans: Mapping[str, Sequence[Span]]) -> None:
        """Remember when types were ignored; see ``ReconcilingStore.note_ignored``.

        A power cut may undo the last call. Then ``reconcile`` reports a false gap, but misses no
        gap.
        """
        rows = [(event_type, span) for event_type, ignored in spans.items() for span in ignored]

        def note(batch: Sequence[tuple[str, Span]], connection: apsw.Connection) -> None:
            for event_type, span in batch:
                own: dict[str, Any] = {"endpoint": endpoint, "event_type": event_type}
                given = {**own, "first": span.first_unix, "last": span.last_unix}
                near = {**given, "apart": JOIN_SECONDS}
                first, last = cast("tuple[Any, Any]", connection.execute(_JOIN, near).get)
                if first is not None:
                    connection.execute(_FORGET_NEAR, near)
                    given = {**own, "first": first, "last": last}
                connection.execute(_ADD, given)
            connection.execute(_FORGET_OLD, (endpoint, self._file.claims.remembered_since()))
            connection.execute(_FORGET_MOST, (endpoint, MOST_SPANS))

        for start in range(0, len(rows), _MOST_AT_ONCE):
            batch = rows[start : start + _MOST_AT_ONCE]
            await self._run(partial(note, batch), may_be_lost=True)

    async def ignored(
        self, endpoint: str, event_types: Collection[str]
    ) -> dict[str, tuple[Span, ...]]:
        def look(connection: apsw.Connection) -> dict[str, tuple[Span, ...]]:
            since, found = self._file.claims.remembered_since(), {}
            for event_type in event_types:
                rows: Any = connection.execute(_IGNORED, (endpoint, event_type, since)).fetchall()
                if rows:
                    found[event_type] = tuple(Span(*row) for row in rows)
            return found

        return await self._run(look)

    async def accept(self, endpoint: str, event_ids: Sequence[str]) -> None:
        def note(batch: Sequence[str], connection: apsw.Connection) -> None:
            expires = self._file.claims.expires()
            rows = [(digest_of(delivery_key(endpoint, event_id)), expires) for event_id in batch]
            connection.executemany(_ACCEPT, rows)

        for start in range(0, len(event_ids), _MOST_AT_ONCE):
            batch = event_ids[start : start + _MOST_AT_ONCE]
            await self._run(partial(note, batch))

    async def accepted(self, endpoint: str, event_ids: Sequence[str]) -> frozenset[str]:
        def look(batch: Sequence[str], connection: apsw.Connection) -> set[str]:
            now = self._file.claims.clock()
            return {
                event_id
                for event_id in batch
                if connection.execute(
                    _IS_ACCEPTED, (digest_of(delivery_key(endpoint, event_id)), now)
                ).get
            }

        found: set[str] = set()
        for start in range(0, len(event_ids), _MOST_AT_ONCE):
            batch = event_ids[start : start + _MOST_AT_ONCE]
            found |= await self._run(partial(look, batch))
        return frozenset(found)
