"""The report of a simulation: its counts, and the rules that the receiver broke."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from http import HTTPStatus
from typing import NamedTuple, TypeAlias

from ..emulator.records import CommentReply, DeliveryAttempt
from ..outcome import is_punished
from ..senders import Sender, publishing
from ..stores.values import DeadReason
from .calls import CallLog, CallOutcome, HandlerCall
from .journal import SimulationHistory
from .keyed_calls import KeyedCalls
from .scenario import Scenario

# Accept this much more skew, because webhook-timestamp has whole seconds.
_ROUNDING_SECONDS = 1.0


class Breach(StrEnum):
    """A rule that a receiver must not break."""

    LOST = "lost"
    """A handler has not succeeded with an event, and the event will not be retried: the sender has
    stopped, the event is not a dead letter, and no attempt is due in the inbox."""
    GIVEN_UP = "given_up"
    """An event became a dead letter: the receiver could not read it, or the handler's own code
    failed."""
    TWICE = "handled_twice"
    """A handler succeeded more than once with one event."""
    STALE = "stale_overwrite"
    """A handler with ``latest_by`` had succeeded with a newer event of a key, and was then called
    for an older event."""
    OVERLAP = "overlap"
    """Two calls of a handler with ``latest_by`` or ``serial_by`` overlapped for one key."""
    LATE = "answered_late"
    """The sender got no answer within the time that it waits."""
    FORGED = "accepted_forgery"
    """A changed, forged or outdated request got a 2xx, or ran a handler."""
    REPLIED_TWICE = "replied_twice"
    """Handlers answered one comment more than once over the service's API."""
    PUNISHED = "punished_answer"
    """An answer for which the sender can disable the endpoint: a redirect, a 410, or failures at
    all attempts of an event that was not lost."""
    WRONG_EFFECT = "wrong_effect"
    """The user's own check of the effects failed."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that the receiver broke with one event.

    Attributes:
        breach: the rule.
        event_id: the event.
        event_type: its type; ``unknown`` if the emulated service did not send the event.
        handler: the name of the handler, or None if the breach is not about a handler.
        story: a line for each request and each call of a handler for the event, in the order of
            time.
        other_event_id: another event that the breach is about, such as the event that was sent
            together with a forgery; or None.
    """

    breach: Breach
    event_id: str
    event_type: str
    handler: str | None
    story: tuple[str, ...]
    other_event_id: str | None = None


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """The result of a simulation.

    Attributes:
        seed: the seed of the events and faults; see ``simulate`` for what it repeats.
        events: the number of emitted events.
        requests: the number of requests, including forgeries and copies.
        disturbed: the number of requests that chaos disturbed.
        calls: the number of handler calls.
        injected: the number of handler calls with an injected fault.
        handled: the number of events with which every handler succeeded.
        stale: the number of events that a handler with ``latest_by`` skipped for a newer event, and
            with which every other handler succeeded.
        ignored: the number of events without a handler.
        dead_letters: the number of dead letters by reason.
        waiting: the number of events that still wait in the inbox for a later attempt. Their retry
            time lies after the end of the simulation.
        api_requests: the number of requests that handlers sent to the service's API.
        replies: the number of replies to comments among them that the service has accepted.
        restarts: the number of restarts of the receiver.
        hours: the duration in virtual time.
        findings: the violations; empty if there are none.
        scenario: the events, and the faults that occurred; ``replay`` runs it again.
    """

    seed: int
    events: int
    requests: int
    disturbed: int
    calls: int
    injected: int
    handled: int
    stale: int
    ignored: int
    dead_letters: Mapping[DeadReason, int]
    waiting: int
    api_requests: int
    replies: int
    restarts: int
    hours: float
    findings: tuple[Violation, ...]
    scenario: Scenario = field(compare=False, repr=False)

    @property
    def passed(self) -> bool:
        """Whether the receiver broke no rule."""
        return not self.findings

    def count(self, breach: Breach) -> int:
        """Return the number of violations of one rule."""
        return sum(finding.breach is breach for finding in self.findings)


