"""A request as the inspector keeps it, and the history of its event."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import attrgetter

from ...outcome import Outcome, Reason
from ...verification.header_names import WEBHOOK
from ...verification.headers import DeliveryHints, RawHeaders, header_pairs
from ...verification.signature import VerifiedDelivery
from ...watching.records import DeliveryAnswered, DeliveryReceived
from ...watching.steps import EventState, EventStep

# Keep at most this many steps of an event. Three handlers with twelve attempts, the inbox's
# default, make fewer steps.
_MOST_STEPS = 100


class AnswerKind(StrEnum):
    """Kind of an answer, for filters, colours and charts."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    DEAD = "dead"
    RETRY = "retry"
    REFUSED = "refused"


_KINDS: dict[str, AnswerKind] = {
    Reason.DUPLICATE: AnswerKind.DUPLICATE,
    Reason.QUARANTINED: AnswerKind.DEAD,
    Reason.REJECTED: AnswerKind.DEAD,
    Reason.EXHAUSTED: AnswerKind.DEAD,
    Reason.ALREADY_DEAD: AnswerKind.DEAD,
}


def kind_of(outcome: Outcome) -> AnswerKind:
    status = outcome.status
    if status < 400:
        return _KINDS.get(outcome.reason, AnswerKind.ACCEPTED)
    return AnswerKind.REFUSED if status < 500 else AnswerKind.RETRY


@dataclass(slots=True, eq=False)
class History:
    """The steps of one event, in this process and in others.

    Attributes:
        steps: the newest steps, oldest first.
        version: the journal's version at the last change.
        is_cut: whether older steps were dropped.
        stored_state: the state that the store reported, until the next step.
    """

    steps: list[EventStep] = field(default_factory=list)
    version: int = 0
    is_cut: bool = False
    stored_state: EventState = EventState.UNCHANGED

    def copy(self) -> History:
        """Return a copy for another thread."""
        return replace(self, steps=list(self.steps))

    @property
    def state(self) -> EventState:
        """The event's state: from the store's report, or else from the latest step."""
        states = (
            step.state for step in reversed(self.steps) if step.state is not EventState.UNCHANGED
        )
        return self.stored_state or next(states, EventState.UNCHANGED)

    def add(self, step: EventStep) -> int:
        """Add a step, and return how many bytes the history has grown by.

        Steps of other processes arrive late, so each step is inserted by its time.
        """
        steps = self.steps
        insort(steps, step, key=attrgetter("at"))
        self.stored_state = EventState.UNCHANGED
        if len(steps) <= _MOST_STEPS:
            return len(step.note)
        self.is_cut = True
        return len(step.note) - len(steps.pop(0).note)


@dataclass(slots=True, eq=False)
class Seen:
    """One request, genuine or not.

    Attributes:
        number: counts the requests of this process, from 1.
        at: Unix seconds of its arrival, or of its answer if the receiver did not read it.
        received: the request; None if it was not read, or is too large to be kept.
        verified: the result of the verification; None if the request is not genuine.
        hints: unsigned headers of a genuine request.
        answered: the answer; None while the request is in flight.
        history: the steps of its event; None if the request is not genuine.
        process: the process that answered it; empty for this one.
        version: the journal's version at the last change.
    """

    number: int
    at: float
    received: DeliveryReceived | None = None
    verified: VerifiedDelivery | None = None
    hints: DeliveryHints | None = None
    answered: DeliveryAnswered | None = None
    history: History | None = None
    process: str = ""
    version: int = 0

    def copy(self) -> Seen:
        """Return a copy for another thread."""
        return replace(self, history=self.history and self.history.copy())

    @property
    def changed(self) -> int:
        """The version of the journal when the request or its event last changed."""
        return max(self.version, self.history.version if self.history else 0)

    @property
    def kind(self) -> AnswerKind | None:
        """The kind of the answer; None while the request is in flight."""
        return None if self.answered is None else kind_of(self.answered.outcome)

    @property
    def event_id(self) -> str | None:
        """The id of the event; anybody may have invented it if the request is not genuine."""
        if self.verified is not None:
            return self.verified.id
        if self.answered is not None and self.answered.event_id is not None:
            return self.answered.event_id
        if self.received is None:
            return None
        headers, sender = header_texts(self.received.headers), self.received.sender
        names = {f"{prefix}-id" for prefix in (WEBHOOK if sender is None else sender.headers)}
        return next((value for name, value in headers if name.lower() in names), None)

    @property
    def event_type(self) -> str | None:
        """The type of the event, from the body if the request is genuine, else from a header."""
        if self.answered is not None and self.answered.event_type is not None:
            return self.answered.event_type
        return self.sender_hints.event_type

    @property
    def sender_hints(self) -> DeliveryHints:
        """The sender's unsigned headers; empty if they were not kept."""
        if self.hints is not None:
            return self.hints
        if self.received is None:
            return DeliveryHints(None, None)
        return DeliveryHints.parse(self.received.headers, self.received.sender)


def header_texts(headers: RawHeaders) -> Iterator[tuple[str, str]]:
    """Yield the names and values of headers as text."""
    for name, value in header_pairs(headers):
        yield _text(name), _text(value)


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
