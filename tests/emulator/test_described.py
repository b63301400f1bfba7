"""Descriptions of workspaces: the service starts with their data, or refuses them."""

import json
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.exchanges import NOON
from support.service_api import calling
from support.workspaces import bakery

from hookonce import Receiver
from hookonce.emulator import EmulatedService, VirtualClock, WorkspaceData, workspace
from hookonce.emulator.described import DescribedDelay, DescribedFault, DescribedLimits
from hookonce.events import CommentReceived, Event
from hookonce.resources import KeyRole
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

CHANNEL = {"id": "ch_a", "platform": "threads", "username": "a"}


def described(**fields: Any) -> WorkspaceData:
    return WorkspaceData.model_validate({"channels": [CHANNEL], **fields})


def post(**fields: Any) -> dict[str, Any]:
    return {"id": "post_a", "targets": [{"channelId": "ch_a"}], **fields}


async def test_the_default_workspace_is_a_bakery_with_a_channel_on_every_platform() -> None:
    async with EmulatedService(clock=VirtualClock(NOON)) as service, calling(service) as api:
        me = (await api.get("/v1/me")).json()["data"]
        channels = (await api.get("/v1/channels")).json()["data"]
        posts = (await api.get("/v1/posts")).json()
    assert me["workspace"]["plan"] == "agency"
    assert me["workspace"]["id"] == service.workspace.id
    assert len({channel["platform"] for channel in channels}) == 11
    assert posts == {"data": [], "nextCursor": None}


def test_the_ending_of_a_file_determines_its_format(tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(json.dumps({"name": "A", "channels": [CHANNEL]}))
    channel = "{id: ch_a, platform: threads, username: a}"
    (tmp_path / "w.yaml").write_text(f"name: A\nchannels: [{channel}]")
    (tmp_path / "empty.yml").write_text("# nothing yet\n")
    assert WorkspaceData.load(tmp_path / "w.json") == WorkspaceData.load(tmp_path / "w.yaml")
    assert WorkspaceData.load(str(tmp_path / "empty.yml")) == WorkspaceData()


def test_an_unquoted_time_in_yaml_is_a_time_of_day(tmp_path: Path) -> None:
    """YAML 1.1 reads 17:30 as the number 1050, and 09:30 as text."""
    slots = "[{weekday: monday, time: 17:30}, {weekday: friday, time: 09:30}]"
    (tmp_path / "w.yaml").write_text(
        f"channels: [{{id: c, platform: x, username: a, slots: {slots}}}]"
    )
    data = WorkspaceData.load(tmp_path / "w.yaml")
    assert data.channels is not None
    assert [slot.time for slot in data.channels[0].slots] == [17 * 60 + 30, 9 * 60 + 30]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"plan": "premium"}, "plan"),
        ({"timezone": "Mars/Olympus"}, "there is no time zone 'Mars/Olympus'"),
        ({"channels": [CHANNEL | {"platform": "fax"}]}, "channels.0.platform"),
        ({"channels": [CHANNEL, CHANNEL]}, "two have the same id 'ch_a'"),
        ({"posts": [post(targets=[])]}, "posts.0.targets"),
        ({"posts": [post(targets=[{"channelId": "ch_b"}])]}, "there is no channel 'ch_b'"),
        ({"posts": [post(status="scheduled")]}, "a scheduled post has a scheduledAt"),
        ({"posts": [post(status="partial")]}, "make it scheduled, not partial"),
        ({"posts": [post(status="publishing")]}, "posts.0.status"),
        ({"comments": [{"id": "c", "text": "?", "channelId": "no"}]}, "there is no channel 'no'"),
        ({"media": [{"id": "m", "filename": "a", "mime": "a/b", "size": 1}]}, "media.0.mime"),
        ({"webhooks": [{"url": "http://a/", "events": ["webhook.test"]}]}, "webhooks.0.events"),
        ({"limits": {"xCredits": -1}}, "limits.xCredits"),
        ({"faults": [{"rate": 2}]}, "faults.0.rate"),
        ({"slow": [{"seconds": -1}]}, "slow.0.seconds"),
        ({"nothing": 1}, "nothing: Extra inputs are not permitted"),
    ],
    ids=str,
)
def test_a_contradictory_description_is_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    path = tmp_path / "w.json"
    path.write_text(json.dumps({"channels": [CHANNEL], **fields}))
    with pytest.raises(ValueError, match=re.escape(message)):
        WorkspaceData.load(path)


