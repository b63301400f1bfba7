"""A store in memory: for tests, and for programs that may handle an event twice after a restart.

At a restart it forgets everything. When it is full, it forgets the oldest done events, and logs a
warning. It keeps no bodies of events that failed: if such a body must be kept, the receiver answers
500. It keeps the bodies of handled events for a receiver with ``keep_handled``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from typing import Any, TypeVar, Unpack

from ..clock import Clock, system_clock
from ..errors import StoreError
from ..logs import get_logger
from . import key_locks, life
from .applications import MOST_REMEMBERED, REMEMBERED_SECONDS, Application
from .handled import HandledEvent, HandledStats, Keeping, WantedHandled
from .handled_in_memory import HandledInMemory
from .key_locks import FREE, KeyLockRecord
from .life import NEW, Moment, Record
from .protocols import DEFAULT_RETENTION
from .reconciling import MOST_SPANS, Span, joined
from .record_store import EventStep, HeldEvent, KeyLockStep, RecordStore
from .replays import ReplayBatch, ReplayPlan
from .values import (
    Claimed,
    ClaimResult,
    Delivery,
    DeliveryKey,
    Done,
    KeyLock,
    Ownership,
    Token,
    delivery_key,
)

__all__ = ["MemoryStore"]

_log = get_logger("hookonce.store")

T = TypeVar("T")

_NONE: frozenset[str] = frozenset()


class MemoryStore(RecordStore):
    """A store in memory that holds a bounded number of events, for one event loop.

    Args:
        retention: how long a done event is remembered; at least the span of the receiver's sender.
        max_records: the largest number of events. A full store forgets the oldest done events
            early, with a warning; if no event is done, a claim raises StoreError.
        clock: Unix time in seconds.
    """

    keeps_bodies = False

    def __init__(
        self,
        *,
        retention: float | timedelta = DEFAULT_RETENTION,
        max_records: int = 1_000_000,
        clock: Clock = system_clock,
    ) -> None:
        if max_records < 1:
            raise ValueError("max_records must be at least 1")
        super().__init__(retention=retention, clock=clock)
        self._max_records = max_records
        # Each dictionary is in the order of the last change. All records of a kind live equally
        # long, so this is also the order in which they expire.
        self._done: OrderedDict[DeliveryKey, float] = OrderedDict()
        self._records: OrderedDict[DeliveryKey, Record] = OrderedDict()
        self._dead: dict[DeliveryKey, HeldEvent] = {}
        self._buried = 0
        self._key_locks: OrderedDict[KeyLock, KeyLockRecord] = OrderedDict()
        self._accepted: OrderedDict[DeliveryKey, float] = OrderedDict()
        # Each dictionary with values that expire, and a function that returns the end of such a
        # value.
        self._kept: tuple[tuple[OrderedDict[Any, Any], Callable[[Any], float]], ...] = (
            (self._done, float),
            (self._records, lambda record: max(record.expires, record.until)),
            (self._key_locks, lambda passage: max(passage.until, passage.watermark_until)),
            (self._accepted, float),
        )
        self._handled = HandledInMemory(max_records, clock)
        self._ignored: dict[str, dict[str, list[Span]]] = {}
        self._applications: dict[str, dict[Application, float]] = {}
        self._forgotten = 0
        self._prune_at = 0.0

    async def claim(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult:
        now = self._clock()
        if now < self._done.get(key, 0.0):
            return Done()
        expires = now + self.retention_seconds
        # Nearly every event is new, so do FREE.claim of `life.LIFE` here, without a call: this is
        # faster.
        if key not in self._records and key not in self._dead:
            self._make_room(now)
            self._records[key] = Record(token, now + lease, lease, 1, _NONE, _NONE, (), expires)
            return Claimed(key, token, 1, _NONE, lease)
        known = self._known(key)
        result, record = life.claim(known, Moment(now, now, expires), key, token, lease)
        if record.expires != known.expires:  # a new claim expires last: move it to the end
            del self._records[key]
        self._write(key, known, record)
        return result

    async def complete(self, claim: Claimed) -> None:
        self._finish(claim.key)

    async def complete_and_keep(
        self, claim: Claimed, delivery: Delivery, finished: Collection[str], keeping: Keeping
    ) -> None:
        self._finish(claim.key)
        self._handled.keep(delivery, finished, keeping)

    async def handled_events(
        self, *, after: str | None = None, limit: int = 100, **wanted: Unpack[WantedHandled]
    ) -> list[HandledEvent]:
        return self._handled.list(after=after, limit=limit, **wanted)

    async def handled_event(self, key: DeliveryKey) -> HandledEvent | None:
        return self._handled.find(key)

    async def handled_stats(self, endpoint: str) -> HandledStats:
        return self._handled.stats(endpoint)

    async def begin_replay_batch(
        self, endpoint: str, handler: str, generation: int, plan: ReplayPlan
    ) -> ReplayBatch:
        return self._handled.begin(endpoint, handler, generation, plan)

    async def end_replay_batch(self, batch: ReplayBatch) -> None:
        self._handled.end(batch)

    async def replay_batches(self, endpoint: str) -> list[ReplayBatch]:
        return [*self._handled.batches(endpoint)]

    async def keep(
        self,
        claim: Claimed,
        delivery: Delivery,
        *,
        dead_unix: float | None = None,
        renew: bool = False,
    ) -> Ownership:
        """Raise StoreError, because this store keeps no bodies."""
        raise StoreError("the memory store keeps no bodies; use a SQLite store for dead letters")

    async def keep_in_flight(
        self, delivery: Delivery, *, dead_unix: float | None = None, renew: bool = False
    ) -> None:
        """Raise StoreError, because this store keeps no bodies."""
        raise StoreError("the memory store keeps no bodies; use a SQLite store for dead letters")

    async def replay(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult | None:
        """Raise StoreError for a dead letter, because this store keeps no body to replay."""
        if key not in self._dead:
            return None
        raise StoreError("the memory store keeps no bodies, so there is nothing to replay")

    async def held_events(self, keys: Collection[DeliveryKey] | None = None) -> Iterable[HeldEvent]:
        """Return the events with these keys; if ``keys`` is None, all events that are not done."""
        if keys is None:
            others = (HeldEvent(key, record) for key, record in self._records.items())
            return chain(self._dead.values(), others)
        return [self._dead.get(key) or HeldEvent(key, self._shown(key)) for key in keys]

    async def prune(self) -> int:
        """Delete records whose retention is over, and return their number."""
        return self._prune(self._clock(), at_most=self._max_records) + self._handled.prune()

    def __str__(self) -> str:
        """Return the URL of a store in memory."""
        return "memory://"

    @property
    def place(self) -> MemoryStore:
        """The identity of the store: the store itself, because two stores never share memory."""
        return self

    async def register(
        self, endpoint: str, application: Application | None
    ) -> tuple[Application, ...]:
        seen = self._applications.setdefault(endpoint, {})
        if application is not None:
            seen.pop(application, None)
            seen[application] = self._clock()
            for oldest in list(seen)[:-MOST_REMEMBERED]:
                del seen[oldest]
        since = self._clock() - REMEMBERED_SECONDS
        return tuple(replace(one, seen_unix=at) for one, at in seen.items() if at > since)

    async def note_ignored(self, endpoint: str, spans: Mapping[str, Sequence[Span]]) -> None:
        known = self._ignored.setdefault(endpoint, {})
        for event_type, some in spans.items():
            for span in some:
                known[event_type] = joined(known.get(event_type, ()), span)
        ends = sorted((one.last_unix for some in known.values() for one in some), reverse=True)
        since = self._clock() - self.retention_seconds
        if len(ends) > MOST_SPANS:
            since = max(since, ends[MOST_SPANS])
        for event_type in [*known]:
            known[event_type] = [one for one in known[event_type] if one.last_unix > since]
            if not known[event_type]:
                del known[event_type]

    async def ignored(
        self, endpoint: str, event_types: Collection[str]
    ) -> dict[str, tuple[Span, ...]]:
        since = self._clock() - self.retention_seconds
        known = self._ignored.get(endpoint, {})
        found = {
            event_type: tuple(span for span in known.get(event_type, ()) if span.last_unix > since)
            for event_type in event_types
        }
        return {event_type: spans for event_type, spans in found.items() if spans}

    async def accept(self, endpoint: str, event_ids: Sequence[str]) -> None:
        expires = self._clock() + self.retention_seconds
        for event_id in event_ids:
            key = delivery_key(endpoint, event_id)
            self._accepted.pop(key, None)
            self._accepted[key] = expires

    async def accepted(self, endpoint: str, event_ids: Sequence[str]) -> frozenset[str]:
        now = self._clock()
        return frozenset(
            event_id
            for event_id in event_ids
            if now < self._accepted.get(delivery_key(endpoint, event_id), 0.0)
        )

    def _shown(self, key: DeliveryKey) -> Record:
        """Return the record of any event, done or not."""
        done_until = self._done.get(key, 0.0)
        return Record(done_until=done_until) if self._clock() < done_until else self._known(key)

    def _known(self, key: DeliveryKey) -> Record:
        """Return the record of an event that is not done."""
        if key in self._dead:
            return self._dead[key].record
        return self._records.get(key, NEW)

    async def change_event(
        self, key: DeliveryKey, step: EventStep[T], delivery: Delivery | None = None
    ) -> T:
        known = self._known(key)
        answer, record = step(known, self.moment())
        self._write(key, known, record, delivery)
        return answer

    def _write(
        self, key: DeliveryKey, known: Record, record: Record, delivery: Delivery | None = None
    ) -> None:
        """Write the record of an event, if a step has changed it."""
        if record is known:
            return
        if record.done_until:
            self._finish(key)
        elif key in self._dead:
            self._dead[key] = self._dead[key]._replace(record=record)
        elif record.dead_letter is not None:
            endpoint, _, event_id = key.partition(":")
            at = record.dead_letter.buried_unix
            delivery = delivery or Delivery(endpoint, event_id, None, at, b"")
            self._buried += 1
            self._dead[key] = HeldEvent(key, record, delivery._replace(body=b""), self._buried)
            self._records.pop(key, None)
        else:
            self._records[key] = record

    def _finish(self, key: DeliveryKey) -> None:
        """Remember an event as done; see ``life.complete``."""
        self._records.pop(key, None)
        self._dead.pop(key, None)
        self._done.pop(key, None)
        self._done[key] = self._clock() + self.retention_seconds

    async def change_key_lock(
        self,
        key_lock: KeyLock,
        step: KeyLockStep[T],
        *,
        is_acquiring: bool,
        event: DeliveryKey | None = None,
    ) -> T:
        moment, known = self.moment(), self._key_locks.get(key_lock, FREE)
        if is_acquiring and known is FREE:
            self._make_room(moment.unix)
        answer, passage = step(known, moment)
        self._key_locks.pop(key_lock, None)
        if not key_locks.is_forgotten(passage, moment):
            self._key_locks[key_lock] = passage
        return answer

    def _make_room(self, now: float) -> None:
        if now >= self._prune_at:
            # Delete at most two records for each new record: this keeps up with the growth, without
            # a long pause.
            self._prune(now, at_most=2)
            self._prune_at = self._oldest_end(now)
        held = len(self._done) + len(self._records) + len(self._dead) + len(self._key_locks)
        if held < self._max_records:
            return
        if not self._done:
            raise StoreError("the memory store is full of events that are not done yet")
        self._forget_the_oldest(now)
        self._forgotten += 1
        if self._forgotten & (self._forgotten - 1) == 0:  # warn at 1, 2, 4, 8 and so on
            _log.warning(
                "the memory store is full (%d records) and has forgotten %d done events or"
                " watermarks early; a late duplicate of one of them would be handled again",
                self._max_records,
                self._forgotten,
            )

    def _forget_the_oldest(self, now: float) -> None:
        if self._key_locks:
            key_lock, passage = next(iter(self._key_locks.items()))
            is_held = passage.token is not None and now < passage.until
            if not is_held and passage.watermark_until < next(iter(self._done.values())):
                del self._key_locks[key_lock]
                return
        self._done.popitem(last=False)

    def _oldest_end(self, now: float) -> float:
        """Return the earliest time at which a record can expire."""
        ends = (end_of(next(iter(kept.values()))) for kept, end_of in self._kept if kept)
        return min([now + self.retention_seconds, *ends])

    def _prune(self, now: float, at_most: int) -> int:
        removed = 0
        for kept, end_of in self._kept:
            while removed < at_most and kept and end_of(next(iter(kept.values()))) <= now:
                kept.popitem(last=False)
                removed += 1
        return removed
