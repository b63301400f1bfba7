"""A workspace described in a file: what the service starts with.

The fields of channels, posts, media and comments are those of the interface by their wire names.
Most may be left out. What is misspelt or contradicts itself is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel

from ..resources import Channel, ReceivedComment, TargetError
from .access import ADMIN, ROLES
from .content import ChannelRow, MediaRow, PostRow, Slot, TargetRow
from .platforms import CONTENT_TYPES, PLATFORMS, content_types, one_of
from .rules import PLANS, SUBSCRIBABLE, Allowances
from .states import status_of
from .storage import ACCEPTED
from .workspace import Workspace, zone_of

__all__ = ["WorkspaceData"]

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAY_MINUTES = 24 * 60


class _Described(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
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


class DescribedSlot(_Described):
    """A weekly slot of a channel's queue, in the workspace's time zone."""

    weekday: Annotated[str, one_of(_DAYS)]
    time: Annotated[int, BeforeValidator(_minute), Field(ge=0, lt=_DAY_MINUTES)]


_EVERY_DAY = [DescribedSlot(weekday=day, time=9 * 60) for day in _DAYS]


class DescribedChannel(_Described):
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
        slots = tuple(Slot(_DAYS.index(slot.weekday), slot.time) for slot in self.slots)
        return ChannelRow(Channel(**shown), slots)


class DescribedMedia(_Described):
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


class DescribedTarget(_Described):
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


class DescribedPost(_Described):
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


class DescribedComment(_Described):
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


class DescribedKey(_Described):
    """An API key, for programs that have to know it before the service starts."""

    key: SecretStr
    name: str = "described"
    role: Annotated[str, one_of(ROLES)] = ADMIN
    expires_at: AwareDatetime | None = None


class DescribedWebhook(_Described):
    """A registered endpoint (interface, Resources: Webhook endpoint)."""

    id: str | None = None
    url: str
    events: list[Annotated[str, one_of(SUBSCRIBABLE)]] = list(SUBSCRIBABLE)
    description: str = ""
    secret: SecretStr | None = None


class DescribedFault(_Described):
    """How the platform of a channel fails, or of each; see ``EmulatedService.platform_fails``."""

    channel_id: str | None = None
    code: str = "platform.rejected"
    message: str | None = None
    rate: Annotated[float, Field(ge=0, le=1)] = 1.0
    times: Annotated[int, Field(ge=1)] | None = None
    for_good: bool = True


class DescribedDelay(_Described):
    """How much longer the platform of a channel takes, or each."""

    channel_id: str | None = None
    seconds: Annotated[float, Field(ge=0)]


class DescribedLimits(_Described):
    """The limits whose numbers the interface does not show, and what is left of the quota."""

    scheduled_posts_per_month: Annotated[int, Field(ge=0)] | None = None
    x_credits: Annotated[int, Field(ge=0)] | None = None
    storage_bytes: Annotated[int, Field(ge=0)] = Allowances().storage_bytes
    requests_left: Annotated[int, Field(ge=0)] | None = None


def _zone(name: str) -> str:
    zone_of(name)
    return name


class WorkspaceData(_Described):
    """What an emulated service starts with; everything may be left out.

    Attributes:
        id: the workspace's id, as events name it.
        name: what people call it.
        slug: its name in addresses.
        timezone: the IANA zone that queue slots are in.
        plan: free, starter, pro or agency.
        keys: API keys beside those that are made later.
        channels: a bakery's thirteen channels by default.
        media: finished uploads.
        posts: in any order; they are listed by when they were created.
        comments: by other people.
        webhooks: registered endpoints.
        limits: those whose numbers the interface does not show, and how many requests of the first
            day are left.
        faults: how platforms fail.
        slow: how much longer they take.

    """

    id: str | None = None
    name: str = "Harbour Bakery"
    slug: str = "harbour-bakery"
    timezone: Annotated[str, AfterValidator(_zone)] = "UTC"
    plan: Annotated[str, one_of(PLANS)] = "agency"
    keys: list[DescribedKey] = []
    channels: list[DescribedChannel] | None = None
    media: list[DescribedMedia] = []
    posts: list[DescribedPost] = []
    comments: list[DescribedComment] = []
    webhooks: list[DescribedWebhook] = []
    limits: DescribedLimits = DescribedLimits()
    faults: list[DescribedFault] = []
    slow: list[DescribedDelay] = []

    @model_validator(mode="after")
    def _names_what_is_there(self) -> Self:
        for rows in (self.channels or [], self.media, self.posts, self.comments):
            ids = [row.id for row in rows]
            if twice := {one for one in ids if ids.count(one) > 1}:
                raise ValueError(f"the id {min(twice)!r} is there twice")
        if self.channels is None:
            return self
        known = {channel.id for channel in self.channels}
        named = {target.channel_id for post in self.posts for target in post.targets}
        named |= {comment.channel_id for comment in self.comments}
        named |= {fault.channel_id for fault in self.faults if fault.channel_id is not None}
        named |= {delay.channel_id for delay in self.slow if delay.channel_id is not None}
        if missing := named - known:
            raise ValueError(f"there is no channel {min(missing)!r}")
        return self

    @classmethod
    def load(cls, path: Path | str) -> WorkspaceData:
        """Return what a file describes: YAML by the endings .yaml and .yml, else JSON.

        Raises:
            ValueError: it cannot be read as that, or describes no workspace; the message says why.
            OSError: there is no such file, or it cannot be read.
            ImportError: YAML needs PyYAML.

        """
        path = Path(path)
        text = path.read_text("utf-8")
        described = _yaml(text) if path.suffix in {".yaml", ".yml"} else json.loads(text)
        try:
            return cls.model_validate({} if described is None else described)
        except ValidationError as error:
            raise ValueError(_problems(error)) from None

    def empty_workspace(self, default_id: str, *, plan: str | None, service: str) -> Workspace:
        """Return the workspace with nothing in it.

        Args:
            default_id: its id, if none is described.
            plan: its plan, if that is another than the described one.
            service: the name in the service's own headers and keys.

        Raises:
            ValueError: there is no such plan.

        """
        return Workspace(
            id=self.id or default_id,
            plan=plan or self.plan,
            service=service,
            name=self.name,
            slug=self.slug,
            timezone=self.timezone,
            allowances=Allowances(**self.limits.model_dump(exclude={"requests_left"})),
        )

    def fill(
        self,
        workspace: Workspace,
        channels: Sequence[Channel],
        now: float,
        new_id: Callable[[str], str],
    ) -> None:
        """Put channels, media, posts and comments into a workspace.

        Args:
            workspace: an empty one.
            channels: those of a workspace that describes none.
            now: Unix seconds.
            new_id: gives an id that starts with a prefix.

        Raises:
            ValueError: a post or comment names a channel that is not there.

        """
        if self.channels is None:
            slots = tuple(Slot(_DAYS.index(slot.weekday), slot.time) for slot in _EVERY_DAY)
            rows = [ChannelRow(channel, slots) for channel in channels]
        else:
            rows = [channel.row() for channel in self.channels]
        workspace.channels.update({row.id: row for row in rows})
        for media in self.media:
            workspace.media[media.id] = media.row(workspace.next_number(), now)
        for post in sorted(self.posts, key=lambda one: _age(one.created_at, now)):
            try:
                row = post.row(workspace.next_number(), now, workspace.channels, new_id)
            except KeyError as error:
                raise ValueError(f"there is no channel {error}") from None
            workspace.posts[post.id] = row
        for comment in self.comments:
            channel = workspace.channels.get(comment.channel_id)
            if channel is None:
                raise ValueError(f"there is no channel {comment.channel_id!r}")
            received = ReceivedComment(platform=channel.platform, **comment.model_dump())
            workspace.keep_comment(received, now)


def _age(moment: Any, now: float) -> float:
    return now if moment is None else float(moment.timestamp())


def _yaml(text: str) -> object:
    try:
        yaml = import_module("yaml")
    except ModuleNotFoundError as error:
        raise ImportError(
            "a YAML file needs PyYAML: pip install 'hookonce[emulator]'; JSON needs nothing",
            name="yaml",
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f", line {mark.line + 1}"
        raise ValueError(f"it is no YAML{place}: {getattr(error, 'problem', error)}") from None


def _problems(error: ValidationError) -> str:
    faults = error.errors(include_input=False, include_context=False, include_url=False)
    return "; ".join(
        f"{'.'.join(str(part) for part in fault['loc']) or 'the workspace'}: {fault['msg']}"
        for fault in faults[:5]
    )
