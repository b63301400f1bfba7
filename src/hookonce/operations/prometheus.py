"""Metrics for Prometheus: an observer that counts, and a route where they are read.

::

    observer = PrometheusObserver()
    receiver = Receiver(secrets=EnvironmentSecrets(), observers=[observer])
    app = Starlette(routes=[*receiver.routes("/webhooks"), *metrics_routes(receiver, observer)])

Label values are bounded: endpoints, handlers and event types the application has registered,
reasons and results the package names. An event type that nobody knows is ``unknown``, one that was
not read ``unread``. No id, body, signature or secret is ever among them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf

from ..clock import Clock, system_clock
from ..errors import Reject, Retry, SecretError, StoreError
from ..events import EVENT_CLASSES
from ..http.app import Receive, Route, Scope, Send
from ..logs import get_logger
from ..outcome import Reason
from ..receiver import Receiver
from ..sender import TEST_TYPE
from ..stores.time_limit import within
from ..watching.records import (
    BatchFlushed,
    DeliveryAnswered,
    EventBuried,
    EventEnqueued,
    EventFetched,
    EventParked,
    EventRetried,
    HandlerFailed,
    HandlerFinished,
    HandlerSkipped,
    LoopBlocked,
    Observer,
)

try:
    from prometheus_client import CollectorRegistry, Counter, Histogram, make_asgi_app
    from prometheus_client.multiprocess import MultiProcessCollector

    from .prometheus_metrics import Metrics
except ModuleNotFoundError as error:
    if error.name != "prometheus_client":
        raise
    raise ImportError(
        "metrics for Prometheus need prometheus-client: pip install 'hookonce[prometheus]'",
        name="prometheus_client",
    ) from error

__all__ = ["PrometheusObserver", "metrics_routes"]

_log = get_logger("hookonce.metrics")

# A scrape is given up after ten seconds by default; what the store does not tell by then is left
# out, and the counters are there all the same.
_STATS_SECONDS = 2.0
# Nobody reads gauges more often than that, and to set three is a microsecond and a half.
_SAMPLING_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class _Answers:
    """Answers of one kind, and what counts them; to look that up for each costs as much as it."""

    count: Counter
    duration: Histogram
    matches: Counter | None
    sampled: float = -inf


class PrometheusObserver(Observer):
    """Counts and times what a receiver does, or several that are different endpoints.

    Args:
        registry: where the metrics are registered; one of its own by default. Give
            ``prometheus_client.REGISTRY`` to have them among those of your application.
        clock: Unix time in seconds.

    Raises:
        ValueError: the registry has these metrics already.

    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, clock: Clock = system_clock
    ) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._clock = clock
        self._metrics = Metrics(self.registry)
        self._receivers: dict[str, Receiver] = {}
        self._types = set(EVENT_CLASSES)
        self._answers: dict[tuple[object, ...], _Answers] = {}

    def know(self, receiver: Receiver) -> None:
        """Name the event types of this receiver in labels, and show what its store holds.

        Without it only the documented types are named. ``metrics_routes`` and ``refreshing`` do it.
        """
        self._receivers[receiver.endpoint] = receiver

    async def refresh(self) -> None:
        """Set the gauges of what is stored, of every receiver that is known.

        A store that cannot be used shows as ``hookonce_store_up`` 0, and nothing is raised.
        """
        await asyncio.gather(*map(self._refresh, self._receivers.values()))

    @asynccontextmanager
    async def refreshing(
        self, receiver: Receiver, *, every_seconds: float = 15.0
    ) -> AsyncIterator[None]:
        """Refresh the gauges now and then while the block lasts, for a registry of your own.

        ``metrics_routes`` needs no such thing: it refreshes them whenever it is asked.
        """
        self.know(receiver)
        task = asyncio.get_running_loop().create_task(self._refresh_every(every_seconds))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _refresh_every(self, seconds: float) -> None:
        while True:
            try:
                await self.refresh()
            except Exception:  # noqa: BLE001 - one bad moment must not end it for good
                _log.exception("cannot refresh the metrics of what is stored, trying again")
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
            _log.warning("the metrics of %s do not show what is stored: %s", endpoint, error)
            self._metrics.store_up[endpoint,].set(0)
        else:
            self._metrics.store_up[endpoint,].set(1)
            self._metrics.show(endpoint, stats)

    def delivery_answered(self, record: DeliveryAnswered) -> None:
        """Count and time the answer."""
        outcome, verified, event_type = record.outcome, record.verified, record.event_type
        label = event_type if event_type in self._types else self._type_label(event_type)
        secret = (verified.secret_index, verified.signature_count) if verified else None
        kind = record.endpoint, label, outcome.status, outcome.reason, secret
        answers = self._answers.get(kind) or self._new_answers(*kind)
        answers.count.inc()
        answers.duration.observe(record.seconds)
        if answers.matches is not None:
            answers.matches.inc()
        now = self._clock()
        if abs(now - answers.sampled) >= _SAMPLING_SECONDS:
            answers.sampled = now
            self._sample(record, now)

    def _new_answers(
        self, endpoint: str, label: str, status: int, reason: str, secret: tuple[int, int] | None
    ) -> _Answers:
        metrics = self._metrics
        answers = self._answers[endpoint, label, status, reason, secret] = _Answers(
            count=metrics.deliveries[endpoint, label, status, reason],
            duration=metrics.answers[endpoint,],
            matches=metrics.matches[endpoint, *secret] if secret else None,
        )
        return answers

    def _sample(self, record: DeliveryAnswered, now: float) -> None:
        """Set the gauges that tell of the latest answer."""
        metrics, endpoint, outcome = self._metrics, record.endpoint, record.outcome
        if record.verified is not None:
            metrics.last_match[endpoint, record.verified.secret_index].set(now)
            metrics.skew[endpoint,].set(record.verified.skew)
        # Test events do not count toward disabling (interface, Events: Delivery behaviour), and
        # what is no POST is no delivery.
        if record.event_type == TEST_TYPE or outcome.reason == Reason.METHOD_NOT_ALLOWED:
            return
        latest = metrics.success if outcome.status < 300 else metrics.failure
        latest[endpoint,].set(now)

    def handler_finished(self, record: HandlerFinished) -> None:
        """Count and time a run."""
        endpoint = record.delivery.endpoint
        self._metrics.handlers[endpoint, record.handler, "succeeded"].observe(record.seconds)

    def handler_skipped(self, record: HandlerSkipped) -> None:
        """Count a handler that was not run, by why."""
        endpoint = record.delivery.endpoint
        self._metrics.skipped[endpoint, record.handler, record.reason].inc()

    def handler_failed(self, record: HandlerFailed) -> None:
        """Count and time a run, by what the handler asked for."""
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
        """Count what the inbox made of a delivery."""
        result = type(record.result).__name__.lower()
        self._metrics.puts[record.delivery.endpoint, result].inc()

    def event_fetched(self, record: EventFetched) -> None:
        """Count what a worker takes, and how long it has waited for its first attempt."""
        delivery = record.delivery
        self._metrics.taken[delivery.endpoint,].inc()
        if record.attempt == 1:
            waited = max(0.0, self._clock() - delivery.received_at)
            self._metrics.waits[delivery.endpoint,].observe(waited)

    def event_retried(self, record: EventRetried) -> None:
        """Count an attempt that is made again."""
        delivery = record.delivery
        label = self._type_label(delivery.event_type)
        self._metrics.retried[delivery.endpoint, label].inc()

    def event_parked(self, record: EventParked) -> None:
        """Count an event that waits for its key."""
        self._metrics.parked[record.delivery.endpoint,].inc()

    def event_buried(self, record: EventBuried) -> None:
        """Count a dead letter."""
        delivery = record.delivery
        label = self._type_label(delivery.event_type)
        self._metrics.buried[delivery.endpoint, label, record.reason].inc()

    def batch_flushed(self, record: BatchFlushed) -> None:
        """Show how much a store did in one step."""
        self._metrics.batch_calls[record.store,].observe(record.calls)
        self._metrics.batch_duration[record.store,].observe(record.seconds)

    def loop_blocked(self, record: LoopBlocked) -> None:
        """Add up how long handlers have blocked the event loop."""
        self._metrics.blocked[record.endpoint, record.handler].inc(record.seconds)

    def _type_label(self, event_type: str | None) -> str:
        """Return what to call an event type in a label: only what was registered by its name."""
        if event_type is None:
            return "unread"
        if event_type in self._types:
            return event_type
        for receiver in self._receivers.values():
            if event_type in receiver.parser.classes or any(
                event_type in handler.types for handler in receiver.handlers
            ):
                self._types.add(event_type)
                return event_type
        return "unknown"


