"""What a page says of a delivery: plain values, redacted, for templates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from ...events import EventParser
from ...verification.headers import RawHeaders
from ...watching.steps import State, Step, What
from .bodies import LEAST_SCRUBBED, Model, ShownBody, model_of, shown_body
from .journal import History, Seen
from .reading import claimed_id, event_type_of, header_texts, hints_of
from .redaction import Redaction, Redactor
from .texts import cut, duration

_RUNNING = "running"

# A server bounds the headers of a request, but not each in the same way.
_MOST_HEADERS = 200
_MOST_VALUE = 2000
_MOST_ID = 512


@dataclass(frozen=True, slots=True)
class Row:
    """A delivery in the list.

    Attributes:
        number: which one.
        at: Unix seconds at which it arrived.
        kind: what kind of answer it got; ``running`` where it has none.
        answer: the answer.
        type: the event's type, or an empty text.
        id: the event's id, or an empty text.
        is_genuine: whether type and id are signed.
        attempt: the sender's count.
        succeeded: how many runs of handlers have succeeded.
        failed: and how many have failed.
        state: what has become of the event, or an empty text.
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
    """Return a delivery as the list shows it."""
    answered = seen.answered
    steps = seen.history.steps if seen.history else []
    return Row(
        number=seen.number,
        at=seen.at,
        kind=seen.kind or _RUNNING,
        answer=f"{int(answered.outcome.status)} {answered.outcome.reason}" if answered else "",
        type=cut(event_type_of(seen) or "", _MOST_ID),
        id=cut(claimed_id(seen) or "", _MOST_ID),
        is_genuine=seen.history is not None,
        attempt=hints_of(seen).attempt,
        succeeded=sum(step.what is What.FINISHED for step in steps),
        failed=sum(step.what is What.FAILED for step in steps),
        state=seen.history.state if seen.history else "",
        seconds=answered.seconds if answered else None,
        size=len(seen.received.body) if seen.received else None,
    )


@dataclass(frozen=True, slots=True)
class Header:
    """A header as it may be shown."""

    name: str
    value: str
    is_hidden: bool


@dataclass(frozen=True, slots=True)
class StepView:
    """A step in the history of an event.

    Attributes:
        at: Unix seconds.
        kind: what kind of step, for its colour.
        text: what happened.
        attempt: which attempt it belongs to.
        seconds: how long a handler ran.
        trace: the traceback of a failure, or what failed.
        process: in which other process; empty for this one.

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
    """All there is to say of a delivery.

    Attributes:
        row: what the list says.
        verdict: whether it is genuine, in words.
        is_refused: whether it is not.
        signed_at: when it was signed, in Unix seconds.
        skew: our clock minus that, in seconds.
        secret_index: which secret matched; 0 is the first.
        signature_count: how many signatures it carried.
        dedup: what the store knew of its event, in words.
        headers: in the order they came.
        body: the body; None where it was not kept.
        model: the event as its model reads it; None where it is not genuine.
        steps: what became of the event.
        is_cut: whether earlier steps are forgotten.
        process: which other process has answered it; empty for this one.

    """

    row: Row
    verdict: str
    is_refused: bool
    signed_at: int | None
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
    """Return what may be shown of a delivery."""
    received, verified, history = seen.received, seen.verified, seen.history
    redactor = Redactor(redaction)
    headers: tuple[Header, ...] = ()
    body = model = None
    if received is None:
        redactor.is_complete = False  # what the body hides is not known
    else:
        headers = tuple(_headers(received.headers, redactor))
        body = shown_body(received.body, redactor)
        if history is not None:
            model = model_of(received.body, claimed_id(seen), parser, redactor)
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
        signed_at=verified.timestamp if verified else None,
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
    """Return what the store said to this very delivery, each answer once."""
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
    """Yield headers without what the body hides, where it is known what that is."""
    for header in headers:
        if header.is_hidden or not redactor.is_complete:
            yield header
        else:
            yield replace(header, value=redactor.scrub(header.value, least=LEAST_SCRUBBED))


def redacted(texts: Iterable[str], redactor: Redactor) -> list[str]:
    """Return texts that a program wrote, such as tracebacks; what one names is hidden in all."""
    shown = [redactor.text(text, by_line=True) for text in texts]
    return [redactor.scrub(text) for text in shown]


def steps_of(history: History, redactor: Redactor) -> tuple[StepView, ...]:
    """Return what became of an event, without what is hidden."""
    notes = redacted((step.note for step in history.steps), redactor)
    return tuple(
        replace(_step(step, note), process=step.process)
        for step, note in zip(history.steps, notes, strict=True)
    )


def _step(step: Step, note: str) -> StepView:
    match step.what:
        case What.CLAIM | What.ENQUEUED:
            return StepView(step.at, "store", step.text, step.attempt)
        case What.FETCHED:
            return StepView(step.at, "store", "taken from the inbox by a worker", step.attempt)
        case What.FINISHED:
            text = f"{step.handler} succeeded"
            return StepView(step.at, "accepted", text, step.attempt, step.seconds)
        case What.SKIPPED:
            why = "a newer event" if step.text == "stale" else "it"
            text = f"{step.handler} was not run ({step.text}): {why} has succeeded there"
            return StepView(step.at, "accepted", text, step.attempt)
        case What.FAILED:
            text = f"{step.handler} failed: {step.text}"
            return StepView(step.at, "refused", text, step.attempt, step.seconds, note)
        case What.SETTLED:
            kind = "accepted" if step.state is State.HANDLED else "retry"
            return StepView(step.at, kind, f"the attempt ended: {step.text}", step.attempt)
        case What.RETRIED:
            text = f"waits {duration(step.seconds)} for the next attempt"
            return StepView(step.at, "retry", text, step.attempt)
        case What.PARKED:
            text = f"waits for its key, {duration(step.seconds)} at the longest"
            return StepView(step.at, "retry", text, step.attempt)
        case What.BURIED:
            return StepView(step.at, "dead", f"a dead letter now: {step.text}", step.attempt)
