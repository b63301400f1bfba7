"""What a simulation found, judged by what was emitted, answered, run and kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import NamedTuple

from ..emulator.records import DeliveryAttempt
from ..outcome import is_punished
from ..sender import ANSWER_SECONDS, TOLERANCE_SECONDS
from ..stores.values import DeadReason
from .ledger import HandlerRun, Ledger, RunOutcome
from .turns import Turns

_ROUNDING_SECONDS = 1.0  # what a second that is cut off may add


class Breach(StrEnum):
    """What a receiver must never do."""

    LOST = "lost"
    """An event is over for the sender, a handler has not succeeded, and nobody has it any more:
    it is no dead letter, nor does it wait in the inbox for an attempt that is still to come."""
    GIVEN_UP = "given_up"
    """It is a dead letter: the event could not be read, or the handler failed by itself."""
    TWICE = "handled_twice"
    """A handler succeeded more than once with one event."""
    STALE = "stale_overwrite"
    """A handler with ``latest_by`` ran for an event after it had succeeded with a newer one of the
    same key."""
    OVERLAP = "overlap"
    """Two runs of a handler with ``latest_by`` or ``serial_by`` were under way with one key."""
    LATE = "answered_late"
    """The sender had no answer within ten seconds."""
    FORGED = "accepted_forgery"
    """A request that was changed, forged or too old was answered 2xx, or handled."""
    PUNISHED = "punished_answer"
    """A redirect; a 410, which disables the endpoint; or nothing but failures until the sender gave
    up, although nothing is lost: that disables it in the end."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that went wrong with one event.

    Attributes:
        breach: what.
        event_id: with which event.
        event_type: its type.
        handler: with which handler, if it was one.
        story: what happened to the event, a line for each request and each run, in order.

    """

    breach: Breach
    event_id: str
    event_type: str
    handler: str | None
    story: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What a simulation came to.

    Attributes:
        seed: the same seed brings the same events and faults again, but not always the same number
            of requests: that depends on when a file or a server answers, too.
        events: how many were emitted.
        requests: how many requests were made, forged ones and copies among them.
        disturbed: how many of them chaos has done something to.
        runs: how often a handler ran.
        injected: how many of these runs were made to fail.
        handled: the events with which every handler has succeeded.
        stale: the events that a handler with ``latest_by`` was left out for, since it had succeeded
            with a newer one; every other handler has succeeded with them.
        ignored: the events that no handler is for.
        dead_letters: how many events are dead letters, by why.
        waiting: how many events wait in the inbox for an attempt that comes later than a simulation
            takes: the wait was asked for, or the back-off is that long.
        restarts: how often the receiver was stopped and started.
        hours: how long it took in virtual time.
        findings: what went wrong.

    """

    seed: int
    events: int
    requests: int
    disturbed: int
    runs: int
    injected: int
    handled: int
    stale: int
    ignored: int
    dead_letters: Mapping[DeadReason, int]
    waiting: int
    restarts: int
    hours: float
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing went wrong."""
        return not self.findings

    def count(self, breach: Breach) -> int:
        """Return how often this went wrong."""
        return sum(finding.breach is breach for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Emitted:
    """An event that was emitted, and the names of the handlers it is for."""

    event_id: str
    event_type: str
    handlers: tuple[str, ...]


class Settled(NamedTuple):
    """How many events every handler has succeeded with, and how many came too late for some."""

    handled: int
    stale: int


def settled(emitted: Sequence[Emitted], ledger: Ledger, turns: Turns) -> Settled:
    """Count the events that no handler has to see any more; see ``Report``."""
    successes = ledger.successes()
    handled = stale = 0
    for event in emitted:
        left = [name for name in event.handlers if not successes.get((event.event_id, name))]
        if event.handlers and not left:
            handled += 1
        elif event.handlers and all(turns.left_out(event.event_id, name) for name in left):
            stale += 1
    return Settled(handled, stale)


def judged(
    emitted: Sequence[Emitted],
    attempts: Sequence[DeliveryAttempt],
    ledger: Ledger,
    letters: Mapping[str, DeadReason],
    waiting: Collection[str] = (),
    *,
    turns: Turns | None = None,
) -> tuple[Finding, ...]:
    """Return what went wrong.

    Args:
        emitted: every event.
        attempts: every request.
        ledger: every run of a handler.
        letters: why which events are dead letters, by their ids.
        waiting: the ids of the events whose next attempt in an inbox lies ahead.
        turns: the runs of handlers that take turns, if there are any.

    """
    turns = turns or Turns({}, ())
    stories = _Stories(attempts, ledger.runs)
    successes = ledger.successes()
    never_accepted = _never_accepted(attempts)
    failing = {
        (run.event_id, run.handler)
        for run in ledger.runs
        if run.outcome is RunOutcome.FAILED and not run.failure_injected
    }
    findings = []
    for event in emitted:
        is_lost = False
        for handler in event.handlers:
            count = successes.get((event.event_id, handler), 0)
            if count > 1:
                findings.append(stories.finding(Breach.TWICE, event, handler))
            elif turns.left_out(event.event_id, handler):
                continue
            elif count == 0 and (reason := letters.get(event.event_id)) is not None:
                by_itself = (event.event_id, handler) in failing
                if by_itself or reason is DeadReason.UNREADABLE:
                    findings.append(stories.finding(Breach.GIVEN_UP, event, handler))
            elif count == 0 and event.event_id not in waiting:
                is_lost = True
                findings.append(stories.finding(Breach.LOST, event, handler))
        if event.event_id in never_accepted and not is_lost:
            findings.append(stories.finding(Breach.PUNISHED, event, None))
    known = {event.event_id: event for event in emitted}
    for run in ledger.runs:
        if run.event_id not in known:
            stranger = Emitted(run.event_id, "unknown", ())
            findings.append(stories.finding(Breach.FORGED, stranger, run.handler))
    pairs = [(Breach.STALE, *pair) for pair in turns.stale()]
    pairs += [(Breach.OVERLAP, *pair) for pair in turns.overlapping()]
    findings += [
        stories.finding(breach, known[run.event_id], run.handler, beside=other)
        for breach, run, other in pairs
    ]
    findings += [
        stories.finding(breach, Emitted(attempt.event_id, attempt.event_type, ()), None)
        for attempt in attempts
        if (breach := _breach_of(attempt)) is not None
    ]
    return tuple(findings)


def _never_accepted(attempts: Sequence[DeliveryAttempt]) -> set[str]:
    """Return the events none of whose scheduled attempts was answered 2xx."""
    scheduled = [attempt for attempt in attempts if not attempt.is_extra]
    accepted = {attempt.event_id for attempt in scheduled if attempt.failure is None}
    return {attempt.event_id for attempt in scheduled} - accepted


def _breach_of(attempt: DeliveryAttempt) -> Breach | None:
    status = attempt.status or 0
    is_accepted = HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES
    off = abs(attempt.at - attempt.timestamp)
    if is_accepted and (not attempt.is_genuine or off > TOLERANCE_SECONDS + _ROUNDING_SECONDS):
        return Breach.FORGED
    if is_punished(status):
        return Breach.PUNISHED
    if attempt.milliseconds >= ANSWER_SECONDS * 1000:
        return Breach.LATE
    return None


class _Stories:
    """Tells what happened to an event."""

    def __init__(self, attempts: Sequence[DeliveryAttempt], runs: Sequence[HandlerRun]) -> None:
        self._begin = attempts[0].at if attempts else 0.0
        self._lines: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
        for attempt in attempts:
            line = f"delivery {attempt.number}: {_said(attempt)}"
            self._lines[attempt.event_id].append((attempt.at, line))
        for run in runs:
            line = f"{run.handler} run {run.number}: {_done(run)}"
            self._lines[run.event_id].append((run.started_at, line))

    def finding(
        self,
        breach: Breach,
        event: Emitted,
        handler: str | None,
        *,
        beside: HandlerRun | None = None,
    ) -> Finding:
        lines = list(self._lines.get(event.event_id, ()))
        if beside is not None and beside.event_id != event.event_id:
            told = f"run {beside.number} for {beside.event_id}, of the same key: {_done(beside)}"
            lines.append((beside.started_at, f"{beside.handler} {told}"))
        story = tuple(f"{moment - self._begin:+.1f} s  {line}" for moment, line in sorted(lines))
        return Finding(breach, event.event_id, event.event_type, handler, story)


def _said(attempt: DeliveryAttempt) -> str:
    answer = f"{attempt.status} {attempt.reason}" if attempt.status else str(attempt.failure)
    return f"{answer} ({attempt.disturbance})" if attempt.disturbance else answer


def _done(run: HandlerRun) -> str:
    seconds = run.ended_at - run.started_at
    how = f"{run.outcome} after {seconds:.1f} s"
    if run.raised is not None:
        how += f": {run.raised}"
    return f"{how} (injected: {run.fault})" if run.fault else how
