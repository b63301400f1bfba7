"""The work of a worker: its running handlers, its attempts of the last five minutes, its report."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from ..stores.activity import ReportedWorker
from ..stores.protocols import WORKER_SECONDS

REPORT_SECONDS = WORKER_SECONDS / 3
"""How often a worker reports while no operator watches."""

MOST_RUNNING = 20
"""How many running handlers a report names."""

_MOST_TEXT = 512

# `Tally` stores its totals once in each period of this length, for the last five minutes.
_SLOT_SECONDS = 10
_SLOTS = 30
_MINUTE_SECONDS = 60


class RunningHandler(NamedTuple):
    """A handler that is running.

    Attributes:
        handler: the handler's name.
        event_id: the id of the event.
        event_type: the type of the event.
        attempt: the number of the attempt, from 1.
        seconds: how long it had run when the worker reported; None for a sync handler that waits
            for a thread.
    """

    handler: str
    event_id: str
    event_type: str | None
    attempt: int
    seconds: float | None


class AttemptCounts(NamedTuple):
    """Numbers of attempts that have ended.

    Attributes:
        handled: all handlers had succeeded.
        failed: a handler had failed.
    """

    handled: int
    failed: int


class Tally:
    """Counts the attempts that have ended, in total and in the last five minutes."""

    def __init__(self) -> None:
        self.handled = self.failed = 0
        # An entry for each period: the period's number, and the totals when they were last stored.
        self._slots: deque[tuple[int, int, int]] = deque(maxlen=_SLOTS + 1)

    def sample(self, now: float) -> None:
        """Store the current totals; ``now`` is the event loop's time."""
        slots, number = self._slots, int(now // _SLOT_SECONDS)
        if slots and slots[-1][0] == number:
            slots.pop()
        slots.append((number, self.handled, self.failed))

    def last_minute(self, now: float) -> AttemptCounts:
        """Return the counts of the last minute, with an error of up to ten seconds."""
        return self._since(now - _MINUTE_SECONDS)

    def last_five_minutes(self, now: float) -> AttemptCounts:
        """Return the counts of the last five minutes, with an error of up to ten seconds."""
        return self._since(now - _SLOTS * _SLOT_SECONDS)

    def _since(self, start: float) -> AttemptCounts:
        handled = failed = 0
        for number, *totals in self._slots:
            if number <= start // _SLOT_SECONDS:
                handled, failed = totals
        return AttemptCounts(self.handled - handled, self.failed - failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """The last report of a process that handles events of an endpoint.

    Attributes:
        endpoint: the name of the endpoint.
        process: the name of the process, as the log shows it.
        age_seconds: how long ago it reported; a worker reports every ten seconds or more often.
        uptime_seconds: how long it had worked when it reported.
        concurrency: how many events of the inbox it handles at once; None if it has no inbox, and
            handles events inside requests.
        running: the handlers that were running, the longest first; at most 20.
        running_count: the number of all running handlers.
        last_minute: its attempts in the last minute.
        last_five_minutes: its attempts in the last five minutes.
    """

    endpoint: str
    process: str
    age_seconds: float = 0.0
    uptime_seconds: float
    concurrency: int | None
    running: tuple[RunningHandler, ...]
    running_count: int
    last_minute: AttemptCounts
    last_five_minutes: AttemptCounts

    @property
    def is_silent(self) -> bool:
        """Whether reports are missing: the process was killed, or its event loop is blocked."""
        return self.age_seconds > 1.5 * REPORT_SECONDS

    def dump(self) -> bytes:
        """Return the report as text for the store, without the fields that the store adds."""
        running = [
            (handler[:_MOST_TEXT], event_id[:_MOST_TEXT], (event_type or "")[:_MOST_TEXT], *rest)
            for handler, event_id, event_type, *rest in self.running
        ]
        content = {
            "uptime": self.uptime_seconds,
            "concurrency": self.concurrency,
            "running": running,
            "count": self.running_count,
            "minute": self.last_minute,
            "minutes": self.last_five_minutes,
        }
        return json.dumps(content, separators=(",", ":")).encode()


def read_report(reported: ReportedWorker) -> WorkerReport | None:
    """Parse a report from the store; None for a report by an unknown version."""
    try:
        content = json.loads(reported.report)
        return WorkerReport(
            endpoint=reported.endpoint,
            process=reported.worker,
            age_seconds=reported.age_seconds,
            uptime_seconds=float(content["uptime"]),
            concurrency=content["concurrency"],
            running=tuple(
                RunningHandler(handler, event_id, event_type or None, attempt, seconds)
                for handler, event_id, event_type, attempt, seconds in content["running"]
            ),
            running_count=int(content["count"]),
            last_minute=AttemptCounts(*content["minute"]),
            last_five_minutes=AttemptCounts(*content["minutes"]),
        )
    except (ValueError, TypeError, LookupError):
        return None
