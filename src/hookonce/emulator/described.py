"""What a described workspace has in it: channels, media, posts, comments, keys and the like.

The fields are those of the interface by their wire names. Most may be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, Self

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
    """A part of it; what is misspelt is refused."""

    model_config = ConfigDict(
        extra="forbid",
        allow_inf_nan=False,
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,  # keys and secrets stay out of messages
    )


def _minute(value: object) -> object:
    """Return the minute of the day; YAML reads an unquoted 17:00 as the number 1020 itself."""
    if isinstance(value, str):
        hour, colon, minute = value.partition(":")
        if colon and hour.isdecimal() and minute.isdecimal() and int(minute) < 60:
            return int(hour) * 60 + int(minute)
    return value


class DescribedSlot(Described):
    """A weekly slot of a channel's queue, in the workspace's time zone."""

    weekday: Annotated[str, one_of(_DAYS)]
    time: Annotated[int, BeforeValidator(_minute), Field(ge=0, lt=_DAY_MINUTES)]


_EVERY_DAY = [DescribedSlot(weekday=day, time=9 * 60) for day in _DAYS]


def slots_of(described: Iterable[DescribedSlot] = _EVERY_DAY) -> tuple[Slot, ...]:
    """Return what the service keeps of slots; 9:00 each day where none are described."""
    return tuple(Slot(_DAYS.index(slot.weekday), slot.time) for slot in described)


class DescribedChannel(Described):
    """A channel (interface, Resources: Channel), and the slots of its queue; 9:00 each day."""

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
        """Return what the service keeps of it."""
        shown = self.model_dump(exclude={"slots"})
        shown["display_name"] = self.display_name or self.username
        return ChannelRow(Channel(**shown), slots_of(self.slots))


class DescribedMedia(Described):
    """A finished upload (interface, Resources: Media); its bytes are not there."""

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
        """Return what the service keeps of it."""
        return MediaRow(
            id=self.id,
            number=number,
            filename=self.filename,
            url=self.url or f"https://cdn.example/{self.id}/{self.filename}",
            mime=self.mime,
            size=self.size,
            created_at=now if self.created_at is None else self.created_at.timestamp(),
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
    """A post (interface, Resources: Post); nothing of it is on its way when the service starts."""

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
        status = status_of(self.statuses, self.resting)
        if status != self.status:
            raise ValueError(f"the statuses of its targets make it {status}, not {self.status}")
        if status == "scheduled" and self.scheduled_at is None:
            raise ValueError("a scheduled post has a scheduledAt")
        return self

    @property
    def statuses(self) -> list[str]:
        """Those of its targets; by default they follow from that of the post."""
        return [one.status or _TARGETS_OF.get(self.status, "pending") for one in self.targets]

    @property
    def resting(self) -> str:
        """What it is while none of its targets was tried."""
        return "scheduled" if self.status in {"published", "failed", "partial"} else self.status

    def row(
        self, number: int, now: float, channels: dict[str, ChannelRow], new_id: Callable[[str], str]
    ) -> PostRow:
        """Return what the service keeps of it."""
        created_at = now if self.created_at is None else self.created_at.timestamp()
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
                    published_at=_published(target, status, at or created_at),
                )
                for target, status in zip(self.targets, self.statuses, strict=True)
            ],
            scheduled_at=at,
            mode="draft" if self.status == "draft" else "schedule" if at else "now",
            resting=self.resting,
            has_gone_out=self.status in {"published", "failed", "partial"},
        )


def _published(target: DescribedTarget, status: str, default: float) -> float | None:
    if status != "published":
        return None
    return default if target.published_at is None else target.published_at.timestamp()


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
    """An API key, for programs that have to know it before the service starts."""

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
    """How the platform of a channel fails, or of each; see ``EmulatedService.platform_fails``."""

    channel_id: str | None = None
    code: str = "platform.rejected"
    message: str | None = None
    rate: Annotated[float, Field(ge=0, le=1)] = 1.0
    times: Annotated[int, Field(ge=1)] | None = None
    for_good: bool = True


class DescribedDelay(Described):
    """How much longer the platform of a channel takes, or each."""

    channel_id: str | None = None
    seconds: Annotated[float, Field(ge=0)]


class DescribedLimits(Described):
    """The limits whose numbers the interface does not show, and what is left of the quota."""

    scheduled_posts_per_month: Annotated[int, Field(ge=0)] | None = None
    x_credits: Annotated[int, Field(ge=0)] | None = None
    storage_bytes: Annotated[int, Field(ge=0)] = Allowances().storage_bytes
    requests_left: Annotated[int, Field(ge=0)] | None = None


def age(moment: Any, now: float) -> float:
    """Return a moment in Unix seconds; now where none is described."""
    return now if moment is None else float(moment.timestamp())
