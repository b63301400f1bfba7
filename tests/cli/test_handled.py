"""`hookonce handled` lists and shows handled events."""

import asyncio
import json
from collections.abc import Iterable
from contextlib import aclosing
from pathlib import Path

import pytest

from hookonce.clock import system_clock
from hookonce.stores.handled import Keeping
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Claimed, Delivery, new_token

from .running import invoke

DAYS = Keeping(3 * 86_400.0)


async def _handle(file: Path, deliveries: Iterable[Delivery], keeping: Keeping) -> None:
    async with aclosing(SQLiteStore(file)) as store:
        for one in deliveries:
            claim = await store.claim(one.key, new_token(), 30.0)
            assert isinstance(claim, Claimed)
            await store.complete_and_keep(claim, one, {"shop.book", "mail"}, keeping)


def delivery(event_id: str, *, endpoint: str = "default", body: bytes = b"{}") -> Delivery:
    return Delivery(endpoint, event_id, "comment.received", system_clock(), body)


@pytest.fixture
def url(tmp_path: Path) -> str:
    file = tmp_path / "hookonce.db"
    bodies = (b'{"data": {"platform": "instagram"}}', b'{"data": {"platform": "mastodon"}}')
    deliveries = [delivery(f"evt_{n}", body=body) for n, body in enumerate(bodies)]
    asyncio.run(_handle(file, [*deliveries, delivery("evt_2", endpoint="other")], DAYS))
    asyncio.run(_handle(file, [delivery("evt_old")], Keeping(1e-6)))
    return f"sqlite:///{file}"


def ids(*arguments: str) -> list[str]:
    result = invoke("handled", "list", *arguments, "--json")
    assert result.status == 0, result.errors
    return [json.loads(line)["id"] for line in result.output.splitlines()]


def test_handled_events_are_listed_in_the_order_of_success(url: str) -> None:
    assert ids(url) == ["evt_0", "evt_1", "evt_2"]
    assert "evt_0\tcomment.received\tmail, shop.book\t" in invoke("handled", "list", url).output


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["--endpoint", "other"], ["evt_2"]),
        (["--handler", "mail", "--endpoint", "default"], ["evt_0", "evt_1"]),
        (["--handler", "post"], []),
        (["--type", "message.received"], []),
        (["--since", "1h"], ["evt_0", "evt_1", "evt_2"]),
        (["--where", "data.platform=mastodon"], ["evt_1"]),
        (["--limit", "1"], ["evt_0"]),
    ],
)
def test_handled_events_are_filtered(url: str, filters: list[str], found: list[str]) -> None:
    assert ids(url, *filters) == found


def test_a_short_list_says_how_many_more_there_are(url: str) -> None:
    result = invoke("handled", "list", url, "--limit", "1")
    assert "2 more; --all lists them" in result.errors


def test_an_empty_list_says_so(url: str) -> None:
    result = invoke("handled", "list", url, "--handler", "post")
    assert (result.status, result.output) == (0, "no handled events are kept\n")


def test_one_event_is_shown_with_its_body(url: str) -> None:
    shown = invoke("handled", "show", url, "evt_1")
    assert shown.status == 0
    assert "handlers: mail, shop.book" in shown.output
    assert shown.output.endswith('{"data": {"platform": "mastodon"}}\n')
    assert invoke("handled", "show", url, "evt_2", "--raw").output == "{}"
    record = json.loads(invoke("handled", "show", url, "evt_1", "--json").output)
    assert record["finished"] == ["mail", "shop.book"]


@pytest.mark.parametrize("event_id", ["evt_9", "evt_old"])
def test_an_event_that_is_not_kept_is_reported(url: str, event_id: str) -> None:
    result = invoke("handled", "show", url, event_id)
    assert result.status != 0
    assert f"there is no kept handled event {event_id!r}" in result.errors
