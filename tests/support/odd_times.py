"""Records in a store whose times are no times."""

from hookonce.stores.protocols import InboxStore
from hookonce.stores.values import Claimed, DeadReason, Delivery, Token

__all__ = ["ODD_TIMES", "bury_odd", "enqueue_odd"]

ODD_TIMES = {
    "evt_far": 1e300,
    "evt_before": -1e300,
    "evt_endless": float("inf"),
    "evt_usual": 1.7e9,
}
"""When events have arrived, by their ids."""


async def enqueue_odd(store: InboxStore, endpoint: str = "default") -> None:
    """Put events with odd times into the inbox."""
    for event_id, at in ODD_TIMES.items():
        delivery = Delivery(endpoint, event_id, "comment.received", at, b"{}")
        await store.enqueue(delivery, Token(event_id))


async def bury_odd(store: InboxStore, endpoint: str = "default") -> None:
    """Put events with odd times among the dead letters."""
    for event_id, at in ODD_TIMES.items():
        delivery = Delivery(endpoint, event_id, "comment.received", at, b"{}")
        claim = await store.claim(delivery.key, Token(event_id), 30.0)
        assert isinstance(claim, Claimed)
        await store.bury(claim, DeadReason.REJECTED, error="no", delivery=delivery)
