"""What a page says of a delivery: plain values, redacted, for templates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeAlias

from ...delivery.steps import State, Step, What
from ...events import EventParser
from ...verification.headers import RawHeaders
from .bodies import LEAST_SCRUBBED, Model, ShownBody, model_of, shown_body
from .concealing import Concealer
from .journal import History, Seen
from .reading import claimed_id, event_type_of, header_texts, hints_of
from .redaction import Redaction
from .scrubbing import HIDDEN, Scrubber
from .texts import cut, duration

_RUNNING = "running"

# A server bounds the headers of a request, but not each in the same way.
_MOST_HEADERS = 200
_MOST_VALUE = 2000
_MOST_ID = 512
# Cookies and lists of signatures hold several values; a scheme stands before one.
_HEADER_PARTS = re.compile(r"[\s,;]+")
_SCHEMES = {"basic", "bearer", "digest", "token", "v1", "v1a"}


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
        type=event_type_of(seen) or "",
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
    concealer = Concealer(redaction)
    headers: tuple[Header, ...] = ()
    body = model = None
    if received is not None:
        headers = tuple(_headers(received.headers, redaction, concealer))
        body = shown_body(received.body, redaction)
        if history is not None:
            model = model_of(received.body, claimed_id(seen), parser, redaction)
    scrub = scrub_of(concealer, body)
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
        model=scrubbed_model(model, body) if model and body else None,
        steps=steps_of(history, scrub) if history else (),
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
        if step.what in {What.CLAIM, What.PUT} and step.received_at == seen.at
    ]
    return list(dict.fromkeys(said))


def _headers(headers: RawHeaders, redaction: Redaction, concealer: Concealer) -> Iterable[Header]:
    for name, value in islice(header_texts(headers), _MOST_HEADERS):
        if redaction.hides_header(name):
            for part in _values_in(value):
                concealer.values.add(part)
            yield Header(cut(name, _MOST_VALUE), HIDDEN, is_hidden=True)
        else:
            shown = cut(concealer.text(value), _MOST_VALUE)
            yield Header(cut(name, _MOST_VALUE), shown, is_hidden=False)


def _values_in(header: str) -> Iterator[str]:
    """Yield the value of a header that is hidden, and those within it."""
    yield header
    for part in _HEADER_PARTS.split(header):
        if part.lower() not in _SCHEMES:
            yield part
            yield part.partition("=")[2].strip('"')


Scrub: TypeAlias = Callable[[Iterable[str]], list[str]]
"""Takes what is hidden out of texts about a delivery."""


def scrub_of(concealer: Concealer, body: ShownBody | None) -> Scrub:
    """Return what scrubs the texts beside a body; it withholds them where that is not known."""
    known = frozenset(body.hidden) if body else frozenset[str]()

    def scrub(texts: Iterable[str]) -> list[str]:
        is_complete = body is not None and body.is_searched and concealer.values.is_complete
        whole = Scrubber({*known, *concealer.values}, is_complete=is_complete)
        # What one of them names is hidden in all.
        shown = [concealer.text(text) for text in whole.scrub_all(list(texts))]
        named = Scrubber(concealer.values, is_complete=concealer.values.is_complete)
        return named.scrub_all(shown)

    return scrub


def scrubbed_model(model: Model, body: ShownBody) -> Model:
    """Return a model without copies of what its body hides."""
    texts = [model.problem, *(text for field in model.fields for text in field[:2])]
    problem, *shown = Scrubber(body.hidden).scrub_all(texts, least=LEAST_SCRUBBED)
    fields = (
        field._replace(path=path, value=value)
        for field, path, value in zip(model.fields, shown[::2], shown[1::2], strict=True)
    )
    return replace(model, problem=problem, fields=tuple(fields))


def steps_of(history: History, scrub: Scrub) -> tuple[StepView, ...]:
    """Return what became of an event, without what is hidden."""
    notes = scrub(step.note for step in history.steps)
    return tuple(
        replace(_step(step, note), process=step.process)
        for step, note in zip(history.steps, notes, strict=True)
    )


def _step(step: Step, note: str) -> StepView:
    match step.what:
        case What.CLAIM | What.PUT:
            return StepView(step.at, "store", step.text, step.attempt)
        case What.TAKEN:
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
