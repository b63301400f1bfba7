# ruff: noqa: PYI051 - `Literal[...] | str` is the point of an open enum: editors complete it
"""The resources of the Social Publishing Service, as its interface (v1) lists them.

Reading keeps everything: an unknown field, or a value that an enum does not list yet, is kept and
written back under its wire name. A body of the wrong shape raises pydantic's `ValidationError` and
no other error. Names are camelCase on the wire and snake_case in Python.
"""

from datetime import UTC, datetime
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    Self,
    TypeAlias,
    TypeVar,
    dataclass_transform,
)

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetPydanticSchema,
    JsonValue,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError, core_schema

__all__ = [
    "AbsoluteInstant",
    "ApiKey",
    "Blocker",
    "Channel",
    "ChannelRef",
    "ChannelStatus",
    "Comment",
    "CommentStatus",
    "ContentType",
    "DeletedPost",
    "ErrorBody",
    "ErrorKind",
    "ErrorResponse",
    "Instant",
    "KeyRole",
    "Me",
    "Media",
    "MediaKind",
    "MediaStatus",
    "Message",
    "Page",
    "Plan",
    "Platform",
    "Post",
    "PostInput",
    "PostListItem",
    "PostMode",
    "PostStatus",
    "PostTarget",
    "PostTargetInput",
    "PublishWarning",
    "PublishedPost",
    "ReceivedComment",
    "ReceivedMessage",
    "RepliedComment",
    "ReplyInput",
    "RequestLimits",
    "Resource",
    "SavedPost",
    "TargetError",
    "TargetStatus",
    "TargetValidation",
    "Upload",
    "UploadCompletion",
    "UploadInput",
    "ValidationIssue",
    "ValidationResult",
    "WebhookChange",
    "WebhookDelivery",
    "WebhookEndpoint",
    "WebhookInput",
    "Workspace",
]

API_URL_VARIABLE = "HOOKONCE_API_URL"
"""The environment variable with the base URL of the service's API."""

API_KEY_VARIABLE = "HOOKONCE_API_KEY"
"""The environment variable with the key for the service's API."""

DataT = TypeVar("DataT")


def _read_as_utc(value: datetime) -> datetime:
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def _write_as_service(value: datetime) -> str:
    if value.utcoffset():
        try:
            value = value.astimezone(UTC)
        except OverflowError:  # in UTC the time is before year 1 or after 9999: keep the offset
            return value.isoformat()
    # The service writes milliseconds; keep the finer digits of a value that has them.
    timespec = "microseconds" if value.microsecond % 1000 else "milliseconds"
    return value.replace(tzinfo=None).isoformat(timespec=timespec) + "Z"


# The service sends an offset, so the first schema, which calls no Python, reads nearly every value.
# Only a value without an offset needs the second schema.
_INSTANT_SCHEMA = core_schema.union_schema(
    [
        core_schema.datetime_schema(tz_constraint="aware"),
        core_schema.no_info_after_validator_function(_read_as_utc, core_schema.datetime_schema()),
    ],
    mode="left_to_right",
    custom_error_type="instant",
    custom_error_message="Input should be an RFC 3339 date-time",
)

Instant: TypeAlias = Annotated[
    datetime,
    GetPydanticSchema(lambda _source, _handler: _INSTANT_SCHEMA),
    PlainSerializer(_write_as_service, return_type=str, when_used="json"),
]
"""An aware datetime. Input without an offset is read as UTC; JSON output ends in `Z`."""

AbsoluteInstant: TypeAlias = Annotated[
    datetime,
    GetPydanticSchema(lambda _source, _handler: core_schema.datetime_schema(tz_constraint="aware")),
    PlainSerializer(_write_as_service, return_type=str, when_used="json"),
]
"""An aware datetime; a value without an offset is refused: its time zone would be a guess."""

# Validate only that the value is a string: trying the listed values first would cost time on every
# field.
_OPEN = GetPydanticSchema(lambda _source, handler: handler(str))

