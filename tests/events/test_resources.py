"""The models match the interface field for field, and keep everything they read."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from hookonce import resources
from hookonce.resources import Comment, Page, PostInput, ReceivedComment, Resource, WebhookEndpoint

# The interface's tables in its own words. A field marked "or null" may be null or absent. A field
# marked "may be absent" does not exist yet, or is optional in an input. Every other field is always
# present.
TABLES = {
    "Workspace": "id: string; slug: string; name: string; timezone: string; plan: Plan",
    "ApiKey": "id: string; name: string; prefix: string; role: KeyRole",
    "RequestLimits": "requestsPerDay: integer",
    "ChannelRef": "id: string; platform: Platform; username: string",
    "Channel": """
        id: string; platform: Platform; username: string; displayName: string;
        avatarUrl: string or null; status: ChannelStatus; statusReason: string or null;
        followerCount: integer or null; connectedAt: date-time or null
    """,
    "PostListItem": """
        id: string; title: string or null; status: PostStatus; caption: string;
        scheduledAt: date-time or null; publishedAt: date-time or null; createdAt: date-time;
        channels: array of ChannelRef
    """,
    "Post": """
        id: string; title: string or null; status: PostStatus; caption: string;
        mediaIds: array of string; scheduledAt: date-time or null;
        publishedAt: date-time or null; createdAt: date-time; targets: array of PostTarget
    """,
    "PostTarget": """
        id: string; channelId: string; platform: Platform; username: string;
        contentType: ContentType; caption: string or null; mediaIds: array of string;
        firstComment: string or null; settings: object; status: TargetStatus;
        externalPostId: string or null; permalink: string or null; error: TargetError or null;
        publishedAt: date-time or null
    """,
    "TargetError": "code: string; message: string or null",
    "PostInput": """
        title: string or null; caption: string may be absent;
        baseCaption: string may be absent; mediaIds: array of string may be absent;
        baseMediaIds: array of string may be absent; targets: array of PostTargetInput;
        scheduledAt: date-time or null
    """,
    "PostTargetInput": """
        socialAccountId: string may be absent; contentType: ContentType may be absent;
        caption: string or null; mediaIds: array of string may be absent;
        firstComment: string may be absent; settings: object may be absent
    """,
    "Media": """
        id: string; filename: string; url: string; kind: MediaKind; mime: string;
        size: integer; width: integer or null; height: integer or null;
        durationMs: integer or null; status: MediaStatus; createdAt: date-time or null
    """,
    "Comment": """
        id: string; text: string; status: CommentStatus; isHidden: boolean; channelId: string;
        platform: Platform; externalPostId: string or null; authorUsername: string or null;
        authorName: string or null; createdAt: date-time or null
    """,
    "ReceivedComment": """
        id: string; text: string; status: CommentStatus; isHidden: boolean; channelId: string;
        platform: Platform; externalPostId: string or null; authorUsername: string or null;
        authorName: string or null; createdAt: date-time or null; postId: string or null;
        parentId: string or null
    """,
    "Message": "kind: string",
    "ReceivedMessage": "message: Message",
    "WebhookEndpoint": """
        id: string; url: string; description: string; events: array of string; status: string;
        disabledReason: string may be absent; secretPrefix: string;
        consecutiveFailures: integer; lastSuccessAt: date-time may be absent;
        lastFailureAt: date-time may be absent; createdAt: date-time;
        secret: string may be absent
    """,
    "WebhookDelivery": """
        id: string; eventId: string; eventType: string; status: string; attempts: integer;
        responseStatus: integer may be absent; errorMessage: string may be absent;
        durationMs: integer may be absent; isTest: boolean; createdAt: date-time;
        deliveredAt: date-time may be absent; nextAttemptAt: date-time may be absent
    """,
    "ValidationResult": """
        ok: boolean; mode: AnyPostMode; scheduledAt: date-time may be absent;
        xCredits: integer; targets: array of TargetValidation; blockers: array of Blocker;
        warnings: array of PublishWarning
    """,
    "TargetValidation": """
        channelId: string; platform: Platform; ok: boolean; issues: array of ValidationIssue
    """,
    "ValidationIssue": "level: string; code: string; field: string; message: string",
    "Blocker": "code: string; message: string; hint: string may be absent",
    "PublishWarning": """
        channelId: string; platform: Platform; code: string; field: string may be absent;
        message: string; hint: string may be absent
    """,
    "SavedPost": "id: string; status: PostStatus; scheduledAt: date-time may be absent",
    "DeletedPost": "id: string; deleted: boolean",
    "PublishedPost": "id: string; status: PostStatus",
    "UploadInput": """
        filename: string; mime: string; size: integer; folderId: string may be absent
    """,
    "Upload": "mediaId: string; uploadUrl: string; url: string",
    "UploadCompletion": """
        width: integer may be absent; height: integer may be absent;
        durationMs: integer may be absent
    """,
    "ReplyInput": "text: string",
    "RepliedComment": "id: string; status: CommentStatus",
    "WebhookInput": "url: string; events: array of string; description: string may be absent",
    "WebhookChange": """
        url: string may be absent; events: array of string may be absent;
        description: string may be absent; enabled: boolean may be absent
    """,
    "ErrorBody": "code: string; kind: ErrorKind; message: string; hint: string may be absent",
    "ErrorResponse": "error: ErrorBody",
    "Me": "workspace: Workspace; key: ApiKey; limits: RequestLimits",
}

# Fields with a special rule for when they are present; each has its own test below.
SPECIAL: dict[str, dict[str, Any]] = {
    "Me": {"features": {"beta": {"on": [True, None]}}},
    "ErrorBody": {"details": {"validations": [{"x": 1}]}},
    "SavedPost": {"warnings": []},
    "PostInput": {"mode": "draft"},
    "Upload": {"method": "PUT", "headers": {"content-type": "image/png"}},
    "PostTargetInput": {"channelId": "ch_1"},
}

ENUMS = {
    "Plan": "free starter pro agency",
    "KeyRole": "viewer contributor editor admin",
    "Platform": "instagram facebook youtube threads tiktok linkedin x bluesky pinterest"
    " google_business shopee",
    "ChannelStatus": "active needs_reconnect disconnected error",
    "PostStatus": "draft pending_approval scheduled publishing published failed partial",
    "ContentType": "feed photo post text carousel reels video short story",
    "TargetStatus": "pending queued publishing published failed held skipped",
    "AnyPostMode": "draft schedule now queue",
    "MediaKind": "image video",
    "MediaStatus": "uploading ready failed",
    "CommentStatus": "open assigned done",
    "ErrorKind": "validation permission not_found conflict limit platform internal",
}


class Field(NamedTuple):
    """A row of the interface's field tables."""

    model: type[Resource]
    wire_name: str
    kind: str
    optional: bool

    @property
    def python_name(self) -> str:
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in self.wire_name)


