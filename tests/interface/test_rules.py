"""Rules of the interface that any operation can break: fields of errors, states, versions."""

from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import product
from typing import Any, get_args

import httpx2
import pytest
from support.service_api import calling, checked_error, create, wanted
from support.workspaces import Bakery, bakery, iso

from hookonce import VerificationError, verify
from hookonce.emulator import EmulatedService
from hookonce.emulator.operations import NOT_SHOWN, OPERATIONS
from hookonce.emulator.refusals import RefusedError
from hookonce.emulator.states import CHANNELS, TARGETS, Table, status_of
from hookonce.events import CommentReceived
from hookonce.http.app import Receive, Scope, Send
from hookonce.resources import (
    ChannelStatus,
    CommentStatus,
    ErrorKind,
    MediaStatus,
    PostStatus,
    TargetStatus,
)
from hookonce.testing import signed_request
from hookonce.verification.secrets import new_secret

pytestmark = pytest.mark.anyio

KINDS = {"validation", "permission", "not_found", "conflict", "limit", "platform", "internal"}


@pytest.fixture
async def here() -> AsyncIterator[Bakery]:
    async with bakery() as place:
        yield place


def listed(values: Any) -> set[str]:
    """Return the values of an open enum."""
    return set(get_args(get_args(get_args(values)[0])[0]))


async def refused(here: Bakery, status: int, code: str, method: str, path: str, **body: Any) -> Any:
    return checked_error(await here.api.request(method, path, **body), status, code)


def aimed(channel: str = "ch_insta", **target: Any) -> list[dict[str, Any]]:
    return [{"channelId": channel, **target}]


# The part "Errors"


async def test_an_error_has_the_documented_fields(here: Bakery) -> None:
    """Interface, Errors: "error.code"; "error.kind"; "error.message"; "error.hint";
    "error.details".
    """
    body = {"targets": aimed(), "mode": "schedule", "scheduledAt": iso(-60), "caption": "Rye."}
    errors = [
        await refused(here, 404, "post.not_found", "GET", "/v1/posts/nowhere"),
        await refused(here, 422, "post.schedule_in_past", "POST", "/v1/posts", json=body),
        await refused(here, 422, "validation.failed", "POST", "/v1/posts", json={}),
        await refused(here, 409, "post.published", "DELETE", "/v1/posts/post_walnut"),
        await refused(
            here, 401, "api.unauthorized", "GET", "/v1/me", headers={"authorization": "Bearer no"}
        ),
    ]
    assert [error["kind"] for error in errors] == [
        *("not_found", "validation", "validation", "conflict", "permission")
    ]
    assert all(error["message"].count(". ") == 0 for error in errors)
    hints = [error["hint"] for error in errors if "hint" in error]
    assert len(hints) >= 2
    assert all(hints)
    assert "issues" in errors[2]["details"]


def test_the_kind_of_an_error_is_one_of_seven() -> None:
    """Interface, Errors: "error.kind": the enum."""
    assert listed(ErrorKind) == KINDS


# The part "States and transitions"


@pytest.mark.parametrize(
    ("states", "table", "expected"),
    [
        (TargetStatus, TARGETS, "pending, queued, publishing, published, failed, held, skipped"),
        (ChannelStatus, CHANNELS, "active, needs_reconnect, disconnected, error"),
    ],
)
def test_a_resource_has_the_documented_states_and_its_steps_lead_to_no_others(
    states: Any, table: Table, expected: str
) -> None:
    """Interface, States: "Target: pending, queued, publishing, published, failed, held, skipped".

    "Channel: active, needs_reconnect, disconnected, error".
    """
    assert listed(states) == set(expected.split(", "))
    assert {state for state, _ in table} | set(table.values()) <= listed(states)


@pytest.mark.parametrize(
    ("states", "expected"),
    [(MediaStatus, "uploading, ready, failed"), (CommentStatus, "open, assigned, done")],
)
def test_media_and_comments_have_the_documented_states(states: Any, expected: str) -> None:
    """Interface, States: "Media: uploading, ready, failed"; "Comment: open, assigned, done"."""
    assert listed(states) == set(expected.split(", "))


def test_a_post_has_the_documented_states_and_its_targets_lead_to_no_others() -> None:
    """Interface, States: "Post: draft, pending_approval, scheduled, publishing, published, failed,
    partial".

    Their steps are tests of their own.
    """
    states = "draft, pending_approval, scheduled, publishing, published, failed, partial"
    assert listed(PostStatus) == set(states.split(", "))
    resting = ("draft", "pending_approval", "scheduled")
    reached = {
        status_of(targets, rest)
        for targets in product(listed(TargetStatus), repeat=3)
        for rest in resting
    }
    assert reached == listed(PostStatus)


