"""The interfaces of ledgers: a ledger begins transactions, and records done effects in them.

``once.py`` has the step that is the same for all ledgers: it performs an effect once. To write a
ledger for another database or driver, implement one of these Protocols and run the rules of
``contract`` on it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeGuard, TypeVar, runtime_checkable

from ..stores.finishes import Finish
from ..stores.values import KeyLock, Watermark

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Effect(NamedTuple):
    """The work of one handler on one event; a ledger makes sure that it is done once.

    Attributes:
        endpoint: the name of the receiving endpoint, at most 64 characters.
        event_id: the webhook-id, at most 512 characters.
        handler: the handler's stable name, at most 200 characters.
        generation: 0, or the number of a replay on purpose: a later generation does the work again.
    """

    endpoint: str
    event_id: str
    handler: str
    generation: int = 0


class Latest(NamedTuple):
    """The condition of ``latest_by``: the event must be the latest of its resource.

    Attributes:
        key_lock: the endpoint, the handler, and the key of the resource (at most 200 characters).
        watermark: when the event was created, and its id.
        drop_ties: also leave the event out if another event of the same moment has succeeded.
        late: do not leave the event out. The watermark is advanced as usual, and so stays locked
            until the end of the transaction.
    """

    key_lock: KeyLock
    watermark: Watermark
    drop_ties: bool = False
    late: bool = False


class AnyLedger(Protocol[T_co]):
    """A ledger for async handlers or for threads; ``T_co`` is the class of its transactions."""

    @property
    def retention_seconds(self) -> float:
        """How long a row stays: at least as long as the store remembers a handled event."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[T_co] | AbstractContextManager[T_co]:
        """Return the context of a new transaction; see ``Ledger`` and ``SyncLedger``."""
        ...


@runtime_checkable
class InFiles(Protocol):
    """A ledger in SQLite files; none of them may be the store's file."""

    @property
    def databases(self) -> Sequence[object]:
        """The paths or URIs of the SQLite files; empty if they are unknown without a connection."""
        ...


@runtime_checkable
class InUse(Protocol):
    """A ledger that opens connections itself, and closes them when nobody uses the ledger."""

    def in_use(self) -> AbstractAsyncContextManager[None]:
        """Return a context that keeps the connections open; contexts may overlap."""
        ...


class Ledger(AnyLedger[T], Protocol[T]):
    """A ledger for async handlers.

    Rows are unique by endpoint, event id and handler, compared byte for byte. A row also has the
    generation that was done last: it is done for this generation and for all lower ones.
    """

    def transaction(self) -> AbstractAsyncContextManager[T]:
        """Return the context of a new transaction: it commits at its end or rolls back on an error.

        The isolation level is READ COMMITTED, unless the user asks for another. The context yields
        the object that the handler works with, such as a session. The handler must not be able to
        commit with this object. A savepoint in a transaction that other code commits is not enough:
        the transaction must be a real one.
        """
        ...

    async def insert(self, transaction: T, effect: Effect) -> bool:
        """Insert the effect's row; return False if the effect is already done.

        A row of a lower generation is not done: raise it to the generation of the effect, in this
        transaction, instead of inserting a row.

        The row says "begun", until ``holds`` changes it. If another transaction has inserted or
        raised the row and has not ended, wait for its end.

        Raises:
            LedgerError: a committed row says "begun": somebody committed before the handler's end.
        """
        ...

    async def holds(self, transaction: T, effect: Effect) -> bool:
        """Change the effect's row from begun to done; return whether a commit keeps the row.

        The row must prove the result: change the row by a statement in the transaction. It must be
        the row that ``insert`` inserted or raised in this transaction, not a row of an earlier
        transaction or of another attempt. The driver's state of the transaction is no proof:

        - If a statement fails and the handler goes on, PostgreSQL turns the COMMIT into a ROLLBACK
          and reports no error.
        - If the handler ends the transaction and begins another, the driver sees nothing wrong.

        If the row is not held, the method returns False or raises the database's error.
        """
        ...

    async def prune(self, transaction: T, limit: int) -> int:
        """Delete at most ``limit`` rows that are older than the retention; return how many."""
        ...


class SyncLedger(AnyLedger[T], Protocol[T]):
    """A ledger for handlers that run in threads; each call comes from the handler's thread.

    Its methods do the same as those of ``Ledger``.
    """

    def transaction(self) -> AbstractContextManager[T]:
        """Return the context of a new transaction."""
        ...

    def insert(self, transaction: T, effect: Effect) -> bool:
        """Insert the effect's row; return False if the effect is already done."""
        ...

    def holds(self, transaction: T, effect: Effect) -> bool:
        """Change the effect's row from begun to done; return whether a commit keeps the row."""
        ...

    def prune(self, transaction: T, limit: int) -> int:
        """Delete at most ``limit`` rows that are older than the retention; return how many."""
        ...


class WatermarkLedger(Ledger[T], Protocol[T]):
    """A ledger that also keeps watermarks: for each handler and resource, the newest event.

    A watermark is unique by endpoint, handler and key of the resource, compared byte for byte. It
    is part of the transaction: a rollback undoes the advance. ``prune`` deletes a watermark that
    has not been advanced for the retention.
    """

    async def advance(self, transaction: T, latest: Latest) -> bool:
        """Raise the watermark of a resource to this event; return False if it comes too late.

        The event comes too late if the watermark is newer. With ``drop_ties`` it also comes too
        late if the watermark is another event that was created at the same moment. If another
        transaction has advanced the watermark and has not ended, wait for its end, then compare.
        The watermark stays locked until this transaction ends, even if it was not raised.
        """
        ...


class SyncWatermarkLedger(SyncLedger[T], Protocol[T]):
    """A ledger for handlers that run in threads, which also keeps watermarks."""

    def advance(self, transaction: T, latest: Latest) -> bool:
        """Raise the watermark of a resource; return False if the event comes too late."""
        ...


class FinishingLedger(Ledger[T], Protocol[T]):
    """A ledger that can also finish events of a store in its database."""

    async def finish(self, transaction: T, effect: Effect, finish: Finish) -> bool:
        """Do the work of ``holds``, and record the success in the store in the same statement.

        Raises:
            Exception: the database's error; its SQLSTATE is ``CLAIM_LOST`` if another attempt owns
                the event.
        """
        ...


class SyncFinishingLedger(SyncLedger[T], Protocol[T]):
    """A ledger for handlers that run in threads, which can also finish events of a store."""

    def finish(self, transaction: T, effect: Effect, finish: Finish) -> bool:
        """Do the work of ``holds``, and record the success in the store in the same statement."""
        ...


def is_async_ledger(ledger: AnyLedger[T]) -> TypeGuard[Ledger[T]]:
    """Return whether a ledger is for async handlers; otherwise it is for threads."""
    return inspect.iscoroutinefunction(getattr(ledger, "insert", None))


def keeps_watermarks(ledger: AnyLedger[Any]) -> bool:
    """Return whether a ledger keeps watermarks, which ``latest_by`` needs."""
    return callable(getattr(ledger, "advance", None))


def finishes_events(ledger: AnyLedger[Any]) -> bool:
    """Return whether a ledger can finish events of a store that shares its database."""
    return callable(getattr(ledger, "finish", None))
