"""Values for the templates of deliveries, their headers and their steps, redacted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from ...events import EventParser
from ...verification.headers import RawHeaders
from ...watching.steps import EventState, EventStep, What
from .bodies import LEAST_SCRUBBED, ShownBody, shown_body
from .models import Model, model_of
from .redaction import Redaction
from .redactor import Redactor
from .seen import History, Seen, header_texts
from .texts import cut, duration

_RUNNING = "running"

# The inspector has its own limits, because each server limits headers differently.
_MOST_HEADERS = 200
_MOST_VALUE = 2000
_MOST_ID = 512


@dataclass(frozen=True, slots=True)
class Row:
    """A delivery in the list.

    Attributes:
        number: its number in this process.
        at: Unix seconds of its arrival.
        kind: kind of its answer; ``running`` while it is in flight.
        answer: status and reason; empty while it is in flight.
        is_genuine: whether type and id are signed.
        attempt: number of the attempt, as the sender counts.
        succeeded: how often handlers have succeeded.
        failed: how often handlers have failed.
        seconds: how long the answer took.
        size: bytes of the body.
    """

    number: int
    at: float
    kind: str
    answer: str
    type: str
    id: str
    is_genuine: bool
    attempt: int | None
    succeeded: int
    failed: int
    state: str
    seconds: float | None
    size: int | None


def row_of(seen: Seen) -> Row:
    answered = seen.answered
    steps = seen.history.steps if seen.history else []
    return Row(
        number=seen.number,
        at=seen.at,
        kind=seen.kind or _RUNNING,
        answer=f"{int(answered.outcome.status)} {answered.outcome.reason}" if answered else "",
        type=cut(seen.event_type or "", _MOST_ID),
        id=cut(seen.event_id or "", _MOST_ID),
        is_genuine=seen.history is not None,
        attempt=seen.sender_hints.attempt,
        succeeded=sum(step.what is What.FINISHED for step in steps),
        failed=sum(step.what is What.FAILED for step in steps),
        state=seen.history.state if seen.history else "",
        seconds=answered.seconds if answered else None,
        size=len(seen.received.body) if seen.received else None,
    )


@dataclass(frozen=True, slots=True)
class Header:
    """A header of a request."""

    name: str
    value: str
    is_hidden: bool


@dataclass(frozen=True, slots=True)
class StepView:
    """A step in the history of an event.

    Attributes:
        kind: its class in the style sheet.
        text: a sentence.
        attempt: number of its attempt.
        seconds: how long the handler ran.
        trace: traceback of a failure.
        process: the process it happened in; empty for this one.
    """

    at: float
    kind: str
    text: str
    attempt: int | None
    seconds: float | None = None
    trace: str = ""
    process: str = ""


@dataclass(frozen=True, slots=True)
class DeliveryView:
    """A delivery on its own page.

    Attributes:
        verdict: result of the verification, in words.
        is_refused: whether it is not genuine.
        skew: our clock minus the signed timestamp, in seconds.
        secret_index: the secret that matched; 0 is the first.
        dedup: what the store knew about its event, in words.
        headers: in the order of the request.
        body: the body; None if it was not kept.
        model: the event as its model reads it; None if the delivery is not genuine.
        is_cut: whether earlier steps were dropped.
        process: the process that answered it; empty for this one.
    """

    row: Row
    verdict: str
    is_refused: bool
    skew: float | None
    secret_index: int | None
    signature_count: int | None
    dedup: tuple[str, ...]
    headers: tuple[Header, ...]
    body: ShownBody | None
    model: Model | None
    steps: tuple[StepView, ...]
    is_cut: bool
    process: str


def delivery_view(seen: Seen, parser: EventParser, redaction: Redaction) -> DeliveryView:
    """Return a delivery for its own page, redacted."""
    received, verified, history = seen.received, seen.verified, seen.history
    redactor = Redactor(redaction)
    headers: tuple[Header, ...] = ()
    body = model = None
    if received is None:
        # The hidden values of a dropped body are unknown.
        redactor.is_complete = False
    else:
        headers = tuple(_headers(received.headers, redactor))
        body = shown_body(received.body, redactor)
        if history is not None:
            model = model_of(received.body, seen.event_id, parser, redactor)
        headers = tuple(_scrubbed(headers, redactor))
    refusal = seen.answered.refusal if seen.answered else None
    if verified is not None:
        skew: float | None = verified.skew
    else:
        skew = refusal.skew if refusal else None
    return DeliveryView(
        row=row_of(seen),
        verdict=_verdict(seen),
        is_refused=history is None,
        skew=skew,
        secret_index=verified.secret_index if verified else None,
        signature_count=verified.signature_count if verified else None,
        dedup=tuple(_dedup(seen)),
        headers=headers,
        body=body,
        model=model,
        steps=steps_of(history, redactor) if history else (),
        is_cut=history.is_cut if history else False,
        process=seen.process,
    )


def _verdict(seen: Seen) -> str:
    if seen.history is not None:
        return "genuine"
    if seen.answered is not None and seen.answered.refusal is not None:
        return str(seen.answered.refusal)
    return "not verified"


def _dedup(seen: Seen) -> list[str]:
    """Return the distinct answers of the store to this delivery."""
    if seen.history is None:
        return []
    said = [
        step.text
        for step in seen.history.steps
        if step.what in {What.CLAIM, What.ENQUEUED} and step.received_at == seen.at
    ]
    return list(dict.fromkeys(said))


def _headers(headers: RawHeaders, redactor: Redactor) -> Iterable[Header]:
    for name, value in islice(header_texts(headers), _MOST_HEADERS):
        short = cut(name, _MOST_VALUE)
        if redactor.rules.hides_header(name):
            yield Header(short, redactor.hide(value), is_hidden=True)
        else:
            yield Header(short, redactor.text(cut(value, _MOST_VALUE)), is_hidden=False)


def _scrubbed(headers: Iterable[Header], redactor: Redactor) -> Iterator[Header]:
    """Yield headers without the body's hidden values, or unchanged if these values are unknown."""
    for header in headers:
        if header.is_hidden or not redactor.is_complete:
            yield header
        else:
            yield replace(header, value=redactor.scrub(header.value, least=LEAST_SCRUBBED))


