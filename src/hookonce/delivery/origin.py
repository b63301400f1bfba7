"""Where an attempt comes from: a request, the inbox, or an operator's replay.

The classes are not frozen, because creating a frozen object takes three times as long, and every
request creates one. Nothing changes them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf
from typing import ClassVar, TypeAlias


@dataclass(slots=True)
class Request:
    """The sender waits for an answer, and delivers the event again after a failure.

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
    backoff_seconds: ClassVar[None] = None


@dataclass(slots=True)
class Queued:
    """A worker has fetched the event from the inbox, which keeps it until it is settled.

    Attributes:
        backoff_seconds: how long the event waits if this attempt fails.
        is_last: whether the event becomes a dead letter if this attempt fails.
        room: set when the worker may begin another event.
        work: set when this event, or one that waits for its key lock, becomes due.
    """

    backoff_seconds: float
    is_last: bool
    room: asyncio.Event
    work: asyncio.Event

    answer_due: ClassVar[float] = inf
    delivery_attempt: ClassVar[None] = None

    def make_room(self) -> None:
        """Let the worker begin another event: the handlers of this event have ended."""
        self.room.set()

    def leave(self, *, is_due: bool) -> None:
        """Let the worker begin another event, and wake an idle worker if this event becomes due."""
        self.room.set()
        if is_due:
            self.work.set()


@dataclass(slots=True)
class Replay:
    """An operator replays a dead letter, which stays a dead letter until the attempt succeeds.

    Attributes:
        is_last: whether nobody else can deliver the event; False for a delivery that is only kept.
    """

    is_last: bool

    answer_due: ClassVar[float] = inf
    backoff_seconds: ClassVar[None] = None
    delivery_attempt: ClassVar[None] = None


Origin: TypeAlias = Request | Queued | Replay
