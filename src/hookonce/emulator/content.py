"""What a workspace publishes and answers: its channels, posts, media and comments.

Each row holds what the service knows, and shows it as the resource of the interface.
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
from .moments import instant, moment
from .states import status_of


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """A weekly time at which the queue of a channel publishes, in the workspace's time zone.

    Attributes:
        weekday: 0 is Monday.
        minute: of the day.

    """

    weekday: int
    minute: int


@dataclass(slots=True)
class ChannelRow:
    """A connected social account (interface, Resources: Channel).

    Attributes:
        shown: the resource.
        slots: when its queue publishes.

    """

    shown: Channel
    slots: tuple[Slot, ...]

    @property
    def id(self) -> str:
        """Its id."""
        return self.shown.id

    @property
    def platform(self) -> str:
        """The network it is on."""
        return self.shown.platform

    @property
    def is_active(self) -> bool:
        """Whether something can be published there."""
        return self.shown.status == "active"

    def turn(self, status: str, reason: str | None) -> None:
        """Let it have another status."""
        self.shown = self.shown.model_copy(update={"status": status, "status_reason": reason})


@dataclass(slots=True)
class TargetRow:
    """One channel of a post (interface, Resources: PostTarget).

    Attributes:
        tries: how often its platform has been asked.
        tries_left: how often it will be before the service gives up.

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

    def shown(self) -> PostTarget:
        """Return the resource of the interface."""
        return PostTarget(
            id=self.id,
            channel_id=self.channel.id,
            platform=self.channel.platform,
            username=self.channel.shown.username,
            content_type=self.content_type,
            caption=self.caption,
            media_ids=self.media_ids,
            first_comment=self.first_comment,
            settings=dict(self.settings),
            status=self.status,
            external_post_id=self.external_post_id,
            permalink=self.permalink,
            error=self.error,
            published_at=instant(self.published_at),
        )


@dataclass(slots=True)
class PostRow:
    """A post (interface, Resources: Post).

    Attributes:
        number: which post of the workspace, from 1; later ones were created later.
        mode: the mode it was last saved with.
        resting: its status while no target has been tried.
        has_gone_out: whether its time has come, or it was published by hand.

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
    resting: str = "draft"
    has_gone_out: bool = False

    @property
    def status(self) -> str:
        """Its status, which follows from those of its targets."""
        return status_of((target.status for target in self.targets), self.resting)

    @property
    def published_at(self) -> float | None:
        """When the last of it went out, once nothing of it is on its way."""
        if self.status not in {"published", "partial"}:
            return None
        moments = [one.published_at for one in self.targets if one.published_at is not None]
        return max(moments, default=None)

    def shown(self) -> Post:
        """Return the resource of the interface."""
        return Post(
            id=self.id,
            title=self.title,
            status=self.status,
            caption=self.caption,
            media_ids=self.media_ids,
            scheduled_at=instant(self.scheduled_at),
            published_at=instant(self.published_at),
            created_at=moment(self.created_at),
            targets=[target.shown() for target in self.targets],
        )

    def listed(self) -> PostListItem:
        """Return the post as a list shows it."""
        return PostListItem(
            id=self.id,
            title=self.title,
            status=self.status,
            caption=self.caption,
            scheduled_at=instant(self.scheduled_at),
            published_at=instant(self.published_at),
            created_at=moment(self.created_at),
            channels=[
                ChannelRef(
                    id=target.channel.id,
                    platform=target.channel.platform,
                    username=target.channel.shown.username,
                )
                for target in self.targets
            ],
        )


@dataclass(slots=True)
class MediaRow:
    """An image or video (interface, Resources: Media).

    Attributes:
        number: which media item of the workspace, from 1; later ones were created later.
        content: its bytes, once they have arrived.
        expires_at: Unix seconds from which on they are no longer taken.

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
        """Image or video."""
        return self.mime.partition("/")[0]

    def shown(self) -> Media:
        """Return the resource of the interface."""
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
        number: which comment of the workspace, from 1, by the order of arrival.
        created_at: when it was written, or else when it arrived.
        post_id: the post it belongs to, which a list can be filtered by.

    """

    resource: Comment
    number: int
    created_at: float
    post_id: str | None

    @property
    def id(self) -> str:
        """Its id."""
        return self.resource.id

    def shown(self) -> Comment:
        """Return the resource of the interface."""
        return self.resource

    def turn(self, status: str) -> None:
        """Let it have another status."""
        self.resource = self.resource.model_copy(update={"status": status})
