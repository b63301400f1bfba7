"""Publishes the work of this process to the inspectors of other processes.

A worker replaces a report of its running handlers every ten seconds. More is published only while
an inspector is open: each process asks the store every two seconds whether that is so. Then it
observes its own receiver and publishes a limited number of events per second. A lost line is
missing on the page and nowhere else.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, NamedTuple, TypeAlias

from ..clock import Clock, uptime
from ..errors import StoreError
from ..logs import get_logger
from ..outcome import Outcome
from ..stores.activity import ActivityStore
from ..stores.time_limit import set_within, within
from ..verification.headers import DeliveryHints
from ..verification.signature import VerifiedDelivery
from .observers import Observers
from .process import process_name
from .records import DeliveryAnswered
from .steps import EventState, EventStep, StepObserver, StepRecord, What, step_of
from .workers import REPORT_SECONDS, WorkerReport

_log = get_logger("hookonce.activity")

_ASK_SECONDS = 2.0
_PUBLISH_SECONDS = 0.5
# How often a worker reports while an inspector is open.
_WATCHED_REPORT_SECONDS = 2.0
# Publish the steps of this many new events per second. Failures are published for all events.
_EVENTS_EACH_SECOND = 50
_MOST_SAMPLED = 1000
_MOST_WAITING_LINES = 1000
_MOST_TIMES = 500


class RemoteStep(NamedTuple):
    """A step of an event in another process."""

    event_id: str
    step: EventStep


class RemoteDelivery(NamedTuple):
    """A genuine delivery that another process has answered; the body is not published.

    Attributes:
        at: Unix seconds at which it arrived.
        answered: the answer and the signed data.
        process: the name of the other process.
    """

    at: float
    answered: DeliveryAnswered
    process: str


class RemoteAnswers(NamedTuple):
    """The number of times that another process gave the same answer since its last report.

    Attributes:
        outcome: the answer.
        number: how often it was given.
        seconds: how long these answers took; at most 500 values.
    """

    outcome: Outcome
    number: int
    seconds: tuple[float, ...]


RemoteRecord: TypeAlias = RemoteStep | RemoteDelivery | RemoteAnswers


class _Sample:
    """Selects the events to publish: a limited number of new events per second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: OrderedDict[str, None] = OrderedDict()
        self._second = self._room = 0

    def __contains__(self, event_id: object) -> bool:
        if event_id in self._events:
            return True
        second = int(self._clock())
        if second != self._second:
            self._second, self._room = second, _EVENTS_EACH_SECOND
        if not self._room or not isinstance(event_id, str):
            return False
        self._room -= 1
        self._events[event_id] = None
        if len(self._events) > _MOST_SAMPLED:
            self._events.popitem(last=False)
        return True


