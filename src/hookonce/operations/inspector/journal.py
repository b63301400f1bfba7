"""The inspector's memory: requests, the steps of their events, and counts for the charts.

This is the only part of the inspector that runs during a delivery. It only keeps references to
records then, and reads the records when somebody looks at a page.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from heapq import merge
from itertools import chain
from typing import NamedTuple, TypeAlias

from ...clock import system_clock
from ...verification.headers import RawHeaders, header_pairs
from ...watching.activity import RemoteAnswers, RemoteDelivery, RemoteRecord, RemoteStep
from ...watching.records import (
    DeliveryAnswered,
    DeliveryAuthenticated,
    HandlerFailed,
)
from ...watching.steps import EventState, EventStep, StepObserver, StepRecord, step_of
from .bounds import Bounded, Bounds
from .seen import AnswerKind, History, Seen, kind_of
from .series import Series

# Keep this many unread records (notes) per delivery on average: a delivery with three handlers
# makes seven.
_NOTES_EACH = 8

_SUCCESSES = {AnswerKind.ACCEPTED, AnswerKind.DUPLICATE}


class _Failure(NamedTuple):
    """The error of a handler, as text."""

    event_id: str
    step: EventStep


_Record: TypeAlias = DeliveryAuthenticated | DeliveryAnswered | _Failure | StepRecord
_Note: TypeAlias = tuple[int, int, float, _Record]
"""The journal's version, the number of the delivery (or 0), Unix seconds, and the record."""


