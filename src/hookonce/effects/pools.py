"""The pool of an async ledger: the application's own pool, or a pool that the ledger opens.

An async pool belongs to the event loop in which it was opened. A module is imported before its
event loop runs, so it cannot open a pool. But it can pass a function that makes a pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar


class Pool(Protocol):
    """The interface that the pools of all drivers share."""

    async def close(self) -> None:
        """Close all connections."""
        ...


P = TypeVar("P", bound=Pool)


class LedgerPool(Generic[P]):
    """The pool of a ledger.

    Args:
        pool: the application's open pool, or a function that makes a pool.
        open_pool: opens a new pool.
    """

    def __init__(self, pool: P | Callable[[], P], open_pool: Callable[[P], Awaitable[Any]]) -> None:
        self._make: Callable[[], P] | None = pool if callable(pool) else None
        self._pool: P | None = None if callable(pool) else pool
        self._open_pool = open_pool
        self._opening = asyncio.Lock()
        self._users = 0

    async def opened(self) -> P:
        """Return the pool; make and open it at the first call."""
        if self._pool is None:
            async with self._opening:
                if self._pool is None:
                    self._pool = await self._opened()
        return self._pool

    async def _opened(self) -> P:
        if self._make is None:
            raise TypeError("the ledger has no pool")
        pool = self._make()
        await self._open_pool(pool)
        return pool

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        """Keep the pool open in the block; the last block closes a pool that the ledger made."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._users == 0 and self._make is not None and self._pool is not None:
                pool, self._pool = self._pool, None
                # The next block may run in another event loop, which needs another lock.
                self._opening = asyncio.Lock()
                await pool.close()
