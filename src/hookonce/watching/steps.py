"""The steps of an event as plain values, for inspector pages and for other processes."""

from __future__ import annotations

import traceback
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from ..stores.values import (
    Claimed,
    ClaimResult,
    Dead,
    Done,
    EnqueueResult,
    Full,
    InFlight,
    Stored,
    Waiting,
)
from .records import (
    EventBuried,
    EventClaimed,
    EventDeferred,
    EventEnqueued,
    EventFetched,
    EventRetried,
    EventSettled,
    HandlerFailed,
    HandlerFinished,
    HandlerSkipped,
    Observer,
)

StepRecord: TypeAlias = (
    EventBuried
    | EventClaimed
    | EventDeferred
    | EventEnqueued
    | EventRetried
    | EventSettled
    | EventFetched
    | HandlerFailed
    | HandlerFinished
    | HandlerSkipped
)

_MOST_NOTE = 8 * 1024


class What(StrEnum):
    """Kinds of steps."""

    CLAIM = "claim"
    ENQUEUED = "enqueued"
    FETCHED = "fetched"
    FINISHED = "finished"
    SKIPPED = "skipped"
    FAILED = "failed"
    SETTLED = "settled"
    RETRIED = "retried"
    DEFERRED = "deferred"
    BURIED = "buried"


class EventState(StrEnum):
    """State of an event after a step; ``UNCHANGED`` if the step does not change it."""

    UNCHANGED = ""
    IN_FLIGHT = "in flight"
    WAITING = "waiting"
    HANDLED = "handled"
    FAILED = "failed"
    DEAD = "dead"


class EventStep(NamedTuple):
    """One thing that happened to an event.

    Attributes:
        at: Unix seconds, by the clock of the process in which the step happened.
        what: the kind of step.
        attempt: the number of the attempt, from 1; None if it is not known.
        text: the store's answer, the attempt's result, or the class of a handler's error.
        state: the state of the event after the step.
        handler: the handler's name, for a handler's step.
        seconds: how long a handler ran, or how long an event waits.
        note: the error as text; for a handler's failure the traceback.
        received_at: when the delivery arrived, for a claim or an enqueue.
        process: the name of the process; empty for the process that shows the step.
    """

    at: float
    what: What
    attempt: int | None
    text: str
    state: EventState = EventState.UNCHANGED
    handler: str | None = None
    seconds: float | None = None
    note: str = ""
    received_at: float | None = None
    process: str = ""


class StepObserver(Observer):
    """Receives every step of an event in one method."""

    def note(self, record: StepRecord) -> None:
        """Receive a step."""
        raise NotImplementedError

    def _note(self, record: StepRecord) -> None:
        self.note(record)  # look up `note` at each call, so that a subclass can override it

    event_claimed = event_enqueued = event_fetched = event_settled = _note
    event_retried = event_deferred = event_buried = _note
    handler_finished = handler_skipped = _note

    def handler_failed(self, record: HandlerFailed) -> None:
        """Receive a handler's failure."""
        self.note(record)


def step_of(record: StepRecord, at: float) -> tuple[str, EventStep]:
    """Return the event's id and the event's step that a record describes."""
    unchanged = EventState.UNCHANGED
    match record:
        case EventClaimed(delivery, result):
            state = EventState.IN_FLIGHT if isinstance(result, Claimed) else unchanged
            step = EventStep(at, What.CLAIM, None, _said(result), state)
            step = step._replace(received_at=delivery.received_unix)
        case EventEnqueued(delivery, result):
            state = EventState.WAITING if isinstance(result, Stored) else unchanged
            step = EventStep(at, What.ENQUEUED, None, _said(result), state)
            step = step._replace(received_at=delivery.received_unix)
        case EventFetched(delivery, attempt):
            step = EventStep(at, What.FETCHED, attempt, "", EventState.IN_FLIGHT)
        case HandlerFinished(delivery, handler, attempt, seconds):
            step = EventStep(at, What.FINISHED, attempt, "", unchanged, handler, seconds)
        case HandlerSkipped(delivery, handler, attempt, why):
            step = EventStep(at, What.SKIPPED, attempt, why, unchanged, handler)
        case HandlerFailed(delivery, handler, attempt, seconds, error):
            # Keep text: a traceback object would keep all local variables of its frames alive.
            note, name = _cut("".join(traceback.format_exception(error))), type(error).__name__
            step = EventStep(
                at, What.FAILED, attempt, name, EventState.UNCHANGED, handler, seconds, note
            )
        case EventSettled(delivery, attempt, outcome):
            state = EventState.HANDLED if outcome.status < 300 else EventState.FAILED
            text = f"{int(outcome.status)} {outcome.reason}"
            step = EventStep(at, What.SETTLED, attempt, text, state)
        case EventRetried(delivery, attempt, seconds, error_text):
            step = EventStep(at, What.RETRIED, attempt, "", EventState.WAITING, None, seconds)
            step = step._replace(note=_cut(error_text))
        case EventDeferred(delivery, attempt, seconds):
            step = EventStep(at, What.DEFERRED, attempt, "", EventState.WAITING, None, seconds)
        case EventBuried(delivery, attempt, reason, error_text):
            step = EventStep(
                at, What.BURIED, attempt, reason, EventState.DEAD, note=_cut(error_text)
            )
    return delivery.event_id, step


def _said(result: ClaimResult | EnqueueResult) -> str:
    """Return the store's answer in words."""
    match result:
        case Claimed(attempt=1):
            return "new here: attempt 1 began"
        case Claimed(attempt=attempt):
            return f"not handled yet: attempt {attempt} began"
        case Stored():
            return "new here: stored in the inbox"
        case Done():
            return "the event had been handled before"
        case Dead():
            return "the event was a dead letter already"
        case InFlight():
            return "another delivery of the event was being handled"
        case Waiting():
            return "the event was in the inbox already"
        case Full():
            return "the inbox was full"


def _cut(text: str) -> str:
    if len(text) <= _MOST_NOTE:
        return text
    return f"{text[: _MOST_NOTE // 2]}\n[…]\n{text[-_MOST_NOTE // 2 :]}"
