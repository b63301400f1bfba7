"""Releases the claim of an attempt that ends without a result."""

from __future__ import annotations

import asyncio

from ..errors import StoreError
from ..logs import get_logger
from ..stores.time_limit import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from ..stores.values import Claimed, Ownership
from .handling import Handling

_log = get_logger("hookonce.lease")


async def abandon(handling: Handling) -> None:
    """Release the claim without a settlement; repeat until the store answers or the claim ends.

    Nothing can cancel a handler that runs in a thread, and no other attempt may run beside that
    thread. So while a thread runs, the claim is not released but extended once more, and expires.

    Args:
        handling: the handlers of the attempt, which have ended or were stopped.
    """
    lease, pause = handling.lease, FIRST_PAUSE_SECONDS
    while (claim := lease.claim) is not None:
        lease.stop_extending()
        try:
            await lease.ask(_release(handling, claim))
        except StoreError as error:
            if lease.is_over:
                _log.error(
                    "could not release %s; its lease will run out: %s",
                    lease.key,
                    error,
                    extra=lease.log_fields(),
                )
                return
        else:
            if claim is lease.claim:
                lease.stop_extending()
                return
            # The attempt has adopted another claim in the meantime: release that claim, too.
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


async def _release(handling: Handling, claim: Claimed) -> Ownership:
    """Record the successes; release the claim unless a handler still runs in a thread."""
    lease, calls = handling.lease, handling.calls.under_way
    # Keep the order of these two lines, so that a thread that ends between them is not missed.
    thread_goes_on = any(call.thread_goes_on for call in calls)
    succeeded = {call.name for call in calls if call.has_succeeded}
    for lock in lease.locks:
        if lock.handler in succeeded:
            lock.succeed()
        if lock.has_succeeded:
            await lock.release()
            lease.note_success(lock.handler)
    for handler in succeeded:
        lease.note_success(handler)
    finished, store = frozenset(lease.finished), lease.dependencies.store
    if thread_goes_on:
        return await store.extend(claim, finished, lease.outstanding)
    if not handling.has_begun:
        return await store.release(claim, finished, began=False)
    error = "cancelled at shutdown"
    return await store.release(claim, finished, error, outstanding=lease.outstanding)
