"""Typed events: the base class, the envelope of a sender's bodies, and the parser.

The classes below are the events of the Social Publishing Service, which is the default sender.
Those of other senders are in ``hookonce.events.openai`` and ``hookonce.events.standard``. A type
without a class becomes an ``UnknownEvent``.
"""

from .envelope import Envelope, Place, Times
from .event import Event, EventClass, UnknownEvent, event_types_of
from .parser import EventParser, Vocabulary
from .publishing import (
    EVENT_CLASSES,
    ChannelDisconnected,
    ChannelUnhealthy,
    CommentReceived,
    MessageReceived,
    PostTargetFailed,
    PostTargetPublished,
    PublishingEvent,
    UnknownPublishingEvent,
    WebhookTest,
)

__all__ = [
    "EVENT_CLASSES",
    "ChannelDisconnected",
    "ChannelUnhealthy",
    "CommentReceived",
    "Envelope",
    "Event",
    "EventClass",
    "EventParser",
    "MessageReceived",
    "Place",
    "PostTargetFailed",
    "PostTargetPublished",
    "PublishingEvent",
    "Times",
    "UnknownEvent",
    "UnknownPublishingEvent",
    "Vocabulary",
    "WebhookTest",
    "event_types_of",
]
