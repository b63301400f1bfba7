"""A simulation as a timeline: a line for each action of each participant, in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..emulator.chaos import Disturbance, RequestFault
from ..emulator.records import DeliveryAttempt
from ..outcome import is_punished
from .calls import CallOutcome, HandlerCall
from .faults import Fault
from .journal import ReceivedRequest, SimulationHistory
from .report import (
    Breach,
    RecordedReport,
    SimulationReport,
    Violation,
    breach_of,
    recorded,
)

# A timeline of more events than this shows only the events of the first finding.
_MOST_EVENTS = 5
_MOST_LINES = 60

_MINUTE, _HOUR = 60.0, 3600.0

_BROKEN = {
    Breach.LOST: "{handler} has not succeeded, and nobody will try again",
    Breach.GIVEN_UP: "the event is a dead letter, and {handler} has not succeeded",
    Breach.TWICE: "{handler} succeeded more than once",
    Breach.STALE: "{handler} ran after it had succeeded with a newer event of the same key",
    Breach.OVERLAP: "{handler} ran for two events of one key at the same time",
    Breach.LATE: "the sender got no answer in time",
    Breach.FORGED: "a changed, forged or outdated request was accepted",
    Breach.REPLIED_TWICE: "one comment was answered more than once",
    Breach.PUNISHED: "the sender can disable the endpoint for this",
    Breach.WRONG_EFFECT: "the effects are wrong",
}

_OUTCOMES = {
    CallOutcome.SUCCEEDED: "succeeds",
    CallOutcome.FAILED: "fails",
    CallOutcome.REJECTED: "rejects the event",
    CallOutcome.RETRY_REQUESTED: "asks for a retry",
    CallOutcome.TOO_LATE: "is skipped for a newer event",
    CallOutcome.CANCELLED: "is cancelled",
}

_INJECTED = {
    Fault.FAILS_BEFORE: "before its own code",
    Fault.FAILS_AFTER: "after its own code: the effect exists",
    Fault.FAILS_LATE: "before its own code",
    Fault.ASKS_RETRY: "before its own code",
    Fault.SLOW: "",
}


def timeline(report: SimulationReport) -> str:
    """Return the first finding of a report as a timeline, or a line that reports no finding.

    The lines say what the sender, the network, the handlers and the receiver did, in order, with
    the time since the first event, and where the receiver broke the rule.

    Args:
        report: a report of ``simulate``, ``replay`` or ``reduced``.

    Raises:
        TypeError: the report is from another source.
    """
    shown = recorded(report)
    if shown.passed:
        return f"the receiver broke no rule in {report.events} events"
    return "\n".join(_Timeline(shown, shown.findings[0]).lines())


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of a timeline; rows with the same time are sorted by their order."""

    at_unix: float
    order: float
    who: str
    event_id: str
    text: str


