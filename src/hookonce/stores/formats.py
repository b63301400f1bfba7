"""The formats of stored records, the upgrade of a store, and records that cannot be read.

A store contains the number of its format, and every call compares this number. A version of
hookonce knows one or more formats. It gives a new store its newest format. In an existing store it
writes the format that it finds, so that processes of the previous version can use the store too,
and an operator can go back to that version. Only ``upgrade`` raises the number, after every process
of an older version has ended. A process that finds an unknown number reads and writes nothing.

A single record may be unreadable: damaged, or of a later format in a store that has lost its
number. It is set aside as a dead letter with its bytes. It blocks no other event, but the store
cannot know whether the event was handled, so it refuses the event until a person has decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from ..errors import StoreError
from ..logs import get_logger
from .protocols import WORKER_SECONDS

_log = get_logger("hookonce.store")

SEEN_SECONDS = 10.0
"""How often a process that uses a store writes into the store that it is running."""

OLD_SECONDS = WORKER_SECONDS + SEEN_SECONDS
"""A process counts as running for this long, or the longest lease, after its last such write."""


class FormatError(StoreError):
    """This process must not use the store, because of the store's format or number of shards."""


class DamagedError(StoreError):
    """The store cannot read an event's record; an operator must replay or discard the event."""


class Upgrade(NamedTuple):
    """The result of ``UpgradableStore.upgrade``.

    Attributes:
        before: the number of the store's format before the upgrade.
        after: the number after the upgrade; the same number if the store had the newest format
            already.
    """

    before: int
    after: int


@runtime_checkable
class UpgradableStore(Protocol):
    """A store that contains the number of its format, and can be upgraded."""

    async def upgrade(self) -> Upgrade:
        """Raise the store to the newest format that this version knows.

        After that, processes of an older version get StoreError.

        Raises:
            StoreError: an older version has used the store lately, or the store failed. The store
                is unchanged, but if it has several shards, some may have the new format.
        """
        ...


def unknown(found: int, known: Sequence[int]) -> FormatError:
    """Return the error for a store whose format this process does not know."""
    if found > known[-1]:
        return FormatError(
            f"the store has format {found}, and this version of hookonce knows formats up to"
            f" {known[-1]}; upgrade hookonce here, as in the other processes"
        )
    return FormatError(
        f"the store has format {found}, and this version of hookonce knows formats from"
        f" {known[0]} on; run a version that knows both, and `hookonce store upgrade`"
    )


def outdated(found: int, known: Sequence[int]) -> tuple[str, ...]:
    """Return a warning if the store's format is not the newest; else an empty tuple."""
    if found >= known[-1]:
        return ()
    text = (
        f"the store has format {found}, so processes of an older version can use it too; when none"
        f" runs and you do not want to go back, raise it to {known[-1]}: `hookonce store upgrade`"
    )
    return (text,)


def in_use(seconds: float) -> StoreError:
    """Return the error for an upgrade while an older version uses the store.

    Args:
        seconds: how long ago an older version has used the store.
    """
    return StoreError(
        f"a process of an older version of hookonce used the store {seconds:.0f} s ago; stop all"
        " such processes, wait until their leases have ended (usually 40 s), and repeat"
    )


def damaged() -> DamagedError:
    """Return the error for claiming or enqueuing an event whose record was set aside."""
    return DamagedError(
        "the store's record of this event cannot be read and was set aside; look at it with"
        " `hookonce dead show`, then replay or discard it"
    )


def set_aside(count: int) -> tuple[str, ...]:
    """Return a warning if the store has set records aside; else an empty tuple."""
    if not count:
        return ()
    text = (
        f"{count} records of events cannot be read, and deliveries of these events are answered"
        " 503 until you replay or discard them: `hookonce dead list --reason damaged`"
    )
    return (text,)


def log_set_aside(key: str) -> None:
    """Log that the record of an event was set aside."""
    _log.error("the record of %s cannot be read; it is a dead letter now, with its bytes", key)
