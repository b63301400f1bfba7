"""The base classes of stores in Python.

The functions of ``life`` and ``key_locks`` decide what each call does. A store reads and writes the
records that these functions take and return.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from typing import NamedTuple, Self, TypeAlias, TypeVar, Unpack

from ..clock import Clock, span_seconds, system_clock
from ..errors import StoreError
from . import key_locks, life
from .key_locks import KeyLockRecord
from .life import Moment, Record
from .protocols import DEFAULT_RETENTION
from .values import (
    AcquireResult,
    Claimed,
    ClaimResult,
    DeadLetter,
    DeadReason,
    Delivery,
    DeliveryKey,
    KeyLock,
    Known,
    Ownership,
    StoreStats,
    Token,
    WantedDeadLetters,
    Watermark,
    delivery_key,
    number_behind,
)

T = TypeVar("T")
EventStep: TypeAlias = Callable[[Record, Moment], tuple[T, Record]]
"""A step of ``life``: a function from a record and a moment to an answer and the next record."""
KeyLockStep: TypeAlias = Callable[[KeyLockRecord, Moment], tuple[T, KeyLockRecord]]
"""A step of ``key_locks``: a function with the same arguments and results as ``EventStep``."""

_NONE: frozenset[str] = frozenset()


class StepStore(ABC):
    """A store that does each call as one step of ``life`` or ``key_locks``."""

    @abstractmethod
    def change_event(
        self, key: DeliveryKey, step: EventStep[T], delivery: Delivery | None = None
    ) -> Awaitable[T]:
        """Read the record of an event, do a step, write the next record, and return the answer.

        No other change of the event may come between the reading and the writing, and the answer
        is returned after the writing. An event that the store does not know has the record
        ``life.NEW``. If the step returns the same record, there is nothing to write.

        Args:
            key: the event.
            step: returns the answer and the next record.
            delivery: stored with the next record if this record has a dead letter and the store has
                no delivery of the event yet. A store that keeps bodies raises StoreError if it
                needs a delivery and has none.
        """

    @abstractmethod
    def change_key_lock(
        self,
        key_lock: KeyLock,
        step: KeyLockStep[T],
        *,
        is_acquiring: bool,
        event: DeliveryKey | None = None,
    ) -> Awaitable[T]:
        """Read the record of a key lock, do a step and write the next record, atomically.

        A key lock that the store does not know has the record ``key_locks.FREE``. A record may be
        deleted if ``key_locks.is_forgotten`` returns True.

        Args:
            key_lock: the key lock.
            step: returns the answer and the next record.
            is_acquiring: whether to skip the step if the caller is cancelled first: nobody would
                release the lock.
            event: the event that the step removes from the queue, for a store that does not read
                the whole queue.
        """

    async def extend(
        self, claim: Claimed, finished: frozenset[str] = _NONE, outstanding: frozenset[str] = _NONE
    ) -> Ownership:
        """Restart the lease; see ``Claims.extend``."""
        return await self.change_event(
            claim.key,
            lambda record, moment: life.extend(record, moment, claim, finished, outstanding),
        )

    async def release(
        self,
        claim: Claimed,
        finished: frozenset[str],
        error: str | None = None,
        *,
        outstanding: frozenset[str] = _NONE,
        began: bool = True,
    ) -> Ownership:
        """End the attempt without success; see ``Claims.release``."""
        return await self.change_event(
            claim.key,
            lambda record, moment: life.release(
                record, moment, claim, finished, error, outstanding=outstanding, began=began
            ),
        )

    async def keep(
        self,
        claim: Claimed,
        delivery: Delivery,
        *,
        dead_unix: float | None = None,
        renew: bool = False,
    ) -> Ownership:
        """Keep the delivery during its claim; see ``Claims.keep``."""
        return await self.change_event(
            claim.key,
            lambda record, moment: life.keep(record, moment, claim, dead_unix, renew=renew),
            delivery,
        )

    async def keep_in_flight(
        self, delivery: Delivery, *, dead_unix: float | None = None, renew: bool = False
    ) -> None:
        """Keep a delivery during another caller's claim; see ``Claims.keep_in_flight``."""
        await self.change_event(
            delivery.key,
            lambda record, moment: (
                None,
                life.keep_in_flight(record, moment, dead_unix, renew=renew),
            ),
            delivery,
        )

    async def bury(
        self,
        claim: Claimed,
        reason: DeadReason,
        *,
        error: str = "",
        finished: frozenset[str] = _NONE,
        outstanding: frozenset[str] = _NONE,
        delivery: Delivery | None = None,
    ) -> Ownership:
        """Make the event a dead letter; see ``Claims.bury``."""
        return await self.change_event(
            claim.key,
            lambda record, moment: life.bury(
                record, moment, claim, reason, error, finished, outstanding
            ),
            delivery,
        )

    async def discard(self, key: DeliveryKey) -> bool:
        """Delete a dead letter; see ``DeadLetterQueue.discard``."""
        return await self.change_event(key, life.discard)

    async def acquire_key_lock(
        self,
        key_lock: KeyLock,
        token: Token,
        lease: float,
        *,
        watermark: Watermark | None = None,
        drop_ties: bool = False,
        waiting: DeliveryKey | None = None,
    ) -> AcquireResult:
        """Acquire a key lock; see ``KeyLocks.acquire_key_lock``."""
        return await self.change_key_lock(
            key_lock,
            lambda record, moment: key_locks.acquire(
                record,
                moment,
                token,
                lease,
                watermark=watermark,
                drop_ties=drop_ties,
                waiting=waiting,
            ),
            is_acquiring=True,
        )

    async def release_key_lock(
        self,
        key_lock: KeyLock,
        token: Token,
        *,
        watermark: Watermark | None = None,
        event: DeliveryKey | None = None,
    ) -> DeliveryKey | None:
        """Release a key lock; see ``KeyLocks.release_key_lock``."""
        return await self.change_key_lock(
            key_lock,
            lambda record, moment: key_locks.release(
                record, moment, token, watermark=watermark, event=event
            ),
            is_acquiring=False,
            event=event,
        )


