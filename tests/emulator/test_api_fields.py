"""The fields and values of requests: Limits, Resources, Versioning (interface v1)."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from support.service_api import checked_error
from support.workspaces import Bakery, bakery, iso

from hookonce.emulator.described import DescribedChannel, DescribedLimits

pytestmark = pytest.mark.anyio


@pytest.fixture
async def here() -> AsyncIterator[Bakery]:
    async with bakery() as place:
        yield place


def post(
    fields: dict[str, Any] | None = None, *, target: dict[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    """Return the body of a valid post with these changes."""
    targets = [{"channelId": "ch_insta", **(target or {})}]
    return {"caption": "Hello.", "targets": targets, **(fields or {}), **changes}


async def refused(here: Bakery, path: str, body: Any, field: str) -> None:
    """Check that the API refuses a body, and that the error names only this field."""
    error = checked_error(await here.api.post(path, json=body), 422, "validation.failed")
    assert error["kind"] == "validation"
    assert [issue["field"] for issue in error["details"]["issues"]] == [field]
    assert all(issue["message"] for issue in error["details"]["issues"])


async def accepted(here: Bakery, path: str, body: Any) -> httpx2.Response:
    response = await here.api.post(path, json=body)
    assert response.status_code in {200, 201}, response.text
    return response


@pytest.mark.parametrize(
    ("field", "longest"),
    [("title", 120), ("caption", 63206), ("baseCaption", 63206)],
)
async def test_the_texts_of_a_post_have_a_largest_length(
    here: Bakery, field: str, longest: int
) -> None:
    """Interface, Limits: "title | <= 120 characters"; "caption, baseCaption | <= 63206
    characters".
    """
    await accepted(here, "/v1/posts", post({field: "é" * longest}))
    await refused(here, "/v1/posts", post({field: "é" * (longest + 1)}), field)


@pytest.mark.parametrize("field", ["mediaIds", "baseMediaIds"])
async def test_a_post_has_at_most_35_media(here: Bakery, field: str) -> None:
    """Interface, Limits: "mediaIds, baseMediaIds, target mediaIds | <= 35 items"."""
    await accepted(here, "/v1/posts", post({field: ["med_bread"] * 35}))
    await refused(here, "/v1/posts", post({field: ["med_bread"] * 36}), field)


async def test_a_target_has_at_most_35_media(here: Bakery) -> None:
    """Interface, Limits: "target mediaIds | <= 35 items"."""
    await accepted(here, "/v1/posts", post(target={"mediaIds": ["med_bread"] * 35}))
    body = post(target={"mediaIds": ["med_bread"] * 36})
    await refused(here, "/v1/posts", body, "targets.0.mediaIds")


async def test_a_first_comment_has_a_largest_length(here: Bakery) -> None:
    """Interface, Limits: "firstComment | <= 2200 characters"."""
    await accepted(here, "/v1/posts", post(target={"firstComment": "a" * 2200}))
    body = post(target={"firstComment": "a" * 2201})
    await refused(here, "/v1/posts", body, "targets.0.firstComment")


async def test_a_post_has_at_least_one_target(here: Bakery) -> None:
    """Interface, Limits: "targets | >= 1 item"; Post input: targets are required."""
    await refused(here, "/v1/posts", post(targets=[]), "targets")
    await refused(here, "/v1/posts", {"caption": "Hello."}, "targets")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (post(caption=None), "caption"),
        (post(mediaIds=None), "mediaIds"),
        (post(mode=None), "mode"),
        (post(title=7), "title"),
        (post(scheduledAt=1795262400), "scheduledAt"),
        (post(scheduledAt="tomorrow"), "scheduledAt"),
        (post(scheduledAt="0001-01-01T00:00:00+14:00"), "scheduledAt"),
        (post(targets=[7]), "targets.0"),
        (post(target={"settings": None}), "targets.0.settings"),
        (post(target={"settings": []}), "targets.0.settings"),
        (post(target={"contentType": "poem"}), "targets.0.contentType"),
        (post(target={"contentType": None}), "targets.0.contentType"),
        (post(target={"channelId": 7}), "targets.0.channelId"),
        (post(targets=[{"channelId": "ch_insta"}] * 2), "targets.1.channelId"),
        ([], ""),
    ],
    ids=str,
)
async def test_a_field_of_another_type_is_refused(here: Bakery, body: Any, field: str) -> None:
    """Interface, Resources: Post input; Errors: "422 | The body did not validate"."""
    await refused(here, "/v1/posts", body, field)


async def test_fields_listed_as_or_null_may_be_null(here: Bakery) -> None:
    """Interface, Resources: Post input: title, scheduledAt, and a target's caption and
    firstComment.
    """
    body = post(title=None, scheduledAt=None, target={"caption": None, "firstComment": None})
    await accepted(here, "/v1/posts", body)


async def test_unknown_fields_are_accepted(here: Bakery) -> None:
    """Interface, Versioning 3: "new optional request fields"."""
    await accepted(here, "/v1/posts", post(mood="warm", target={"mood": "warm"}))


async def test_the_new_name_counts_if_both_names_are_sent(here: Bakery) -> None:
    """Interface, Versioning 5: "Deprecated names still accepted"; the interface has no rule for a
    request with both names.
    """
    body = post(
        caption="new",
        baseCaption="old",
        mediaIds=[],
        baseMediaIds=["med_bread"],
        target={"socialAccountId": "ch_tube"},
    )
    response = await accepted(here, "/v1/posts", body)
    shown = await here.post(response.json()["data"]["id"])
    assert (shown["caption"], shown["mediaIds"]) == ("new", [])
    assert shown["targets"][0]["channelId"] == "ch_insta"


@pytest.mark.parametrize(
    ("channel", "settings", "name"),
    [
        ("ch_tube", {"title": 7}, "title"),
        ("ch_tube", {"privacy": "secret"}, "privacy"),
        ("ch_tube", {"categoryId": 22}, "categoryId"),
        ("ch_tube", {"tags": "oven"}, "tags"),
        ("ch_tube", {"tags": ["oven", 7]}, "tags"),
        ("ch_tube", {"madeForKids": 1}, "madeForKids"),
    ],
)
@pytest.mark.parametrize("mode", ["draft", "now"])
async def test_a_settings_value_of_a_wrong_kind_is_refused_in_every_mode(
    here: Bakery, channel: str, settings: dict[str, Any], name: str, mode: str
) -> None:
    """Interface, Versioning 6: "wrong-type or out-of-range settings values refused … (drafts
    included)".
    """
    body = post(mode=mode, target={"channelId": channel, "settings": settings})
    await refused(here, "/v1/posts", body, f"targets.0.settings.{name}")
    await refused(here, "/v1/posts/validate", body, f"targets.0.settings.{name}")


async def test_valid_settings_come_back_unchanged(here: Bakery) -> None:
    """Interface, Resources: PostTarget, settings; "An unknown key is accepted and produces a
    warning".
    """
    settings = {
        "title": "Oven",
        "privacy": "public",
        "tags": [],
        "madeForKids": True,
        "x": {"y": 1},
    }
    body = post(target={"channelId": "ch_tube", "settings": settings})
    data = (await accepted(here, "/v1/posts", body)).json()["data"]
    assert [warning["field"] for warning in data["warnings"]] == ["settings.x"]
    assert (await here.post(data["id"]))["targets"][0]["settings"] == settings


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("filename", "a" * 255, "a" * 256),
        ("filename", "a", None),
        ("mime", "image/heic", "image/gif"),
        ("size", 1, 0),
        ("size", 1, "1"),
        ("folderId", None, 7),
    ],
)
async def test_an_upload_is_described_within_its_limits(
    here: Bakery, field: str, good: Any, bad: Any
) -> None:
    """Interface, Limits: "filename | <= 255 characters"; "size | >= 1 byte"; Media: accepted
    media types.
    """
    body = {"filename": "a.jpg", "mime": "image/jpeg", "size": 9}
    await accepted(here, "/v1/media/uploads", body | {field: good})
    await refused(here, "/v1/media/uploads", body | {field: bad}, field)


@pytest.mark.parametrize("missing", ["filename", "mime", "size"])
async def test_an_upload_is_described_in_full(here: Bakery, missing: str) -> None:
    """Interface, Endpoints: Media: filename, mime and size are required."""
    body = {"filename": "a.jpg", "mime": "image/jpeg", "size": 9}
    del body[missing]
    await refused(here, "/v1/media/uploads", body, missing)


async def test_a_reply_has_a_smallest_and_a_largest_length(here: Bakery) -> None:
    """Interface, Limits: "reply text | 1 to 2200 characters"."""
    path = "/v1/comments/cmt_gluten/reply"
    await accepted(here, path, {"text": "a" * 2200})
    await refused(here, path, {"text": "a" * 2201}, "text")
    await refused(here, path, {"text": ""}, "text")
    await refused(here, path, {}, "text")


# limits whose values the interface does not give


async def test_a_described_limit_bounds_the_posts_of_a_month() -> None:
    """Interface, Limits, rule 4: "checked against a monthly scheduled post limit and against X
    credits".
    """
    async with bakery(limits=DescribedLimits(scheduled_posts_per_month=2)) as here:
        first = await here.create("schedule", scheduledAt=iso(86_400 * 20))
        draft = await here.create("draft")
        await here.create("now")
        for response in (
            await here.api.post("/v1/posts", json=post(mode="now")),
            await here.api.post(f"/v1/posts/{draft}/publish"),
        ):
            assert checked_error(response, 409, "post.monthly_limit")["kind"] == "limit"
        validated = await here.api.post("/v1/posts/validate", json=post(mode="now"))
        (blocker,) = validated.json()["data"]["blockers"]
        assert blocker["code"] == "post.monthly_limit"
        # A post counts once, even if it is changed; drafts do not count.
        moved = post(mode="schedule", scheduledAt=iso(86_400 * 20))
        response = await here.api.patch(f"/v1/posts/{first}", json=moved)
        assert response.status_code == 200
        await here.service.advance(days=11)  # a new month, so the count starts again
        await here.create("now")


async def test_described_credits_bound_the_posts_to_x() -> None:
    """Interface, Limits, rule 4; Validation result: xCredits, "credits for the platform whose
    key is x".
    """
    channels = [DescribedChannel(id="ch_x", platform="x", username="bakery")]
    limits = DescribedLimits(x_credits=1)
    async with bakery(channels=channels, posts=[], comments=[], limits=limits) as here:
        body = post(mode="now", target={"channelId": "ch_x"})
        validated = (await here.api.post("/v1/posts/validate", json=body)).json()["data"]
        assert (validated["ok"], validated["xCredits"]) == (True, 1)
        sent = body | {"mode": "schedule", "scheduledAt": iso(60)}
        post_id = (await accepted(here, "/v1/posts", sent)).json()["data"]["id"]
        response = await here.api.post("/v1/posts", json=body)
        assert checked_error(response, 409, "post.no_x_credits")["kind"] == "limit"
        # Saving the post again takes no further credits.
        assert (await here.api.patch(f"/v1/posts/{post_id}", json=sent)).status_code == 200
        assert (await here.api.post(f"/v1/posts/{post_id}/publish")).status_code == 200


async def test_a_described_quota_bounds_the_size_of_media() -> None:
    """Interface, Limits: "size | checked against the plan's storage quota"."""
    upload = {"filename": "a.jpg", "mime": "image/jpeg", "size": 60}
    async with bakery(media=[], posts=[], limits=DescribedLimits(storage_bytes=100)) as here:
        await accepted(here, "/v1/media/uploads", upload)
        response = await here.api.post("/v1/media/uploads", json=upload)
        error = checked_error(response, 409, "media.storage_quota_exceeded")
        assert error["kind"] == "limit"
        # Nobody uploads the first file within its time limit, so the service frees its space again.
        await here.service.advance(hours=2)
        await accepted(here, "/v1/media/uploads", upload)


async def test_there_is_no_version_but_v1(here: Bakery) -> None:
    """Interface, Versioning 2: "Breaking changes arrive as /v2"; the service has no /v2."""
    assert (await here.api.get("/v1/me")).status_code == 200
    checked_error(await here.api.get("/v2/me"), 404, "api.not_found")
