"""The inbox of one endpoint as an operator sees it: what waits, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, Unpack

from ..stores.protocols import InboxListing
from ..stores.values import Entry, StoreStats, delivery_key


class ListOptions(TypedDict, total=False):
    """Which events are listed.

    Attributes:
        event_type: only those of this type.
        handler: only those that this handler has failed with, or not run for.
        since: only those of then or later, in Unix seconds.
        after: the ``place`` of one that was listed: only those behind it.
        limit: how many at the most, 100 by default.

    """

    event_type: str | None
    handler: str | None
    since: float | None
    after: str | None
    limit: int


def check_options(options: ListOptions) -> ListOptions:
    """Return the options; refuse what nothing is listed by, since then all would be listed."""
    for name in options.keys() - ListOptions.__optional_keys__:
        raise TypeError(f"list() got an unexpected keyword argument {name!r}")
    return options


class WaitingEvents:
    """The events in the inbox of one endpoint. Every method raises StoreError where it fails.

    Args:
        store: where they are.
        endpoint: the endpoint's name.

    """

    def __init__(self, *, store: InboxListing, endpoint: str) -> None:
        self._store = store
        self._endpoint = endpoint

    async def stats(self) -> StoreStats:
        """Return how many wait, for how long, and how many work on them."""
        return await self._store.stats(endpoint=self._endpoint)

    async def list(self, **options: Unpack[ListOptions]) -> Sequence[Entry]:
        """Return events, oldest first, without their bodies; ``since`` is when one was received.

        Raises ValueError where ``after`` is no place in this store's listings.
        """
        return await self._store.entries(endpoint=self._endpoint, **check_options(options))

    async def show(self, event_id: str) -> Entry | None:
        """Return an event in the inbox with its body, or None."""
        return await self._store.entry(delivery_key(self._endpoint, event_id))

    async def retry(self, event_id: str) -> bool:
        """Let an event that waits for a later attempt be tried now; False where none waits."""
        return await self._store.make_due(delivery_key(self._endpoint, event_id))

    async def prune(self) -> int:
        """Remove records of the store whose retention is over, and return how many."""
        return await self._store.prune()