class HeldEvent(NamedTuple):
    """An event as a ``RecordStore`` holds it.

    Attributes:
        key: the key of the event.
        record: its state and history.
        delivery: the delivery of a dead letter, or a delivery that was kept.
        number: the place among the dead letters, in the order in which they were kept or buried.
    """

    key: DeliveryKey
    record: Record = life.NEW
    delivery: Delivery | None = None
    number: int = 0

    def after(self, record: Record, delivery: Delivery | None) -> Self:
        """Return the event after a step, for a store that keeps bodies.

        Args:
            record: the next record.
            delivery: as in ``RecordStore.change_event``.

        Raises:
            StoreError: the next record has a dead letter, and there is no delivery.
        """
        if record.dead_letter is None:
            return self._replace(record=record, delivery=None, number=0)
        if self.delivery is not None:
            return self._replace(record=record)
        if delivery is None:
            raise StoreError("there is no delivery to bury: none was passed, and none was kept")
        # The number is the time in microseconds. The number is unique, because a store makes at
        # most one change per microsecond.
        return self._replace(record=record, delivery=delivery, number=time.time_ns() // 1000)

    def dead_letter(self, moment: Moment) -> DeadLetter | None:
        """Return the dead letter or the kept delivery, as an operator sees it."""
        if self.delivery is None:
            return None
        return life.dead_letter(self.record, moment, self.delivery, str(self.number))


class RecordStore(StepStore):
    """Base class that implements ``Store`` for a class that changes, finds and prunes records.

    A subclass implements ``change_event``, ``change_key_lock``, ``held_events`` and ``prune``, and
    has an attribute ``keeps_bodies``. Listings and counts read all events. A store of very many
    events overrides them too.

    Args:
        retention: how long a done event is remembered; at least the span of the receiver's sender.
        clock: Unix time in seconds, also for leases.
    """

    keeps_bodies: bool

    def __init__(
        self, *, retention: float | timedelta = DEFAULT_RETENTION, clock: Clock = system_clock
    ) -> None:
        self.retention_seconds: float = span_seconds("retention", retention, positive=True)
        self._clock = clock

    @abstractmethod
    async def held_events(self, keys: Collection[DeliveryKey] | None = None) -> Iterable[HeldEvent]:
        """Return the events with these keys (None: all); unknown events may be left out."""

    @abstractmethod
    async def prune(self) -> int:
        """Delete records whose retention is over, and return the number of events.

        ``life.is_forgotten`` and ``key_locks.is_forgotten`` tell which records may be removed.
        """

    def moment(self) -> Moment:
        """Return the current time as the ``Moment`` that the steps of ``life`` take."""
        now = self._clock()
        return Moment(now, now, now + self.retention_seconds)

    async def open(self) -> None:
        """Do nothing; override this method if the store connects to a server or opens files."""

    async def aclose(self) -> None:
        """Do nothing; override this method if the store has connections, files or threads."""

    async def warnings(self) -> tuple[str, ...]:
        """Return no warnings."""
        return ()

    async def claim(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult:
        """Claim an event; see ``Claims.claim``."""
        return await self.change_event(
            key, lambda record, moment: life.claim(record, moment, key, token, lease)
        )

    async def complete(self, claim: Claimed) -> None:
        """Record that the event is handled; see ``Claims.complete``."""
        await self.change_event(claim.key, lambda _, moment: (None, life.complete(moment)))

    async def replay(self, key: DeliveryKey, token: Token, lease: float) -> ClaimResult | None:
        """Claim a dead letter; see ``DeadLetterQueue.replay``."""
        return await self.change_event(
            key, lambda record, moment: life.replay(record, moment, key, token, lease)
        )

    async def dead_letters(
        self, *, after: str | None = None, limit: int = 100, **wanted: Unpack[WantedDeadLetters]
    ) -> list[DeadLetter]:
        """Return dead letters, oldest first; see ``DeadLetterQueue.dead_letters``."""
        behind, moment = number_behind(after), self.moment()
        events = [event for event in await self.held_events() if event.number > behind]
        events.sort(key=lambda event: event.number)
        found = (event.dead_letter(moment) for event in events)
        listed = (letter for letter in found if letter and letter.matches(wanted))
        return [
            replace(letter, delivery=letter.delivery._replace(body=b""))
            for letter in islice(listed, limit)
        ]

    async def dead_letter(self, key: DeliveryKey) -> DeadLetter | None:
        """Return one dead letter with its body; see ``DeadLetterQueue.dead_letter``."""
        for event in await self.held_events([key]):
            return event.dead_letter(self.moment())
        return None

    async def known(self, endpoint: str, event_ids: Sequence[str]) -> dict[str, Known]:
        """Return the states of these events; see ``Reports.known``."""
        keys, moment = [delivery_key(endpoint, event_id) for event_id in event_ids], self.moment()
        states = {
            event.key.removeprefix(f"{endpoint}:"): life.known_as(event.record, moment)
            for event in await self.held_events(keys)
        }
        return {event_id: state for event_id, state in states.items() if state is not None}

    async def stats(self, *, endpoint: str | None = None) -> StoreStats:
        """Count live claims, dead letters and kept deliveries; see ``Reports.stats``."""
        moment = self.moment()
        events = [
            event
            for event in await self.held_events()
            if endpoint is None or event.key.startswith(f"{endpoint}:")
        ]
        letters = [letter for event in events if (letter := event.dead_letter(moment))]
        kept = sum(letter.is_kept for letter in letters)
        return StoreStats(
            in_flight=sum(moment.now < event.record.until for event in events),
            dead=len(letters) - kept,
            kept=kept,
        )
