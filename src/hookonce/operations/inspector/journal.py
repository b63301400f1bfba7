"""What was seen: deliveries, and what became of their events; noted while it happens, cheaply.

Here is the part of the inspector that runs in the middle of a delivery. It keeps references and
takes no text apart: all reading, redacting and rendering waits until somebody looks.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import chain
from typing import NamedTuple, TypeAlias

from ...clock import Clock, system_clock
from ...outcome import Outcome, Reason
from ...verification.headers import DeliveryHints, RawHeaders, header_pairs
from ...verification.signature import VerifiedDelivery
from ...watching.activity import Answers, Told, ToldDelivery, ToldStep
from ...watching.records import (
    DeliveryAnswered,
    DeliveryAuthenticated,
    DeliveryReceived,
    HandlerFailed,
)
from ...watching.steps import State, Step, StepObserver, StepRecord, step_of
from .bounded import Bounded
from .bounds import Bounds
from .series import Kind, Series

# An event has twelve attempts in the inbox by default, and few have more than three handlers.
_MOST_STEPS = 100
# A delivery inside the request has five records, with three handlers seven.
_NOTES_EACH = 8

_KINDS: dict[str, Kind] = {
    Reason.DUPLICATE: Kind.DUPLICATE,
    Reason.QUARANTINED: Kind.DEAD,
    Reason.REJECTED: Kind.DEAD,
    Reason.EXHAUSTED: Kind.DEAD,
    Reason.ALREADY_DEAD: Kind.DEAD,
}


_UNREMARKABLE = {Kind.ACCEPTED, Kind.DUPLICATE}


def kind_of(outcome: Outcome) -> Kind:
    """Return what kind of answer an outcome is."""
    status = outcome.status
    if status < 400:
        return _KINDS.get(outcome.reason, Kind.ACCEPTED)
    return Kind.REFUSED if status < 500 else Kind.RETRY


@dataclass(slots=True, eq=False)
class History:
    """What became of one event, here and in the processes that tell of it.

    Attributes:
        steps: what happened, oldest first; a bounded number of the last.
        version: the number of its last change.
        is_cut: whether steps were forgotten.
        learned: what the store says it is, where no step has told of that.

    """

    steps: list[Step] = field(default_factory=list)
    version: int = 0
    is_cut: bool = False
    learned: State = State.UNCHANGED

    def copy(self) -> History:
        """Return the history as it is now, for another thread."""
        return replace(self, steps=list(self.steps))

    @property
    def state(self) -> State:
        """What the event is: as the store has said, or by its last step that says so."""
        told = (step.state for step in reversed(self.steps) if step.state is not State.UNCHANGED)
        return self.learned or next(told, State.UNCHANGED)

    def add(self, step: Step) -> int:
        """Add a step, and return by how many bytes the history has become larger.

        Other processes tell of theirs some moments later: steps stand in the order of their times.
        """
        steps = self.steps
        insort(steps, step, key=_time_of)
        self.learned = State.UNCHANGED
        if len(steps) <= _MOST_STEPS:
            return len(step.note)
        self.is_cut = True
        return len(step.note) - len(steps.pop(0).note)


def _time_of(step: Step) -> float:
    return step.at


@dataclass(slots=True, eq=False)
class Seen:
    """One request, genuine or not.

    Attributes:
        number: which one, from 1, of those that this process knows.
        at: Unix seconds at which it arrived, or was answered where nothing of it was read.
        received: what arrived; None where it was not read, or is too large to be kept.
        verified: what the signature says; None where it is not genuine.
        hints: what the sender says unsigned.
        answered: the answer; None as long as there is none.
        history: what became of its event; None where there is no genuine one.
        process: which other process has answered it; empty where this one has.
        version: the number of the last change.

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
        """Return what is known of it now, for another thread."""
        return replace(self, history=self.history and self.history.copy())

    @property
    def changed(self) -> int:
        """The number of the last change of it, or of its event."""
        return max(self.version, self.history.version if self.history else 0)

    @property
    def kind(self) -> Kind | None:
        """What kind of answer it got; None as long as it has none."""
        return None if self.answered is None else kind_of(self.answered.outcome)


class _Failure(NamedTuple):
    """What is noted of a handler's failure."""

    event_id: str
    step: Step


