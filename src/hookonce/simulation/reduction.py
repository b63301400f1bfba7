"""Reduces a failing simulation to the fewest events and faults that still fail.

The algorithm is delta debugging (ddmin; Zeller and Hildebrandt, 2002): leave out a half of the
parts, then a quarter and so on, and keep each smaller scenario that breaks the same rule.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from secrets import token_hex
from typing import TypeAlias, TypeVar

from ..clock import span_seconds
from ..emulator.chaos import Disturbance, RequestFault
from .faults import HandlerFault
from .report import Breach, RecordedReport, Run, SimulationReport, Violation, recorded
from .scenario import PlannedEvent, PlannedFault, Restart, Scenario

P = TypeVar("P")

_Kind: TypeAlias = tuple[Breach, str | None]
"""The rule that a finding is about, and the handler."""

DEFAULT_SECONDS = 60.0

# Restart at this time: after the answer budget, and before the first retry.
_BEFORE_RETRIES_SECONDS = 15.0

# Try at most this many findings of one kind with their own events only, then try all events.
_TRIED_ALONE = 8

_COUNTED = frozenset({Disturbance.FLOOD, Disturbance.CONCURRENT_DUPLICATE})
"""The disturbances whose size is a number of requests."""


def reduced(
    report: SimulationReport,
    *,
    seconds: float | timedelta = DEFAULT_SECONDS,
    progress: Callable[[int, int, int], None] | None = None,
) -> SimulationReport:
    """Return the report of the smallest scenario that breaks the same rule.

    If the receiver broke several rules, the function tries the rule with the most findings first.
    It runs the same receiver many times, with fewer and fewer events and faults. Each run gives new
    ids to its events, so that a handler's own record of known events does not disturb the next run.
    If no other run breaks a rule, the report is returned as it is.

    Args:
        report: a report of ``simulate`` or ``replay``.
        seconds: the time limit, in seconds or as a ``timedelta``; after it, the smallest scenario
            so far is returned.
        progress: called after each run with the number of runs, and with the number of events and
            of faults in the smallest scenario so far.

    Raises:
        TypeError: the report is from another source, or ``seconds`` is no time span.
        ValueError: ``seconds`` is negative or not finite.
        RuntimeError: an event loop is running in this thread.
    """
    limit_seconds = span_seconds("seconds", seconds)
    first = recorded(report)
    if first.passed or first.again is None:
        return report
    with first.again() as run:
        reduction = _Reduction(run, first, time.monotonic() + limit_seconds, progress)
        with suppress(_OutOfTimeError):
            reduction.reduce()
        return reduction.best


class _OutOfTimeError(Exception):
    """Raised when the time limit has passed."""


class _Reduction:
    """The search for the smallest failing scenario.

    Attributes:
        best: the report of the smallest failing scenario so far.
    """

    def __init__(
        self,
        run: Run,
        report: RecordedReport,
        until: float,
        progress: Callable[[int, int, int], None] | None,
    ) -> None:
        self.best = report
        self._run = run
        self._finding = report.findings[0]
        self._until = until
        self._progress = progress
        self._runs = 0

    def reduce(self) -> None:
        """Remove events and faults while the scenario still fails, then simplify the scenario."""
        if not self._starts():
            return
        self._minimise()
        # A failure that depends on a restart in the middle of a burst may need other events of the
        # burst. If the scenario also fails with all restarts before the first retry, those events
        # are not needed.
        if self.best.scenario.restarts and self._fails(_restarting_later(self.best.scenario)):
            self._minimise()
        self._simplify()

    def _minimise(self) -> None:
        """Remove the events and faults that the failure does not need."""
        size = 0
        while size != (size := _size(self.best.scenario)):
            self._leave_out(_events, _without_events)
            self._leave_out(_faults, _without_faults)

    def _starts(self) -> bool:
        """Return whether a second run still fails, with the events of one finding or with all."""
        report = self.best
        tried: Counter[_Kind] = Counter()
        # Try the most frequent kind of finding first: it is most likely the bug, and the other
        # kinds are its consequences.
        counts = Counter(map(_kind, report.findings))
        findings = sorted(report.findings, key=lambda one: counts[_kind(one)], reverse=True)
        for self._finding in findings:
            kind = _kind(self._finding)
            if tried[kind] >= _TRIED_ALONE:
                continue
            tried[kind] += 1
            alone = report.scenario.only(_named(self._finding))
            calm = [fault for fault in alone.faults if not isinstance(fault, Restart)]
            if self._fails(replace(alone, faults=calm)) or self._fails(alone):
                return True
        self._finding = findings[0]
        return self._fails(report.scenario)

    def _leave_out(
        self,
        parts: Callable[[Scenario], Sequence[P]],
        without: Callable[[Scenario, Sequence[P]], Scenario],
    ) -> None:
        """Leave out as many of the parts as possible while the scenario still fails."""
        chunks = 1
        while left := parts(self.best.scenario):
            chunks = min(chunks, len(left))
            scenario = self.best.scenario
            if any(self._fails(without(scenario, chunk)) for chunk in _split(left, chunks)):
                chunks = max(1, chunks - 1)
            elif chunks == len(left):
                return
            else:
                chunks *= 2

    def _simplify(self) -> None:
        """Make the scenario easier to read: fewer fields, simpler times and sizes."""
        self._leave_out(_fields, _without_fields)
        scenario = self.best.scenario
        if any(event.at for event in scenario.events) and not self._fails(_all_at_once(scenario)):
            self._fails(_from_zero(scenario))
        for number in range(len(self.best.scenario.faults)):
            for simpler in _simpler(self.best.scenario, number):
                if self._fails(simpler):
                    break

    def _fails(self, scenario: Scenario) -> bool:
        """Run a scenario; if it breaks the same rule, keep its report as the best."""
        if not scenario.events:
            return False
        if time.monotonic() >= self._until:
            raise _OutOfTimeError
        self._runs += 1
        width, name = len(str(len(scenario.events))), token_hex(3)
        try:
            report = self._run(scenario.renamed(lambda number: f"{name}_{number:0{width}}"))
        except (TypeError, ValueError):  # the reduced data do not fit the event's type
            return False
        is_same = any(self._is_same(finding) for finding in report.findings)
        if is_same:
            self.best = replace(report, findings=tuple(sorted(report.findings, key=self._is_other)))
        if self._progress is not None:
            best = self.best.scenario
            self._progress(self._runs, len(best.events), len(best.faults))
        return is_same

    def _is_same(self, finding: Violation) -> bool:
        return _kind(finding) == _kind(self._finding)

    def _is_other(self, finding: Violation) -> bool:
        return not self._is_same(finding)


def _kind(finding: Violation) -> _Kind:
    return finding.breach, finding.handler


def _named(finding: Violation) -> set[str]:
    """Return the ids of the events that a finding is about."""
    return {finding.event_id, finding.other_event_id or ""}


def _size(scenario: Scenario) -> int:
    return len(scenario.events) + len(scenario.faults)


def _split(parts: Sequence[P], chunks: int) -> Iterator[Sequence[P]]:
    """Yield the parts in ``chunks`` chunks of about the same size."""
    for number in range(chunks):
        begin, end = (len(parts) * edge // chunks for edge in (number, number + 1))
        yield parts[begin:end]


def _events(scenario: Scenario) -> Sequence[str]:
    return [event.id for event in scenario.events]


def _without_events(scenario: Scenario, event_ids: Sequence[str]) -> Scenario:
    return scenario.only({event.id for event in scenario.events} - set(event_ids))


def _faults(scenario: Scenario) -> Sequence[PlannedFault]:
    return scenario.faults


def _without_faults(scenario: Scenario, faults: Sequence[PlannedFault]) -> Scenario:
    return replace(scenario, faults=tuple(one for one in scenario.faults if one not in faults))


def _fields(scenario: Scenario) -> Sequence[tuple[str, str]]:
    return [(event.id, name) for event in scenario.events for name in event.data]


def _without_fields(scenario: Scenario, fields: Sequence[tuple[str, str]]) -> Scenario:
    def shorter(event: PlannedEvent) -> PlannedEvent:
        kept = {name: value for name, value in event.data.items() if (event.id, name) not in fields}
        return replace(event, data=kept)

    return replace(scenario, events=tuple(map(shorter, scenario.events)))


def _all_at_once(scenario: Scenario) -> Scenario:
    """Return the scenario with all events at its start."""
    return replace(scenario, events=tuple(replace(one, at=0.0) for one in scenario.events))


def _restarting_later(scenario: Scenario) -> Scenario:
    """Return the scenario with all events at the start, and all restarts before the first retry."""
    faults = (
        Restart(_BEFORE_RETRIES_SECONDS) if isinstance(one, Restart) else one
        for one in scenario.faults
    )
    return replace(_all_at_once(scenario), faults=tuple(dict.fromkeys(faults)))


def _from_zero(scenario: Scenario) -> Scenario:
    """Return the scenario with its first event at the start."""
    first = min(event.at for event in scenario.events)

    def earlier(at: float) -> float:
        return round(max(0.0, at - first), 3)

    return replace(
        scenario,
        events=tuple(replace(one, at=earlier(one.at)) for one in scenario.events),
        faults=tuple(
            replace(one, at=earlier(one.at)) if isinstance(one, Restart) else one
            for one in scenario.faults
        ),
    )


def _simpler(scenario: Scenario, number: int) -> Iterator[Scenario]:
    """Yield copies of the scenario in which one fault has a simpler size, the simplest first."""
    if number >= len(scenario.faults):
        return
    fault = scenario.faults[number]
    for simple in _simpler_fault(fault):
        if simple != fault:
            before, after = scenario.faults[:number], scenario.faults[number + 1 :]
            yield replace(scenario, faults=(*before, simple, *after))


def _simpler_fault(fault: PlannedFault) -> Iterator[PlannedFault]:
    match fault:
        case RequestFault(kind=kind) if kind in _COUNTED:
            yield replace(fault, amount=1)
        case RequestFault(kind=Disturbance.RESET):
            return
        case RequestFault(amount=amount):
            yield replace(fault, amount=float(round(amount)))
        case HandlerFault(seconds=seconds):
            yield replace(fault, seconds=float(round(seconds)))
        case Restart(at):
            yield Restart(float(round(at)))
