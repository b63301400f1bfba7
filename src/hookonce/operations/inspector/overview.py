"""The overview at the top of the pages: readiness, counts and charts."""

from __future__ import annotations

from dataclasses import dataclass

from ...clock import uptime
from ...errors import StoreError
from ...logs import get_logger
from ...receiver import Receiver
from ...stores.values import StoreStats
from .charts import Chart, charts_of
from .journal import Journal

_log = get_logger("hookonce.inspector")

# The shortest time between two reads of the store. It does not depend on the number of open pages.
_FRESH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Overview:
    """State of a receiver.

    Attributes:
        stats: what the store holds; None if it does not answer.
        problems: why the receiver is not ready.
        charts: the last five minutes.
    """

    stats: StoreStats | None
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    charts: tuple[Chart, ...]


class Overviews:
    """Asks a receiver for its state, at most once a second.

    Args:
        journal: the counts for the charts; the size of the inbox is added to them.
    """

    def __init__(self, receiver: Receiver, journal: Journal) -> None:
        self._receiver = receiver
        self._journal = journal
        self._last: Overview | None = None
        self._fresh_until = 0.0

    async def now(self) -> Overview:
        """Return the current state, at most a second old."""
        if self._last is None or uptime() >= self._fresh_until:
            self._fresh_until = uptime() + _FRESH_SECONDS
            self._last = await self._look()
        return self._last

    def forget(self) -> None:
        """Forget the last state, because an action has changed the store."""
        self._last = None

    async def _look(self) -> Overview:
        stats = None
        series = self._journal.series
        try:
            stats = await self._receiver.stats()
        except StoreError as error:
            _log.warning("the inspector cannot read the store's counts: %s", error)
        else:
            series.note_inbox(stats.depth, stats.oldest_age_seconds)
        readiness = await self._receiver.check()
        charts = charts_of(series.seconds(), has_inbox=self._receiver.has_inbox)
        return Overview(stats, readiness.problems, readiness.warnings, charts)
