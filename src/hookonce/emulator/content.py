"""Channels, posts, media and comments, as the service keeps them.

Each row gives the matching resource of the interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from ..resources import (
    Channel,
    ChannelRef,
    Comment,
    Media,
    Post,
    PostListItem,
    PostMode,
    PostTarget,
    TargetError,
)
from .moments import moment, optional_moment
from .states import status_of


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """A weekly time of a channel's queue, in the workspace's time zone.

    Attributes:
        weekday: 0 is Monday.
        minute: the minute of the day.
    """

    weekday: int
    minute: int


@dataclass(slots=True)
class ChannelRow:
    """A connected social account (interface, Resources: Channel).

    Attributes:
        slots: when its queue publishes.
    """

    resource: Channel
    slots: tuple[Slot, ...]

    @property
    def id(self) -> str:
        return self.resource.id

    @property
    def platform(self) -> str:
        return self.resource.platform

    @property
    def is_active(self) -> bool:
        """Whether the service can publish to the channel."""
        return self.resource.status == "active"

    def set_status(self, status: str, reason: str | None) -> None:
        self.resource = self.resource.model_copy(update={"status": status, "status_reason": reason})


@dataclass(slots=True)
class TargetRow:
    """A target: one channel of a post (interface, Resources: PostTarget).

    Attributes:
        tries: how often the service has tried to publish it.
        tries_left: how many more tries there are before the service gives up.
    """

    id: str
    channel: ChannelRow
    content_type: str
    caption: str | None
    media_ids: list[str]
    first_comment: str | None
    settings: Mapping[str, JsonValue]
    status: str = "pending"
    external_post_id: str | None = None
    permalink: str | None = None
    error: TargetError | None = None
    published_at: float | None = None
    tries: int = 0
    tries_left: int = 0

    def to_resource(self) -> PostTarget:
        return PostTarget(
            id=self.id,
            channel_id=self.channel.id,
            platform=self.channel.platform,
            username=self.channel.resource.username,
            content_type=self.content_type,
            caption=self.caption,
            media_ids=self.media_ids,
            first_comment=self.first_comment,
            settings=dict(self.settings),
            status=self.status,
            external_post_id=self.external_post_id,
            permalink=self.permalink,
            error=self.error,
            published_at=optional_moment(self.published_at),
        )


@dataclass(slots=True)
class PostRow:
    """A post (interface, Resources: Post).

    Attributes:
        number: counts the workspace's rows in the order of their creation.
        mode: the mode in the last request that created or replaced the post.
        unsent_status: the post's status while no target was sent.
        is_released: whether publishing has started: at the scheduled time, or by the publish
            operation.
    """

    id: str
    number: int
    created_at: float
    title: str | None
    caption: str
    media_ids: list[str]
    targets: list[TargetRow]
    scheduled_at: float | None = None
    mode: PostMode = "draft"
    unsent_status: str = "draft"
    is_released: bool = False

    @property
    def status(self) -> str:
        """The status of the post, computed from the statuses of its targets."""
        return status_of((target.status for target in self.targets), self.unsent_status)

    @property
    def published_at(self) -> float | None:
        """The time at which the last target was published; None while a target is not finished."""
        if self.status not in {"published", "partial"}:
            return None
        moments = [one.published_at for one in self.targets if one.published_at is not None]
        return max(moments, default=None)

    def to_resource(self) -> Post:
        return Post(
            id=self.id,
            title=self.title,
            status=self.status,
            caption=self.caption,
            media_ids=self.media_ids,
            scheduled_at=optional_moment(self.scheduled_at),
            published_at=optional_moment(self.published_at),
            created_at=moment(self.created_at),
            targets=[target.to_resource() for target in self.targets],
        )

    def to_list_item(self) -> PostListItem:
        return PostListItem(
            id=self.id,
            title=self.title,
            status=self.status,
            caption=self.caption,
            scheduled_at=optional_moment(self.scheduled_at),
            published_at=optional_moment(self.published_at),
            created_at=moment(self.created_at),
            channels=[
                ChannelRef(
                    id=target.channel.id,
                    platform=target.channel.platform,
                    username=target.channel.resource.username,
                )
                for target in self.targets
            ],
        )


@dataclass(slots=True)
class MediaRow:
    """An image or video (interface, Resources: Media).

    Attributes:
        number: counts the workspace's rows in the order of their creation.
        token: the last part of the upload address.
        content: the bytes, after they have arrived.
        expires_at: when the upload address becomes invalid, in Unix seconds.
    """

    id: str
    number: int
    filename: str
    url: str
    mime: str
    size: int
    created_at: float
    status: str = "uploading"
    width: int | None = None
    height: int | None = None
    duration_ms: int | None = None
    token: str = field(default="", repr=False)
    content: bytes | None = field(default=None, repr=False)
    expires_at: float = 0.0

    @property
    def kind(self) -> str:
        """``image`` or ``video``."""
        return self.mime.partition("/")[0]

    def to_resource(self) -> Media:
        return Media(
            id=self.id,
            filename=self.filename,
            url=self.url,
            kind=self.kind,
            mime=self.mime,
            size=self.size,
            width=self.width,
            height=self.height,
            duration_ms=self.duration_ms,
            status=self.status,
            created_at=moment(self.created_at),
        )


@dataclass(slots=True)
class CommentRow:
    """A comment by someone else (interface, Resources: Comment).

    Attributes:
        number: counts the workspace's rows in the order of their arrival.
        created_at: when it was written; if that is unknown, when it arrived.
    """

    resource: Comment
    number: int
    created_at: float
    post_id: str | None

    @property
    def id(self) -> str:
        return self.resource.id

    def to_resource(self) -> Comment:
        return self.resource

    def set_status(self, status: str) -> None:
        self.resource = self.resource.model_copy(update={"status": status})