_Record: TypeAlias = DeliveryAuthenticated | DeliveryAnswered | _Failure | StepRecord
_Note: TypeAlias = tuple[int, int, float, _Record]
"""Version, number of the delivery or 0, Unix seconds, and the record."""


class Journal(StepObserver):
    """Keeps what was seen within bounds, and counts it second by second.

    In the middle of a delivery it only notes records, and those of so many deliveries a second:
    what is kept alive costs a busy receiver more than what is done. Notes are read when somebody
    looks (`_read`). If nobody does, the oldest are dropped, with the deliveries they are about.

    Args:
        bounds: how much is kept.
        clock: Unix time in seconds.

    Attributes:
        followed: the events whose every step it wants to be told of.
        series: the counts.
        version: goes up with every change.

    """

    def __init__(self, bounds: Bounds, *, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._most_bytes = bounds.deliveries_bytes
        self._most_refused_bytes = bounds.refused_bytes
        self._genuine: Bounded[int, Seen] = Bounded(
            count=bounds.deliveries, size=bounds.deliveries_bytes
        )
        self._refused: Bounded[int, Seen] = Bounded(count=bounds.refused, size=bounds.refused_bytes)
        self._histories: Bounded[str, History] = Bounded(
            count=bounds.deliveries, size=bounds.histories_bytes
        )
        self._unanswered: dict[int, Seen] = {}
        self._notes: deque[_Note] = deque()
        self._most_notes = bounds.deliveries * _NOTES_EACH
        self._noted_bytes = 0
        self._each_second = bounds.each_second
        self._second = self._room = 0
        self.followed: OrderedDict[str, None] = OrderedDict()
        # Some wait for their answer while others come and go.
        self._most_followed = 2 * bounds.deliveries
        self._last = 0
        self.series = Series()
        self.version = 0

    def newest_first(self) -> Iterator[Seen]:
        """Yield what was seen, genuine or not."""
        self._read()
        genuine = (seen for _, seen in self._genuine.newest_first())
        refused = (seen for _, seen in self._refused.newest_first())
        return merge(genuine, refused, key=lambda seen: seen.number, reverse=True)

    def find(self, number: int) -> Seen | None:
        """Return a request by its number, if it has not been forgotten."""
        self._read()
        return self._genuine.get(number) or self._refused.get(number)

    def history_of(self, event_id: str) -> History | None:
        """Return what became of an event, if that has not been forgotten."""
        self._read()
        return self._histories.get(event_id)

    def follow(self, event_id: str) -> None:
        """Note what happens to an event from now on, however much happens besides."""
        self.followed[event_id] = None
        if len(self.followed) > self._most_followed:
            self.followed.popitem(last=False)

    def hear(self, told: Told) -> None:
        """Take in what another process tells."""
        self.version += 1
        match told:
            case ToldStep(event_id, step):
                self._add(event_id, step, self.version)
            case ToldDelivery(at, answered, process) if answered.verified is not None:
                self._last += 1
                seen = Seen(self._last, at, None, answered.verified, answered.hints, answered)
                seen.history, seen.process = self._history(answered.verified.id), process
                seen.version = self.version
                self._keep(seen)
            case Answers(outcome, number, seconds):
                self.series.note_answers(kind_of(outcome), number, seconds)

    def learn(self, event_id: str, state: State) -> None:
        """Take in what the store says that an event is, where no step has told of it."""
        history = self.history_of(event_id)
        if history is not None and history.state is not state:
            self.version += 1
            history.learned, history.version = state, self.version

    def delivery_authenticated(self, record: DeliveryAuthenticated) -> None:
        """Note a genuine delivery, which has no answer yet, unless too many come."""
        event_id = record.delivery.id
        if event_id not in self.followed:
            second = int(record.received.at)
            if second != self._second:
                self._second, self._room = second, self._each_second
            if not self._room:
                return
            self._room -= 1
            self.follow(event_id)
        self._last += 1
        self._put(record, self._last)
        self._noted_bytes += len(record.delivery.body)
        if self._noted_bytes > self._most_bytes // 4:
            self._read()

    def delivery_answered(self, record: DeliveryAnswered) -> None:
        """Note the answer, or a request that was not genuine."""
        kind = kind_of(record.outcome)
        self.series.note_answer(kind, record.seconds)
        if record.verified is not None:
            if record.verified.id in self.followed or kind not in _UNREMARKABLE:
                self._put(record)
            return
        # Anybody may send what is no delivery at all: a place of its own, and read at once.
        received = record.received
        at = self._clock() if received is None else received.at
        self._last += 1
        self.version += 1
        self._keep_refused(Seen(self._last, at, received, answered=record, version=self.version))

    def handler_failed(self, record: HandlerFailed) -> None:
        """Note a handler's failure: as text, and whoever else is followed."""
        event_id, step = step_of(record, self._clock())
        self.follow(event_id)
        self._put(_Failure(event_id, step))

    def note(self, record: StepRecord) -> None:
        """Note a step."""
        self._put(record)

    def _put(self, record: _Record, number: int = 0) -> None:
        self.version += 1
        notes = self._notes
        notes.append((self.version, number, self._clock(), record))
        if len(notes) > self._most_notes:
            _, _, _, oldest = notes.popleft()
            if isinstance(oldest, DeliveryAuthenticated):
                self._noted_bytes -= len(oldest.delivery.body)

    def _read(self) -> None:
        """Read the notes, oldest first."""
        notes, self._noted_bytes = self._notes, 0
        while notes:
            version, number, at, record = notes.popleft()
            match record:
                case DeliveryAuthenticated():
                    self._read_verified(record, number, version)
                case DeliveryAnswered():
                    self._read_answered(record, version)
                case _Failure():
                    self._add(record.event_id, record.step, version)
                case _:
                    self._add(*step_of(record, at), version)

    def _read_verified(self, record: DeliveryAuthenticated, number: int, version: int) -> None:
        received, delivery = record.received, record.delivery
        seen = Seen(number, received.at, received, delivery, record.hints, version=version)
        seen.history = self._history(delivery.id)
        self._unanswered[id(received)] = seen
        self._keep(seen)

    def _read_answered(self, record: DeliveryAnswered, version: int) -> None:
        received, verified = record.received, record.verified
        seen = self._unanswered.pop(id(received), None)
        if seen is not None:
            if seen.received is None:
                record = record._replace(received=None, verified=seen.verified)
            seen.answered, seen.version = record, version
        elif received is not None and verified is not None:
            # Not kept so far, or forgotten before its answer, and now it is worth a look.
            self._last += 1
            seen = Seen(self._last, received.at, received, verified, record.hints, record)
            seen.version, seen.history = version, self._history(verified.id)
            self._keep(seen)

    def _keep(self, seen: Seen) -> None:
        for forgotten in self._genuine.put(seen.number, seen, _kept_bytes(seen, self._most_bytes)):
            if forgotten.answered is None:
                waiting = self._unanswered.items()
                self._unanswered = {key: seen for key, seen in waiting if seen is not forgotten}

    def _keep_refused(self, seen: Seen) -> None:
        self._refused.put(seen.number, seen, _kept_bytes(seen, self._most_refused_bytes))

    def _history(self, event_id: str) -> History:
        history = self._histories.get(event_id)
        if history is None:
            history = History()
            self._histories.put(event_id, history, 0)
        return history

    def _add(self, event_id: str, step: Step, version: int) -> None:
        history = self._histories.get(event_id) or self._history(event_id)
        history.version = version
        if grown := history.add(step):
            for forgotten in self._histories.grow(event_id, grown):
                forgotten.steps.clear()  # a delivery may still refer to it
                forgotten.is_cut = True


def _kept_bytes(seen: Seen, most_bytes: int) -> int:
    """Return how many bytes are kept of a request: none of what is too large."""
    if seen.received is None:
        return 0
    size = len(seen.received.body) + _headers_size(seen.received.headers)
    if size <= most_bytes:
        return size
    seen.received = None
    if seen.verified is not None:
        seen.verified = seen.verified._replace(body=b"")
    if seen.answered is not None:
        seen.answered = seen.answered._replace(received=None, verified=seen.verified)
    return 0


def _headers_size(headers: RawHeaders) -> int:
    try:
        return sum(map(len, chain.from_iterable(header_pairs(headers))))
    except TypeError:  # a framework's "no such header" is None
        return sum(len(str(part)) for pair in header_pairs(headers) for part in pair)