class _Timeline:
    def __init__(self, report: RecordedReport, finding: Violation) -> None:
        self._history: SimulationHistory = report.history
        self._finding = finding
        known = [one.event_id for one in report.history.emissions]
        named = {one for one in (finding.event_id, finding.other_event_id) if one}
        self._ids = set(known) | named if len(known) <= _MOST_EVENTS or not named else named
        self._labels = {
            event_id: f"event {number}"
            for number, event_id in enumerate((one for one in known if one in self._ids), 1)
        }
        self._faults = {
            (fault.event_id, fault.attempt): fault
            for fault in report.scenario.faults
            if isinstance(fault, RequestFault)
        }

        self._accepted_forgeries: list[float] = []

    def lines(self) -> Iterator[str]:
        """Yield the title and the aligned rows."""
        finding = self._finding
        what = f"{finding.event_type} {finding.event_id}".strip() or finding.story[0]
        yield f"{finding.breach}: {what}"
        rows = sorted(self._rows(), key=lambda row: (row.at_unix, row.order))
        rows = self._with_break(rows)
        shown = rows if len(rows) <= _MOST_LINES else [*rows[: _MOST_LINES - 10], *rows[-10:]]
        began = rows[0].at_unix if rows else 0.0
        times = [f"+{_span(row.at_unix - began)}" for row in shown]
        labels = [self._labels.get(row.event_id, "") for row in shown]
        is_one = len(self._labels) <= 1
        columns = [times, [row.who for row in shown], *([] if is_one else [labels])]
        widths = [max(map(len, column), default=0) for column in columns]
        for number, row in enumerate(shown):
            if len(rows) > len(shown) and number == _MOST_LINES - 10:
                yield f"  … {len(rows) - len(shown)} more lines"
            cells = [times[number].rjust(widths[0])]
            cells += [
                column[number].ljust(width)
                for column, width in zip(columns[1:], widths[1:], strict=True)
            ]
            yield f"  {'  '.join((*cells, row.text))}".rstrip()

    def _rows(self) -> Iterator[_Row]:
        for one in self._history.emissions:
            if one.event_id in self._ids:
                text = f"emits {one.event_type} {one.event_id}"
                yield _Row(one.moment.at_unix, one.moment.order, "sender", one.event_id, text)
        for moment in self._history.restarts:
            yield _Row(moment.at_unix, moment.order, "receiver", "", "has restarted")
        for call in self._history.calls:
            if call.event_id in self._ids:
                yield from self._call_rows(call)
        yield from self._request_rows()
        yield from self._reply_rows()

    def _call_rows(self, call: HandlerCall) -> Iterator[_Row]:
        name, seconds = f"{call.handler} call {call.number}", call.ended_unix - call.started_unix
        is_instant = call.end_order == call.start_order + 1 and not seconds
        if not is_instant:
            begins = f"{name} begins"
            if call.fault is Fault.SLOW:
                begins += ", slowed down (injected)"
            yield _Row(call.started_unix, call.start_order, "handler", call.event_id, begins)
        text = f"{name} {_OUTCOMES[call.outcome]}"
        if seconds:
            text += f" after {_span(seconds)}"
        if call.fault is not None and call.failure_injected:
            text += f" {_INJECTED[call.fault]} (injected)"
        if call.error is not None:
            text += f": {call.error}"
        yield _Row(call.ended_unix, call.end_order, "handler", call.event_id, text)

    def _request_rows(self) -> Iterator[_Row]:
        """Yield rows for each request: its sender, its disturbance and its answer."""
        known: defaultdict[tuple[str, float], list[DeliveryAttempt]] = defaultdict(list)
        for attempt in sorted(self._history.attempts, key=lambda one: one.is_extra):
            known[attempt.event_id, attempt.at_unix].append(attempt)
        for request in self._history.requests:
            if request.event_id not in self._ids:
                continue
            sent = known[request.event_id, request.arrived.at_unix]
            yield from self._rows_of(request, sent.pop(0) if sent else None)

    def _rows_of(self, request: ReceivedRequest, attempt: DeliveryAttempt | None) -> Iterator[_Row]:
        arrived, event_id, sender = request.arrived, request.event_id, self._history.sender
        number = request.attempt if attempt is None else attempt.number
        fault = self._faults.get((event_id, number))
        who, text = _request_text(number, attempt)
        yield _Row(arrived.at_unix, arrived.order, who, event_id, text)
        is_scheduled = attempt is not None and not attempt.is_extra
        if fault is not None and is_scheduled and (what := _disturbed(fault)):
            side, note = what
            yield _Row(arrived.at_unix, arrived.order + 0.1, side, event_id, note)
        if request.answered is not None:
            if attempt is not None and breach_of(attempt, sender) is Breach.FORGED:
                self._accepted_forgeries.append(request.answered.order)
            answer = f"answers {request.status} {request.reason}".rstrip()
            answered = request.answered
            yield _Row(answered.at_unix, answered.order, "receiver", event_id, answer)
        if attempt is not None and attempt.status is None:
            ended_unix = attempt.at_unix + attempt.milliseconds / 1000
            order = arrived.order + 0.2 if request.answered is None else request.answered.order
            missed = f"gets no answer: {attempt.failure}"
            yield _Row(ended_unix, order + 0.2, "sender", event_id, missed)

    def _reply_rows(self) -> Iterator[_Row]:
        for reply in self._history.replies:
            calls = [
                call
                for call in self._history.calls
                if call.event_id in self._ids
                and call.started_unix <= reply.at_unix <= call.ended_unix
            ]
            if not calls:
                continue
            number = sum(
                other.comment_id == reply.comment_id and other.at_unix < reply.at_unix
                for other in self._history.replies
            )
            call = calls[min(number, len(calls) - 1)]
            text = f"a handler answers {reply.comment_id} over the API"
            yield _Row(reply.at_unix, call.start_order + 0.5, "service", call.event_id, text)

    def _with_break(self, rows: Sequence[_Row]) -> list[_Row]:
        """Return the rows, with a row where the receiver broke the rule."""
        if not rows:
            return list(rows)
        finding = self._finding
        text = _BROKEN[finding.breach].format(handler=finding.handler or "the handler")
        place = self._place_of_break(rows)
        row = rows[place]
        broken = _Row(row.at_unix, row.order, "BROKEN", finding.event_id, text)
        return [*rows[: place + 1], broken, *rows[place + 1 :]]

    def _place_of_break(self, rows: Sequence[_Row]) -> int:
        finding, last = self._finding, len(rows) - 1
        own = [call for call in self._history.calls if self._is_own(call)]
        orders: Sequence[float] = []
        match finding.breach:
            case Breach.TWICE:
                succeeded = [one for one in own if one.outcome is CallOutcome.SUCCEEDED]
                orders = [one.end_order for one in succeeded[1:2]]
            case Breach.STALE | Breach.OVERLAP:
                orders = [one.end_order for one in own[-1:]]
            case Breach.FORGED:
                orders = self._accepted_forgeries[:1]
            case Breach.PUNISHED:
                orders = [
                    request.answered.order
                    for request in self._history.requests
                    if request.answered is not None and is_punished(request.status or 0)
                ][:1]
        places = [number for number, row in enumerate(rows) if row.order in orders]
        return places[-1] if places else last

    def _is_own(self, call: HandlerCall) -> bool:
        return (call.event_id, call.handler) == (self._finding.event_id, self._finding.handler)


