"""Handled events: deliveries that a store keeps after success, so that a handler can run again.

A receiver with ``keep_handled`` completes its events by ``complete_and_keep`` instead of
``Claims.complete``: the event is done and its delivery is kept in one commit, so that neither
exists without the other. The event itself stays done; only an operator's replay reads the delivery.

Each call says how long its delivery is kept and how many bytes an endpoint may keep. Every delivery
has a time at which it expires. From then on no call returns the delivery, even if it is not deleted
yet. Stores delete in small steps: each call that keeps a delivery deletes a few of the oldest
deliveries that have expired or exceed the limit. ``Reports.prune`` deletes the others.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol, Unpack, runtime_checkable

from ..clock import utc
from .replays import ReplayBatch, ReplayPlan
from .values import Claimed, Delivery, DeliveryKey, Wanted


class Keeping(NamedTuple):
    """The limits for an endpoint's handled events: how long and how many bytes the store keeps.

    Attributes:
        seconds: how long a delivery is kept after success.
        max_bytes: the largest sum of the sizes of the endpoint's bodies; the oldest are deleted
            first. None for no limit.
    """

    seconds: float
    max_bytes: int | None = None


class WantedHandled(Wanted, total=False):
    """Filters of a listing of handled events.

    The filters ``endpoint``, ``event_type`` and ``event_id`` are those of ``Wanted``. ``handler``
    selects events that this handler has finished, and ``since_unix`` events that were handled at
    this time or later.

    Attributes:
        before_unix: Unix seconds; only events handled before that time.
    """

    before_unix: float | None


@dataclass(frozen=True, slots=True)
class HandledEvent:
    """An event that was handled, and whose delivery is kept.

    Attributes:
        delivery: the delivery; its body is empty in listings.
        finished: the handlers that have finished.
        handled_unix: when the event was recorded as done, in Unix seconds.
        expires_unix: until when the delivery is kept, in Unix seconds.
        place: the cursor of a listing; pass it as ``after`` to continue after this event.
    """

    delivery: Delivery
    finished: frozenset[str]
    handled_unix: float
    expires_unix: float
    place: str = field(default="", compare=False, repr=False)

    @property
    def handled_at(self) -> datetime:
        """The time at which the event was recorded as done, as an aware UTC ``datetime``."""
        return utc(self.handled_unix)

    @property
    def expires_at(self) -> datetime:
        """The time until which the store keeps the delivery, as an aware UTC ``datetime``."""
        return utc(self.expires_unix)

    def matches(self, wanted: WantedHandled) -> bool:
        """Return whether the event passes all filters of a listing."""
        handler, since = wanted.get("handler"), wanted.get("since_unix")
        before = wanted.get("before_unix")
        return (
            wanted.get("endpoint") in {None, self.delivery.endpoint}
            and wanted.get("event_type") in {None, self.delivery.event_type}
            and wanted.get("event_id") in {None, self.delivery.event_id}
            and (handler is None or handler in self.finished)
            and (since is None or self.handled_unix >= since)
            and (before is None or self.handled_unix < before)
        )


class HandledStats(NamedTuple):
    """The number and size of an endpoint's kept deliveries, including expired ones.

    Attributes:
        events: the number of deliveries.
        bytes: the sum of the sizes of their bodies.
    """

    events: int
    bytes: int


@runtime_checkable
class HandledStore(Protocol):
    """A store that keeps the deliveries of handled events, and batches of replays.

    These calls are optional: a receiver without ``keep_handled`` makes none of them.
    """

    async def complete_and_keep(
        self, claim: Claimed, delivery: Delivery, finished: Collection[str], keeping: Keeping
    ) -> None:
        """Record that the event is handled, as ``Claims.complete`` does, and keep its delivery.

        Both happen in one commit. The call may be repeated, and another caller may complete the
        same event: the delivery that is kept first stays. After it has expired, a new delivery
        replaces it. A body that is larger than ``max_bytes`` is not kept.

        The event counts as handled now, but never before the start of an open batch of replays. So
        the batch does not select the event, even if the clock has been set back.

        Args:
            claim: the claim, even if it was lost.
            delivery: the delivery of the claim's event.
            finished: all handlers that have finished, in this attempt and in earlier ones.
            keeping: how long and how much to keep.
        """
        ...

    async def handled_events(
        self, *, after: str | None = None, limit: int = 100, **wanted: Unpack[WantedHandled]
    ) -> list[HandledEvent]:
        """Return handled events with empty bodies, in the order in which they were handled.

        The arguments and the ValueError are those of ``DeadLetterQueue.dead_letters``.
        """
        ...

    async def handled_event(self, key: DeliveryKey) -> HandledEvent | None:
        """Return one handled event with its body."""
        ...

    async def handled_stats(self, endpoint: str) -> HandledStats:
        """Return the number and size of the deliveries that an endpoint keeps."""
        ...

    async def begin_replay_batch(
        self, endpoint: str, handler: str, generation: int, plan: ReplayPlan
    ) -> ReplayBatch:
        """Begin a batch if its generation is higher than that of the handler's last batch.

        The batch replaces the handler's last batch. The call may be repeated, and several callers
        may begin the same generation: the first begins it, and all get the same batch.

        Returns:
            The handler's last batch.
        """
        ...

    async def end_replay_batch(self, batch: ReplayBatch) -> None:
        """Record the end of a batch, unless it has ended already or a later batch has begun."""
        ...

    async def replay_batches(self, endpoint: str) -> list[ReplayBatch]:
        """Return the last batch of each handler of an endpoint, in any order.

        A batch is kept for ever, because a generation must not be used again.
        """
        ...