def test_a_channel_that_is_not_in_the_default_workspace_is_refused() -> None:
    for fields in (
        {"comments": [{"id": "c", "text": "?", "channelId": "ch_none"}]},
        {"posts": [post(targets=[{"channelId": "ch_none"}])]},
    ):
        data = WorkspaceData.model_validate(fields)
        with pytest.raises(ValueError, match="there is no channel 'ch_none'"):
            EmulatedService(data=data)


@pytest.mark.parametrize("role", ["viewer", "contributor", "editor", "admin"])
async def test_a_described_key_is_valid_until_it_expires(role: KeyRole) -> None:
    key = "example_sk_0123456789abcdef"
    data = described(keys=[{"key": key, "role": role, "expiresAt": "2026-11-21T12:01:00Z"}])
    service = EmulatedService(data=data, clock=VirtualClock(NOON))
    async with service, calling(service, key) as api:
        me = (await api.get("/v1/me")).json()["data"]["key"]
        assert (me["role"], me["prefix"]) == (role, "example_sk_0123")
        await service.advance(minutes=1)
        assert (await api.get("/v1/me")).status_code == 401
    assert key not in repr(data) + repr(service) + str(data)


def test_an_invalid_key_or_secret_is_refused_and_not_shown() -> None:
    for wrong in (
        {"keys": [{"key": "example_sk_short"[:15]}]},
        {"keys": [{"key": "other_sk_0123456789abcdef"}]},
        {"webhooks": [{"url": "http://127.0.0.1/", "secret": "whsec_no base64!"}]},
    ):
        with pytest.raises(ValueError, match=r"a key is example_sk_|not standard base64") as caught:
            EmulatedService(data=described(**wrong))
        assert "0123456789" not in str(caught.value)
        assert "no base64!" not in str(caught.value)


async def test_described_endpoints_receive_deliveries_signed_with_their_secrets() -> None:
    secret = new_secret()
    clock = VirtualClock(NOON)
    heard: list[Event[Any]] = []
    receiver = Receiver(secrets=secret, store="memory://", clock=clock)
    receiver.on(CommentReceived, name="heard")(heard.append)
    hooks = [{"id": "wh_a", "url": "https://receiver.test/webhooks", "secret": secret}]
    data = described(webhooks=hooks)
    # The receiver serves two endpoints: the described one, and another that the service registers
    # by itself. So emit to the described endpoint alone.
    async with EmulatedService(receiver, data=data, clock=clock) as service:
        await service.emit(CommentReceived, endpoint="wh_a")
    assert len(heard) == 1
    assert service.secret("wh_a") == secret


async def test_a_described_scheduled_post_is_published() -> None:
    """The service publishes only the Christmas post, no draft and no post awaiting approval."""
    async with bakery() as here:
        await here.service.advance(days=40)
        assert here.told() == [("post.target.published", "ch_insta")]
        assert (await here.states("post_xmas"))[0] == "published"


async def test_described_faults_happen_from_the_start() -> None:
    faults = [
        DescribedFault(channel_id="ch_tube", code="media.rejected", times=1),
        DescribedFault(code="platform.down"),
    ]
    slow = [DescribedDelay(channel_id="ch_insta", seconds=600)]
    async with bakery(faults=faults, slow=slow) as here:
        post = await here.create("now", "ch_tube", "ch_insta")
        await here.service.advance(minutes=1)
        targets = (await here.post(post))["targets"]
        assert [target["status"] for target in targets] == ["failed", "publishing"]
        await here.service.advance(minutes=10)
        errors = [target["error"]["code"] for target in (await here.post(post))["targets"]]
        assert errors == ["media.rejected", "platform.down"]


async def test_the_quota_of_the_first_day_can_be_described() -> None:
    """Interface, Limits, rule 2."""
    async with bakery(limits=DescribedLimits(requests_left=1)) as here:
        assert (await here.api.get("/v1/me")).headers["x-ratelimit-remaining"] == "0"
        assert (await here.api.get("/v1/me")).status_code == 429
        await here.service.advance(hours=12)
        assert (await here.api.get("/v1/me")).headers["x-ratelimit-remaining"] == "9999"


