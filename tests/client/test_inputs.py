"""Misspelt and empty arguments are refused instead of sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.scripted_api import ScriptedApi

from hookonce.client import Client
from hookonce.resources import PostInput, PostTargetInput

from .test_operations import SAVED

pytestmark = [pytest.mark.anyio, pytest.mark.sample(20, of="file")]

TARGET = {"channelId": "ch_1"}

LISTS: dict[str, tuple[str, Callable[[Client, Any], Any]]] = {
    "posts": ("channels", lambda c, values: c.posts.list(channels=values)),
    "comments": ("channels", lambda c, values: c.comments.list(channels=values)),
}
AWAITED: dict[str, Callable[[Client, Any], Any]] = {
    "create endpoint": lambda c, values: c.webhooks.create("https://a.example", values),
    "update endpoint": lambda c, values: c.webhooks.update("wh_1", events=values),
    "media of a post": lambda c, values: c.posts.create({"targets": [TARGET], "mediaIds": values}),
    "media of a target": lambda c, values: c.posts.create(
        {"targets": [{**TARGET, "media_ids": values}]}
    ),
    "targets": lambda c, values: c.posts.replace("post_1", {"targets": values}),
}


@pytest.mark.parametrize("values", ["ch_1", b"ch_1", [1], [None]])
@pytest.mark.parametrize("name", LISTS)
async def test_a_string_is_refused_as_a_list_of_channels(
    client: Client, name: str, values: Any
) -> None:
    argument, call = LISTS[name]
    with pytest.raises(TypeError, match=f"{argument} takes a list of texts"):
        call(client, values)


@pytest.mark.parametrize("name", LISTS)
async def test_an_empty_channel_does_not_mean_all(client: Client, name: str) -> None:
    with pytest.raises(ValueError, match="contains an empty text"):
        LISTS[name][1](client, [""])


@pytest.mark.parametrize("name", AWAITED)
async def test_a_string_is_refused_as_a_list_in_a_request(
    client: Client, api: ScriptedApi, name: str
) -> None:
    with pytest.raises((TypeError, ValueError)):
        await AWAITED[name](client, "comment.received")
    assert api.asked == []


@pytest.mark.parametrize("values", [["ch_1", "ch_2"], ("ch_1", "ch_2"), iter(["ch_1", "ch_2"])])
async def test_any_iterable_of_ids_is_accepted_as_a_list(
    client: Client, api: ScriptedApi, values: Any
) -> None:
    api.say(200, {"data": [], "nextCursor": None})
    _ = [one async for one in client.posts.list(channels=values)]
    assert api.asked[0].query["channels"] == "ch_1,ch_2"


@pytest.mark.parametrize(
    ("post", "words"),
    [
        (
            {"captoin": "x", "targets": [TARGET]},
            "post has no field 'captoin'; did you mean caption",
        ),
        ({"Caption": "x", "targets": [TARGET]}, "did you mean caption"),
        ({"mediaIDs": [], "targets": [TARGET]}, "did you mean media_ids"),
        ({"scheduleAt": None, "targets": [TARGET]}, "did you mean scheduled_at"),
        ({"x": 1, "targets": [TARGET]}, "no field 'x'; leave it out"),
        (
            {"targets": [{**TARGET, "firstComent": "x"}]},
            "target has no field 'firstComent'; did you mean first_comment",
        ),
        (PostInput.model_validate({"captoin": "x", "targets": [TARGET]}), "did you mean caption"),
        (
            PostInput(targets=[PostTargetInput.model_validate({**TARGET, "caption_": "x"})]),
            "did you mean caption",
        ),
    ],
)
@pytest.mark.parametrize("operation", ["create", "validate", "replace"])
async def test_a_misspelt_field_is_refused_before_it_empties_another(
    client: Client, api: ScriptedApi, post: Any, words: str, operation: str
) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "create": lambda: client.posts.create(post),
        "validate": lambda: client.posts.validate(post),
        "replace": lambda: client.posts.replace("post_1", post),
    }
    with pytest.raises(ValueError, match=words):
        await calls[operation]()
    assert api.asked == []


async def test_settings_may_have_any_name(client: Client, api: ScriptedApi) -> None:
    api.say(200, {"data": SAVED})
    settings = {"titel": "x", "new": {"captoin": 1}}
    await client.posts.replace("post_1", {"targets": [{**TARGET, "settings": settings}]})
    assert api.asked[0].json["targets"][0]["settings"] == settings


def test_the_address_and_the_key_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOOKONCE_API_URL", " https://api.example.com/v1/\n")
    monkeypatch.setenv("HOOKONCE_API_KEY", "example_sk_1")
    assert repr(Client()) == "Client('https://api.example.com')"
    monkeypatch.setenv("HOOKONCE_API_URL", "")
    with pytest.raises(ValueError, match="set the environment variable HOOKONCE_API_URL"):
        Client()
