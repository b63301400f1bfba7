"""Effects that happen once: a handler's work and its record are one commit in the user's database.

A ledger is two small tables there. `within=` runs a handler in a transaction of the ledger's::

    ledger = SQLAlchemyLedger(sessionmaker)


    @receiver.on(PostTargetPublished, within=ledger)
    async def book(event: PostTargetPublished, session: AsyncSession) -> None: ...

Each ledger has a module of its own, imported by those who have its package: `sqlalchemy`,
`psycopg`, `asyncpg`, `django`, `sqlite` (the standard library) and `aiosqlite`.
"""

from __future__ import annotations

from ..errors import AlreadyDone, LedgerError
from ..stores.values import KeyLock, Watermark
from .ledger import (
    AnyLedger,
    Effect,
    Latest,
    Ledger,
    SyncLedger,
    SyncWatermarkLedger,
    WatermarkLedger,
)
from .once import prune
from .probe import check
from .sql import LedgerOptions
from .table import DIALECTS, TABLE, create_sql

__all__ = [
    "DIALECTS",
    "TABLE",
    "AlreadyDone",
    "AnyLedger",
    "Effect",
    "KeyLock",
    "Latest",
    "Ledger",
    "LedgerError",
    "LedgerOptions",
    "SyncLedger",
    "SyncWatermarkLedger",
    "Watermark",
    "WatermarkLedger",
    "check",
    "create_sql",
    "prune",
]