Plan: TypeAlias = Annotated[Literal["free", "starter", "pro", "agency"] | str, _OPEN]
"""The plan of a workspace (interface, Resources: Workspace). Other values are kept as text."""
KeyRole: TypeAlias = Annotated[Literal["viewer", "contributor", "editor", "admin"] | str, _OPEN]
"""What a key may do (interface, Resources: Workspace, key, limits). Other values are kept."""
Platform: TypeAlias = Annotated[
    Literal[
        "instagram",
        "facebook",
        "youtube",
        "threads",
        "tiktok",
        "linkedin",
        "x",
        "bluesky",
        "pinterest",
        "google_business",
        "shopee",
    ]
    | str,
    _OPEN,
]
"""A social network (interface, Resources: Channel). Other values are kept as text."""
ChannelStatus: TypeAlias = Annotated[
    Literal["active", "needs_reconnect", "disconnected", "error"] | str, _OPEN
]
"""Whether a channel is connected (interface, States). Other values are kept as text."""
PostStatus: TypeAlias = Annotated[
    Literal[
        "draft", "pending_approval", "scheduled", "publishing", "published", "failed", "partial"
    ]
    | str,
    _OPEN,
]
"""The state of a post (interface, States). Other values are kept as text."""
ContentType: TypeAlias = Annotated[
    Literal["feed", "photo", "post", "text", "carousel", "reels", "video", "short", "story"] | str,
    _OPEN,
]
"""The form of a post on a channel (interface, Resources: PostTarget). Other values are kept."""
TargetStatus: TypeAlias = Annotated[
    Literal["pending", "queued", "publishing", "published", "failed", "held", "skipped"] | str,
    _OPEN,
]
"""The state of a post on one channel (interface, States). Other values are kept as text."""
PostMode: TypeAlias = Literal["draft", "schedule", "now", "queue"]
"""What the service does with a post it receives (interface, Resources: Post input)."""
MediaKind: TypeAlias = Annotated[Literal["image", "video"] | str, _OPEN]
"""The kind of a file (interface, Resources: Media). Other values are kept as text."""
MediaStatus: TypeAlias = Annotated[Literal["uploading", "ready", "failed"] | str, _OPEN]
"""The state of an upload (interface, States). Other values are kept as text."""
CommentStatus: TypeAlias = Annotated[Literal["open", "assigned", "done"] | str, _OPEN]
"""The state of a comment (interface, States). Other values are kept as text."""
ErrorKind: TypeAlias = Annotated[
    Literal["validation", "permission", "not_found", "conflict", "limit", "platform", "internal"]
    | str,
    _OPEN,
]
"""The kind of an error, which says whether a retry can help (interface, Errors)."""


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass

    # Type checkers do not read `frozen` from a model's configuration. A user's class may narrow a
    # field, such as `type: Literal["ad.published"]`, only if type checkers see that fields are
    # frozen.
    @dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
    class _Frozen(ModelMetaclass): ...
else:
    _Frozen = type(BaseModel)


