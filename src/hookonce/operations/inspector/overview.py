"""What stands above the lists: how the receiver is, how much waits, and the charts."""

from __future__ import annotations

from dataclasses import dataclass

from ...clock import uptime
from ...errors import StoreError
from ...logs import get_logger
from ...stores.values import StoreStats
from .charts import Chart, charts_of
from .journal import Journal
from .watched import Watched

_log = get_logger("hookonce.inspector")

# However many pages are open, the store is asked this often.
_FRESH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Overview:
    """How things are.

    Attributes:
        stats: how much the store holds; None where it cannot say.
        problems: why the receiver cannot take deliveries.
        warnings: what an operator should mend.
        charts: the last five minutes.

    """

    stats: StoreStats | None
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    charts: tuple[Chart, ...]


class Overviews:
    """Looks at a receiver, at most once a second, and only while somebody wants to know.

    Args:
        receiver: which.
        journal: whose counts are drawn; what the inbox holds is noted there.
        has_inbox: whether it has an inbox.

    """

    def __init__(self, receiver: Watched, journal: Journal, *, has_inbox: bool) -> None:
        self._receiver = receiver
        self._journal = journal
        self._has_inbox = has_inbox
        self._last: Overview | None = None
        self._fresh_until = 0.0

    async def now(self) -> Overview:
        """Return how things are, or were less than a second ago."""
        if self._last is None or uptime() >= self._fresh_until:
            self._fresh_until = uptime() + _FRESH_SECONDS
            self._last = await self._look()
        return self._last

    def forget(self) -> None:
        """Look anew the next time: something was changed here."""
        self._last = None

    async def _look(self) -> Overview:
        stats = None
        series = self._journal.series
        try:
            stats = await self._receiver.stats()
        except StoreError as error:
            _log.warning("the inspector cannot look into the store: %s", error)
        else:
            series.note_inbox(stats.depth, stats.oldest_age)
        readiness = await self._receiver.check()
        charts = charts_of(series.seconds(), has_inbox=self._has_inbox)
        return Overview(stats, readiness.problems, readiness.warnings, charts)
