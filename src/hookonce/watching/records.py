"""The ``Observer`` protocol, and the frozen records that its methods receive."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, Protocol

from ..clock import utc
from ..errors import PayloadError, VerificationError
from ..outcome import Outcome
from ..stores.values import ClaimResult, DeadReason, Delivery, EnqueueResult
from ..verification.header_names import Signing
from ..verification.headers import DeliveryHeaders, DeliveryHints, RawHeaders
from ..verification.signature import VerifiedDelivery


class DeliveryReceived(NamedTuple):
    """A request has arrived completely; it is not verified yet.

    The later records of the same delivery refer to this object.

    Attributes:
        endpoint: the name of the receiving endpoint.
        body: the raw request body.
        headers: the headers as they arrived, the signature included.
        at_unix: when it arrived, in Unix seconds.
        is_backfill: whether ``Receiver.backfill`` made this delivery. Such a delivery says nothing
            about the sender.
        sender: the sender whose rules decide the headers' names; None for ``webhook-*``.
    """

    endpoint: str
    body: bytes
    headers: RawHeaders
    at_unix: float
    is_backfill: bool = False
    sender: Signing | None = None

    @property
    def at(self) -> datetime:
        """When the request arrived, as an aware UTC ``datetime``."""
        return utc(self.at_unix)

    def __repr__(self) -> str:
        return f"DeliveryReceived(endpoint={self.endpoint!r}, at_unix={self.at_unix!r})"


@dataclass(frozen=True, slots=True, eq=False)
class DeliveryAuthenticated:
    """A delivery is genuine.

    Attributes:
        received: the request.
        delivery: the signed id and time, the secret that matched, and the clock skew.
        hints: the sender's unsigned headers.
    """

    received: DeliveryReceived
    delivery: VerifiedDelivery = field(repr=False)
    hints: DeliveryHints


@dataclass(frozen=True, slots=True, eq=False)
class DeliveryRefused:
    """A delivery is not genuine, or its timestamp is outside the tolerance.

    Attributes:
        received: the request.
        error: why it was refused: ``reason``, and ``skew`` if the timestamp could be read.
    """

    received: DeliveryReceived
    error: VerificationError


class DeliveryAnswered(NamedTuple):
    """A request was answered; every request has exactly one such record.

    Attributes:
        endpoint: the name of the receiving endpoint.
        outcome: the answer.
        seconds: how long the answer took since the request arrived.
        received: the request; None if its body was not read (too large, too slow, no POST).
        verified: the signed data; None if the delivery is not genuine.
        event_type: the type named in the signed body; None if it could not be read.
        hints: the unsigned headers of a genuine delivery.
        refusal: why the delivery was refused; None if it is genuine.
        unreadable: why a genuine delivery could not be read; ``field`` names the missing or wrong
            field. None if the delivery could be read.
    """

    endpoint: str
    outcome: Outcome
    seconds: float
    received: DeliveryReceived | None = None
    verified: VerifiedDelivery | None = None
    event_type: str | None = None
    hints: DeliveryHints | None = None
    refusal: VerificationError | None = None
    unreadable: PayloadError | None = None

    @property
    def event_id(self) -> str | None:
        """The webhook-id of a genuine delivery."""
        return None if self.verified is None else self.verified.id

    @property
    def headers(self) -> DeliveryHeaders | None:
        """The request's headers, parsed at each access; None for malformed or unread headers."""
        try:
            if self.received is None:
                return None
            return DeliveryHeaders.parse(self.received.headers, self.received.sender)
        except VerificationError:
            return None

    def __repr__(self) -> str:
        return (
            f"DeliveryAnswered(endpoint={self.endpoint!r}, outcome={self.outcome!r},"
            f" seconds={self.seconds!r}, event_type={self.event_type!r}, refusal={self.refusal!r},"
            f" unreadable={self.unreadable!r})"
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """Base class of the frequent records: a busy receiver makes thousands of them per second."""

    delivery: Delivery


@dataclass(frozen=True, slots=True, eq=False)
class EventClaimed(_Step):
    """The store has answered a claim.

    Attributes:
        delivery: the delivery.
        result: ``Claimed`` begins an attempt; ``InFlight``, ``Done`` and ``Dead`` begin none.
    """

    result: ClaimResult


@dataclass(frozen=True, slots=True, eq=False)
class HandlerStarted(_Step):
    """A handler is about to run.

    An observer may set context variables here: the handler sees them, also in its thread.

    Attributes:
        delivery: the delivery.
        handler: the handler's name.
        attempt: the number of the attempt, from 1.
        is_replay: whether an operator replays a dead letter or a handled event.
    """

    handler: str
    attempt: int
    is_replay: bool


@dataclass(frozen=True, slots=True, eq=False)
class HandlerFinished(_Step):
    """A handler has succeeded.

    Attributes:
        delivery: the delivery.
        handler: the handler's name.
        attempt: the number of the attempt, from 1.
        seconds: how long the handler took, including its wait for a thread.
    """

    handler: str
    attempt: int
    seconds: float


class SkipReason(StrEnum):
    """Why a handler counts as finished without a run."""

    STALE = "stale"
    """A newer event of the key has succeeded."""
    DONE = "done"
    """This event has succeeded already; only the record of the success was missing."""


@dataclass(frozen=True, slots=True, eq=False)
class HandlerSkipped(_Step):
    """A handler counts as finished without a run.

    Attributes:
        delivery: the delivery.
        handler: the handler's name.
        attempt: the number of the attempt, from 1.
        reason: why it was not run.
    """

    handler: str
    attempt: int
    reason: SkipReason


@dataclass(frozen=True, slots=True, eq=False)
class HandlerFailed:
    """A handler has raised an exception or exceeded its time limit.

    Attributes:
        delivery: the delivery.
        handler: the handler's name.
        attempt: the number of the attempt, from 1.
        seconds: how long the handler took, including its wait for a thread.
        error: the exception.
    """

    delivery: Delivery
    handler: str
    attempt: int
    seconds: float
    error: Exception


@dataclass(frozen=True, slots=True, eq=False)
class EventSettled(_Step):
    """An attempt has ended: the event is handled, or the sender must deliver it again.

    Attributes:
        delivery: the delivery.
        attempt: the number of the attempt, from 1.
        outcome: 200 if the event is handled; otherwise the sender must deliver it again.
    """

    attempt: int
    outcome: Outcome


@dataclass(frozen=True, slots=True, eq=False)
class EventEnqueued(_Step):
    """The store has answered an enqueue.

    Attributes:
        delivery: the delivery.
        result: ``Stored``, or why it was not stored: ``Waiting``, ``Done``, ``Dead`` or ``Full``.
    """

    result: EnqueueResult


@dataclass(frozen=True, slots=True, eq=False)
class EventFetched(_Step):
    """A worker has fetched an event from the inbox.

    Attributes:
        delivery: the delivery.
        attempt: the number of the attempt that begins, from 1.
    """

    attempt: int


@dataclass(frozen=True, slots=True, eq=False)
class EventRetried:
    """An attempt has failed, and the event waits in the inbox for the next attempt.

    Attributes:
        delivery: the delivery.
        attempt: the number of the failed attempt, from 1.
        after_seconds: how long the event waits.
        error: the error as text.
    """

    delivery: Delivery
    attempt: int
    after_seconds: float
    error: str


@dataclass(frozen=True, slots=True, eq=False)
class EventDeferred(_Step):
    """An event is back in the inbox, because another event holds its key lock.

    Attributes:
        delivery: the delivery.
        attempt: the number of the attempt, from 1; this attempt is not counted.
        after_seconds: the longest wait; the event is due earlier if the key lock is released.
    """

    attempt: int
    after_seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class EventBuried:
    """An event has become a dead letter.

    Attributes:
        delivery: the delivery.
        attempt: the number of the last attempt, from 1.
        reason: why the event was given up.
        error: the error as text.
    """

    delivery: Delivery
    attempt: int
    reason: DeadReason
    error: str


@dataclass(frozen=True, slots=True, eq=False)
class BatchFlushed:
    """A store has written a batch of calls in one step.

    Attributes:
        store: the name of the store's class.
        calls: the number of calls in the batch.
        seconds: how long the write took.
    """

    store: str
    calls: int
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class LoopBlocked:
    """An async handler has blocked the event loop.

    Attributes:
        endpoint: the name of the receiver's endpoint.
        handler: the handler's name.
        seconds: for how long: at least 1, measured in steps of a quarter of a second.
    """

    endpoint: str
    handler: str
    seconds: float


def is_step(record: type) -> bool:
    """Return whether `Receiver.observe(of=…)` may limit this kind of record to some events."""
    return issubclass(record, _Step)


class Observer(Protocol):
    """Watches a receiver: subclass it, and override the methods you want.

    The methods are called in the event loop, in the order of events, and must not block. An
    exception from a method is logged and changes nothing.
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