class Journal(StepObserver):
    """Remembers requests within bounds, and counts all answers second by second.

    During a delivery it appends the record to its notes, for a limited number of deliveries a
    second: on a busy receiver, the garbage collection of many kept records would cost more than
    appending them. ``_read_notes`` processes the notes when somebody looks at a page. Without a
    visitor the oldest notes are dropped, and their deliveries with them.

    Attributes:
        followed: ids of the events whose every step is kept.
        version: increases with every change.
    """

    def __init__(self, bounds: Bounds) -> None:
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
        self._second = self._left_in_second = 0
        self.followed: OrderedDict[str, None] = OrderedDict()
        # Follow twice as many events as the number of kept deliveries, because some events have no
        # answered delivery yet.
        self._most_followed = 2 * bounds.deliveries
        self._last_number = 0
        self.series: Series = Series()
        self.version: int = 0

    def newest_first(self) -> Iterator[Seen]:
        """Yield all requests, newest first, genuine or not."""
        self._read_notes()
        genuine = (seen for _, seen in self._genuine.newest_first())
        refused = (seen for _, seen in self._refused.newest_first())
        return merge(genuine, refused, key=lambda seen: seen.number, reverse=True)

    def find(self, number: int) -> Seen | None:
        """Return a request by its number; None if it is unknown or was dropped."""
        self._read_notes()
        return self._genuine.get(number) or self._refused.get(number)

    def history_of(self, event_id: str) -> History | None:
        """Return the history of an event; None if it is unknown or was dropped."""
        self._read_notes()
        return self._histories.get(event_id)

    def follow(self, event_id: str) -> None:
        """Keep every step of an event from now on, even if many other events arrive."""
        self.followed[event_id] = None
        if len(self.followed) > self._most_followed:
            self.followed.popitem(last=False)

    def add_remote(self, record: RemoteRecord) -> None:
        self.version += 1
        match record:
            case RemoteStep(event_id, step):
                self._add_step(event_id, step, self.version)
            case RemoteDelivery(at, answered, process) if answered.verified is not None:
                self._last_number += 1
                seen = Seen(
                    self._last_number, at, None, answered.verified, answered.hints, answered
                )
                seen.history, seen.process = self._history(answered.verified.id), process
                seen.version = self.version
                self._keep(seen)
            case RemoteAnswers(outcome, number, seconds):
                self.series.note_answers(kind_of(outcome), number, seconds)

    def set_stored_state(self, event_id: str, state: EventState) -> None:
        """Set the state of an event to the state that the store reports."""
        history = self.history_of(event_id)
        if history is not None and history.state is not state:
            self.version += 1
            history.stored_state, history.version = state, self.version

    def delivery_authenticated(self, record: DeliveryAuthenticated) -> None:
        """Record a genuine delivery before its answer, unless too many deliveries arrive."""
        event_id = record.delivery.id
        if event_id not in self.followed:
            second = int(record.received.at_unix)
            if second != self._second:
                self._second, self._left_in_second = second, self._each_second
            if not self._left_in_second:
                return
            self._left_in_second -= 1
            self.follow(event_id)
        self._last_number += 1
        self._append(record, self._last_number)
        self._noted_bytes += len(record.delivery.body)
        if self._noted_bytes > self._most_bytes // 4:
            self._read_notes()

    def delivery_answered(self, record: DeliveryAnswered) -> None:
        """Record the answer to a genuine delivery, or keep a refused request."""
        kind = kind_of(record.outcome)
        self.series.note_answer(kind, record.seconds)
        if record.verified is not None:
            if record.verified.id in self.followed or kind not in _SUCCESSES:
                self._append(record)
            return
        # Keep refused requests apart: anybody can send them, so they must not displace genuine
        # deliveries.
        received = record.received
        at = system_clock() if received is None else received.at_unix
        self._last_number += 1
        self.version += 1
        seen = Seen(self._last_number, at, received, answered=record, version=self.version)
        self._refused.put(seen.number, seen, _trim(seen, self._most_refused_bytes))

    def handler_failed(self, record: HandlerFailed) -> None:
        """Record a failure as text, and follow its event."""
        event_id, step = step_of(record, system_clock())
        self.follow(event_id)
        self._append(_Failure(event_id, step))

    def note(self, record: StepRecord) -> None:
        self._append(record)

    def _append(self, record: _Record, number: int = 0) -> None:
        self.version += 1
        notes = self._notes
        notes.append((self.version, number, system_clock(), record))
        if len(notes) > self._most_notes:
            _, _, _, oldest = notes.popleft()
            if isinstance(oldest, DeliveryAuthenticated):
                self._noted_bytes -= len(oldest.delivery.body)

    def _read_notes(self) -> None:
        """Add the notes to the requests and histories, oldest note first."""
        notes, self._noted_bytes = self._notes, 0
        while notes:
            version, number, at, record = notes.popleft()
            match record:
                case DeliveryAuthenticated():
                    self._read_authenticated(record, number, version)
                case DeliveryAnswered():
                    self._read_answered(record, version)
                case _Failure():
                    self._add_step(record.event_id, record.step, version)
                case _:
                    self._add_step(*step_of(record, at), version)

    def _read_authenticated(self, record: DeliveryAuthenticated, number: int, version: int) -> None:
        received, delivery = record.received, record.delivery
        seen = Seen(number, received.at_unix, received, delivery, record.hints, version=version)
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
            # The delivery is unknown: the journal did not keep it, or dropped it before its answer
            # came.
            self._last_number += 1
            seen = Seen(
                self._last_number, received.at_unix, received, verified, record.hints, record
            )
            seen.version, seen.history = version, self._history(verified.id)
            self._keep(seen)

    def _keep(self, seen: Seen) -> None:
        for dropped in self._genuine.put(seen.number, seen, _trim(seen, self._most_bytes)):
            if dropped.answered is None:
                waiting = self._unanswered.items()
                self._unanswered = {key: seen for key, seen in waiting if seen is not dropped}

    def _history(self, event_id: str) -> History:
        history = self._histories.get(event_id)
        if history is None:
            history = History()
            self._histories.put(event_id, history, 0)
        return history

    def _add_step(self, event_id: str, step: EventStep, version: int) -> None:
        history = self._history(event_id)
        history.version = version
        if grown := history.add(step):
            for dropped in self._histories.grow(event_id, grown):
                dropped.steps.clear()  # free memory: a delivery may still refer to this history
                dropped.is_cut = True


def _trim(seen: Seen, most_bytes: int) -> int:
    """Drop the body and headers of a large request; return how many bytes remain."""
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
    except TypeError:  # some frameworks give None for a missing header
        return sum(len(str(part)) for pair in header_pairs(headers) for part in pair)