def parse(model_name: str) -> list[Field]:
    fields = []
    for row in TABLES[model_name].split(";"):
        wire_name, _, kind = row.strip().partition(": ")
        required_kind = kind.removesuffix(" or null").removesuffix(" may be absent")
        model = getattr(resources, model_name)
        fields.append(Field(model, wire_name, required_kind, optional=required_kind != kind))
    return fields


def value_of(kind: str) -> Any:
    """Return a value that the service might send in a field of this kind."""
    if item := kind.removeprefix("array of ") if kind.startswith("array of ") else None:
        return [value_of(item)]
    if kind in TABLES:
        return full(kind)
    if kind in ENUMS:
        return ENUMS[kind].split()[-1]
    return {
        "string": "grüße \U0001f44b",
        "integer": 7,
        "boolean": True,
        "date-time": "2026-07-30T12:00:00.120Z",
        "object": {"privacy": "public", "tags": ["a", None]},
    }[kind]


def wrong_for(kind: str) -> Any:
    if kind in ENUMS or kind == "string":
        return 5
    return "no such thing"


def full(model_name: str) -> dict[str, Any]:
    """Return a resource with every field of its table, as the service would send it."""
    rows = {field.wire_name: value_of(field.kind) for field in parse(model_name)}
    return rows | SPECIAL.get(model_name, {})


ROWS = [field for name in TABLES for field in parse(name)]


def label(value: object) -> str | None:
    return f"{value.model.__name__}.{value.wire_name}" if isinstance(value, Field) else None


every_model = pytest.mark.parametrize("name", TABLES)
every_field = pytest.mark.parametrize("field", ROWS, ids=label)
every_enum_field = pytest.mark.parametrize(
    "field", [row for row in ROWS if row.kind in ENUMS], ids=label
)


