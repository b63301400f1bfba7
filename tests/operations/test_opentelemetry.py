"""Spans and metrics of real receivers, as the OpenTelemetry SDK exports them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from support.waiting import until

from hookonce import Context, Event, Inbox, Receiver, Reject, Retry
from hookonce.events import CommentReceived
from hookonce.operations.opentelemetry import OpenTelemetryObserver, _Arrival, _links
from hookonce.testing import SignedRequest, TestSender, make_event, signed_request

from .exercise import OLD_SECRET, SECRET, deliver_everything, unknown_event

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Telemetry:
    """An observer, with the spans and metrics that the SDK exports for it."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader])
        self.tracer = self.tracers.get_tracer("the application's own")
        self.observer = OpenTelemetryObserver(self.tracers, self.meters)

    def spans(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.kind is kind]

    @property
    def request(self) -> ReadableSpan:
        [span] = self.spans(SpanKind.SERVER)
        return span

    @property
    def run(self) -> ReadableSpan:
        [span] = self.spans(SpanKind.CONSUMER)
        return span

    def metrics(self) -> dict[str, list[Any]]:
        data = self._reader.get_metrics_data()
        return (
            {
                metric.name: list(metric.data.data_points)
                for resource in data.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
            }
            if data is not None
            else {}
        )

    async def deliver(self, receiver: Receiver, request: SignedRequest) -> int:
        """Deliver inside a span, like an instrumented server."""
        with self.tracer.start_as_current_span("POST /webhooks", kind=SpanKind.SERVER):
            return (await receiver.handle(request.body, request.headers)).status


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry()
    yield telemetry
    telemetry.tracers.shutdown()
    telemetry.meters.shutdown()


@pytest.fixture
def receiver(telemetry: Telemetry) -> Receiver:
    return Receiver(secrets=SECRET, store="memory://", observers=[telemetry.observer])


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    assert span.attributes is not None
    return span.attributes


def traced_request(traceparent: str) -> SignedRequest:
    request = signed_request(make_event(CommentReceived), SECRET, attempt=3)
    return SignedRequest(request.body, {**request.headers, "Traceparent": traceparent})


@pytest.mark.anyio
async def test_the_request_span_describes_the_delivery_and_its_answer(
    telemetry: Telemetry, receiver: Receiver
) -> None:
    event = make_event(CommentReceived)
    request = signed_request(event, SECRET, attempt=2, skew=7)
    assert await telemetry.deliver(receiver, request) == 200
    described = dict(attributes(telemetry.request))
    assert described.pop("hookonce.verification.clock_skew_seconds") == pytest.approx(7, abs=5)
    assert described == {
        "messaging.system": "webhook",
        "messaging.operation.name": "receive",
        "messaging.operation.type": "receive",
        "messaging.destination.name": "default",
        "messaging.message.id": event.id,
        "messaging.message.body.size": len(request.body),
        "hookonce.event_type": "comment.received",
        "hookonce.delivery_attempt": 2,
        "hookonce.secret_index": 0,
        "hookonce.reason": "no_handler",
    }


@pytest.mark.anyio
async def test_the_span_of_a_forged_delivery_has_its_reason_and_none_of_its_claims(
    telemetry: Telemetry, receiver: Receiver
) -> None:
    forged = signed_request(make_event(CommentReceived), OLD_SECRET)
    assert await telemetry.deliver(receiver, forged) == 401
    assert attributes(telemetry.request) == {
        "messaging.destination.name": "default",
        "hookonce.reason": "no_matching_signature",
    }


@pytest.mark.parametrize("is_sync", [False, True], ids=["async", "sync"])
@pytest.mark.anyio
async def test_a_handler_runs_inside_a_root_span_that_is_linked_to_the_request(
    telemetry: Telemetry, receiver: Receiver, is_sync: bool
) -> None:
    inside = []

    def look(_: CommentReceived) -> None:
        inside.append(trace.get_current_span().get_span_context())
        with telemetry.tracer.start_as_current_span("a query", kind=SpanKind.CLIENT):
            pass

    async def look_async(event: CommentReceived) -> None:
        look(event)

    receiver.on(CommentReceived, name="look")(look if is_sync else look_async)
    await telemetry.deliver(receiver, signed_request(make_event(CommentReceived), SECRET))
    run, request = telemetry.run, telemetry.request
    assert run.name == "process default"
    assert run.parent is None
    assert inside == [run.context]
    assert [link.context.span_id for link in run.links] == [request.context.span_id]
    assert run.context.trace_id != request.context.trace_id
    [query] = telemetry.spans(SpanKind.CLIENT)
    assert query.parent == run.context
    assert attributes(run)["hookonce.handler"] == "look"
    assert attributes(run)["hookonce.result"] == "succeeded"
    assert attributes(run)["hookonce.attempt"] == 1
    assert run.status.status_code is StatusCode.UNSET


