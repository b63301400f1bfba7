"""What requests may hold: bodies and queries, read strictly.

They are written from the interface anew, and not derived from ``hookonce.resources``: a mistake
there shall not be one here too. Unknown fields are ignored; null is taken only where a field is
listed as "or null".
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from ..platforms import CONTENT_TYPES, one_of
from ..rules import SUBSCRIBABLE
from ..storage import ACCEPTED


class Body(BaseModel):
    """A body; its fields go by their wire names alone."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, alias_generator=to_camel)


_Events = Annotated[list[Annotated[str, one_of(SUBSCRIBABLE)]], Field(min_length=1)]


class EndpointBody(Body):
    """A new webhook endpoint (interface, Endpoints: Webhooks)."""

    url: str
    events: _Events
    description: str = ""


class EndpointChange(Body):
    """A change of one (interface, Endpoints: Webhooks)."""

    # What a field holds that was not sent is never looked at; null is refused in all of them.
    url: str = ""
    events: _Events = Field(default_factory=list)
    description: str = ""
    enabled: bool = True


_Caption = Annotated[str, Field(max_length=63206)]
_MediaIds = Annotated[list[str], Field(max_length=35)]


def _in_reach(time: datetime) -> datetime:
    if not 1970 < time.year < 9999:
        raise PydanticCustomError("time", "Input should be in the years from 1971 to 9998")
    return time


_Time = Annotated[AwareDatetime, AfterValidator(_in_reach)]
"""Resources: Post input, scheduledAt: "An absolute instant, so send an offset"."""


class TargetBody(Body):
    """One destination of a post (interface, Resources: Post input, Target input item)."""

    channel_id: str = ""
    social_account_id: str = ""  # deprecated, still accepted (Versioning 5)
    content_type: Annotated[str, one_of(CONTENT_TYPES)] = ""
    caption: str | None = None
    media_ids: _MediaIds = Field(default_factory=list)
    first_comment: Annotated[str, Field(max_length=2200)] | None = None
    settings: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def channel(self) -> str:
        """The id of the channel by either name, the current one first."""
        return self.channel_id or self.social_account_id


class PostBody(Body):
    """A post to create, replace or validate (interface, Resources: Post input)."""

    title: Annotated[str, Field(max_length=120)] | None = None
    caption: _Caption = ""
    base_caption: _Caption = ""  # deprecated, still accepted (Versioning 5)
    media_ids: _MediaIds = Field(default_factory=list)
    base_media_ids: _MediaIds = Field(default_factory=list)  # deprecated, still accepted
    targets: Annotated[list[TargetBody], Field(min_length=1)]
    scheduled_at: _Time | None = None
    mode: Literal["draft", "schedule", "now", "queue"] = "draft"

    def model_post_init(self, _: Any) -> None:
        """Take what came under a deprecated name for what the current one lacks."""
        if "caption" not in self.model_fields_set:
            self.caption = self.base_caption
        if "media_ids" not in self.model_fields_set:
            self.media_ids = self.base_media_ids

    @property
    def time(self) -> float | None:
        """When it is scheduled, in Unix seconds."""
        at: datetime | None = self.scheduled_at
        return None if at is None else at.timestamp()


class UploadBody(Body):
    """A file to upload (interface, Endpoints: Media)."""

    filename: Annotated[str, Field(max_length=255)]
    mime: Annotated[str, one_of(ACCEPTED)]
    size: Annotated[int, Field(ge=1)]
    folder_id: str | None = None


class CompletionBody(Body):
    """What is known of a file that was sent (interface, Endpoints: Media)."""

    width: Annotated[int, Field(ge=1)] = 1
    height: Annotated[int, Field(ge=1)] = 1
    duration_ms: Annotated[int, Field(ge=0)] = 0


class ReplyBody(Body):
    """An answer to a comment (interface, Endpoints: Comments)."""

    text: Annotated[str, Field(min_length=1, max_length=2200)]


class _Query(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)


class ChannelQuery(_Query):
    """Which channels are listed (interface, Endpoints: Channels)."""

    include_disconnected: Literal["true", "false"] = "false"


class PageQuery(_Query):
    """Which part of a collection is shown (interface, Endpoints: Pagination)."""

    limit: str | None = None
    cursor: str | None = None


class _ChannelsQuery(PageQuery):
    channels: str = ""

    @property
    def channel_ids(self) -> frozenset[str]:
        """The channels to keep; every one if there are none."""
        return frozenset(filter(None, self.channels.split(",")))


class PostQuery(_ChannelsQuery):
    """Which posts are listed (interface, Endpoints: Posts); q, sort, from and to are not shown."""

    status: Literal[
        "all",
        "draft",
        "pending_approval",
        "scheduled",
        "publishing",
        "published",
        "failed",
        "partial",
    ] = "all"


class MediaQuery(PageQuery):
    """Which media are listed (interface, Endpoints: Media)."""

    type: Literal["image", "video"] | None = None


class CommentQuery(_ChannelsQuery):
    """Which comments are listed (interface, Endpoints: Comments)."""

    status: Literal["all", "open", "assigned", "done"] = "all"
    q: str = ""
    post_id: str | None = None
