"""Where an attempt comes from: a request, the inbox, or an operator's replay.

``generation`` is 0, or higher if the handler is to repeat its effect on purpose. Then ``late`` says
whether the event runs even if ``latest_by`` finds that a newer event has succeeded, and ``new_key``
whether the idempotency key differs from that of earlier runs.

The classes are not frozen, because creating a frozen object takes three times as long, and every
request creates one. Only `Queued` changes: it remembers whether it has left its place.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf
from typing import ClassVar, TypeAlias

from .places import Places


@dataclass(slots=True)
class Request:
    """A request: the sender waits for the answer, and delivers the event again after a failure.

    Attributes:
        answer_due: when the request must have its answer, in the event loop's time.
        delivery_attempt: the sender's count of attempts, from 1; only a hint, since it is unsigned.
        sent_at: when the sender signed the delivery, in Unix time.
    """

    answer_due: float
    delivery_attempt: int | None
    sent_at: float

    is_last: ClassVar[bool] = False
    """Always False: only the attempt's number, known after the claim, shows the last attempt."""
    generation: ClassVar[int] = 0
    late: ClassVar[bool] = False
    new_key: ClassVar[bool] = False
    backoff_seconds: ClassVar[None] = None


@dataclass(slots=True)
class Queued:
    """The inbox: a worker has fetched the event, which stays in the inbox until it is settled.

    Attributes:
        backoff_seconds: how long the event waits if this attempt fails.
        is_last: whether the event becomes a dead letter if this attempt fails.
        places: the places of the worker; this attempt has taken a place.
        work: set when this event, or an event that waits for its key lock, becomes due.
    """

    backoff_seconds: float
    is_last: bool
    places: Places
    work: asyncio.Event
    _is_busy: bool = True
    _has_ended: bool = False

    answer_due: ClassVar[float] = inf
    generation: ClassVar[int] = 0
    late: ClassVar[bool] = False
    new_key: ClassVar[bool] = False
    delivery_attempt: ClassVar[None] = None

    def leave_place(self) -> None:
        """Leave the worker's place to another event: the handlers of this event have ended."""
        if self._is_busy:
            self._is_busy = False
            self.places.leave()

    def end(self, *, is_due: bool) -> None:
        """End the attempt for the worker; wake an idle worker if the event becomes due."""
        self.leave_place()
        if not self._has_ended:
            self._has_ended = True
            self.places.end()
        if is_due:
            self.work.set()


@dataclass(slots=True)
class Replay:
    """A replay: an operator requests another attempt at a dead letter or a handled event.

    A dead letter stays one until the attempt succeeds. A handled event stays handled; its replay is
    an event of its own in the store.

    Attributes:
        is_last: whether the event becomes a dead letter, or stays one, if this attempt fails. False
            for a delivery that is only kept, and for the first attempts at a handled event.
        generation: the number of the replay of a handled event; 0 for an event that was never
            handled.
        late: as above.
        new_key: as above.
    """

    is_last: bool
    generation: int = 0
    late: bool = False
    new_key: bool = False

    answer_due: ClassVar[float] = inf
    backoff_seconds: ClassVar[None] = None
    delivery_attempt: ClassVar[None] = None


Origin: TypeAlias = Request | Queued | Replay
