"""Effects that happen once: your database commits a handler's work together with its record.

A ledger is two small tables in that database. ``within=`` runs a handler in a transaction that
begins with the handler's row in the ledger::

    ledger = SQLAlchemyLedger(sessionmaker)


    @receiver.on(PostTargetPublished, within=ledger)
    async def book(event: PostTargetPublished, session: AsyncSession) -> None: ...

Import a ledger from the module of its driver: ``sqlalchemy``, ``psycopg``, ``asyncpg``, ``django``,
``sqlite`` (the standard library) or ``aiosqlite``.
"""

from __future__ import annotations

from ..errors import AlreadyDone, LedgerError
from ..stores.values import KeyLock, Watermark
from .changes import RowChanges
from .ledger import (
    AnyLedger,
    Effect,
    FinishingLedger,
    Latest,
    Ledger,
    SyncFinishingLedger,
    SyncLedger,
    SyncWatermarkLedger,
    WatermarkLedger,
)
from .once import prune
from .probe import check
from .sql import LedgerOptions
from .table import DIALECTS, TABLE, create_sql
from .trial import RolledBack

__all__ = [
    "DIALECTS",
    "TABLE",
    "AlreadyDone",
    "AnyLedger",
    "Effect",
    "FinishingLedger",
    "KeyLock",
    "Latest",
    "Ledger",
    "LedgerError",
    "LedgerOptions",
    "RolledBack",
    "RowChanges",
    "SyncFinishingLedger",
    "SyncLedger",
    "SyncWatermarkLedger",
    "Watermark",
    "WatermarkLedger",
    "check",
    "create_sql",
    "prune",
]
