"""The dependencies that all attempts of a receiver share."""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from ..clock import Clock
from ..effects.ledger import AnyLedger
from ..routing.table import HandlerTable
from ..senders import Rules
from ..stores.finishes import FinishingStore
from ..stores.handled import HandledStore, Keeping
from ..stores.protocols import Claims, KeyLocks, Queue
from ..stores.values import Claimed, Delivery, DeliveryKey, KeyLock, Watermark
from ..watching.absent_handlers import AbsentHandlers
from ..watching.observers import Observers
from .calls import Threads
from .limits import Limits


class AttemptStore(Claims, KeyLocks, Protocol):
    """The part of a store that attempts use."""


class HandledKeeper(NamedTuple):
    """Completes events and keeps their deliveries, for a receiver with ``keep_handled``.

    Attributes:
        store: the receiver's store.
        keeping: how long and how much the receiver keeps.
    """

    store: HandledStore
    keeping: Keeping

    def complete(
        self, claim: Claimed, delivery: Delivery, finished: Collection[str]
    ) -> Awaitable[None]:
        """Record that an event is handled, and keep its delivery."""
        return self.store.complete_and_keep(claim, delivery, finished, self.keeping)


@dataclass(slots=True)
class SharingLedgers:
    """The ledgers that share the store's database, so that their commits finish events.

    Attributes:
        store: the store; None if no ledger shares its database.
        ledgers: the ledgers, by their ``id``.
    """

    store: FinishingStore | None = None
    ledgers: dict[int, AnyLedger[Any]] = field(default_factory=dict)

    def store_of(self, ledger: AnyLedger[Any]) -> FinishingStore | None:
        """Return the store if it is in the ledger's database."""
        return self.store if id(ledger) in self.ledgers else None


@dataclass(slots=True, eq=False, repr=False)
class Unrecorded:
    """The successes of this process that the store may not know.

    Attributes:
        successes: for each event the handlers that succeeded in an attempt whose lease ended before
            the store knew their success; the next attempt in this process skips them.
        watermarks: for each key lock the newest event that succeeded. Every later call about that
            key lock sends the watermark first.
    """

    successes: dict[DeliveryKey, set[str]] = field(default_factory=dict)
    watermarks: dict[KeyLock, Watermark] = field(default_factory=dict)

    def keep_watermark(self, key_lock: KeyLock, watermark: Watermark) -> None:
        """Keep the watermark of a success, unless a newer watermark is kept already."""
        self.watermarks[key_lock] = max(watermark, self.watermarks.get(key_lock, watermark))

    def forget_watermark(self, key_lock: KeyLock, recorded: Watermark | None) -> None:
        """Forget the watermark that the store has recorded, unless a newer watermark has come."""
        if recorded is not None and self.watermarks.get(key_lock) == recorded:
            del self.watermarks[key_lock]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The shared dependencies; a receiver makes them once.

    Attributes:
        endpoint: the name of the endpoint; part of every deduplication key.
        store: remembers claims, key locks and results.
        inbox: the same store if events wait in it for workers; otherwise None.
        handler_table: the handlers, and which of them are for an event.
        rules: the sender's rules; ``attempts`` is None if a receiver cannot count the attempts.
        limits: time limits.
        clock: Unix time in seconds.
        observers: notified of every step.
        threads: where sync handlers run.
        absent: remembers the handlers that events need, and that this process does not have.
        keeper: keeps the deliveries of handled events; None if the receiver keeps none.
        unrecorded: the successes of this process that the store may not know.
        sharing: the ledgers that share the store's database.
    """

    endpoint: str
    store: AttemptStore
    inbox: Queue | None
    handler_table: HandlerTable
    rules: Rules
    limits: Limits
    clock: Clock
    observers: Observers
    threads: Threads
    absent: AbsentHandlers
    keeper: HandledKeeper | None = None
    unrecorded: Unrecorded = field(default_factory=Unrecorded)
    sharing: SharingLedgers = field(default_factory=SharingLedgers)

    def without_keeper(self) -> Dependencies:
        """Return a copy without the keeper: the delivery of a replayed event is kept already."""
        return replace(self, keeper=None)
