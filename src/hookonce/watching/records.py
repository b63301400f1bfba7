"""What can be watched: one Protocol of hooks, and the frozen records they receive."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol

from ..clock import utc
from ..errors import VerificationError
from ..outcome import Outcome
from ..stores.values import ClaimResult, DeadReason, Delivery, EnqueueResult
from ..verification.headers import DeliveryHeaders, DeliveryHints, RawHeaders
from ..verification.signature import VerifiedDelivery


class DeliveryReceived(NamedTuple):
    """A request has arrived whole; nothing about it is known to be true yet.

    The records of one delivery that follow refer to the same object.

    Attributes:
        endpoint: the name of the receiving endpoint.
        body: the raw request body.
        headers: as they arrived; with a signature among them.
        at_unix: when it arrived, in Unix seconds.
        is_backfill: whether ``Receiver.backfill`` made this delivery. It tells nothing about the
            sender then.

    """

    endpoint: str
    body: bytes
    headers: RawHeaders
    at_unix: float
    is_backfill: bool = False

    @property
    def at(self) -> datetime:
        """When it arrived, as an aware ``datetime``."""
        return utc(self.at_unix)

    def __repr__(self) -> str:
        return f"DeliveryReceived(endpoint={self.endpoint!r}, at_unix={self.at_unix!r})"


@dataclass(frozen=True, slots=True, eq=False)
class DeliveryAuthenticated:
    """A delivery is genuine.

    Attributes:
        received: what arrived.
        delivery: its signed id and time, which secret matched, and how far the clocks are apart.
        hints: what the sender says beside it, unsigned.

    """

    received: DeliveryReceived
    delivery: VerifiedDelivery = field(repr=False)
    hints: DeliveryHints


@dataclass(frozen=True, slots=True, eq=False)
class DeliveryRefused:
    """A delivery is not genuine, or not in time.

    Attributes:
        received: what arrived.
        error: why it was refused: its ``reason``, and the ``skew`` where that was read.

    """

    received: DeliveryReceived
    error: VerificationError


class DeliveryAnswered(NamedTuple):
    """What a request is answered, every one: refused, accepted, or left to a retry.

    Attributes:
        endpoint: the name of the receiving endpoint.
        outcome: the answer.
        seconds: since the request arrived.
        received: what arrived; None where the body was not read (too large, too slow, no POST).
        verified: what the signature says, if the delivery is genuine.
        event_type: the type named in the signed body, where it could be read.
        hints: what the sender says beside a genuine delivery, unsigned.
        refusal: why it is not genuine, if it is not.

    """

    endpoint: str
    outcome: Outcome
    seconds: float
    received: DeliveryReceived | None = None
    verified: VerifiedDelivery | None = None
    event_type: str | None = None
    hints: DeliveryHints | None = None
    refusal: VerificationError | None = None

    @property
    def event_id(self) -> str | None:
        """The webhook-id of a genuine delivery."""
        return None if self.verified is None else self.verified.id

    @property
    def headers(self) -> DeliveryHeaders | None:
        """What its headers say, read again; None where they are malformed, or were not read."""
        try:
            return None if self.received is None else DeliveryHeaders.parse(self.received.headers)
        except VerificationError:
            return None

    def __repr__(self) -> str:
        return (
            f"DeliveryAnswered(endpoint={self.endpoint!r}, outcome={self.outcome!r},"
            f" seconds={self.seconds!r}, event_type={self.event_type!r}, refusal={self.refusal!r})"
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """What happens to an event that does well; a busy receiver has thousands of them a second."""

    delivery: Delivery


@dataclass(frozen=True, slots=True, eq=False)
class EventClaimed(_Step):
    """The store was asked for the event of a delivery.

    Attributes:
        delivery: what was delivered.
        result: ``Claimed`` begins an attempt; ``InFlight``, ``Done`` and ``Dead`` are the others.

    """

    result: ClaimResult


@dataclass(frozen=True, slots=True, eq=False)
class HandlerStarted(_Step):
    """A handler is about to run.

    What an observer does here to the context variables is seen by the handler, in its thread too.

    Attributes:
        delivery: what was delivered.
        handler: the handler's name.
        attempt: which attempt it is part of, from 1.
        is_replay: whether an operator replays a dead letter.

    """

    handler: str
    attempt: int
    is_replay: bool


@dataclass(frozen=True, slots=True, eq=False)
class HandlerFinished(_Step):
    """A handler has succeeded.

    Attributes:
        delivery: what was delivered.
        handler: the handler's name.
        attempt: which attempt it was part of, from 1.
        seconds: how long it took; those in which it waited for a thread count.

    """

    handler: str
    attempt: int
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class HandlerSkipped(_Step):
    """A handler counts as finished without a run.

    Attributes:
        delivery: what was delivered.
        handler: the handler's name.
        attempt: which attempt it was part of, from 1.
        reason: ``stale``, since a newer event has succeeded; ``done``, since this one had, and that
            was not recorded.

    """

    handler: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class HandlerFailed:
    """A handler has raised, or run out of time.

    Attributes:
        delivery: what was delivered.
        handler: the handler's name.
        attempt: which attempt it was part of, from 1.
        seconds: how long it took; those in which it waited for a thread count.
        error: what it raised.

    """

    delivery: Delivery
    handler: str
    attempt: int
    seconds: float
    error: Exception


@dataclass(frozen=True, slots=True, eq=False)
class EventSettled(_Step):
    """An attempt has ended, and the event is neither back in the inbox nor a dead letter.

    Attributes:
        delivery: what was delivered.
        attempt: which attempt it was, from 1.
        outcome: 200 if the event is handled; else the sender is to bring it again.

    """

    attempt: int
    outcome: Outcome


@dataclass(frozen=True, slots=True, eq=False)
class EventEnqueued(_Step):
    """The store was asked to keep a delivery for the workers.

    Attributes:
        delivery: what was delivered.
        result: ``Stored``, or why not: ``Waiting``, ``Done``, ``Dead`` or ``Full``.

    """

    result: EnqueueResult


@dataclass(frozen=True, slots=True, eq=False)
class EventFetched(_Step):
    """A worker has taken an event out of the inbox.

    Attributes:
        delivery: what was delivered, and when.
        attempt: which attempt begins, from 1.

    """

    attempt: int


@dataclass(frozen=True, slots=True, eq=False)
class EventRetried:
    """An attempt has failed, and the event waits in the inbox for the next.

    Attributes:
        delivery: what was delivered.
        attempt: which attempt it was, from 1.
        after_seconds: how long it waits.
        error: what failed, as text.

    """

    delivery: Delivery
    attempt: int
    after_seconds: float
    error: str


@dataclass(frozen=True, slots=True, eq=False)
class EventDeferred(_Step):
    """An event is back in the inbox, because another event holds its key lock; no attempt counts.

    Attributes:
        delivery: what was delivered.
        attempt: which attempt it would have been, from 1.
        after_seconds: how long it waits at the longest; it is called when the key is free.

    """

    attempt: int
    after_seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class EventBuried:
    """An event is a dead letter now.

    Attributes:
        delivery: what was delivered.
        attempt: which attempt it was, from 1.
        reason: why it was given up.
        error: what failed, as text.

    """

    delivery: Delivery
    attempt: int
    reason: DeadReason
    error: str


@dataclass(frozen=True, slots=True, eq=False)
class BatchFlushed:
    """A store has made calls that waited together lasting, in one step.

    Attributes:
        store: the class of the store.
        calls: how many.
        seconds: how long that took.

    """

    store: str
    calls: int
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class LoopBlocked:
    """An async handler has kept the event loop from everything else.

    Attributes:
        endpoint: the name of the endpoint it works for.
        handler: the handler's name.
        seconds: for how long, to a quarter of a second; a second at the least.

    """

    endpoint: str
    handler: str
    seconds: float


def is_step(record: type) -> bool:
    """Return whether a kind of record is told of those events alone that are looked at closely."""
    return issubclass(record, _Step)


class Observer(Protocol):
    """Watches a receiver: subclass it, and write the methods you want.

    They are called in the event loop, in the order things happen, and must not block. What one
    raises is logged and changes nothing.
    """

    def delivery_received(self, record: DeliveryReceived) -> None:
        """Called when the body of a request has arrived completely."""
        return

    def delivery_authenticated(self, record: DeliveryAuthenticated) -> None:
        """Called when a delivery is genuine."""
        return

    def delivery_refused(self, record: DeliveryRefused) -> None:
        """Called when a delivery is refused."""
        return

    def delivery_answered(self, record: DeliveryAnswered) -> None:
        """Called with the answer to every request."""
        return

    def event_claimed(self, record: EventClaimed) -> None:
        """Called when the store has answered a claim."""
        return

    def handler_started(self, record: HandlerStarted) -> None:
        """Called before a handler begins."""
        return

    def handler_finished(self, record: HandlerFinished) -> None:
        """Called when a handler succeeds, with the context variables of ``handler_started``."""
        return

    def handler_skipped(self, record: HandlerSkipped) -> None:
        """Called when a handler is skipped."""
        return

    def handler_failed(self, record: HandlerFailed) -> None:
        """Called when a handler fails, with the context variables of ``handler_started``."""
        return

    def event_settled(self, record: EventSettled) -> None:
        """Called when an attempt ends, unless the event is deferred or becomes a dead letter."""
        return

    def event_enqueued(self, record: EventEnqueued) -> None:
        """Called when the store has answered an enqueue."""
        return

    def event_fetched(self, record: EventFetched) -> None:
        """Called when a worker has fetched an event."""
        return

    def event_retried(self, record: EventRetried) -> None:
        """Called when an event waits for its next attempt after a failure."""
        return

    def event_deferred(self, record: EventDeferred) -> None:
        """Called when an event waits for a key lock that another event holds."""
        return

    def event_buried(self, record: EventBuried) -> None:
        """Called when an event becomes a dead letter."""
        return

    def batch_flushed(self, record: BatchFlushed) -> None:
        """Called when a store has written a batch of calls."""
        return

    def loop_blocked(self, record: LoopBlocked) -> None:
        """Called when an async handler has blocked the event loop."""
        return