@dataclass(frozen=True, slots=True)
class RecordedReport(SimulationReport):
    """A report with the history that explains it.

    Attributes:
        history: everything that happened.
        again: returns a context with a function that runs other scenarios of the same receiver.
    """

    history: SimulationHistory = field(compare=False, repr=False)
    again: Callable[[], AbstractContextManager[Run]] | None = field(compare=False, repr=False)


def recorded(report: SimulationReport) -> RecordedReport:
    """Return the report as the type that ``simulate`` returns, or raise TypeError."""
    if not isinstance(report, RecordedReport):
        raise TypeError("only a report that simulate or replay returned can be explained")
    return report


Run: TypeAlias = Callable[[Scenario], RecordedReport]
"""A function that runs a scenario."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """An emitted event, the names of its handlers, and the id of its comment, if it has one."""

    event_id: str
    event_type: str
    handlers: tuple[str, ...]
    comment_id: str | None = None


class Settled(NamedTuple):
    """The number of events that were handled, and the number that were stale."""

    handled: int
    stale: int


def settled(emitted: Sequence[Emitted], log: CallLog, keyed: KeyedCalls) -> Settled:
    """Count the handled events and the stale events."""
    successes = log.successes()
    handled = stale = 0
    for event in emitted:
        left = [name for name in event.handlers if not successes.get((event.event_id, name))]
        if event.handlers and not left:
            handled += 1
        elif event.handlers and all(keyed.is_superseded(event.event_id, name) for name in left):
            stale += 1
    return Settled(handled, stale)


def violations(
    emitted: Sequence[Emitted],
    attempts: Sequence[DeliveryAttempt],
    log: CallLog,
    dead_letters: Mapping[str, DeadReason],
    waiting: Collection[str] = (),
    *,
    keyed: KeyedCalls | None = None,
    replies: Sequence[CommentReply] = (),
    sender: Sender = publishing,
) -> tuple[Violation, ...]:
    """Return the rules that the receiver broke.

    Args:
        dead_letters: the reasons of the dead letters, by event id.
        waiting: the ids of events whose next attempt, by the inbox or the sender, is not due yet.
        replies: the replies to comments that the service has accepted.
        sender: whose tolerance and answer time count.
    """
    keyed = keyed or KeyedCalls({}, ())
    events_by_comment = {event.comment_id: event for event in emitted if event.comment_id}
    stories = _Stories(attempts, log.calls, replies, events_by_comment)
    successes = log.successes()
    never_accepted = _never_accepted(attempts) - {*waiting}
    failing = {
        (call.event_id, call.handler)
        for call in log.calls
        if call.outcome is CallOutcome.FAILED and not call.failure_injected
    }
    found = []
    for event in emitted:
        is_lost = False
        for handler in event.handlers:
            count = successes.get((event.event_id, handler), 0)
            if count > 1:
                found.append(stories.violation(Breach.TWICE, event, handler))
            elif keyed.is_superseded(event.event_id, handler):
                continue
            elif count == 0 and (reason := dead_letters.get(event.event_id)) is not None:
                has_failed = (event.event_id, handler) in failing
                if has_failed or reason is DeadReason.UNREADABLE:
                    found.append(stories.violation(Breach.GIVEN_UP, event, handler))
            elif count == 0 and event.event_id not in waiting:
                is_lost = True
                found.append(stories.violation(Breach.LOST, event, handler))
        if event.event_id in never_accepted and not is_lost:
            found.append(stories.violation(Breach.PUNISHED, event, None))
    counts = Counter(reply.comment_id for reply in replies)
    found += [
        stories.violation(Breach.REPLIED_TWICE, event, None)
        for comment_id, event in events_by_comment.items()
        if counts[comment_id] > 1
    ]
    known = {event.event_id: event for event in emitted}
    for call in log.calls:
        if call.event_id not in known:
            unknown = Emitted(call.event_id, "unknown", ())
            found.append(stories.violation(Breach.FORGED, unknown, call.handler))
    pairs = [(Breach.STALE, *pair) for pair in keyed.stale()]
    pairs += [(Breach.OVERLAP, *pair) for pair in keyed.overlapping()]
    found += [
        stories.violation(breach, known[call.event_id], call.handler, other=other)
        for breach, call, other in pairs
    ]
    delivered = {one.delivery_id: one.event_id for one in attempts if one.event_id in known}
    found += [
        replace(
            stories.violation(breach, Emitted(attempt.event_id, attempt.event_type, ()), None),
            other_event_id=delivered.get(attempt.delivery_id),
        )
        for attempt in attempts
        if (breach := breach_of(attempt, sender)) is not None
    ]
    return tuple(found)


def wrong_effects(complaint: str | None) -> tuple[Violation, ...]:
    """Return a violation with the complaint of the user's check; empty without a complaint."""
    if complaint is None:
        return ()
    return (Violation(Breach.WRONG_EFFECT, "", "", None, (complaint,)),)


