"""Generated data is valid by the interface, and as varied as real data."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from hookonce.emulator.generated import DIRECT_MESSAGE, STORY_REPLY, EventGenerator
from hookonce.emulator.platforms import content_types
from hookonce.events import EVENT_CLASSES, EventParser
from hookonce.resources import Channel

SEEDS = range(300)
NOW = datetime(2031, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC)

# Copied from the interface, Resources: the second set of each pair lists fields that may be null.
TARGET = (
    {"id", "channelId", "platform", "username", "contentType", "mediaIds", "settings", "status"},
    {"caption", "firstComment", "externalPostId", "permalink", "error", "publishedAt"},
)
CHANNEL = (
    {"id", "platform", "username", "displayName", "status"},
    {"avatarUrl", "statusReason", "followerCount", "connectedAt"},
)
COMMENT = (
    {"id", "text", "status", "isHidden", "channelId", "platform"},
    {"externalPostId", "authorUsername", "authorName", "createdAt", "postId", "parentId"},
)
FIELDS = {
    "post.target.published": TARGET,
    "post.target.failed": TARGET,
    "comment.received": COMMENT,
    "message.received": ({"message"}, set[str]()),
    "channel.unhealthy": CHANNEL,
    "channel.disconnected": CHANNEL,
    "webhook.test": (set[str](), set[str]()),
}
PLATFORMS = {
    *("instagram", "facebook", "youtube", "threads", "tiktok", "linkedin", "x", "bluesky"),
    *("pinterest", "google_business", "shopee"),
}
CONTENT_TYPES = {"feed", "photo", "post", "text", "carousel", "reels", "video", "short", "story"}
STATUSES = {
    "post.target.published": {"published"},
    "post.target.failed": {"failed"},
    "comment.received": {"open"},
    "channel.unhealthy": {"needs_reconnect", "error"},
    "channel.disconnected": {"disconnected"},
}
# By type of event: fields that are always null, although the field tables allow values.
ALWAYS_NULL = {
    "post.target.published": {"error"},
    "post.target.failed": {"externalPostId", "permalink", "publishedAt"},
}
NEVER_NULL = {
    "post.target.published": {"externalPostId", "publishedAt"},
    "post.target.failed": {"error"},
}


def generator(seed: int | Random | None) -> EventGenerator:
    return EventGenerator(seed, clock=NOW.timestamp)


def many(event_type: str) -> list[dict[str, Any]]:
    return [generator(seed).data(event_type) for seed in SEEDS]


def times_in(data: dict[str, Any]) -> Iterator[str]:
    yield from (
        data[name] for name in ("publishedAt", "createdAt", "connectedAt") if data.get(name)
    )


@pytest.mark.parametrize("event_type", EVENT_CLASSES)
def test_generated_data_is_read_as_its_type_without_unknown_fields(event_type: str) -> None:
    parser = EventParser()
    for data in many(event_type):
        envelope = {"id": "evt_1", "createdAt": "2031-02-03T04:05:06.789Z", "workspaceId": "ws_1"}
        body = json.dumps(envelope | {"type": event_type, "data": data}).encode()
        event = parser.parse(body)
        assert type(event) is EVENT_CLASSES[event_type]
        assert not getattr(event.data, "model_extra", None)


@pytest.mark.parametrize("event_type", EVENT_CLASSES)
def test_generated_data_has_every_field_and_null_only_if_the_interface_allows_it(
    event_type: str,
) -> None:
    filled, nullable = FIELDS[event_type]
    for data in many(event_type):
        assert set(data) == filled | nullable
        assert not {name for name in filled if data[name] is None}


@pytest.mark.parametrize("event_type", EVENT_CLASSES)
def test_fields_that_may_be_null_are_sometimes_null(event_type: str) -> None:
    made = many(event_type)
    for name in FIELDS[event_type][1]:
        found = {data[name] is None for data in made}
        if name in ALWAYS_NULL.get(event_type, ()):
            assert found == {True}, name
        elif name in NEVER_NULL.get(event_type, ()):
            assert found == {False}, name
        else:
            assert found == {True, False}, name


@pytest.mark.parametrize("event_type", STATUSES)
def test_enum_values_are_in_the_interface(event_type: str) -> None:
    made = many(event_type)
    assert {data["status"] for data in made} == STATUSES[event_type]
    assert {data["platform"] for data in made} == PLATFORMS
    if "contentType" in FIELDS[event_type][0]:
        assert {data["contentType"] for data in made} == CONTENT_TYPES


def test_media_fit_the_content_type_and_the_limit() -> None:
    for data in many("post.target.published"):
        count = len(data["mediaIds"])
        assert data["contentType"] in content_types(data["platform"])
        assert count <= 35
        assert (count == 0) or data["contentType"] != "text"
        assert (count >= 2) or data["contentType"] != "carousel"
        assert (count == 1) or data["contentType"] in {"text", "carousel", "post"}


def test_an_unknown_platform_gets_an_ordinary_post() -> None:
    assert content_types("mastodon") == ("post",)


def test_a_failed_target_says_why_by_code_and_sometimes_by_message() -> None:
    errors = [data["error"] for data in many("post.target.failed")]
    assert all(set(error) == {"code", "message"} and error["code"] for error in errors)
    assert {error["message"] is None for error in errors} == {True, False}
    assert len({error["code"] for error in errors}) > 3


def test_a_message_is_a_direct_one_or_a_story_reply() -> None:
    messages = [data["message"] for data in many("message.received")]
    assert {message["kind"] for message in messages} == {DIRECT_MESSAGE, STORY_REPLY}
    assert all(set(message) == {"kind", "text"} and message["text"] for message in messages)


@pytest.mark.parametrize("event_type", ["webhook.test", "ad.published", ""])
def test_tests_and_undocumented_types_have_empty_data(event_type: str) -> None:
    assert generator(1).data(event_type) == {}


def story(source: EventGenerator) -> list[object]:
    types = [source.event_type() for _ in range(20)]
    return [*types, *map(source.data, types), *map(source.data, EVENT_CLASSES)]


def test_the_same_seed_gives_the_same_data_and_another_seed_other_data() -> None:
    assert story(generator(7)) == story(generator(7))
    assert story(generator(7)) == story(generator(Random(7)))
    assert story(generator(7)) != story(generator(8))
    assert story(generator(None)) != story(generator(None))


def test_generators_that_share_their_randomness_differ() -> None:
    shared = Random(7)
    assert story(generator(shared)) != story(generator(shared))


def test_no_id_is_made_twice() -> None:
    ids = [generator(seed).new_id("cmt") for seed in SEEDS]
    source = generator(7)
    for _ in range(1000):
        target = source.data("post.target.published")
        ids += [target["id"], *target["mediaIds"], target["externalPostId"]]  # type: ignore[misc,list-item] # `data` may hold any JSON value
        ids.append(source.data("comment.received")["id"])  # type: ignore[arg-type] # `data` may hold any JSON value
    assert len(set(ids)) == len(ids) > 3000


def test_a_channel_is_the_same_wherever_it_appears() -> None:
    source = generator(7)
    channels = {channel.id: channel for channel in source.channels}
    assert len(channels) == len(source.channels) > len(PLATFORMS)
    told = Counter[str]()
    for _ in range(300):
        target, comment = source.data("post.target.published"), source.data("comment.received")
        known = channels[str(target["channelId"])]
        assert (target["platform"], target["username"]) == (known.platform, known.username)
        assert comment["platform"] == channels[str(comment["channelId"])].platform
        lost = Channel.model_validate(source.data("channel.unhealthy"))
        known = channels[lost.id]
        changed = {"status": lost.status, "status_reason": lost.status_reason}
        assert lost == known.model_copy(update=changed)
        told[lost.id] += 1
    assert set(told) == set(channels)


def test_channels_keep_their_ids_and_names_whatever_the_seed() -> None:
    one, two = generator(1).channels, generator(2).channels
    assert [(c.id, c.platform, c.username) for c in one] == [
        (c.id, c.platform, c.username) for c in two
    ]


@pytest.mark.parametrize(
    "event_type",
    [name for name in EVENT_CLASSES if name.startswith(("post", "comment", "channel"))],
)
def test_the_channel_can_be_chosen(event_type: str) -> None:
    mine = Channel(
        id="ch_mine", platform="mastodon", username="me", display_name="Me", status="active"
    )
    data = generator(1).data(event_type, channel=mine)
    assert data.get("channelId", data["id"]) == "ch_mine"
    assert data["platform"] == "mastodon"
    assert data.get("username", "me") == "me"


@pytest.mark.parametrize("event_type", EVENT_CLASSES)
def test_every_time_is_shortly_before_the_given_clock_and_in_milliseconds(event_type: str) -> None:
    longest = timedelta(days=600) if event_type.startswith("channel") else timedelta(minutes=15)
    for data in many(event_type):
        for time in times_in(data):
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
            assert NOW - longest <= datetime.fromisoformat(time) <= NOW


def test_a_result_is_published_within_seconds_of_the_call() -> None:
    moment = NOW
    source = EventGenerator(1, clock=lambda: moment.timestamp())  # noqa: PLW0108 - the lambda must see each `moment` of the loop
    for moment in (NOW, NOW + timedelta(days=1)):
        published = datetime.fromisoformat(str(source.data("post.target.published")["publishedAt"]))
        assert timedelta() <= moment - published <= timedelta(seconds=5)


def test_sizes_range_from_a_few_hundred_bytes_to_long_articles() -> None:
    source = generator(7)
    sizes = [
        len(json.dumps(source.data("post.target.published"), ensure_ascii=False).encode())
        for _ in range(2000)
    ]
    assert min(sizes) < 500
    assert 15_000 < max(sizes) < 25_000
    assert 0.01 < sum(size > 2000 for size in sizes) / len(sizes) < 0.1


@pytest.mark.parametrize(
    ("event_type", "field"), [("post.target.published", "caption"), ("comment.received", "text")]
)
def test_texts_are_in_many_scripts_and_have_joined_emoji(event_type: str, field: str) -> None:
    written = "".join(data[field] or "" for data in many(event_type))
    for script in (
        "[a-z]",
        "[\u0430-\u044f]",
        "[\u3040-\u30ff]",
        "[\uac00-\ud7a3]",
        "[\u0600-\u06ff]",
    ):
        assert re.search(script, written)
    assert "\u200d" in written, "no emoji made of several"
    assert max(written) > "\U0001f300"
    assert '"' in written
    assert "\n" in written


def test_event_types_are_subscribable_often_comments_and_rarely_lost_channels() -> None:
    source = generator(7)
    drawn = Counter(source.event_type() for _ in range(2000))
    assert set(drawn) == set(EVENT_CLASSES) - {"webhook.test"}
    assert drawn.most_common(1)[0][0] == "comment.received"
    assert drawn["post.target.published"] > 2 * drawn["post.target.failed"]
    assert drawn["channel.disconnected"] < 0.05 * sum(drawn.values())


def test_only_active_channels_get_comments_and_any_channel_gets_lost() -> None:
    """A platform reports no comments of a channel that is not connected."""
    usual = EventGenerator(0).channels
    lost = [channel.model_copy(update={"status": "needs_reconnect"}) for channel in usual[1:]]
    generator = EventGenerator(1, channels=[*lost, usual[0]])
    assert {generator.data("comment.received")["channelId"] for _ in SEEDS} == {usual[0].id}
    assert len({str(generator.data("channel.unhealthy")["id"]) for _ in SEEDS}) > 1


def test_without_an_active_channel_any_channel_gets_comments() -> None:
    usual = EventGenerator(0).channels
    lost = [channel.model_copy(update={"status": "error"}) for channel in usual[:1]]
    assert EventGenerator(1, channels=lost).data("comment.received")["channelId"] == usual[0].id
