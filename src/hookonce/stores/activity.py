"""Reports for operators about the work of the processes that share a store.

Lines about each event are published only while an operator watches. Each worker also replaces its
own report every few seconds. No promise depends on lines or reports. Their number is limited: the
oldest are dropped first, and a store may lose some.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

WATCHED_SECONDS = 10.0
"""Processes report their work for this long after an operator's last look."""

MOST_LINES = 2000
"""The largest number of lines that are kept per endpoint."""


MOST_REPORTS = 1000
"""The largest number of reports of workers that are kept."""


class ReportedWorker(NamedTuple):
    """The last report of a worker.

    Attributes:
        endpoint: the endpoint whose events it handles.
        worker: the name of its process.
        age_seconds: how long ago it reported.
        report: the report.
    """

    endpoint: str
    worker: str
    age_seconds: float
    report: bytes


class Activity(NamedTuple):
    """The activity lines of an endpoint after a cursor, and the next cursor.

    Attributes:
        place: the cursor for the next call.
        lines: the lines between the two cursors, oldest first; the store may have dropped some.
    """

    place: int
    lines: tuple[bytes, ...]


@runtime_checkable
class ActivityStore(Protocol):
    """A store with an activity feed for the processes that share it."""

    async def publish(self, endpoint: str, lines: Sequence[bytes]) -> bool:
        """Add activity lines of an endpoint; return whether an operator watches the endpoint.

        If no operator watches, the store drops the lines. Without lines the call only asks whether
        an operator watches.
        """
        ...

    async def follow(self, endpoint: str, place: int | None) -> Activity:
        """Return the lines after the cursor ``place``, and remember that an operator is watching.

        Args:
            endpoint: the name of the receiving endpoint.
            place: the cursor that the last call returned. With None, the call starts with the lines
                that are added from now on. A cursor after the last line has the same effect: it
                shows that the file or server was emptied.
        """
        ...

    async def report_worker(self, endpoint: str, worker: str, report: bytes | None) -> None:
        """Replace the report of a worker at an endpoint; None removes it.

        A report is forgotten after ``WORKER_SECONDS``, because its worker has most likely ended.
        """
        ...

    async def workers(self, *, endpoint: str | None = None) -> list[ReportedWorker]:
        """Return the last report of each worker at one endpoint, or at all endpoints, unordered."""
        ...