def canonical(document: str | bytes) -> str:
    """Return a JSON text that is equal for equal documents, but different for 1 and 1.0."""
    return json.dumps(json.loads(document), sort_keys=True)


def errors(model: type[Resource], value: Any) -> list[tuple[str, tuple[int | str, ...]]]:
    with pytest.raises(ValidationError) as caught:
        model.model_validate_json(json.dumps(value))
    return [(error["type"], error["loc"]) for error in caught.value.errors()]


def test_every_resource_is_in_a_table_and_every_table_is_of_a_resource() -> None:
    models = {name for name in resources.__all__ if isinstance(getattr(resources, name), type)}
    assert models - {"Resource", "Page"} == set(TABLES)


@every_model
def test_every_resource_has_exactly_the_fields_of_the_interface(name: str) -> None:
    model: type[Resource] = getattr(resources, name)
    assert {field.alias for field in model.model_fields.values()} == set(full(name))


@every_model
def test_a_full_resource_is_written_back_as_it_was_sent(name: str) -> None:
    raw = json.dumps(full(name))
    resource = getattr(resources, name).model_validate_json(raw)
    assert canonical(resource.model_dump_json()) == canonical(raw)
    assert not resource.model_extra


@pytest.mark.sample(50)
@every_field
def test_a_field_has_its_snake_case_name_and_its_type_in_python(field: Field) -> None:
    resource = field.model.model_validate_json(json.dumps(full(field.model.__name__)))
    value = getattr(resource, field.python_name)
    sent = value_of(field.kind)
    if field.kind == "date-time":
        assert value == datetime(2026, 7, 30, 12, 0, 0, 120_000, tzinfo=UTC)
    elif field.kind in TABLES:
        assert type(value) is getattr(resources, field.kind)
    elif field.kind.startswith("array of ") and field.kind[9:] in TABLES:
        assert [type(item) for item in value] == [getattr(resources, field.kind[9:])]
    else:
        assert value == sent
        assert type(value) is type(sent)


@pytest.mark.sample(50)
@every_field
def test_a_value_of_another_type_is_an_error(field: Field) -> None:
    sent = full(field.model.__name__) | {field.wire_name: wrong_for(field.kind)}
    [(_, place)] = errors(field.model, sent)
    assert place == (field.wire_name,)


@pytest.mark.sample(50)
@every_field
def test_a_field_may_be_absent_or_null_exactly_where_the_interface_allows_it(field: Field) -> None:
    without = full(field.model.__name__)
    del without[field.wire_name]
    with_null = without | {field.wire_name: None}
    if field.optional:
        for sent in (without, with_null):
            resource = field.model.model_validate_json(json.dumps(sent))
            assert getattr(resource, field.python_name) is None
    else:
        assert errors(field.model, without) == [("missing", (field.wire_name,))]
        [(_, place)] = errors(field.model, with_null)
        assert place == (field.wire_name,)


@every_enum_field
def test_an_enum_field_offers_editors_the_values_of_the_interface(field: Field) -> None:
    def literals(annotation: Any) -> list[Any]:
        if get_origin(annotation) is Literal:
            return list(get_args(annotation))
        return [value for part in get_args(annotation) for value in literals(part)]

    annotation = field.model.model_fields[field.python_name].annotation
    assert literals(annotation) == ENUMS[field.kind].split()


@every_enum_field
def test_an_enum_value_the_interface_does_not_list_yet_is_kept(field: Field) -> None:
    sent = full(field.model.__name__) | {field.wire_name: "of-tomorrow"}
    resource = field.model.model_validate_json(json.dumps(sent))
    assert getattr(resource, field.python_name) == "of-tomorrow"
    assert json.loads(resource.model_dump_json()) == sent


@every_model
def test_unknown_fields_are_kept_at_every_depth_and_written_back(name: str) -> None:
    def add_unknown(value: Any) -> Any:
        if isinstance(value, list):
            return [add_unknown(item) for item in value]
        if isinstance(value, dict):
            news = {"newField": {"deepNumber": 1.0, "snake_too": None}, "snake_field": [2]}
            # An upload's headers get no unknown fields: the storage chooses them, and each must be
            # a string.
            return {k: v if k == "headers" else add_unknown(v) for k, v in value.items()} | news
        return value

    raw = json.dumps(add_unknown(full(name)))
    resource = getattr(resources, name).model_validate_json(raw)
    assert canonical(resource.model_dump_json()) == canonical(raw)
    assert resource.model_extra["newField"] == {"deepNumber": 1.0, "snake_too": None}


