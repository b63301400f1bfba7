"""What handlers with ``latest_by`` or ``serial_by`` must not do: come too late, or meet.

Runs are compared by the order in which they began and ended, since virtual time stands still.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..routing.keyed import Keyed
from ..stores.key_locks import is_stale
from ..stores.values import Watermark
from .ledger import HandlerRun, RunOutcome


@dataclass(frozen=True, slots=True)
class Turn:
    """An event's place among those that one handler takes one after the other.

    Attributes:
        key: what the handler's key function has named.
        mark: how new the event is.
        keyed: how the handler takes turns.

    """

    key: str
    watermark: Watermark
    keyed: Keyed

    def is_late_after(self, other: Turn) -> bool:
        """Return whether the event comes too late once the other one has succeeded."""
        return self.keyed.is_latest and is_stale(
            self.watermark, other.watermark, drop_ties=self.keyed.drop_ties
        )


class Turns:
    """The runs of handlers that take turns.

    Args:
        turns: by event id and handler, of every event that was emitted and has a key there.
        runs: every run of every handler.

    """

    def __init__(self, turns: Mapping[tuple[str, str], Turn], runs: Sequence[HandlerRun]) -> None:
        self._turns = turns
        self._too_late = {
            (run.event_id, run.handler) for run in runs if run.outcome is RunOutcome.TOO_LATE
        }
        self._runs: defaultdict[tuple[str, str], list[HandlerRun]] = defaultdict(list)
        for run in sorted(runs, key=lambda run: run.began):
            turn = turns.get((run.event_id, run.handler))
            if turn is not None:
                self._runs[run.handler, turn.key].append(run)

    def left_out(self, event_id: str, handler: str) -> bool:
        """Return whether a handler need not succeed with an event: it has with a newer one."""
        if (event_id, handler) in self._too_late:
            return True
        turn = self._turns.get((event_id, handler))
        return turn is not None and any(
            run.outcome is RunOutcome.SUCCEEDED and turn.is_late_after(self._of(run))
            for run in self._runs[handler, turn.key]
        )

    def stale(self) -> Iterator[tuple[HandlerRun, HandlerRun]]:
        """Yield each run that began after a newer event had succeeded, with that one's run."""
        for runs in self._runs.values():
            newest: HandlerRun | None = None
            succeeded = [run for run in runs if run.outcome is RunOutcome.SUCCEEDED]
            succeeded.sort(key=lambda run: run.ended, reverse=True)
            for run in runs:
                while succeeded and succeeded[-1].ended < run.began:
                    other = succeeded.pop()
                    if newest is None or self._of(newest).watermark < self._of(other).watermark:
                        newest = other
                # What has succeeded with the same event is told as handled twice.
                if newest is None or newest.event_id == run.event_id:
                    continue
                if self._of(run).is_late_after(self._of(newest)):
                    yield run, newest

    def overlapping(self) -> Iterator[tuple[HandlerRun, HandlerRun]]:
        """Yield each run that began while another one of its key was under way, with that one."""
        for runs in self._runs.values():
            longest = runs[0]
            for run in runs[1:]:
                if run.began < longest.ended:
                    yield run, longest
                longest = max(longest, run, key=lambda run: run.ended)

    def _of(self, run: HandlerRun) -> Turn:
        return self._turns[run.event_id, run.handler]