class Resource(BaseModel, metaclass=_Frozen):
    """A frozen model that keeps unknown fields (interface, Versioning: "parse tolerantly").

    It reads both spellings of a field, `created_at` and `createdAt`. `model_dump_json()` writes
    `createdAt`.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True,
        extra="allow",
        # Pydantic's JSON parser accepts NaN, and every comparison with NaN is false.
        allow_inf_nan=False,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        hide_input_in_errors=True,  # secrets and people's texts stay out of messages and logs
    )


class Workspace(Resource):
    """The workspace a key belongs to (interface, Resources: Workspace, key, limits)."""

    id: str
    slug: str
    name: str
    timezone: str
    plan: Plan


class ApiKey(Resource):
    """An API key without its text (interface, Resources: Workspace, key, limits)."""

    id: str
    name: str
    prefix: str
    role: KeyRole


class RequestLimits(Resource):
    """The daily quota of the workspace (interface, Resources: Workspace, key, limits)."""

    requests_per_day: int


class Me(Resource):
    """A key and its workspace, from `GET /v1/me` (interface, Resources: Workspace, key, limits)."""

    workspace: Workspace
    key: ApiKey
    limits: RequestLimits
    # Added within v1, so it is optional. The interface does not show its shape.
    features: dict[str, JsonValue] = Field(default_factory=dict)


class ChannelRef(Resource):
    """A channel, as a list of posts shows it (interface, Resources: Post (list item))."""

    id: str
    platform: Platform
    username: str


class Channel(Resource):
    """A connected social account (interface, Resources: Channel)."""

    id: str
    platform: Platform
    username: str
    display_name: str
    avatar_url: str | None = None
    status: ChannelStatus
    status_reason: str | None = None
    follower_count: int | None = None
    connected_at: Instant | None = None


class PostListItem(Resource):
    """A post in a list (interface, Resources: Post (list item))."""

    id: str
    title: str | None = None
    status: PostStatus
    caption: str
    scheduled_at: Instant | None = None
    published_at: Instant | None = None
    created_at: Instant
    channels: list[ChannelRef]


class TargetError(Resource):
    """The error of a failed publication to one channel (interface, Resources: PostTarget)."""

    code: str
    message: str | None = None


class PostTarget(Resource):
    """A post on one channel, with its state there (interface, Resources: PostTarget)."""

    id: str
    channel_id: str
    platform: Platform
    username: str
    content_type: ContentType
    caption: str | None = None
    media_ids: list[str]
    first_comment: str | None = None
    settings: dict[str, JsonValue]
    status: TargetStatus
    external_post_id: str | None = None
    permalink: str | None = None
    error: TargetError | None = None
    published_at: Instant | None = None


class Post(Resource):
    """A post with its targets (interface, Resources: Post (single))."""

    id: str
    title: str | None = None
    status: PostStatus
    caption: str
    media_ids: list[str]
    scheduled_at: Instant | None = None
    published_at: Instant | None = None
    created_at: Instant
    targets: list[PostTarget]


class _Input(Resource):
    """A request body; a field that is None is not sent.

    Leaving a field out means the same as null, and the interface allows null for few fields.
    """

    @model_serializer(mode="wrap")
    def _leave_out_none(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        unknown = self.model_extra or {}
        return {k: v for k, v in write(self).items() if v is not None or k in unknown}


class PostTargetInput(_Input):
    """One channel for a new post (interface, Resources: Post input, Target input item)."""

    channel_id: str | None = None
    social_account_id: str | None = None  # old name of channel_id
    content_type: ContentType | None = None
    caption: str | None = None
    media_ids: list[str] | None = Field(default=None, max_length=35)
    first_comment: str | None = Field(default=None, max_length=2200)
    settings: dict[str, JsonValue] | None = None

    @model_validator(mode="after")
    def _names_a_channel(self) -> Self:
        if self.channel_id is None and self.social_account_id is None:
            raise PydanticCustomError("missing", "channelId is required")
        return self


class PostInput(_Input):
    """The body to create, replace or validate a post (interface, Resources: Post input)."""

    title: str | None = Field(default=None, max_length=120)
    caption: str | None = Field(default=None, max_length=63206)
    base_caption: str | None = Field(default=None, max_length=63206)  # old name of caption
    media_ids: list[str] | None = Field(default=None, max_length=35)
    base_media_ids: list[str] | None = Field(default=None, max_length=35)  # old name of media_ids
    targets: list[PostTargetInput] = Field(min_length=1)
    scheduled_at: AbsoluteInstant | None = None  # a value without an offset is refused
    mode: PostMode = "draft"  # a closed enum, because we only write this value and never read it

    @model_validator(mode="after")
    def _schedule_has_a_time(self) -> Self:
        if self.mode == "schedule" and self.scheduled_at is None:
            # The service refuses this body with the same code (interface, Errors).
            raise PydanticCustomError(
                "post.schedule_required", "scheduledAt is required when mode is schedule"
            )
        return self


class UploadInput(_Input):
    """The body to start an upload (interface, Endpoints: Media)."""

    filename: str = Field(max_length=255)
    mime: str
    size: int = Field(ge=1)  # in bytes
    folder_id: str | None = None


class Upload(Resource):
    """A URL with headers, to send a file's bytes once (interface, Endpoints: Media)."""

    media_id: str
    # Hidden from the repr: URL and headers together allow anybody to write to the storage.
    upload_url: str = Field(repr=False)
    headers: dict[str, str] = Field(repr=False)
    method: Literal["PUT", "POST"]
    url: str  # public address of the file after the upload


class UploadCompletion(_Input):
    """The body to complete an upload (interface, Endpoints: Media)."""

    width: int | None = Field(default=None, ge=1)
    height: int | None = Field(default=None, ge=1)
    duration_ms: int | None = Field(default=None, ge=0)  # videos only


class Media(Resource):
    """An uploaded image or video (interface, Resources: Media)."""

    id: str
    filename: str
    url: str
    kind: MediaKind
    mime: str
    size: int
    width: int | None = None
    height: int | None = None
    duration_ms: int | None = None
    status: MediaStatus
    created_at: Instant | None = None


class Comment(Resource):
    """A comment by someone else on a post (interface, Resources: Comment)."""

    id: str
    text: str
    status: CommentStatus
    is_hidden: bool
    channel_id: str
    platform: Platform
    external_post_id: str | None = None
    author_username: str | None = None
    author_name: str | None = None
    created_at: Instant | None = None


class ReplyInput(_Input):
    """The body to answer a comment (interface, Endpoints: Comments)."""

    text: str = Field(min_length=1, max_length=2200)


