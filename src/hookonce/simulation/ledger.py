"""What a simulation knows of its handlers: every run, of which event, and how it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count

from ..errors import shows_half_built
from .faults import Fault


class RunOutcome(StrEnum):
    """How a run of a handler ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REJECTED = "rejected"
    RETRY_ASKED = "retry_asked"
    TOO_LATE = "too_late"
    """By the mark in a ledger a newer event has succeeded; the handler's own code has not run."""
    CANCELLED = "cancelled"
    """By a shutdown or a time limit."""


@dataclass(frozen=True, slots=True)
class HandlerRun:
    """One run of one handler for one event.

    Attributes:
        event_id: which event.
        handler: the handler's name.
        number: which run of this handler for this event, from 1 in the order they began.
        started_at: virtual Unix seconds.
        ended_at: virtual Unix seconds.
        outcome: how it ended.
        fault: what was injected, or None.
        failure_injected: whether it ended with an injected error.
        raised: what its own code has raised and at which line, or None.
        began: its place in the order in which all runs begin and end.
        ended: the same of its end.

    """

    event_id: str
    handler: str
    number: int
    started_at: float
    ended_at: float
    outcome: RunOutcome
    fault: Fault | None
    failure_injected: bool
    raised: str | None = None
    began: int = 0
    ended: int = 0


@shows_half_built
class Ledger:
    """Every run of every handler, in the order in which they ended."""

    def __init__(self) -> None:
        self._runs: list[HandlerRun] = []
        self._begun: Counter[tuple[str, str]] = Counter()
        self._places = count()

    def __repr__(self) -> str:
        return f"Ledger({len(self._runs)} runs)"

    def begin(self, event_id: str, handler: str) -> int:
        """Note that a run begins, and return its number."""
        self._begun[event_id, handler] += 1
        return self._begun[event_id, handler]

    def place(self) -> int:
        """Return the next place in the order in which runs begin and end; time may stand still."""
        return next(self._places)

    def record(self, run: HandlerRun) -> None:
        """Note how a run has ended."""
        self._runs.append(run)

    @property
    def runs(self) -> Sequence[HandlerRun]:
        """Every run that has ended."""
        return tuple(self._runs)

    @property
    def under_way(self) -> int:
        """How many runs have begun and not ended."""
        return self._begun.total() - len(self._runs)

    def successes(self) -> Mapping[tuple[str, str], int]:
        """Return how often each handler succeeded with each event: (event id, handler) to count.

        What never succeeded is not in it; as a ``Counter`` it answers 0 all the same.
        """
        return Counter(
            (run.event_id, run.handler) for run in self._runs if run.outcome is RunOutcome.SUCCEEDED
        )
