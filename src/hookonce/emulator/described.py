"""The parts of a workspace description: channels, media, posts, comments, keys and others.

The fields have the interface's wire names. Most are optional.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    SecretStr,
    model_validator,
)
from pydantic.alias_generators import to_camel

from ..resources import Channel, TargetError
from .access import ADMIN, ROLES
from .content import ChannelRow, MediaRow, PostRow, Slot, TargetRow
from .platforms import CONTENT_TYPES, PLATFORMS, content_types, one_of
from .rules import SUBSCRIBABLE, Allowances
from .states import status_of
from .storage import ACCEPTED

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAY_MINUTES = 24 * 60


class Described(BaseModel):
    """Base class of the parts of a description; refuses unknown fields."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid",
        allow_inf_nan=False,
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,  # error messages must not show keys and secrets
    )


def _minute(value: object) -> object:
    """Return the minute of the day; without quotes, YAML reads 17:00 as the number 1020."""
    if isinstance(value, str):
        hour, colon, minute = value.partition(":")
        if colon and hour.isdecimal() and minute.isdecimal() and int(minute) < 60:
            return int(hour) * 60 + int(minute)
    return value


class DescribedSlot(Described):
    """A weekly slot of a channel's queue; its time is in the workspace's time zone."""

    weekday: Annotated[str, one_of(_DAYS)]
    time: Annotated[int, BeforeValidator(_minute), Field(ge=0, lt=_DAY_MINUTES)]


_EVERY_DAY = [DescribedSlot(weekday=day, time=9 * 60) for day in _DAYS]


def slots_of(described: Iterable[DescribedSlot] = _EVERY_DAY) -> tuple[Slot, ...]:
    """Return the slots of a queue; 9:00 every day by default."""
    return tuple(Slot(_DAYS.index(slot.weekday), slot.time) for slot in described)


class DescribedChannel(Described):
    """A channel (interface, Resources: Channel); its slots are 9:00 every day by default."""

    id: str
    platform: Annotated[str, one_of(PLATFORMS)]
    username: str
    display_name: str | None = None
    avatar_url: str | None = None
    status: Literal["active", "needs_reconnect", "disconnected", "error"] = "active"
    status_reason: str | None = None
    follower_count: int | None = None
    connected_at: AwareDatetime | None = None
    slots: list[DescribedSlot] = _EVERY_DAY

    def row(self) -> ChannelRow:
        """Return the row that the service keeps."""
        shown = self.model_dump(exclude={"slots"})
        shown["display_name"] = self.display_name or self.username
        return ChannelRow(Channel(**shown), slots_of(self.slots))


class DescribedMedia(Described):
    """An upload without its bytes, finished by default (interface, Resources: Media)."""

    id: str
    filename: str
    mime: Annotated[str, one_of(ACCEPTED)]
    size: Annotated[int, Field(ge=1)]
    url: str | None = None
    width: int | None = None
    height: int | None = None
    duration_ms: int | None = None
    status: Literal["uploading", "ready", "failed"] = "ready"
    created_at: AwareDatetime | None = None

    def row(self, number: int, now: float) -> MediaRow:
        """Return the row that the service keeps."""
        return MediaRow(
            id=self.id,
            number=number,
            filename=self.filename,
            url=self.url or f"https://cdn.example/{self.id}/{self.filename}",
            mime=self.mime,
            size=self.size,
            created_at=unix_seconds_or(self.created_at, now),
            status=self.status,
            width=self.width,
            height=self.height,
            duration_ms=self.duration_ms,
        )


class DescribedTarget(Described):
    """One channel of a post (interface, Resources: PostTarget)."""

    id: str | None = None
    channel_id: str
    content_type: Annotated[str, one_of(CONTENT_TYPES)] | None = None
    caption: str | None = None
    media_ids: list[str] = []
    first_comment: str | None = None
    settings: dict[str, JsonValue] = {}
    status: Literal["pending", "published", "failed", "held", "skipped"] | None = None
    external_post_id: str | None = None
    permalink: str | None = None
    error: TargetError | None = None
    published_at: AwareDatetime | None = None


_TARGETS_OF = {"published": "published", "failed": "failed"}


