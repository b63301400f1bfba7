"""Traces and metrics for OpenTelemetry.

This module needs only OpenTelemetry's API; the application installs the SDK.

The application's instrumentation starts the request's span; the observer adds the delivery and its
answer as attributes. Each handler runs in a CONSUMER span with its own trace, because a handler can
outlive the request and an event can have many attempts. This span is linked to the request's span.
It is also linked to the ``traceparent`` of the delivery, but never its child: the header is not
signed, so its author must not choose our trace id or whether we sample it.

A handler that a worker runs has no link, because the store keeps no trace context. The request's
span and the handlers' spans share ``messaging.message.id``.

The names follow the semantic conventions for messaging, version 1.44. They are written out here
because the package with their constants moves them between releases.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass

from .. import __version__
from ..errors import NeedsExtra, Reject, Retry
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

with NeedsExtra("otel", "the observer", "opentelemetry"):
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

__all__ = ["OpenTelemetryObserver"]

# Cut longer types, because a genuine sender may send a type of any length.
_LONGEST_TYPE = 256

_SYSTEM = {"messaging.system": "webhook"}
_RECEIVE = _SYSTEM | {"messaging.operation.name": "receive"}
_PROCESS = _SYSTEM | {"messaging.operation.name": "process"}

# The buckets for durations that OpenTelemetry's conventions recommend.
_DURATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

_PROPAGATOR = TraceContextTextMapPropagator()


@dataclass(frozen=True, slots=True)
class _Arrival:
    """The span and the headers of a request; the spans of its handlers are linked to this span."""

    server: SpanContext
    headers: RawHeaders


@dataclass(frozen=True, slots=True)
class _HandlerSpan:
    span: Span
    token: Token[otel_context.Context]


_arrival: ContextVar[_Arrival | None] = ContextVar("hookonce_arrival", default=None)
_handler: ContextVar[_HandlerSpan | None] = ContextVar("hookonce_handler_span", default=None)


class OpenTelemetryObserver(Observer):
    """Traces and measures the work of one or several receivers.

    Two metrics follow the conventions: ``messaging.client.consumed.messages`` counts genuine
    deliveries, and ``messaging.process.duration`` measures handlers. The others are
    ``hookonce.deliveries`` (every request, by reason), ``hookonce.handlers.skipped``,
    ``hookonce.events.retried`` and ``hookonce.events.buried``. Attributes of metrics come from
    bounded sets: endpoints, handlers, reasons and classes of exceptions. Only spans hold event ids.

    Args:
        tracer_provider: the provider of the tracer; the global one by default.
        meter_provider: the provider of the meter; the global one by default.
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
            "hookonce.handlers.skipped", "{handler}", "Handlers that did not run, by reason."
        )
        self._deliveries = meter.create_counter(
            "hookonce.deliveries", "{delivery}", "Requests answered, by reason."
        )
        self._retried = meter.create_counter(
            "hookonce.events.retried",
            "{event}",
            "Failed attempts after which the event waits in the inbox for the next attempt.",
        )
        self._buried = meter.create_counter(
            "hookonce.events.buried", "{event}", "Events that became dead letters."
        )

    def delivery_received(self, record: DeliveryReceived) -> None:
        """Keep the request's span and headers for the links of handlers' spans."""
        _arrival.set(_Arrival(get_current_span().get_span_context(), record.headers))

    def delivery_authenticated(self, record: DeliveryAuthenticated) -> None:
        """Add the delivery's attributes to the request's span."""
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
        """Add the answer to the request's span, and count it."""
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
        """Start a trace and make its span current for the handler."""
        delivery = record.delivery
        span = self._tracer.start_span(
            f"process {delivery.endpoint}",
            otel_context.Context(),  # an empty context: the span has no parent and begins a trace
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
        _handler.set(_HandlerSpan(span, otel_context.attach(set_span_in_context(span))))

    def handler_finished(self, record: HandlerFinished) -> None:
        """End the trace of a handler that succeeded."""
        self._end(record, "succeeded", {})

    def handler_skipped(self, record: HandlerSkipped) -> None:
        """Count a skipped handler; end its trace if the ledger skipped it."""
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
        """End the trace of a handler that raised; a ``Retry`` is not an error."""
        if isinstance(record.error, Retry):
            self._end(record, "retry_requested", {})
            return
        error_type = _class_name(record.error)
        current = _handler.get()
        if current is not None and current.span.is_recording():
            current.span.record_exception(record.error)
            current.span.set_status(Status(StatusCode.ERROR, error_type))
            current.span.set_attribute("error.type", error_type)
        result = "rejected" if isinstance(record.error, Reject) else "failed"
        self._end(record, result, {"error.type": error_type})

    def event_retried(self, record: EventRetried) -> None:
        """Count a failed attempt after which the event is tried again."""
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
        current = _handler.get()
        if current is not None:
            _handler.set(None)
            current.span.set_attribute("hookonce.result", result)
            current.span.end()
            otel_context.detach(current.token)


def _links(arrival: _Arrival | None) -> list[Link]:
    """Return links to the request's span, and to the sender's span if it is in another trace."""
    if arrival is None:
        return []
    sender = _sent_from(arrival.headers)
    links = [Link(arrival.server)] if arrival.server.is_valid else []
    if sender.is_valid and sender.trace_id != arrival.server.trace_id:
        links.append(Link(sender))
    return links


def _sent_from(headers: RawHeaders) -> SpanContext:
    """Return the span that ``traceparent`` names; an invalid span if the header is missing."""
    named = [_text(v) for name, v in header_pairs(headers) if _text(name).lower() == "traceparent"]
    carrier = {"traceparent": named[-1]} if named else {}
    found = _PROPAGATOR.extract(carrier, otel_context.Context())
    return get_current_span(found).get_span_context()


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _class_name(error: Exception) -> str:
    """Return an exception's class as OpenTelemetry's conventions write it."""
    cls = type(error)
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )
