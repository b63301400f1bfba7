"""The calls of the contract that are steps of ``life`` and ``gates``, for stores in Python.

A store says how a step is taken: it reads what is known, takes the step, and writes what it gets
back, all at one moment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

from . import key_locks, life
from .key_locks import Passage
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
"""A step of ``life``: from what is known of an event, and the moment, to an answer and a record."""
KeyLockStep: TypeAlias = Callable[[Passage, Moment], tuple[T, Passage]]
"""The same of ``gates``."""

_NONE: frozenset[str] = frozenset()


class StepStore(ABC):
    """A store, as far as its calls are steps."""

    @abstractmethod
    def _step(
        self, key: DeliveryKey, step: LifeStep[T], delivery: Delivery | None = None
    ) -> Awaitable[T]:
        """Take a step of an event's life; the delivery is for a letter that the step may make."""

    @abstractmethod
    def _pass(
        self,
        key_lock: KeyLock,
        step: KeyLockStep[T],
        *,
        is_entering: bool,
        event: DeliveryKey | None = None,
    ) -> Awaitable[T]:
        """Take a step at a gate, where an event waits no more."""

    async def extend(
        self, claim: Claimed, finished: frozenset[str] = _NONE, outstanding: frozenset[str] = _NONE
    ) -> Ownership:
        """Start the lease anew; see ``Claims.extend``."""
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
        """Give the event back; see ``Claims.release``."""
        return await self._step(
            claim.key,
            lambda record, moment: life.release(
                record, moment, claim, finished, error, outstanding=outstanding, began=began
            ),
        )

    async def keep(
        self, claim: Claimed, delivery: Delivery, *, dead_at: float | None = None
    ) -> Ownership:
        """Keep the delivery beside its claim; see ``Claims.keep``."""
        return await self._step(
            claim.key, lambda record, moment: life.keep(record, moment, claim, dead_at), delivery
        )

    async def keep_in_flight(self, delivery: Delivery, *, dead_at: float | None = None) -> None:
        """Keep a delivery beside somebody else's claim; see ``Claims.keep_in_flight``."""
        await self._step(
            delivery.key,
            lambda record, moment: (None, life.keep_in_flight(record, moment, dead_at)),
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
        """Forget a dead letter and remember the event as done; see ``Letters.discard``."""
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
        """Pass a gate, or learn why not; see ``Gates.enter``."""
        return await self._pass(
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
            is_entering=True,
        )

    async def release_key_lock(
        self,
        key_lock: KeyLock,
        token: Token,
        *,
        watermark: Watermark | None = None,
        event: DeliveryKey | None = None,
    ) -> DeliveryKey | None:
        """Give a gate back, and return who is to come next; see ``Gates.leave``."""
        return await self._pass(
            key_lock,
            lambda passage, moment: key_locks.release(
                passage, moment, token, watermark=watermark, event=event
            ),
            is_entering=False,
            event=event,
        )
