"""Keeps the body of a delivery that may be the last of its event, in case its attempt fails.

A failure of the store is only logged: without the body, a failed event is lost, but the attempt may
still succeed.
"""

from __future__ import annotations

from ..errors import StoreError
from ..logs import get_logger
from ..stores.time_limit import within
from ..stores.values import Delivery, Ownership
from ..watching.log import delivery_fields
from .dependencies import Dependencies
from .lease import Lease

_log = get_logger("hookonce.lease")


async def keep_body(lease: Lease, until: float | None) -> Ownership:
    """Store the body before the handlers run, in case this process crashes.

    Args:
        lease: the lease of the attempt.
        until: until when the sender may deliver the event again, in Unix time; None if the sender
            will not deliver it again.

    Returns:
        Whether this attempt still owns the event. HELD also if the store keeps no bodies or fails,
        because then the claim may still be valid.
    """
    store = lease.dependencies.store
    if not store.keeps_bodies:
        return Ownership.HELD
    renew = lease.dependencies.rules.attempts is None
    try:
        return await lease.ask(
            store.keep(lease.held_claim, lease.delivery, dead_unix=until, renew=renew)
        )
    except StoreError as error:
        _log.error(
            "could not keep %s for its last attempt: %s",
            lease.key,
            error,
            extra=lease.log_fields(),
        )
        return Ownership.HELD


async def keep_in_flight(
    dependencies: Dependencies, arrived: Delivery, until: float | None
) -> None:
    """Store the latest delivery of an event that another attempt has in flight.

    Args:
        dependencies: what all attempts of the receiver share.
        arrived: the delivery.
        until: until when the sender may deliver the event again, in Unix time; None if the sender
            will not deliver it again.
    """
    store = dependencies.store
    if not store.keeps_bodies:
        return
    seconds = dependencies.limits.store_seconds_within(0.0)
    try:
        renew = dependencies.rules.attempts is None
        kept = store.keep_in_flight(arrived, dead_unix=until, renew=renew)
        await within(seconds, kept)
    except StoreError as error:
        _log.error(
            "could not keep the last delivery of %s: %s",
            arrived.key,
            error,
            extra=delivery_fields(arrived),
        )