class Reporter(StepObserver):
    """Publishes the steps of one endpoint's events in this process, while an inspector is open.

    Args:
        store: passes the lines on to other processes.
        endpoint: the name of the receiver's endpoint.
        workload: returns what this process does as a worker; None if it is no worker.
        observers: the receiver's observers; the reporter joins them while an inspector is open.
        store_seconds: after this time the store counts as unreachable.
        clock: Unix time in seconds.
    """

    def __init__(
        self,
        store: ActivityStore,
        *,
        endpoint: str,
        workload: Callable[[], WorkerReport | None],
        observers: Observers,
        store_seconds: float,
        clock: Clock,
    ) -> None:
        self._store = store
        self._endpoint = endpoint
        self._workload = workload
        self._observers = observers
        self._store_seconds = store_seconds
        self._clock = clock
        self._sample = _Sample(clock)
        self._lines: deque[bytes] = deque(maxlen=_MOST_WAITING_LINES)
        self._answers: dict[tuple[int, str], tuple[int, list[float]]] = {}
        self._listens = self._has_failed = self._has_reported = False
        self._reported_at = -inf
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    def start(self) -> None:
        """Start to ask the store whether an inspector is open."""
        if self._task is None:
            self._stop = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Publish the remaining lines, and stop asking the store about inspectors."""
        task, self._task = self._task, None
        if task is not None:
            self._stop.set()
            try:
                await asyncio.wait({task})
            finally:  # if `stop` is cancelled, the task must not open the store again
                task.cancel()

    async def _run(self) -> None:
        while not self._stop.is_set():
            await self._publish()
            pause = _PUBLISH_SECONDS if self._listens else _ASK_SECONDS
            await set_within(pause, self._stop)
        if self._listens or self._has_reported:
            await self._publish()
            self._listen(False)

    async def _publish(self) -> None:
        lines = self._drained()
        try:
            call = self._store.publish(self._endpoint, lines)
            self._listen(await within(self._store_seconds, call))
            await self._report()
        except StoreError as error:
            if not self._has_failed:
                _log.info("cannot publish this process's activity: %s", error)
            self._has_failed = True
        except Exception:  # noqa: BLE001 - an error here must not harm deliveries
            _log.exception("cannot publish this process's activity")
            self._listen(False)
        else:
            self._has_failed = False

    async def _report(self) -> None:
        """Write the report if it is due; remove it when this process stops being a worker."""
        now = uptime()
        pause = _WATCHED_REPORT_SECONDS if self._listens else REPORT_SECONDS
        report = self._workload()
        if report is None and not self._has_reported:
            return
        if report is not None and now < self._reported_at + pause:
            return
        content = None if report is None else report.dump()
        call = self._store.report_worker(self._endpoint, process_name(), content)
        await within(self._store_seconds, call)
        self._reported_at, self._has_reported = now, report is not None

    def _listen(self, is_watched: bool) -> None:
        if is_watched and not self._listens:
            self._observers.add(self, of=self._sample)
        elif self._listens and not is_watched:
            self._observers.remove(self)
            self._lines.clear()
            self._answers.clear()
        self._listens = is_watched

    def _drained(self) -> Sequence[bytes]:
        lines = list(self._lines)
        self._lines.clear()
        if self._answers:
            lines.append(
                _line("answers", [[*key, *counted] for key, counted in self._answers.items()])
            )
            self._answers.clear()
        return lines

    def delivery_answered(self, record: DeliveryAnswered) -> None:
        """Count an answer; publish the delivery if it is genuine and its event is selected."""
        outcome, verified = record.outcome, record.verified
        key = (int(outcome.status), str(outcome.reason))
        count, times = self._answers.get(key, (0, []))
        if len(times) < _MOST_TIMES:
            times.append(round(record.seconds, 6))
        self._answers[key] = (count + 1, times)
        if verified is None or record.received is None or verified.id not in self._sample:
            return
        hints = record.hints or DeliveryHints()
        signed = [verified.id, verified.timestamp, verified.secret_index, verified.signature_count]
        answer = [*key, round(record.seconds, 6), record.event_type]
        self._lines.append(
            _line("delivery", [record.received.at_unix, signed, verified.skew, list(hints), answer])
        )

    def note(self, record: StepRecord) -> None:
        """Publish a step of a selected event, or a failure of any event."""
        event_id, step = step_of(record, self._clock())
        self._lines.append(_line("step", [event_id, *step[:-1]]))


def _line(kind: str, content: Sequence[object]) -> bytes:
    return json.dumps([kind, process_name(), content], separators=(",", ":")).encode()


def read_line(line: bytes, endpoint: str) -> list[RemoteRecord]:
    """Parse a line; return an empty list if this process or an unknown version wrote it."""
    try:
        kind, process, content = json.loads(line)
        if process == process_name():
            return []
        match kind:
            case "step":
                return [_read_step(process, content)]
            case "delivery":
                return [_read_delivery(endpoint, process, content)]
            case _:
                return [_read_answers(*answers) for answers in content]
    except (ValueError, TypeError, LookupError):
        return []


def _read_step(process: str, content: Any) -> RemoteStep:
    event_id, at, what, attempt, text, state, *rest = content
    step = EventStep(float(at), What(what), attempt, str(text), EventState(state), *rest)
    return RemoteStep(event_id, step._replace(process=process))


def _read_delivery(endpoint: str, process: str, content: Any) -> RemoteDelivery:
    at, (event_id, timestamp, index, signatures), skew, hints, answer = content
    status, reason, seconds, event_type = answer
    verified = VerifiedDelivery(
        id=event_id,
        timestamp=timestamp,
        body=b"",
        secret_index=index,
        signature_count=signatures,
        skew=skew,
    )
    answered = DeliveryAnswered(
        endpoint,
        Outcome(status, reason),
        float(seconds),
        verified=verified,
        event_type=event_type,
        hints=DeliveryHints(*hints),
    )
    return RemoteDelivery(float(at), answered, process)


def _read_answers(status: int, reason: str, number: int, times: list[float]) -> RemoteAnswers:
    return RemoteAnswers(Outcome(status, reason), int(number), tuple(map(float, times)))
