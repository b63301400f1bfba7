"""The Prometheus metrics: names, labels, buckets, and their use by several processes."""

from __future__ import annotations

from functools import partial
from typing import Generic, Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ..stores.values import StoreStats

Metric = TypeVar("Metric", Counter, Gauge, Histogram)


class Children(dict[tuple[str | int, ...], Metric], Generic[Metric]):
    """Caches the children of a metric by their label values, because ``labels()`` is slow.

    Children are kept for ever, so label values must come from bounded sets.
    """

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self._metric: Metric = metric

    def __missing__(self, labels: tuple[str | int, ...]) -> Metric:
        child = self[labels] = self._metric.labels(*labels)
        return child


# The buckets are narrow where the answer budgets of the known senders end. The specification lets a
# sender wait 15 to 30 s.
_ANSWER_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 7, 8, 9, 10),
    *(12, 15, 20, 30),
)
_HANDLER_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900)
_WAIT_BUCKETS = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 21600, 86400)
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_BATCH_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Metrics:
    """All metrics of a receiver, registered in one registry.

    Several processes may share the folder ``PROMETHEUS_MULTIPROC_DIR``. Their counters and
    histograms are added up. For a timestamp, the latest value of all processes counts (``max``),
    even if its process has ended. All processes read the store's gauges from the same store, so the
    last reading counts (``mostrecent``).

    Args:
        registry: the registry; ValueError if it has these metrics already.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Children[Counter]:
            return Children(Counter(f"hookonce_{name}", text, labels, registry=registry))

        def histogram(
            name: str, text: str, *labels: str, buckets: tuple[float, ...]
        ) -> Children[Histogram]:
            return Children(
                Histogram(f"hookonce_{name}", text, labels, registry=registry, buckets=buckets)
            )

        def gauge(
            name: str, text: str, *labels: str, among_processes: Literal["max", "mostrecent"]
        ) -> Children[Gauge]:
            return Children(
                Gauge(
                    f"hookonce_{name}",
                    text,
                    labels,
                    registry=registry,
                    multiprocess_mode=among_processes,
                )
            )

        latest = partial(gauge, among_processes="max")
        current = partial(gauge, among_processes="mostrecent")

        self.deliveries: Children[Counter] = counter(
            "deliveries_total",
            "Requests answered, by event type, HTTP status and reason.",
            *("endpoint", "event_type", "status", "reason"),
        )
        self.requests: Children[Counter] = counter(
            "http_requests_total",
            "Requests to hookonce serve, by what answered: a receiver, the server itself (health,"
            " metrics, inspector), your application, or nothing (unknown; misdirected if it was a"
            " delivery).",
            *("kind", "status"),
        )
        self.answers: Children[Histogram] = histogram(
            "answer_duration_seconds",
            "Time from a request to its answer.",
            "endpoint",
            buckets=_ANSWER_BUCKETS,
        )
        self.last_success: Children[Gauge] = latest(
            "last_success_timestamp_seconds",
            "Time of the last delivery answered with a 2xx, without test events.",
            "endpoint",
        )
        self.last_failure: Children[Gauge] = latest(
            "last_failure_timestamp_seconds",
            "Time of the last delivery answered without a 2xx, without test events.",
            "endpoint",
        )
        self.matches: Children[Counter] = counter(
            "secret_matches_total",
            "Genuine deliveries, by the index of the secret that matched (0 is the first) and by"
            " the number of signatures (2 during a rotation).",
            *("endpoint", "secret_index", "signatures"),
        )
        self.last_match: Children[Gauge] = latest(
            "secret_last_match_timestamp_seconds",
            "Time of the last delivery that matched a secret, by its index (0 is the first).",
            *("endpoint", "secret_index"),
        )
        self.skew: Children[Gauge] = current(
            "clock_skew_seconds",
            "This machine's clock minus the signed timestamp of the last genuine delivery.",
            "endpoint",
        )
        self.handlers: Children[Histogram] = histogram(
            "handler_duration_seconds",
            "Duration of handlers, by result.",
            *("endpoint", "handler", "result"),
            buckets=_HANDLER_BUCKETS,
        )
        self.skipped: Children[Counter] = counter(
            "skipped_handlers_total",
            "Handlers that did not run, because they had handled a newer event (stale) or the same"
            " event (done).",
            *("endpoint", "handler", "reason"),
        )
        self.blocked: Children[Counter] = counter(
            "loop_blocked_seconds_total",
            "Time for which async handlers blocked the event loop.",
            *("endpoint", "handler"),
        )
        self.enqueues: Children[Counter] = counter(
            "inbox_enqueues_total",
            "Deliveries offered to the inbox, by result: stored, already known (waiting, done,"
            " dead), or refused (full).",
            *("endpoint", "result"),
        )
        self.fetched: Children[Counter] = counter(
            "inbox_fetched_total",
            "Events that workers fetched from the inbox; each fetch begins an attempt.",
            "endpoint",
        )
        self.waits: Children[Histogram] = histogram(
            "inbox_wait_seconds",
            "Time from a delivery to the first attempt by a worker.",
            "endpoint",
            buckets=_WAIT_BUCKETS,
        )
        self.retried: Children[Counter] = counter(
            "retried_events_total",
            "Failed attempts after which the event waits in the inbox for the next attempt.",
            *("endpoint", "event_type"),
        )
        self.deferred: Children[Counter] = counter(
            "deferred_events_total",
            "Events returned to the inbox because another event holds their key lock; no attempt is"
            " counted.",
            "endpoint",
        )
        self.buried: Children[Counter] = counter(
            "buried_events_total",
            "Events that became dead letters.",
            *("endpoint", "event_type", "reason"),
        )
        self.batch_calls: Children[Histogram] = histogram(
            "store_batch_calls",
            "Number of calls that a store wrote in one batch.",
            "store",
            buckets=_BATCH_SIZES,
        )
        self.batch_duration: Children[Histogram] = histogram(
            "store_batch_duration_seconds",
            "Duration of a store's batch.",
            "store",
            buckets=_BATCH_BUCKETS,
        )
        self.store_up: Children[Gauge] = current(
            "store_up",
            "1 if the store answered the last request for statistics, and failed no delivery in the"
            " last 10 s; else 0.",
            "endpoint",
        )
        self.secrets: Children[Gauge] = current(
            "secrets", "Number of secrets in force; 0 if they cannot be used.", "endpoint"
        )
        self.secret_missing: Children[Gauge] = latest(
            "rotation_secret_missing",
            "1 while deliveries carry two signatures but only one of their secrets is configured.",
            "endpoint",
        )
        self.depth: Children[Gauge] = current(
            "inbox_events", "Events in the inbox, including events in flight.", "endpoint"
        )
        self.bytes: Children[Gauge] = current(
            "inbox_bytes", "Total size of the bodies in the inbox.", "endpoint"
        )
        self.oldest_age: Children[Gauge] = current(
            "inbox_oldest_age_seconds",
            "Age of the oldest event in the inbox; 0 if the inbox is empty.",
            "endpoint",
        )
        self.in_flight: Children[Gauge] = current(
            "in_flight_events", "Events being handled.", "endpoint"
        )
        self.dead: Children[Gauge] = current(
            "dead_letters", "Dead letters in the store.", "endpoint"
        )
        self.workers: Children[Gauge] = current(
            "workers", "Workers that recently asked for events.", "endpoint"
        )

    def show(self, endpoint: str, stats: StoreStats) -> None:
        of_endpoint = (endpoint,)
        self.depth[of_endpoint].set(stats.depth)
        self.bytes[of_endpoint].set(stats.bytes)
        self.oldest_age[of_endpoint].set(stats.oldest_age_seconds or 0)
        self.in_flight[of_endpoint].set(stats.in_flight)
        self.dead[of_endpoint].set(stats.dead)
        self.workers[of_endpoint].set(stats.workers)
