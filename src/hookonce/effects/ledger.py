"""What a ledger must do: begin a transaction, and know in it which effects there are.

The once-only step itself is the same for all of them, in ``once.py``. Whoever writes a ledger for
another database or driver runs ``contract.py`` on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from ..stores.values import KeyLock, Watermark

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Effect(NamedTuple):
    """What is done once: the work of one handler on one event.

    Attributes:
        endpoint: the name of the receiving endpoint, at most 64 characters.
        event_id: the webhook-id, at most 512 characters.
        handler: the handler's stable name, at most 200 characters.

    """

    endpoint: str
    event_id: str
    handler: str


class Latest(NamedTuple):
    """What an effect's event must be, to be worked on: the latest of its resource.

    Attributes:
        key_lock: the endpoint, the handler, and the resource: its key, at most 200 characters.
        watermark: when the event was created, and its id.
        drop_ties: whether one is too late where another of the same moment has succeeded.

    """

    key_lock: KeyLock
    watermark: Watermark
    drop_ties: bool = False


class AnyLedger(Protocol[T_co]):
    """A ledger of either kind, by the transaction that its handlers are given."""

    @property
    def retention_seconds(self) -> float:
        """How long a row stays at least; no shorter than the store remembers a handled event."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[T_co] | AbstractContextManager[T_co]:
        """Return a transaction's context; see ``Ledger`` and ``SyncLedger``."""
        ...


@runtime_checkable
class InFiles(Protocol):
    """A ledger in SQLite files, which must be other files than the store's."""

    @property
    def databases(self) -> Sequence[object]:
        """What is connected to: paths, or URIs of SQLite; as far as known without connecting."""
        ...


class Ledger(AnyLedger[T], Protocol[T]):
    """A ledger for async handlers.

    Rows are unique by endpoint, event id and handler, compared byte for byte.
    """

    def transaction(self) -> AbstractAsyncContextManager[T]:
        """Return the context of a new transaction: committed at its end, rolled back by an error.

        READ COMMITTED, unless the user has asked for more. What is given is the handler's to work
        with, and must not be able to commit alone. It must be a transaction of its own: not a
        savepoint in one that somebody else commits.
        """
        ...

    async def insert(self, transaction: T, effect: Effect) -> bool:
        """Insert the effect's row; return False if it was there, and says that the effect is done.

        The row says that the handler has begun, until ``holds`` lets it say that the effect is
        done. A committed row that says no more is an error: somebody has committed before the
        handler's end. Where another transaction has inserted the row and not ended, this waits for
        its end.
        """
        ...

    async def holds(self, transaction: T, effect: Effect) -> bool:
        """Let the row say that the effect is done, and return whether a commit would keep it.

        The row itself tells, read or changed by a statement in the transaction; and it must be the
        row that ``insert`` has put into this transaction, not one of an earlier transaction or of
        another attempt. What the driver knows about the transaction is no proof. A statement may
        have failed, and the handler gone on: PostgreSQL then turns the COMMIT into a ROLLBACK and
        reports no error. Or somebody has ended the transaction and begun another, and all looks
        well. Raises what the database says, or returns False.
        """
        ...

    async def prune(self, transaction: T, limit: int) -> int:
        """Delete at most ``limit`` rows that are older than the retention; return how many."""
        ...


class SyncLedger(AnyLedger[T], Protocol[T]):
    """A ledger for handlers that run in threads; each call is made in the handler's own thread.

    Its methods do what those of ``Ledger`` do.
    """

    def transaction(self) -> AbstractContextManager[T]:
        """Return the context of a new transaction."""
        ...

    def insert(self, transaction: T, effect: Effect) -> bool:
        """Insert the effect's row; return False if it was there, and says that it is done."""
        ...

    def holds(self, transaction: T, effect: Effect) -> bool:
        """Let the row say that the effect is done, and return whether a commit would keep it."""
        ...

    def prune(self, transaction: T, limit: int) -> int:
        """Delete at most ``limit`` rows that are older than the retention; return how many."""
        ...


class WatermarkLedger(Ledger[T], Protocol[T]):
    """A ledger that also knows how far a handler has come with each resource.

    A watermark is unique by endpoint, handler and key of the resource, compared byte for byte. It
    is part of the transaction: a rollback undoes the advance. ``prune`` deletes a watermark that
    has not been advanced for the retention.
    """

    async def advance(self, transaction: T, latest: Latest) -> bool:
        """Advance the resource's watermark to this event; return False if the event comes too late.

        The event comes too late if the watermark is newer; with ``drop_ties`` also if it is of
        another event that was created at the same moment. If another transaction has advanced the
        watermark and has not ended, this call waits for its end, then compares. The watermark stays
        locked until this transaction ends, also when it was not advanced.
        """
        ...


class SyncWatermarkLedger(SyncLedger[T], Protocol[T]):
    """The same for handlers that run in threads."""

    def advance(self, transaction: T, latest: Latest) -> bool:
        """Advance the resource's watermark; return False if the event comes too late."""
        ...
