"""The states of a post: States and transitions (interface v1), row by row, in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from support.service_api import checked_error
from support.workspaces import Bakery, bakery, iso

from hookonce.emulator.refusals import RefusedError
from hookonce.emulator.states import TARGETS, TargetStep, after, status_of

pytestmark = pytest.mark.anyio

ONE = "ch_insta"
BOTH = ("ch_insta", "ch_tube")


@pytest.fixture
async def here() -> AsyncIterator[Bakery]:
    async with bakery() as place:
        yield place


# The modes of a post


async def test_a_draft_is_never_published(here: Bakery) -> None:
    """Interface, States: "create with mode draft | always accepted | draft | nothing is
    published".
    """
    post = await here.create("draft", *BOTH)
    await here.service.advance(days=400)
    assert await here.states(post) == ("draft", ["pending", "pending"])
    # Meanwhile the service published only the scheduled Christmas post.
    assert (post, here.told()) == (post, [("post.target.published", ONE)])


async def test_mode_now_publishes_each_target_and_sends_its_event(here: Bakery) -> None:
    """Interface, Rule 2: the result is read from the post "or received as webhook events";
    Events, rule 2.
    """
    post = await here.create("now", *BOTH)
    assert await here.states(post) == ("publishing", ["queued", "queued"])
    seen = set()
    for _ in range(120):
        await here.service.advance(seconds=0.25)
        status, targets = await here.states(post)
        seen |= {status, *targets}
        known = [one for one in targets if one == "published"]
        assert len(here.events) == len(known), "an event comes when its result is known"
        assert status == ("published" if len(known) == 2 else "publishing")
        assert ((await here.post(post))["publishedAt"] is None) is (status == "publishing")
    assert seen == {"queued", "publishing", "published"}
    shown = await here.post(post)
    by_channel = {event["data"]["channelId"]: event["data"] for event in here.events}
    assert [by_channel[target["channelId"]] for target in shown["targets"]] == shown["targets"]
    assert shown["publishedAt"] == max(target["publishedAt"] for target in shown["targets"])


async def test_a_scheduled_post_is_published_at_its_time_and_not_before(here: Bakery) -> None:
    """Interface, States: create with mode schedule; Post input: "Required when mode is
    schedule".
    """
    post = await here.create("schedule", scheduledAt=iso(3600))
    await here.service.advance(seconds=3599)
    assert await here.states(post) == ("scheduled", ["pending"])
    await here.service.advance(seconds=61)
    assert await here.states(post) == ("published", ["published"])
    published_at = (await here.post(post))["publishedAt"]
    assert iso(3600) < published_at < iso(3660)


async def test_mode_queue_publishes_in_the_next_slot(here: Bakery) -> None:
    """Interface, Mode semantics: "queue takes the next free slot", in the workspace's time zone."""
    post = await here.create("queue")
    assert (await here.post(post))["scheduledAt"] == "2026-11-23T09:00:00.000Z"
    await here.service.advance(days=2)
    assert (await here.states(post))[0] == "published"


# Results of publishing


async def test_a_post_that_fails_everywhere_is_failed_and_says_why(here: Bakery) -> None:
    """Interface, Events: post.target.failed, "Publishing to one channel failed for good"."""
    here.service.faults.platform_fails(code="media.rejected", message="Too dark.")
    post = await here.create("now", *BOTH)
    await here.service.advance(minutes=1)
    assert await here.states(post) == ("failed", ["failed", "failed"])
    assert sorted(here.told()) == [("post.target.failed", one) for one in BOTH]
    for event in here.events:
        assert event["data"]["error"] == {"code": "media.rejected", "message": "Too dark."}
        assert event["data"]["permalink"] is event["data"]["publishedAt"] is None


async def test_a_post_that_fails_on_one_channel_is_partial(here: Bakery) -> None:
    """Interface, States: partial; each target has its own status and error."""
    here.service.faults.platform_fails("ch_tube")
    post = await here.create("now", *BOTH)
    await here.service.advance(minutes=1)
    assert await here.states(post) == ("partial", ["published", "failed"])
    assert (await here.post(post))["publishedAt"] is not None


async def test_a_retried_target_sends_no_event_before_its_last_try(here: Bakery) -> None:
    """Interface, Events: "Attempts that will be retried are not sent"."""
    here.service.faults.platform_fails(for_good=False, times=2)
    post = await here.create("now")
    await here.service.advance(minutes=2)
    assert (await here.states(post))[0] == "publishing"
    assert here.events == []
    await here.service.advance(minutes=2)
    assert here.told() == [("post.target.published", ONE)]
    here.service.faults.platform_fails(for_good=False)
    failing = await here.create("now")
    await here.service.advance(minutes=5)
    assert (await here.states(failing))[0] == "failed"
    assert here.told()[1:] == [("post.target.failed", ONE)]