# The parts "Limits" and "Authentication"


async def test_there_is_no_tool_server_so_every_operation_counts(here: Bakery) -> None:
    """Interface, Limits, rule 3: the tool server's initialize and tool-listing calls are no
    operations of `/v1`.
    """
    assert all(operation.path.startswith("/v1/") for operation in OPERATIONS)
    left = int((await here.api.get("/v1/me")).headers["x-ratelimit-remaining"])
    for number, operation in enumerate(OPERATIONS, start=1):
        response = await here.api.request(operation.method, operation.path)
        assert int(response.headers["x-ratelimit-remaining"]) == left - number


async def test_a_delivery_has_no_key_and_is_verified_by_its_signature() -> None:
    """Interface, Authentication 10: "Webhook requests are authenticated by signature"."""
    arrived: list[tuple[list[tuple[bytes, bytes]], bytes]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            arrived.append((list(scope["headers"]), (await receive())["body"]))
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body"})

    async with EmulatedService(app) as service:
        key = service.new_key()
        await service.emit(CommentReceived)
        [(headers, body)] = arrived
        names = {name.decode().lower() for name, _ in headers}
        assert not names & {"authorization", "x-api-key", "cookie"}
        assert key.encode() not in b"".join([body, *(value for _, value in headers)])
        verify(body, headers, service.secret(), now=service.now)
        for changed, secret in ((body + b" ", service.secret()), (body, new_secret())):
            with pytest.raises(VerificationError):
                verify(changed, headers, secret, now=service.now)
        forged = signed_request(body, new_secret())
        with pytest.raises(VerificationError):
            verify(body, forged.headers, service.secret())


# The part "Versioning"


@pytest.mark.parametrize("mode", ["draft", "schedule", "now", "queue"])
@pytest.mark.parametrize("value", [7, "everyone", ["public"]])
async def test_settings_of_a_wrong_value_are_refused(here: Bakery, mode: str, value: Any) -> None:
    """Interface, Versioning 4, the one exception; Versioning 6: wrong-type or out-of-range
    settings values.
    """
    targets = aimed("ch_tube", contentType="video", settings={"privacy": value})
    body = {"mode": mode, "targets": targets, "mediaIds": ["med_oven"], "scheduledAt": iso(3600)}
    await refused(here, 422, "validation.failed", "POST", "/v1/posts", json=body)


async def test_a_first_comment_on_a_platform_without_them_is_refused(here: Bakery) -> None:
    """Interface, Versioning 4; Versioning 6: firstComment on an unsupported platform."""
    body = {"targets": aimed("ch_tube", firstComment="First!"), "mediaIds": ["med_oven"]}
    await refused(here, 422, "first_comment.unsupported", "POST", "/v1/posts", json=body)


async def test_a_post_that_is_going_out_is_neither_edited_nor_deleted(here: Bakery) -> None:
    """Interface, Versioning 4; Versioning 6: editing or deleting a post that is going out."""
    path = f"/v1/posts/{await here.create('now')}"
    body = {"targets": aimed(), "caption": "Changed."}
    await refused(here, 409, "post.publishing", "PATCH", path, json=body)
    await refused(here, 409, "post.publishing", "DELETE", path)


async def test_a_post_awaiting_approval_is_neither_published_nor_rescheduled(
    here: Bakery,
) -> None:
    """Interface, Versioning 4; Versioning 6: publishing or rescheduling a post awaiting
    approval.
    """
    await refused(here, 409, "post.pending_approval", "POST", "/v1/posts/post_waiting/publish")
    with pytest.raises(RefusedError) as caught:
        here.service.app.reschedule("post_waiting", here.service.now + timedelta(minutes=1))
    assert (caught.value.status, caught.value.body.code) == (409, "post.pending_approval")


async def test_only_a_channel_that_failed_is_retried(here: Bakery) -> None:
    """Interface, Versioning 4; Versioning 6: retry only on failed channels."""
    post = await here.create("now")
    await here.service.advance(minutes=1)
    with pytest.raises(RefusedError) as caught:
        here.service.app.retry(post, "ch_insta")
    assert (caught.value.status, caught.value.body.code) == (409, "post.target_not_retryable")


async def test_a_contributors_scheduled_post_waits_for_approval(here: Bakery) -> None:
    """Interface, Versioning 4; Versioning 6: a contributor's scheduled post waits for approval."""
    body = {"targets": aimed(), "mode": "schedule", "scheduledAt": iso(60), "caption": "Rye."}
    body["mediaIds"] = ["med_bread"]
    response = await here.as_role("contributor", "POST", "/v1/posts", body)
    post = response.json()["data"]
    assert post["status"] == "pending_approval"
    await here.service.advance(hours=1)
    assert await here.states(post["id"]) == ("pending_approval", ["pending"])


async def test_a_draft_that_is_published_right_away_must_pass_every_check(here: Bakery) -> None:
    """Interface, Versioning 6: publishing a draft right away runs the same checks as scheduling."""
    draft = await here.create("draft", "ch_tube", mediaIds=[])
    published = await refused(here, 422, "validation.failed", "POST", f"/v1/posts/{draft}/publish")
    body = {"targets": aimed("ch_tube", caption="Hello."), "mode": "schedule"}
    scheduled = await refused(
        here,
        *(422, "validation.failed", "POST", "/v1/posts"),
        json={**body, "scheduledAt": iso(3600)},
    )
    assert published["details"]["validations"] == scheduled["details"]["validations"]


async def test_mode_schedule_without_a_time_is_refused(here: Bakery) -> None:
    """Interface, Versioning 6: mode schedule without scheduledAt answers post.schedule_required."""
    body = {"targets": aimed(), "mode": "schedule", "mediaIds": ["med_bread"]}
    await refused(here, 422, "post.schedule_required", "POST", "/v1/posts", json=body)


async def test_a_cursor_is_the_id_of_the_last_row_or_a_timestamp(here: Bakery) -> None:
    """Interface, Versioning 7: pagination cursors became the id of the last row; times still
    work.
    """
    page = (await here.api.get("/v1/posts", params={"limit": 1})).json()
    [first] = page["data"]
    assert page["nextCursor"] == first["id"]
    by_id = (await here.api.get("/v1/posts", params={"cursor": first["id"]})).json()["data"]
    by_time = (await here.api.get("/v1/posts", params={"cursor": first["createdAt"]})).json()
    assert first["id"] not in [post["id"] for post in by_id]
    assert by_time["data"] == by_id


async def test_the_list_of_media_has_only_finished_uploads(here: Bakery) -> None:
    """Interface, Versioning 7: list of media shows only finished uploads."""
    media = (await here.api.get("/v1/media")).json()["data"]
    assert {one["status"] for one in media} == {"ready"}
    assert "med_half" not in [one["id"] for one in media]


async def test_a_key_may_be_sent_in_x_api_key() -> None:
    """Interface, Versioning 7: the key may be sent in X-API-Key."""
    service = EmulatedService()
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(service.api),
        base_url="https://service.test",
        headers={"x-api-key": service.new_key()},
    ) as api:
        assert (await api.get("/v1/me")).status_code == 200


