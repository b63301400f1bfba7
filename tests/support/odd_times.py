"""Records in a store with impossible times."""

from hookonce.stores.protocols import InboxStore
from hookonce.stores.values import Claimed, DeadReason, Delivery, Token

__all__ = ["ODD_TIMES", "bury_odd", "enqueue_odd"]

ODD_TIMES = {
    "evt_far": 1e300,
    "evt_before": -1e300,
    "evt_endless": float("inf"),
    "evt_usual": 1.7e9,
}
"""The times at which events have arrived, by the events' ids."""


async def enqueue_odd(store: InboxStore, endpoint: str = "default") -> None:
    """Store events with impossible times in the inbox."""
    for event_id, at in ODD_TIMES.items():
        delivery = Delivery(endpoint, event_id, "comment.received", at, b"{}")
        await store.enqueue(delivery, Token(event_id))


async def bury_odd(store: InboxStore, endpoint: str = "default") -> None:
    """Store events with impossible times as dead letters."""
    for event_id, at in ODD_TIMES.items():
        delivery = Delivery(endpoint, event_id, "comment.received", at, b"{}")
        claim = await store.claim(delivery.key, Token(event_id), 30.0)
        assert isinstance(claim, Claimed)
        await store.bury(claim, DeadReason.REJECTED, error="no", delivery=delivery)