class DescribedPost(Described):
    """A post (interface, Resources: Post); at the start no target is queued or being published."""

    id: str
    title: str | None = None
    status: Literal["draft", "pending_approval", "scheduled", "published", "failed", "partial"] = (
        "draft"
    )
    caption: str = ""
    media_ids: list[str] = []
    scheduled_at: AwareDatetime | None = None
    created_at: AwareDatetime | None = None
    targets: Annotated[list[DescribedTarget], Field(min_length=1)]

    @model_validator(mode="after")
    def _agrees_with_its_targets(self) -> Self:
        status = status_of(self.statuses, self.unsent_status)
        if status != self.status:
            raise ValueError(f"the statuses of its targets make it {status}, not {self.status}")
        if status == "scheduled" and self.scheduled_at is None:
            raise ValueError("a scheduled post has a scheduledAt")
        return self

    @property
    def statuses(self) -> list[str]:
        """The statuses of the targets; by default they follow from the post's status."""
        return [one.status or _TARGETS_OF.get(self.status, "pending") for one in self.targets]

    @property
    def unsent_status(self) -> str:
        """The status of the post before it was sent to a platform."""
        return "scheduled" if self.status in {"published", "failed", "partial"} else self.status

    def row(
        self, number: int, now: float, channels: dict[str, ChannelRow], new_id: Callable[[str], str]
    ) -> PostRow:
        """Return the row that the service keeps."""
        created_at = unix_seconds_or(self.created_at, now)
        at = None if self.scheduled_at is None else self.scheduled_at.timestamp()
        return PostRow(
            id=self.id,
            number=number,
            created_at=created_at,
            title=self.title,
            caption=self.caption,
            media_ids=self.media_ids,
            targets=[
                TargetRow(
                    id=target.id or new_id("tgt"),
                    channel=channels[target.channel_id],
                    content_type=target.content_type
                    or content_types(channels[target.channel_id].platform)[0],
                    caption=target.caption,
                    media_ids=target.media_ids,
                    first_comment=target.first_comment,
                    settings=target.settings,
                    status=status,
                    external_post_id=target.external_post_id,
                    permalink=target.permalink,
                    error=target.error,
                    published_at=unix_seconds_or(target.published_at, at or created_at)
                    if status == "published"
                    else None,
                )
                for target, status in zip(self.targets, self.statuses, strict=True)
            ],
            scheduled_at=at,
            mode="draft" if self.status == "draft" else "schedule" if at else "now",
            unsent_status=self.unsent_status,
            is_released=self.status in {"published", "failed", "partial"},
        )


class DescribedComment(Described):
    """A comment by somebody else (interface, Resources: Comment)."""

    id: str
    text: str
    status: Literal["open", "assigned", "done"] = "open"
    is_hidden: bool = False
    channel_id: str
    external_post_id: str | None = None
    author_username: str | None = None
    author_name: str | None = None
    created_at: AwareDatetime | None = None
    post_id: str | None = None
    parent_id: str | None = None


class DescribedKey(Described):
    """An API key that programs know before the service starts."""

    key: SecretStr
    name: str = "described"
    role: Annotated[str, one_of(ROLES)] = ADMIN
    expires_at: AwareDatetime | None = None


class DescribedWebhook(Described):
    """A registered endpoint (interface, Resources: Webhook endpoint)."""

    id: str | None = None
    url: str
    events: list[Annotated[str, one_of(SUBSCRIBABLE)]] = list(SUBSCRIBABLE)
    description: str = ""
    secret: SecretStr | None = None


class DescribedFault(Described):
    """A failing platform of one channel or of all; see ``FaultInjection.platform_fails``."""

    channel_id: str | None = None
    code: str = "platform.rejected"
    message: str | None = None
    rate: Annotated[float, Field(ge=0, le=1)] = 1.0
    times: Annotated[int, Field(ge=1)] | None = None
    for_good: bool = True


class DescribedDelay(Described):
    """A slow platform of one channel or of all."""

    channel_id: str | None = None
    seconds: Annotated[float, Field(ge=0)]


class DescribedLimits(Described):
    """Limits without a documented number, and the rest of the daily quota."""

    scheduled_posts_per_month: Annotated[int, Field(ge=0)] | None = None
    x_credits: Annotated[int, Field(ge=0)] | None = None
    storage_bytes: Annotated[int, Field(ge=0)] = Allowances().storage_bytes
    requests_left: Annotated[int, Field(ge=0)] | None = None


def unix_seconds_or(moment: datetime | None, default: float) -> float:
    """Return a moment as Unix seconds, or the default if the moment is None."""
    return default if moment is None else moment.timestamp()