async def test_a_slow_platform_keeps_a_post_publishing(here: Bakery) -> None:
    here.service.faults.platform_is_slow("ch_tube", seconds=3600)
    post = await here.create("now", *BOTH)
    await here.service.advance(minutes=59)
    assert await here.states(post) == ("publishing", ["published", "publishing"])
    await here.service.advance(minutes=2)
    assert (await here.states(post))[0] == "published"
    here.service.faults.platform_works("ch_tube")
    post = await here.create("now", "ch_tube")
    await here.service.advance(minutes=1)
    assert (await here.states(post))[0] == "published"


async def test_if_time_flows_a_slow_platform_delays_a_reply() -> None:
    """Interface, Rule 3: "Replying to a comment is synchronous"."""
    async with bakery(speed=100) as here:
        here.service.faults.platform_is_slow("ch_tube", seconds=30)
        loop = asyncio.get_running_loop()
        started = loop.time()
        response = await here.api.post("/v1/comments/cmt_gluten/reply", json={"text": "No."})
        assert response.status_code == 200
        assert loop.time() - started > 0.29


async def test_a_failed_target_is_retried_and_no_other(here: Bakery) -> None:
    """Interface, States: "failed target | retry | re-attempted"; post.target_not_retryable |
    409.
    """
    here.service.faults.platform_fails("ch_tube", times=1)
    post = await here.create("now", *BOTH)
    await here.service.advance(minutes=1)
    with pytest.raises(RefusedError) as caught:
        here.service.app.retry(post, ONE)
    assert (caught.value.status, caught.value.body.code) == (409, "post.target_not_retryable")
    assert here.service.app.retry(post, "ch_tube").status == "publishing"
    await here.service.advance(minutes=1)
    assert await here.states(post) == ("published", ["published", "published"])
    assert [kind for kind, _ in here.told()].count("post.target.published") == 2
    with pytest.raises(LookupError, match="no target on a channel"):
        here.service.app.retry(post, "ch_sky")


async def test_a_failed_post_can_be_replaced_published_again_and_deleted(here: Bakery) -> None:
    """Interface, States: "draft or another unpublished state | delete | not going out |
    removed".
    """
    here.service.faults.platform_fails(times=2)
    first, second = await here.create("now"), await here.create("now")
    await here.service.advance(minutes=1)
    response = await here.api.post(f"/v1/posts/{first}/publish")
    assert response.json() == {"data": {"id": first, "status": "publishing"}}
    await here.service.advance(minutes=1)
    assert (await here.post(first))["targets"][0]["error"] is None
    assert (await here.states(first))[0] == "published"
    deleted = await here.api.delete(f"/v1/posts/{second}")
    assert deleted.json() == {"data": {"id": second, "deleted": True}}


async def test_publishing_a_draft_right_away_runs_the_checks_of_scheduling(here: Bakery) -> None:
    """Interface, Versioning 6; Endpoints: `error.details.validations`."""
    post = await here.create("draft", "ch_tube", mediaIds=[])
    error = checked_error(
        await here.api.post(f"/v1/posts/{post}/publish"), 422, "validation.failed"
    )
    (validation,) = error["details"]["validations"]
    assert (validation["channelId"], validation["ok"]) == ("ch_tube", False)
    assert (await here.states(post))[0] == "draft"


# Posts that are withdrawn


async def test_a_scheduled_post_that_is_deleted_or_made_a_draft_is_never_published(
    here: Bakery,
) -> None:
    """Interface, States: delete; Post input: "draft saves without publishing"."""
    deleted = await here.create("schedule", scheduledAt=iso(60))
    drafted = await here.create("schedule", scheduledAt=iso(60))
    moved = await here.create("schedule", scheduledAt=iso(60))
    await here.api.delete(f"/v1/posts/{deleted}")
    body = {"caption": "Later.", "targets": [{"channelId": ONE}]}
    await here.api.patch(f"/v1/posts/{drafted}", json=body)
    later = {**body, "mode": "schedule", "scheduledAt": iso(7200)}
    await here.api.patch(f"/v1/posts/{moved}", json=later)
    await here.service.advance(hours=1)
    assert here.events == []
    assert (await here.states(drafted))[0] == "draft"
    assert (await here.states(moved))[0] == "scheduled"
    await here.service.advance(hours=2)
    assert here.told() == [("post.target.published", ONE)]


