"""The metrics Prometheus is given: names, labels, buckets, and how processes share them."""

from __future__ import annotations

from functools import partial
from typing import Generic, Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ..stores.values import StoreStats

Metric = TypeVar("Metric", Counter, Gauge, Histogram)


class Children(dict[tuple[str | int, ...], Metric], Generic[Metric]):
    """The children of a metric by their label values, each looked up once.

    ``labels()`` costs three times what an increment does. They are kept for good, so only values
    out of bounded sets may be asked for.
    """

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self._metric: Metric = metric

    def __missing__(self, labels: tuple[str | int, ...]) -> Metric:
        child = self[labels] = self._metric.labels(*labels)
        return child


# The sender gives up at 10 s (interface, Limits: Webhook answer time), and the answer budget ends
# before that, so the buckets are close there.
_ANSWER_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 7, 8, 9, 10)
_HANDLER_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900)
_WAIT_BUCKETS = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 21600, 86400)
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_BATCH_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Metrics:
    """Every metric, registered in one registry.

    Several processes may share a folder (``PROMETHEUS_MULTIPROC_DIR``). Counters and histograms
    add up there. A time of the last success is the latest of any process, one that has ended
    included (``max``). What the store holds is the same for all of them, and whoever has looked
    last is right (``mostrecent``).

    Args:
        registry: where they are registered; ValueError if they are already.

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

        self.deliveries = counter(
            "deliveries_total",
            "Requests answered, by HTTP status and reason.",
            *("endpoint", "event_type", "status", "reason"),
        )
        self.answers = histogram(
            "answer_duration_seconds",
            "From the arrival of a request to its answer; the sender gives up at 10 s.",
            "endpoint",
            buckets=_ANSWER_BUCKETS,
        )
        self.success = latest(
            "last_success_timestamp_seconds",
            "When a delivery, other than of a test event, was last answered with a 2xx.",
            "endpoint",
        )
        self.failure = latest(
            "last_failure_timestamp_seconds",
            "When a delivery, other than of a test event, was last answered otherwise.",
            "endpoint",
        )
        self.matches = counter(
            "secret_matches_total",
            "Genuine deliveries, by the index of the secret that matched, from 0, and by how many"
            " signatures they carried (2 during a rotation).",
            *("endpoint", "secret_index", "signatures"),
        )
        self.last_match = latest(
            "secret_last_match_timestamp_seconds",
            "When a secret, by its index from 0, last matched.",
            *("endpoint", "secret_index"),
        )
        self.skew = current(
            "clock_skew_seconds",
            "Our clock minus the time at which the last genuine delivery was signed.",
            "endpoint",
        )
        self.handlers = histogram(
            "handler_duration_seconds",
            "Runs of handlers, by result.",
            *("endpoint", "handler", "result"),
            buckets=_HANDLER_BUCKETS,
        )
        self.skipped = counter(
            "skipped_handlers_total",
            "Handlers that were not run, since a newer event (stale) or the same (done) has"
            " succeeded.",
            *("endpoint", "handler", "reason"),
        )
        self.blocked = counter(
            "loop_blocked_seconds_total",
            "How long async handlers have kept the event loop from everything else.",
            *("endpoint", "handler"),
        )
        self.puts = counter(
            "inbox_puts_total",
            "Deliveries brought to the inbox: stored, or known already, or no room.",
            *("endpoint", "result"),
        )
        self.taken = counter(
            "inbox_taken_total",
            "Events that workers have taken; each begins an attempt.",
            "endpoint",
        )
        self.waits = histogram(
            "inbox_wait_seconds",
            "From the arrival of a delivery to the first attempt by a worker.",
            "endpoint",
            buckets=_WAIT_BUCKETS,
        )
        self.retried = counter(
            "retried_events_total",
            "Failed attempts after which an event waits in the inbox for the next.",
            *("endpoint", "event_type"),
        )
        self.parked = counter(
            "parked_events_total",
            "Events back in the inbox, since another run has their key; no attempts.",
            "endpoint",
        )
        self.buried = counter(
            "buried_events_total",
            "Events that became dead letters.",
            *("endpoint", "event_type", "reason"),
        )
        self.batch_calls = histogram(
            "store_batch_calls",
            "Calls that a store made lasting in one step.",
            "store",
            buckets=_BATCH_SIZES,
        )
        self.batch_duration = histogram(
            "store_batch_duration_seconds", "How long that took.", "store", buckets=_BATCH_BUCKETS
        )
        self.store_up = current(
            "store_up", "Whether the store answered when it was last asked.", "endpoint"
        )
        self.secrets = current(
            "secrets", "Secrets in force; 0 where they cannot be used.", "endpoint"
        )
        self.secret_missing = latest(
            "rotation_secret_missing",
            "1 while deliveries carry two signatures and only one is by a secret configured here.",
            "endpoint",
        )
        self.depth = current(
            "inbox_events", "Events in the inbox, those being handled included.", "endpoint"
        )
        self.bytes = current("inbox_bytes", "What the bodies in the inbox add up to.", "endpoint")
        self.oldest_age = current(
            "inbox_oldest_age_seconds",
            "Since the oldest event in the inbox arrived; 0 where it is empty.",
            "endpoint",
        )
        self.in_flight = current("in_flight_events", "Events that are being handled.", "endpoint")
        self.dead = current("dead_letters", "Dead letters.", "endpoint")
        self.workers = current("workers", "Workers that have lately asked for work.", "endpoint")

    def show(self, endpoint: str, stats: StoreStats) -> None:
        """Set the gauges that tell what a store holds of an endpoint."""
        of_endpoint = (endpoint,)
        self.depth[of_endpoint].set(stats.depth)
        self.bytes[of_endpoint].set(stats.bytes)
        self.oldest_age[of_endpoint].set(stats.oldest_age or 0)
        self.in_flight[of_endpoint].set(stats.in_flight)
        self.dead[of_endpoint].set(stats.dead)
        self.workers[of_endpoint].set(stats.workers)
