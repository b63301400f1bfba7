"""Metrics for Prometheus: an observer that counts, and the route ``/metrics``.

::

    observer = PrometheusObserver()
    receiver = Receiver(secrets=EnvironmentSecrets(), observers=[observer])
    app = Starlette(routes=[*receiver.routes("/webhooks"), *metrics_routes(receiver, observer)])

Label values come from bounded sets: the endpoints, handlers and event types that the application
registers, and the reasons and results that this package defines. An unregistered event type is
``unknown``, and a type that was not read is ``unread``. No label holds an id, a body, a signature
or a secret.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from math import inf

from ..clock import Clock, span_seconds, system_clock
from ..errors import NeedsExtra, Reject, Retry, SecretError, StoreError
from ..events import EVENT_CLASSES
from ..http.app import Message, Receive, Route, Scope, Send
from ..logs import get_logger
from ..outcome import Reason
from ..receiver import Receiver
from ..senders import publishing
from ..stores.time_limit import within
from ..watching.records import (
    BatchFlushed,
    DeliveryAnswered,
    EventBuried,
    EventDeferred,
    EventEnqueued,
    EventFetched,
    EventRetried,
    HandlerFailed,
    HandlerFinished,
    HandlerSkipped,
    LoopBlocked,
    Observer,
)
from ..watching.store_failures import RECENT_SECONDS

with NeedsExtra("prometheus", "PrometheusObserver", "prometheus_client"):
    from prometheus_client import CollectorRegistry, make_asgi_app, values
    from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

    from .prometheus_metrics import Metrics

__all__ = ["PrometheusObserver", "metrics_routes"]

_log = get_logger("hookonce.metrics")

# Limits the wait for the store: Prometheus stops a scrape after ten seconds. If the store does not
# answer in time, the scrape has counters but no gauges of the store.
_STATS_SECONDS = 2.0
# The shortest time between two updates of the gauges. An update at each delivery would double the
# cost, and Prometheus reads the gauges less often anyway.
_SAMPLING_SECONDS = 1.0


class PrometheusObserver(Observer):
    """Counts and measures the work of one receiver, or of several with different endpoints.

    Args:
        registry: the registry of the metrics, a new one by default. Pass
            ``prometheus_client.REGISTRY`` to show them beside your application's metrics.
        clock: the clock, which returns Unix time in seconds.

    Raises:
        ValueError: the registry has these metrics already.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, clock: Clock = system_clock
    ) -> None:
        self.registry: CollectorRegistry = CollectorRegistry() if registry is None else registry
        self._clock = clock
        self._metrics = Metrics(self.registry)
        self._receivers: dict[str, Receiver] = {}
        self._types = set(EVENT_CLASSES)
        self._store_failed_at: dict[str, float] = {}
        self._sampled: dict[tuple[object, ...], float] = {}

    def know(self, receiver: Receiver) -> None:
        """Add a receiver: its event types become labels, and its store gets gauges.

        Without this call, only the event types of the default sender are labels, and only its test
        events count as test events. ``metrics_routes`` and ``refreshing`` make this call.
        """
        self._receivers[receiver.endpoint] = receiver

    async def refresh(self) -> None:
        """Read the stores of all known receivers, and set their gauges.

        It raises nothing: if a store does not answer, ``hookonce_store_up`` becomes 0.
        """
        await asyncio.gather(*map(self._refresh, self._receivers.values()))

    @asynccontextmanager
    async def refreshing(
        self, receiver: Receiver, *, every_seconds: float | timedelta = 15.0
    ) -> AsyncIterator[None]:
        """Refresh the gauges regularly during the block, for a registry that you export yourself.

        ``metrics_routes`` does not need it, because it refreshes the gauges at each request.
        """
        self.know(receiver)
        seconds = span_seconds("every_seconds", every_seconds, positive=True)
        task = asyncio.get_running_loop().create_task(self._refresh_every(seconds))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _refresh_every(self, seconds: float) -> None:
        while True:
            try:
                await self.refresh()
            except Exception:  # noqa: BLE001 - the task must survive a faulty store
                _log.exception("could not refresh the store's metrics; will try again")
            await asyncio.sleep(seconds)

    async def _refresh(self, receiver: Receiver) -> None:
        endpoint = receiver.endpoint
        try:
            secrets = len(receiver.current_secrets())
        except SecretError:
            secrets = 0
        self._metrics.secrets[endpoint,].set(secrets)
        rotation = receiver.rotation
        is_missing = rotation is not None and not rotation.has_both
        self._metrics.secret_missing[endpoint,].set(is_missing)
        try:
            stats = await within(_STATS_SECONDS, receiver.stats())
        except StoreError as error:
            _log.warning("could not read the store's metrics for %s: %s", endpoint, error)
            self._metrics.store_up[endpoint,].set(0)
        else:
            failed_at = self._store_failed_at.get(endpoint, -inf)
            is_up = time.monotonic() - failed_at > RECENT_SECONDS
            self._metrics.store_up[endpoint,].set(is_up)
            self._metrics.show(endpoint, stats)

    def count_request(self, kind: str, status: int) -> None:
        """Count a request to ``hookonce serve``.

        Args:
            kind: what answered it, from a bounded set of names.
            status: the HTTP status of the answer.
        """
        self._metrics.requests[kind, status].inc()

    def delivery_answered(self, record: DeliveryAnswered) -> None:
        """Count and measure an answer."""
        metrics, endpoint, outcome = self._metrics, record.endpoint, record.outcome
        verified, event_type = record.verified, record.event_type
        label = event_type if event_type in self._types else self._type_label(event_type)
        metrics.deliveries[endpoint, label, outcome.status, outcome.reason].inc()
        metrics.answers[endpoint,].observe(record.seconds)
        if outcome.reason == Reason.STORE_UNAVAILABLE:
            self._store_failed_at[endpoint] = time.monotonic()
        secret_index = None
        if verified is not None:
            secret_index = verified.secret_index
            metrics.matches[endpoint, secret_index, verified.signature_count].inc()
        kind = endpoint, label, outcome.status, outcome.reason, secret_index
        now = self._clock()
        if abs(now - self._sampled.get(kind, -inf)) >= _SAMPLING_SECONDS:
            self._sampled[kind] = now
            self._sample(record, now)

    def _sample(self, record: DeliveryAnswered, now: float) -> None:
        """Set the gauges that describe the latest answer."""
        metrics, endpoint, outcome = self._metrics, record.endpoint, record.outcome
        if record.verified is not None:
            metrics.last_match[endpoint, record.verified.secret_index].set(now)
            metrics.skew[endpoint,].set(record.verified.skew)
        # Skip test events and requests other than POST. A failed test event does not count toward
        # disabling (interface, Events: Delivery behaviour), and only a POST is a delivery.
        if self._is_test(record) or outcome.reason == Reason.METHOD_NOT_ALLOWED:
            return
        latest = metrics.last_success if outcome.status < 300 else metrics.last_failure
        latest[endpoint,].set(now)

    def _is_test(self, record: DeliveryAnswered) -> bool:
        receiver = self._receivers.get(record.endpoint)
        sender = publishing if receiver is None else receiver.sender
        return record.event_type is not None and record.event_type == sender.rules.test_type

    def handler_finished(self, record: HandlerFinished) -> None:
        """Count and measure a handler that succeeded."""
        endpoint = record.delivery.endpoint
        self._metrics.handlers[endpoint, record.handler, "succeeded"].observe(record.seconds)

    def handler_skipped(self, record: HandlerSkipped) -> None:
        """Count a handler that did not run, by reason."""
        endpoint = record.delivery.endpoint
        self._metrics.skipped[endpoint, record.handler, record.reason].inc()

    def handler_failed(self, record: HandlerFailed) -> None:
        """Count and measure a handler that raised: rejected, retry requested, or failed."""
        match record.error:
            case Reject():
                result = "rejected"
            case Retry():
                result = "retry_requested"
            case _:
                result = "failed"
        endpoint = record.delivery.endpoint
        self._metrics.handlers[endpoint, record.handler, result].observe(record.seconds)

    def event_enqueued(self, record: EventEnqueued) -> None:
        """Count the store's answers to a delivery for the inbox, by result."""
        result = type(record.result).__name__.lower()
        self._metrics.enqueues[record.delivery.endpoint, result].inc()

    def event_fetched(self, record: EventFetched) -> None:
        """Count an event that a worker fetches, and measure the wait for its first attempt."""
        delivery = record.delivery
        self._metrics.fetched[delivery.endpoint,].inc()
        if record.attempt == 1:
            waited = max(0.0, self._clock() - delivery.received_unix)
            self._metrics.waits[delivery.endpoint,].observe(waited)

    def event_retried(self, record: EventRetried) -> None:
        """Count a failed attempt after which the event is tried again."""
        delivery = record.delivery
        label = self._type_label(delivery.event_type)
        self._metrics.retried[delivery.endpoint, label].inc()

    def event_deferred(self, record: EventDeferred) -> None:
        """Count an event that waits for its key lock."""
        self._metrics.deferred[record.delivery.endpoint,].inc()

    def event_buried(self, record: EventBuried) -> None:
        """Count a dead letter."""
        delivery = record.delivery
        label = self._type_label(delivery.event_type)
        self._metrics.buried[delivery.endpoint, label, record.reason].inc()

    def batch_flushed(self, record: BatchFlushed) -> None:
        """Measure a batch of a store."""
        self._metrics.batch_calls[record.store,].observe(record.calls)
        self._metrics.batch_duration[record.store,].observe(record.seconds)

    def loop_blocked(self, record: LoopBlocked) -> None:
        """Add the time during which a handler blocked the event loop."""
        self._metrics.blocked[record.endpoint, record.handler].inc(record.seconds)

    def _type_label(self, event_type: str | None) -> str:
        """Return the label for an event type; unregistered types share one label."""
        if event_type is None:
            return "unread"
        if event_type in self._types:
            return event_type
        for receiver in self._receivers.values():
            if event_type in receiver.event_types or any(
                event_type in handler.types for handler in receiver.handlers
            ):
                self._types.add(event_type)
                return event_type
        return "unknown"