@pytest.mark.anyio
async def test_the_request_span_is_current_again_after_each_handler(
    telemetry: Telemetry, receiver: Receiver
) -> None:
    current = []

    @receiver.on(CommentReceived, name="fails")
    async def fails(_: CommentReceived) -> None:
        raise ConnectionError("busy")

    @receiver.on_error
    async def note(_: ExceptionGroup[Exception]) -> None:
        current.append(trace.get_current_span().get_span_context())

    await telemetry.deliver(receiver, signed_request(make_event(CommentReceived), SECRET))
    await until(lambda: current, what="the hook has run")
    assert current == [telemetry.request.context]


@pytest.mark.anyio
async def test_a_traceparent_is_linked_and_never_the_parent(
    telemetry: Telemetry, receiver: Receiver
) -> None:
    @receiver.on(CommentReceived)
    async def handle(_: CommentReceived) -> None: ...

    await telemetry.deliver(receiver, traced_request(f"00-{TRACE}-{SPAN}-01"))
    run = telemetry.run
    _, sender = run.links
    assert (f"{sender.context.trace_id:032x}", f"{sender.context.span_id:016x}") == (TRACE, SPAN)
    assert run.parent is None
    assert f"{run.context.trace_id:032x}" != TRACE


@pytest.mark.anyio
async def test_a_traceparent_that_the_server_has_adopted_is_not_linked_again(
    telemetry: Telemetry, receiver: Receiver
) -> None:
    @receiver.on(CommentReceived)
    async def handle(_: CommentReceived) -> None: ...

    traceparent = f"00-{TRACE}-{SPAN}-01"
    adopted = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
    token = attach(adopted)
    await telemetry.deliver(receiver, traced_request(traceparent))
    detach(token)
    assert f"{telemetry.request.context.trace_id:032x}" == TRACE
    assert [link.context for link in telemetry.run.links] == [telemetry.request.context]