def _request_text(number: int, attempt: DeliveryAttempt | None) -> tuple[str, str]:
    """Return the sender of a request, and a description of the request.

    Args:
        number: the number of the attempt.
    """
    if attempt is None or not attempt.is_extra:
        return "sender", f"delivers, attempt {number}"
    if not attempt.is_genuine:
        return "network", "an attacker sends a forged request"
    if attempt.disturbance is Disturbance.REPLAY:
        return "network", f"an attacker sends attempt {number} again"
    return "network", f"delivers a copy of attempt {number}"


def _disturbed(fault: RequestFault) -> tuple[str, str] | None:
    """Return who disturbs an attempt, and a text about the fault; None if other lines show it."""
    match fault.kind:
        case Disturbance.DELAY | Disturbance.REORDERING:
            return "network", f"delayed it by {_span(fault.amount)}"
        case Disturbance.SLOW_CONNECTION:
            return "network", f"takes {_span(fault.amount)} for the body"
        case Disturbance.TAMPERING:
            return "network", "changes the body"
        case Disturbance.CLOCK_SKEW:
            side = "ahead" if fault.amount > 0 else "behind"
            return "sender", f"signs with a clock that is {_span(abs(fault.amount))} {side}"
        case Disturbance.ROTATION:
            return "sender", "rotates the secret"
        case Disturbance.RESET:
            where = "in the middle of the body" if fault.amount < 1 else "before the answer"
            return "network", f"breaks the connection {where}"
        case Disturbance.LOST_ANSWER:
            return "network", "loses the answer"
    return None


def _span(seconds: float) -> str:
    """Return a span of time in the unit that fits, such as ``33.0 s`` or ``2 h 05 min``."""
    if seconds < 2 * _MINUTE:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if seconds < 2 * _HOUR:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min"