def test_a_resource_can_be_built_with_python_names_and_is_written_with_wire_names() -> None:
    reference = resources.TargetError(code="rate_limited")
    assert reference.model_dump_json() == '{"code":"rate_limited","message":null}'
    limits = resources.RequestLimits(requests_per_day=1000)
    assert limits.model_dump_json() == '{"requestsPerDay":1000}'
    assert limits.model_dump() == {"requestsPerDay": 1000}


def test_a_resource_cannot_be_changed() -> None:
    limits = resources.RequestLimits.model_validate({"requestsPerDay": 1000, "perHour": 50})
    for name in ("requests_per_day", "perHour"):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(limits, name, 1)


def test_the_features_of_a_key_are_an_open_object_that_older_answers_lack() -> None:
    answer = full("Me")
    assert resources.Me.model_validate(answer).features == {"beta": {"on": [True, None]}}
    del answer["features"]
    assert resources.Me.model_validate(answer).features == {}
    assert [place for _, place in errors(resources.Me, answer | {"features": []})] == [
        ("features",)
    ]


@pytest.mark.parametrize("details", [None, "text", 3, [1, {"a": None}], {"validations": []}])
def test_the_details_of_an_error_may_be_anything(details: Any) -> None:
    sent = full("ErrorBody") | {"details": details}
    body = resources.ErrorBody.model_validate_json(json.dumps(sent))
    assert body.details == details
    del sent["details"]
    assert resources.ErrorBody.model_validate_json(json.dumps(sent)).details is None


def test_a_page_holds_its_items_and_the_cursor_of_the_next_page() -> None:
    raw = json.dumps({"data": [full("Comment")], "nextCursor": "cmt_9", "total": 3})
    page = Page[Comment].model_validate_json(raw)
    assert type(page.data[0]) is Comment
    assert page.next_cursor == "cmt_9"
    assert canonical(page.model_dump_json()) == canonical(raw)


def test_a_page_without_a_cursor_is_the_last() -> None:
    assert Page[Comment].model_validate_json('{"data": [], "nextCursor": null}').next_cursor is None
    assert Page[Comment].model_validate_json('{"data": []}').next_cursor is None
    assert errors(Page[Comment], {"data": [{}]})[0] == ("missing", ("data", 0, "id"))
    assert errors(Page[Comment], {"nextCursor": None}) == [("missing", ("data",))]


def comment_at(created_at: Any) -> Comment:
    return Comment.model_validate_json(json.dumps(full("Comment") | {"createdAt": created_at}))


def written(comment: Comment) -> Any:
    return json.loads(comment.model_dump_json())["createdAt"]


NOON = datetime(2026, 7, 30, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("sent", "instant", "back"),
    [
        ("2026-07-30T12:00:00.000Z", NOON, "2026-07-30T12:00:00.000Z"),
        ("2026-07-30T12:00:00Z", NOON, "2026-07-30T12:00:00.000Z"),
        ("2026-07-30T12:00:00.5Z", NOON + timedelta(seconds=0.5), "2026-07-30T12:00:00.500Z"),
        ("2026-07-30T14:00:00+02:00", NOON, "2026-07-30T12:00:00.000Z"),
        ("2026-07-30T06:30:00-05:30", NOON, "2026-07-30T12:00:00.000Z"),
        ("2026-07-30T12:00:00", NOON, "2026-07-30T12:00:00.000Z"),
        (
            "2026-07-30T12:00:00.000001Z",
            NOON + timedelta(microseconds=1),
            "2026-07-30T12:00:00.000001Z",
        ),
        (
            "9999-12-31T23:59:59-01:00",
            datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-1))),
            "9999-12-31T23:59:59-01:00",
        ),
    ],
)
def test_an_instant_has_an_offset_and_is_written_as_the_service_writes_it(
    sent: str, instant: datetime, back: str
) -> None:
    comment = comment_at(sent)
    assert comment.created_at is not None
    assert comment.created_at.utcoffset() is not None
    assert comment.created_at == instant
    assert written(comment) == back