def test_a_fault_at_an_unknown_channel_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no channel 'ch_none'"):
        described(faults=[{"channelId": "ch_none"}])


async def test_posts_are_listed_by_the_time_of_their_creation() -> None:
    data = described(
        posts=[
            post(id="post_new", createdAt="2026-11-02T00:00:00Z"),
            post(id="post_old", createdAt="2026-11-01T00:00:00Z"),
            post(id="post_now"),
        ]
    )
    service = EmulatedService(data=data, clock=VirtualClock(NOON))
    async with service, calling(service) as api:
        listed = (await api.get("/v1/posts")).json()["data"]
    assert [one["id"] for one in listed] == ["post_now", "post_new", "post_old"]


async def test_a_post_deleted_between_two_pages_hides_no_other_post() -> None:
    """Interface, Pagination: "Cursors are the id of the last row"."""

    async def page(api: httpx2.AsyncClient, cursor: str | None = None) -> dict[str, Any]:
        query = {"limit": "2", **({} if cursor is None else {"cursor": cursor})}
        shown: dict[str, Any] = (await api.get("/v1/posts", params=query)).json()
        return shown

    async with bakery() as here:
        first = await page(here.api)
        await here.api.patch(
            "/v1/posts/post_waiting", json={"caption": "", "targets": [{"channelId": "ch_insta"}]}
        )
        last = (await page(here.api, "post_xmas"))["nextCursor"]
        assert last is None
        await here.api.delete("/v1/posts/post_xmas")
        second = await page(here.api, "post_xmas")
    assert first["nextCursor"] == "post_mixed"
    assert [one["id"] for one in second["data"]] == ["post_draft", "post_walnut"]


async def test_a_filtered_list_continues_after_a_post_whose_status_changed() -> None:
    async with bakery() as here:
        for _ in range(3):
            await here.create("draft")
        query = {"status": "draft", "limit": "1"}
        first = (await here.api.get("/v1/posts", params=query)).json()
        await here.api.post(f"/v1/posts/{first['nextCursor']}/publish")
        query["cursor"] = first["nextCursor"]
        query["limit"] = "10"
        rest = (await here.api.get("/v1/posts", params=query)).json()["data"]
    assert len(rest) == 3
    assert {one["status"] for one in rest} == {"draft"}


async def test_an_emitted_comment_can_be_listed_and_answered() -> None:
    """Interface, Events: comment.received, "a Comment plus postId and parentId"; Endpoints:
    Comments.
    """
    async with bakery() as here:
        data = {"id": "cmt_new", "channelId": "ch_insta", "postId": "post_walnut", "text": "Mmm"}
        await here.service.emit(CommentReceived, data={**data, "createdAt": "2026-11-21T11:59:00Z"})
        listed = (await here.api.get("/v1/comments", params={"limit": "1"})).json()["data"]
        assert [comment["id"] for comment in listed] == ["cmt_new"]
        assert {"postId", "parentId"}.isdisjoint(listed[0])
        reply = await here.api.post("/v1/comments/cmt_new/reply", json={"text": "Come by!"})
        assert reply.json() == {"data": {"id": "cmt_new", "status": "done"}}
        of_post = await here.api.get("/v1/comments", params={"postId": "post_walnut", "q": "mm"})
        assert [comment["status"] for comment in of_post.json()["data"]] == ["done"]


async def test_the_newest_of_many_comments_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "_COMMENTS_KEPT", 5)
    async with bakery() as here:
        for number in range(9):
            await here.service.emit(CommentReceived, data={"id": f"cmt_{number}"})
        listed = (await here.api.get("/v1/comments")).json()["data"]
    assert {comment["id"] for comment in listed} == {f"cmt_{number}" for number in range(4, 9)}


async def test_a_reply_on_an_inactive_channel_fails_with_kind_platform() -> None:
    """Interface, What the service does, rule 3: "an error of kind platform, not … a status to
    poll".
    """
    async with bakery() as here:
        await here.service.app.disconnect("ch_insta")
        response = await here.api.post("/v1/comments/cmt_saturday/reply", json={"text": "Yes"})
        assert response.status_code == 502
        assert response.json()["error"]["kind"] == "platform"
        listed = (await here.api.get("/v1/comments", params={"q": "walnut"})).json()["data"]
        assert listed[0]["status"] == "open"