@pytest.mark.anyio
async def test_a_replay_is_not_linked_to_the_earlier_delivery(
    telemetry: Telemetry, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/hooks.db"
    receiver = Receiver(secrets=SECRET, store=store, observers=[telemetry.observer])

    @receiver.on(CommentReceived)
    async def handle(_: CommentReceived, context: Context) -> None:
        if not context.is_replay:
            raise Reject("not yet")

    event = make_event(CommentReceived)
    async with receiver:
        await telemetry.deliver(receiver, signed_request(event, SECRET))
        await receiver.dead.replay(event.id)
    first, replay = telemetry.spans(SpanKind.CONSUMER)
    assert first.links
    assert attributes(replay)["hookonce.is_replay"] is True
    assert not replay.links


def test_an_invalid_span_is_not_linked() -> None:
    """The SDK drops an invalid link, but the API does not promise that every SDK does."""
    assert _links(None) == []
    assert _links(_Arrival(INVALID_SPAN_CONTEXT, [])) == []
    server = SpanContext(1, 1, is_remote=False)
    assert [link.context for link in _links(_Arrival(server, []))] == [server]


@pytest.mark.parametrize(
    "traceparent",
    ["", "00", "no trace", f"00-{'0' * 32}-{SPAN}-01", f"ff-{TRACE}-{SPAN}-01", "x" * 5000, "é"],
)
@pytest.mark.anyio
async def test_an_unusable_traceparent_gives_no_link_and_no_error(
    telemetry: Telemetry, receiver: Receiver, traceparent: str
) -> None:
    @receiver.on(CommentReceived)
    async def handle(_: CommentReceived) -> None: ...

    assert await telemetry.deliver(receiver, traced_request(traceparent)) == 200
    assert [link.context for link in telemetry.run.links] == [telemetry.request.context]


@pytest.mark.anyio
async def test_each_handler_of_an_event_has_its_own_trace(
    telemetry: Telemetry, receiver: Receiver
) -> None:
    both = asyncio.Barrier(2)
    inside = {}

    async def meet(_: CommentReceived, context: Context) -> None:
        await both.wait()
        inside[context.handler] = trace.get_current_span().get_span_context()

    for name in ("one", "two"):
        receiver.on(CommentReceived, name=name)(meet)
    await telemetry.deliver(receiver, signed_request(make_event(CommentReceived), SECRET))
    runs = {attributes(s)["hookonce.handler"]: s for s in telemetry.spans(SpanKind.CONSUMER)}
    assert inside == {name: run.context for name, run in runs.items()}
    assert len({run.context.trace_id for run in runs.values()}) == 2


@pytest.mark.parametrize(
    ("error", "result", "error_type"),
    [
        (ConnectionError("busy"), "failed", "ConnectionError"),
        (Reject("spam"), "rejected", "hookonce.errors.Reject"),
        (Retry(after=5), "retry_requested", None),
    ],
)
@pytest.mark.anyio
async def test_an_exception_of_a_handler_is_recorded_and_a_retry_is_no_error(
    telemetry: Telemetry,
    receiver: Receiver,
    error: Exception,
    result: str,
    error_type: str | None,
) -> None:
    @receiver.on(CommentReceived, name="fails")
    async def fails(_: CommentReceived) -> None:
        raise error

    await telemetry.deliver(receiver, signed_request(make_event(CommentReceived), SECRET))
    run = telemetry.run
    assert attributes(run)["hookonce.result"] == result
    assert attributes(run).get("error.type") == error_type
    assert (run.status.status_code is StatusCode.ERROR) is (error_type is not None)
    recorded = [(event.attributes or {})["exception.type"] for event in run.events]
    assert recorded == ([error_type] if error_type else [])


@pytest.mark.anyio
async def test_a_worker_s_handler_has_no_link_but_the_same_event_id(
    telemetry: Telemetry, tmp_path: Path
) -> None:
    receiver = Receiver(
        secrets=SECRET,
        store=f"sqlite:///{tmp_path}/hooks.db",
        inbox=Inbox(),
        observers=[telemetry.observer],
    )

    @receiver.on(CommentReceived)
    async def handle(_: CommentReceived) -> None: ...

    event = make_event(CommentReceived)
    with telemetry.tracer.start_as_current_span("start-up"):
        await receiver.__aenter__()
    try:
        await telemetry.deliver(receiver, signed_request(event, SECRET))
        await until(lambda: telemetry.spans(SpanKind.CONSUMER), what="the handler has run")
    finally:
        await receiver.__aexit__(None, None, None)
    run = telemetry.run
    assert run.parent is None
    assert not run.links
    for span in (run, telemetry.request):
        assert attributes(span)["messaging.message.id"] == event.id


@pytest.mark.anyio
async def test_a_delivery_without_a_request_span_is_handled(
    telemetry: Telemetry, receiver: Receiver
) -> None:
    @receiver.on(CommentReceived)
    async def handle(_: CommentReceived) -> None: ...

    async with TestSender(receiver, secrets=SECRET) as sender:
        (await sender.send(make_event(CommentReceived))).expect(200, "handled")
    assert not telemetry.run.links


@pytest.mark.anyio
async def test_deliveries_and_handlers_are_measured(telemetry: Telemetry, tmp_path: Path) -> None:
    await deliver_everything(telemetry.observer, tmp_path)
    points = telemetry.metrics()
    runs = points["messaging.process.duration"]
    failed = [p for p in runs if p.attributes.get("error.type") == "ConnectionError"]
    assert sum(p.count for p in runs) == 8
    assert {p.attributes["hookonce.handler"]: p.count for p in failed} == {
        "fails-once": 1,
        "works": 1,
        "never-works": 2,
    }
    assert sum(p.value for p in points["hookonce.deliveries"]) == 17
    genuine = points["messaging.client.consumed.messages"]
    assert sum(p.value for p in genuine) == 14
    left_to_a_retry = {p.attributes["error.type"] for p in genuine if "error.type" in p.attributes}
    assert left_to_a_retry == {"handler_failed", "retry_requested"}
    assert sum(p.value for p in points["hookonce.events.retried"]) == 2
    assert sum(p.value for p in points["hookonce.events.buried"]) == 4


@pytest.mark.anyio
async def test_hostile_ids_and_types_add_no_series(
    telemetry: Telemetry, receiver: Receiver
) -> None:
    @receiver.on_unknown
    async def note(_: Event[Any]) -> None: ...

    async with TestSender(receiver, secrets=SECRET) as sender:
        for number in range(50):
            event = unknown_event(f"type{number}" + "x" * 5000, f"evt_{number}")
            await sender.send(event)
            await sender.send(event, tamper=True)
    assert {name: len(points) for name, points in telemetry.metrics().items()} == {
        "hookonce.deliveries": 2,
        "messaging.client.consumed.messages": 1,
        "messaging.process.duration": 1,
    }
    assert max(len(str(attributes(s))) for s in telemetry.spans(SpanKind.CONSUMER)) < 1000


@pytest.mark.anyio
async def test_no_secret_signature_or_body_is_in_any_attribute(
    telemetry: Telemetry, tmp_path: Path
) -> None:
    with telemetry.tracer.start_as_current_span("everything", kind=SpanKind.SERVER):
        await deliver_everything(telemetry.observer, tmp_path)
    spans = [*telemetry.spans(SpanKind.SERVER), *telemetry.spans(SpanKind.CONSUMER)]
    shown = " ".join(span.to_json() for span in spans) + repr(telemetry.metrics())
    for secret in (SECRET, OLD_SECRET):
        assert secret.removeprefix("whsec_") not in shown
    assert re.search(r"v1,|whsec_|walnut", shown) is None


def test_names_are_those_of_the_conventions() -> None:
    """The observer does not import the conventions' constants, because their package moves them."""
    source = Path(OpenTelemetryObserver.__init__.__code__.co_filename).read_text("utf-8")
    used = set(re.findall(r'"(messaging\.[\w.]+)"', source))
    known = {
        value
        for module in (messaging_attributes, messaging_metrics)
        for name, value in vars(module).items()
        if name.startswith("MESSAGING_")
    }
    assert len(used) >= 7
    assert used <= known