def _never_accepted(attempts: Sequence[DeliveryAttempt]) -> set[str]:
    """Return the ids of events whose scheduled attempts never got a 2xx answer."""
    scheduled = [attempt for attempt in attempts if not attempt.is_extra]
    accepted = {attempt.event_id for attempt in scheduled if attempt.failure is None}
    return {attempt.event_id for attempt in scheduled} - accepted


def breach_of(attempt: DeliveryAttempt, sender: Sender) -> Breach | None:
    """Return the rule that the answer to one request breaks, or None."""
    status = attempt.status or 0
    is_accepted = HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES
    skew = abs(attempt.at_unix - attempt.timestamp)
    if is_accepted and (
        not attempt.is_genuine or skew > sender.tolerance_seconds + _ROUNDING_SECONDS
    ):
        return Breach.FORGED
    if is_punished(status):
        return Breach.PUNISHED
    if attempt.milliseconds >= sender.rules.patience_seconds * 1000:
        return Breach.LATE
    return None


class _Stories:
    """The history of each event as lines of text: its requests, handler calls and replies."""

    def __init__(
        self,
        attempts: Sequence[DeliveryAttempt],
        calls: Sequence[HandlerCall],
        replies: Sequence[CommentReply],
        events_by_comment: Mapping[str, Emitted],
    ) -> None:
        self._started_unix = attempts[0].at_unix if attempts else 0.0
        self._lines: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
        for attempt in attempts:
            line = f"delivery {attempt.number}: {_answer_text(attempt)}"
            self._lines[attempt.event_id].append((attempt.at_unix, line))
        for call in calls:
            line = f"{call.handler} call {call.number}: {_outcome_text(call)}"
            self._lines[call.event_id].append((call.started_unix, line))
        for reply in replies:
            if (event := events_by_comment.get(reply.comment_id)) is not None:
                line = f"the service accepted a reply to {reply.comment_id}"
                self._lines[event.event_id].append((reply.at_unix, line))

    def violation(
        self,
        breach: Breach,
        event: Emitted,
        handler: str | None,
        *,
        other: HandlerCall | None = None,
    ) -> Violation:
        lines = list(self._lines.get(event.event_id, ()))
        other_id = None if other is None else other.event_id
        if other is not None and other.event_id != event.event_id:
            text = f"call {other.number} for {other.event_id}, same key: {_outcome_text(other)}"
            lines.append((other.started_unix, f"{other.handler} {text}"))
        story = tuple(f"{at - self._started_unix:+.1f} s  {line}" for at, line in sorted(lines))
        return Violation(breach, event.event_id, event.event_type, handler, story, other_id)


def _answer_text(attempt: DeliveryAttempt) -> str:
    answer = (
        f"{attempt.status} {attempt.reason}".rstrip() if attempt.status else str(attempt.failure)
    )
    return f"{answer} ({attempt.disturbance})" if attempt.disturbance else answer


def _outcome_text(call: HandlerCall) -> str:
    text = f"{call.outcome} after {call.ended_unix - call.started_unix:.1f} s"
    if call.error is not None:
        text += f": {call.error}"
    return f"{text} (injected: {call.fault})" if call.fault else text