def redacted(texts: Iterable[str], redactor: Redactor) -> list[str]:
    """Return texts without hidden values; a value that one text hides is hidden in all of them."""
    shown = [redactor.text(text, by_line=True) for text in texts]
    return [redactor.scrub(text) for text in shown]


def steps_of(history: History, redactor: Redactor) -> tuple[StepView, ...]:
    notes = redacted((step.note for step in history.steps), redactor)
    return tuple(
        replace(_step(step, note), process=step.process)
        for step, note in zip(history.steps, notes, strict=True)
    )


def _step(step: EventStep, note: str) -> StepView:
    match step.what:
        case What.CLAIM | What.ENQUEUED:
            return StepView(step.at, "store", step.text, step.attempt)
        case What.FETCHED:
            return StepView(step.at, "store", "fetched from the inbox by a worker", step.attempt)
        case What.FINISHED:
            text = f"{step.handler} succeeded"
            return StepView(step.at, "accepted", text, step.attempt, step.seconds)
        case What.SKIPPED:
            why = "a newer event" if step.text == "stale" else "this event"
            text = f"{step.handler} was skipped ({step.text}): it has already handled {why}"
            return StepView(step.at, "accepted", text, step.attempt)
        case What.FAILED:
            text = f"{step.handler} failed: {step.text}"
            return StepView(step.at, "refused", text, step.attempt, step.seconds, note)
        case What.SETTLED:
            kind = "accepted" if step.state is EventState.HANDLED else "retry"
            return StepView(step.at, kind, f"the attempt ended: {step.text}", step.attempt)
        case What.RETRIED:
            text = f"the next attempt is in {duration(step.seconds)}"
            return StepView(step.at, "retry", text, step.attempt)
        case What.DEFERRED:
            text = f"waits for its key lock, at most {duration(step.seconds)}"
            return StepView(step.at, "retry", text, step.attempt)
        case What.BURIED:
            return StepView(step.at, "dead", f"became a dead letter: {step.text}", step.attempt)
