"""Each flow emits the events of the real service, in order and with every field."""

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import JsonValue

from hookonce.emulator.flows import (
    FLOWS,
    Flow,
    lose_channel,
    publish_post,
    receive_comment,
    receive_story_reply,
)
from hookonce.emulator.generated import EventGenerator
from hookonce.events import (
    ChannelDisconnected,
    ChannelUnhealthy,
    CommentReceived,
    Event,
    MessageReceived,
    PostTargetFailed,
    PostTargetPublished,
)
from hookonce.resources import Channel
from hookonce.samples.events import make_event

pytestmark = pytest.mark.anyio


class Emulated:
    """A service that merges the given fields into sample data, as the real emulator does."""

    def __init__(self) -> None:
        self.emitted: list[Event[Any]] = []
        self.given: list[Mapping[str, JsonValue]] = []

    async def emit(self, event: str, *, data: Mapping[str, JsonValue] | None = None) -> Event[Any]:
        made = make_event(event, data=data)
        self.emitted.append(made)
        self.given.append(data or {})
        return made


@pytest.fixture
def service() -> Emulated:
    return Emulated()


def channel(name: str, platform: str) -> Channel:
    return Channel(
        id=f"ch_{name}", platform=platform, username=name, display_name=name, status="active"
    )


async def test_a_post_is_published_to_two_channels_and_fails_for_good_on_the_third(
    service: Emulated,
) -> None:
    events = await publish_post(service)
    assert [type(event) for event in events] == [
        PostTargetPublished,
        PostTargetPublished,
        PostTargetFailed,
    ]
    assert [event.data.status for event in events] == ["published", "published", "failed"]
    assert [event.data.error is None for event in events] == [True, True, False]
    assert [event.data.published_at is None for event in events] == [False, False, True]


async def test_the_targets_of_a_post_share_caption_and_media_and_nothing_else(
    service: Emulated,
) -> None:
    targets = [event.data for event in await publish_post(service, caption="Olá 🍞")]
    assert {target.caption for target in targets} == {"Olá 🍞"}
    media = {tuple(target.media_ids) for target in targets}
    assert len(media) == 1
    assert len(media.pop()) == 1
    for field in ("id", "channel_id", "platform"):
        assert len({getattr(target, field) for target in targets}) == 3, field


async def test_another_post_has_other_ids(service: Emulated) -> None:
    first, second = await publish_post(service), await publish_post(service)
    assert not {e.data.id for e in first} & {e.data.id for e in second}
    assert first[0].data.media_ids != second[0].data.media_ids


async def test_a_post_goes_to_the_given_channels_and_fails_on_the_last(service: Emulated) -> None:
    channels = [channel("a", "youtube"), channel("b", "mastodon")]
    published, failed = await publish_post(service, channels=channels)
    assert isinstance(published, PostTargetPublished)
    assert isinstance(failed, PostTargetFailed)
    shown = [(e.data.channel_id, e.data.platform, e.data.username) for e in (published, failed)]
    assert shown == [("ch_a", "youtube", "a"), ("ch_b", "mastodon", "b")]
    assert [e.data.content_type for e in (published, failed)] == ["video", "post"]


async def test_a_post_to_no_channel_is_refused_before_anything_is_emitted(
    service: Emulated,
) -> None:
    with pytest.raises(ValueError, match="at least one channel"):
        await publish_post(service, channels=[])
    assert not service.emitted


async def test_a_comment_has_a_post_and_no_parent(service: Emulated) -> None:
    for seed in range(50):
        (event,) = await receive_comment(service, generator=EventGenerator(seed))
        assert isinstance(event, CommentReceived)
        assert event.data.parent_id is None
        assert event.data.post_id is not None
        assert event.data.text


async def test_a_comment_can_answer_another_comment(service: Emulated) -> None:
    place = channel("a", "bluesky")
    (first,) = await receive_comment(service, channel=place)
    (answer,) = await receive_comment(
        service, channel=place, text="So do I", post_id=first.data.post_id, parent_id=first.data.id
    )
    assert (answer.data.parent_id, answer.data.post_id) == (first.data.id, first.data.post_id)
    assert (answer.data.text, answer.data.platform) == ("So do I", "bluesky")
    assert answer.data.channel_id == first.data.channel_id == "ch_a"
    assert answer.data.id != first.data.id


async def test_the_kind_distinguishes_a_story_reply_from_a_direct_message(
    service: Emulated,
) -> None:
    (event,) = await receive_story_reply(service, text="So nice!")
    assert isinstance(event, MessageReceived)
    assert event.data.message.kind == "story_reply"
    assert event.data.message.model_extra == {"text": "So nice!"}


async def test_a_channel_becomes_unhealthy_and_then_is_disconnected(service: Emulated) -> None:
    unhealthy, disconnected = await lose_channel(service, reason="Password changed.")
    assert isinstance(unhealthy, ChannelUnhealthy)
    assert isinstance(disconnected, ChannelDisconnected)
    before, after = unhealthy.data, disconnected.data
    assert (before.status, before.status_reason) == ("needs_reconnect", "Password changed.")
    assert (after.status, after.status_reason) == ("disconnected", None)
    same = {"status": after.status, "status_reason": after.status_reason}
    assert before.model_copy(update=same) == after


async def test_the_channel_that_is_lost_can_be_chosen(service: Emulated) -> None:
    events = await lose_channel(service, channel=channel("a", "threads"))
    assert [event.data.id for event in events] == ["ch_a", "ch_a"]


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
async def test_a_flow_returns_its_events_in_order_with_every_field_given(
    flow: Flow, service: Emulated
) -> None:
    events = await flow(service)
    assert list(events) == service.emitted
    for event, given in zip(events, service.given, strict=True):
        assert event.model_dump(mode="json", exclude_unset=True)["data"] == given


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
async def test_the_same_seed_gives_the_same_flow(flow: Flow, service: Emulated) -> None:
    def frozen() -> EventGenerator:
        return EventGenerator(3, clock=lambda: 1.9e9)

    first = await flow(service, generator=frozen())
    second = await flow(service, generator=frozen())
    assert [event.data for event in first] == [event.data for event in second]


def test_the_command_line_knows_four_flows() -> None:
    flows: dict[str, Flow] = {
        "post": publish_post,
        "comment": receive_comment,
        "story-reply": receive_story_reply,
        "channel": lose_channel,
    }
    assert flows == FLOWS
