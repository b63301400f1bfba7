"""Every documented operation, its request and its answer, as the interface writes them.

The requests and answers are written by hand from the part Endpoints of the interface.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from support.scripted_api import ScriptedApi

from hookonce.client import Client
from hookonce.resources import PostInput, PostTargetInput

pytestmark = [pytest.mark.anyio, pytest.mark.sample(18, of="file")]

POST = {
    "title": None,
    "caption": "Hello",
    "mediaIds": ["med_1"],
    "targets": [{"channelId": "ch_1", "contentType": "feed", "settings": {"privacy": "public"}}],
    "scheduledAt": "2026-08-01T09:00:00.000Z",
    "mode": "schedule",
}
INPUT = PostInput(
    caption="Hello",
    media_ids=["med_1"],
    targets=[
        PostTargetInput(channel_id="ch_1", content_type="feed", settings={"privacy": "public"})
    ],
    scheduled_at=datetime(2026, 8, 1, 9, tzinfo=UTC),
    mode="schedule",
)
SENT_POST = {name: value for name, value in POST.items() if value is not None}
SAVED = {"id": "post_1", "status": "scheduled", "scheduledAt": POST["scheduledAt"], "warnings": []}
TARGET: dict[str, Any] = {
    "id": "tgt_1",
    "channelId": "ch_1",
    "platform": "instagram",
    "username": "us",
    "contentType": "feed",
    "caption": None,
    "mediaIds": [],
    "firstComment": None,
    "settings": {},
    "status": "failed",
    "externalPostId": None,
    "permalink": None,
    "error": {"code": "platform.rejected", "message": None},
    "publishedAt": None,
}
SINGLE_POST = {
    "id": "post_1",
    "title": None,
    "status": "failed",
    "caption": "Hello",
    "mediaIds": [],
    "scheduledAt": None,
    "publishedAt": None,
    "createdAt": "2026-07-01T09:00:00.000Z",
    "targets": [TARGET],
}
MEDIA = {
    "id": "med_1",
    "filename": "a.png",
    "url": "https://cdn.example.com/a.png",
    "kind": "image",
    "mime": "image/png",
    "size": 10,
    "width": None,
    "height": None,
    "durationMs": None,
    "status": "ready",
    "createdAt": None,
}
ENDPOINT = {
    "id": "wh_1",
    "url": "https://hooks.example.com/",
    "description": "",
    "events": ["comment.received"],
    "status": "active",
    "secretPrefix": "whsec_AB",
    "consecutiveFailures": 0,
    "createdAt": "2026-07-01T09:00:00.000Z",
}
ME = {
    "workspace": {
        "id": "ws_1",
        "slug": "us",
        "name": "Us",
        "timezone": "Europe/Vienna",
        "plan": "pro",
    },
    "key": {"id": "key_1", "name": "ours", "prefix": "example_sk_0123", "role": "admin"},
    "limits": {"requestsPerDay": 10000},
    "features": {},
}


class Case(NamedTuple):
    call: Callable[[Client], Awaitable[Any]]
    method: str
    path: str
    sent: Any
    status: int
    data: Any


CASES = {
    "me": Case(lambda c: c.me(), "GET", "/v1/me", None, 200, ME),
    "post create": Case(
        lambda c: c.posts.create(INPUT), "POST", "/v1/posts", SENT_POST, 201, SAVED
    ),
    "post validate": Case(
        lambda c: c.posts.validate(POST),
        "POST",
        "/v1/posts/validate",
        SENT_POST,
        200,
        {
            "ok": True,
            "mode": "schedule",
            "scheduledAt": POST["scheduledAt"],
            "xCredits": 0,
            "targets": [],
            "blockers": [],
            "warnings": [],
        },
    ),
    "post read": Case(
        lambda c: c.posts.get("post_1"), "GET", "/v1/posts/post_1", None, 200, SINGLE_POST
    ),
    "post replace": Case(
        lambda c: c.posts.replace("post_1", INPUT),
        "PATCH",
        "/v1/posts/post_1",
        SENT_POST,
        200,
        SAVED,
    ),
    "post delete": Case(
        lambda c: c.posts.delete("post_1"),
        "DELETE",
        "/v1/posts/post_1",
        None,
        200,
        {"id": "post_1", "deleted": True},
    ),
    "post publish": Case(
        lambda c: c.posts.publish("post_1"),
        "POST",
        "/v1/posts/post_1/publish",
        None,
        200,
        {"id": "post_1", "status": "publishing"},
    ),
    "upload start": Case(
        lambda c: c.media.start_upload("a.png", "image/png", 10, folder_id="fld_1"),
        "POST",
        "/v1/media/uploads",
        {"filename": "a.png", "mime": "image/png", "size": 10, "folderId": "fld_1"},
        201,
        {
            "mediaId": "med_1",
            "uploadUrl": "https://storage.example.com/a?signature=abc",
            "method": "PUT",
            "headers": {"content-type": "image/png"},
            "url": MEDIA["url"],
        },
    ),
    "upload complete": Case(
        lambda c: c.media.complete("med_1", width=4, height=3),
        "POST",
        "/v1/media/med_1/complete",
        {"width": 4, "height": 3},
        200,
        MEDIA,
    ),
    "upload complete without dimensions": Case(
        lambda c: c.media.complete("med_1"), "POST", "/v1/media/med_1/complete", None, 200, MEDIA
    ),
    "comment reply": Case(
        lambda c: c.comments.reply("cmt_1", "Thanks!"),
        "POST",
        "/v1/comments/cmt_1/reply",
        {"text": "Thanks!"},
        200,
        {"id": "cmt_1", "status": "done"},
    ),
    "webhook create": Case(
        lambda c: c.webhooks.create(str(ENDPOINT["url"]), ["comment.received"], description="d"),
        "POST",
        "/v1/webhooks",
        {"url": ENDPOINT["url"], "events": ["comment.received"], "description": "d"},
        201,
        ENDPOINT | {"secret": "whsec_ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFG"},
    ),
    "webhook change": Case(
        lambda c: c.webhooks.update("wh_1", events=["channel.unhealthy"]),
        "PATCH",
        "/v1/webhooks/wh_1",
        {"events": ["channel.unhealthy"]},
        200,
        ENDPOINT,
    ),
    "webhook enable": Case(
        lambda c: c.webhooks.enable("wh_1"),
        "PATCH",
        "/v1/webhooks/wh_1",
        {"enabled": True},
        200,
        ENDPOINT,
    ),
    "webhook disable": Case(
        lambda c: c.webhooks.disable("wh_1"),
        "PATCH",
        "/v1/webhooks/wh_1",
        {"enabled": False},
        200,
        ENDPOINT,
    ),
    "webhook rotate": Case(
        lambda c: c.webhooks.rotate_secret("wh_1"),
        "POST",
        "/v1/webhooks/wh_1/rotate-secret",
        None,
        200,
        ENDPOINT | {"secret": "whsec_ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFG"},
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_each_operation_sends_and_reads_the_documented_json(
    client: Client, api: ScriptedApi, name: str
) -> None:
    case = CASES[name]
    api.say(case.status, {"data": case.data, "addedTomorrow": 1})
    result = await case.call(client)
    [asked] = api.asked
    assert (asked.method, asked.target) == (case.method, case.path)
    assert asked.headers["authorization"] == "Bearer example_sk_0123456789abcdef"
    assert (asked.json if asked.body else None) == case.sent
    assert result.model_dump(mode="json", exclude_unset=True) == case.data


async def test_the_test_operation_gives_whatever_json_its_answer_has(
    client: Client, api: ScriptedApi
) -> None:
    for answer in ({"data": {"anything": [1]}}, {}):
        api.say(200, answer)
    assert await client.webhooks.test("wh_1") == {"anything": [1]}
    assert await client.webhooks.test("wh_1") is None
    assert {(asked.method, asked.target) for asked in api.asked} == {
        ("POST", "/v1/webhooks/wh_1/test")
    }


LIST_ITEM = {
    "id": "post_1",
    "title": None,
    "status": "failed",
    "caption": "Hello",
    "scheduledAt": None,
    "publishedAt": None,
    "createdAt": "2026-07-01T09:00:00.000Z",
    "channels": [{"id": "ch_1", "platform": "x", "username": "us"}],
}
CHANNEL = {
    "id": "ch_1",
    "platform": "x",
    "username": "us",
    "displayName": "Us",
    "avatarUrl": None,
    "status": "active",
    "statusReason": None,
    "followerCount": None,
    "connectedAt": None,
}
COMMENT = {
    "id": "cmt_1",
    "text": "Nice",
    "status": "open",
    "isHidden": False,
    "channelId": "ch_1",
    "platform": "x",
    "externalPostId": None,
    "authorUsername": None,
    "authorName": None,
    "createdAt": None,
}
DELIVERY = {
    "id": "dlv_1",
    "eventId": "evt_1",
    "eventType": "comment.received",
    "status": "pending",
    "attempts": 1,
    "isTest": False,
    "createdAt": "2026-07-01T09:00:00.000Z",
}

LISTS: dict[str, tuple[Callable[[Client], Any], str, dict[str, str], dict[str, Any]]] = {
    "channels": (
        lambda c: c.channels.list(include_disconnected=True),
        "/v1/channels",
        {"includeDisconnected": "true"},
        CHANNEL,
    ),
    "connected channels": (lambda c: c.channels.list(), "/v1/channels", {}, CHANNEL),
    "posts": (
        lambda c: c.posts.list(
            status="failed", channels=["ch_1", "ch_2"], q="a b", sort="s", from_="f", to="t"
        ),
        "/v1/posts",
        {
            "status": "failed",
            "channels": "ch_1,ch_2",
            "q": "a b",
            "sort": "s",
            "from": "f",
            "to": "t",
            "limit": "100",
        },
        LIST_ITEM,
    ),
    "media": (
        lambda c: c.media.list(kind="video", page_size=7),
        "/v1/media",
        {"type": "video", "limit": "7"},
        MEDIA,
    ),
    "comments": (
        lambda c: c.comments.list(status="open", channels=["ch_1"], q="é&", post_id="post_1"),
        "/v1/comments",
        {"status": "open", "channels": "ch_1", "q": "é&", "postId": "post_1", "limit": "100"},
        COMMENT,
    ),
    "deliveries": (
        lambda c: c.webhooks.deliveries("wh_1"),
        "/v1/webhooks/wh_1/deliveries",
        {"limit": "100"},
        DELIVERY,
    ),
}


@pytest.mark.parametrize("name", LISTS)
async def test_a_list_sends_its_filters_and_reads_every_page(
    client: Client, api: ScriptedApi, name: str
) -> None:
    call, path, query, item = LISTS[name]
    second = item | {"id": "second"}
    api.say(200, {"data": [item], "nextCursor": "2026-07-01T09:00:00.000Z"})
    api.say(200, {"data": [second], "nextCursor": None})
    found = [one.model_dump(mode="json", exclude_unset=True) async for one in call(client)]
    assert found == [item, second]
    first, later = api.asked
    assert (first.method, first.path, first.query) == ("GET", path, query)
    assert (later.path, later.query) == (path, {**query, "cursor": "2026-07-01T09:00:00.000Z"})


async def test_a_list_asks_for_no_page_that_nobody_reads(client: Client, api: ScriptedApi) -> None:
    api.say(200, {"data": [COMMENT, COMMENT], "nextCursor": "cmt_1"})
    async for _ in client.comments.list():
        break
    assert len(api.asked) == 1


async def test_pages_continue_from_a_saved_cursor(client: Client, api: ScriptedApi) -> None:
    api.say(200, {"data": [COMMENT], "nextCursor": None})
    pages = [page async for page in client.comments.list().pages("cmt_9")]
    assert [page.next_cursor for page in pages] == [None]
    assert api.asked[0].query["cursor"] == "cmt_9"


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/", "/social", "/social/v1"])
async def test_the_address_may_be_given_with_the_version(end: str, api: ScriptedApi) -> None:
    api.say(200, {"data": ME})
    async with Client(api.url + end, "example_sk_0123456789abcdef") as client:
        await client.me()
    assert api.asked[0].target == ("/social/v1/me" if "social" in end else "/v1/me")


async def test_an_id_stays_one_part_of_the_path(client: Client, api: ScriptedApi) -> None:
    api.say(200, {"data": SINGLE_POST})
    await client.posts.get("a/../b?c=d#e")
    assert api.asked[0].target == "/v1/posts/a%2F..%2Fb%3Fc%3Dd%23e"
    for refused in ("", ".", ".."):
        with pytest.raises(ValueError, match="an id is text"):
            await client.posts.get(refused)
    assert len(api.asked) == 1


async def test_old_names_are_sent_under_the_new_ones_with_a_warning_at_the_call(
    client: Client, api: ScriptedApi
) -> None:
    api.say(201, {"data": SAVED})
    old = {
        "baseCaption": "Hello",
        "baseMediaIds": ["med_1"],
        "targets": [{"socialAccountId": "ch_1"}],
    }
    with pytest.warns(DeprecationWarning, match="is deprecated; use") as warned:
        await client.posts.create(old)
    assert api.asked[0].json == {
        "caption": "Hello",
        "mediaIds": ["med_1"],
        "targets": [{"channelId": "ch_1"}],
        "mode": "draft",
    }
    assert {str(one.message).partition(";")[0] for one in warned} == {
        "base_caption is deprecated",
        "base_media_ids is deprecated",
        "social_account_id is deprecated",
    }
    assert {one.filename for one in warned} == {__file__}


async def test_an_old_name_that_contradicts_the_new_one_is_refused(
    client: Client, api: ScriptedApi
) -> None:
    post = PostInput(
        base_caption="old", caption="new", targets=[PostTargetInput(channel_id="ch_1")]
    )
    with pytest.raises(ValueError, match="base_caption is the old name of caption"):
        await client.posts.create(post)
    assert api.asked == []


async def test_a_change_that_changes_nothing_is_refused(client: Client) -> None:
    with pytest.raises(ValueError, match="say what to change"):
        await client.webhooks.update("wh_1")


async def test_an_endpoint_is_read_by_a_change_that_names_nothing(
    client: Client, api: ScriptedApi
) -> None:
    api.say(200, {"data": ENDPOINT})
    api.refuse(422, "validation.failed", "validation")
    read = await client.webhooks.read("wh_1")
    assert read is not None
    assert read.status == "active"
    assert await client.webhooks.read("wh_1") is None
    assert [(asked.method, asked.target, asked.json) for asked in api.asked] == [
        ("PATCH", "/v1/webhooks/wh_1", {})
    ] * 2