async def test_the_free_plan_has_a_key_and_no_access() -> None:
    """Interface, Versioning 7: the free plan's /v1 access answers 402 api.not_on_plan."""
    async with EmulatedService(plan="free") as service, calling(service) as api:
        for operation in OPERATIONS:
            response = await api.request(operation.method, operation.path)
            checked_error(response, 402, "api.not_on_plan")


async def test_the_quota_belongs_to_the_workspace_of_the_key() -> None:
    """Interface, Versioning 7: workspace keys and a daily quota per workspace."""
    async with (
        EmulatedService(plan="starter") as one,
        EmulatedService(plan="starter") as other,
        calling(one) as first,
        calling(one) as second,
        calling(other) as stranger,
    ):
        left = [
            int((await api.get("/v1/me")).headers["x-ratelimit-remaining"])
            for api in (first, second, stranger)
        ]
        assert left == [999, 998, 999]
        ids = [
            (await api.get("/v1/me")).json()["data"]["workspace"]["id"]
            for api in (first, second, stranger)
        ]
        assert ids[0] == ids[1] != ids[2]


async def test_operations_without_a_shape_are_listed_and_not_served(here: Bakery) -> None:
    """Interface, Versioning 7: a capabilities listing and a media import operation were added."""
    for method, path in (("GET", "/v1/capabilities"), ("POST", "/v1/media/imports")):
        assert f"{method} {path}" in NOT_SHOWN
        await refused(here, 404, "api.not_found", method, path)


async def test_deprecated_names_are_still_accepted() -> None:
    """Interface, Versioning 4: a fix refuses only requests that were never allowed."""
    async with bakery() as here, calling(here.service) as api:
        body = {
            "baseCaption": "Rye.",
            "baseMediaIds": ["med_bread"],
            "targets": [{"socialAccountId": "ch_insta", "settings": {"unheardOf": 1}}],
            "unheardOf": True,
        }
        assert (await api.post("/v1/posts", json=body)).status_code == 201
        await create(api, **wanted(url="https://8.8.8.8/other"))