def metrics_routes(receiver: Receiver, observer: PrometheusObserver) -> list[Route]:
    """Return the route ``/metrics`` for a Starlette or FastAPI application.

    It tells how busy you are, what your handlers are called and why deliveries are refused: let
    nobody reach it but your Prometheus, for example by a proxy that passes on nothing but the path
    of the webhooks.

    Where ``PROMETHEUS_MULTIPROC_DIR`` is set it shows what every process has put there.

    Args:
        receiver: whose store is asked how much it holds, whenever metrics are read.
        observer: what counts for it; give it to the receiver too.

    Raises:
        ValueError: ``PROMETHEUS_MULTIPROC_DIR`` is no folder.

    """
    observer.know(receiver)
    return [Route("/metrics", endpoint=_MetricsApp(observer), methods=["GET"])]


class _MetricsApp:
    """An ASGI application that refreshes the gauges and answers with all metrics."""

    def __init__(self, observer: PrometheusObserver) -> None:
        self._observer = observer
        self._answer = make_asgi_app(_what_is_read(observer.registry))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._observer.refresh()
        await self._answer(scope, receive, send)


def _what_is_read(registry: CollectorRegistry) -> CollectorRegistry:
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return registry
    of_all_processes = CollectorRegistry()
    MultiProcessCollector(of_all_processes)  # type: ignore[no-untyped-call]  # it has no annotations
    return of_all_processes
