"""The operator's view of the inbox of one endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ..clock import unix_seconds
from ..stores.protocols import InboxListing
from ..stores.values import Entry, StoreStats, delivery_key


def since_unix(since: float | datetime | None) -> float | None:
    """Convert the filter ``since`` of a listing to Unix time."""
    # Subtract a microsecond, because `received_at` and `buried_at` may be rounded up. A listing
    # since that time must contain the event.
    return None if since is None else unix_seconds("since", since) - 1e-6


class WaitingEvents:
    """The events in the inbox of one endpoint. Every method raises StoreError if the store fails.

    Get it from ``Receiver.waiting``.

    Args:
        store: holds the inbox.
        endpoint: the endpoint's name.
    """

    def __init__(self, *, store: InboxListing, endpoint: str) -> None:
        self._store = store
        self._endpoint = endpoint

    async def stats(self) -> StoreStats:
        """Return the number and age of waiting events, and the number of workers."""
        return await self._store.stats(endpoint=self._endpoint)

    async def list(
        self,
        *,
        event_type: str | None = None,
        handler: str | None = None,
        since: float | datetime | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Entry]:
        """Return events, oldest first, without their bodies.

        Args:
            event_type: only events of this type.
            handler: only events for which this handler has failed or has not run.
            since: only events received at this time or later: an aware ``datetime`` or Unix
                seconds.
            after: the ``place`` of a listed event; the listing goes on after that event.
            limit: the largest number of events.

        Raises:
            ValueError: ``after`` is not a place in this store's listings.
        """
        return await self._store.entries(
            endpoint=self._endpoint,
            event_type=event_type,
            handler=handler,
            since_unix=since_unix(since),
            after=after,
            limit=limit,
        )

    async def show(self, event_id: str) -> Entry | None:
        """Return an event of the inbox with its body; None if it is not there."""
        return await self._store.entry(delivery_key(self._endpoint, event_id))

    async def retry(self, event_id: str) -> bool:
        """Make a waiting event due now; return False if the event does not wait."""
        return await self._store.make_due(delivery_key(self._endpoint, event_id))

    async def prune(self) -> int:
        """Remove records of the store whose retention is over, and return how many."""
        return await self._store.prune()
