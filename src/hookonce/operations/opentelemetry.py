"""Traces and metrics for OpenTelemetry, by its API alone; the SDK is the application's affair.

The span of the request, which the application's instrumentation has begun, is told what was
delivered and what became of it. Each run of a handler is a CONSUMER span and the root of a trace of
its own, with a link to the request's span: it may outlive the request, and it may be one of many
attempts. A ``traceparent`` that came with the delivery is linked too and never a parent, since it
is not signed: whoever writes one must not choose our trace, or whether it is sampled.

A delivery that went through the inbox has no link: a store keeps no trace context, and the worker
may be another process. ``messaging.message.id`` is on the request's span and on those of all runs.

The names are those of the semantic conventions for messaging, 1.44. They are in development, and
the package that has them as constants moves them about from release to release, so they stand here
as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass

from .. import __version__
from ..errors import Reject, Retry
from ..verification.headers import RawHeaders, header_pairs
from ..watching.records import (
    DeliveryAnswered,
    DeliveryAuthenticated,
    DeliveryReceived,
    EventBuried,
    EventRetried,
    HandlerFailed,
    HandlerFinished,
    HandlerSkipped,
    HandlerStarted,
    Observer,
)

try:
    from opentelemetry import context as otel_context
    from opentelemetry.metrics import MeterProvider, get_meter
    from opentelemetry.trace import (
        Link,
        Span,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TracerProvider,
        get_current_span,
        get_tracer,
        set_span_in_context,
    )
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "opentelemetry":
        raise
    raise ImportError(
        "traces and metrics need opentelemetry-api: pip install 'hookonce[otel]'",
        name="opentelemetry",
    ) from error

__all__ = ["OpenTelemetryObserver"]

# The body names the type, and its sender is genuine, but nothing bounds its length.
_LONGEST_TYPE = 256

_SYSTEM = {"messaging.system": "webhook"}
_RECEIVE = _SYSTEM | {"messaging.operation.name": "receive"}
_PROCESS = _SYSTEM | {"messaging.operation.name": "process"}

# The conventions advise these for every duration.
_DURATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

_PROPAGATOR = TraceContextTextMapPropagator()


@dataclass(frozen=True, slots=True)
class _Arrival:
    """What the runs of handlers within a request are linked to."""

    server: SpanContext
    headers: RawHeaders


@dataclass(frozen=True, slots=True)
class _Run:
    span: Span
    token: Token[otel_context.Context]


_arrival: ContextVar[_Arrival | None] = ContextVar("hookonce_arrival", default=None)
_run: ContextVar[_Run | None] = ContextVar("hookonce_run", default=None)


class OpenTelemetryObserver(Observer):
    """Traces and measures what a receiver does, or several.

    Metrics: ``messaging.client.consumed.messages`` (genuine deliveries) and
    ``messaging.process.duration`` (runs of handlers) after the conventions; beside them
    ``hookonce.deliveries`` (every request, by reason), ``hookonce.handlers.skipped``,
    ``hookonce.events.retried`` and ``hookonce.events.buried``. Their attributes are bounded:
    endpoints, handlers, reasons, and the classes of exceptions. Only spans name events.

    Args:
        tracer_provider: whose tracer makes the spans; the global one by default.
        meter_provider: whose meter measures; the global one by default.

    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self._tracer = get_tracer("hookonce", __version__, tracer_provider)
        meter = get_meter("hookonce", __version__, meter_provider)
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            "{message}",
            "Number of messages that were delivered to the application.",
        )
        self._duration = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of processing operation.",
            explicit_bucket_boundaries_advisory=_DURATION_BUCKETS,
        )
        self._skipped = meter.create_counter(
            "hookonce.handlers.skipped", "{handler}", "Handlers that were not run, by why."
        )
        self._deliveries = meter.create_counter(
            "hookonce.deliveries", "{delivery}", "Requests answered, by reason."
        )
        self._retried = meter.create_counter(
            "hookonce.events.retried",
            "{event}",
            "Failed attempts after which an event waits in the inbox for the next.",
        )
        self._buried = meter.create_counter(
            "hookonce.events.buried", "{event}", "Events that became dead letters."
        )

    def delivery_received(self, record: DeliveryReceived) -> None:
        """Note what runs within this request are linked to."""
        _arrival.set(_Arrival(get_current_span().get_span_context(), record.headers))

    def delivery_authenticated(self, record: DeliveryAuthenticated) -> None:
        """Tell the request's span what was delivered."""
        span, delivery, hints = get_current_span(), record.delivery, record.hints
        if not span.is_recording():
            return
        span.set_attributes(
            {
                **_RECEIVE,
                "messaging.operation.type": "receive",
                "messaging.destination.name": record.received.endpoint,
                "messaging.message.id": delivery.id,
                "messaging.message.body.size": len(delivery.body),
                "hookonce.verification.clock_skew_seconds": delivery.skew,
                "hookonce.secret_index": delivery.secret_index,
            }
        )
        if hints.attempt is not None:
            span.set_attribute("hookonce.delivery_attempt", hints.attempt)

    def delivery_answered(self, record: DeliveryAnswered) -> None:
        """Tell the request's span what became of it, and count."""
        _arrival.set(None)
        reason, status = str(record.outcome.reason), int(record.outcome.status)
        destination = {"messaging.destination.name": record.endpoint}
        span = get_current_span()
        if span.is_recording():
            span.set_attributes(destination | {"hookonce.reason": reason})
            if record.event_type is not None:
                span.set_attribute("hookonce.event_type", record.event_type[:_LONGEST_TYPE])
        self._deliveries.add(
            1, destination | {"hookonce.reason": reason, "http.response.status_code": status}
        )
        if record.event_id is not None:
            failed = {} if status < 400 else {"error.type": reason}
            self._consumed.add(1, _RECEIVE | destination | failed)

    def handler_started(self, record: HandlerStarted) -> None:
        """Begin a trace for the run, in which the handler finds itself."""
        delivery = record.delivery
        span = self._tracer.start_span(
            f"process {delivery.endpoint}",
            otel_context.Context(),  # no parent: a root
            SpanKind.CONSUMER,
            {
                **_PROCESS,
                "messaging.operation.type": "process",
                "messaging.destination.name": delivery.endpoint,
                "messaging.message.id": delivery.event_id,
                "messaging.message.body.size": len(delivery.body),
                "hookonce.event_type": (delivery.event_type or "")[:_LONGEST_TYPE],
                "hookonce.handler": record.handler,
                "hookonce.attempt": record.attempt,
                "hookonce.is_replay": record.is_replay,
            },
            _links(_arrival.get()),
        )
        _run.set(_Run(span, otel_context.attach(set_span_in_context(span))))

    def handler_finished(self, record: HandlerFinished) -> None:
        """End the trace of a run that has succeeded."""
        self._end(record, "succeeded", {})

    def handler_skipped(self, record: HandlerSkipped) -> None:
        """Count a handler that was not run, and end its trace if its ledger has said so."""
        self._skipped.add(
            1,
            {
                "messaging.destination.name": record.delivery.endpoint,
                "hookonce.handler": record.handler,
                "hookonce.reason": record.reason,
            },
        )
        self._end_span(record.reason)

    def handler_failed(self, record: HandlerFailed) -> None:
        """End the trace of a run that has not; a ``Retry`` is no error."""
        if isinstance(record.error, Retry):
            self._end(record, "retry_requested", {})
            return
        error_type = _class_name(record.error)
        run = _run.get()
        if run is not None and run.span.is_recording():
            run.span.record_exception(record.error)
            run.span.set_status(Status(StatusCode.ERROR, error_type))
            run.span.set_attribute("error.type", error_type)
        result = "rejected" if isinstance(record.error, Reject) else "failed"
        self._end(record, result, {"error.type": error_type})

    def event_retried(self, record: EventRetried) -> None:
        """Count an attempt that is made again."""
        self._retried.add(1, {"messaging.destination.name": record.delivery.endpoint})

    def event_buried(self, record: EventBuried) -> None:
        """Count a dead letter."""
        attributes = {
            "messaging.destination.name": record.delivery.endpoint,
            "hookonce.reason": str(record.reason),
        }
        self._buried.add(1, attributes)

    def _end(
        self, record: HandlerFinished | HandlerFailed, result: str, failed: Mapping[str, str]
    ) -> None:
        self._duration.record(
            record.seconds,
            {
                **_PROCESS,
                "messaging.destination.name": record.delivery.endpoint,
                "hookonce.handler": record.handler,
                **failed,
            },
        )
        self._end_span(result)

    def _end_span(self, result: str) -> None:
        run = _run.get()
        if run is not None:
            _run.set(None)
            run.span.set_attribute("hookonce.result", result)
            run.span.end()
            otel_context.detach(run.token)


def _links(arrival: _Arrival | None) -> list[Link]:
    """Return links to the request's span, and to the sender's where that is in another trace."""
    if arrival is None:
        return []
    sender = _sent_from(arrival.headers)
    links = [Link(arrival.server)] if arrival.server.is_valid else []
    if sender.is_valid and sender.trace_id != arrival.server.trace_id:
        links.append(Link(sender))
    return links


def _sent_from(headers: RawHeaders) -> SpanContext:
    """Return the span that a ``traceparent`` names; an invalid one where there is none."""
    named = [_text(v) for name, v in header_pairs(headers) if _text(name).lower() == "traceparent"]
    carrier = {"traceparent": named[-1]} if named else {}
    found = _PROPAGATOR.extract(carrier, otel_context.Context())
    return get_current_span(found).get_span_context()


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _class_name(error: Exception) -> str:
    """Return the class of an exception as the conventions spell it."""
    cls = type(error)
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )
