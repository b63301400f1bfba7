"""Endpoints, events, deliveries and attempts, as the service keeps them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from ..clock import utc
from ..resources import WebhookDelivery, WebhookEndpoint
from .chaos import Disturbance
from .moments import moment, optional_moment

_SHOWN_LETTERS = 4  # the number of letters of a secret that are shown after its prefix


class EndpointStatus(StrEnum):
    """The state of an endpoint; the interface shows only ``active`` as a value."""

    ACTIVE = "active"
    DISABLED = "disabled"


class DisabledReason(StrEnum):
    """The reason why an endpoint is disabled; the interface shows only ``manual`` as a value."""

    MANUAL = "manual"
    FAILING = "failing"
    GONE = "gone"


class DeliveryStatus(StrEnum):
    """The state of a delivery; the interface shows only ``pending`` as a value."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class OutgoingEvent:
    """An emitted event; all its attempts send the same bytes as the body."""

    id: str
    type: str
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Notice:
    """The notice to the workspace's owner and admins that an endpoint was disabled.

    Attributes:
        endpoint_id: the endpoint's id.
        reason: why it was disabled.
        at: when, in the service's time, as an aware UTC ``datetime``.
    """

    endpoint_id: str
    reason: DisabledReason
    at: datetime


@dataclass(frozen=True, slots=True)
class CommentReply:
    """A reply that a platform has accepted.

    Attributes:
        comment_id: the id of the comment.
        text: the text of the reply.
        at_unix: when the platform accepted it, in the service's time, in Unix seconds.
    """

    comment_id: str
    text: str = field(repr=False)
    at_unix: float

    @property
    def at(self) -> datetime:
        """The service's time when the platform accepted the reply, as an aware UTC ``datetime``."""
        return utc(self.at_unix)


@dataclass(slots=True)
class EndpointRow:
    """A registered endpoint (interface, Resources: Webhook endpoint)."""

    id: str
    url: str
    description: str
    events: tuple[str, ...]
    created_at: float
    secret: str = field(repr=False)
    previous_secret: str | None = field(default=None, repr=False)
    previous_until: float = 0.0
    status: EndpointStatus = EndpointStatus.ACTIVE
    disabled_reason: DisabledReason | None = None
    consecutive_failures: int = 0
    failing_since: float | None = None
    last_success_at: float | None = None
    last_failure_at: float | None = None

    def wants(self, event_type: str) -> bool:
        """Return whether the endpoint gets events of a type; without a list, it gets all types."""
        return not self.events or event_type in self.events

    def secrets(self, now: float) -> tuple[str, ...]:
        """Return the secrets that sign events, newest first: two for some time after a rotation."""
        if self.previous_secret is None or now >= self.previous_until:
            return (self.secret,)
        return (self.secret, self.previous_secret)

    def rotate(self, secret: str, previous_until: float) -> None:
        """Replace the secret; until the given moment the previous secret signs events too."""
        self.previous_secret, self.previous_until = self.secret, previous_until
        self.secret = secret

    def enable(self) -> None:
        """Make a disabled endpoint active, and forget its failures."""
        if self.status is EndpointStatus.ACTIVE:
            return
        self.status, self.disabled_reason = EndpointStatus.ACTIVE, None
        self.consecutive_failures, self.failing_since = 0, None

    def disable(self, reason: DisabledReason) -> None:
        self.status, self.disabled_reason = EndpointStatus.DISABLED, reason

    def count_success(self, now: float) -> None:
        self.last_success_at = now
        self.consecutive_failures, self.failing_since = 0, None

    def count_failure(self, now: float) -> None:
        self.last_failure_at = now
        self.consecutive_failures += 1
        if self.failing_since is None:
            self.failing_since = now

    def is_failing_too_long(self, now: float, longest_seconds: float, failures: int) -> bool:
        """Return whether the endpoint has failed ``failures`` times in a row, and for this long."""
        return (
            self.failing_since is not None
            and now - self.failing_since >= longest_seconds
            and self.consecutive_failures >= failures
        )

    def to_resource(self, *, with_secret: bool = False) -> WebhookEndpoint:
        """Return the resource; ``with_secret`` adds the secret, after creation and rotation."""
        return WebhookEndpoint(
            id=self.id,
            url=self.url,
            description=self.description,
            events=list(self.events),
            status=self.status,
            disabled_reason=self.disabled_reason,
            secret_prefix=self.secret[: self.secret.find("_") + 1 + _SHOWN_LETTERS],
            consecutive_failures=self.consecutive_failures,
            last_success_at=optional_moment(self.last_success_at),
            last_failure_at=optional_moment(self.last_failure_at),
            created_at=moment(self.created_at),
            **({"secret": self.secret} if with_secret else {}),
        )


@dataclass(slots=True)
class DeliveryRow:
    """The delivery of an event to an endpoint (interface, Resources: Webhook delivery).

    Attributes:
        number: counts the deliveries of the service, from 1.
        key: names the delivery in random draws, such as that of the time until its next attempt.
    """

    id: str
    number: int
    key: str
    endpoint_id: str
    event: OutgoingEvent
    is_test: bool
    created_at: float
    status: DeliveryStatus = DeliveryStatus.PENDING
    attempts: int = 0
    response_status: int | None = None
    error_message: str | None = None
    duration_ms: int | None = None
    delivered_at: float | None = None
    next_attempt_at: float | None = None

    def to_resource(self) -> WebhookDelivery:
        return WebhookDelivery(
            id=self.id,
            event_id=self.event.id,
            event_type=self.event.type,
            status=self.status,
            attempts=self.attempts,
            response_status=self.response_status,
            error_message=self.error_message,
            duration_ms=self.duration_ms,
            is_test=self.is_test,
            created_at=moment(self.created_at),
            delivered_at=optional_moment(self.delivered_at),
            next_attempt_at=optional_moment(self.next_attempt_at),
        )


@dataclass(frozen=True, slots=True)
class DeliveryAttempt:
    """One request to a receiver, and its result.

    Attributes:
        delivery_id: the delivery that the request belongs to.
        endpoint_id: the endpoint that the request went to.
        event_id: the webhook-id.
        event_type: the event type.
        number: the number in the delivery-attempt header.
        at_unix: when it began, in the service's time, in Unix seconds.
        timestamp: its webhook-timestamp.
        status: the answer's HTTP status, or None if the sender saw no answer.
        reason: the ``reason`` in the answer's JSON body, or an empty string.
        failure: why the attempt failed, or None for a 2xx in time.
        milliseconds: how long the answer took.
        disturbance: what chaos did to the request, if anything.
        is_genuine: whether a secret of the endpoint signed it and it arrived unchanged.
        is_extra: whether it is a copy, a replay or a forgery. Such a request is not one of the
            delivery's attempts, and its result changes nothing.
        retry_after_seconds: how long the answer asks the sender to wait, or None.
    """

    delivery_id: str
    endpoint_id: str
    event_id: str
    event_type: str
    number: int
    at_unix: float
    timestamp: int
    status: int | None
    reason: str
    failure: str | None
    milliseconds: float
    disturbance: Disturbance | None = None
    is_genuine: bool = True
    is_extra: bool = False
    retry_after_seconds: float | None = None

    @property
    def at(self) -> datetime:
        """The service's time when the request began, as an aware UTC ``datetime``."""
        return utc(self.at_unix)
