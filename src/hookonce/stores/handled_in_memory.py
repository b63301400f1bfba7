"""The deliveries of handled events, and batches of replays, in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import islice
from typing import Unpack

from ..clock import Clock
from .handled import HandledEvent, HandledStats, Keeping, WantedHandled
from .replays import ReplayBatch, ReplayPlan
from .values import Delivery, DeliveryKey, number_behind


class HandledInMemory:
    """Keeps a bounded number of deliveries of handled events for each endpoint.

    Args:
        most: the largest number of deliveries of an endpoint; the oldest are deleted first.
        clock: Unix time in seconds.
    """

    def __init__(self, most: int, clock: Clock) -> None:
        self._most = most
        self._clock = clock
        # The handled events of each endpoint, in the order of completion.
        self._kept: dict[str, OrderedDict[DeliveryKey, HandledEvent]] = {}
        self._bytes: dict[str, int] = {}
        self._count = 0
        self._batches: dict[tuple[str, str], ReplayBatch] = {}

    def keep(self, delivery: Delivery, finished: Collection[str], keeping: Keeping) -> None:
        """Keep a delivery; see ``HandledStore.complete_and_keep``."""
        now, size, max_bytes = self._clock(), len(delivery.body), keeping.max_bytes
        endpoint, key = delivery.endpoint, delivery.key
        kept = self._kept.setdefault(endpoint, OrderedDict())
        known = kept.get(key)
        if (known is not None and known.expires_unix > now) or (
            max_bytes is not None and size > max_bytes
        ):
            return
        if known is not None:
            self._delete(endpoint, key)
        self._count += 1
        starts = (one.started_unix for one in self.batches(endpoint) if one.finished_unix is None)
        handled_unix = max(now, max(starts, default=now))
        kept[key] = HandledEvent(
            delivery, frozenset(finished), handled_unix, now + keeping.seconds, str(self._count)
        )
        self._bytes[endpoint] = self._bytes.get(endpoint, 0) + size
        while (
            len(kept) > self._most
            or next(iter(kept.values())).expires_unix <= now
            or (max_bytes is not None and self._bytes[endpoint] > max_bytes)
        ):
            self._delete(endpoint, next(iter(kept)))

    def find(self, key: DeliveryKey) -> HandledEvent | None:
        """Return one event; see ``HandledStore.handled_event``."""
        kept = self._kept.get(key.partition(":")[0])
        found = None if kept is None else kept.get(key)
        return None if found is None or found.expires_unix <= self._clock() else found

    def list(
        self, *, after: str | None = None, limit: int = 100, **wanted: Unpack[WantedHandled]
    ) -> list[HandledEvent]:
        """Return events without their bodies; see ``HandledStore.handled_events``."""
        behind, now = number_behind(after), self._clock()
        events = [event for kept in self._kept.values() for event in kept.values()]
        events.sort(key=lambda event: int(event.place))
        listed = (
            replace(event, delivery=event.delivery._replace(body=b""))
            for event in events
            if int(event.place) > behind and event.expires_unix > now and event.matches(wanted)
        )
        return [*islice(listed, limit)]

    def stats(self, endpoint: str) -> HandledStats:
        """Return the number and size of the deliveries; see ``HandledStore.handled_stats``."""
        return HandledStats(len(self._kept.get(endpoint, ())), self._bytes.get(endpoint, 0))

    def prune(self) -> int:
        """Delete the deliveries that have expired, and return their number."""
        now = self._clock()
        expired = [
            (endpoint, key)
            for endpoint, kept in self._kept.items()
            for key, event in kept.items()
            if event.expires_unix <= now
        ]
        for endpoint, key in expired:
            self._delete(endpoint, key)
        return len(expired)

    def begin(self, endpoint: str, handler: str, generation: int, plan: ReplayPlan) -> ReplayBatch:
        """Begin a batch; see ``HandledStore.begin_replay_batch``."""
        last = self._batches.get((endpoint, handler))
        if last is None or last.generation < generation:
            last = ReplayBatch(endpoint, handler, generation, plan, self._clock())
            self._batches[endpoint, handler] = last
        return last

    def end(self, batch: ReplayBatch) -> None:
        """Record that a batch is finished; see ``HandledStore.end_replay_batch``."""
        last = self._batches.get((batch.endpoint, batch.handler))
        if last and last.generation == batch.generation and last.finished_unix is None:
            ended = replace(last, finished_unix=self._clock())
            self._batches[batch.endpoint, batch.handler] = ended

    def batches(self, endpoint: str) -> Sequence[ReplayBatch]:
        """Return the last batches; see ``HandledStore.replay_batches``."""
        return [batch for batch in self._batches.values() if batch.endpoint == endpoint]

    def _delete(self, endpoint: str, key: DeliveryKey) -> None:
        event = self._kept[endpoint].pop(key)
        self._bytes[endpoint] -= len(event.delivery.body)