def test_a_naive_datetime_given_in_python_is_read_as_utc() -> None:
    naive = NOON.replace(tzinfo=None)
    comment = Comment.model_validate(full("Comment") | {"createdAt": naive})
    assert comment.created_at == NOON


def test_an_instant_stays_a_datetime_in_a_python_dump() -> None:
    assert comment_at("2026-07-30T12:00:00Z").model_dump()["createdAt"] == NOON


def test_an_instant_that_cannot_be_read_is_one_error_at_its_field() -> None:
    sent = full("Comment") | {"createdAt": "2026-02-30T12:00:00Z"}
    assert errors(Comment, sent) == [("instant", ("createdAt",))]


OFFSETS = st.timedeltas(timedelta(hours=-23, minutes=-59), timedelta(hours=23, minutes=59))


@given(
    st.datetimes(timezones=st.builds(timezone, OFFSETS.map(lambda d: d - d % timedelta(minutes=1))))
)
def test_an_instant_written_and_read_again_is_the_same_instant(instant: datetime) -> None:
    comment = Comment.model_validate(full("Comment") | {"createdAt": instant})
    assert Comment.model_validate_json(comment.model_dump_json()).created_at == instant


def post_input(**fields: Any) -> dict[str, Any]:
    return {"targets": [{"channelId": "ch_1"}]} | fields


def test_an_input_sends_only_what_it_was_given_and_its_mode() -> None:
    target = resources.PostTargetInput(channel_id="ch_1", media_ids=[])
    body = PostInput(caption="hi", targets=[target])
    assert json.loads(body.model_dump_json()) == {
        "caption": "hi",
        "targets": [{"channelId": "ch_1", "mediaIds": []}],
        "mode": "draft",
    }


def test_an_input_keeps_an_unknown_field_that_is_null() -> None:
    body = PostInput.model_validate(post_input(newOption=None))
    assert json.loads(body.model_dump_json())["newOption"] is None


@pytest.mark.parametrize(
    ("field", "unit", "limit"),
    [
        ("title", "é", 120),
        ("caption", "é", 63206),
        ("baseCaption", "é", 63206),
        ("mediaIds", ["m"], 35),
        ("baseMediaIds", ["m"], 35),
    ],
)
def test_a_post_input_is_accepted_up_to_each_limit_and_refused_beyond(
    field: str, unit: Any, limit: int
) -> None:
    at_limit = post_input(**{field: unit * limit})
    assert json.loads(PostInput.model_validate(at_limit).model_dump_json())[field] == unit * limit
    [(_, place)] = errors(PostInput, post_input(**{field: unit * (limit + 1)}))
    assert place == (field,)


@pytest.mark.parametrize(
    ("field", "unit", "limit"), [("firstComment", "é", 2200), ("mediaIds", ["m"], 35)]
)
def test_a_target_input_is_accepted_up_to_each_limit_and_refused_beyond(
    field: str, unit: Any, limit: int
) -> None:
    model = resources.PostTargetInput
    at_limit = {"channelId": "ch_1", field: unit * limit}
    assert json.loads(model.model_validate(at_limit).model_dump_json()) == at_limit
    [(_, place)] = errors(model, at_limit | {field: unit * (limit + 1)})
    assert place == (field,)


def test_a_post_input_needs_a_target() -> None:
    assert errors(PostInput, {"targets": []}) == [("too_short", ("targets",))]


def test_a_target_input_needs_a_channel_under_its_new_or_its_old_name() -> None:
    model = resources.PostTargetInput
    assert model.model_validate({"channelId": "ch_1"}).channel_id == "ch_1"
    assert model.model_validate({"socialAccountId": "ch_1"}).social_account_id == "ch_1"
    assert errors(model, {"caption": "hi"}) == [("missing", ())]


def test_the_mode_schedule_needs_an_instant() -> None:
    at = "2026-07-30T12:00:00.000Z"
    assert PostInput.model_validate(post_input(mode="schedule", scheduledAt=at)).scheduled_at
    for missing in (post_input(mode="schedule"), post_input(mode="schedule", scheduledAt=None)):
        assert errors(PostInput, missing) == [("post.schedule_required", ())]


@pytest.mark.parametrize("mode", ["draft", "now", "queue"])
def test_the_other_modes_need_no_instant(mode: str) -> None:
    assert PostInput.model_validate(post_input(mode=mode)).mode == mode


