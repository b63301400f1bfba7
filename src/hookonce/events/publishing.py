"""The events of the Social Publishing Service.

Every body is the envelope ``id, type, createdAt, workspaceId, data`` (interface, Events: Delivery
format). The interface documents each field of ``comment.received``; the other types carry "the
shape of the matching resource".
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Final, Generic, Literal, NamedTuple

from pydantic import JsonValue

from ..resources import Channel, Instant, PostTarget, ReceivedComment, ReceivedMessage
from .envelope import Envelope
from .event import DataT, Event, EventClass, UnknownEvent, event_types_of


class PublishingEvent(Event[DataT], Generic[DataT]):
    """The base of the Social Publishing Service's event classes.

    Attributes:
        created_at: when the event happened.
        workspace_id: the workspace in which it happened.
    """

    owner: ClassVar[str | None] = "publishing"

    created_at: Instant
    workspace_id: str


class PostTargetPublished(PublishingEvent[PostTarget]):
    """A post was published on one of its channels."""

    type: Literal["post.target.published"]


class PostTargetFailed(PublishingEvent[PostTarget]):
    """A post could not be published on one of its channels, and the service will not try again."""

    type: Literal["post.target.failed"]


class CommentReceived(PublishingEvent[ReceivedComment]):
    """Someone else wrote a comment. If the service polls the platform, the event is late."""

    type: Literal["comment.received"]


class MessageReceived(PublishingEvent[ReceivedMessage]):
    """A direct message or a story reply arrived; ``data.message.kind`` says which."""

    type: Literal["message.received"]


class ChannelUnhealthy(PublishingEvent[Channel]):
    """The connection to a channel stopped working, so its posts are held."""

    type: Literal["channel.unhealthy"]


class ChannelDisconnected(PublishingEvent[Channel]):
    """A channel was disconnected from the workspace."""

    type: Literal["channel.disconnected"]


class WebhookTest(PublishingEvent[dict[str, JsonValue]]):
    """A test event, requested in the app or by the test operation; its data is not documented.

    The sender never retries it, and no endpoint can subscribe to it.
    """

    type: Literal["webhook.test"]


class UnknownPublishingEvent(UnknownEvent, PublishingEvent[JsonValue]):
    """An event of a type that has no class, from the Social Publishing Service."""


EVENT_CLASSES: Mapping[str, EventClass] = MappingProxyType(
    {
        name: event_class
        for event_class in (
            PostTargetPublished,
            PostTargetFailed,
            CommentReceived,
            MessageReceived,
            ChannelUnhealthy,
            ChannelDisconnected,
            WebhookTest,
        )
        for name in event_types_of(event_class)
    }
)
"""The documented event types and their classes (interface, Events: Event types)."""


class _PublishingEvents(NamedTuple):
    """The ``Vocabulary`` of the service: how its bodies become events."""

    envelope: Envelope
    event_classes: tuple[EventClass, ...]
    unknown_event: type[UnknownEvent]


PUBLISHING_EVENTS: Final = _PublishingEvents(
    Envelope(type="type", created_at="createdAt", data="data", id="id"),
    tuple(EVENT_CLASSES.values()),
    UnknownPublishingEvent,
)
"""How the service's bodies become events; the id in a body is the webhook-id."""
