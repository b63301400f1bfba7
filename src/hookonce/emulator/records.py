"""What the service keeps: endpoints, events, deliveries, and each attempt at one."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from ..resources import WebhookDelivery, WebhookEndpoint
from ..sender import DISABLING_FAILURES, DISABLING_SECONDS, TWO_SIGNATURES_SECONDS
from .chaos import Disturbance
from .moments import instant, moment

_SHOWN_OF_A_SECRET = len("whsec_") + 4


class EndpointStatus(StrEnum):
    """The state of an endpoint; "disabled" is how the interface speaks of it, not a value shown."""

    ACTIVE = "active"
    DISABLED = "disabled"


class DisabledReason(StrEnum):
    """Why an endpoint is disabled; of these the interface shows ``manual`` alone."""

    MANUAL = "manual"
    FAILING = "failing"
    GONE = "gone"


class DeliveryStatus(StrEnum):
    """The state of a delivery; the interface shows ``pending`` and speaks of "delivered"."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class OutgoingEvent:
    """An event as every attempt at it carries it.

    Attributes:
        id: the webhook-id.
        type: the event type.
        body: the envelope, byte for byte the same in each attempt.

    """

    id: str
    type: str
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Notice:
    """What the workspace's owner and admins are told: an endpoint was disabled.

    Attributes:
        endpoint_id: which.
        reason: why.
        at: Unix seconds.

    """

    endpoint_id: str
    reason: DisabledReason
    at: float


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
    rotated_at: float | None = None
    status: EndpointStatus = EndpointStatus.ACTIVE
    disabled_reason: DisabledReason | None = None
    consecutive_failures: int = 0
    failing_since: float | None = None
    last_success_at: float | None = None
    last_failure_at: float | None = None

    def secrets(self, now: float) -> tuple[str, ...]:
        """Return what events are signed with: two secrets for 24 hours after a rotation."""
        if self.previous_secret is None or self.rotated_at is None:
            return (self.secret,)
        if now - self.rotated_at >= TWO_SIGNATURES_SECONDS:
            return (self.secret,)
        return (self.secret, self.previous_secret)

    def rotate(self, secret: str, now: float) -> None:
        """Sign with another secret from now on, and for 24 hours with the last one too."""
        self.secret, self.previous_secret, self.rotated_at = secret, self.secret, now

    def enable(self) -> None:
        """Make it active, with nothing counted against it."""
        self.status, self.disabled_reason = EndpointStatus.ACTIVE, None
        self.consecutive_failures, self.failing_since = 0, None

    def disable(self, reason: DisabledReason) -> None:
        """Send it nothing more."""
        self.status, self.disabled_reason = EndpointStatus.DISABLED, reason

    def has_succeeded(self, now: float) -> None:
        """Count an attempt that was answered 2xx."""
        self.last_success_at = now
        self.consecutive_failures, self.failing_since = 0, None

    def has_failed(self, now: float) -> None:
        """Count a failed attempt."""
        self.last_failure_at = now
        self.consecutive_failures += 1
        if self.failing_since is None:
            self.failing_since = now

    def is_failing_too_long(self, now: float) -> bool:
        """Return whether it has failed for 72 hours, with ten failed attempts at the least."""
        return (
            self.failing_since is not None
            and now - self.failing_since >= DISABLING_SECONDS
            and self.consecutive_failures >= DISABLING_FAILURES
        )

    def shown(self, *, with_secret: bool = False) -> WebhookEndpoint:
        """Return the resource of the interface; the secret goes out at creation and rotation."""
        return WebhookEndpoint(
            id=self.id,
            url=self.url,
            description=self.description,
            events=list(self.events),
            status=self.status,
            disabled_reason=self.disabled_reason,
            secret_prefix=self.secret[:_SHOWN_OF_A_SECRET],
            consecutive_failures=self.consecutive_failures,
            last_success_at=instant(self.last_success_at),
            last_failure_at=instant(self.last_failure_at),
            created_at=moment(self.created_at),
            **({"secret": self.secret} if with_secret else {}),
        )


@dataclass(slots=True)
class DeliveryRow:
    """One event on its way to one endpoint (interface, Resources: Webhook delivery)."""

    id: str
    number: int
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

    def shown(self) -> WebhookDelivery:
        """Return the resource of the interface."""
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
            delivered_at=instant(self.delivered_at),
            next_attempt_at=instant(self.next_attempt_at),
        )


@dataclass(frozen=True, slots=True)
class DeliveryAttempt:
    """One request that went to a receiver, and what came of it.

    Attributes:
        delivery_id: the delivery it belongs to.
        endpoint_id: where it went.
        event_id: the webhook-id.
        event_type: the event type.
        number: the delivery attempt it names.
        at: when it began, in the service's time (Unix seconds).
        timestamp: its webhook-timestamp.
        status: the answer's HTTP status, or None if the sender saw none.
        reason: the ``reason`` in the answer's JSON body, or an empty string.
        failure: what went wrong, or None for a 2xx that arrived in time.
        milliseconds: how long the answer took.
        disturbance: what chaos did to it, if anything.
        is_genuine: whether it was signed with a secret of the endpoint and arrived unchanged.
        is_extra: whether it was one request more than the schedule knows: a copy, a replay, a
            forgery. It counts for nothing.

    """

    delivery_id: str
    endpoint_id: str
    event_id: str
    event_type: str
    number: int
    at: float
    timestamp: int
    status: int | None
    reason: str
    failure: str | None
    milliseconds: float
    disturbance: Disturbance | None = None
    is_genuine: bool = True
    is_extra: bool = False