class RepliedComment(Resource):
    """A comment that was answered (interface, Endpoints: Comments)."""

    id: str
    status: CommentStatus


class ReceivedComment(Comment):
    """The comment of a `comment.received` event (interface, Resources: Comment)."""

    post_id: str | None = None
    parent_id: str | None = None


class Message(Resource):
    """A direct message or a story reply (interface, Events: Event types).

    `kind` says which. The interface shows neither its values nor any other field; other fields are
    kept in `model_extra`.
    """

    kind: str


class ReceivedMessage(Resource):
    """The data of a `message.received` event (interface, Events: Event types)."""

    message: Message


class WebhookInput(_Input):
    """The body to register an endpoint (interface, Endpoints: Webhooks)."""

    url: str
    events: list[str]
    description: str | None = None


class WebhookChange(_Input):
    """The body to change an endpoint; None leaves a field as it is (Endpoints: Webhooks)."""

    url: str | None = None
    events: list[str] | None = None
    description: str | None = None
    enabled: bool | None = None  # True enables a disabled endpoint again


class WebhookEndpoint(Resource):
    """A registered receiver of events (interface, Resources: Webhook endpoint)."""

    id: str
    url: str
    description: str
    events: list[str]
    status: str
    disabled_reason: str | None = None  # None before it is disabled
    secret_prefix: str
    consecutive_failures: int
    last_success_at: Instant | None = None  # None before the first success
    last_failure_at: Instant | None = None  # None before the first failure
    created_at: Instant
    # Present only in the answers to creation and to secret rotation.
    secret: str | None = Field(default=None, repr=False)


class WebhookDelivery(Resource):
    """One entry of an endpoint's delivery log (interface, Resources: Webhook delivery)."""

    id: str
    event_id: str
    event_type: str
    status: str
    attempts: int
    response_status: int | None = None  # None before the receiver's first answer
    error_message: str | None = None  # None unless an attempt failed
    duration_ms: int | None = None  # None before the first attempt
    is_test: bool
    created_at: Instant
    delivered_at: Instant | None = None  # None before a success
    next_attempt_at: Instant | None = None  # None if no attempt follows


class ValidationIssue(Resource):
    """A problem of one target (interface, Resources: Validation result)."""

    level: str
    code: str
    field: str
    message: str


class TargetValidation(Resource):
    """The validation of one target of a post (interface, Resources: Validation result)."""

    channel_id: str
    platform: Platform
    ok: bool
    issues: list[ValidationIssue]


class Blocker(Resource):
    """A reason to refuse the whole post (interface, Resources: Validation result)."""

    code: str
    message: str
    hint: str | None = None  # the interface does not show whether this field may be missing


class PublishWarning(Resource):
    """A problem that does not stop the post (interface, Resources: Validation result)."""

    channel_id: str
    platform: Platform
    code: str
    field: str | None = None  # the interface does not show whether this field may be missing
    message: str
    hint: str | None = None  # the interface does not show whether this field may be missing


class ValidationResult(Resource):
    """The answer to validating a post (interface, Resources: Validation result)."""

    ok: bool
    mode: Annotated[PostMode | str, _OPEN]
    scheduled_at: Instant | None = None  # None for a draft
    x_credits: int
    targets: list[TargetValidation]
    blockers: list[Blocker]
    warnings: list[PublishWarning]


class SavedPost(Resource):
    """The answer to creating or replacing a post (interface, Endpoints: Posts)."""

    id: str
    status: PostStatus
    scheduled_at: Instant | None = None
    warnings: list[PublishWarning] = Field(default_factory=list)


class DeletedPost(Resource):
    """The answer to deleting a post (interface, Endpoints: Posts)."""

    id: str
    deleted: bool


class PublishedPost(Resource):
    """The answer to publishing a post, before any platform answers (Endpoints: Posts)."""

    id: str
    status: PostStatus


class ErrorBody(Resource):
    """An error of the service: branch on `code`, never on `message` (interface, Errors)."""

    code: str
    kind: ErrorKind
    message: str
    hint: str | None = None  # advice on what to do next
    details: JsonValue = None  # their shape depends on the code


class ErrorResponse(Resource):
    """The body of every failed request (interface, Errors)."""

    error: ErrorBody


class Page(Resource, Generic[DataT]):
    """One page of a collection, e.g. `Page[Comment]` (interface, Endpoints: Pagination).

    `next_cursor` asks for the next page; it is None on the last page.
    """

    data: list[DataT]
    next_cursor: str | None = None
