"""A real store that fails or hangs on demand."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hookonce.errors import StoreError
from hookonce.stores.protocols import Store
from hookonce.stores.wrapped import Wrapped, WrappedInbox

__all__ = ["FaultyInboxStore", "FaultyStore"]

T = TypeVar("T")


class FaultyStore(Wrapped):
    """Passes every call on to a real store until a test begins a fault.

    Attributes:
        calls: how often each call was begun.
        failures: how many more times a call raises StoreError; -1 for always.
        gates: calls that wait for an event before they reach the store.

    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()
        self.failures: dict[str, int] = {}
        self.gates: dict[str, asyncio.Event] = {}

    def hang(self, call: str) -> asyncio.Event:
        """Let a call wait until the returned event is set."""
        self.gates[call] = asyncio.Event()
        return self.gates[call]

    async def call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        self.calls[name] += 1
        if name in self.gates:
            await self.gates[name].wait()
        if self.failures.get(name):
            self.failures[name] -= 1
            raise StoreError(f"{name} was told to fail")
        return await super().call(name, call)


class FaultyInboxStore(FaultyStore, WrappedInbox):
    """A `FaultyStore` with an inbox."""
