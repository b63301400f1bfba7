"""Values for the templates of dead letters, inbox events and handled events."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...events import EventParser
from ...inbox.replay_id import ReplayId
from ...stores.handled import HandledEvent
from ...stores.values import DeadLetter, Entry, FailedAttempt
from .bodies import ShownBody, shown_body
from .models import Model, model_of
from .redaction import Redaction
from .redactor import WITHHELD, Redactor
from .seen import History
from .texts import cut
from .views import StepView, redacted, steps_of

_MOST_LISTED = 500
_MOST_SCANNED = 4000
# The largest body that is read to redact one line of a list.
_MOST_READ_FOR_A_LINE = 64 * 1024


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """A dead letter in the list.

    Attributes:
        type: the event's type; None if the body was unreadable.
        buried_unix: Unix seconds; for a kept event the moment at which it becomes a dead letter.
        is_kept: whether the event is only kept, since the sender may deliver it again.
        finished: handlers that have succeeded.
        outstanding: handlers that have failed or not run.
    """

    id: str
    type: str | None
    reason: str
    error: str
    attempts: int
    received_unix: float
    buried_unix: float
    is_kept: bool
    finished: tuple[str, ...]
    outstanding: tuple[str, ...]


def dead_letter_row(letter: DeadLetter, body: bytes | None, redaction: Redaction) -> DeadLetterRow:
    """Return a dead letter for the list, without the hidden values of its body."""
    return _row(letter, _line(letter.error, body, redaction))


def _row(letter: DeadLetter, error: str) -> DeadLetterRow:
    return DeadLetterRow(
        id=letter.delivery.event_id,
        type=letter.delivery.event_type,
        reason=letter.reason,
        error=error,
        attempts=letter.attempts,
        received_unix=letter.delivery.received_unix,
        buried_unix=letter.buried_unix,
        is_kept=letter.is_kept,
        finished=tuple(sorted(letter.finished)),
        outstanding=tuple(sorted(letter.outstanding)),
    )


def _line(error: str, body: bytes | None, redaction: Redaction) -> str:
    """Return a redacted error for a list, given the body that the error may quote."""
    if not error:
        return ""
    if body is None or len(body) > _MOST_READ_FOR_A_LINE:
        return WITHHELD
    redactor = Redactor(redaction)
    shown_body(body, redactor)
    return cut(redacted([cut(error, _MOST_SCANNED)], redactor)[0], _MOST_LISTED)


@dataclass(frozen=True, slots=True)
class DeadLetterView:
    """A dead letter on its own page.

    Attributes:
        history: its failed attempts, oldest first.
    """

    row: DeadLetterRow
    history: tuple[FailedAttempt, ...]
    body: ShownBody
    model: Model
    steps: tuple[StepView, ...]


def dead_letter_view(
    letter: DeadLetter, history: History | None, parser: EventParser, redaction: Redaction
) -> DeadLetterView:
    """Return a dead letter for its own page, redacted."""
    delivery = letter.delivery
    redactor = Redactor(redaction)
    body = shown_body(delivery.body, redactor)
    model = model_of(delivery.body, ReplayId.event_of(delivery.event_id), parser, redactor)
    error, *errors = redacted([letter.error, *(one.error for one in letter.history)], redactor)
    return DeadLetterView(
        row=_row(letter, error),
        history=tuple(
            replace(one, error=shown) for one, shown in zip(letter.history, errors, strict=True)
        ),
        body=body,
        model=model,
        steps=steps_of(history, redactor) if history else (),
    )


@dataclass(frozen=True, slots=True)
class EntryRow:
    """An event of the inbox in the list.

    Attributes:
        due_unix: Unix seconds of the next attempt.
        state: as ``Entry.state`` returns it.
        error: the last failure, or an empty text.
    """

    id: str
    type: str | None
    received_unix: float
    due_unix: float
    state: str
    attempts: int
    error: str


def entry_row(entry: Entry, body: bytes | None, redaction: Redaction, now: float) -> EntryRow:
    """Return an event of the inbox for the list, without the hidden values of its body."""
    return EntryRow(
        id=entry.delivery.event_id,
        type=entry.delivery.event_type,
        received_unix=entry.delivery.received_unix,
        due_unix=entry.due_unix,
        state=entry.state(now),
        attempts=entry.attempts,
        error=_line(entry.history[-1].error, body, redaction) if entry.history else "",
    )


@dataclass(frozen=True, slots=True)
class HandledRow:
    """A handled event in the list.

    Attributes:
        handled_unix: Unix seconds of its success.
        expires_unix: Unix seconds until which its delivery is kept.
        finished: handlers that have succeeded.
    """

    id: str
    type: str | None
    received_unix: float
    handled_unix: float
    expires_unix: float
    finished: tuple[str, ...]


def handled_row(event: HandledEvent) -> HandledRow:
    """Return a handled event for the list, which shows nothing of its body."""
    return HandledRow(
        id=event.delivery.event_id,
        type=event.delivery.event_type,
        received_unix=event.delivery.received_unix,
        handled_unix=event.handled_unix,
        expires_unix=event.expires_unix,
        finished=tuple(sorted(event.finished)),
    )


@dataclass(frozen=True, slots=True)
class HandledView:
    """A handled event on its own page."""

    row: HandledRow
    body: ShownBody
    model: Model
    steps: tuple[StepView, ...]


def handled_view(
    event: HandledEvent, history: History | None, parser: EventParser, redaction: Redaction
) -> HandledView:
    """Return a handled event for its own page, redacted."""
    delivery = event.delivery
    redactor = Redactor(redaction)
    body = shown_body(delivery.body, redactor)
    return HandledView(
        row=handled_row(event),
        body=body,
        model=model_of(delivery.body, delivery.event_id, parser, redactor),
        steps=steps_of(history, redactor) if history else (),
    )