async def test_a_post_is_rescheduled_unless_it_waits_for_approval(here: Bakery) -> None:
    """Interface, States: "pending_approval | reschedule | before approval | unchanged"."""
    post = await here.create("schedule", scheduledAt=iso(60))
    here.service.app.reschedule(post, here.service.now + timedelta(hours=2))
    await here.service.advance(hours=1)
    assert (await here.states(post))[0] == "scheduled"
    await here.service.advance(hours=2)
    assert (await here.states(post))[0] == "published"
    for other, code in (("post_waiting", "post.pending_approval"), (post, "post.not_scheduled")):
        with pytest.raises(RefusedError) as caught:
            here.service.app.reschedule(other, here.service.now + timedelta(minutes=1))
        assert (caught.value.status, caught.value.body.code) == (409, code)


# Approval of posts


@pytest.mark.parametrize(
    ("mode", "changes", "afterwards"),
    [
        ("schedule", {"scheduledAt": iso(7200)}, "scheduled"),
        ("queue", {}, "scheduled"),
        ("now", {}, "publishing"),
    ],
)
async def test_a_contributors_post_is_published_after_approval(
    here: Bakery, mode: str, changes: dict[str, str], afterwards: str
) -> None:
    """Interface, Authentication 7: "A contributor's scheduled post waits for approval"."""
    body = {"mode": mode, "caption": "May I?", "targets": [{"channelId": ONE}], **changes}
    response = await here.as_role("contributor", "POST", "/v1/posts", body)
    data = response.json()["data"]
    assert data["status"] == "pending_approval"
    await here.service.advance(hours=1)
    assert here.events == []
    assert here.service.app.approve(data["id"]).status == afterwards
    await here.service.advance(days=3)
    assert (await here.states(data["id"]))[0] == "published"
    assert here.told() == [("post.target.published", ONE)]


async def test_an_approved_post_whose_time_has_passed_is_published_at_once(
    here: Bakery,
) -> None:
    await here.service.advance(days=30)  # the scheduled time of the waiting post has passed
    assert here.service.app.post("post_waiting").status == "pending_approval"
    assert here.service.app.approve("post_waiting").scheduled_at is not None
    await here.service.advance(minutes=1)
    assert (await here.states("post_waiting"))[0] == "published"


async def test_unknown_ids_and_past_times_are_refused(here: Bakery) -> None:
    with pytest.raises(LookupError, match="no post 'post_none'"):
        here.service.app.approve("post_none")
    with pytest.raises(LookupError, match="no channel 'ch_none'"):
        here.service.app.reconnect("ch_none")
    with pytest.raises(ValueError, match="must lie ahead"):
        here.service.app.reschedule("post_xmas", here.service.now)


async def test_a_rejected_post_is_a_draft_again(here: Bakery) -> None:
    assert here.service.app.reject("post_waiting").status == "draft"
    await here.service.advance(days=30)
    assert (await here.states("post_waiting"))[0] == "draft"
    with pytest.raises(RefusedError) as caught:
        here.service.app.approve("post_waiting")
    assert caught.value.body.code == "post.not_pending_approval"


@pytest.mark.parametrize("role", ["editor", "admin"])
async def test_an_editors_post_needs_no_approval(here: Bakery, role: str) -> None:
    body = {"mode": "schedule", "caption": "So.", "scheduledAt": iso(60)}
    body["targets"] = [{"channelId": ONE}]  # type: ignore[assignment] # a body may hold any JSON
    response = await here.as_role(role, "POST", "/v1/posts", body)
    assert response.json()["data"]["status"] == "scheduled"


async def test_a_contributors_draft_needs_no_approval(here: Bakery) -> None:
    body = {"caption": "Hm.", "targets": [{"channelId": ONE}]}
    response = await here.as_role("contributor", "POST", "/v1/posts", body)
    assert response.json()["data"]["status"] == "draft"


# Broken and disconnected channels


async def test_a_broken_channel_holds_scheduled_posts_until_it_is_reconnected(
    here: Bakery,
) -> None:
    """Interface, States: "holds anything scheduled to it until it is reconnected";
    channel.unhealthy.
    """
    post = await here.create("schedule", *BOTH, scheduledAt=iso(3600))
    draft = await here.create("draft")
    await here.service.app.break_channel(ONE, reason="The password was changed.")
    assert here.told() == [("channel.unhealthy", ONE)]
    assert here.events[0]["data"]["status"] == "needs_reconnect"
    assert here.events[0]["data"]["statusReason"] == "The password was changed."
    assert await here.states(post) == ("scheduled", ["held", "pending"])
    assert await here.states(draft) == ("draft", ["pending"])
    await here.service.advance(hours=2)
    assert await here.states(post) == ("partial", ["held", "published"])
    assert here.service.app.reconnect(ONE).status == "active"
    assert (await here.states(post))[0] == "publishing"
    await here.service.advance(minutes=1)
    assert await here.states(post) == ("published", ["published", "published"])


