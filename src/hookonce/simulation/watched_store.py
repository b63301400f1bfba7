"""Store wrappers for a simulation: they stop virtual time in calls, and skip useless fetches.

Virtual time must not skip a call to a real store. An idle worker polls every two seconds of virtual
time, which would be 43,200 real calls a day. Only the receiver, and the receiver that it replaces,
use the endpoint of the simulation. So the wrapper answers polls from a cache for a minute, unless
an event can have become due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from ..stores.protocols import InboxStore, Store
from ..stores.values import Batch, Token
from ..stores.wrapped import WrappedHandled, WrappedInbox
from .virtual_loop import VirtualLoop

T = TypeVar("T")

# Calls that can make an event due earlier. All other calls only remove or defer events.
_MAKES_DUE_EARLIER = {"enqueue", "release", "retry", "make_due"}

# The cache must expire for two reasons. The store may still complete a call that timed out here.
# And a receiver that is being replaced releases events through another wrapper.
_LONGEST_CACHE_SECONDS = 60.0


def watched(store: Store, loop: VirtualLoop) -> WatchedStore:
    """Return a wrapper of the store; it has an inbox if the store has an inbox."""
    if isinstance(store, InboxStore):
        return WatchedInboxStore(store, loop)
    return WatchedStore(store, loop)


class WatchedStore(WrappedHandled):
    """A store that stops virtual time during its calls, and can keep handled events."""

    def __init__(self, store: Store, loop: VirtualLoop) -> None:
        super().__init__(store)
        self._loop = loop

    async def call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call of the store, and stop virtual time until the call returns."""
        async with self._loop.outside():
            return await super().call(name, call)


@dataclass(frozen=True, slots=True)
class _Idle:
    """A fetch that returned no event; its times are in the loop's virtual time.

    Attributes:
        due: when the next event becomes due, or None if the inbox is empty.
        until: when to call the store again.
    """

    endpoint: str
    due: float | None
    until: float


class WatchedInboxStore(WatchedStore, WrappedInbox):
    """A watched store with an inbox."""

    def __init__(self, store: InboxStore, loop: VirtualLoop) -> None:
        super().__init__(store, loop)
        self._idle: _Idle | None = None
        self._changes = 0

    async def call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call of the store; clear the cache if the call can make an event due earlier.

        The cache is cleared before and after the call, so that a concurrent fetch does not fill it.
        """
        if name not in _MAKES_DUE_EARLIER:
            return await super().call(name, call)
        self._changed()
        try:
            return await super().call(name, call)
        finally:
            self._changed()

    def _changed(self) -> None:
        self._idle = None
        self._changes += 1

    async def fetch(
        self, limit: int, lease: float, *, endpoint: str, worker: str, token: Token
    ) -> Batch:
        """Claim due events; see ``InboxStore.fetch``.

        The answer comes from the cache while no event can have become due.
        """
        now, idle = self._loop.time(), self._idle
        if limit > 0 and idle is not None and idle.endpoint == endpoint and now < idle.until:
            return Batch((), None if idle.due is None else idle.due - now)
        changes = self._changes
        batch = await super().fetch(limit, lease, endpoint=endpoint, worker=worker, token=token)
        if not batch.fetched and changes == self._changes:
            # Count the due time from the start of the call: a poll may then come too early, but
            # never too late.
            due = None if batch.next_due_seconds is None else now + batch.next_due_seconds
            until = now + _LONGEST_CACHE_SECONDS
            self._idle = _Idle(endpoint, due, until if due is None else min(until, due))
        return batch

    async def wait(self, endpoint: str, seconds: float) -> None:  # noqa: ARG002 - the Protocol has this argument
        """Only sleep: this process alone enqueues events, and each enqueue wakes the worker."""
        await asyncio.sleep(seconds)
