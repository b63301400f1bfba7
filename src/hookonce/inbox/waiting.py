"""The operator's view of the inbox of one endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ..clock import unix_seconds
from ..stores.filters import EventFilter, select
from ..stores.protocols import InboxListing
from ..stores.values import DeadReason, Entry, StoreStats, delivery_key


def filter_of(
    endpoint: str,
    event_type: str | None,
    handler: str | None,
    *,
    since: float | datetime | None,
    where: str | Sequence[str],
    reason: DeadReason | None = None,
) -> EventFilter:
    """Return the filter for the arguments of a listing."""
    return EventFilter(
        endpoint=endpoint,
        event_type=event_type,
        handler=handler,
        reason=reason,
        # Subtract a microsecond, because `received_at` and `buried_at` may be rounded up. A listing
        # since that time must contain the event.
        since_unix=None if since is None else unix_seconds("since", since) - 1e-6,
        where=(where,) if isinstance(where, str) else tuple(where),
    )


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
        where: str | Sequence[str] = (),
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Entry]:
        """Return events, oldest first, without their bodies.

        Args:
            event_type: only events of this type.
            handler: only events for which this handler has failed or has not run.
            since: only events received at this time or later: an aware ``datetime`` or Unix
                seconds.
            where: only events whose body meets all these conditions, as in ``DeadLetters.list``.
            after: the ``place`` of a listed event; the listing goes on after that event.
            limit: the largest number of events.

        Raises:
            ValueError: ``after`` is not a place in this store's listings, or a condition cannot be
                read.
        """
        wanted = filter_of(self._endpoint, event_type, handler, since=since, where=where)
        find, load = self._store.entries, self._store.entry
        return await select(find, load, wanted, after=after, limit=limit)

    async def show(self, event_id: str) -> Entry | None:
        """Return an event of the inbox with its body; None if the inbox does not have the event."""
        return await self._store.entry(delivery_key(self._endpoint, event_id))

    async def retry(self, event_id: str) -> bool:
        """Make a waiting event due now; return False if the event does not wait."""
        return await self._store.make_due(delivery_key(self._endpoint, event_id))

    async def prune(self) -> int:
        """Remove records of the store whose retention is over, and return how many."""
        return await self._store.prune()
