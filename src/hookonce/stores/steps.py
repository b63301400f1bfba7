"""The calls of the contract that are one step of ``life`` or ``key_locks``, for stores in Python.

A store implements ``_step`` and ``_key_lock_step``: each reads a record, calls the step with it,
and writes the record that the step returns, all in one atomic change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

from . import key_locks, life
from .key_locks import KeyLockRecord
from .life import Moment, Record
from .values import (
    AcquireResult,
    Claimed,
    DeadReason,
    Delivery,
    DeliveryKey,
    KeyLock,
    Ownership,
    Token,
    Watermark,
)

T = TypeVar("T")
LifeStep: TypeAlias = Callable[[Record, Moment], tuple[T, Record]]
"""A step of ``life``: takes a record and the moment, returns an answer and the next record."""
KeyLockStep: TypeAlias = Callable[[KeyLockRecord, Moment], tuple[T, KeyLockRecord]]
"""A step of ``key_locks``."""

_NONE: frozenset[str] = frozenset()


class StepStore(ABC):
    """The calls of a store that do one step of ``life`` or ``key_locks``."""

    @abstractmethod
    def _step(
        self, key: DeliveryKey, step: LifeStep[T], delivery: Delivery | None = None
    ) -> Awaitable[T]:
        """Do a step; ``delivery`` is stored if the step makes a dead letter."""

    @abstractmethod
    def _key_lock_step(
        self,
        key_lock: KeyLock,
        step: KeyLockStep[T],
        *,
        is_acquiring: bool,
        event: DeliveryKey | None = None,
    ) -> Awaitable[T]:
        """Do a step of a key lock; ``event`` leaves its queue."""

    async def extend(
        self, claim: Claimed, finished: frozenset[str] = _NONE, outstanding: frozenset[str] = _NONE
    ) -> Ownership:
        """Restart the lease; see ``Claims.extend``."""
        return await self._step(
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
        return await self._step(
            claim.key,
            lambda record, moment: life.release(
                record, moment, claim, finished, error, outstanding=outstanding, began=began
            ),
        )

    async def keep(
        self, claim: Claimed, delivery: Delivery, *, dead_unix: float | None = None
    ) -> Ownership:
        """Keep the delivery during its claim; see ``Claims.keep``."""
        return await self._step(
            claim.key, lambda record, moment: life.keep(record, moment, claim, dead_unix), delivery
        )

    async def keep_in_flight(self, delivery: Delivery, *, dead_unix: float | None = None) -> None:
        """Keep a delivery during another caller's claim; see ``Claims.keep_in_flight``."""
        await self._step(
            delivery.key,
            lambda record, moment: (None, life.keep_in_flight(record, moment, dead_unix)),
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
        return await self._step(
            claim.key,
            lambda record, moment: life.bury(
                record, moment, claim, reason, error, finished, outstanding
            ),
            delivery,
        )

    async def discard(self, key: DeliveryKey) -> bool:
        """Delete a dead letter; see ``DeadLetterQueue.discard``."""
        return await self._step(key, life.discard)

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
        return await self._key_lock_step(
            key_lock,
            lambda passage, moment: key_locks.acquire(
                passage,
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
        return await self._key_lock_step(
            key_lock,
            lambda passage, moment: key_locks.release(
                passage, moment, token, watermark=watermark, event=event
            ),
            is_acquiring=False,
            event=event,
        )