async def test_a_channel_that_is_reconnected_in_time_changes_nothing(here: Bakery) -> None:
    post = await here.create("schedule", scheduledAt=iso(3600))
    await here.service.app.break_channel(ONE, status="error")
    here.service.app.reconnect(ONE)
    assert await here.states(post) == ("scheduled", ["pending"])
    await here.service.advance(minutes=59)
    assert len(here.events) == 1
    await here.service.advance(minutes=2)
    assert (await here.states(post))[0] == "published"


async def test_a_queued_target_is_held_and_a_publishing_target_is_not(here: Bakery) -> None:
    here.service.faults.platform_is_slow("ch_tube", seconds=600)
    post = await here.create("now", "ch_tube")
    await here.service.advance(seconds=5)
    assert (await here.states(post))[1] == ["publishing"]
    queued = await here.create("now", "ch_tube")
    await here.service.app.disconnect("ch_tube")
    assert await here.states(queued) == ("scheduled", ["held"])
    await here.service.advance(hours=1)
    assert (await here.states(post))[1] == ["published"]
    assert await here.states(queued) == ("scheduled", ["held"])


async def test_a_disconnected_channel_sends_an_event_and_leaves_the_list(here: Bakery) -> None:
    """Interface, Events: channel.disconnected; Endpoints: "excluded by default"."""
    await here.service.app.disconnect(ONE)
    assert here.told() == [("channel.disconnected", ONE)]
    listed = (await here.api.get("/v1/channels")).json()["data"]
    assert ONE not in [channel["id"] for channel in listed]
    with pytest.raises(LookupError):
        await here.service.app.disconnect(ONE)
    with pytest.raises(ValueError, match="needs_reconnect or error"):
        await here.service.app.break_channel("ch_tube", status="odd")


async def test_a_post_to_a_channel_that_is_not_active_is_held_from_the_start(
    here: Bakery,
) -> None:
    post = await here.create("now", "ch_sky")
    assert await here.states(post) == ("scheduled", ["held"])
    response = await here.api.post(f"/v1/posts/{post}/publish")
    assert response.json()["data"]["status"] == "scheduled"
    here.service.app.reconnect("ch_sky")
    await here.service.advance(minutes=1)
    assert (await here.states(post))[0] == "published"


# Seeds of results, results without a webhook, and invalid faults


async def test_the_same_seed_brings_the_same_results() -> None:
    async def results(seed: int) -> list[tuple[str, str, object]]:
        async with bakery(seed=seed) as here:
            here.service.faults.platform_fails(rate=0.5)
            for _ in range(12):
                await here.create("now", *BOTH)
            await here.service.advance(minutes=1)
            return [
                (e["type"], e["data"]["channelId"], e["data"]["publishedAt"]) for e in here.events
            ]

    first = await results(7)
    assert first == await results(7) != await results(8)
    assert {kind for kind, *_ in first} == {"post.target.published", "post.target.failed"}


async def test_the_result_of_a_lost_webhook_is_only_in_the_post(here: Bakery) -> None:
    here.service.faults.lose_webhook("post.target.published")
    lost, told = await here.create("now"), await here.create("now")
    await here.service.advance(minutes=1)
    assert [(await here.states(one))[0] for one in (lost, told)] == ["published", "published"]
    assert len(here.events) == len(here.service.deliveries()) == 1
    with pytest.raises(ValueError, match="no event type"):
        here.service.faults.lose_webhook("post.gone")


async def test_an_invalid_fault_is_refused(here: Bakery) -> None:
    with pytest.raises(LookupError, match="no channel 'ch_none'"):
        here.service.faults.platform_fails("ch_none")
    with pytest.raises(LookupError, match="no channel 'ch_none'"):
        here.service.faults.platform_is_slow("ch_none", seconds=1)
    with pytest.raises(ValueError, match="from 0 to 1"):
        here.service.faults.platform_fails(rate=1.5)
    with pytest.raises(ValueError, match="at least 1"):
        here.service.faults.platform_fails(times=0)


def test_no_target_leaves_published_or_skipped() -> None:
    for state in ("published", "skipped"):
        for step in TargetStep:
            with pytest.raises(LookupError):
                after(TARGETS, state, step)


@pytest.mark.parametrize(
    ("targets", "status"),
    [
        (["pending"], "resting"),
        (["held", "pending"], "resting"),
        (["queued", "published"], "publishing"),
        (["publishing", "failed"], "publishing"),
        (["published", "published"], "published"),
        (["published", "skipped"], "published"),
        (["failed", "failed"], "failed"),
        (["published", "failed"], "partial"),
        (["published", "held"], "partial"),
        (["failed", "held"], "resting"),
    ],
)
def test_the_status_of_a_post_follows_from_its_targets(targets: list[str], status: str) -> None:
    assert status_of(targets, "resting") == status
