"""A store in a simulation: the real one, whose calls take real time in a loop that skips time.

Nobody else uses the store of a simulation, but for a receiver that is just being replaced. So an
idle worker, which looks every two seconds for a day of virtual time, is answered from memory for a
minute, unless something can have become due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from ..stores.contract import InboxStore, Store, Wrapped, WrappedInbox
from ..stores.values import Batch, Token
from .virtual_loop import VirtualLoop

T = TypeVar("T")

# After these something may be due earlier. The others only take events out, or make them due later.
_HURRYING = {"enqueue", "release", "retry", "make_due"}

# A call that was given up may still be done by the store, later than anybody here can notice, and
# a receiver that is being replaced gives events back through a watched store of its own.
_LONGEST_MEMORY_SECONDS = 60.0


def watched(store: Store, loop: VirtualLoop) -> WatchedStore:
    """Return the store for use in this loop; it has an inbox if the store has one."""
    if isinstance(store, InboxStore):
        return WatchedInboxStore(store, loop)
    return WatchedStore(store, loop)


class WatchedStore(Wrapped):
    """Passes every call on, and lets no time be skipped until it has returned.

    Args:
        store: the real one.
        loop: where time is skipped.

    """

    def __init__(self, store: Store, loop: VirtualLoop) -> None:
        super().__init__(store)
        self._loop = loop

    async def call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Pass a call on in real time."""
        with self._loop.outside():
            return await super().call(name, call)


@dataclass(frozen=True, slots=True)
class _Quiet:
    """What is known after a take that found nothing, in the loop's time.

    Attributes:
        endpoint: whose inbox.
        due: when the next event is due, if one waits.
        until: when the store is to be asked again.

    """

    endpoint: str
    due: float | None
    until: float


class WatchedInboxStore(WatchedStore, WrappedInbox):
    """A watched store that has an inbox.

    Args:
        store: the real one.
        loop: where time is skipped.

    """

    def __init__(self, store: InboxStore, loop: VirtualLoop) -> None:
        super().__init__(store, loop)
        self._quiet: _Quiet | None = None
        self._changes = 0

    async def call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Pass a call on, and forget what is known of the inbox if it may hurry an event.

        At its beginning as well as at its end, so that a take beside it is not remembered.
        """
        if name not in _HURRYING:
            return await super().call(name, call)
        self._changed()
        try:
            return await super().call(name, call)
        finally:
            self._changed()

    def _changed(self) -> None:
        self._quiet = None
        self._changes += 1

    async def fetch(
        self, limit: int, lease: float, *, endpoint: str, worker: str, token: Token
    ) -> Batch:
        """Claim events that are due; see ``InboxStore.take``.

        The store is not asked while the last answer must still be true.
        """
        now, quiet = self._loop.time(), self._quiet
        if limit > 0 and quiet is not None and quiet.endpoint == endpoint and now < quiet.until:
            return Batch((), None if quiet.due is None else quiet.due - now)
        changes = self._changes
        batch = await super().fetch(limit, lease, endpoint=endpoint, worker=worker, token=token)
        if not batch.taken and changes == self._changes:
            # Counted from before the call: rather a little too early than too late.
            due = None if batch.next_due is None else now + batch.next_due
            until = now + _LONGEST_MEMORY_SECONDS
            self._quiet = _Quiet(endpoint, due, until if due is None else min(until, due))
        return batch

    async def wait(self, endpoint: str, seconds: float) -> None:  # noqa: ARG002 - the contract's
        """Return after ``seconds``: only this process puts, and that wakes its worker directly."""
        await asyncio.sleep(seconds)
