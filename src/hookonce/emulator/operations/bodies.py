"""The bodies and queries of requests, validated strictly.

They follow the interface document and do not derive from ``hookonce.resources``, so that tests find
a mistake in either. Unknown fields are ignored. Null is valid only where the interface says "or
null".
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

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
    """The body of a request; it accepts wire names only."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        strict=True, allow_inf_nan=False, alias_generator=to_camel
    )


_Events = Annotated[list[Annotated[str, one_of(SUBSCRIBABLE)]], Field(min_length=1)]


class EndpointBody(Body):
    """A new webhook endpoint (interface, Endpoints: Webhooks)."""

    url: str
    events: _Events
    description: str = ""


class EndpointChange(Body):
    """A change of a webhook endpoint (interface, Endpoints: Webhooks)."""

    # The operation ignores the defaults. They are not None, so that pydantic refuses a null.
    url: str = ""
    events: _Events = Field(default_factory=list)
    description: str = ""
    enabled: bool = True


_Caption = Annotated[str, Field(max_length=63206)]
_MediaIds = Annotated[list[str], Field(max_length=35)]


def _in_range(time: datetime) -> datetime:
    if not 1970 < time.year < 9999:
        raise PydanticCustomError("time", "Input should be in the years from 1971 to 9998")
    return time


_Time = Annotated[AwareDatetime, AfterValidator(_in_range)]
"""A time with an offset (interface, Resources: Post input, scheduledAt)."""


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
        """The channel's id, from the current field or from the deprecated field."""
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
        """Copy a deprecated field into the current field, if the body lacks the current field."""
        if "caption" not in self.model_fields_set:
            self.caption = self.base_caption
        if "media_ids" not in self.model_fields_set:
            self.media_ids = self.base_media_ids

    @property
    def scheduled_seconds(self) -> float | None:
        at: datetime | None = self.scheduled_at
        return None if at is None else at.timestamp()


class UploadBody(Body):
    """A file to upload (interface, Endpoints: Media)."""

    filename: Annotated[str, Field(max_length=255)]
    mime: Annotated[str, one_of(ACCEPTED)]
    size: Annotated[int, Field(ge=1)]
    folder_id: str | None = None


class CompletionBody(Body):
    """The properties of an uploaded file (interface, Endpoints: Media)."""

    width: Annotated[int, Field(ge=1)] = 1
    height: Annotated[int, Field(ge=1)] = 1
    duration_ms: Annotated[int, Field(ge=0)] = 0


class ReplyBody(Body):
    """An answer to a comment (interface, Endpoints: Comments)."""

    text: Annotated[str, Field(min_length=1, max_length=2200)]


class _Query(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(alias_generator=to_camel)


class ChannelQuery(_Query):
    """The filter of the channel list (interface, Endpoints: Channels)."""

    include_disconnected: Literal["true", "false"] = "false"


class PageQuery(_Query):
    """The page of a collection (interface, Endpoints: Pagination)."""

    limit: str | None = None
    cursor: str | None = None


class _ChannelsQuery(PageQuery):
    channels: str = ""

    @property
    def channel_ids(self) -> frozenset[str]:
        """The channels to keep; empty means all."""
        return frozenset(filter(None, self.channels.split(",")))


class PostQuery(_ChannelsQuery):
    """The filter of the post list (interface, Endpoints: Posts); ignores q, sort, from and to."""

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
    """The filter of the media list (interface, Endpoints: Media)."""

    type: Literal["image", "video"] | None = None


class CommentQuery(_ChannelsQuery):
    """The filter of the comment list (interface, Endpoints: Comments)."""

    status: Literal["all", "open", "assigned", "done"] = "all"
    q: str = ""
    post_id: str | None = None
