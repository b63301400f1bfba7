"""Observers are notified of every step in order, and their errors never reach a delivery."""

import asyncio
import contextvars
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.servers import delivering
from support.stores import FaultyStore
from support.waiting import until

from hookonce import Backoff, Inbox, Limits, Receiver, Reject, Retry, operations
from hookonce.events import CommentReceived, WebhookTest
from hookonce.stores.memory import MemoryStore
from hookonce.stores.values import Claimed, DeadReason, Delivery, Done, Stored
from hookonce.testing import make_event, signed_request
from hookonce.testing.pytest_plugin import SenderFactory
from hookonce.watching.records import (
    BatchFlushed,
    DeliveryAnswered,
    DeliveryAuthenticated,
    DeliveryReceived,
    EventBuried,
    EventClaimed,
    EventEnqueued,
    EventFetched,
    EventRetried,
    EventSettled,
    HandlerFailed,
    HandlerFinished,
    HandlerStarted,
    Observer,
)

pytestmark = pytest.mark.anyio

SOON = Backoff(first_seconds=0.01, factor=1, jitter=0)

# The Protocol's own methods; this list must name all of them.
METHODS = [name for name in vars(Observer) if not name.startswith("_")]


class Notes:
    """Notes every record, without a base class: the Protocol is enough."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    def __getattr__(self, name: str) -> Callable[[Any], None]:
        if name in METHODS:
            return self.records.append
        raise AttributeError(name)

    @property
    def names(self) -> list[str]:
        return [type(record).__name__ for record in self.records]

    def of(self, kind: type) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def receiver(webhook_secret: str, notes: Notes) -> Receiver:
    return Receiver(secrets=webhook_secret, store="memory://", observers=[notes])


@pytest.fixture
def inbox_receiver(webhook_secret: str, notes: Notes, tmp_path: Path) -> Receiver:
    return Receiver(
        secrets=webhook_secret,
        store=f"sqlite:///{tmp_path}/hooks.db",
        inbox=Inbox(max_attempts=2, backoff=SOON),
        observers=[notes],
    )


def test_each_record_has_the_hook_of_its_name() -> None:
    inside_records = {"FailureStreak", "Refusals", "Rotation", "SkipReason"}
    of_workers = {"AttemptCounts", "RunningHandler", "WorkerReport"}
    records = set(operations.__all__) - {"Observer"} - inside_records - of_workers
    assert records == {"".join(map(str.title, name.split("_"))) for name in METHODS}


async def test_observers_are_notified_of_each_step_of_a_delivery(
    receiver: Receiver, notes: Notes, webhook_sender: SenderFactory
) -> None:
    receiver.on(CommentReceived, name="greet")(lambda _: None)
    event = make_event(CommentReceived)
    async with webhook_sender(receiver) as sender:
        (await sender.send(event, attempt=3)).expect(200, "handled")
    assert notes.names == [
        "DeliveryReceived",
        "DeliveryAuthenticated",
        "EventClaimed",
        "HandlerStarted",
        "HandlerFinished",
        "EventSettled",
        "DeliveryAnswered",
    ]
    received, verified, claimed, started, finished, settled, answered = notes.records
    assert verified.received is received
    assert (verified.delivery.id, verified.delivery.secret_index) == (event.id, 0)
    assert isinstance(claimed.result, Claimed)
    assert (started.handler, started.attempt) == ("greet", 1)
    assert finished.seconds >= 0
    assert (settled.attempt, settled.outcome.status) == (1, 200)
    assert answered.received is received
    assert (answered.event_id, answered.event_type) == (event.id, "comment.received")
    assert (answered.hints.attempt, answered.outcome.reason) == (3, "handled")
    assert verified.hints is answered.hints
    assert verified.delivery is answered.verified
    assert (answered.endpoint, answered.refusal) == ("default", None)
    assert answered.headers.message_id == event.id
    assert 0 < answered.seconds < 60


async def test_a_duplicate_is_reported_as_done(
    receiver: Receiver, notes: Notes, webhook_sender: SenderFactory
) -> None:
    receiver.on(CommentReceived, name="greet")(lambda _: None)
    event = make_event(CommentReceived)
    async with webhook_sender(receiver) as sender:
        await sender.send(event)
        notes.records.clear()
        (await sender.send(event)).expect(200, "duplicate")
    assert [record.result for record in notes.of(EventClaimed)] == [Done()]
    assert not notes.of(HandlerStarted)


async def test_a_refusal_is_reported_with_its_reason_and_its_skew(
    receiver: Receiver, notes: Notes, webhook_secret: str
) -> None:
    request = signed_request(make_event(CommentReceived), webhook_secret, skew=400)
    outcome = await receiver.handle(request.body, request.headers)
    assert notes.names == ["DeliveryReceived", "DeliveryRefused", "DeliveryAnswered"]
    received, refused, answered = notes.records
    assert refused.received is answered.received is received
    assert (received.endpoint, received.body, received.is_backfill) == (
        "default",
        request.body,
        False,
    )
    assert (refused.error.reason, refused.error.skew // 100) == (outcome.reason, 4)
    assert (answered.refusal, answered.event_id) == (refused.error, None)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ValueError("broken"), "handler_failed"), (Retry(after=60), "retry_requested")],
)
async def test_a_failure_inside_the_request_settles_without_success(
    receiver: Receiver,
    notes: Notes,
    webhook_sender: SenderFactory,
    error: Exception,
    reason: str,
) -> None:
    @receiver.on(CommentReceived, name="greet")
    async def greet(_: CommentReceived) -> None:
        raise error

    async with webhook_sender(receiver) as sender:
        await sender.send(make_event(CommentReceived))
    (failed,), (settled,) = notes.of(HandlerFailed), notes.of(EventSettled)
    assert failed.error is error
    assert settled.outcome.reason == reason


async def test_each_step_names_its_delivery_its_handler_and_its_attempt(
    webhook_secret: str, notes: Notes, tmp_path: Path
) -> None:
    receiver = Receiver(
        secrets=webhook_secret, store=f"sqlite:///{tmp_path}/hooks.db", observers=[notes]
    )
    errors = [ValueError("busy"), Reject("no")]

    @receiver.on(CommentReceived, name="fails")
    async def fail(_: CommentReceived) -> None:
        raise errors[len(notes.of(EventClaimed)) - 1]

    receiver.on(CommentReceived, name="done")(lambda _: None)
    event = make_event(CommentReceived)
    request = signed_request(event, webhook_secret)
    async with receiver:
        await receiver.handle(request.body, request.headers)
        await receiver.handle(request.body, request.headers)
    first, second = (
        Delivery("default", event.id, event.type, received.at_unix, request.body)
        for received in notes.of(DeliveryReceived)
    )
    assert [record.delivery for record in notes.of(EventClaimed)] == [first, second]
    assert [
        (one.delivery, one.handler, one.attempt, one.is_replay) for one in notes.of(HandlerStarted)
    ] == [(first, "fails", 1, False), (first, "done", 1, False), (second, "fails", 2, False)]
    [finished], failed = notes.of(HandlerFinished), notes.of(HandlerFailed)
    assert (finished.delivery, finished.handler, finished.attempt) == (first, "done", 1)
    assert [(one.delivery, one.handler, one.attempt, one.error) for one in failed] == [
        (first, "fails", 1, errors[0]),
        (second, "fails", 2, errors[1]),
    ]
    assert all(0 <= record.seconds < 60 for record in (finished, *failed))
    [settled], [buried] = notes.of(EventSettled), notes.of(EventBuried)
    assert (settled.delivery, settled.attempt) == (first, 1)
    assert settled.outcome.reason == "handler_failed"
    assert (buried.delivery, buried.attempt) == (second, 2)
    assert (buried.reason, buried.error) == (DeadReason.REJECTED, "fails: Reject: no")


async def test_a_failure_that_the_store_records_too_late_settles_as_what_was_answered(
    webhook_secret: str, notes: Notes
) -> None:
    store, limits = FaultyStore(MemoryStore()), Limits(lease_seconds=0.15)
    receiver = Receiver(secrets=webhook_secret, store=store, limits=limits, observers=[notes])

    @receiver.on(CommentReceived, name="fails")
    async def fail(_: CommentReceived) -> None:
        raise ValueError("x")

    request = signed_request(make_event(CommentReceived), webhook_secret)
    store.failures["release"] = -1
    async with receiver:
        answer = await receiver.handle(request.body, request.headers)
        await until(lambda: notes.of(EventSettled))
        store.failures.clear()
    [settled] = notes.of(EventSettled)
    assert settled.outcome == answer
    assert answer.reason == "store_unavailable"


async def test_a_handler_that_is_cancelled_at_a_shutdown_has_failed(
    webhook_secret: str, notes: Notes, webhook_sender: SenderFactory
) -> None:
    receiver = Receiver(
        secrets=webhook_secret,
        store="memory://",
        limits=Limits(answer_seconds=0.05, drain_seconds=0.05),
        observers=[notes],
    )

    @receiver.on(CommentReceived, name="greet")
    async def greet(_: CommentReceived) -> None:
        await asyncio.Event().wait()

    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(CommentReceived))).expect(503, "still_running")
    (failed,) = notes.of(HandlerFailed)
    assert (failed.handler, failed.attempt) == ("greet", 1)
    assert failed.delivery.event_type == "comment.received"
    assert 0.05 <= failed.seconds < 60
    assert str(failed.error) == "cancelled at shutdown"


@pytest.mark.parametrize("reason", [DeadReason.REJECTED, DeadReason.UNREADABLE])
async def test_a_burial_is_reported_with_its_reason(
    webhook_secret: str,
    notes: Notes,
    tmp_path: Path,
    webhook_sender: SenderFactory,
    reason: DeadReason,
) -> None:
    receiver = Receiver(
        secrets=webhook_secret,
        store=f"sqlite:///{tmp_path}/hooks.db",
        observers=[notes],
    )

    @receiver.on(CommentReceived, name="greet")
    async def greet(_: CommentReceived) -> None:
        raise Reject("not ours")

    event = make_event(CommentReceived)
    async with webhook_sender(receiver) as sender:
        await sender.send(event if reason is DeadReason.REJECTED else b"no event")
    (buried,) = notes.of(EventBuried)
    assert (buried.reason, buried.attempt) == (reason, 1)
    assert not notes.of(EventSettled)


async def test_the_way_through_the_inbox_is_reported_up_to_its_end(
    inbox_receiver: Receiver, notes: Notes, webhook_sender: SenderFactory
) -> None:
    @inbox_receiver.on(CommentReceived, name="greet")
    async def greet(_: CommentReceived) -> None:
        raise ValueError("broken")

    async with webhook_sender(inbox_receiver) as sender:
        (await sender.send(make_event(CommentReceived))).expect(202, "stored")
        await until(lambda: notes.of(EventBuried), what="the burial")
    (put,) = notes.of(EventEnqueued)
    assert isinstance(put.result, Stored)
    assert [record.attempt for record in notes.of(EventFetched)] == [1, 2]
    (retried,) = notes.of(EventRetried)
    assert (retried.attempt, retried.after_seconds) == (1, 0.01)
    (buried,) = notes.of(EventBuried)
    assert (buried.attempt, buried.reason) == (2, DeadReason.EXHAUSTED)
    assert retried.error == buried.error == "greet: ValueError: broken"
    assert retried.delivery.event_id == buried.delivery.event_id == put.delivery.event_id


async def test_a_worker_reports_an_event_that_it_cannot_begin(
    webhook_secret: str, notes: Notes, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/hooks.db"
    web = Receiver(secrets=webhook_secret, store=store, inbox=Inbox(embedded=False))
    web.on(CommentReceived, name="greet")(lambda _: None)
    request = signed_request(make_event(CommentReceived), webhook_secret)
    async with web:
        assert (await web.handle(request.body, request.headers)).reason == "stored"
    worker = Receiver(
        secrets=webhook_secret,
        store=store,
        inbox=Inbox(max_attempts=2, backoff=SOON),
        observers=[notes],
    )
    async with worker:
        await until(lambda: notes.of(EventBuried), what="the burial")
    (retried,) = notes.of(EventRetried)
    assert "no handler" in retried.error
    assert len(notes.of(EventFetched)) == 2


async def test_an_answer_to_a_request_that_is_no_delivery_is_reported_as_well(
    receiver: Receiver, notes: Notes, webhook_secret: str
) -> None:
    async with delivering(receiver, webhook_secret) as sender:
        assert (await sender.client.get("/webhooks")).status_code == 405
    (answered,) = notes.of(DeliveryAnswered)
    assert (answered.outcome.reason, answered.received) == ("method_not_allowed", None)
    assert not notes.of(DeliveryReceived)


async def test_a_store_reports_how_many_calls_it_committed_at_once(
    webhook_secret: str, notes: Notes, durable_url: str
) -> None:
    receiver = Receiver(secrets=webhook_secret, store=durable_url, observers=[notes])
    receiver.on(CommentReceived, name="greet")(lambda _: None)
    requests = [signed_request(make_event(CommentReceived), webhook_secret) for _ in range(20)]
    async with receiver:
        await asyncio.gather(*(receiver.handle(one.body, one.headers) for one in requests))
    flushed = notes.of(BatchFlushed)
    kind = "SQLiteStore" if durable_url.startswith("sqlite:") else "RedisStore"
    assert {record.store for record in flushed} == {kind}
    assert sum(record.calls for record in flushed) >= 40  # a claim and a completion for each event
    assert max(record.calls for record in flushed) > 1
    assert all(record.seconds >= 0 for record in flushed)


async def test_an_error_of_an_observer_is_logged_and_harms_no_delivery(
    webhook_secret: str, webhook_sender: SenderFactory, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    def broken(name: str) -> Callable[[Any], None]:
        def method(_: object) -> None:
            told.append(name)
            raise SystemExit(name)

        return method

    bad: Any = type("Bad", (), {name: staticmethod(broken(name)) for name in METHODS})()
    notes: Any = Notes()
    receiver = Receiver(secrets=webhook_secret, store="memory://", observers=[bad, notes])
    receiver.on(CommentReceived, name="greet")(lambda _: None)
    with caplog.at_level(logging.ERROR, logger="hookonce.observation"):
        async with webhook_sender(receiver) as sender:
            (await sender.send(make_event(CommentReceived))).expect(200, "handled")
    assert len(told) == len(notes.records) == len(caplog.records) == 7
    assert all("is not affected" in record.getMessage() for record in caplog.records)


async def test_a_handler_sees_the_context_variables_that_an_observer_sets(
    webhook_secret: str, webhook_sender: SenderFactory
) -> None:
    trace = contextvars.ContextVar("trace", default="none")
    seen: dict[str, str] = {}

    class Tracing(Observer):
        def handler_started(self, record: HandlerStarted) -> None:
            trace.set(record.handler)

    receiver = Receiver(secrets=webhook_secret, store="memory://", observers=[Tracing()])

    @receiver.on(CommentReceived, name="async")
    async def first(_: CommentReceived) -> None:
        seen["async"] = trace.get()

    @receiver.on(CommentReceived, name="sync")
    def second(_: CommentReceived) -> None:
        seen["sync"] = trace.get()

    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
    assert seen == {"async": "async", "sync": "sync"}
    assert trace.get() == "none"


async def test_an_observer_that_is_added_later_is_notified_from_then_on(
    receiver: Receiver, webhook_sender: SenderFactory
) -> None:
    later: Any = Notes()
    receiver.on(WebhookTest, name="test")(lambda _: None)
    async with webhook_sender(receiver) as sender:
        await sender.send(make_event(WebhookTest))
        receiver.observe(later)
        await sender.send(make_event(WebhookTest))
    assert len(later.of(DeliveryAnswered)) == 1


async def test_an_observer_of_some_events_hears_of_others_only_what_it_must(
    webhook_secret: str, webhook_sender: SenderFactory
) -> None:
    receiver = Receiver(secrets=webhook_secret, store="memory://")
    sampled, other, failing = (make_event(CommentReceived) for _ in range(3))
    closely: Any = Notes()
    receiver.observe(closely, of={sampled.id})

    @receiver.on(CommentReceived, name="greet")
    async def greet(event: CommentReceived) -> None:
        if event.id == failing.id:
            raise ValueError("no")

    async with webhook_sender(receiver) as sender:
        for event in (sampled, other, failing):
            await sender.send(event)
    # Each delivery begins with its arrival, and ends with its answer.
    ends = [i for i, name in enumerate(closely.names) if name == "DeliveryAnswered"]
    first, second, third = (
        closely.names[begin + 1 : end] for begin, end in zip([-1, *ends[:-1]], ends, strict=True)
    )
    assert first[2:] == ["EventClaimed", "HandlerStarted", "HandlerFinished", "EventSettled"]
    assert second == ["DeliveryReceived", "DeliveryAuthenticated"]
    assert third == ["DeliveryReceived", "DeliveryAuthenticated", "HandlerFailed"]


async def test_an_observer_whose_choice_of_events_is_broken_harms_nothing(
    receiver: Receiver,
    notes: Notes,
    webhook_sender: SenderFactory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        def __contains__(self, event_id: object) -> bool:
            raise OSError("away")

    class Claims(Observer):
        def event_claimed(self, record: EventClaimed) -> None:
            raise AssertionError(record)

    receiver.observe(Claims(), of=Broken())
    receiver.on(CommentReceived, name="greet")(lambda _: None)
    async with webhook_sender(receiver) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
    assert len(notes.of(EventClaimed)) == 1
    (line,) = [record for record in caplog.records if record.name == "hookonce.observation"]
    assert "the delivery is not affected" in line.getMessage()


async def test_a_copy_is_not_watched_by_the_observers_of_its_original(
    receiver: Receiver, notes: Notes, webhook_sender: SenderFactory
) -> None:
    async with webhook_sender(receiver.copy()) as sender:
        await sender.send(make_event(CommentReceived))
    assert not notes.records


def test_an_object_that_cannot_observe_is_refused_when_it_is_given(receiver: Receiver) -> None:
    class Waiting(Observer):
        async def event_enqueued(self, record: EventEnqueued) -> None:  # type: ignore[override]
            raise AssertionError(record)

    for wrong, fault in ((object(), "subclass of Observer"), (Observer, "give an instance")):
        with pytest.raises(TypeError, match=fault):
            receiver.observe(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="event_enqueued is async"):
        receiver.observe(Waiting())


async def test_no_record_shows_a_body_or_a_header_when_it_is_printed(
    receiver: Receiver, notes: Notes, webhook_sender: SenderFactory
) -> None:
    receiver.on(CommentReceived, name="greet")(lambda *_: None)
    async with webhook_sender(receiver) as sender:
        await sender.send(make_event(CommentReceived, data={"text": "confidential"}))
    printed = repr(notes.records)
    assert "confidential" not in printed
    assert "v1," not in printed
    assert len(notes.of(DeliveryAuthenticated)) == 1
