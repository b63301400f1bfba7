"""The built-in senders. Each value cites the public document that it is based on."""

from __future__ import annotations

from ..events import Envelope
from ..events.openai import OPENAI_EVENT_CLASSES, UnknownOpenAIEvent
from ..events.publishing import PUBLISHING_EVENTS
from ..events.standard import UnknownStandardEvent
from ..verification.header_names import Hints
from .rules import EXAMPLE_RETRY_SECONDS, Rules
from .sender import Sender

_MINUTE = 60.0
_HOUR = 3600.0
_DAY = 86_400.0

publishing: Sender = Sender(
    name="publishing",
    envelope=PUBLISHING_EVENTS.envelope,
    event_classes=PUBLISHING_EVENTS.event_classes,
    unknown_event=PUBLISHING_EVENTS.unknown_event,
    hints=Hints(event_type="event-type", attempt="delivery-attempt"),
    rules=Rules(
        # Interface, Limits: Webhook answer time.
        answer_seconds=10.0,
        # Interface, Events: Delivery behaviour, "give or take 10 percent".
        retry_seconds=(
            *(30.0, 2 * _MINUTE, 10 * _MINUTE, 30 * _MINUTE),
            *(1 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR),
        ),
        retry_jitter=0.1,
        # Interface, Limits: Delivery attempts.
        attempts=9,
        # Interface, Limits: Disable threshold.
        disabling_seconds=72 * _HOUR,
        disabling_failures=10,
        # Interface, Limits: Dual-signature window after rotation.
        two_signatures_seconds=24 * _HOUR,
        # Interface, Limits: Delivery log retention.
        log_seconds=14 * _DAY,
        # Interface, Events: Delivery behaviour, "Test events are never retried".
        test_type="webhook.test",
    ),
    # Interface, Limits: Signature timestamp tolerance.
    tolerance_seconds=300.0,
)
"""The Social Publishing Service, by its interface document; the default of every receiver.

The document gives only the endings of the service's own two headers; ``with_service`` sets their
prefix. The document does not say whether the service reads ``Retry-After``.
"""

standard: Sender = Sender(
    name="standard",
    # Payload structure.
    envelope=Envelope(type="type", created_at="timestamp", data="data"),
    unknown_event=UnknownStandardEvent,
    rules=Rules(
        # Operational considerations, Deliverability and reliability: "Example retry schedule".
        retry_seconds=EXAMPLE_RETRY_SECONDS,
    ),
)
"""Any service that follows the Standard Webhooks specification, version 1.0.0.

The specification recommends rules, but requires none of them. Its schedule of 75 hours 35 minutes
is an example, so the number of attempts is unknown: the schedule only says how long a store must
remember an event. See https://github.com/standard-webhooks/standard-webhooks, file
spec/standard-webhooks.md.
"""

svix: Sender = Sender(
    name="svix",
    # Each service chooses the JSON of its messages. Svix's own operational webhooks have a type
    # and data, but no time (API reference, models such as MessageAttemptExhaustedEvent).
    envelope=Envelope(type="type", created_at=None, data="data"),
    # Svix, Verifying Webhooks Manually: some customers' headers begin with `webhook-` instead.
    headers=("svix", "webhook"),
    rules=Rules(
        # Svix, Retry Schedule, Indicating successful delivery: "15s with Svix".
        answer_seconds=15.0,
        # Svix, Retry Schedule, The schedule.
        retry_seconds=(
            *(5.0, 5 * _MINUTE, 30 * _MINUTE, 2 * _HOUR, 5 * _HOUR, 10 * _HOUR, 10 * _HOUR),
        ),
        attempts=8,
        # Svix, Retry Schedule, Disabling failing endpoints: "for a period of 5 days".
        disabling_seconds=5 * _DAY,
        # Svix, API reference, Rotate Secret: "remain valid for the next 24 hours".
        two_signatures_seconds=24 * _HOUR,
    ),
)
"""Every service that sends through Svix, such as Clerk and Resend.

Based on https://docs.svix.com/retries, https://docs.svix.com/receiving/verifying-payloads/how-manual
and https://api.svix.com/docs. The documents name neither a jitter nor the use of ``Retry-After``.
"""

openai: Sender = Sender(
    name="openai",
    # OpenAI, API reference, Webhook Events: `created_at` is in Unix seconds. The id in the body is
    # the field `body_id` of the classes, and differs from the webhook-id.
    envelope=Envelope(type="type", created_at="created_at", data="data", times="seconds"),
    event_classes=tuple(OPENAI_EVENT_CLASSES.values()),
    unknown_event=UnknownOpenAIEvent,
    rules=Rules(
        # OpenAI, Guide, Handling webhook requests on a server: "attempt delivery for up to 72
        # hours".
        retry_span_seconds=72 * _HOUR,
        # OpenAI, API reference, rotate_secret: the old secret can stay active for 24 hours.
        two_signatures_seconds=24 * _HOUR,
    ),
)
"""OpenAI, whose deliveries follow the Standard Webhooks specification.

Based on https://developers.openai.com/api/docs/guides/webhooks and the API reference of webhook
endpoints. OpenAI publishes neither its schedule nor its number of attempts.
"""

BUILT_IN: dict[str, Sender] = {one.name: one for one in (publishing, standard, svix, openai)}
