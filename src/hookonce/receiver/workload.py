"""The work of this process for a receiver, and the reports of other workers."""

from __future__ import annotations

import asyncio

from ..clock import uptime
from ..delivery.attempts import Attempts
from ..stores.activity import ActivityStore
from ..stores.protocols import Store
from ..stores.time_limit import within
from ..watching.process import process_name
from ..watching.workers import MOST_RUNNING, WorkerReport, read_report


class Workload:
    """Reports the work of this process for a receiver.

    Args:
        endpoint: the name of the receiver's endpoint.
        attempts: the attempts in flight.
        concurrency: how many events of the inbox the worker handles at once; None if handlers run
            inside requests.
    """

    def __init__(self, endpoint: str, attempts: Attempts, concurrency: int | None) -> None:
        self._endpoint = endpoint
        self._attempts = attempts
        self._concurrency = concurrency
        self._users = 0
        self._since = 0.0

    def begin(self) -> None:
        """Count this process as a worker until ``end`` has been called as often as ``begin``."""
        if self._users == 0:
            self._since = uptime()
        self._users += 1

    def end(self) -> None:
        """Undo one call of ``begin``."""
        self._users -= 1

    def report(self) -> WorkerReport | None:
        """Return the report of this process; None if it is not a worker."""
        if self._users == 0:
            return None
        running = self._attempts.running()
        tally, now = self._attempts.tally, asyncio.get_running_loop().time()
        return WorkerReport(
            endpoint=self._endpoint,
            process=process_name(),
            uptime_seconds=uptime() - self._since,
            concurrency=self._concurrency,
            running=tuple(running[:MOST_RUNNING]),
            running_count=len(running),
            last_minute=tally.last_minute(now),
            last_five_minutes=tally.last_five_minutes(now),
        )

    async def workers(self, store: Store, store_seconds: float) -> list[WorkerReport]:
        """Return the report of this process and the reports of other workers.

        Raises:
            StoreError: the store did not answer within ``store_seconds``.
        """
        own = self.report()
        found = [] if own is None else [own]
        if isinstance(store, ActivityStore):
            for reported in await within(store_seconds, store.workers(endpoint=self._endpoint)):
                report = read_report(reported)
                if report is not None and (own is None or own.process != report.process):
                    found.append(report)
        return sorted(found, key=lambda one: one.process)