def write_files_of(writer: str) -> None:
    """Let this process continue the counts in the metric files of ``writer``.

    Without this call each process has its own files in ``PROMETHEUS_MULTIPROC_DIR``. The files of
    ended processes stay, so that their counts stay in the sums, and each restart adds more files.

    Call this function before any metric is created.

    Args:
        writer: a name without an underscore; no other running process may use it.
    """
    # The process that used these files before has ended, so remove its "live" gauges. Only the
    # application can have such gauges; hookonce has none.
    mark_process_dead(writer)  # type: ignore[no-untyped-call]  # the library has no annotation
    own = os.getpid()
    # A process that is forked from this process gets its own files.
    values.ValueClass = values.MultiProcessValue(  # type: ignore[no-untyped-call]  # the library has no annotation
        lambda: writer if os.getpid() == own else os.getpid()
    )


def metrics_routes(receiver: Receiver, observer: PrometheusObserver) -> list[Route]:
    """Return the route ``/metrics`` for a Starlette or FastAPI application.

    It shows your traffic, the names of your handlers and the reasons of refusals, so let only your
    Prometheus reach it: for example, let the proxy pass on only the path of the webhooks.

    If ``PROMETHEUS_MULTIPROC_DIR`` is set, the route shows the metrics of every process.

    Args:
        receiver: the receiver whose store is read at each request.
        observer: the observer that counts for it; pass it to the receiver too.

    Raises:
        ValueError: ``PROMETHEUS_MULTIPROC_DIR`` is not a folder.
    """
    observer.know(receiver)
    return [Route("/metrics", endpoint=_MetricsApp(observer), methods=["GET"])]


class _MetricsApp:
    """An ASGI application that refreshes the gauges, then answers with all metrics."""

    def __init__(self, observer: PrometheusObserver) -> None:
        self._observer = observer
        self._is_alone = "PROMETHEUS_MULTIPROC_DIR" not in os.environ
        self._answer = make_asgi_app(_registry_to_show(observer.registry))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._observer.refresh()
        is_shared = not self._is_alone and scope["http_version"].startswith("1")
        await self._answer(scope, receive, _closing(send) if is_shared else send)


def _closing(send: Send) -> Send:
    """Return a ``send`` that closes the connection after the answer.

    If several processes share a port, Prometheus then reaches different processes, and a process
    with a blocked event loop does not hide the others.
    """

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        await send(message)

    return closing


def _registry_to_show(registry: CollectorRegistry) -> CollectorRegistry:
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return registry
    every_process = CollectorRegistry()
    MultiProcessCollector(every_process)  # type: ignore[no-untyped-call]  # the library has no annotation
    return every_process
