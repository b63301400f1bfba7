"""Every answer updates the quota, and a listener is called once when little is left."""

import logging

import pytest
from support.scripted_api import ScriptedApi

from hookonce.client import Client, LimitError, Quota

from .conftest import KEY
from .test_operations import ME

pytestmark = pytest.mark.anyio


def headers(remaining: int | str, limit: int | str = 1000) -> dict[str, str]:
    return {
        "x-ratelimit-limit": str(limit),
        "x-ratelimit-remaining": str(remaining),
        "x-ratelimit-reset": "1785542400",
    }


async def test_the_quota_is_that_of_the_last_answer(client: Client, api: ScriptedApi) -> None:
    assert client.quota is None
    api.say(200, {"data": ME}, headers=headers(999))
    await client.me()
    assert client.quota == Quota(1000, 999, "1785542400")


async def test_an_error_shows_the_quota_too(client: Client, api: ScriptedApi) -> None:
    error = {"code": "quota", "kind": "limit", "message": "It is used up."}
    api.say(429, {"error": error}, headers=headers(0))
    with pytest.raises(LimitError):
        await client.me()
    assert client.quota == Quota(1000, 0, "1785542400")


@pytest.mark.parametrize("odd", ["", "many", "-1", "1e3", "9" * 30])
async def test_a_quota_that_cannot_be_read_changes_nothing(
    client: Client, api: ScriptedApi, odd: str
) -> None:
    api.say(200, {"data": ME}, headers=headers(5))
    api.say(200, {"data": ME}, headers=headers(odd))
    for _ in range(2):
        await client.me()
    assert client.quota == Quota(1000, 5, "1785542400")


async def test_little_quota_is_logged_once_until_there_was_more(api: ScriptedApi) -> None:
    told: list[int] = []
    async with Client(
        api.url, KEY, on_quota=lambda quota: told.append(quota.remaining), quota_reserve=0.05
    ) as client:
        for remaining in (51, 50, 49, 0, 1000, 3):
            api.say(200, {"data": ME}, headers=headers(remaining))
        for _ in range(6):
            await client.me()
    assert told == [50, 3]


async def test_a_listener_that_fails_fails_no_request(
    api: ScriptedApi, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Quota) -> None:
        raise RuntimeError("pager is down")

    api.say(200, {"data": ME}, headers=headers(0))
    async with Client(api.url, KEY, on_quota=fail) as client:
        with caplog.at_level(logging.ERROR, "hookonce.client"):
            assert (await client.me()).key.id == "key_1"
    assert "the quota listener failed" in caplog.text