@pytest.mark.parametrize("mode", ["later", "", None])
def test_a_mode_that_the_service_does_not_know_is_never_sent(mode: str | None) -> None:
    assert errors(PostInput, post_input(mode=mode)) == [("literal_error", ("mode",))]


SECRET = "whsec_c2VjcmV0LW9mLXRoZS10ZXN0"


def test_an_endpoint_never_shows_its_secret() -> None:
    endpoint = WebhookEndpoint.model_validate(full("WebhookEndpoint") | {"secret": SECRET})
    assert endpoint.secret == SECRET
    for shown in (repr(endpoint), str(endpoint), repr(Page[WebhookEndpoint](data=[endpoint]))):
        assert "secret_prefix=" in shown
        assert SECRET not in shown


def test_an_error_message_never_shows_what_was_sent() -> None:
    with pytest.raises(ValidationError) as caught:
        WebhookEndpoint.model_validate({"secret": SECRET})
    assert "secretPrefix" in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"attempts": NaN}',
        b'{"attempts": Infinity}',
        b'{"attempts": 1e400}',
        b'{"createdAt": NaN}',
        b'{"createdAt": 1e400}',
        b'{"createdAt": 99999999999999999999999999}',
        b'{"other": ' + b"9" * 5_000 + b"}",
        b'{"other": ' + b"[" * 100_000,
        b'{"other": ' + b"[" * 300 + b"]" * 300 + b"}",
        b'{"other": ' + b'{"a":' * 100_000,
        b'{"id": "\xff"}',
        b'{"id": "\\ud800"}',
        b"",
        b"null",
        b"[]",
        b"\x00",
    ],
    ids=lambda raw: repr(raw[:30]),
)
def test_json_that_does_not_fit_a_resource_is_a_validation_error(raw: bytes) -> None:
    complete = json.dumps(full("WebhookDelivery"))[:-1].encode() + b", " + raw[1:]
    body = complete if raw[:1] == b"{" else raw
    with pytest.raises(ValidationError):
        resources.WebhookDelivery.model_validate_json(body)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)
OPTIONAL_TEXT = st.none() | st.text()
SERVICE_INSTANT = st.datetimes().map(lambda moment: moment.isoformat(timespec="milliseconds") + "Z")
DOCUMENTED = {
    name
    for python_name, field in ReceivedComment.model_fields.items()
    for name in (python_name, field.alias)
}
COMMENTS = st.fixed_dictionaries(
    {
        "id": st.text(),
        "text": st.text(),
        "status": st.text(),
        "isHidden": st.booleans(),
        "channelId": st.text(),
        "platform": st.text(),
    },
    optional={
        "externalPostId": OPTIONAL_TEXT,
        "authorUsername": OPTIONAL_TEXT,
        "authorName": OPTIONAL_TEXT,
        "createdAt": st.none() | SERVICE_INSTANT,
        "postId": OPTIONAL_TEXT,
        "parentId": OPTIONAL_TEXT,
    },
)
# Exclude both names of each documented field, because its value must have the documented type.
# Hypothesis takes texts from the source, so it may draw these names.
UNKNOWN = st.dictionaries(st.text().filter(lambda key: key not in DOCUMENTED), JSON)


@given(COMMENTS, UNKNOWN, st.booleans())
def test_a_comment_with_any_other_fields_is_written_back_as_it_came(
    known: dict[str, Any], unknown: dict[str, Any], ascii_only: bool
) -> None:
    raw = json.dumps(unknown | known, ensure_ascii=ascii_only)
    comment = ReceivedComment.model_validate_json(raw)
    assert canonical(comment.model_dump_json(exclude_unset=True)) == canonical(raw)


@settings(max_examples=20)  # examples may be large, and slow to build
@given(st.dictionaries(st.sampled_from(list(full("PostTarget"))) | st.text(), JSON))
def test_any_object_is_read_or_is_a_validation_error(anything: dict[str, Any]) -> None:
    raw = json.dumps(full("PostTarget") | anything)
    try:
        target = resources.PostTarget.model_validate_json(raw)
    except ValidationError:
        return
    assert json.loads(target.model_dump_json(exclude_unset=True)).keys() == json.loads(raw).keys()


def test_a_saved_post_without_warnings_has_none() -> None:
    saved = resources.SavedPost.model_validate_json('{"id": "post_1", "status": "draft"}')
    assert saved.warnings == []
