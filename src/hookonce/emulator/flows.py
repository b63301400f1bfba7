"""Small flows: the events the real service would send, in order, when something happens.

Each data is whole, every field of its resource, so nothing of what the service would make up by
itself shows through. There is no ordering guarantee on the way (interface, Events: Delivery
behaviour); only the emitting is in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from pydantic import JsonValue

from ..events import Event
from ..resources import Channel
from .generated import STORY_REPLY, EventGenerator
from .platforms import content_types

Emitted: TypeAlias = tuple[Event[Any], ...]
"""The events of a flow in the order they were emitted."""


class EventEmitter(Protocol):
    """What a flow needs of a service."""

    async def emit(self, event: str, *, data: Mapping[str, JsonValue] | None = None) -> Event[Any]:
        """Send an event of a type to whoever subscribed to it, and return it."""
        ...


class Flow(Protocol):
    """A flow with everything left to its defaults, as the command line runs it."""

    async def __call__(
        self, service: EventEmitter, *, generator: EventGenerator | None = None
    ) -> Emitted:
        """Emit the events and return them."""
        ...


async def publish_post(
    service: EventEmitter,
    *,
    channels: Sequence[Channel] | None = None,
    caption: str = "The walnut bread is back 🍞 Saturdays from 8.",
    generator: EventGenerator | None = None,
) -> Emitted:
    """Publish one post to several channels: all get it, but the last fails for good.

    The targets share caption and media; a target does not name its post (interface, Resources:
    PostTarget), so nothing else ties them together. One event is sent for each channel (interface,
    Events: Event types).

    Args:
        service: what sends the events.
        channels: at least one; three of the generator's by default.
        caption: what is published everywhere.
        generator: makes up the rest.

    Raises:
        ValueError: there is no channel.

    """
    generator = generator or EventGenerator()
    channels = generator.channels[:3] if channels is None else channels
    if not channels:
        raise ValueError("a post needs at least one channel")
    media_id = generator.new_id("med")
    *published, failed = channels
    plan = [("post.target.published", channel) for channel in published]
    plan.append(("post.target.failed", failed))
    emitted = []
    for event_type, channel in plan:
        data = generator.data(event_type, channel=channel) | {
            "contentType": content_types(channel.platform)[0],
            "caption": caption,
            "mediaIds": [media_id],
        }
        emitted.append(await service.emit(event_type, data=data))
    return tuple(emitted)


async def receive_comment(
    service: EventEmitter,
    *,
    channel: Channel | None = None,
    text: str | None = None,
    post_id: str | None = None,
    parent_id: str | None = None,
    generator: EventGenerator | None = None,
) -> Emitted:
    """Receive a comment from someone else (interface, Resources: Comment, with its two additions).

    Args:
        service: what sends the event.
        channel: where it was written; the first of the generator's by default.
        text: what it says; made up by default.
        post_id: the post it belongs to; a new one by default.
        parent_id: the comment it answers; none by default.
        generator: makes up the rest.

    """
    generator = generator or EventGenerator()
    data = generator.data("comment.received", channel=channel or generator.channels[0])
    data["postId"] = generator.new_id("post") if post_id is None else post_id
    data["parentId"] = parent_id
    if text is not None:
        data["text"] = text
    return (await service.emit("comment.received", data=data),)


async def receive_story_reply(
    service: EventEmitter,
    *,
    text: str | None = None,
    generator: EventGenerator | None = None,
) -> Emitted:
    """Receive an answer to a story, which comes as a message.

    ``data.message.kind`` tells a story reply from a direct message (interface, Events: Event
    types), but its values are not shown: ``story_reply`` is ours, and so is the field ``text``.

    Args:
        service: what sends the event.
        text: what it says; made up by default.
        generator: makes up the text.

    """
    if text is None:
        text = (generator or EventGenerator()).remark()
    data: dict[str, JsonValue] = {"message": {"kind": STORY_REPLY, "text": text}}
    return (await service.emit("message.received", data=data),)


async def lose_channel(
    service: EventEmitter,
    *,
    channel: Channel | None = None,
    reason: str = "The access token has expired.",
    generator: EventGenerator | None = None,
) -> Emitted:
    """Lose a channel: its connection stops working, and then it is disconnected.

    The statuses are those of interface, Resources: Channel; which one comes with which event is
    not shown (States: Gaps).

    Args:
        service: what sends the events.
        channel: the one to lose; the first of the generator's by default.
        reason: why the connection stopped working.
        generator: makes up the channel.

    """
    generator = generator or EventGenerator()
    data = generator.data("channel.unhealthy", channel=channel or generator.channels[0])
    unhealthy = data | {"status": "needs_reconnect", "statusReason": reason}
    disconnected = data | {"status": "disconnected", "statusReason": None}
    return (
        await service.emit("channel.unhealthy", data=unhealthy),
        await service.emit("channel.disconnected", data=disconnected),
    )


FLOWS: Mapping[str, Flow] = MappingProxyType(
    {
        "post": publish_post,
        "comment": receive_comment,
        "story-reply": receive_story_reply,
        "channel": lose_channel,
    }
)
"""The flows by the names the command line gives them."""
